"""greenfast.attention and its company with NumPy alone."""
import copy
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import greenfast
import reference

CASES = [
    ({}, {}),
    ({"scale": 0.3}, {"scale": 0.3}),
    ({"softcap": 2.0}, {"softcap": 2.0}),
    ({"causal": True, "align": "top_left"}, {"right": 0}),
    ({"causal": True, "align": "bottom_right"}, {"right": 0, "bottom_right": True}),
    ({"window": (5, 3), "align": "top_left"}, {"left": 5, "right": 3}),
    ({"window": (7, None), "causal": True, "align": "bottom_right"}, {"left": 7, "right": 0, "bottom_right": True}),
]


@pytest.mark.parametrize("ours, theirs", CASES)
def test_every_option_is_the_definitions(ours, theirs):
    q, k, v = reference.inputs()
    out, lse = greenfast.attention(q, k, v, return_lse=True, **ours)
    want, want_lse = reference.attention(q, k, v, **theirs)
    np.testing.assert_allclose(out, want, atol=3e-6)
    np.testing.assert_allclose(lse, want_lse, atol=3e-6)
    assert out.dtype == np.float32 and lse.shape == q.shape[:3]


def test_rows_that_see_no_key_are_zero():
    q, k, v = reference.inputs(rows=9, keys=4)
    out, lse = greenfast.attention(q, k, v, causal=True, align="bottom_right", return_lse=True)
    assert (out[:, :, :5] == 0).all() and np.isneginf(lse[:, :, :5]).all() and np.isfinite(lse[:, :, 5:]).all()
    assert (greenfast.attention(q, k[:, :, :0], v[:, :, :0]) == 0).all()
    assert greenfast.attention(q[:, :, :0], k, v).shape == (2, 4, 0, 32)


def test_layouts_and_strides_give_the_same_bits_and_the_order_of_q():
    q, k, v = reference.inputs()
    plain = greenfast.attention(q, k, v)
    qt, kt, vt = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    seen = greenfast.attention(qt.swapaxes(1, 2), kt.swapaxes(1, 2), vt.swapaxes(1, 2))
    assert (seen == plain).all() and seen.swapaxes(1, 2).flags.c_contiguous
    bshd, lse = greenfast.attention(qt, kt, vt, layout="bshd", return_lse=True)
    assert (bshd.swapaxes(1, 2) == plain).all() and bshd.flags.c_contiguous and lse.shape == (2, 4, 37)
    one = np.broadcast_to(k[:, :1], k.shape)
    assert (greenfast.attention(q, one, v) == greenfast.attention(q, one.copy(), v)).all()


def test_out_is_written_and_returned():
    q, k, v = reference.inputs()
    out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
    returned = greenfast.attention(q, k, v, out=out, lse=lse, return_lse=True)
    assert returned[0] is out and returned[1] is lse and np.isfinite(out).all() and np.isfinite(lse).all()
    assert greenfast.attention(q.astype(np.float16), k.astype(np.float16), v.astype(np.float16), out_dtype="float32").dtype == np.float32


def test_forced_variants_agree_and_one_is_named_in_explain():
    q, k, v = reference.inputs()
    naive, flash = (greenfast.attention(q, k, v, variant=name) for name in ("cpu.naive", "cpu.flash"))
    np.testing.assert_allclose(naive, flash, atol=1e-6)
    told = greenfast.explain(q, k, v)
    assert told.variant == "cpu.flash" and not told.forced and told.plan["variant"] == "cpu.flash" and told.plan["tile_q"] > 0
    assert greenfast.explain(q, k, v, variant="cpu.naive").forced
    assert {row[0]: row[1] for row in told.candidates}["cuda.sm90.prefill"] is False
    assert "cpu.flash" in str(told) and "2x4/2x37/53x32 fp32" in str(told)


def test_what_is_prepared_is_what_runs():
    q, k, v = reference.inputs()
    assert greenfast.prepare(q, k, v, causal=True, align="top_left") is None
    spec = greenfast.TensorSpec(q.shape, "float32"), *[greenfast.TensorSpec(k.shape, "float32")] * 2
    greenfast.prepare(*spec, sinks=greenfast.TensorSpec((4,), "float32"), variant="cpu.naive")
    with pytest.raises(NotImplementedError, match="runs on cuda"):
        greenfast.prepare(*spec, variant="cuda.sm90.prefill")
    with pytest.raises(TypeError, match="is 'sinks' meant"):
        greenfast.prepare(q, k, v, sink=None)
    with pytest.raises(RuntimeError, match="(?i)cuda"):
        greenfast.prepare(*[greenfast.TensorSpec((1, 2, 8, 64), "float16", device="cuda", index=70)] * 3)


