"""The include law: planted breaches are found, what is allowed passes."""
import pathlib
import re
import subprocess

import pytest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "check_layers"

TREE = {
    "include/greenfast/types.hpp": "#include <vector>\n",
    "src/core/variant.hpp": "#include <greenfast/types.hpp>\n",
    "src/dispatch/registry.hpp": '#include "core/variant.hpp"\n',
    "src/api/attention.cpp": '#include "dispatch/registry.hpp"\n#include "core/variant.hpp"\n',
    "src/backends/cpu/pool.cpp": '#include "core/variant.hpp"\n',
    "src/backends/cuda/runtime.cpp": "#include <cuda_runtime_api.h>\n",
    "src/kernels/cuda/device/mma.cuh": "#include <cuda/ptx>\n",
    "src/kernels/cuda/ladder/tiles.cuh": "",
    "src/kernels/cuda/ladder/10_sm80_a.cuh": '#include "core/variant.hpp"\n#include "kernels/cuda/device/mma.cuh"\n',
    "src/kernels/cuda/ladder/10_sm80_a_d64.cu": '#include "10_sm80_a.cuh"\n#include "tiles.cuh"\n',
    "src/kernels/cuda/sm90_b/config.hpp": "",
    "src/kernels/cuda/sm90_b/host.cu": '#include "kernels/cuda/sm90_b/config.hpp"\n',
    "src/kernels/cpu/flash/tile.hpp": "",
    "src/kernels/cpu/flash/avx2.cpp": '#include "tile.hpp"\n',
    "workbench/base/files.hpp": "#include <greenfast/types.hpp>\n",
    "workbench/reference/oracle.hpp": '#include "workbench/base/files.hpp"\n',
    "workbench/verdict/gate.hpp": '#include "workbench/reference/oracle.hpp"\n',
    "workbench/verdict/steps/gate_steps.hpp": '#include "workbench/verdict/gate.hpp"\n',
    "workbench/verdict/steps/gate_steps.cpp": '#include "workbench/verdict/steps/gate_steps.hpp"\n',
    "tests/workbench/base/files_test.cpp": '#include "workbench/base/files.hpp"\n',
    "tests/workbench/reference/oracle_test.cpp": '#include "workbench/reference/oracle.hpp"\n',
    "tests/workbench/verdict/gate_test.cpp": '#include "workbench/verdict/gate.hpp"\n',
    "tests/workbench/verdict/steps/gate_steps_test.cpp": '#include "workbench/verdict/steps/gate_steps.hpp"\n',
    "tests/kernels/cuda/device/mma_test.cpp": '#include "kernels/cuda/device/mma.cuh"\n',
    "tests/kernels/cuda/ladder/a_test.cpp": '#include "kernels/cuda/ladder/10_sm80_a.cuh"\n',
    "tests/kernels/cuda/sm90_b/config_test.cpp": '#include "kernels/cuda/sm90_b/config.hpp"\n',
    "cli/main.cpp": '#include "workbench/reference/oracle.hpp"\n',
    "examples/cpp/main.cpp": "#include <greenfast/types.hpp>\n",
    "fuzz/shapes.cpp": '#include "workbench/reference/oracle.hpp"\n',
    "fuzz/library/spec.hpp": "#include <greenfast/types.hpp>\n",
    "fuzz/library/worker.cu": '#include <cuda_runtime_api.h>\n#include "fuzz/library/spec.hpp"\n',
    "python/module/view.hpp": "#include <greenfast/types.hpp>\n",
    "python/module/call.cpp": '#include "view.hpp"\n',
}


