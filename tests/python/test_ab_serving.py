"""The suites of serving and the rows of e4m3, end to end without a GPU: the library's CPU kernels through the C ABI, FlashAttention-3
and cuDNN by fakes with their schemas. What needs PyTorch is skipped where there is none."""
import json
import math
import pathlib
import random
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "python"), str(ROOT / "tests" / "cli"), str(ROOT / "tests" / "python")]

from cli_paths import GREENFAST  # noqa: E402
from greenfast_bench import ab, capi, fp8, serving, ways  # noqa: E402
from greenfast_bench.measure import Usage, why_not_timed  # noqa: E402
from greenfast_bench.serving import Row  # noqa: E402

LIBRARY = pathlib.Path(GREENFAST).resolve().parents[1] / "src" / "libgreenfast.so"
ROWS = [
    "2x8/2x1/320x64", "2x8/2x1/200x64 window=31:0 sinks", "2x4/2x1/300x64 chunk=128 causal", "2x4/2x1/320x96/64",
    "3x4/2x1/300x64 used-kv lengths=log-uniform:16", "3x4/2x1/300x64 used-kv lengths=full sinks",
    "3x4/2x1/300x64 pages=16 used-kv lengths=log-uniform:16", "3x4/2x1/300x64 pages=64 used-kv lengths=log-uniform:16 window=31:0 sinks",
    "3x4/2x40/300x64 pages=64 used-kv lengths=log-uniform:64 causal", "2x4/1x3/130x128 causal",
    "3x4/2x200x64 packed causal lengths=log-uniform:16", "3x4/2x100x64 packed causal lengths=full",
    "3x4x200x96/64 packed window=31:0 sinks lengths=log-uniform:16", "2x4/2x300x64 packed causal chunk=128 lengths=log-uniform:64",
    "2x4/2x150x64 packed causal softcap=0.5 lengths=full", "2x4/2x1/200x64 softcap=0.5",
    "2x8/2x40/200x64 mask=bool:bqk", "2x4x33/65x64 mask=narrow:hqk", "2x4x20/70x64 mask=bool:bk", "1x4x1/70x64 mask=narrow:bhqk",
]


# ---- rows, distribution, work: no PyTorch

def test_a_row_is_parsed_as_the_command_does():
    row = Row.parse("64x64/8x1/8192x128/64 pages=16 used-kv lengths=log-uniform:512 window=127:0 sinks")
    assert (row.batch, row.heads_q, row.heads_kv, row.seq_q, row.seq_kv, row.dim, row.dim_v) == (64, 64, 8, 1, 8192, 128, 64)
    assert (row.page, row.used, row.least, row.window, row.sinks, row.packed, row.chunk) == (16, True, 512, (127, 0), True, False, 0)
    assert Row.parse("1x8x512x64 causal").band == (-1, 0) and Row.parse("1x8x512x64").band == (-1, -1)


def test_a_mask_by_array_has_the_dimensions_that_are_named():
    row = Row.parse("8x16x1024x64 mask=bool:bqk")
    assert (row.mask, row.mask_shape(), row.mask_bytes()) == ("bool", (8, 1, 1024, 1024), 8 * 1024 * 1024)
    assert Row.parse("8x16x1024x64 mask=narrow:hk").mask_shape() == (1, 16, 1, 1024)
    assert row.work(0)[1] == Row.parse("8x16x1024x64").work(0)[1] + row.mask_bytes()
    for text in ("mask=float:qk", "mask=bool", "mask=bool:kq", "mask=bool:bhq", "mask=bool:qqk"):
        with pytest.raises(Usage, match="is not known here.*mask=bool or narrow"):
            Row.parse("8x16x1024x64 " + text)
    with pytest.raises(Usage, match="goes with dense rows"):
        Row.parse("8x16x1024x64 packed mask=bool:qk")


def test_a_softcap_is_a_positive_number():
    assert Row.parse("1x8x512x64 packed softcap=30").softcap == 30.0
    for text in ("softcap=0", "softcap=-1", "softcap=inf", "softcap=nan", "softcap"):
        with pytest.raises(Usage, match="is not known here.*softcap=X"):
            Row.parse("8x16x1024x64 packed " + text)