def test_plans_for_machines_that_are_not_here():
    q = greenfast.TensorSpec((1, 8, 512, 64), "float16")
    told = greenfast.explain(q, q, q, device="h200")
    assert told.device["arch"] == 90
    reasons = {name: reason for name, _, _, reason in told.candidates}
    assert "runs on cpu" in reasons["cpu.flash"]
    with pytest.raises(ValueError, match="h2000"):
        greenfast.explain(q, q, q, device="h2000")


@pytest.mark.parametrize("device", [("tpu", 0), ("cuda",), ("cuda", "0"), ("cuda", -1), (["cuda"], 0), ["cpu", 0], 3])
def test_a_device_that_cannot_be_meant_is_named_with_what_is_possible(device):
    q = greenfast.TensorSpec((1, 8, 512, 64), "float16")
    for call in (lambda: greenfast.explain(q, q, q, device=device), lambda: greenfast.device_facts(device)):
        with pytest.raises(ValueError, match=r"device is .*: \('cpu', 0\) or \('cuda', index\) is possible, or the name of a model") as raised:
            call()
        assert repr(device) in str(raised.value)
    with pytest.raises(ValueError, match=r"device is \('tpu', 0\)"):
        greenfast.explain(q, q, greenfast.TensorSpec((1, 8, 512, 64), "float16", device="tpu"))


def test_the_list_of_variants_is_the_librarys():
    rows = {row.id: row for row in greenfast.variants()}
    assert rows["cpu.flash"].built and rows["cpu.flash"].automatic and rows["cpu.flash"].device == "cpu"
    assert rows["cuda.stage_c.stage2"].toggles == {"USE_CP_ASYNC": 1, "USE_WMMA_PV": 1}
    assert greenfast.device_facts()["multiprocessors"] >= 1 and greenfast.__version__.count(".") == 2


def bad(change, error, words, **options):
    return pytest.param(change, options, error, words, id=words)


@pytest.mark.parametrize("change, options, error, words", [
    bad(lambda q, k, v: (q.astype(np.float64), k, v), TypeError, "float64"),
    bad(lambda q, k, v: (q, k.astype(np.float16), v), TypeError, "one type"),
    bad(lambda q, k, v: (q.astype(">f4"), k, v), TypeError, "big-endian"),
    bad(lambda q, k, v: ([1.0], k, v), TypeError, "builtins.list"),
    bad(lambda q, k, v: (q[0], k, v), ValueError, "four dimensions"),
    bad(lambda q, k, v: (q[None], k, v), ValueError, "at most 4"),
    bad(lambda q, k, v: (q, k[:1], v), ValueError, "batch 1"),
    bad(lambda q, k, v: (q, k, v[:, :, :5]), ValueError, "must be equal"),
    bad(lambda q, k, v: (q[:, :3], k, v), ValueError, "heads_kv 2"),
    bad(lambda q, k, v: (q[..., ::-1], k, v), ValueError, "last stride is -1"),
    bad(lambda q, k, v: (np.broadcast_to(q[:, :1], q.shape), k, v), ValueError, "only K and V may be broadcast"),
    bad(lambda q, k, v: (q[..., :12], k[..., :12], v[..., :12]), NotImplementedError, "head_dim is 12"),
    bad(lambda q, k, v: (q, k, v[..., :8]), ValueError, "with v.s head_dim"),
    bad(lambda q, k, v: (q, k, v), ValueError, "say align", causal=True),
    bad(lambda q, k, v: (q, k, v), ValueError, "align is 'left'", causal=True, align="left"),
    bad(lambda q, k, v: (q, k, v), TypeError, "window is 3", window=3),
    bad(lambda q, k, v: (q, k, v), ValueError, r"window is \(-3, 2\): 0 or more keys", window=(-3, 2), align="top_left"),
    bad(lambda q, k, v: (np.ma.masked_array(q, q > 0), k, v), TypeError, "q is a masked array"),
    bad(lambda q, k, v: (q, k, v), ValueError, "layout is 'sbhd'", layout="sbhd"),
    bad(lambda q, k, v: (q, k, v), ValueError, "softcap is -1", softcap=-1.0),
    bad(lambda q, k, v: (q, k, v), ValueError, "scale is nan", scale=float("nan")),
    bad(lambda q, k, v: (q, k, v), ValueError, "nearest: cpu.flash", variant="cpu.flesh"),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "runs on cuda", variant="cuda.sm90.prefill"),
    bad(lambda q, k, v: (q, k, v), ValueError, "q_scale is missing", k_scale=np.ones(1, np.float32), v_scale=np.ones(1, np.float32)),
    bad(lambda q, k, v: (q, k, v), ValueError, "scales were given for fp32", **{x: np.ones(1, np.float32) for x in ("q_scale", "k_scale", "v_scale")}),
    bad(lambda q, k, v: (q, k, v), TypeError, "64 bits wide", out_dtype=float),
])
def test_bad_calls_are_named_before_any_work(change, options, error, words):
    arguments = change(*reference.inputs())
    out = np.full(getattr(arguments[0], "shape", (1,)), 7.0, np.float32)
    with pytest.raises(error, match=words):
        greenfast.attention(*arguments, out=out, **options)
    assert (out == 7.0).all()


