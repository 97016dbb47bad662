"""What serving needs of greenfast.attention, with NumPy alone: masks, sinks, ALiBi, chunks, lengths, pages."""
import copy
import functools
import inspect
import pickle

import numpy as np
import pytest

import greenfast
import reference

BOOL = np.random.default_rng(1).random((37, 53)) < 0.5
BOOL[3] = False
FLOAT = np.where(BOOL, np.random.default_rng(2).standard_normal((37, 53)), -np.inf).astype(np.float32)
SINKS, SLOPES = np.array([0.5, -1.0, 3.0, -np.inf], np.float32), np.array([0.5, 0.25, 0.0, 1.0], np.float32)
CASES = {
    "bool": dict(mask=BOOL), "float": dict(mask=FLOAT), "column": dict(mask=BOOL[:1]), "row": dict(mask=BOOL[:, :1]),
    "one-axis": dict(mask=BOOL[0]),
    "per-head": dict(mask=np.stack([BOOL, ~BOOL, BOOL ^ BOOL[::-1], np.ones_like(BOOL)])[None]),
    "per-batch": dict(mask=np.stack([BOOL[1], ~BOOL[1]])[:, None, None]),
    "broadcast-strides": dict(mask=np.broadcast_to(BOOL[4], (2, 4, 37, 53))),
    "sinks": dict(sinks=SINKS), "sinks-only": dict(sinks=SINKS, mask=np.zeros((1, 1), bool)),
    "slopes": dict(slopes=SLOPES, align="top_left"), "slopes-per-batch": dict(slopes=np.stack([SLOPES, SLOPES[::-1]]).copy(), align="bottom_right"),
    "chunk": dict(chunk=8, causal=True, align="bottom_right"), "chunk-top-left": dict(chunk=5, align="top_left"),
    "all": dict(mask=FLOAT, sinks=SINKS, slopes=SLOPES, chunk=16, causal=True, window=(9, 0), align="bottom_right", softcap=3.0, scale=0.4),
}


def theirs(options):
    """The reference's words for what greenfast.attention calls so."""
    options = dict(options)
    window = options.pop("window", None)
    if options.pop("causal", False):
        options["right"] = 0
    if window is not None:
        options["left"], options["right"] = window
    options["bottom_right"] = options.pop("align", None) == "bottom_right"
    return options


@pytest.mark.parametrize("variant", ["cpu.naive", "cpu.flash"])
@pytest.mark.parametrize("width_v", [32, 16, 64])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_feature_is_the_definitions(options, width_v, variant):
    q, k, v = reference.inputs(width_v=width_v)
    out, lse = greenfast.attention(q, k, v, return_lse=True, variant=variant, **options)
    want, want_lse = reference.attention(q, k, v, **theirs(options))
    assert out.shape == (2, 4, 37, width_v)
    np.testing.assert_allclose(out, want, atol=4e-6)
    np.testing.assert_allclose(lse, want_lse, atol=4e-6)


def test_an_output_of_another_width_has_the_order_of_q():
    q, k, v = reference.inputs(width_v=16)
    plain = greenfast.attention(q, k, v)
    turned = tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    seen = greenfast.attention(*(x.swapaxes(1, 2) for x in turned))
    assert seen.shape == plain.shape and seen.swapaxes(1, 2).flags.c_contiguous and (seen == plain).all()
    assert (greenfast.attention(*turned, layout="bshd").swapaxes(1, 2) == plain).all()


def test_fast_accuracy_is_for_e4m3_and_exact_where_nothing_is_faster():
    q, k, v = reference.inputs()
    spec = [greenfast.TensorSpec(x.shape, "float8_e4m3fn") for x in (q, k, v)]
    fast = greenfast.explain(*spec, accuracy="fast", device="cpu")
    assert "accuracy=fast" in fast.problem and fast.variant == "cpu.flash"
    assert "accuracy" not in greenfast.explain(*spec, accuracy="exact", device="cpu").problem
    with pytest.raises(ValueError, match="only e4m3"):
        greenfast.attention(q, k, v, accuracy="fast")
    for wrong in ("faster", 1, None):
        with pytest.raises(ValueError, match="'exact' or 'fast'"):
            greenfast.attention(q, k, v, accuracy=wrong)
    assert (greenfast.attention(q, k, v, accuracy="exact") == greenfast.attention(q, k, v)).all()
    assert inspect.signature(greenfast.attention).parameters["accuracy"].default == "exact"


