"""merge and append, and a cache that grows: NumPy, and PyTorch where it is."""
import importlib.util

import numpy as np
import pytest

import greenfast
import reference

torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
KINDS = ["numpy"] + (["torch"] if torch else [])
I32 = np.int32


@pytest.fixture(params=KINDS)
def array(request):
    """NumPy's arrays, or PyTorch's tensors on the same memory."""
    if request.param == "numpy":
        return lambda x: x
    return lambda x: x if x is None or isinstance(x, (int, str)) else torch.from_numpy(x)


def turned(x, positions, cos, sin, interleaved):
    """[H, S, D] of the definition: pairs of the first 2 * width elements as complex numbers."""
    x = np.asarray(x, np.float64).copy()
    width = cos.shape[1]
    pairs = (slice(0, 2 * width, 2), slice(1, 2 * width, 2)) if interleaved else (slice(0, width), slice(width, 2 * width))
    number = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * (cos[positions] + 1j * sin[positions])
    x[..., pairs[0]], x[..., pairs[1]] = number.real, number.imag
    return x


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_parts_merge_to_the_whole(array, layout):
    q, k, v = reference.inputs()
    turn = (lambda x: np.ascontiguousarray(x.swapaxes(1, 2))) if layout == "bshd" else lambda x: x
    parts = [greenfast.attention(turn(q), turn(k[:, :, keys]), turn(v[:, :, keys]), return_lse=True, layout=layout)
             for keys in (slice(0, 20), slice(20, 53), slice(53, 53))]
    (a, lse_a), (b, lse_b), (none, lse_none) = (tuple(array(x) for x in part) for part in parts)
    out, lse = greenfast.merge(a, lse_a, b, lse_b, layout=layout)
    want, want_lse = reference.attention(q, k, v)
    np.testing.assert_allclose(turn(np.asarray(out)) if layout == "bshd" else np.asarray(out), want, atol=3e-6)
    np.testing.assert_allclose(lse, want_lse, atol=3e-6)
    same, same_lse = greenfast.merge(b, lse_b, a, lse_a, out=b, lse=lse_b, layout=layout)
    assert same is b and same_lse is lse_b and (same == out).all() and (lse_b == lse).all()
    whole, whole_lse = greenfast.merge(none, lse_none, a, lse_a, layout=layout)
    np.testing.assert_allclose(whole_lse, lse_a)
    np.testing.assert_allclose(whole, a, atol=1e-6)


def test_packed_parts_merge_and_change_type(array):
    q, k, v = (x[0] for x in reference.inputs(rows=40, keys=40))
    cu = np.array([0, 30, 40], I32)
    (a, lse_a), (b, lse_b) = (greenfast.attention(q, k, v, cu_q=cu, cu_kv=cu, return_lse=True, mask=mask) for mask in
                              (np.arange(40) < 9, np.arange(40) >= 9))
    out, lse = greenfast.merge(*(array(x) for x in (a, lse_a, b, lse_b)), out_dtype="float16")
    want, want_lse = greenfast.attention(q, k, v, cu_q=cu, cu_kv=cu, return_lse=True)
    assert str(out.dtype).endswith("float16") and tuple(lse.shape) == (4, 40)
    np.testing.assert_allclose(np.asarray(out, np.float32), want, atol=2e-3)
    np.testing.assert_allclose(lse, want_lse, atol=3e-6)


@pytest.mark.parametrize("change, error, words", [
    (dict(o2=np.ones((2, 4, 37, 16), np.float32)), ValueError, "one shape"), (dict(o2=np.ones((2, 4, 37, 32), np.float16)), ValueError, "one type"),
    (dict(lse2=np.ones((2, 37, 4), np.float32)), ValueError, "lse2 has shape"), (dict(lse1=np.ones((2, 4, 37), np.float16)), TypeError, "lse1"),
    (dict(out=np.ones((2, 4, 36, 32), np.float32)), ValueError, "one shape"), (dict(out=np.broadcast_to(np.float32(0), (2, 4, 37, 32))), ValueError, "read-only"),
    (dict(layout="sbhd"), ValueError, "layout"),
])
def test_bad_merges_are_named(change, error, words):
    arguments = dict(o1=np.ones((2, 4, 37, 32), np.float32), o2=np.ones((2, 4, 37, 32), np.float32), lse1=np.ones((2, 4, 37), np.float32),
                     lse2=np.ones((2, 4, 37), np.float32))
    with pytest.raises(error, match=words):
        greenfast.merge(**{**arguments, **change})