@pytest.mark.parametrize("make, words", [
    (lambda q: q, "overlaps q"),
    (lambda q: np.empty_like(q)[:, :, :-1], "the shape of q"),
    (lambda q: np.broadcast_to(np.float32(0), q.shape), "read-only"),
    (lambda q: np.lib.stride_tricks.as_strided(np.empty(4096, np.float32), q.shape, (0, 0, 128, 4)), "stride is 0"),
])
def test_bad_outputs_are_named(make, words):
    q, k, v = reference.inputs()
    with pytest.raises(ValueError, match=words):
        greenfast.attention(q, k, v, out=make(q))


@pytest.mark.parametrize("make, error, words", [
    (lambda b, h, s: np.empty((b, h, s), np.float16), TypeError, "float32"),
    (lambda b, h, s: np.empty((b, s, h), np.float32), ValueError, r"\[B, Hq, Sq\]"),
    (lambda b, h, s: np.empty((b, s, h), np.float32).swapaxes(1, 2), ValueError, "not contiguous"),
])
def test_bad_lse_is_named(make, error, words):
    q, k, v = reference.inputs()
    with pytest.raises(error, match=words):
        greenfast.attention(q, k, v, lse=make(*q.shape[:3]))


class OnlyDLPack:
    """An array of some library: memory is reached through __dlpack__ alone."""

    def __init__(self, array):
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


def test_any_object_with_dlpack_is_read_where_it_lies():
    q, k, v = reference.inputs()
    expected = greenfast.attention(q, k, v)
    out = np.empty_like(q)
    greenfast.attention(OnlyDLPack(q), OnlyDLPack(k.copy()), OnlyDLPack(v.copy()), out=out)
    assert (out == expected).all()
    assert (greenfast.attention(OnlyDLPack(q), OnlyDLPack(k), OnlyDLPack(v)) == expected).all()


class ReadOnly(OnlyDLPack):
    """One whose memory may not be written, which versions of DLPack from 1.0 on say."""

    def __init__(self, array):
        array = array.copy()
        array.flags.writeable = False
        super().__init__(array)


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2 or tuple(map(int, np.__version__.split(".")[:2])) < (2, 1), reason="NumPy 2.1 says it first")
def test_memory_that_dlpack_calls_read_only_is_read_and_not_written():
    q, k, v = reference.inputs()
    assert (greenfast.attention(ReadOnly(q), k, v, out=np.empty_like(q)) == greenfast.attention(q, k, v)).all()
    with pytest.raises(ValueError, match="out is read-only"):
        greenfast.attention(q, k, v, out=ReadOnly(q))