def poison(shape):
    return np.full(shape, np.nan, np.float32)


CU_Q, CU_KV = np.array([0, 5, 5, 16, 37], np.int32), np.array([0, 7, 12, 12, 40], np.int32)
LENGTHS = {
    "plain": {}, "causal": dict(causal=True, align="bottom_right"), "window": dict(window=(4, 1), align="top_left"),
    "features": dict(sinks=SINKS, slopes=SLOPES, chunk=6, causal=True, align="bottom_right"),
    "mask": dict(mask=np.random.default_rng(3).random((4, 1, 21, 28)) < 0.6),
}


def check(made, lse, expected, written):
    out_seen, lse_seen = np.zeros(made.shape[:-1], bool), np.zeros(lse.shape, bool)
    for where, want, want_lse in expected:
        np.testing.assert_allclose(made[where], want, atol=4e-6)
        np.testing.assert_allclose(lse[where], want_lse, atol=4e-6)
        out_seen[where] = lse_seen[where] = True
    if written is not None:  # rows of no sequence are left alone
        assert np.isnan(made[~out_seen]).all() and np.isnan(lse[~lse_seen]).all()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("options", LENGTHS.values(), ids=LENGTHS)
def test_packed_sequences_are_each_alone(options, layout):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 41, 32), (2, 43, 32), (2, 43, 16)))
    q[:, 37:] = k[:, 40:] = v[:, 40:] = np.nan
    turn = (lambda x: np.ascontiguousarray(x.swapaxes(0, 1))) if layout == "bshd" else lambda x: x
    out, lse = turn(poison((4, 41, 16))), poison((4, 41))
    lengths = dict(cu_q=CU_Q, cu_kv=CU_KV, max_q=21, max_kv=28)
    returned = greenfast.attention(turn(q), turn(k), turn(v), out=out, lse=lse, return_lse=True, layout=layout, **lengths, **options)
    assert returned[0] is out and returned[1] is lse
    check(turn(out) if layout == "bshd" else out, lse, reference.sequences(q, k, v, cu_q=CU_Q, cu_kv=CU_KV, **theirs(options)), True)
    made, made_lse = greenfast.attention(turn(q), turn(k), turn(v), return_lse=True, layout=layout, **lengths, **options)
    assert made.shape == out.shape and made_lse.shape == (4, 41)


USED_Q, USED_KV, START = np.array([5, 0, 37], np.int32), np.array([9, 3, 53], np.int32), np.array([2, 3, 0], np.int32)


@pytest.mark.parametrize("options", [LENGTHS["plain"], LENGTHS["causal"], LENGTHS["features"]])
@pytest.mark.parametrize("arrays", [dict(used_q=USED_Q), dict(used_kv=USED_KV), dict(used_q=USED_Q, used_kv=USED_KV, kv_start=START),
                                    dict(kv_start=START), dict(kv_index=np.array([4, 0, 4], np.int32), used_kv=USED_KV)])
def test_lengths_of_a_dense_batch(arrays, options):
    q, k, v = reference.inputs(batch=5 if "kv_index" in arrays else 3)
    q = q[:3].copy()
    used, start = arrays.get("used_kv"), arrays.get("kv_start")
    for b in range(3):
        if used is not None and "kv_index" not in arrays:
            k[b, :, used[b]:] = v[b, :, used[b]:] = np.nan
        if start is not None:
            k[b, :, :start[b]] = v[b, :, :start[b]] = np.nan
    out, lse = poison(q.shape), poison(q.shape[:3])
    greenfast.attention(q, k, v, out=out, lse=lse, **arrays, **{"align": "bottom_right", **options})
    check(out, lse, reference.sequences(q, k, v, **arrays, **theirs({"align": "bottom_right", **options})), True)