def check(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run([TOOL, root], capture_output=True, text=True, check=False)


def test_lawful_tree_passes(tmp_path):
    result = check(tmp_path, TREE)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "file, text, breach",
    [
        ("include/greenfast/x.hpp", '#include "core/variant.hpp"', "src/core/variant.hpp"),
        ("include/greenfast/x.hpp", "#include <cuda_fp16.h>", "cuda_fp16.h"),
        ("src/core/x.cpp", '#include "dispatch/registry.hpp"', "src/dispatch/registry.hpp"),
        ("src/core/x.cpp", "#  include <cuda_runtime.h>", "cuda_runtime.h"),
        ("src/backends/cpu/x.cpp", '#include "dispatch/registry.hpp"', "src/dispatch/registry.hpp"),
        ("src/api/x.cpp", '#include "../kernels/cpu/flash/tile.hpp"', "src/kernels/cpu/flash/tile.hpp"),
        ("src/kernels/cpu/x.cpp", '#include "kernels/cuda/device/mma.cuh"', "src/kernels/cuda/device/mma.cuh"),
        ("src/kernels/cpu/naive.cpp", '#include "flash/tile.hpp"', "src/kernels/cpu/flash/tile.hpp"),
        ("src/kernels/cuda/ladder/20_sm80_b.cu", '#include "10_sm80_a.cuh"', "src/kernels/cuda/ladder/10_sm80_a.cuh"),
        ("src/kernels/cuda/ladder/x.cuh", '#include "10_sm80_a.cuh"', "src/kernels/cuda/ladder/10_sm80_a.cuh"),
        ("src/kernels/cuda/ladder/x.cuh", '#include "kernels/cuda/sm90_b/config.hpp"', "src/kernels/cuda/sm90_b/config.hpp"),
        ("src/kernels/cuda/sm90_c/host.cu", '#include "kernels/cuda/sm90_b/config.hpp"', "src/kernels/cuda/sm90_b/config.hpp"),
        ("src/kernels/cuda/sm90_c/host.cu", '#include "kernels/cuda/ladder/tiles.cuh"', "src/kernels/cuda/ladder/tiles.cuh"),
        ("src/kernels/cuda/device/x.cuh", '#include "../sm90_b/config.hpp"', "src/kernels/cuda/sm90_b/config.hpp"),
        ("src/api/x.cpp", '#include "workbench/reference/oracle.hpp"', "workbench/reference/oracle.hpp"),
        ("workbench/base/x.cpp", '#include "src/core/variant.hpp"', "src/core/variant.hpp"),
        ("workbench/base/x.cpp", "#include <core/variant.hpp>", "src/core/variant.hpp"),
        ("workbench/base/x.cpp", '#include "workbench/reference/oracle.hpp"', "reference stands after it"),
        ("workbench/reference/x.cpp", '#include "../verdict/gate.hpp"', "verdict stands after it"),
        ("workbench/base/deep/x.cpp", '#include "workbench/verdict/gate.hpp"', "verdict stands after it"),
        ("workbench/x.cpp", '#include "workbench/base/files.hpp"', "workbench/x.cpp is in no room"),
        ("workbench/attic/x.cpp", '#include "workbench/base/files.hpp"', "workbench/attic/x.cpp is in no room"),
        ("cli/x.cpp", '#include "core/variant.hpp"', "src/core/variant.hpp"),
        ("examples/c/x.c", '#include "workbench/reference/oracle.hpp"', "workbench/reference/oracle.hpp"),
        ("fuzz/x.cpp", '#include "core/variant.hpp"', "src/core/variant.hpp"),
        ("fuzz/x.cpp", '#include "fuzz/library/spec.hpp"', "fuzz/library/spec.hpp"),
        ("fuzz/x.cpp", "#include <cuda_runtime_api.h>", "cuda_runtime_api.h"),
        ("fuzz/library/x.cpp", '#include "workbench/reference/oracle.hpp"', "workbench/reference/oracle.hpp"),
        ("fuzz/library/x.cpp", '#include "core/variant.hpp"', "src/core/variant.hpp"),
        ("python/module/x.cpp", '#include "core/variant.hpp"', "src/core/variant.hpp"),
        ("python/module/x.cpp", '#include "workbench/base/files.hpp"', "workbench/base/files.hpp"),
        ("workbench/base/x.cpp", '#include "python/module/view.hpp"', "python/module/view.hpp"),
    ],
)
def test_planted_breach_is_found(tmp_path, file, text, breach):
    result = check(tmp_path, {**TREE, file: "\n" + text + "\n"})
    assert result.returncode == 1
    first = result.stdout.splitlines()[0]
    assert first.startswith(f"{file}:2: ")
    assert breach in first