def test_quantised_inputs_come_close_to_exact_ones():
    pytest.importorskip("ml_dtypes")
    q, k, v = reference.inputs()
    (qc, qs), (kc, ks), (vc, vs) = (greenfast.quantize_e4m3(x) for x in (q, k, v))
    assert qs.shape == (2, 4) and ks.shape == (2, 2) and qc.dtype.name == "float8_e4m3fn"
    np.testing.assert_allclose(qs, abs(q).max((2, 3)) / 448, rtol=1e-6)
    out = greenfast.attention(qc, kc, vc, q_scale=qs, k_scale=ks, v_scale=vs)
    assert out.dtype == np.float16
    want, _ = reference.attention(*(c.astype(np.float32) * s[..., None, None] for c, s in ((qc, qs), (kc, ks), (vc, vs))))
    np.testing.assert_allclose(out, want, atol=4e-3)
    one, scale = greenfast.quantize_e4m3(q, per="tensor")
    assert scale.shape == (1,) and abs(one.astype(np.float32) * scale - q).max() < 0.07 * abs(q).max()
    with pytest.raises(ValueError, match="all three hold one value"):
        greenfast.attention(qc, kc, vc, q_scale=qs, k_scale=ks[:, :1], v_scale=vs)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_blocks_of_rows_have_scales_of_their_own(layout):
    pytest.importorskip("ml_dtypes")
    shape = (2, 300, 4, 32) if layout == "bshd" else (2, 4, 300, 32)
    q, k, v = (np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(3))
    rows = (lambda x: x[:, 200:, :]) if layout == "bshd" else (lambda x: x[:, :, 200:])
    for x in (q, k, v):
        rows(x)[...] *= 9  # of blocks 1 and 2
    (qc, qs), (kc, ks), (vc, vs) = (greenfast.quantize_e4m3(x, per="block", layout=layout) for x in (q, k, v))
    assert qs.shape == (2, 4, 3) and qs.flags.c_contiguous
    heads = [np.moveaxis(x, 1, 2) if layout == "bshd" else x for x in (q, k, v)]
    blocks = np.abs(np.pad(heads[1], ((0, 0), (0, 0), (0, 84), (0, 0)))).reshape(2, 4, 3, -1).max(3)
    np.testing.assert_allclose(ks, blocks / 448, rtol=1e-6)
    out = greenfast.attention(qc, kc, vc, q_scale=qs, k_scale=ks, v_scale=vs, layout=layout, out_dtype=np.float32)
    decoded = [np.moveaxis(c.astype(np.float32), 1, 2) if layout == "bshd" else c.astype(np.float32) for c in (qc, kc, vc)]
    want, _ = reference.attention(*(c * np.repeat(s, 128, axis=2)[:, :, :300, None] for c, s in zip(decoded, (qs, ks, vs))))
    np.testing.assert_allclose(np.moveaxis(out, 1, 2) if layout == "bshd" else out, want, atol=2e-2)
    again, _ = greenfast.quantize_e4m3(k, scale=ks, layout=layout)
    assert (again.view(np.uint8) == kc.view(np.uint8)).all()
    with pytest.raises(ValueError, match="one for each block of 128 rows.*3 for Q, 3 for K and V"):
        greenfast.attention(qc, kc, vc, q_scale=qs, k_scale=ks[:, :, :2], v_scale=vs, layout=layout)
    with pytest.raises(ValueError, match="'head', 'tensor' or 'block'"):
        greenfast.quantize_e4m3(q, per="row")
    empty, none = greenfast.quantize_e4m3(np.zeros((1, 2, 0, 64), np.float32), per="block")
    assert empty.shape == (1, 2, 0, 64) and none.shape == (1, 2, 0)