def test_a_nan_among_the_sums_is_no_empty_part(array):
    two, three, nothing = (np.full((1, 1, 4, 8), x, np.float32) for x in (2, 3, np.nan))
    sums = np.array([[[np.nan, 1, -np.inf, np.inf]]], np.float32), np.array([[[1, np.nan, -np.inf, -np.inf]]], np.float32)
    out, lse = greenfast.merge(*(array(x) for x in (two, sums[0], three, sums[1])))
    np.testing.assert_equal(np.asarray(lse)[0, 0], np.array([np.nan, np.nan, -np.inf, -np.inf], np.float32))
    assert np.isnan(np.asarray(out)[0, 0, :2]).all() and (np.asarray(out)[0, 0, 2:] == 0).all()
    # Beside an empty part, which is not read, the other is what it is.
    alone, lse = greenfast.merge(*(array(x) for x in (two, np.full((1, 1, 4), np.nan, np.float32), nothing, np.full((1, 1, 4), -np.inf, np.float32))))
    assert (np.asarray(alone) == 2).all() and np.isnan(np.asarray(lse)).all()


TABLE = np.outer(np.arange(64), 10.0 ** -np.linspace(0, 2, 8))
COS, SIN = np.cos(TABLE).astype(np.float32), np.sin(TABLE).astype(np.float32)