@pytest.mark.parametrize(
    "files, breach",
    [
        # Nothing of it includes anything, and it is in no room all the same.
        ({"workbench/x.cpp": ""}, "workbench/x.cpp is in no room of workbench/: base, "),
        ({"workbench/attic/x.cpp": ""}, "workbench/attic is no room: base, "),
        ({"workbench/fast/ring.hpp": ""}, "tests/workbench/fast: no *_test.cpp includes a header of workbench/fast"),
        # A test that includes another room's headers, or is no test by name, is none of this room.
        ({"workbench/fast/ring.hpp": "", "tests/workbench/fast/ring_test.cpp": '#include "workbench/base/files.hpp"\n'},
         "tests/workbench/fast: no *_test.cpp"),
        ({"workbench/fast/ring.hpp": "", "tests/workbench/fast/fake.hpp": '#include "workbench/fast/ring.hpp"\n'},
         "tests/workbench/fast: no *_test.cpp"),
        ({"tests/workbench/base/everything_test.cpp": '#include "workbench/base/files.hpp"\n'},
         "tests/workbench/base/everything_test.cpp tests no file of workbench/base"),
        ({"workbench/verdict/files.cpp": ""}, "workbench/base/files.hpp and workbench/verdict/files.cpp have one name"),
        # A folder in a room, and a kernel's folder, each by a test under its own path.
        ({"workbench/verdict/peers/table.hpp": "", "tests/workbench/verdict/table_test.cpp": '#include "workbench/verdict/peers/table.hpp"\n'},
         "tests/workbench/verdict/peers: no *_test.cpp includes a header of workbench/verdict/peers"),
        ({"src/kernels/cuda/sm90_c/host.cu": ""},
         "tests/kernels/cuda/sm90_c: no *_test.cpp includes a header of src/kernels/cuda/sm90_c"),
        ({"src/kernels/cuda/sm90_c/config.hpp": "", "tests/kernels/cuda/sm90_b/c_test.cpp": '#include "kernels/cuda/sm90_c/config.hpp"\n'},
         "tests/kernels/cuda/sm90_c: no *_test.cpp"),
    ],
)
def test_every_room_is_tested_by_its_own_path(tmp_path, files, breach):
    result = check(tmp_path, {**TREE, **files})
    assert result.returncode == 1
    assert breach in result.stdout
    assert len(result.stdout.splitlines()) == 2, result.stdout


@pytest.mark.parametrize(
    "name, breach",
    [
        ("tests/library/variant_test.cpp", "neither src/library nor library is a folder"),
        ("tests/variant_test.cpp", "neither src/. nor . is a folder"),
        ("tests/core/everything_test.cpp", "tests no file of src/core: call it <source>_test.cpp"),
        ("tests/backends/cpu/variant_test.c", "tests no file of src/backends/cpu: call it <source>_test.c"),
    ],
)
def test_a_test_that_mirrors_no_source_is_found(tmp_path, name, breach):
    result = check(tmp_path, {**TREE, name: ""})
    assert result.returncode == 1
    assert result.stdout.startswith(name) and breach in result.stdout
    assert len(result.stdout.splitlines()) == 2, result.stdout


def test_tests_that_mirror_sources_pass(tmp_path):
    names = ("core/variant_test.cpp", "core/variant_edges_test.cpp", "backends/cpu/pool_test.cpp", "kernels/cpu/all_test.cpp",
             "include/greenfast/types_test.cpp", "examples/cpp/main_test.cpp")
    result = check(tmp_path, {**TREE, **{f"tests/{name}": "" for name in names}})
    assert result.returncode == 0, result.stdout


def test_data_of_tests_stands_beside_them(tmp_path):
    result = check(tmp_path, {**TREE, "tests/search/recorded.json": "{}", "tests/cli/search/recorded.json": "{}"})
    assert result.returncode == 1
    assert result.stdout.startswith("tests/search: neither src/search nor search is a folder; data stands beside the test")
    assert len(result.stdout.splitlines()) == 2, result.stdout


def unnamed(*definitions):
    return "\n".join(["namespace greenfast {", "namespace {", *definitions, "}  // namespace", "}  // namespace greenfast", ""])


@pytest.mark.parametrize(
    "one, other, name",
    [
        ("void print(int) {}", "int print(const std::string& text) {\n  return 0;\n}", "print"),
        ("std::vector<std::string> split(std::string_view text) {\n}", "auto split() -> int {\n}", "split"),
        ("const std::map<std::string, std::string>&\ntable() {\n}", "template <class T>\nT table() {\n}", "table"),
        ("__attribute__((target(\"avx2\"))) float fused(int n) {\n}", "[[nodiscard]] float fused() {\n}", "fused"),
        ("constexpr int kRows = 32;", "constexpr std::array<int, 2> kRows{1, 2};", "kRows"),
        ("int last_row;", "constexpr Row last_row[] = {\n};", "last_row"),
        ("struct Row {\n};", "enum class Row { a };", "Row"),
        ("using Run = void (*)();", "using Run = int (*)();", "Run"),
    ],
)
@pytest.mark.parametrize("folder", ["workbench/base", "workbench/base/deep", "cli"])
def test_a_name_that_two_files_of_a_unit_give_is_found(tmp_path, folder, one, other, name):
    beside = folder.removesuffix("/deep")
    tests = {"tests/workbench/base/deep/one_test.cpp": '#include "workbench/base/deep/one.hpp"\n', "workbench/base/deep/one.hpp": ""}
    result = check(tmp_path, {**TREE, **(tests if "deep" in folder else {}), f"{beside}/other.cpp": unnamed(other), f"{folder}/one.cpp": unnamed(one)})
    assert result.returncode == 1
    first, last = result.stdout.splitlines()
    assert f"{folder}/one.cpp" in first and f"{beside}/other.cpp" in first and re.search(rf"\b{name}\b", first), first


