"""What is linked with tools/old_glibc asks for an old C library, and runs; tools/check_wheel finds what does not."""
import ctypes
import pathlib
import re
import shutil
import subprocess
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
needs_tools = pytest.mark.skipif(not (shutil.which("g++") and shutil.which("readelf") and "glibc" in " ".join(
    subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, text=True, check=False).stdout.split())), reason="no g++, readelf or glibc")

# pthread_create, pthread_join and exp have newer versions; expf, memcpy and stderr have theirs since before 2.28.
SOURCE = r"""
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
static double made;
static void* work(void* x) { made = exp(*(double*)x) + expf(0.0f); return 0; }
#ifdef NEW
extern "C" int _dl_find_object(void*, void*);
void* used = (void*)_dl_find_object;
#endif
extern "C" double on_a_thread(double x) {
  pthread_t thread;
  double copy;
  memcpy(&copy, &x, sizeof copy);
  if (pthread_create(&thread, 0, work, &copy)) { fputs("no thread", stderr); return -1; }
  pthread_join(thread, 0);
  return made;
}
"""


def linked(folder, *options):
    """(the library, versions of glibc that it asks for, names without a version)"""
    told = subprocess.run([ROOT / "tools" / "old_glibc", folder / "old", "2.28", "g++"], capture_output=True, text=True, check=True)
    (folder / "x.cpp").write_text(SOURCE)
    made = folder / "x.so"
    subprocess.run(["g++", "-O1", "-fno-builtin", "-shared", "-fPIC", "-nostartfiles", *options, "-o", made, folder / "x.cpp", "-Wl,--push-state,--no-as-needed",
                    *told.stdout.split(), "-Wl,--pop-state"], check=True)
    symbols = subprocess.run(["nm", "-D", made], capture_output=True, text=True, check=True).stdout
    return made, {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([\d.]+)", symbols)}, re.findall(r" U (\w+)$", symbols, re.M)


@needs_tools
def test_new_functions_are_linked_by_their_old_versions_and_run(tmp_path):
    made, versions, loose = linked(tmp_path)
    assert versions and max(versions) <= (2, 28) and not loose
    needed = subprocess.run(["readelf", "-dW", made], capture_output=True, text=True, check=True).stdout
    assert "libpthread.so.0" in needed and str(tmp_path) not in needed
    call = ctypes.CDLL(str(made)).on_a_thread
    call.restype, call.argtypes = ctypes.c_double, [ctypes.c_double]
    assert call(1.0) == pytest.approx(3.718281828459045)


@needs_tools
def test_a_wheel_is_held_to_its_tag(tmp_path):
    def check(library, name):
        wheel = tmp_path / name
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(library, "greenfast/_core.abi3.so")
        return subprocess.run([ROOT / "tools" / "check_wheel", wheel], capture_output=True, text=True, check=False).stdout
    made, _, _ = linked(tmp_path)
    assert "is promised" not in check(made, "x-1-cp310-abi3-manylinux_2_28_x86_64.whl")
    assert "wants glibc 2.27, and 2.17 is promised" in check(made, "x-1-cp310-abi3-manylinux_2_17_x86_64.whl")
    subprocess.run(["g++", "-shared", "-fPIC", "-fno-builtin", "-o", tmp_path / "plain.so", tmp_path / "x.cpp"], check=True)
    versions = subprocess.run(["nm", "-D", tmp_path / "plain.so"], capture_output=True, text=True, check=True).stdout
    if re.search(r"pthread_create@GLIBC_2\.3\d", versions):
        assert "and 2.28 is promised" in check(tmp_path / "plain.so", "x-1-cp310-abi3-linux_x86_64.whl")
        new, _, loose = linked(tmp_path, "-DNEW")
        assert "_dl_find_object" in loose and "takes _dl_find_object of any version" in check(new, "x-1-cp310-abi3-linux_x86_64.whl")


def test_usage():
    for arguments in ([], ["folder"], ["folder", "new"]):
        assert subprocess.run([ROOT / "tools" / "old_glibc", *arguments], capture_output=True, check=False).returncode == 2
