"""FlashAttention-3's names."""
import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import greenfast  # noqa: E402
import reference  # noqa: E402
from greenfast import flash_attn_interface as fa  # noqa: E402
from greenfast.flash_attn_interface import flash_attn_func, flash_attn_qkvpacked_func  # noqa: E402

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
MASKS = [
    ({}, {}), ({"causal": True}, {"right": 0}), ({"window_size": (4, 2)}, {"left": 4, "right": 2}),
    ({"window_size": (4, -1), "causal": True}, {"left": 4, "right": 0}), ({"softcap": 3.0, "softmax_scale": 0.2}, {"softcap": 3.0, "scale": 0.2}),
    ({"attention_chunk": 6, "causal": True}, {"chunk": 6, "right": 0}), ({"s_aux": SINKS}, {"sinks": SINKS.numpy()}),
    ({"learnable_sink": SINKS.bfloat16(), "causal": True, "num_splits": 3}, {"sinks": SINKS.numpy(), "right": 0}),
]
# The parameters of hopper/flash_attn_interface.py, in its order; behind them come those of its forks.
PARAMETERS = {
    "flash_attn_func": "q k v softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa "
                       "deterministic sm_margin return_attn_probs",
    "flash_attn_qkvpacked_func": "qkv softmax_scale causal q_descale k_descale v_descale window_size attention_chunk softcap deterministic "
                                 "num_heads_q sm_margin return_attn_probs",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k softmax_scale causal qv q_descale "
                              "k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa deterministic sm_margin "
                              "return_attn_probs",
    "flash_attn_with_kvcache": "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table cu_seqlens_q "
                               "cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal window_size "
                               "attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse",
    "flash_attn_combine": "out_partial lse_partial out out_dtype",
}


def inputs():
    return tuple(torch.from_numpy(x).transpose(1, 2).contiguous() for x in reference.inputs(rows=20, keys=33))


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("ours, theirs", MASKS)
def test_masks_are_aligned_bottom_right(ours, theirs):
    q, k, v = inputs()
    out, lse = flash_attn_func(q, k, v, return_attn_probs=True, **ours)
    want, want_lse = reference.attention(*(x.transpose(1, 2) for x in (q, k, v)), bottom_right=True, **theirs)
    assert out.shape == q.shape and out.is_contiguous()
    torch.testing.assert_close(out.transpose(1, 2).double(), torch.from_numpy(want), atol=3e-6, rtol=0)
    torch.testing.assert_close(lse.double(), torch.from_numpy(want_lse), atol=3e-6, rtol=0)
    assert flash_attn_func(q, k, v, out=out.zero_(), **ours) is out and out.any()


def test_packed_qkv_is_three_views():
    qkv = torch.randn(2, 9, 3, 4, 16)
    assert torch.equal(flash_attn_qkvpacked_func(qkv, causal=True), flash_attn_func(*qkv.unbind(2), causal=True))
    grouped = torch.randn(2, 9, 8, 16)
    assert torch.equal(flash_attn_qkvpacked_func(grouped, num_heads_q=4), flash_attn_func(grouped[:, :, :4], grouped[:, :, 4:6], grouped[:, :, 6:]))
    with pytest.raises(ValueError, match="num_heads_q"):
        flash_attn_qkvpacked_func(grouped)


@pytest.mark.parametrize("ours, theirs", MASKS)
@pytest.mark.parametrize("used", [False, True])
def test_packed_sequences_are_each_alone(ours, theirs, used):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 24, 32), (2, 40, 32), (2, 40, 16)))
    cu_q, cu_k = np.array([0, 9, 9, 24], np.int32), np.array([0, 30, 33, 40], np.int32)
    lengths = dict(used_q=np.array([7, 0, 15], np.int32), used_kv=np.array([30, 2, 6], np.int32)) if used else {}
    tensors = [torch.from_numpy(x).transpose(0, 1).contiguous() for x in (q, k, v)]
    out, lse = fa.flash_attn_varlen_func(
        *tensors, torch.from_numpy(cu_q), torch.from_numpy(cu_k), 15, 30, return_attn_probs=True, **ours,
        **{name: torch.from_numpy(x) for name, x in zip(("seqused_q", "seqused_k"), lengths.values())})
    assert out.shape == (24, 4, 16) and lse.shape == (4, 24)
    for where, want, want_lse in reference.sequences(q, k, v, cu_q=cu_q, cu_kv=cu_k, bottom_right=True, **lengths, **theirs):
        np.testing.assert_allclose(out.transpose(0, 1)[where], want, atol=3e-6)
        np.testing.assert_allclose(lse[where], want_lse, atol=3e-6)


