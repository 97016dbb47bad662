"""FlashAttention-3's names."""
import inspect

import pytest

torch = pytest.importorskip("torch")

import reference  # noqa: E402
from greenfast.flash_attn_interface import flash_attn_func, flash_attn_qkvpacked_func  # noqa: E402


def inputs():
    return tuple(torch.from_numpy(x).transpose(1, 2).contiguous() for x in reference.inputs(rows=20, keys=33))


@pytest.mark.parametrize("ours, theirs", [
    ({}, {}), ({"causal": True}, {"right": 0}), ({"window_size": (4, 2)}, {"left": 4, "right": 2}),
    ({"window_size": (4, -1), "causal": True}, {"left": 4, "right": 0}), ({"softcap": 3.0, "softmax_scale": 0.2}, {"softcap": 3.0, "scale": 0.2}),
])
def test_masks_are_aligned_bottom_right(ours, theirs):
    q, k, v = inputs()
    out, lse = flash_attn_func(q, k, v, return_attn_probs=True, **ours)
    want, want_lse = reference.attention(*(x.transpose(1, 2) for x in (q, k, v)), bottom_right=True, **theirs)
    assert out.shape == q.shape and out.is_contiguous()
    torch.testing.assert_close(out.transpose(1, 2).double(), torch.from_numpy(want), atol=3e-6, rtol=0)
    torch.testing.assert_close(lse.double(), torch.from_numpy(want_lse), atol=3e-6, rtol=0)


def test_packed_qkv_is_three_views():
    qkv = torch.randn(2, 9, 3, 4, 16)
    assert torch.equal(flash_attn_qkvpacked_func(qkv, causal=True), flash_attn_func(*qkv.unbind(2), causal=True))
    grouped = torch.randn(2, 9, 8, 16)
    assert torch.equal(flash_attn_qkvpacked_func(grouped, num_heads_q=4), flash_attn_func(grouped[:, :, :4], grouped[:, :, 4:6], grouped[:, :, 6:]))
    with pytest.raises(ValueError, match="num_heads_q"):
        flash_attn_qkvpacked_func(grouped)


@pytest.mark.parametrize("name, value", [("qv", torch.ones(1)), ("attention_chunk", 8), ("sm_margin", 4), ("num_splits", 3)])
def test_what_is_not_offered_is_named(name, value):
    with pytest.raises(NotImplementedError, match=name):
        flash_attn_func(*inputs(), **{name: value})


def test_transformers_finds_parameters_by_name():
    for function in (flash_attn_func, flash_attn_qkvpacked_func):
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_e4m3_with_descales_gives_bf16():
    import greenfast
    q, k, v = inputs()
    (q8, qs), (k8, ks), (v8, vs) = (greenfast.quantize_e4m3(x, layout="bshd") for x in (q[:, :, ::2].contiguous(), k, v))
    out = flash_attn_func(q8, k8, v8, q_descale=qs, k_descale=ks, v_descale=vs)
    want = flash_attn_func(q[:, :, ::2].contiguous(), k, v)
    assert out.dtype == torch.bfloat16 and (out.float() - want).abs().max() < 0.15