def test_factors_of_blocks_may_leave_float32_alone():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for rows in (4, 150):
        q = np.full((1, 1, rows, 128), 448, np.float32).astype(ml_dtypes.float8_e4m3fn)
        k = np.full((1, 1, 200, 128), 224, np.float32).astype(ml_dtypes.float8_e4m3fn)
        v = np.random.default_rng(0).standard_normal((1, 1, 200, 128), np.float32).astype(ml_dtypes.float8_e4m3fn)
        scales = [np.full((1, 1, (x.shape[2] + 127) // 128), s, np.float32) for x, s in ((q, 1e-39), (k, 1e34), (v, 1))]
        scales[1][..., 1] = -1e33
        out = greenfast.attention(q, k, v, **dict(zip(("q_scale", "k_scale", "v_scale"), scales)), out_dtype=np.float32)
        want = greenfast.attention(q, k, v, **dict(zip(("q_scale", "k_scale", "v_scale"), scales)), out_dtype=np.float32, variant="cpu.naive")
        np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_transposed_codes_are_the_same_where_v_is_read(layout):
    pytest.importorskip("ml_dtypes")
    q, k, v = (x if layout == "bhsd" else np.ascontiguousarray(x.swapaxes(1, 2)) for x in reference.inputs())
    (qc, _), (kc, _), (vc, vs) = (greenfast.quantize_e4m3(x, layout=layout) for x in (q, k, v))
    turned, scale = greenfast.quantize_e4m3(v, layout=layout, transposed=True)
    sequence = 2 if layout == "bhsd" else 1
    assert turned.shape == vc.shape and turned.strides[sequence] == 1 and turned.strides[3] % 16 == 0 and turned.strides[3] >= v.shape[sequence]
    assert (turned.view(np.uint8) == vc.view(np.uint8)).all() and (scale == vs).all()
    assert (greenfast.attention(qc, kc, turned, layout=layout) == greenfast.attention(qc, kc, vc, layout=layout)).all()
    with pytest.raises(ValueError, match="transposed and out"):
        greenfast.quantize_e4m3(v, out=vc, transposed=True)
    with pytest.raises(ValueError, match="K's last stride"):  # of V alone
        greenfast.attention(qc, turned, vc, layout=layout)


def test_an_empty_batch_has_the_scale_of_zeros():
    pytest.importorskip("ml_dtypes")
    codes, scale = greenfast.quantize_e4m3(np.zeros((0, 2, 5, 16), np.float32), per="tensor")
    assert codes.shape == (0, 2, 5, 16) and scale.tolist() == [1.0]


def by_codes(q, k, v, transposed=False, **options):
    """Attention of the codes of each, which attention_quantized is to give bit by bit."""
    layout = options.get("layout", "bhsd")
    codes, scales = zip(*(greenfast.quantize_e4m3(x, layout=layout, transposed=transposed and x is v) for x in (q, k, v)))
    return greenfast.attention(*codes, **dict(zip(("q_scale", "k_scale", "v_scale"), scales)), **{"out_dtype": q.dtype, "return_lse": True, **options})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("options", [
    {}, dict(causal=True, align="bottom_right"), dict(window=(9, 3), align="top_left"), dict(softcap=2.0, scale=0.3), dict(chunk=8, align="top_left"),
    dict(sinks=np.array([0.5, -1.0, 3.0, 0.0], np.float32)), dict(slopes=np.ones(4, np.float32), align="bottom_right"),
    dict(mask=np.random.default_rng(1).random((37, 53)) < 0.5), dict(mask=np.random.default_rng(2).random((37, 53), np.float32)),
    dict(out_dtype="float32"), dict(accuracy="fast"), dict(variant="cpu.naive"), dict(batch_invariant=True)], ids="-".join)
def test_quantised_attention_is_attention_of_the_codes(options, dtype):
    pytest.importorskip("ml_dtypes")
    for width_v in (32, 16):
        q, k, v = (x.astype(dtype) for x in reference.inputs(width_v=width_v))
        out, lse = greenfast.attention_quantized(q, k, v, return_lse=True, **options)
        want, want_lse = by_codes(q, k, v, **options)
        assert out.dtype == want.dtype and np.array_equal(out, want) and np.array_equal(lse, want_lse)


def test_quantised_attention_comes_close_to_the_exact_one():
    q, k, v = reference.inputs()
    for dtype in (np.float32, np.float16):
        out, lse = greenfast.attention_quantized(*(x.astype(dtype) for x in (q, k, v)), causal=True, align="bottom_right", return_lse=True)
        want, want_lse = reference.attention(q, k, v, right=0, bottom_right=True)
        assert out.dtype == dtype and lse.dtype == np.float32 and abs(lse - want_lse).max() < 0.1
        assert np.linalg.norm(out - want) < 0.06 * np.linalg.norm(want)


def biased(k):
    """Keys whose columns lie far from zero, another far in each head, as a projection's bias moves them."""
    bias = np.random.default_rng(3).standard_normal((k.shape[0], k.shape[1], 1, k.shape[3])) * 20
    return (k + bias).astype(k.dtype)


@pytest.mark.parametrize("options", [{}, dict(causal=True, align="bottom_right"), dict(mask=np.random.default_rng(1).random((37, 53)) < 0.5)], ids="-".join)
def test_smoothed_keys_may_lie_far_from_zero(options):
    q, k, v = reference.inputs()
    k = biased(k)
    want, want_lse = greenfast.attention(q, k, v, return_lse=True, **options)
    error = []
    for smooth in (False, True):
        out, lse = greenfast.attention_quantized(q, k, v, return_lse=True, smooth_k=smooth, **options)
        error.append(np.linalg.norm(out - want) / np.linalg.norm(want))
    assert error[1] < 0.09 and error[0] > 3 * error[1], error
    # What is left in it is Q's rounding times the bias.
    assert abs(lse - want_lse).max() < 0.1 * abs(want_lse).max()


def test_what_smoothing_subtracts_is_a_mean_of_columns():
    q, k, v = reference.inputs()
    k = biased(k)
    q = np.round(q * 2).clip(-1, 1).astype(np.float32)  # which e4m3 holds, so that the scores of what is subtracted are exact
    mean = np.zeros((k.shape[0], k.shape[1], k.shape[3]), np.float32)
    sums = [np.zeros_like(mean) for _ in range(32)]
    for n in range(k.shape[2]):
        sums[n % 32] += k[:, :, n]
    for one in sums:
        mean += one
    mean /= np.float32(k.shape[2])
    out, lse = greenfast.attention_quantized(q, k, v, return_lse=True, smooth_k=True)
    want, want_lse = greenfast.attention_quantized(q, k - mean[:, :, None], v, return_lse=True)
    assert np.array_equal(out, want)
    moved = np.einsum("bhsd,bhd->bhs", q, mean.repeat(q.shape[1] // k.shape[1], 1)) / q.shape[-1] ** 0.5
    assert np.allclose(lse, want_lse + moved, rtol=1e-5, atol=1e-4)


def rotated(x):
    """Rows times the matrix of src/core/rotate.hpp, in fp64, of a D that 32 divides."""
    turned = np.where(np.arange(32) % 4 == 3, -1.0, 1.0)
    matrix = np.array([[(-1) ** bin(i & j).count("1") for j in range(32)] for i in range(32)]) * turned / 32 ** 0.5
    return (x.astype(np.float64).reshape(*x.shape[:-1], -1, 32) @ matrix.T).reshape(x.shape)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("per", ["head", "tensor"])
def test_rotated_codes_are_those_of_the_rotated_values(layout, per):
    pytest.importorskip("ml_dtypes")
    _, k, _ = reference.inputs()
    k[..., 7] *= 50
    want = rotated(k)
    given = k if layout == "bhsd" else np.ascontiguousarray(k.transpose(0, 2, 1, 3))
    codes, scale = greenfast.quantize_e4m3(given, layout=layout, per=per, rotate=True)
    codes = codes if layout == "bhsd" else codes.transpose(0, 2, 1, 3)
    got = codes.astype(np.float64) * (scale[:, :, None, None] if per == "head" else scale)
    assert abs(got - want).max() <= abs(want).max() / 16 and np.linalg.norm(got - want) < 0.04 * np.linalg.norm(want)
    assert np.allclose(scale, abs(want).max((2, 3) if per == "head" else None) / 448, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, dict(causal=True, align="bottom_right"), dict(softcap=3.0), dict(smooth_k=True)], ids="-".join)
def test_rotated_rows_may_have_a_few_large_columns(options):
    q, k, v = reference.inputs(width=64)
    q[..., [3, 21]] *= 8
    k[..., [3, 21]] *= 8
    want, want_lse = greenfast.attention(q, k, v, return_lse=True, **{name: x for name, x in options.items() if name != "smooth_k"})
    error, moved = [], []
    for rotate in (False, True):
        out, lse = greenfast.attention_quantized(q, k, v, return_lse=True, rotate=rotate, **options)
        error.append(np.linalg.norm(out - want) / np.linalg.norm(want))
        moved.append(np.linalg.norm(lse - want_lse))
    assert error[1] < 0.85 * error[0] and moved[1] < 0.85 * moved[0], (error, moved)


def test_codes_that_lie_transposed_are_not_rotated():
    pytest.importorskip("ml_dtypes")
    _, _, v = reference.inputs()
    with pytest.raises(NotImplementedError, match="rotated"):
        greenfast.quantize_e4m3(v, transposed=True, rotate=True)


@pytest.mark.parametrize("rotate", [False, True])
def test_values_that_share_memory_become_codes_in_rows(rotate):
    pytest.importorskip("ml_dtypes")
    _, k, _ = reference.inputs()
    for shared in (np.broadcast_to(k[:1, :1, :1], k.shape), np.broadcast_to(k[:, :1], k.shape), np.broadcast_to(k[:, :, :1], k.shape)):
        codes, scale = greenfast.quantize_e4m3(shared, rotate=rotate)
        want, want_scale = greenfast.quantize_e4m3(np.ascontiguousarray(shared), rotate=rotate)
        assert codes.strides[3] == 1 and np.array_equal(codes.view(np.uint8), want.view(np.uint8)) and np.array_equal(scale, want_scale)


def test_smoothing_is_refused_where_scores_do_not_move_alike():
    q, k, v = reference.inputs()
    for options, name in ((dict(softcap=3.0), "softcap"), (dict(sinks=np.zeros(q.shape[1], np.float32)), "sinks")):
        with pytest.raises(NotImplementedError, match=name):
            greenfast.attention_quantized(q, k, v, smooth_k=True, **options)


def test_quantised_attention_is_written_where_it_is_asked_in_either_layout():
    q, k, v = (x.astype(np.float16) for x in reference.inputs(width_v=16))
    want, want_lse = greenfast.attention_quantized(q, k, v, return_lse=True)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    for given, layout in (([q, k, v], "bhsd"), (turned, "bshd"), ([x.swapaxes(1, 2) for x in turned], "bhsd")):
        expected = want.swapaxes(1, 2) if layout == "bshd" else want
        made = greenfast.attention_quantized(*given, layout=layout)
        out, lse = np.full_like(made, np.nan), np.full(want_lse.shape, np.nan, np.float32)
        returned = greenfast.attention_quantized(*given, layout=layout, out=out, lse=lse, return_lse=True)
        assert returned[0] is out and returned[1] is lse and np.array_equal(out, expected) and np.array_equal(lse, want_lse)
        assert np.array_equal(made, expected)
        assert greenfast.attention_quantized(*given, layout=layout, out=out) is out
    assert (greenfast.attention_quantized(q, k[:, :, :0], v[:, :, :0]) == 0).all() and greenfast.attention_quantized(q[:, :, :0], k, v).size == 0
    only = [Protocol(x, "__array_interface__") for x in (q, k, v)]
    assert np.array_equal(greenfast.attention_quantized(*only), want)


I32 = np.int32


@pytest.mark.parametrize("change, options, error, words", [
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "dense tensors, not used_kv", used_kv=np.array([3, 4], I32)),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "dense tensors, not used_q", used_q=np.array([3, 4], I32)),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "dense tensors, not kv_start", kv_start=np.array([3, 4], I32)),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "dense tensors, not kv_index", kv_index=np.array([1, 0], I32)),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "dense tensors, not page_table", page_table=np.array([[1], [0]], I32)),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "dense tensors, not max_kv", max_kv=53),
    bad(lambda q, k, v: (q[0], k[0], v[0]), NotImplementedError, "dense tensors, not cu_q", cu_q=np.array([0, 37], I32), cu_kv=np.array([0, 53], I32)),
    bad(lambda q, k, v: (q, k, v), NotImplementedError, "runs on cuda", variant="cuda.sm90.fp8"),
    bad(lambda q, k, v: (q, k, v), ValueError, "nearest: cpu.flash", variant="cpu.flesh"),
    bad(lambda q, k, v: (q.view(np.int32), k, v), TypeError, "int32"),
    bad(lambda q, k, v: (q, k.astype(np.float16), v), TypeError, "one type"),
    bad(lambda q, k, v: (q, None, v), TypeError, "k is None"),
    bad(lambda q, k, v: (q[0], k, v), ValueError, "four dimensions"),
    bad(lambda q, k, v: (q, k, v), ValueError, "say align", causal=True),
    bad(lambda q, k, v: (q, k, v), ValueError, "layout is 'sbhd'", layout="sbhd"),
    bad(lambda q, k, v: (q, k, v), ValueError, "'exact' or 'fast'", accuracy="faster"),
    bad(lambda q, k, v: (q, k, v), ValueError, "additive mask of fp16", mask=np.zeros((37, 53), np.float16)),
    bad(lambda q, k, v: (q, k, v), TypeError, "leave one of them out", out_dtype="float16"),
    bad(lambda q, k, v: (q, k, v), TypeError, r"attention_quantized\(\) got an unexpected keyword argument 'sink': is 'sinks' meant", sink=1),
    bad(lambda q, k, v: (q, k, v), TypeError, r"attention_quantized\(\) got an unexpected keyword argument 'q_scale'", q_scale=np.ones(1, np.float32)),
])
def test_what_quantised_attention_does_not_take_is_named_before_any_work(change, options, error, words):
    arguments = change(*reference.inputs())
    out = np.full(arguments[0].shape, 7.0, np.float32)
    with pytest.raises(error, match=words):
        greenfast.attention_quantized(*arguments, out=out, **options)
    assert (out == 7.0).all()
    made = {name: x for name, x in options.items() if name != "out_dtype"}
    if made == options:
        with pytest.raises(error, match=words):
            greenfast.attention_quantized(*arguments, return_lse=True, **options)


