"""tools/gpu/sanitize against a sanitizer and a greenfast that play their parts; the ladder's records and plot."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

GREENFAST = '''#!/bin/sh
case "$1" in
  --version) echo "greenfast 0.1.0 (01234567)" ;;
  doctor) echo '{"devices": {"cuda": {"available": AVAILABLE, "reason": "no driver", "facts": {"name": "GPU", "driver": "13.0"}}}}' ;;
  list) echo '{"variants": [{"id": "cuda.a", "device": "cuda", "built": true, "takes": ["fp16 inputs"]},
                            {"id": "cuda.b", "device": "cuda", "built": true, "takes": ["fp16 inputs", "the LSE"]},
                            {"id": "cuda.c", "device": "cuda", "built": false, "takes": []}, {"id": "cpu.x", "device": "cpu", "built": true, "takes": []}]}' ;;
esac
'''
# --tool T --print-limit 20 --log-file FILE --error-exitcode 99 GREENFAST check --device cuda --variants V ...
SANITIZER = '''#!/bin/sh
[ "$1" = --version ] && { echo "NVIDIA Compute Sanitizer"; echo "Version 2025.3.1.0"; exit 0; }
tool=$2 limit=$4 report=$6 variant=${14}
errors=0
if [ "${9##*/}" = probe ]; then
  for word in PROBE; do [ "${word%:*}" = "${10}" ] && errors=${word#*:}; done
  echo "========= RACECHECK SUMMARY: $errors hazards displayed ($errors errors, 0 warnings)" >"$report"
  echo "${10} ran"
  exit
fi
[ "$tool $variant" = "FINDS" ] && { errors=COUNT; cat >"$report" <<'END'
ACCESSES
END
}
if [ "$tool" = racecheck ]; then
  echo "========= RACECHECK SUMMARY: $errors hazards displayed ($errors errors, 0 warnings)" >>"$report"
else
  echo "========= ERROR SUMMARY: $errors errors" >>"$report"
fi
echo '{"rows": [{"verdict": "VERDICT", "cases": 4, "reason": null}, {"verdict": "SKIPPED", "cases": 0, "reason": "type"}]}'
'''
# ... -o PROGRAM racecheck_probe.cu
NVCC = '''#!/bin/sh
while [ "$1" != -o ]; do shift; done
case "$3" in */tools/gpu/racecheck_probe.cu) touch "$2" ;; *) exit 1 ;; esac
'''
PROVES = {"none": 9, "sync": 0, "arrive": 5, "mbarrier": 5, "between": 2}


@pytest.fixture
def sanitize(tmp_path):
    def run(*arguments, finds="none", accesses=("ns::kernel(int)",), count="3", verdict="GREEN", probe=(), variant="cuda.b",
            nvcc=NVCC, available="true", sanitizer=True, place=" in a.cu:7"):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        lines = "\n".join(f"========= Invalid read at {name}+0x40{place}" for name in accesses)
        said = " ".join(f"{name}:{hazards}" for name, hazards in dict(probe).items())
        fake = (SANITIZER.replace("FINDS", finds).replace("COUNT", count).replace("ACCESSES", lines).replace("VERDICT", verdict)
                .replace("PROBE", said or "-"))
        listed = GREENFAST.replace("AVAILABLE", available).replace("cuda.b", variant)
        for name, text in (("greenfast", listed), ("compute-sanitizer", fake), ("nvcc", nvcc)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        if not sanitizer:
            (folder / "compute-sanitizer").unlink()
        path = f"{folder}:/usr/bin:/bin"
        record = tmp_path / "record.json"
        done = subprocess.run([sys.executable, ROOT / "tools" / "gpu" / "sanitize", folder / "greenfast", "--out", record, *arguments],
                              env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
        return done, json.loads(record.read_text()) if record.is_file() else None

    return run


def test_every_built_variant_runs_under_every_tool(sanitize):
    done, record = sanitize()
    assert done.returncode == 0, done.stderr
    assert record["compute_sanitizer"] == "2025.3.1.0" and record["device"] == "GPU" and record["findings"] == 0
    assert [(r["variant"], r["tool"]) for r in record["rows"]] == [
        (v, t) for v in ("cuda.a", "cuda.b") for t in ("memcheck", "racecheck", "initcheck", "synccheck")]
    assert all(r["status"] == "clean" and r["cases"] == 4 for r in record["rows"])


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_a_finding_is_counted_named_and_fails(sanitize, tool):
    done, record = sanitize(finds=f"{tool} cuda.b")
    assert done.returncode == 21
    assert f"cuda.b under {tool}" in done.stdout and "Invalid read" in done.stdout
    found = [r for r in record["rows"] if r["status"] != "clean"]
    assert [(r["variant"], r["tool"], r["findings"], r["kernels"]) for r in found] == [("cuda.b", tool, 3, ["ns::kernel(int)"])]


DECODE = "greenfast::cuda::stage_c::decode_tile<(int)64, (int)128, (bool)0>(__half *, const unsigned char *, int)"
MULTIPLY = "greenfast::cuda::stage_c::multiply_scalar<(int)8>(float *, int, const __half *, int, const __half *, int, int)"
LOAD = ("nvcuda::wmma::load_matrix_sync(nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, (int)16, (int)16, (int)16, __half, "
        "nvcuda::wmma::row_major> &, const __half *, unsigned int)")
STORE4, LOAD4 = "greenfast::cuda::ptx::shared_store4(unsigned int, float4)", "greenfast::cuda::ptx::shared_load4(unsigned int)"
STORE16, LOAD16 = "greenfast::cuda::ptx::store_shared_16(unsigned int, uint4)", "greenfast::cuda::ptx::load_shared_16(unsigned int)"
ORDERED = [  # variant, what racecheck names in it, the kernel of the probe that has to be reported
    ("cuda.stage_c.warp_spec", ("void " + DECODE, LOAD), "arrive"),
    ("cuda.stage_c.warp_spec_no_cp_async", (DECODE, LOAD), "arrive"),
    ("cuda.stage_c.warp_spec_phases", (DECODE, LOAD), "arrive"),
    ("cuda.stage_c.warp_spec_no_wmma_pv", (DECODE, MULTIPLY), "arrive"),
    ("cuda.sm90.prefill", (STORE4, LOAD4), "arrive"),
    ("cuda.sm90.small", (STORE16, LOAD16), "mbarrier"),
    ("cuda.sm80.mma", ("greenfast::cuda::ptx::cp_async_16_if(bool, unsigned int, const void *, bool)",
                       "greenfast::cuda::ptx::ldmatrix_x4_trans(unsigned int (&)[4], unsigned int)"), "between"),
]


@pytest.mark.parametrize("variant, accesses, kernel", ORDERED, ids=lambda value: value if isinstance(value, str) else "")
def test_hazards_are_explained_only_by_what_the_probe_shows_here(sanitize, variant, accesses, kernel):
    def row(**options):
        done, record = sanitize("--tools", "racecheck", variant=variant, finds=f"racecheck {variant}", accesses=accesses, **options)
        found = next(r for r in record["rows"] if r["variant"] == variant)
        assert done.returncode == (0 if found["status"] == "explained" else 21), done.stdout
        assert record["findings"] == (0 if found["status"] == "explained" else found["findings"])
        return found["status"], done.stdout, record["probe"]

    status, _, probe = row(probe=PROVES)
    assert status == "explained" and probe == {"error": None, "hazards": PROVES}
    # racecheck follows this order here, sees none where there is one, or sees order where there is none.
    for change in ({kernel: 0}, {"sync": 1}, {"none": 0}):
        status, told, probe = row(probe=PROVES | change)
        assert status == "findings" and probe["hazards"] == PROVES | change
        assert "does not bear that out" in told and accesses[-1] in told
    # The other way of ordering proves nothing for this one.
    other = "mbarrier" if kernel == "arrive" else "arrive"
    assert row(probe=PROVES | {other: 0})[0] == "explained"
    status, _, probe = row(probe=PROVES, nvcc="#!/bin/sh\necho no such GPU >&2\nexit 1\n")
    assert status == "findings" and "no such GPU" in probe["error"] and set(probe["hazards"].values()) == {None}


def test_an_explanation_covers_what_it_names_and_hides_nothing(sanitize):
    def status(**options):
        _, record = sanitize("--tools", "racecheck", variant="cuda.sm90.prefill", finds="racecheck cuda.sm90.prefill", probe=PROVES,
                             **{"accesses": (STORE4, LOAD4), **options})
        return record["rows"][-1]["status"]

    assert status() == "explained"
    assert status(accesses=(STORE4, LOAD4, "ns::kernel(int)")) == "findings"
    # As many reports as are printed at most: what the next would have named is not known.
    assert status(count="$limit") == "findings"
    assert status(verdict="RED") == "red"


def test_a_build_without_source_lines_is_told_why_nothing_is_explained(sanitize):
    done, record = sanitize("--tools", "racecheck", variant="cuda.sm90.small", finds="racecheck cuda.sm90.small", probe=PROVES, place="",
                            accesses=("greenfast::cuda::small::attention_kernel<__half>",))
    assert done.returncode == 21 and record["rows"][-1]["status"] == "findings" and "GREENFAST_LINEINFO=ON" in done.stdout


def test_the_probe_is_run_only_where_it_decides(sanitize):
    _, record = sanitize(nvcc="#!/bin/sh\nexit 1\n")
    assert record["probe"] is None


def test_the_probe_compiles(tmp_path):
    cache = pathlib.Path(os.environ.get("GREENFAST_BUILD", ROOT / "build")) / "CMakeCache.txt"
    found = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", cache.read_text(), re.M) if cache.is_file() else None
    nvcc = found[1] if found and pathlib.Path(found[1]).exists() else shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    subprocess.run([nvcc, "-std=c++20", "-O3", "-lineinfo", "-Werror", "all-warnings", "-arch=sm_90a", "-I", ROOT / "src", "-c", "-o",
                    tmp_path / "probe.o", ROOT / "tools" / "gpu" / "racecheck_probe.cu"], check=True)


def test_without_a_gpu_or_a_variant_it_says_so(sanitize):
    done, record = sanitize(available="false")
    assert done.returncode == 3 and "no driver" in done.stderr and record is None
    done, record = sanitize("--variants", "cuda.c")
    assert done.returncode == 2 and "cuda.c" in done.stderr
    done, record = sanitize("--tools", "valgrind")
    assert done.returncode == 2 and "memcheck" in done.stderr


def test_the_plot_of_the_page_shows_its_records(tmp_path):
    page = (ROOT / "docs" / "ladder.md").read_text()
    records = page.split("<!-- greenfast:ladder ")[1].split(" -->")[0].split()[:1]
    tool = [sys.executable, ROOT / "tools" / "ladder_plot"]
    paths = [ROOT / path for path in records]
    done = subprocess.run([*tool, "--check", *paths, ROOT / "docs" / "ladder" / "times.svg"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    other = tmp_path / "old.svg"
    other.write_text("<svg/>")
    assert subprocess.run([*tool, "--check", *paths, other], capture_output=True, check=False).returncode == 1


def test_a_walk_becomes_one_record_of_what_ran_on_a_gpu(tmp_path):
    def gate(kind):
        return {"device": {"kind": kind}, "argv": ["gate"], "build": {}, "host": {}, "utc": "2026-11-21T00:00:00Z", "fast": [], "code": [{"kernel": "k"}],
                "samples": "left out", "verdict": {"decision": "DEFER"}}

    for name, kind in (("cuda.b", "cuda"), ("cpu.b", "cpu")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gate.json").write_text(json.dumps(gate(kind)))
    steps = [{"candidate": c, "baseline": "x", "verdict": v} for c, v in (("cuda.b", "DEFER"), ("cpu.b", "DEFER"), ("cuda.c", "SKIPPED"))]
    (tmp_path / "ladder.json").write_text(json.dumps({"steps": steps}))
    done = subprocess.run([sys.executable, ROOT / "tools" / "ladder_gates", tmp_path], capture_output=True, text=True, check=False)
    record = json.loads(done.stdout)
    assert [step["candidate"] for step in record["steps"]] == ["cuda.b"] and "samples" not in record["steps"][0]
    assert record["steps"][0]["code"] == [{"kernel": "k"}]  # evidence binds the walk to it
    # A gate of one step is a walk of one.
    alone = tmp_path / "cuda.b"
    (alone / "gate.json").write_text(json.dumps(gate("cuda") | {"options": {"candidate": "cuda.b", "baseline": "cuda.a", "seeds": [0]}}))
    done = subprocess.run([sys.executable, ROOT / "tools" / "ladder_gates", alone], capture_output=True, text=True, check=False)
    assert [(step["candidate"], step["baseline"]) for step in json.loads(done.stdout)["steps"]] == [("cuda.b", "cuda.a")]
    assert subprocess.run([sys.executable, ROOT / "tools" / "ladder_gates", tmp_path / "bin"], capture_output=True, check=False).returncode == 3


def test_the_ladder_records_the_steps_that_are_asked_for_and_no_other(tmp_path):
    program = tmp_path / "greenfast"
    program.write_text('#!/bin/sh\necho "$1" >>"$0.calls"\necho "{}"\n')
    program.chmod(0o755)
    ladder = ROOT / "tools" / "gpu" / "ladder"
    done = subprocess.run([ladder, program, tmp_path / "out", "60", "selftest,phases"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "greenfast.calls").read_text().split() == ["selftest", "phases"]
    assert {file.name for file in (tmp_path / "out").glob("*.json")} == {"selftest.json", "phases.json"}
    refused = subprocess.run([ladder, program, tmp_path / "out", "60", "phases,walk"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "no step walk; there are selftest" in refused.stderr


def test_persistence_is_timed_where_every_cta_has_four_tiles():
    """On an H200: 227 KB a multiprocessor for the kernel's 53 KB, 132 multiprocessors, tiles of 32 queries."""
    script = (ROOT / "tools" / "gpu" / "ladder").read_text()
    shapes = [re.search(r'^ *primary="(.*)"$', script, re.MULTILINE)[1], *re.search(r'^ *guards="(.*)"$', script, re.MULTILINE)[1].split(",")]
    assert '--candidate cuda.stage_c.persistent --dtype e4m3 --primary "$primary"' in script and '--guards "$guards"' in script
    places = 227 // 53 * 132
    lengths = []
    for shape in shapes:
        batch, heads, length, dim = re.match(r"(\d+)x(\d+)x([\d/]+)x(\d+)", shape).groups()
        queries = [int(n) for n in length.split("/")]
        lengths += queries
        assert dim == "64" and int(batch) * int(heads) * -(-queries[0] // 32) >= 4 * places, shape
    assert {" causal" in shape for shape in shapes} == {True, False}
    assert any(n % 32 for n in lengths) and any(n % 64 for n in lengths)
    # What is predicted of it is of such a shape.
    predictions = (ROOT / "policies" / "predictions.toml").read_text()
    row = next(row for row in predictions.split("[[change]]") if 'candidate = "cuda.stage_c.persistent"' in row)
    assert f'shape = "{shapes[0]}"' in row


def test_checks_are_held_to_the_predecessor(tmp_path):
    worst = {"max_err": 1e-3, "mean_err": 1e-4, "percent_bad": 0, "rel_fro": 1e-4}
    case = {"problem": "p", "distribution": "normal", "seed": 0}
    record = {"argv": ["check"], "utc": "2026-11-21T00:00:00Z", "build": {"git": {"sha": "0" * 40}}, "device": {"name": "GPU"},
              "policy": {"name": "strict"}, "settings": {"seeds": [0]},
              "rows": [{"variant": v, "problem": "p", "verdict": "GREEN", "reason": None, "cases": 1, "worst": worst}
                       for v in ("cuda.v2c.v6", "cuda.v2c.v7", "cuda.stage_c.stage2_no_cp_async")],
              "cases": [{**case, "variant": "cuda.v2c.v6", "output_sha256": "a"}, {**case, "variant": "cuda.v2c.v7", "output_sha256": "a"}],
              "plans": [{"variant": v, "kernel": "v2c"} for v in ("cuda.v2c.v7", "cuda.v2c.v6")],
              "code": [{"kernel": "v2c", "arch": "sm_90a", "sha256": "1" * 64}, {"kernel": "nobody's", "arch": "sm_90a", "sha256": "2" * 64}]}
    path = tmp_path / "check.json"
    path.write_text(json.dumps(record))
    tool = [sys.executable, ROOT / "tools" / "ladder_checks", path]
    checks = json.loads(subprocess.run([*tool, path], capture_output=True, text=True, check=True).stdout)
    # What binds the record: each kernel once, with who launches it.
    assert checks["code"] == [{"kernel": "v2c", "arch": "sm_90a", "sha256": "1" * 64, "variants": ["cuda.v2c.v6", "cuda.v2c.v7"]}]
    rows = json.loads(subprocess.run(tool, capture_output=True, text=True, check=True).stdout)["rows"]
    assert [(r["same_bits"], r["compared"], r["compared_with"]) for r in rows] == [(0, 0, None), (1, 1, "cuda.v2c.v6"), (0, 0, None)]
    record["rows"][0]["verdict"] = "RED"
    path.write_text(json.dumps(record))
    assert subprocess.run(tool, capture_output=True, check=False).returncode == 20