def test_names_that_cannot_clash_pass(tmp_path):
    result = check(tmp_path, {
        **TREE,
        # Another room's; the same alias; what is not of the file alone, or stands in something that is; a call; a declaration.
        "workbench/base/one.cpp": unnamed("using Clock = std::chrono::steady_clock;", "struct One {", "  void print() {}", "};", "class Other;") + "void print() {}\n",
        "workbench/base/other.cpp": unnamed("using Clock = std::chrono::steady_clock;", "void print() {", "  trim(1);", "}", "class Other;"),
        "workbench/reference/third.cpp": unnamed("void print() {}", "void trim(int) {}"),
    })
    assert result.returncode == 0, result.stdout


CARD = "// Idea    a\n// Takes   b\n// Limits  c\n// Budget  d\n// Bound   e\n"
KERNEL = "__global__ void kernel() {}\n"


@pytest.mark.parametrize("text, missing", [
    (KERNEL, "Idea, Takes, Limits, Budget, Bound"),
    (CARD.replace("// Budget  d\n", "") + KERNEL, "Budget"),
    (CARD.replace("Bound   e", "Bound") + KERNEL, "Bound"),
])
def test_a_kernel_without_its_card_is_found(tmp_path, text, missing):
    result = check(tmp_path, {**TREE, "src/backends/cuda/fill.cu": text})
    assert result.returncode == 1 and f"src/backends/cuda/fill.cu: its kernel's card lacks {missing}\n" in result.stdout


@pytest.mark.parametrize("text", [CARD + KERNEL, "// A twin. Its card is that of other.cu.\n" + KERNEL, "int of_the_host;\n"])
def test_a_card_or_the_name_of_its_file_passes(tmp_path, text):
    assert check(tmp_path, {**TREE, "src/backends/cuda/fill.cu": text}).returncode == 0


def test_empty_tree_is_no_pass(tmp_path):
    assert check(tmp_path, {}).returncode == 1


def test_floors_are_one_above_those_who_are_included(tmp_path):
    check(tmp_path, TREE)
    drawn = subprocess.run([TOOL, "--draw", tmp_path], capture_output=True, text=True, check=True).stdout
    floors = re.findall(r"^floor +(\d+): (.*)$", drawn, re.MULTILINE)
    by_name = {room.rsplit(" ", 1)[0]: int(floor) for floor, rooms in floors for room in rooms.split(", ")}
    assert by_name == {"include": 0, "src/core": 1, "src/dispatch": 2, "src/api": 3, "src/backends": 2, "src/kernels/cuda": 2,
                       "src/kernels/cpu": 0, "workbench/base": 1, "workbench/reference": 2, "workbench/verdict": 3, "cli": 3,
                       "examples": 1, "fuzz": 3, "fuzz/library": 1, "python/module": 1}


def test_who_include_each_other_are_not_above_one_another(tmp_path):
    check(tmp_path, {**TREE, "workbench/base/x.cpp": '#include "workbench/reference/oracle.hpp"'})
    drawn = subprocess.run([TOOL, "--draw", tmp_path], capture_output=True, text=True, check=True).stdout
    assert "two-way pairs: 1; workbench/base and workbench/reference" in drawn
    assert re.search(r"^floor  1: .*workbench/base 2, workbench/reference 1$", drawn, re.MULTILINE), drawn


def test_the_drawn_house_has_the_counts_and_floors_of_today():
    drawn = subprocess.run([TOOL, "--draw"], capture_output=True, text=True, check=True).stdout
    page = (TOOL.parents[1] / "ARCHITECTURE.md").read_text()
    after = page[page.index("after (20"):page.index("| rooms, the library's")]
    on_page = {int(floor): set(re.findall(r"([a-z/]+) (\d+)", rooms))
               for floor, rooms in re.findall(r"^.* (\d+)  ((?:[a-z/]+ \d+ *)+)$", after, re.MULTILINE)}
    today = {}
    for floor, rooms in re.findall(r"^floor +(\d+): (.*)$", drawn, re.MULTILINE):
        # The workbench's half of the house, and what it stands on.
        shown = {(name.removeprefix("workbench/").replace("include", "include/greenfast"), count)
                 for name, count in re.findall(r"([a-z/]+) (\d+)", rooms) if name in ("cli", "include") or name.startswith("workbench/")}
        if shown:
            today[int(floor)] = shown
    assert len(today) > 10 and on_page == today
    rooms, arrows, pairs = re.search(r"(\d+) rooms, (\d+) arrows, two-way pairs: (\d+)", drawn).groups()
    for row in (f"included | 21 | {rooms} |", f"| arrows between them | 51 | {arrows} |", f"| two-way pairs | 4 | {pairs} |"):
        assert row in page, row