def test_codes_and_memory_of_the_inputs_are_refused_by_quantised_attention():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = reference.inputs()
    out = np.full(q.shape, 7.0, np.float16)
    with pytest.raises(ValueError, match="e4m3 already: call attention"):
        greenfast.attention_quantized(*(x.astype(ml_dtypes.float8_e4m3fn) for x in (q, k, v)), out=out)
    assert (out == 7.0).all()
    before = q.copy()
    with pytest.raises(ValueError, match="overlaps q"):
        greenfast.attention_quantized(q, k, v, out=q)
    assert (q == before).all()


def test_help_of_quantised_attention_is_attentions_without_scales():
    f, exact = greenfast.attention_quantized, inspect.signature(greenfast.attention).parameters
    parameters = inspect.signature(f).parameters
    assert {name: str(x) for name, x in parameters.items() if name not in ("smooth_k", "rotate")} == {
        name: str(x) for name, x in exact.items() if name not in ("q_scale", "k_scale", "v_scale")}
    assert parameters["smooth_k"].default is False and parameters["rotate"].default is False
    assert parameters["accuracy"].default == "exact" and set(greenfast.Features.__annotations__) <= set(parameters)
    assert f is pickle.loads(pickle.dumps(f)) and f is copy.deepcopy(f) and f.__name__ in greenfast.__all__ and f.__doc__.startswith("attention() of")