@pytest.mark.parametrize("name", ["page_table", "block_table"])
def test_packed_queries_read_pages(name):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 9, 32), (6, 2, 8, 32), (6, 2, 8, 32)))
    table, used, cu = np.array([[5, 0, 2], [3, 9, 9]], np.int32), np.array([20, 8], np.int32), np.array([0, 8, 9], np.int32)
    q_, k_, v_ = (torch.from_numpy(x).transpose(-3, -2).contiguous() for x in (q, k, v))
    out = fa.flash_attn_varlen_func(q_, k_, v_, torch.from_numpy(cu), None, 8, 24, seqused_k=torch.from_numpy(used), causal=True,
                                    **{name: torch.from_numpy(table)})
    for where, want, _ in reference.sequences(q, k, v, cu_q=cu, used_kv=used, page_table=table, right=0, bottom_right=True):
        np.testing.assert_allclose(out.transpose(0, 1)[where], want, atol=3e-6)
    with pytest.raises(ValueError, match="cu_seqlens_k is given with page_table"):
        fa.flash_attn_varlen_func(q_, k_, v_, torch.from_numpy(cu), torch.from_numpy(cu), 8, 24, page_table=torch.from_numpy(table))


def rotated(x, positions, cos, sin, interleaved):
    """[S, H, D] with the first 2 * width elements turned, by the definition in complex numbers."""
    width = cos.shape[1]
    first, second = (slice(0, 2 * width, 2), slice(1, 2 * width, 2)) if interleaved else (slice(0, width), slice(width, 2 * width))
    number = torch.complex(x[..., first], x[..., second]) * torch.complex(cos[positions], sin[positions])[:, None]
    x = x.clone()
    x[..., first], x[..., second] = number.real, number.imag
    return x