def test_an_attribute_that_is_repeated_is_refused_and_both_are_named():
    for text, first, second in (("1x8x512x64 used-kv pages=16 pages=32", "pages=16", "pages=32"), ("1x8x512x64 causal causal", "causal", "causal")):
        with pytest.raises(Usage, match=f"'{second}' stands behind '{first}'.*keep one of them"):
            Row.parse(text)


def test_shapes_without_attributes_are_rows_of_serving_where_that_is_asked():
    args = ab.parse_arguments(["--shapes", "1x32/8x1/2048x128,2x8x1/100x64 causal"], as_serving=True)
    assert [(row.seq_q, row.seq_kv, row.causal) for row in args.shape_list] == [(1, 2048, False), (1, 100, True)] and args.dtype == "bf16"
    assert not ab.parse_arguments(["--shapes", "1x32x1/2048x128"]).serving


@pytest.mark.parametrize("suite", serving.SUITES)
def test_every_row_of_the_suites_is_a_problem_of_the_command_too(suite):
    by_softcap: dict[float, list[str]] = {}  # which the command takes as an option
    for text in serving.SUITES[suite]:
        row = Row.parse(text)
        by_softcap.setdefault(row.softcap, []).append(" ".join(word for word in text.split() if not word.startswith("softcap=")))
    if not pathlib.Path(GREENFAST).exists():
        pytest.skip("the command is not built")
    for softcap, rows in by_softcap.items():
        done = subprocess.run([GREENFAST, "list", "--why", ",".join(rows), "--dtype", "bf16", "--softcap", str(softcap)],
                              capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), done.stderr
        assert "not known" not in done.stderr and "expected" not in done.stderr


def test_the_suites_hold_what_the_issue_names():
    decode = [Row.parse(text) for text in serving.SUITES["decode"]]
    models = {(64, 8, 64), (32, 8, 128), (40, 8, 128), (96, 8, 128), (8, 4, 256)}
    assert models <= {(row.heads_q, row.heads_kv, row.dim) for row in decode}
    assert {1, 256} <= {row.batch for row in decode} and {512, 131072} <= {row.seq_kv for row in decode}
    assert any(row.sinks and row.window == (127, 0) for row in decode) and any(row.chunk for row in decode)
    ragged = [Row.parse(text) for name in ("varlen", "paged") for text in serving.SUITES[name]]
    ragged = [row for row in ragged if (row.batch, row.least, row.seq_kv) == (64, 128, 32768)]
    assert {row.page for row in ragged} == {0, 16, 64}
    assert len({tuple(row.lengths(0)) for row in ragged}) == 1  # the same lengths, whatever they are kept in