@pytest.mark.parametrize("rotary", [None, "neox", "interleaved"])
@pytest.mark.parametrize("where", ["dense", "index", "pages"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_new_tokens_land_where_their_sequence_ends(array, rotary, where, packed, layout):
    rng = np.random.default_rng(0)
    turn = (lambda x: np.ascontiguousarray(x.swapaxes(-3, -2))) if layout == "bshd" else lambda x: x
    used, counts, start = np.array([5, 0, 13], I32), np.array([3, 4, 1], I32), np.array([2, 0, 1], I32)
    cu = np.array([0, 3, 7, 8], I32)
    new = (8,) if packed else (4,)
    lead = () if packed else (3,)
    k, v, q = (rng.standard_normal((*lead, heads, *new, d), dtype=np.float32) for heads, d in ((2, 24), (2, 16), (4, 24)))
    first = {"dense": 3, "index": 5, "pages": 9}[where]
    room = 4 if where == "pages" else 20
    caches = [turn(np.full((first, 2, room, d), -7.0, np.float32)) for d in (24, 16)]
    index, table = np.array([4, 0, 2], I32), np.array([[8, 0, -1, -1, -1], [3, -1, -1, -1, -1], [5, 6, 7, 1, -1]], I32)
    options = dict(used_kv=used, kv_start=start, layout=layout)
    options |= {"index": dict(kv_index=index), "pages": dict(page_table=table), "dense": {}}[where]
    options |= dict(cu_new=cu, max_new=4) if packed else dict(used_new=counts)
    options |= dict(cos=COS, sin=SIN, rotary=rotary, q=turn(q)) if rotary else {}
    returned = greenfast.append(*(array(x) for x in (turn(k), turn(v), *caches)), **{name: array(x) for name, x in options.items()})
    written = np.zeros((first, room), bool)
    caches = [turn(x) for x in caches]
    for b in range(3):
        rows = (slice(None), slice(cu[b], cu[b + 1])) if packed else (b, slice(None), slice(0, counts[b]))
        keys = used[b] + np.arange(counts[b])
        own_k, own_q = k[rows], q[rows]
        if rotary:
            own_k, own_q = (turned(x, keys - start[b], COS.astype(np.float64), SIN.astype(np.float64), rotary == "interleaved") for x in (own_k, own_q))
            np.testing.assert_allclose(turn(np.asarray(returned))[rows], own_q, atol=1e-6)
        for n, key in enumerate(keys):
            at = (table[b, key // 4], key % 4) if where == "pages" else (index[b] if where == "index" else b, key)
            np.testing.assert_allclose(caches[0][at[0], :, at[1]], own_k[:, n], atol=1e-6)
            assert (caches[1][at[0], :, at[1]] == v[rows][:, n]).all()
            written[at] = True
    assert rotary or returned is None
    for cache in caches:  # and nothing else
        assert (cache.swapaxes(1, 2)[~written] == -7.0).all()


@pytest.mark.parametrize("change, error, words", [
    (dict(used_kv=np.array([5, 18, 13], I32)), ValueError, "sequence 1 would have 22 keys"),
    (dict(kv_index=np.array([1, 1, 0], I32)), ValueError, "row 1 of the cache"),
    (dict(page_table=np.zeros((3, 5), I32)), ValueError, "page 0 of the cache"),
    (dict(page_table=np.full((3, 5), 9, I32)), ValueError, "page_table"),
    (dict(cos=COS), ValueError, "cos and sin are given together"),
    (dict(cos=COS, sin=SIN[:, :4]), ValueError, "sin has shape"),
    (dict(cos=COS[:9], sin=SIN[:9]), ValueError, "sequence 2 reaches position"),
    (dict(cos=COS, sin=SIN, rotary="gptj"), ValueError, "rotary is 'gptj'"),
    (dict(q=np.ones((3, 4, 4, 24), np.float32)), ValueError, "q is given without cos and sin"),
    (dict(q=np.ones((3, 4, 3, 24), np.float32), cos=COS, sin=SIN), ValueError, "q's"),
    (dict(max_new=2), ValueError, "max_new is for packed"),
    (dict(cu_new=np.array([0, 4], I32)), ValueError, "k has batch 3"),
    (dict(used_kv=np.array([5, 0, 13])), TypeError, "used_kv is int64"),
    (dict(used_new=np.array([5, 0, 1], I32)), ValueError, r"used_new\[0\] is 5"),
    (dict(v=np.ones((3, 2, 4, 24), np.float16)), TypeError, "k is fp32 and v fp16"),
    (dict(v=np.ones((3, 2, 4, 24), np.float32)), ValueError, "v has 2 heads of 24 and v_cache 2 of 16"),
    (dict(k_cache=np.ones((2, 2, 20, 24), np.float32)), ValueError, "v_cache's"),
])
def test_bad_appends_are_named_and_write_nothing(change, error, words):
    caches = [np.full((3, 2, 20, d), -7.0, np.float32) for d in (24, 16)]
    arguments = dict(k=np.ones((3, 2, 4, 24), np.float32), v=np.ones((3, 2, 4, 16), np.float32), k_cache=caches[0], v_cache=caches[1],
                     used_kv=np.array([5, 0, 13], I32))
    with pytest.raises(error, match=words):
        greenfast.append(**{**arguments, **change})
    assert all((cache == -7.0).all() for cache in caches)


def test_k_and_v_have_memory_of_their_own():
    """One cache for both would lose the keys; halves of the same rows are fine."""
    k, v = (np.full((1, 2, 3, 16), x, np.float32) for x in (1.0, 2.0))
    cache = np.zeros((1, 2, 34, 16), np.float32)
    for other in (cache[:, :, :32], cache[:, :, 2:]):
        with pytest.raises(ValueError, match="overlaps"):
            greenfast.append(k, v, cache[:, :, :32], other)
    assert not cache.any()
    rows = np.zeros((1, 2, 8, 32), np.float32)
    greenfast.append(k, v, rows[..., :16], rows[..., 16:])
    assert (rows[:, :, :3, :16] == 1).all() and (rows[:, :, :3, 16:] == 2).all() and not rows[:, :, 3:].any()


def test_a_cache_that_grows_by_pages_is_the_whole_attention():
    """Prefill, then token by token: out of order pages, and every step equals attention over all there is so far."""
    rng = np.random.default_rng(0)
    rows, page = 23, 4
    q, k, v = (rng.standard_normal((1, heads, rows, 32), dtype=np.float32) for heads in (4, 2, 2))
    want, _ = reference.attention(q, k, v, right=0)
    pools = [np.full((8, 2, page, 32), np.nan, np.float32) for _ in range(2)]
    table = rng.permutation(8).astype(I32)[None, :6].copy()
    used = np.zeros(1, I32)
    for first, last in [(0, 9), *((n, n + 1) for n in range(9, rows))]:
        step = slice(first, last)
        greenfast.append(k[:, :, step], v[:, :, step], *pools, used_kv=used, page_table=table)
        used += last - first
        out = greenfast.attention(q[:, :, step], *pools, used_kv=used, page_table=table, causal=True, align="bottom_right")
        np.testing.assert_allclose(out, want[:, :, step], atol=3e-6)


@pytest.mark.skipif(torch is None, reason="for PyTorch")
def test_operators_of_merge_and_append():
    q, k, v = (torch.from_numpy(x) for x in reference.inputs())
    a, lse_a = greenfast.attention(q, k, v, return_lse=True)
    assert set(torch.library.opcheck(torch.ops.greenfast.merge.default, (a, lse_a, a * 2, lse_a + 1), {"out_dtype": torch.float16}).values()) == {"SUCCESS"}
    used = torch.tensor([3, 9], dtype=torch.int32)
    caches = [torch.zeros(2, 2, 80, 32) for _ in range(2)]
    arguments = (k, v, *caches, q[:, :, :1].expand(-1, -1, 53, -1).contiguous(), None, None, used, None, None, None, torch.from_numpy(COS), torch.from_numpy(SIN))
    long = tuple(x.repeat(2, 1) if x is arguments[-1] or x is arguments[-2] else x for x in arguments)
    assert set(torch.library.opcheck(torch.ops.greenfast.append.default, long).values()) == {"SUCCESS"}

    def step(k, v, k_cache, v_cache, q, used):
        q = greenfast.append(k, v, k_cache, v_cache, q=q, used_kv=used, cos=long[-2], sin=long[-1])
        out, lse = greenfast.attention(q, k_cache, v_cache, used_kv=used + 53, causal=True, align="bottom_right", return_lse=True)
        return greenfast.merge(out, lse, out * 2, lse)[0]

    torch._dynamo.reset()
    made = []
    for function in (step, torch.compile(step, fullgraph=True)):
        caches = [torch.zeros(2, 2, 80, 32) for _ in range(2)]
        made.append((function(k, v, *caches, long[4], used), *caches))
    assert all(torch.equal(x, y) for x, y in zip(*made)) and made[0][1].any()
    with pytest.raises(NotImplementedError, match="gradients through greenfast.merge"):
        greenfast.merge(a.clone().requires_grad_(), lse_a, a, lse_a)
    with pytest.raises(NotImplementedError, match="gradients through greenfast.append"):
        greenfast.append(k.clone().requires_grad_(), v, *caches)


def test_refusals_have_the_words_of_the_call():
    """Members of the library's problem that a caller of Python never named are not all that a message says."""
    q, kv, cu = np.ones((2, 4, 32), np.float32), np.ones((2, 20, 32), np.float32), np.array([0, 4], I32)
    options = dict(cu_q=cu, cu_kv=np.array([0, 20], I32), max_q=4)
    with pytest.raises(ValueError, match="sequence 0 has 20 rows by cu_kv: 10 is the most that any may have .*max_kv"):
        greenfast.attention(q, kv, kv, **options, max_kv=10)
    with pytest.raises(ValueError, match="cu_q\\[1\\] is 4: 3 rows are there"):
        greenfast.attention(np.ones((2, 3, 32), np.float32), kv, kv, **{**options, "max_q": 3})
    with pytest.raises(ValueError, match="max_splits is -3"):
        greenfast.attention(q, kv, kv, **options, max_splits=-3)
    new, cache = np.ones((1, 2, 3, 32), np.float32), np.ones((1, 2, 8, 32), np.float32)
    with pytest.raises(ValueError, match="q is given without cos and sin: append only turns it; pass them, or leave q out"):
        greenfast.append(new, new, cache, cache.copy(), q=new)
    with pytest.raises(ValueError, match="sequence 0 would have 9 keys, 6 by used_kv and 3 new ones: the cache has room for 8"):
        greenfast.append(new, new, cache, cache.copy(), used_kv=np.array([6], I32))
    with pytest.raises(ValueError, match="sequence 0 has 3 new tokens: 2 is the most that any may have .*max_new"):
        greenfast.append(new[0], new[0], cache, cache.copy(), cu_new=np.array([0, 3], I32), max_new=2)