def test_batch_invariant_rows_do_not_depend_on_their_neighbours():
    q, k, v = reference.inputs(batch=5)
    whole = greenfast.attention(q, k, v, batch_invariant=True)
    alone = greenfast.attention(q[3:4], k[3:4], v[3:4], batch_invariant=True)
    assert (whole[3:4] == alone).all()


def test_it_does_not_load_pytorch():
    code = "import sys, numpy as np, greenfast; x = np.ones((1, 1, 8, 8), np.float32); greenfast.attention(x, x, x); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class Protocol:
    """An array that has no more than what is given here."""

    def __init__(self, array, name):
        self._array, self._name = array, name

    def __getattr__(self, name):
        if name == self._name or name == "__dlpack_device__" and self._name == "__dlpack__":
            return getattr(self._array, name)
        raise AttributeError(name)


@pytest.mark.parametrize("name", ["__dlpack__", "__array_interface__"])
def test_a_protocol_alone_is_enough(name):
    q, k, v = reference.inputs()
    q = np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    want, want_lse = greenfast.attention(q, k, v, return_lse=True)
    only = lambda *arrays: [Protocol(x, name) for x in arrays]  # noqa: E731
    out, lse = greenfast.attention(*only(q, k, v), return_lse=True)
    assert np.array_equal(out, want) and np.array_equal(lse, want_lse) and out.strides == want.strides
    narrow = greenfast.attention(*only(q, k), *only(np.ascontiguousarray(v[..., :8])))
    assert np.array_equal(narrow, greenfast.attention(q, k, np.ascontiguousarray(v[..., :8])))
    merged = greenfast.merge(*only(out, lse, out, lse))
    assert np.array_equal(merged[1], greenfast.merge(out, lse, out, lse)[1])
    cache = [np.zeros_like(k), np.zeros_like(v)]
    ones, zeros = np.ones((k.shape[2], 4), np.float32), np.zeros((k.shape[2], 4), np.float32)
    turned = greenfast.append(*only(k, v), *cache, q=Protocol(k, name), cos=ones, sin=zeros)
    assert np.array_equal(cache[0], k) and np.array_equal(turned, k)


