"""diffusers: a small Flux with random weights, the backend greenfast beside the native one."""
import warnings

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

import greenfast.diffusers  # noqa: E402


@pytest.fixture(scope="module")
def flux():
    greenfast.diffusers.register()
    greenfast.diffusers.register()
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
                                            num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8]).eval()


def step(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return model(hidden_states=torch.randn(1, 16, 4, generator=generator), encoder_hidden_states=torch.randn(1, 9, 32, generator=generator),
                     pooled_projections=torch.randn(1, 32, generator=generator), timestep=torch.tensor([1.0]), img_ids=torch.zeros(16, 3),
                     txt_ids=torch.zeros(9, 3)).sample


def test_a_step_of_flux_is_the_native_one(flux, monkeypatch):
    expected = step(flux)
    calls = []

    def counted(name):
        def call(*arguments, real=getattr(greenfast.torch._core, name)):
            answer = real(*arguments)
            if answer is not None:
                calls.append(name)
            return answer
        monkeypatch.setattr(greenfast.torch._core, name, call)

    counted("attention")
    counted("plain_sdpa")
    with warnings.catch_warnings():
        warnings.simplefilter("error", greenfast.torch.FallbackWarning)
        flux.set_attention_backend("greenfast")
        ours = step(flux)
        flux.reset_attention_backend()
    assert len(calls) == 2  # one in each block
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_it_is_chosen_for_a_while(flux):
    from diffusers.models.attention_dispatch import attention_backend, dispatch_attention_fn
    q, k, v = (torch.randn(2, 7, 4, 16) for _ in range(3))
    expected = dispatch_attention_fn(q, k, v)
    with attention_backend("greenfast"):
        torch.testing.assert_close(dispatch_attention_fn(q, k, v), expected)


@pytest.mark.parametrize("mask", [torch.arange(7)[None] < torch.tensor([[7], [3]]), torch.rand(2, 1, 7, 7) < 0.5, torch.randn(7, 7)],
                         ids=["lengths", "bool", "float"])
def test_masks_are_computed_here(flux, mask):
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    q, k, v = (torch.randn(2, 7, 4, 16) for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", greenfast.torch.FallbackWarning)
        greenfast.torch._said.clear()
        ours = dispatch_attention_fn(q, k, v, attn_mask=mask, backend="greenfast")
    torch.testing.assert_close(ours, dispatch_attention_fn(q, k, v, attn_mask=mask))


def test_dropout_goes_to_torch_and_the_rest_is_refused(flux):
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    q, k, v = (torch.randn(2, 7, 4, 16) for _ in range(3))
    greenfast.torch._said.clear()
    with pytest.warns(greenfast.torch.FallbackWarning, match="dropout"):
        dispatch_attention_fn(q, k, v, dropout_p=0.5, backend="greenfast")
    with pytest.raises(NotImplementedError, match="return_lse"):
        dispatch_attention_fn(q, k, v, attention_kwargs={"return_lse": True}, backend="greenfast")
