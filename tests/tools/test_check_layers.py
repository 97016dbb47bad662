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
    "workbench/verdict/steps/gate_steps.cpp": '#include "workbench/verdict/gate.hpp"\n',
    "tests/workbench/base/files_test.cpp": '#include "workbench/base/files.hpp"\n',
    "tests/workbench/reference/oracle_test.cpp": '#include "workbench/reference/oracle.hpp"\n',
    "tests/workbench/verdict/gate_steps_test.cpp": '#include "workbench/verdict/gate.hpp"\n',
    "cli/main.cpp": '#include "workbench/reference/oracle.hpp"\n',
    "examples/cpp/main.cpp": "#include <greenfast/types.hpp>\n",
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


def test_empty_tree_is_no_pass(tmp_path):
    assert check(tmp_path, {}).returncode == 1


def test_the_drawn_house_has_the_counts_of_today():
    drawn = subprocess.run([TOOL, "--draw"], capture_output=True, text=True, check=True).stdout
    page = (TOOL.parents[1] / "ARCHITECTURE.md").read_text()
    files = dict(re.findall(r"^workbench/(\w+) +(\d+) files", drawn, re.MULTILINE))
    assert len(files) > 10
    after = page[:page.index("| rooms, the library's")]
    for room, count in files.items():
        assert re.search(rf"\b{room} {count}\b", after), f"ARCHITECTURE.md: {room} has {count} files"
    rooms, arrows, pairs = re.search(r"(\d+) rooms, (\d+) arrows, two-way pairs: (\d+)", drawn).groups()
    for row in (f"included | 18 | {rooms} |", f"| arrows between them | 48 | {arrows} |", f"| two-way pairs | 4 | {pairs} |"):
        assert row in page, row