@pytest.mark.parametrize("name", ["__dlpack__", "__array_interface__"])
def test_a_protocol_alone_is_quantised(name):
    pytest.importorskip("ml_dtypes")
    _, k, _ = reference.inputs()
    codes, scale = greenfast.quantize_e4m3(Protocol(k, name))
    want, want_scale = greenfast.quantize_e4m3(k)
    assert np.array_equal(scale, want_scale) and np.array_equal(codes.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("interface, words", [
    ({"shape": (1, 2, 8, 16), "typestr": "<f4", "version": 3}, "no data"),
    ({"shape": (1, 2, 8, 16), "typestr": "<f4", "data": b"0" * 1024, "version": 3}, "no data"),
    ({"shape": (1, 2, 8, 16), "data": (0, False), "version": 3}, "no typestr"), ({"typestr": "<f4", "data": (0, False), "version": 3}, "no shape")])
@pytest.mark.parametrize("protocol", ["__array_interface__", "__cuda_array_interface__"])
def test_an_interface_that_describes_no_memory_is_named(protocol, interface, words):
    x = np.zeros((1, 2, 8, 16), np.float32)
    with pytest.raises(ValueError, match=f"q's array interface has {words}"):
        greenfast.attention(type("Bare", (), {protocol: interface})(), x, x)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_none_is_no_array(which):
    given = [np.zeros((1, 2, 8, 16), np.float32)] * 3
    given[which] = None
    for function in (greenfast.attention, greenfast.explain):
        with pytest.raises(TypeError, match=f"{'qkv'[which]} is None"):
            function(*given)
    for function in (lambda: greenfast.merge(None, *given[:3]), lambda: greenfast.quantize_e4m3(None)):
        with pytest.raises(TypeError, match="is None"):
            function()


@pytest.mark.parametrize("options", [dict(window=(2 ** 70, 0)), dict(window=(0, 2 ** 70)), dict(chunk=2 ** 70), dict(max_splits=2 ** 70), dict(scale=10 ** 400)])
def test_a_number_that_nothing_holds_is_a_value_error(options):
    x = np.zeros((1, 2, 8, 16), np.float32)
    with pytest.raises(ValueError, match="1[0-9]{20}.* out of range"):
        greenfast.attention(x, x, x, align="top_left", **options)