@pytest.mark.parametrize("options", [LENGTHS["plain"], LENGTHS["causal"], LENGTHS["features"]])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("page", [1, 3, 16])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_pages_are_read_where_the_table_says(page, packed, layout, options):
    rng = np.random.default_rng(page)
    used = np.array([10, 0, 16], np.int32)
    width = -(-16 // page)
    needed = [-(-int(n) // page) for n in used]
    blocks = sum(needed) + 2
    table = np.full((3, width + 2), -7, np.int32)  # past the used length nothing is read, in whatever row it stands
    free = rng.permutation(blocks)
    for b, count in enumerate(needed):
        table[b, :count], free = free[:count], free[count:]
    k, v = (rng.standard_normal((blocks, 2, page, d), dtype=np.float32) for d in (32, 16))
    for block in free:
        k[block] = v[block] = np.nan
    for b, n in enumerate(used):
        if n % page:
            k[table[b, n // page], :, n % page:] = v[table[b, n // page], :, n % page:] = np.nan
    cu = np.array([0, 2, 3, 7], np.int32)
    q = rng.standard_normal((4, 7, 32) if packed else (3, 4, 2, 32), dtype=np.float32)
    turn = (lambda x: np.ascontiguousarray(x.swapaxes(-3, -2))) if layout == "bshd" else lambda x: x
    out, lse = turn(poison((*q.shape[:-1], 16))), poison(q.shape[:-1])
    greenfast.attention(turn(q), turn(k), turn(v), out=out, lse=lse, layout=layout, used_kv=used, page_table=table[:, :width],
                        **dict(cu_q=cu, max_q=4) if packed else {}, **options)
    expected = reference.sequences(q, k, v, cu_q=cu if packed else None, used_kv=used, page_table=table[:, :width], **theirs(options))
    check(turn(out) if layout == "bshd" else out, lse, expected, True)


def test_halves_of_one_row_are_pages_by_strides():
    """A cache [blocks, Hkv, page, 2 D] that holds K and V side by side."""
    rng = np.random.default_rng(0)
    both = rng.standard_normal((5, 2, 4, 48), dtype=np.float32)
    q, table, used = rng.standard_normal((2, 4, 1, 24), dtype=np.float32), np.array([[3, 1], [0, 4]], np.int32), np.array([7, 5], np.int32)
    halves = both[..., :24], both[..., 24:]
    out = greenfast.attention(q, *halves, page_table=table, used_kv=used)
    assert (out == greenfast.attention(q, *(x.copy() for x in halves), page_table=table, used_kv=used)).all()


def test_alignment_need_not_be_said_where_it_cannot_matter():
    q, k, v = (x[0] for x in reference.inputs(rows=40, keys=40))
    made = greenfast.attention(q, k, v, cu_q=CU_KV, cu_kv=CU_KV, causal=True)
    assert (made == greenfast.attention(q, k, v, cu_q=CU_KV, cu_kv=CU_KV, causal=True, align="top_left")).all()
    with pytest.raises(ValueError, match="lengths of a sequence may differ: say align"):
        greenfast.attention(q, k, v, cu_q=CU_KV, cu_kv=CU_KV.copy(), causal=True)
    with pytest.raises(ValueError, match="slopes have no align"):
        greenfast.attention(*reference.inputs(), slopes=SLOPES)
    with pytest.raises(ValueError, match="chunks have no align"):
        greenfast.attention(*reference.inputs(rows=53), chunk=4, used_kv=np.array([3, 4], np.int32))


I32 = np.int32


@pytest.mark.parametrize("options, error, words", [
    (dict(mask=BOOL.astype(np.int64)), TypeError, "mask is int64.*masks bool"),
    (dict(mask=BOOL.astype(np.int32)), TypeError, "mask is int32: bool, float32 or of q's type"),
    (dict(mask=FLOAT.astype(np.float16)), ValueError, "additive mask of fp16"),
    (dict(mask=BOOL[:, :50]), ValueError, r"mask has shape \[37, 50\].*\[2, 4, 37, 53\]"),
    (dict(mask=np.ones((1, 2, 4, 37, 53), bool)), ValueError, "at most 4"),
    (dict(mask=np.asfortranarray(BOOL)), ValueError, "copy the mask so that keys are contiguous"),
    (dict(mask=[1]), TypeError, "mask is builtins.list"),
    (dict(masks=BOOL), TypeError, "'masks': is 'mask' meant"),
    (dict(sinks=SINKS[:3]), ValueError, r"sinks has shape \[3\].*\[4\]"),
    (dict(sinks=SINKS.astype(np.float16)), TypeError, "sinks is fp16: float32"),
    (dict(slopes=np.ones((3, 4), I32)), TypeError, "slopes is int32"),
    (dict(slopes=np.ones((3, 4), np.float32), align="top_left"), ValueError, r"slopes.*\[Hq\] = \[4\] or \[B, Hq\] = \[2, 4\]"),
    (dict(chunk=-1, align="top_left"), ValueError, "chunk is -1"),
    (dict(max_splits=-1), ValueError, "max_splits is -1"),
    (dict(used_kv=np.array([3, 4])), TypeError, "used_kv is int64.*int32"),
    (dict(used_kv=np.array([3], I32)), ValueError, r"used_kv has shape \[1\].*\[2\]"),
    (dict(used_kv=np.array([3, 54], I32)), ValueError, "used_kv"),
    (dict(used_q=np.array([38, 1], I32)), ValueError, "used_q"),
    (dict(kv_start=np.array([-1, 1], I32)), ValueError, "kv_start"),
    (dict(kv_index=np.array([0, 2], I32)), ValueError, "kv_index"),
    (dict(cu_q=np.array([0, 3], I32)), ValueError, "q has batch 2: with cu_q"),
    (dict(cu_q=np.array([], I32)), ValueError, "cu_q has shape"),
    (dict(max_q=3), ValueError, "max_q is 3, and q is not packed"),
    (dict(max_kv=3), ValueError, "max_kv is 3, and k and v are neither"),
    (dict(page_table=np.zeros((2, 3), I32)[:, ::2]), ValueError, "page_table"),
    (dict(page_table=np.zeros((3, 3), I32)), ValueError, r"page_table has shape \[3, 3\]"),
    (dict(page_table=np.zeros((2, 3), I32), max_kv=160), ValueError, "max_kv is 160.*room for 159"),
    (dict(page_table=np.array([[0, 1, 1], [0, 1, 2]], I32)), ValueError, "page_table"),
    (dict(page_table=np.zeros((2, 3), I32), kv_index=np.zeros(2, I32)), ValueError, "pages and kv_index"),
    (dict(chunk=4, causal=True, align="top_left", variant="cuda.sm90.prefill"), NotImplementedError, "runs on cuda"),
])
def test_bad_features_are_named_before_any_work(options, error, words):
    q, k, v = reference.inputs()
    out = np.full_like(q, 7.0)
    with pytest.raises(error, match=words):
        greenfast.attention(q, k, v, out=out, **options)
    assert (out == 7.0).all()


@pytest.mark.parametrize("change, words", [
    (dict(cu_q=np.array([0, 9, 5, 16, 37], I32)), "cu_q"), (dict(cu_q=np.array([-1, 5, 5, 16, 37], I32)), "cu_q"),
    (dict(cu_q=np.array([0, 5, 5, 16, 42], I32)), "cu_q"), (dict(cu_kv=np.array([0, 7], I32)), "cu_kv has 2 entries: 5"),
    (dict(max_q=3), "max_q|seq_q"), (dict(cu_q=None), "k has batch|cu_kv"),
])
def test_packed_lengths_that_cannot_be_are_named(change, words):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 41, 32), (2, 43, 32), (2, 43, 32)))
    with pytest.raises(ValueError, match=words):
        greenfast.attention(q if change.get("cu_q", 1) is not None else q[None], k, v, **{**dict(cu_q=CU_Q, cu_kv=CU_KV), **change})


def test_explain_knows_the_features():
    spec = greenfast.TensorSpec
    told = greenfast.explain(spec((8, 100, 128)), spec((50, 2, 16, 128)), spec((50, 2, 16, 128)), cu_q=spec((5,), "int32"),
                             page_table=spec((4, 30), "int32"), used_kv=spec((4,), "int32"), sinks=spec((8,), "float32"), max_q=64,
                             causal=True, align="bottom_right")
    assert told.variant == "cpu.flash" and "page" in told.problem and "sinks" in told.problem
    told = greenfast.explain(spec((1, 8, 100, 64)), *[spec((1, 8, 100, 64))] * 2, mask=spec((100, 100), "bool"), device="h200")
    assert told.variant or "mask" in told.refusal
    with pytest.raises(TypeError, match="explain.*'sink'"):
        greenfast.explain(*[spec((1, 8, 100, 64))] * 3, sink=1)


def test_what_is_named_and_not_given_is_a_plain_call(monkeypatch):
    calls = []
    monkeypatch.setattr(greenfast._arrays._core, "attention", lambda *arguments: calls.append(arguments[-1]))
    q, k, v = reference.inputs()
    defaults = {name: inspect.signature(greenfast.attention).parameters[name].default for name in greenfast._arrays.FEATURES}
    for options in ({}, defaults, dict(mask=None), dict(mask=BOOL), dict(chunk=4)):
        greenfast.attention(q, k, v, **options)
    assert calls[:3] == [None] * 3 and all(len(call) == len(greenfast._arrays.FEATURES) for call in calls[3:])


def test_help_names_every_argument():
    for function in (greenfast.attention, greenfast.explain):
        assert set(greenfast.Features.__annotations__) <= set(inspect.signature(function).parameters)
    assert set(greenfast.Features.__annotations__) == set(greenfast._arrays.FEATURES)


def test_the_call_has_its_name_its_signature_and_its_errors():
    q, k, v = reference.inputs()
    f = greenfast.attention
    assert f is pickle.loads(pickle.dumps(f)) and f is copy.deepcopy(f) and inspect.isfunction(f)
    assert (f.__name__, f.__qualname__, f.__module__) == ("attention", "attention", "greenfast") and f.__doc__.startswith("softmax")
    assert inspect.signature(functools.wraps(f)(lambda *x: 0)) == inspect.signature(f)
    parameters = inspect.signature(f).parameters
    assert list(parameters)[:5] == ["q", "k", "v", "out", "scale"] and parameters["layout"].default == "bhsd"
    assert all((x.kind is x.KEYWORD_ONLY) == (name not in "qkv") for name, x in parameters.items())
    want = f(q, k, v, scale=0.3, softcap=2.0)
    assert (f(softcap=2.0, v=v, scale=0.3, k=k, q=q) == want).all()
    assert (functools.partial(f, q, softcap=2.0)(k, v, **{"scale": 0.3}) == want).all()
    for call, words in ((lambda: f(q, k, v, q), r"^attention\(\) takes 3 positional arguments but 4 were given$"),
                        (lambda: f(q, k), r"^attention\(\) missing 1 required positional argument: 'v'$"),
                        (lambda: f(q, k, v, q=q), r"^attention\(\) got multiple values for argument 'q'$"),
                        (lambda: f(q, k, v, sink=1), r"^attention\(\) got an unexpected keyword argument 'sink': is 'sinks' meant\?$"),
                        (lambda: f(q, k, v, whatever=None), r"^attention\(\) got an unexpected keyword argument 'whatever'$"),
                        (lambda: f(q, k, v, **{3: 4}), "keywords must be strings")):
        with pytest.raises(TypeError, match=words):
            call()
