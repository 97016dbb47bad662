"""The include law: planted breaches are found, what is allowed passes."""
import pathlib
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
    "workbench/reference/oracle.hpp": "#include <greenfast/types.hpp>\n",
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
        ("workbench/x.cpp", '#include "src/core/variant.hpp"', "src/core/variant.hpp"),
        ("workbench/x.cpp", "#include <core/variant.hpp>", "src/core/variant.hpp"),
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


def test_empty_tree_is_no_pass(tmp_path):
    assert check(tmp_path, {}).returncode == 1