@pytest.mark.parametrize("rotary", [None, True, False])
@pytest.mark.parametrize("where", ["dense", "index", "pages"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mask", [MASKS[1], MASKS[3], MASKS[5], MASKS[7]])
def test_a_cache_grows_and_is_attended_to(rotary, where, packed, mask):
    ours, theirs = mask
    torch.manual_seed(0)
    before, leftpad, counts = ints(5, 0, 13), ints(2, 0, 1), [3, 3, 3] if not packed else [3, 4, 1]
    lengths = [int(b) + c for b, c in zip(before, counts)]
    starts = np.cumsum([0, *counts])
    room, page = 24, 8
    logical = [(torch.randn(room, 2, 32), torch.randn(room, 2, 16)) for _ in range(3)]
    k, v, q = torch.randn(sum(counts), 2, 32), torch.randn(sum(counts), 2, 16), torch.randn(sum(counts), 4, 32)
    angles = torch.outer(torch.arange(32.0), 10.0 ** -torch.linspace(0, 2, 8))
    cos, sin = angles.cos(), angles.sin()
    table, index = torch.randperm(10)[:9].view(3, 3).int(), ints(3, 0, 2)
    caches = [torch.full((10, page, 2, d) if where == "pages" else (4 if where == "index" else 3, room, 2, d), torch.nan) for d in (32, 16)]
    for b, n in enumerate(before.tolist()):
        for cache, own in zip(caches, logical[b]):
            for key in range(n):
                if where == "pages":
                    cache[table[b, key // page], key % page] = own[key]
                else:
                    cache[index[b] if where == "index" else b, key] = own[key]
    options = dict(cache_seqlens=before, cache_leftpad=leftpad, return_softmax_lse=True, **ours)
    options |= {"pages": dict(page_table=table), "index": dict(cache_batch_idx=index), "dense": {}}[where]
    options |= dict(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=rotary) if rotary is not None else {}
    shape = (lambda x: x) if packed else lambda x: x.unflatten(0, (3, 3))
    options |= dict(cu_seqlens_q=torch.from_numpy(starts).int(), cu_seqlens_k_new=torch.from_numpy(starts).int(), max_seqlen_q=4) if packed else {}
    out, lse = fa.flash_attn_with_kvcache(shape(q), *caches, shape(k), shape(v), **options)
    for b in range(3):
        rows = slice(starts[b], starts[b + 1])
        new_k, new_q, at = k[rows], q[rows], torch.arange(int(before[b]), lengths[b])
        if rotary is not None:
            new_k, new_q = (rotated(x, at, cos, sin, rotary) for x in (new_k, new_q))
        whole = [torch.cat([own[:before[b]], new]) for own, new in zip(logical[b], (new_k, v[rows]))]
        want, want_lse = reference.attention(new_q.transpose(0, 1)[None], *(x.transpose(0, 1)[None] for x in whole), bottom_right=True,
                                             start=int(leftpad[b]), **theirs)
        own_out, own_lse = (out[rows], lse[:, rows]) if packed else (out[b], lse[b])
        np.testing.assert_allclose(own_out.transpose(0, 1), want[0], atol=5e-6)
        np.testing.assert_allclose(own_lse, want_lse[0], atol=5e-6)


def test_a_cache_is_read_without_new_keys():
    q, k, v = inputs()
    want = flash_attn_func(q, k[:, :21], v[:, :21], causal=True)
    for lengths in (21, ints(21, 21)):
        assert torch.equal(fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True), want)
    assert torch.equal(fa.flash_attn_with_kvcache(q, k, v), flash_attn_func(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_combine(parts, dtype):
    generator = torch.Generator().manual_seed(parts)
    out_partial = torch.randn(parts * 2, 2, 4, 9, 16, generator=generator).transpose(2, 3)[:parts]
    lse_partial = torch.randn(parts, 2, 8, 9, generator=generator).transpose(2, 3)[..., :4].clone()
    lse_partial[0, 0, 3] = -torch.inf
    lse_partial[:, 1, 5] = -torch.inf
    out, lse = fa.flash_attn_combine(out_partial, lse_partial, out_dtype=dtype)
    want_lse = lse_partial.double().logsumexp(0)
    weights = (lse_partial.double() - want_lse).exp().nan_to_num(0.0)
    assert out.dtype == dtype and out.shape == (2, 9, 4, 16)
    torch.testing.assert_close(out.double(), (weights[..., None] * out_partial).sum(0), atol=1e-6 if dtype == torch.float32 else 2e-3, rtol=1e-3)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-6, rtol=1e-6)
    given = torch.empty(2, 9, 4, 16)
    assert fa.flash_attn_combine(out_partial, lse_partial, given)[0] is given
    with pytest.raises(ValueError, match="lse_partial"):
        fa.flash_attn_combine(out_partial, lse_partial[..., :3])


@pytest.mark.parametrize("name, value", [("qv", torch.ones(1)), ("sm_margin", 4), ("num_splits", -1)])
def test_what_is_not_offered_is_named(name, value):
    with pytest.raises(NotImplementedError, match=name):
        flash_attn_func(*inputs(), **{name: value})
    with pytest.raises(NotImplementedError, match=name):
        fa.flash_attn_with_kvcache(*inputs(), **{name: value})


@pytest.mark.parametrize("options, error, words", [
    (dict(rotary_seqlens=ints(1, 1)), NotImplementedError, "rotary_seqlens"), (dict(k="k"), ValueError, "k and v are given together"),
    (dict(k="k", v="v"), ValueError, "cache_seqlens is None"), (dict(rotary_cos=torch.ones(9, 4)), ValueError, "rotary_cos is given without k"),
    (dict(cu_seqlens_k_new=ints(0, 1)), ValueError, "cu_seqlens_k_new is given without k"),
    (dict(k="k", v="v", cache_seqlens=33), ValueError, "sequence 0 would have 35 keys"),
    (dict(k="k", v="v", cache_seqlens=3, cache_batch_idx=ints(1, 1)), ValueError, "row 1 of the cache"),
    (dict(k="k", v="v", cache_seqlens=3, rotary_cos=torch.ones(40, 4), rotary_sin=torch.ones(40, 4)), NotImplementedError, "of the tokens of k"),
    (dict(k="k", v="v", cache_seqlens=3, rotary_cos=torch.ones(40, 4), rotary_sin=torch.ones(40, 4), q="q"), NotImplementedError, "causal=False"),
    (dict(s_aux=SINKS, learnable_sink=SINKS), ValueError, "both given"), (dict(cache_seqlens=torch.tensor([3, 4])), TypeError, "used_kv is int64"),
    (dict(page_table=ints(0, 1), block_table=ints(0, 1)), ValueError, "both given"),
])
def test_bad_calls_with_a_cache_are_named_and_write_nothing(options, error, words):
    q, k, v = inputs()
    fresh = {"k": k[:, :2].clone(), "v": v[:, :2].clone(), "q": q[:, :2].clone()}
    kept = k.clone(), v.clone()
    options = {name: fresh[x] if isinstance(x, str) else x for name, x in options.items()}
    with pytest.raises(error, match=words):
        fa.flash_attn_with_kvcache(options.pop("q", q), k, v, **options)
    assert torch.equal(k, kept[0]) and torch.equal(v, kept[1])


def test_gradients_of_packed_sequences_are_refused_by_name():
    q = torch.randn(8, 4, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="cu_q"):
        fa.flash_attn_varlen_func(q, q, q, ints(0, 8), ints(0, 8), 8, 8)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_flash_attentions_by_name_and_order(name):
    parameters = inspect.signature(getattr(fa, name)).parameters
    theirs = PARAMETERS[name].split()
    assert list(parameters)[:len(theirs)] == theirs
    assert {x.kind for x in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}  # transformers finds them by name


@pytest.mark.parametrize("lengths", [{}, {"cache_seqlens": 30}])
def test_e4m3_with_descales_gives_bf16(lengths):
    q, k, v = inputs()
    (q8, qs), (k8, ks), (v8, vs) = (greenfast.quantize_e4m3(x, layout="bshd") for x in (q[:, :, ::2].contiguous(), k, v))
    function = fa.flash_attn_with_kvcache if lengths else flash_attn_func
    out = function(q8, k8, v8, q_descale=qs, k_descale=ks, v_descale=vs, **lengths)
    want = function(q[:, :, ::2].contiguous(), k, v, **lengths)
    assert out.dtype == torch.bfloat16 and (out.float() - want).abs().max() < 0.15


def test_descales_are_left_out_and_expanded_as_flash_attentions():
    q8, k8, v8 = (greenfast.quantize_e4m3(x[:, :8].contiguous(), layout="bshd", per="tensor")[0] for x in (inputs()[0][:, :, ::2], *inputs()[1:]))
    half, one = torch.full((2, 2), 0.5), torch.ones(2, 2)
    for given in ({"k_descale": half}, {"q_descale": half, "v_descale": half}, {"v_descale": torch.tensor(0.5).expand(2, 2)},
                  {name: torch.tensor([[0.5]]).expand(2, 2) for name in ("q_descale", "k_descale", "v_descale")}):
        whole = {name: half if name in given else one for name in ("q_descale", "k_descale", "v_descale")}
        assert torch.equal(flash_attn_func(q8, k8, v8, 1e-4, **given), flash_attn_func(q8, k8, v8, 1e-4, **whole))
    assert not torch.equal(flash_attn_func(q8, k8, v8, 1e-4, k_descale=half), flash_attn_func(q8, k8, v8, 1e-4))


@pytest.mark.parametrize("window", [(None, None), [-1, -1], (4, None), (None, 0)])
def test_no_bound_is_written_in_either_way(window):
    q, k, v = inputs()
    assert torch.equal(flash_attn_func(q, k, v, window_size=window), flash_attn_func(q, k, v, window_size=tuple(-1 if x is None else x for x in window)))


def test_a_step_of_decoding_compiles():
    torch._dynamo.reset()

    def step(q, k, v, k_cache, v_cache, lengths):
        return fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True) * 2

    compiled = torch.compile(step, fullgraph=True)
    q, k, v = torch.randn(2, 1, 4, 32), torch.randn(2, 1, 2, 32), torch.randn(2, 1, 2, 32)
    caches = [[torch.zeros(2, 16, 2, 32) for _ in range(2)] for _ in range(2)]
    for n in range(3):
        ours, theirs = (function(q + n, k + n, v + n, *cache, ints(n, n + 4)) for function, cache in zip((compiled, step), caches))
        assert torch.equal(ours, theirs) and torch.equal(caches[0][0], caches[1][0])