@pytest.mark.parametrize("text, word", [
    ("1x8x512", "1x8x512"), ("1x8/3x512x64 packed", "Hq"), ("1x8x512x64 paged", "paged"), ("1x8x512x64 pages=0 used-kv", "pages=0"),
    ("1x8x512x64 pages=16", "used-kv"), ("1x8x1/512x64 packed", "packed"), ("1x8x512x64 packed used-kv", "packed"),
    ("1x8x512x64 lengths=log-uniform:8", "packed or used-kv"), ("1x8x64/512x64 used-kv lengths=log-uniform:8", "least"),
    ("1x8x512x64 window=a:0", "window=a:0"),
])
def test_a_bad_row_is_named(text, word, capsys):
    assert ab.main(["--suite", "decode", "--shapes", text]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("arguments, word", [
    (["--suite", "peers", "--shapes", "1x8x512x64 packed"], "--suite peers"),
    (["--suite", "decode", "--plot", "x.svg"], "--plot"),
    (["--suite", "masks", "--dtype", "e4m3"], "a mask of e4m3 has no meaning"),
    (["--suite", "mission", "--device", "cpu"], "ab_cpu"),
])
def test_bad_arguments_are_usage(arguments, word, capsys):
    assert ab.main(arguments) == 2
    assert word in capsys.readouterr().err


def test_lengths_are_log_uniform_and_follow_the_seed():
    row = Row.parse("4096x1x1/32768x64 used-kv lengths=log-uniform:128")
    lengths = row.lengths(3)
    assert lengths == row.lengths(3) != row.lengths(4)
    assert min(lengths) >= 128 and max(lengths) <= 32768
    octaves = [sum(128 << i <= length < 256 << i for length in lengths) for i in range(8)]
    assert all(abs(count - 512) < 5 * math.sqrt(512) for count in octaves)  # every octave is as likely
    assert Row.parse("3x1x1/77x64 used-kv lengths=full").lengths(0) == [77, 77, 77]


def test_work_counts_what_is_seen():
    flops, moved = Row.parse("2x4/2x1/100x64").work(0)
    assert flops == 4 * 2 * 4 * 100 * 64 and moved == 2 * (2 * 2 * 100 * 2 * 64 + 2 * 2 * 4 * 64)
    flops, moved = Row.parse("2x4/2x1/1000x64 window=99:0").work(0)
    assert flops == 4 * 2 * 4 * 100 * 64 and moved == 2 * (2 * 2 * 100 * 2 * 64 + 2 * 2 * 4 * 64)
    flops, _ = Row.parse("1x2x10x64 packed causal").work(0)
    assert flops == 4 * 2 * 55 * 64
    flops, _ = Row.parse("1x2x1/300x64 chunk=128 causal").work(0)
    assert flops == 4 * 2 * (300 - 256) * 64
    _, narrow = Row.parse("2x4/2x1/100x64").work(0, 1)
    assert narrow == 2 * 2 * 100 * 2 * 64 + 2 * 4 * 64 * 3


def measured():
    """A row as run_row leaves it: two of ours, one peer, one that could not take it, the dense twin."""
    def entry(us, **more):
        return {"us": us, "skipped": None, "error": 2e-3, "max_row": 4e-3, "timed": True, **more}
    row = {"shape": "16x32/8x1/8192x128 pages=64 used-kv lengths=full", "problem": "16x32/8x1/8192x128 pages=64 used-kv lengths=full bf16",
           "causal": False, "dtype": "bf16", "flops": 2e9, "bytes": 5.4e8, "sets": 2, "cache": "cold", "calls_per_graph": 32,
           "engines": {"greenfast": entry([100.0, 110.0, 90.0], variant="cuda.sm90.decode"), "greenfast:dense": entry([98.0, 107.8, 88.2]),
                       "fa3": entry([120.0, 132.0, 108.0]), "fa3-vllm": {"us": [], "skipped": "no sinks"},
                       "cudnn-graph": {"us": [], "skipped": "not timed: rel_fro 0.5 is above 0.008", "error": 0.5, "max_row": 0.9,
                                       "timed": False}},
           "rounds": [{"order": ["fa3", "greenfast", "greenfast:dense"], "telemetry": {}}] * 3}
    return row


def test_ratios_are_medians_of_rounds_and_in_no_record():
    row = measured()
    row["engines"]["varlen"] = {**row["engines"]["fa3"], "us": [150.0, 165.0, 135.0]}
    row["rounds"] = [{"order": ["varlen", *one["order"]], "telemetry": {}} for one in row["rounds"]]
    figures = serving.shown(row)
    assert set(figures) == {"greenfast", "greenfast:dense", "fa3", "varlen"}
    assert figures["greenfast"]["over"] == pytest.approx({"fa3": 1.2, "varlen": 1.5})  # each peer: none is called the best
    assert figures["greenfast"]["over_dense"] == pytest.approx(0.98)
    assert figures["greenfast"]["tbs"] == pytest.approx(5.4)
    assert "over" not in figures["fa3"] and "over" not in figures["greenfast:dense"]
    shape = serving.samples(row, types.SimpleNamespace(kind="cuda", name="NVIDIA H200", timer="t", tick_seconds=5e-7), 0)
    assert "best_peer" not in shape["ab"] and not {"over", "p50_us", "verdict"} & set(shape["ab"]["engines"]["greenfast"])
    sides = {side["id"]: side for side in shape["sides"]}
    assert sides["greenfast"]["errors"] == {"rel_fro": 2e-3, "max_row": 4e-3} and sides["greenfast"]["variant"] == "cuda.sm90.decode"
    assert sides["peer:cudnn-graph"]["refused"].startswith("not timed: ") and not any("verdict" in side for side in sides.values())


def test_the_table_names_every_peer_and_who_was_wrong():
    text = serving.table([measured()], markdown=True)
    header, _, line = text.splitlines()
    assert header.count("|") == line.count("|")
    cells = dict(zip((cell.strip() for cell in header.split("|")), (cell.strip() for cell in line.split("|"))))
    assert cells["× greenfast"] == "1.200 fa3" and cells["× over dense"] == "0.980" and cells["cudnn-graph µs"] == "wrong"
    assert cells["variant"] == "cuda.sm90.decode" and "fa3-vllm µs" not in cells
    assert len(serving.table([measured()], markdown=False).splitlines()) == 2
    assert serving.reasons([measured()]) == [
        "SKIPPED fa3-vllm (1 rows, first 16x32/8x1/8192x128 pages=64 used-kv lengths=full): no sinks",
        "SKIPPED cudnn-graph (1 rows, first 16x32/8x1/8192x128 pages=64 used-kv lengths=full): not timed: rel_fro 0.5 is above 0.008"]


def test_compare_reads_the_record(tmp_path):
    row, clock = measured(), types.SimpleNamespace(kind="cuda", name="NVIDIA H200", timer="t", tick_seconds=5e-7)
    record = {"schema": ab.SCHEMA, "shapes": [serving.samples(row, clock, 0)]}
    file = tmp_path / "paged.json"
    file.write_text(json.dumps(record))
    done = subprocess.run([GREENFAST, "compare", "peer:fa3", "greenfast", "--samples", file], capture_output=True, text=True, check=False,
                          cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1.2" in done.stdout


# ---- with PyTorch

@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def fakes(torch):
    import fake_fa3

    kept = fake_fa3.install()
    yield fake_fa3
    del kept
    for name in ("peer_fa3", "peer_fa3_fp8"):
        sys.modules.pop(name)


@pytest.fixture
def library(monkeypatch):
    assert LIBRARY.exists(), "the build has no libgreenfast.so"
    monkeypatch.setenv("GREENFAST_LIBRARY", str(LIBRARY))
    return capi.load(LIBRARY)


def data_of(torch, text, dtype="bfloat16", layout="bshd", index=0):
    row = Row.parse(text)
    return row, serving.Data(row, getattr(torch, dtype), "cpu", 7, index, layout)


def errors(data, engine, clock):
    row = data.row
    wanted = [(b, list(range(row.rows_of(data.lengths[b]))), None) for b in range(row.batch)]
    wanted = [(b, rows, serving.reference(data, b, rows)) for b, rows, _ in wanted]
    return serving.error_of(data, engine.bind(row, data, engine.room(data), clock)(), wanted)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("text", ROWS)
def test_greenfast_gets_every_array(torch, library, text, layout):
    _, data = data_of(torch, text, "float16", layout)
    found = errors(data, serving.Greenfast("cpu.flash", library), ab.CpuClock())
    assert found["rel_fro"] < 1e-3 and found["max_row"] < 4e-3


@pytest.mark.parametrize("text", [text for text in ROWS if "pages" in text or "packed causal lengths=full" in text])
def test_the_dense_twin_has_the_same_bits(torch, library, text):
    _, data = data_of(torch, text, "float16")
    found = errors(data, serving.Greenfast("cpu.flash", library, twin=True), ab.CpuClock())
    assert found["rel_fro"] < 1e-3


def test_no_twin_where_the_row_is_dense(torch, library):
    _, data = data_of(torch, ROWS[0])
    with pytest.raises(serving.Refused, match="dense itself"):
        serving.Greenfast("cpu.flash", library, twin=True).bind(data.row, data, data.room(), ab.CpuClock())


def test_pages_lie_in_a_random_order_and_hold_the_keys(torch):
    row, data = data_of(torch, "3x4/2x1/300x64 pages=16 used-kv lengths=log-uniform:16")
    used = data.table[0, :-(-data.lengths[0] // 16)].tolist()
    assert used != sorted(used) and len(set(used)) == len(used)
    dense = data.twin[1][0, :, :data.lengths[0]]
    paged = data.k[data.table[0].long()].transpose(0, 1).reshape(2, -1, 64)[:, :data.lengths[0]]
    assert torch.equal(dense, paged)


@pytest.mark.parametrize("name", ["fa3", "fa3-vllm", "fa3-vllm-plan"])
@pytest.mark.parametrize("text", ROWS)
def test_flash_attention_3_gets_its_schema(torch, fakes, text, name):
    row, data = data_of(torch, text)
    engine = serving.PEERS[name]()
    try:
        found = errors(data, engine, ab.CpuClock())
    except serving.Refused as reason:
        refusal = str(reason)
        expected = ("masks by array" if row.mask else "sinks" if row.sinks and name == "fa3" else
                    "lengths" if name.endswith("plan") and not (row.used or row.packed) else
                    "attention_chunk" if row.chunk and row.packed and name != "fa3" else None)
        assert expected and expected in refusal
        return
    assert found["rel_fro"] < 8e-3 and found["max_row"] < 3e-2
    last = fakes.calls[-1]
    assert last["num_splits"] == (0 if row.seq_q <= 64 else 1)
    assert (last["scheduler_metadata"] is not None) == name.endswith("plan")


def test_a_dense_cache_goes_in_as_pages_where_only_the_varlen_entry_is_built(torch, fakes):
    row, data = data_of(torch, "2x8/2x1/320x64")
    serving.PEERS["fa3-vllm"]().bind(row, data, data.room(), ab.CpuClock())()
    last = fakes.calls[-1]
    assert last["page_table"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] and last["k"].shape == (10, 64, 2, 64)
    assert last["k"].data_ptr() == data.k.data_ptr()  # a view: nothing is copied


@pytest.fixture
def cudnn(torch, monkeypatch):
    import fake_cudnn

    monkeypatch.setitem(sys.modules, "cudnn", fake_cudnn.module())
    fake_cudnn.built.clear()
    return fake_cudnn


@pytest.mark.parametrize("text", [text for text in ROWS if not any(word in text for word in ("packed", "mask", "softcap"))])
def test_cudnn_graph_gets_lengths_pages_windows_and_sinks(torch, cudnn, text):
    row, data = data_of(torch, text)
    engine, clock = serving.CudnnGraph(), ab.CpuClock()
    for one in (data, data_of(torch, text, index=1)[1]):
        found = errors(one, engine, clock)
        assert found["rel_fro"] < 8e-3 and found["max_row"] < 3e-2
    assert len(cudnn.built) == 1  # one graph for all sets of a row
    errors(data_of(torch, ROWS[0])[1], engine, clock)
    assert len(cudnn.built) == (1 if text == ROWS[0] else 2)


@pytest.mark.parametrize("gqa", [False, True])
@pytest.mark.parametrize("text", ["3x4/2x200x64 packed causal lengths=log-uniform:16", "3x4/2x200x64 packed window=31:0"])
def test_torch_varlen_gets_what_its_signature_asks_for(torch, monkeypatch, text, gqa):
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    def attend(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size):
        assert max_q == max_k == int((cu_seq_q[1:] - cu_seq_q[:-1]).max())
        import fake_fa3

        parts = [fake_fa3.one_sequence(*(x[cu_seq_q[b]:cu_seq_q[b + 1]] for x in (query, key, value)),
                                       {"softmax_scale": scale, "window_size_left": window_size[0], "window_size_right": window_size[1],
                                        "is_causal": window_size == (-1, 0)}, None) for b in range(len(cu_seq_q) - 1)]
        return torch.cat(parts).to(query.dtype)

    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        return attend(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)

    def newer(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
        assert enable_gqa
        return attend(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)

    monkeypatch.setattr(varlen, "varlen_attn", newer if gqa else older)
    _, data = data_of(torch, text)
    assert errors(data, serving.TorchVarlen(), ab.CpuClock())["rel_fro"] < 8e-3


@pytest.mark.parametrize("text", [ROWS[0], "2x4/2x1/300x64 chunk=128 causal", "2x4/2x1/300x64 window=31:0", "2x4/2x64x64",
                                  *(text for text in ROWS if "mask" in text)])
def test_torch_s_kernels_get_the_keys_that_are_seen(torch, monkeypatch, text):
    import contextlib

    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", lambda backend: contextlib.nullcontext())
    row, data = data_of(torch, text)
    gpu = types.SimpleNamespace(kind="cuda")
    assert errors(data, serving.TorchCudnn(), gpu)["rel_fro"] < 8e-3
    if row.heads_q == row.heads_kv:
        assert errors(data, serving.TorchEfficient(), gpu)["rel_fro"] < 8e-3


def test_who_cannot_take_a_row_says_why(torch):
    gpu = types.SimpleNamespace(kind="cuda")
    cudnn = serving.TorchCudnn()
    for text, word in [(ROWS[1], "sinks"), (ROWS[4], "used lengths"), ("2x4x64x64 packed window=31:0", "windows"),
                       ("2x4x8/64x64 causal", "first key"), ("2x4x64x64 softcap=2", "softcap"), ("2x4x64x64 mask=bool:qk causal", "mask by array alone")]:
        row, data = data_of(torch, text)
        with pytest.raises(serving.Refused, match=word):
            cudnn.bind(row, data, data.room(), gpu)
    row, data = data_of(torch, "2x4/2x64x64 mask=bool:qk")
    with pytest.raises(serving.Refused, match="no groups"):
        serving.TorchEfficient().bind(row, data, data.room(), gpu)
    row, data = data_of(torch, "2x4/2x1/300x64 chunk=128 causal")
    k, _ = serving.seen_by_one_row(row, data)
    assert k.shape[2] == 300 - 256 and k.data_ptr() == data.k[:, :, 256:].data_ptr()


def test_what_has_a_wrong_row_or_a_nan_is_not_timed(torch, library):
    row, data = data_of(torch, ROWS[8], "float16")
    wanted = [(b, rows, serving.reference(data, b, rows)) for b, rows in serving.sample(row, data.lengths, 0)]
    o = serving.Greenfast("cpu.flash", library).bind(row, data, data.room(), ab.CpuClock())()
    assert not why_not_timed(serving.error_of(data, o, wanted), "fp16")
    wrong = o.clone()
    wrong[wanted[0][0], 1, wanted[0][1][0]] *= 1.01
    assert why_not_timed(serving.error_of(data, wrong, wanted), "fp16").startswith("not timed: max_row")
    wrong = o.clone()
    wrong[0, 0, 0, 0] = math.nan
    assert why_not_timed(serving.error_of(data, wrong, wanted), "fp16") == "not timed: rel_fro nan is above 0.001"


def test_a_sample_holds_the_longest_the_shortest_and_both_ends(torch):
    row = Row.parse("16x4/2x2000x64 packed causal lengths=log-uniform:16")
    lengths = row.lengths(1)
    picked = dict(serving.sample(row, lengths, 1))
    assert {lengths.index(max(lengths)), lengths.index(min(lengths))} <= set(picked)
    longest = picked[lengths.index(max(lengths))]
    assert {0, 1, max(lengths) - 1} <= set(longest) and len(longest) == serving.ROWS


def run(tmp_path, *arguments):
    file = tmp_path / "out.json"
    code = ab.main(["--device", "cpu", "--rounds", "2", "--json", str(file), "--md", str(tmp_path / "out.md"), *arguments])
    return code, json.loads(file.read_text())


def test_a_whole_run(torch, fakes, library, tmp_path, capsys):
    shapes = ",".join(ROWS[i] for i in (1, 2, 6, 11))
    code, record = run(tmp_path, "--shapes", shapes, "--peers", "cudnn,fa3,fa3-vllm,fa3-vllm-plan", "--variants", "cpu.flash",
                       "--invariant")
    assert code == 0
    assert [shape["name"] for shape in record["shapes"]] == shapes.split(",")
    by_id = {side["id"]: side for side in record["shapes"][2]["sides"]}
    for name in ("peer:fa3", "greenfast", "cpu.flash:invariant"):
        assert "refused" not in by_id[name] and by_id[name]["errors"]["max_row"] < 3e-2
    assert "refused" in by_id["peer:torch-cudnn"] and by_id["greenfast:dense"]["errors"]["rel_fro"] < 8e-3
    assert len(record["shapes"][2]["blocks"]) == 2
    assert record["shapes"][2]["ab"]["lengths"] == Row.parse(ROWS[6]).lengths(0)
    out = capsys.readouterr()
    assert "SKIPPED cudnn" in out.err and "× greenfast" in out.out and (tmp_path / "out.md").read_text().count("\n") == 6
    done = subprocess.run([GREENFAST, "compare", str(tmp_path / "out.json"), "--sides", "cpu.flash,greenfast"], capture_output=True, text=True,
                          check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_between_neighbours(torch, library, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ways, "ELEMENTS", 1 << 10)
    code, record = run(tmp_path, "--shapes", ROWS[4], "--peers", "", "--between", "--cache", "hot,cold")
    shapes = {shape["way"]: shape for shape in record["shapes"]}
    assert code == 0 and list(shapes) == [f"{neighbour}:{cache}" for cache in ("hot", "cold")
                                          for neighbour in ("back-to-back", "elementwise", "gemm")]
    assert len({shape["name"] for shape in record["shapes"]}) == 6 and shapes["back-to-back:hot"]["name"] == ROWS[4]
    assert "neighbour" not in shapes["back-to-back:cold"] and shapes["gemm:hot"]["timer"].endswith("less the neighbours alone")
    assert shapes["gemm:cold"]["neighbour"].startswith("gemm: the queries' projection, 3x256 by 256x256 in bfloat16")
    assert shapes["gemm:cold"]["ab"]["sets"] > 1 == shapes["gemm:hot"]["ab"]["sets"]
    for shape in record["shapes"]:
        entry = shape["ab"]["engines"]["greenfast"]
        assert entry["timed"]  # out of the calls that were timed, neighbours beside them
        if shape["blocks"] and "neighbour" in shape:
            block = shape["blocks"][0]
            assert block["seconds"][0] == pytest.approx(block["with_neighbour"][0] - block["neighbour_alone"][0])
    assert "| way |" in (tmp_path / "out.md").read_text()


def test_a_dense_row_is_timed_in_each_way_and_its_value_dim_counts(torch):
    class Reference(ab.Engine):
        name = "reference"

        def call(self, q, k, v, o, causal):
            groups = q.shape[1] // k.shape[1]
            o.copy_(torch.nn.functional.scaled_dot_product_attention(
                *(x.float() for x in (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))), is_causal=causal))
            return o

    class Wrong(Reference):
        name = "wrong"

        def call(self, q, k, v, o, causal):
            return super().call(q, k, v, o, not causal)

    args = ab.parse_arguments(["--shapes", "2x4/2x48x96/64", "--between", "elementwise", "--rounds", "2"])
    clock = ab.CpuClock()
    rows = ab.run_row(*args.row_list[1], [Reference(), Wrong()], args, clock, ab.Telemetry(), random.Random(0))
    assert [row["way"] for row in rows] == ["back-to-back:hot", "elementwise:hot", "back-to-back:cold", "elementwise:cold"]
    for row in rows:
        assert row["engines"]["reference"]["timed"] and row["engines"]["wrong"]["timed"] is False
        assert row["engines"]["wrong"]["skipped"].startswith("not timed: rel_fro")
        assert row["engines"]["wrong"]["us"] == [] and len(row["rounds"]) == 2
    assert rows[0]["flops"] == 2 * 2 * 4 * 48 * 48 * (96 + 64) / 2 and rows[2]["sets"] > 1
    assert ab.samples(rows[0], "a GPU", 0)["problem"] == "2x4/2x48x96 fp16 causal(top-left) value-dim=64"


def test_e4m3_beside_sixteen_bits(torch, fakes, cudnn, library, tmp_path, monkeypatch, capsys):
    def attend(q, k, v, *, out, stream, window, align, chunk, accuracy, variant):
        assert stream is None and chunk == 0 and accuracy == "exact" and variant is None and align == "bottom_right"
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        out.copy_(torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=window[1] == 0))
        return out

    monkeypatch.setitem(sys.modules, "greenfast", types.SimpleNamespace(attention_quantized=attend))
    code, record = run(tmp_path, "--dtype", "e4m3", "--shapes", "1x4/2x96x64,2x2x80x128")
    assert code == 0
    assert [shape["name"] for shape in record["shapes"]] == ["1x4/2x96x64", "1x4/2x96x64 causal", "2x2x80x128", "2x2x80x128 causal"]
    for shape in record["shapes"]:
        assert {side["id"] for side in shape["sides"] if "refused" not in side} == {
            "greenfast", "greenfast:transposed", "greenfast:fp16", "greenfast:bf16", "greenfast:from-fp16", "peer:fa3-fp8", "peer:cudnn-fp8"}
        errors = {name: shape["ab"]["engines"][name]["error"] for name in ("greenfast", "greenfast:transposed")}
        assert errors["greenfast"] == errors["greenfast:transposed"]  # the same bits of O
        figures = serving.shown({**shape["ab"], "rounds": []})
        assert figures["greenfast"]["over_fp16"] > 0 and figures["greenfast:from-fp16"]["over_fp16"] > 0
        assert shape["ab"]["engines"]["cudnn-fp8"]["error"] > 0.01  # its output is e4m3
    assert "from fp16 × over fp16" in capsys.readouterr().out
    assert fakes.calls[-1]["q"].dtype == torch.float8_e4m3fn and fakes.calls[-1]["q_descale"].shape == (2, 2)


def test_what_was_measured_before_an_interrupt_is_kept(torch, library, tmp_path, monkeypatch, capsys):
    real, seen = serving.run_row, []

    def second_never_ends(row, *rest):
        seen.append(row)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(row, *rest)

    monkeypatch.setattr(serving, "run_row", second_never_ends)
    code, record = run(tmp_path, "--shapes", f"{ROWS[4]},{ROWS[6]}", "--peers", "")
    assert code == 130 and [shape["name"] for shape in record["shapes"]] == [ROWS[4]]
    assert "interrupted after 1 rows" in capsys.readouterr().err


def test_a_lost_device_is_named_with_its_engine(torch, library, tmp_path, monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(serving.Greenfast, "bind", broken)
    code, record = run(tmp_path, "--shapes", ROWS[4], "--peers", "")
    assert code == 3 and "illegal memory access" in record["shapes"][0]["sides"][0]["refused"]
    monkeypatch.setattr(ab.CpuClock, "synchronize", broken)
    code, record = run(tmp_path, "--shapes", ROWS[4], "--peers", "")
    assert code == 24 and record["shapes"] == []
    assert f"the device was lost in greenfast at {ROWS[4]}" in capsys.readouterr().err


def test_e4m3_takes_rows_of_serving(torch, fakes, cudnn, library, tmp_path):
    rows = ["3x4/2x40x64 packed causal lengths=log-uniform:5", "2x4/2x20x64 packed causal lengths=full", "3x4/2x1/96x64 pages=16 used-kv lengths=log-uniform:9",
            "2x4/2x7/64x64 used-kv sinks causal"]
    code, record = run(tmp_path, "--dtype", "e4m3", "--shapes", ",".join(rows))
    assert code == 0 and [shape["name"] for shape in record["shapes"]] == rows
    for shape in record["shapes"]:
        sides = {side["id"]: side for side in shape["sides"]}
        # 16-bit weights on the CPU, and 16-bit twins of the same values.
        assert max(sides[name]["errors"]["rel_fro"] for name in ("greenfast", "greenfast:fp16", "greenfast:bf16")) < 9e-3
        assert sides["greenfast:transposed"]["refused"] == sides["peer:cudnn-fp8"]["refused"] == "it is for dense rows"


def test_a_wrong_engine_is_not_timed(torch, library, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "reference", lambda data, b, rows: torch.ones(
        data.row.heads_q, len(rows), data.row.dim_v, dtype=torch.float64))
    code, record = run(tmp_path, "--shapes", ROWS[4], "--peers", "")
    side = record["shapes"][0]["sides"][0]
    assert code == 20 and side["refused"].startswith("not timed: rel_fro") and side["errors"]["rel_fro"] > 0.1
    assert "verdict" not in side and record["shapes"][0]["blocks"] == []


def test_peers_are_known_by_name(library, capsys):
    pytest.importorskip("torch")
    assert ab.main(["--device", "cpu", "--suite", "decode", "--peers", "fa9"]) == 2
    assert "cudnn-graph" in capsys.readouterr().err
    assert ab.main(["--device", "cpu", "--dtype", "e4m3", "--peers", "fa3"]) == 2
    assert ", ".join(fp8.PEERS) in capsys.readouterr().err
