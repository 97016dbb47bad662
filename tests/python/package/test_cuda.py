"""What needs a GPU: tools/gpu/python runs it there."""
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import greenfast  # noqa: E402
import greenfast.torch as gt  # noqa: E402
import reference  # noqa: E402
from greenfast import flash_attn_interface as fa  # noqa: E402
from test_arrays import by_codes  # noqa: E402
from test_torch import compiled_operators, gradients  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SDPA = torch.nn.functional.scaled_dot_product_attention
TYPES = [(torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)]


def tensors(dtype=torch.float16, **shape):
    shape = {"width": 64, **shape}
    return tuple(torch.from_numpy(x).to("cuda", dtype) for x in reference.inputs(**shape))


@pytest.fixture(params=["table", "attributes"])
def either_way(request, monkeypatch):
    if request.param == "attributes":
        monkeypatch.setattr(gt, "_DIRECT", False)
    elif not gt._DIRECT:
        pytest.skip("this PyTorch has no table")


@pytest.mark.parametrize("dtype, error", TYPES)
@pytest.mark.parametrize("ours, theirs", [
    ({}, {}), ({"causal": True, "align": "top_left"}, {"right": 0}), ({"causal": True, "align": "bottom_right"}, {"right": 0, "bottom_right": True}),
    ({"window": (9, 4), "align": "bottom_right"}, {"left": 9, "right": 4, "bottom_right": True}), ({"softcap": 4.0}, {"softcap": 4.0}),
])
@pytest.mark.parametrize("width", [64, 96, 128, 256])
def test_attention_is_the_definitions(either_way, dtype, error, ours, theirs, width):
    q, k, v = tensors(dtype, rows=190, keys=333, width=width)
    out, lse = greenfast.attention(q, k, v, return_lse=True, **ours)
    want, want_lse = reference.attention(*(x.float().cpu().numpy() for x in (q, k, v)), **theirs)
    np.testing.assert_allclose(out.float().cpu(), want, atol=error)
    np.testing.assert_allclose(lse.cpu(), want_lse, atol=error)


def test_layouts_give_what_bhsd_gives():
    q, k, v = tensors(rows=128, keys=128, heads_kv=4)
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2)
    out = greenfast.attention(*qkv.unbind(2), causal=True, layout="bshd")
    torch.testing.assert_close(out.transpose(1, 2), greenfast.attention(q, k, v, causal=True), atol=2e-3, rtol=0)


def test_work_is_on_the_current_stream():
    q, k, v = tensors(rows=512, keys=512)
    expected = greenfast.attention(q, k, v)
    stream, out = torch.cuda.Stream(), torch.empty_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = q * 1
        greenfast.attention(late, k, v, out=out)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_a_captured_call_replays_with_new_inputs():
    q, k, v = tensors(rows=256, keys=256)
    greenfast.attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = torch.empty_like(q)
        greenfast.attention(q, k, v, out=given, causal=True)
        made = greenfast.attention(q, k, v, causal=True)
    for seed in range(3):
        q.normal_(generator=torch.Generator("cuda").manual_seed(seed))
        graph.replay()
        expected = greenfast.attention(q, k, v, causal=True)
        assert torch.equal(given, expected) and torch.equal(made, expected)


@pytest.mark.parametrize("dtype, error", TYPES)
@pytest.mark.parametrize("heads_kv", [1, 2, 4])
@pytest.mark.parametrize("is_causal, rows, keys", [(False, 190, 333), (False, 256, 256), (True, 256, 256), (True, 190, 190)])
def test_gradients_are_as_near_to_fp64_as_sdpas(dtype, error, heads_kv, is_causal, rows, keys):
    q, k, v = tensors(dtype, rows=rows, keys=keys, heads_kv=heads_kv)
    options = dict(is_causal=is_causal, enable_gqa=True)
    ours = gradients(gt.scaled_dot_product_attention, q, k, v, fallback="error", **options)
    theirs = gradients(SDPA, q, k, v, **options)
    exact = gradients(SDPA, q.double(), k.double(), v.double(), **options)
    for x, y, z in zip(ours, theirs, exact):
        assert x.dtype == dtype and (x - z).norm() <= 1.5 * (y - z).norm() + error * 0.1 * z.norm()


def test_gradients_that_are_not_exact_are_named():
    q, k, v = tensors(rows=64, keys=96)
    with pytest.raises(NotImplementedError, match="unequal lengths"):
        greenfast.attention(q.requires_grad_(), k, v, causal=True, align="top_left")
    with pytest.raises(NotImplementedError, match="float32"):
        greenfast.attention(*(x.float().detach().requires_grad_() for x in (q, k, v)))


def test_compiled_without_breaks_with_dynamic_shapes_and_graphs():
    torch._dynamo.reset()

    def model(q, k, v):
        return gt.scaled_dot_product_attention(q * 2, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2) + 1

    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(model, fullgraph=True, dynamic=mode == "default", mode=mode)
        for rows in (128, 192, 257):
            q, k, v = tensors(rows=rows, keys=rows)
            with torch.no_grad():
                torch.testing.assert_close(compiled(q, k, v), model(q, k, v), atol=2e-3, rtol=1e-3)
    compiled = torch.compile(model, fullgraph=True)
    q, k, v = tensors(rows=192, keys=192)
    for x, y in zip(gradients(compiled, q, k, v), gradients(model, q, k, v)):
        torch.testing.assert_close(x, y, atol=2e-2, rtol=2e-2)


def test_masks_whose_rows_begin_anywhere_with_tiles_without_keys_between():
    """Four tiles a CTA of an H100, of which the first alone has keys: warps that copy masks may wait for no tile with a block in hand."""
    heads = torch.cuda.get_device_properties(0).multi_processor_count
    torch.manual_seed(0)
    q = torch.randn(4, heads, 64, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(4, heads, 65, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    used = torch.tensor([64, 0, 0, 0], device="cuda", dtype=torch.int32)
    mask = torch.rand(4, heads, 64, 65, device="cuda") < 0.7
    out = greenfast.attention(q, k, v, used_kv=used, mask=mask, variant="cuda.sm90.packed")
    visible = mask[:1, :, :, :64]
    scores = (q[:1].float() @ k[:1, :, :64].float().transpose(2, 3) / 8).masked_fill(~visible, -torch.inf)
    torch.testing.assert_close(out[:1].float(), torch.softmax(scores, -1) @ v[:1, :, :64].float(), atol=2e-2, rtol=2e-2)
    assert not out[1:].any()


def test_compiled_calls_take_the_operator_without_gradients():
    """Dynamo of torch 2.11 takes torch.compiler.is_exporting() for true; the operator that an exported program needs costs twice as much."""
    assert compiled_operators(*tensors(rows=64, keys=64)) == ["greenfast.sdpa.default"]


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="Hopper's kernels")
@pytest.mark.parametrize("variant", ["cuda.sm90.prefill", "cuda.sm90.packed"])
@pytest.mark.parametrize("rows", [1, 64, 300])
def test_first_scores_beyond_fp32_as_octaves_leave_the_others(variant, rows):
    """The block that comes first has finite scores that no float holds as octaves, the second large ones: a row's base is that of
    the second, of millions, so the row is done again; and what it sees is the third."""
    q, k = torch.zeros(1, 1, rows, 128), torch.zeros(1, 1, 384, 128)
    v = torch.randn(1, 1, 384, 128, generator=torch.Generator().manual_seed(1))
    q[..., 0] = 2.0**64
    k[..., 256:, 0], k[..., 128:256, 0] = -1.5 * 2.0**63, -5 * 2.0**-26
    q, k, v = (x.to("cuda", torch.bfloat16) for x in (q, k, v))
    out, lse = greenfast.attention(q, k, v, scale=1.0, variant=variant, return_lse=True)
    torch.testing.assert_close(out.float(), v[..., :128, :].float().mean(2, keepdim=True).expand_as(out), atol=4e-3, rtol=0)
    torch.testing.assert_close(lse, torch.full_like(lse, np.log(128)))


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="Hopper's kernels")
@pytest.mark.parametrize("softcap", [0.5, 6.5, 1e8])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("dtype, error", TYPES)
def test_prompts_of_sequences_with_a_softcap_have_hoppers_kernel(dtype, error, width, softcap):
    lengths = [130, 1, 333]
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(4, sum(lengths), width, device="cuda", generator=torch.Generator("cuda").manual_seed(i)).to(dtype) for i in range(3))
    words = dict(causal=True, align="bottom_right", softcap=softcap, cu_q=cu, cu_kv=cu, max_q=333, max_kv=333)
    assert greenfast.explain(q, k, v, **words).variant == "cuda.sm90.packed"
    out = greenfast.attention(q, k, v, **words)
    for begin, length in zip(cu.tolist(), lengths):
        part = slice(begin, begin + length)
        want, _ = reference.attention(*(x[None, :, part].float().cpu().numpy() for x in (q, k, v)), right=0, bottom_right=True, softcap=softcap)
        np.testing.assert_allclose(out[None, :, part].float().cpu(), want, atol=error)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="Hopper's kernels")
@pytest.mark.parametrize("width", [64, 128, 256])
def test_hidden_keys_and_other_rows_do_not_move_a_softcaps_bits(width):
    """Whether a warp takes the short way to a softcap follows from all scores that it has, hidden ones too: the bits may not."""
    generator = torch.Generator("cuda").manual_seed(width)
    q, k, v = (torch.randn(2, 2, 300, width, device="cuda", generator=generator).bfloat16() for _ in range(3))
    used = torch.tensor([40, 260], dtype=torch.int32, device="cuda")

    def run():
        return greenfast.attention(q, k, v, causal=True, align="top_left", softcap=6.5, used_kv=used, variant="cuda.sm90.packed", return_lse=True)

    want = run()
    for b, first in enumerate(used.tolist()):
        k[b, :, first:] = torch.tensor([1e-3, 1e4, torch.nan], device="cuda")[torch.arange(300 - first, device="cuda") % 3, None].bfloat16()
    far = k[:, :, 30].clone()
    k[:, :, 30] = 1e4  # far away for the rows that see it
    got = run()
    for x, y in zip(want, got):
        assert torch.equal(x[:, :, :30], y[:, :, :30]) and not torch.equal(x[:, :, 30:], y[:, :, 30:])
    k[:, :, 30] = far
    assert all(torch.equal(x, y) for x, y in zip(want, run()))
    # One row of a warp's, in blocks that every row sees whole.
    q[1, :, 250] *= 100.0
    others = torch.arange(300, device="cuda") != 250
    for x, y in zip(want, run()):
        assert torch.equal(x[:, :, others], y[:, :, others]) and not torch.equal(x[1, :, 250], y[1, :, 250])


def over_pages(dtype, rows, width, width_v, page, heads=4):
    """Keys of three sequences in pages in a random order, NaN in every row that is nobody's: q, k, v, the words of the call,
    and what is expected of each sequence, O and LSE."""
    lengths = [331, 150, 202]
    entries = -(-max(lengths) // page)
    generator = torch.Generator().manual_seed(page)
    table = torch.randperm(3 * entries + 5, generator=generator)[:3 * entries].view(3, entries).int()
    pools = [torch.full((3 * entries + 5, 2, page, wide), torch.nan) for wide in (width, width_v)]
    keys = [[torch.randn(2, length, wide, generator=generator).to(dtype).float() for length in lengths] for wide in (width, width_v)]
    for pool, sequences in zip(pools, keys):
        for b, x in enumerate(sequences):
            for j in range(x.shape[1]):
                pool[table[b, j // page], :, j % page] = x[:, j]
    q = torch.randn(3, heads, rows, width, generator=generator).to("cuda", dtype)
    table = torch.where(torch.arange(entries)[None] * page < torch.tensor(lengths)[:, None], table, 1 << 30).int()
    words = dict(causal=True, align="bottom_right", used_kv=torch.tensor(lengths, dtype=torch.int32, device="cuda"), page_table=table.cuda(), max_kv=max(lengths))
    wanted = [reference.attention(q[b:b + 1].float().cpu().numpy(), keys[0][b][None].numpy(), keys[1][b][None].numpy(), right=0, bottom_right=True)
              for b in range(3)]
    return q, *(x.to("cuda", dtype) for x in pools), words, wanted


PAGED_TYPES = pytest.mark.parametrize("dtype, error", [*TYPES, (torch.float8_e4m3fn, 2e-3)])
HOPPERS = pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="Hopper's kernels")


@HOPPERS
@pytest.mark.parametrize("page", [1, 5, 12, 100])
@pytest.mark.parametrize("width, width_v", [(64, 64), (128, 128), (192, 128), (256, 256), (80, 40)])
@PAGED_TYPES
def test_prompts_over_pages_of_any_size_have_hoppers_kernel(dtype, error, width, width_v, page):
    bytes_of = dtype == torch.float8_e4m3fn
    if bytes_of and width_v == 40:
        width_v = 48  # rows of 16 bytes
    q, k, v, words, wanted = over_pages(dtype, 150, width, width_v, page)
    variant = "cuda.sm90.fp8_serving" if bytes_of else "cuda.sm90.packed"
    asked = {**words, "variant": variant}
    assert greenfast.explain(q, k, v, **words).variant == variant
    out = greenfast.attention(q, k, v, **asked)
    # Above head dim 160 an LSE of sums of e4m3 products is too coarse to be given.
    lse = None if bytes_of and width > 160 else greenfast.attention(q, k, v, return_lse=True, **asked)[1]
    for b, (want, want_lse) in enumerate(wanted):
        np.testing.assert_allclose(out[b:b + 1].float().cpu(), want, atol=error)
        if lse is not None:
            np.testing.assert_allclose(lse[b:b + 1].cpu(), want_lse, atol=10 * error if bytes_of else error)


@HOPPERS
@pytest.mark.parametrize("page", [1, 7, 12])
@pytest.mark.parametrize("width, width_v", [(64, 64), (128, 128), (80, 48)])
@pytest.mark.parametrize("rows", [5, 11])  # of 8 heads: warpgroups alternate, or share a tile
@PAGED_TYPES
def test_the_heads_of_a_group_over_pages_of_any_size(dtype, error, rows, width, width_v, page):
    q, k, v, words, wanted = over_pages(dtype, rows, width, width_v, page, heads=16)
    out, lse = greenfast.attention(q, k, v, return_lse=True, variant="cuda.sm90.grouped", **words)
    for b, (want, want_lse) in enumerate(wanted):
        np.testing.assert_allclose(out[b:b + 1].float().cpu(), want, atol=error)
        np.testing.assert_allclose(lse[b:b + 1].cpu(), want_lse, atol=10 * error if dtype == torch.float8_e4m3fn else error)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="torch 2.10 has the registry first")
def test_torchs_registry_where_it_selects_flash():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q, k, v = tensors(rows=256, keys=256, heads_kv=4)
    expected = greenfast.attention(q, k, v, causal=True)
    torch.nn.attention.activate_flash_attention_impl("greenfast")
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            assert torch.equal(SDPA(q, k, v, is_causal=True), expected)
            ours = gradients(SDPA, q, k, v, is_causal=True)
            dropped = SDPA(q, k, v, dropout_p=0.5)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert dropped.isfinite().all()
    for x, y in zip(ours, gradients(SDPA, q, k, v, is_causal=True)):
        torch.testing.assert_close(x, y, atol=2e-2, rtol=2e-2)


def test_devices_are_not_mixed():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="k lies on cpu"):
        greenfast.attention(q, k.cpu(), v)
    with pytest.raises(ValueError, match="out lies on cpu"):
        greenfast.attention(q, k, v, out=torch.empty(q.shape, dtype=q.dtype))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_of_another_device_than_the_current_one():
    q, k, v = tensors()
    there = [x.to("cuda:1") for x in (q, k, v)]
    assert torch.equal(greenfast.attention(*there).cpu(), greenfast.attention(q, k, v).cpu())


def test_fp32_goes_to_torch_and_says_so():
    q, k, v = (x.float() for x in tensors(heads_kv=4))
    gt._said.clear()
    with pytest.warns(gt.FallbackWarning, match="float32"):
        torch.testing.assert_close(gt.scaled_dot_product_attention(q, k, v), SDPA(q, k, v))


def test_cupy_shares_memory():
    q, k, v = tensors()
    expected = greenfast.attention(q, k, v)
    torch.cuda.synchronize()
    cupy = pytest.importorskip("cupy")
    out = greenfast.attention(*(cupy.from_dlpack(x) for x in (q, k, v)))
    cupy.cuda.get_current_stream().synchronize()
    assert isinstance(out, cupy.ndarray) and torch.equal(torch.from_dlpack(out), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_transformers_beside_sdpa():
    transformers = pytest.importorskip("transformers")
    import greenfast.hf
    greenfast.hf.register()
    config = transformers.Qwen3Config(vocab_size=128, hidden_size=256, intermediate_size=256, num_hidden_layers=3, num_attention_heads=8,
                                      num_key_value_heads=2, head_dim=64)
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa").to("cuda", torch.bfloat16).eval()
    ids = torch.randint(3, 128, (2, 300), device="cuda")
    logits = {}
    for name in ("eager", "sdpa", "greenfast"):
        model.set_attn_implementation(name)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", gt.FallbackWarning)
            logits[name] = model(input_ids=ids).logits.float()
    assert (logits["greenfast"] - logits["eager"]).norm() <= 2 * (logits["sdpa"] - logits["eager"]).norm()


# --- features: a kernel of this device computes them, or the library refuses by name ---------------------------------------

def attempt(words, function, *arguments, **options):
    """What the call returns; skips where every kernel of this device refuses the feature in the library's words."""
    try:
        return function(*arguments, **options)
    except NotImplementedError as error:
        assert words in str(error)
        pytest.skip(f"no kernel of this device: {words}")


MASK = torch.rand(190, 333, generator=torch.Generator().manual_seed(0)) < 0.5


@pytest.mark.parametrize("ours, theirs, words", [
    (dict(mask=MASK), dict(mask=MASK.numpy()), "mask"), (dict(sinks=torch.ones(4)), dict(sinks=np.ones(4)), "sinks"),
    (dict(mask=torch.where(MASK, 0.5, -torch.inf)), dict(mask=np.where(MASK.numpy(), 0.5, -np.inf)), "mask"),
    (dict(slopes=torch.ones(4) / 8, align="top_left"), dict(slopes=np.ones(4) / 8), "ALiBi"),
    (dict(chunk=64, causal=True, align="bottom_right"), dict(chunk=64, right=0, bottom_right=True), "chunk"),
])
@pytest.mark.parametrize("dtype, error", TYPES)
def test_features_are_the_definitions(either_way, dtype, error, ours, theirs, words):
    q, k, v = tensors(dtype, rows=190, keys=333, width=128)
    ours = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in ours.items()}
    out, lse = attempt(words, greenfast.attention, q, k, v, return_lse=True, **ours)
    want, want_lse = reference.attention(*(x.float().cpu().numpy() for x in (q, k, v)), **theirs)
    np.testing.assert_allclose(out.float().cpu(), want, atol=error)
    np.testing.assert_allclose(lse.cpu(), want_lse, atol=error)


@pytest.mark.parametrize("where", ["dense", "packed", "pages"])
def test_lengths_on_the_device_may_change_between_replays(where):
    cu, table = torch.tensor([0, 40, 100], dtype=torch.int32), torch.randperm(16).int().view(2, 8)
    if where == "dense":
        q, k, v = tensors(rows=16, keys=128)
        options = dict(used_kv=torch.tensor([128, 128], dtype=torch.int32))
    elif where == "packed":
        q, k, v = (x[0, :, :100].contiguous() for x in tensors(rows=100, keys=100))
        options = dict(cu_q=cu, cu_kv=cu.clone(), max_q=100, max_kv=100)
    else:
        q, k, v = tensors(rows=16)[0], *(torch.randn(16, 2, 16, 64, device="cuda", dtype=torch.float16) for _ in range(2))
        options = dict(used_kv=torch.tensor([128, 128], dtype=torch.int32), page_table=table)
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()} | dict(causal=True, align="bottom_right")
    attempt("", greenfast.attention, q, k, v, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = greenfast.attention(q, k, v, **options)
    for lengths in ([17, 90], [128, 1]):
        if where == "packed":
            options["cu_q"][1] = options["cu_kv"][1] = lengths[0]
        else:
            options["used_kv"].copy_(torch.tensor(lengths))
        made.fill_(torch.nan)
        graph.replay()
        assert torch.equal(made, greenfast.attention(q, k, v, **options))


@pytest.mark.parametrize("mask", [MASK, torch.where(MASK, 0.5, -torch.inf).half()], ids=["bool", "float"])
def test_sdpa_with_a_mask_is_torchs_whoever_computes_it(mask):
    q, k, v = tensors(rows=190, keys=333, heads_kv=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gt.FallbackWarning)
        out = gt.scaled_dot_product_attention(q, k, v, mask.cuda())
    torch.testing.assert_close(out, SDPA(q, k, v, mask.cuda()), atol=2e-3, rtol=0)


def test_a_cache_grows_on_the_device():
    k, v = (torch.randn(2, 3, 2, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    caches = [torch.zeros(2, 16, 2, 64, device="cuda", dtype=torch.float16) for _ in range(2)]
    used = torch.tensor([4, 0], dtype=torch.int32, device="cuda")
    attempt("append", greenfast.append, k, v, *caches, used_kv=used, layout="bshd")
    assert torch.equal(caches[0][0, 4:7], k[0]) and torch.equal(caches[1][1, :3], v[1]) and not caches[0][0, 7:].any()
    with pytest.raises(ValueError, match="cu_q lies on cpu"):
        greenfast.attention(k[0].transpose(0, 1), k, v, cu_q=torch.tensor([0, 3], dtype=torch.int32), layout="bhsd")


@pytest.mark.parametrize("dtype, error", TYPES)
def test_parts_of_the_keys_merge_on_the_device(dtype, error):
    q, k, v = tensors(dtype, rows=190, keys=333)
    parts = [x for a, b in ((0, 100), (100, 333)) for x in greenfast.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True)]
    out, lse = attempt("merge", greenfast.merge, *parts)
    want, want_lse = reference.attention(*(x.float().cpu().numpy() for x in (q, k, v)))
    np.testing.assert_allclose(out.float().cpu(), want, atol=error)
    np.testing.assert_allclose(lse.cpu(), want_lse, atol=error)
    swapped = greenfast.merge(*parts[2:], *parts[:2])
    assert torch.equal(swapped[0], out) and torch.equal(swapped[1], lse)
    # A part that is empty is not read.
    nothing = torch.full_like(parts[0], torch.nan), torch.full_like(parts[1], -torch.inf)
    alone = greenfast.merge(*parts[:2], *nothing)
    assert torch.equal(alone[0], parts[0]) and torch.equal(alone[1], parts[1])


@pytest.mark.parametrize("rotary", ["interleaved", "neox"])
@pytest.mark.parametrize("dtype", [dtype for dtype, _ in TYPES])
def test_append_on_the_device_puts_and_turns_as_on_the_cpu(dtype, rotary):
    draw = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, 3, 2, 64, generator=draw).to(dtype) for _ in range(2))
    q = torch.randn(2, 3, 4, 64, generator=draw).to(dtype)
    angles = torch.randn(32, 32, generator=draw)
    options = dict(used_kv=torch.tensor([5, 14], dtype=torch.int32), page_table=torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32),
                   cos=angles.cos(), sin=angles.sin())

    def run(device):
        pools = [torch.full((6, 7, 2, 64), 8.0, dtype=dtype, device=device) for _ in range(2)]
        turned = greenfast.append(k.to(device), v.to(device), *pools, q=q.to(device), rotary=rotary, layout="bshd",
                                  **{name: x.to(device) for name, x in options.items()})
        return [turned.cpu(), *(x.cpu() for x in pools)]

    for got, want in zip(attempt("append", run, "cuda"), run("cpu")):
        # One rounding apart at most, where products are fused in another order.
        torch.testing.assert_close(got, want, atol=1e-6, rtol=torch.finfo(dtype).eps)


# --- FlashAttention-3's names on the device -------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype, error", TYPES)
@pytest.mark.parametrize("rotary", [None, True, False])
@pytest.mark.parametrize("where", ["dense", "index", "pages"])
@pytest.mark.parametrize("packed", [False, True])
def test_flash_attentions_cache_grows_and_is_attended_to_as_on_the_cpu(dtype, error, rotary, where, packed):
    draw = torch.Generator().manual_seed(0)
    counts = [3, 4, 1] if packed else [3, 3, 3]
    q, k, v = (torch.randn(sum(counts), heads, 64, generator=draw).to(dtype) for heads in (8, 2, 2))
    lead = {"dense": (3, 24), "index": (4, 24), "pages": (10, 8)}[where]
    caches = [torch.randn(*lead, 2, 64, generator=draw).to(dtype) for _ in range(2)]
    angles = torch.outer(torch.arange(32.0), 10.0 ** -torch.linspace(0, 2, 16))
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    given = dict(cache_seqlens=torch.tensor([5, 0, 13], dtype=torch.int32), cache_leftpad=torch.tensor([2, 0, 1], dtype=torch.int32))
    given |= {"pages": dict(page_table=torch.randperm(10, generator=draw)[:9].view(3, 3).int()),
              "index": dict(cache_batch_idx=torch.tensor([3, 0, 2], dtype=torch.int32)), "dense": {}}[where]
    given |= dict(rotary_cos=angles.cos(), rotary_sin=angles.sin()) if rotary is not None else {}
    given |= dict(cu_seqlens_q=starts, cu_seqlens_k_new=starts.clone()) if packed else {}
    options = dict(causal=True, return_softmax_lse=True) | (dict(max_seqlen_q=4) if packed else {})
    options |= dict(rotary_interleaved=rotary) if rotary is not None else {}
    shape = (lambda x: x) if packed else lambda x: x.unflatten(0, (3, 3))

    def run(device):
        own = [x.to(device, copy=True) for x in caches]
        out, lse = fa.flash_attn_with_kvcache(shape(q).to(device), *own, shape(k).to(device), shape(v).to(device), **options,
                                              **{name: x.to(device) for name, x in given.items()})
        assert out.device.type == device and out.dtype == dtype
        return [x.cpu() for x in (out, lse, *own)]

    (out, lse, *grown), (want, want_lse, *expected) = attempt("", run, "cuda"), run("cpu")
    assert any(not torch.equal(x, y) for x, y in zip(grown, caches))
    for got, cache in zip(grown, expected):
        # One rounding apart at most, where products are fused in another order.
        torch.testing.assert_close(got, cache, atol=1e-6, rtol=torch.finfo(dtype).eps)
    torch.testing.assert_close(out, want, atol=error, rtol=0)
    torch.testing.assert_close(lse, want_lse, atol=error, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, *(dtype for dtype, _ in TYPES)])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_flash_attentions_parts_combine_on_the_device(parts, dtype):
    draw = torch.Generator().manual_seed(parts)
    out_partial = torch.randn(parts, 2, 9, 4, 64, generator=draw).to(dtype)
    lse_partial = torch.randn(parts, 2, 9, 4, generator=draw)
    lse_partial[0, 0, 3] = -torch.inf
    lse_partial[:, 1, 5] = -torch.inf
    out_partial[0, 0, 3] = torch.nan  # empty, so not read
    out, lse = attempt("merge", fa.flash_attn_combine, out_partial.cuda(), lse_partial.cuda())
    want_lse = lse_partial.double().logsumexp(0)
    weights = (lse_partial.double() - want_lse).exp().nan_to_num(0.0)
    want = (weights[..., None] * out_partial.double().nan_to_num(0.0)).sum(0)
    assert out.is_cuda and out.dtype == dtype and not out[1, 5].any() and (lse[1, 5] == -torch.inf).all()
    torch.testing.assert_close(out.cpu().double(), want, atol=2e-6, rtol=2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(lse.cpu().double(), want_lse, atol=2e-6, rtol=2e-6)


def test_flash_attentions_halves_of_the_keys_combine_to_the_whole():
    q, k, v = (x.transpose(1, 2).contiguous() for x in tensors(rows=190, keys=333))
    halves = [fa.flash_attn_func(q, k[:, keys], v[:, keys], return_attn_probs=True) for keys in (slice(0, 100), slice(100, 333))]
    out, lse = attempt("merge", fa.flash_attn_combine, torch.stack([out for out, _ in halves]), torch.stack([lse.transpose(1, 2) for _, lse in halves]))
    want, want_lse = fa.flash_attn_func(q, k, v, return_attn_probs=True)
    torch.testing.assert_close(out, want, atol=2e-3, rtol=0)
    torch.testing.assert_close(lse.transpose(1, 2), want_lse, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype, error", TYPES)
@pytest.mark.parametrize("paged", [False, True])
def test_flash_attentions_packed_sequences_are_the_cpus(dtype, error, paged):
    draw = torch.Generator().manual_seed(0)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 40, 40, 190], [0, 150, 153, 333]))
    q = torch.randn(190, 8, 64, generator=draw).to(dtype)
    k, v = (torch.randn(*((24, 16) if paged else (333,)), 2, 64, generator=draw).to(dtype) for _ in range(2))
    used, table = torch.tensor([128, 3, 77], dtype=torch.int32), torch.randperm(24, generator=draw).view(3, 8).int()

    def run(device):
        keys = dict(page_table=table.to(device), seqused_k=used.to(device)) if paged else {}
        out, lse = fa.flash_attn_varlen_func(q.to(device), k.to(device), v.to(device), cu_q.to(device), None if paged else cu_k.to(device), 150,
                                             128 if paged else 180, causal=True, return_attn_probs=True, **keys)
        return out.cpu(), lse.cpu()

    (out, lse), (want, want_lse) = attempt("", run, "cuda"), run("cpu")
    torch.testing.assert_close(out, want, atol=error, rtol=0)
    torch.testing.assert_close(lse, want_lse, atol=error, rtol=0)


def test_validate_names_the_entry_that_is_wrong_on_the_device():
    table = torch.tensor([[3, 0], [1, 9]], dtype=torch.int32).cuda()
    q, pool = torch.randn(2, 4, 1, 64).half().cuda(), torch.randn(8, 2, 16, 64).half().cuda()
    used = torch.tensor([20, 20], dtype=torch.int32).cuda()
    greenfast.attention(q, pool, pool, used_kv=used, page_table=table)  # clamped
    with pytest.raises(ValueError, match=r"page_table\[1\]\[1\] is 9: the pool has 8 pages"):
        greenfast.attention(q, pool, pool, used_kv=used, page_table=table, validate=True)
    new = torch.randn(2, 2, 1, 64).half().cuda()
    with pytest.raises(ValueError, match=r"page_table\[1\]\[1\] is 9"):
        greenfast.append(new, new, pool, pool.clone(), used_kv=used, page_table=table, validate=True)
    table[1, 1] = 4
    want = greenfast.attention(q, pool, pool, used_kv=used, page_table=table)
    assert torch.equal(greenfast.attention(q, pool, pool, used_kv=used, page_table=table, validate=True), want)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="captured"), torch.cuda.graph(graph):
        greenfast.attention(q, pool, pool, used_kv=used, page_table=table, validate=True)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="e4m3 is Hopper's")
@pytest.mark.parametrize("options, variant", [({}, "cuda.sm90.fp8_curved"), (dict(return_lse=True), "cuda.sm90.fp8"),
                                              (dict(accuracy="fast"), "cuda.sm90.fp8_fast")])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("transposed, keys", [(False, 333), (True, 332), (True, 333)])
def test_e4m3_takes_its_kernel_unasked(options, variant, causal, transposed, keys):
    q, k, v = tensors(rows=190, keys=keys)
    codes, scales = zip(*(greenfast.quantize_e4m3(x, transposed=transposed and x is v) for x in (q, k, v)))
    assert (codes[2].stride()[2] == 1) == transposed
    given = dict(zip(("q_scale", "k_scale", "v_scale"), scales)) | (dict(causal=True, align="bottom_right") if causal else {}) | options
    asked = {name: x for name, x in given.items() if name != "return_lse"}
    if "return_lse" in options:
        asked["lse"] = greenfast.TensorSpec(q.shape[:3], "float32", device="cuda")
    if not transposed and "accuracy" not in options and (causal or options):
        variant = "cuda.sm90.fp8_serving"  # V as rows, where a pass over it or an LSE by exponentials would take longer
    assert greenfast.explain(*codes, **asked).variant == variant
    got = greenfast.attention(*codes, **given)
    want = greenfast.attention(*(x.cpu() for x in codes), **{n: x.cpu() if torch.is_tensor(x) else x for n, x in given.items()})
    out, wanted = (x[0] if "return_lse" in options else x for x in (got, want))
    assert (out.cpu().double() - wanted.double()).norm() / wanted.double().norm() < 0.06
    if "return_lse" in options:
        torch.testing.assert_close(got[1].cpu(), want[1], atol=0.06, rtol=0)


def by_codes_of_the_device(q, k, v, **options):
    """What attention_quantized may give: by the kernel for V as rows, or the one for V transposed, which it takes where that for rows would transpose V itself."""
    answers = [attempt("", by_codes, q, k, v, **options)]
    try:
        answers.append(by_codes(q, k, v, transposed=True, **options))
    except NotImplementedError:
        pass
    return [answer if isinstance(answer, tuple) else (answer,) for answer in answers]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [
    {}, dict(return_lse=False), dict(causal=True, align="bottom_right"), dict(window=(99, 40), align="bottom_right"), dict(softcap=4.0),
    dict(out_dtype=torch.float32), dict(sinks=torch.ones(4)), dict(mask=MASK), dict(chunk=64, causal=True, align="bottom_right"),
    dict(return_lse=False, accuracy="fast")], ids=lambda options: "-".join(options))
@pytest.mark.parametrize("width, width_v", [(64, 64), (128, 128), (128, 64), (256, 256)])
def test_quantised_attention_is_attention_of_the_codes(either_way, dtype, options, width, width_v):
    q, k, v = tensors(dtype, rows=190, keys=333, width=width, width_v=width_v)
    options = {"return_lse": True, **{name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}}
    wanted = by_codes_of_the_device(q, k, v, **{"out_dtype": dtype, **options})
    got = greenfast.attention_quantized(q, k, v, **options)
    got = got if isinstance(got, tuple) else (got,)
    assert any(all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(got, want, strict=True)) for want in wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [8, 24, 64, 80, 104, 128, 192, 256])
def test_rotated_codes_have_the_cpus_bits(either_way, dtype, width):
    q, k, v = tensors(dtype, rows=190, keys=333, width=width, width_v=width)
    k[..., 5] *= 30
    for values in (q, k, k.transpose(1, 2).contiguous().transpose(1, 2)):
        codes, scale = greenfast.quantize_e4m3(values, rotate=True)
        want, want_scale = greenfast.quantize_e4m3(values.cpu(), rotate=True)
        assert torch.equal(codes.cpu().view(torch.uint8), want.view(torch.uint8)) and torch.equal(scale.cpu(), want_scale)
    for smooth in (False, True) if width in (64, 128) else ():
        got = greenfast.attention_quantized(q, k, v, rotate=True, smooth_k=smooth)
        want = greenfast.attention_quantized(q.cpu(), k.cpu(), v.cpu(), rotate=True, smooth_k=smooth)
        assert (got.cpu().double() - want.double()).norm() < 0.06 * want.double().norm()


def test_scratch_belongs_to_the_stream_that_is_given():
    # Freed for the current stream, it would be given to what comes next there while the other stream still sleeps.
    q, k, v = tensors(rows=190, keys=333, width=128, width_v=128)
    want, codes = greenfast.attention_quantized(q, k, v), greenfast.quantize_e4m3(k)
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(100_000_000)
    out, code, scale = torch.empty_like(want), torch.empty_like(codes[0]), None
    greenfast.attention_quantized(q, k, v, out=out, stream=other.cuda_stream)
    code, scale = greenfast.quantize_e4m3(k, out=code, stream=other.cuda_stream)
    taken = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in (512, 1 << 16, 1 << 19, 1 << 20) for _ in range(40)]
    torch.cuda.synchronize()
    assert torch.equal(out, want) and torch.equal(code.view(torch.uint8), codes[0].view(torch.uint8)) and torch.equal(scale, codes[1]) and taken


def test_quantised_attention_is_written_where_it_is_asked_in_either_layout():
    q, k, v = tensors(rows=190, keys=333)
    want, want_lse = attempt("", greenfast.attention_quantized, q, k, v, return_lse=True)
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    for given, layout in (([q, k, v], "bhsd"), (turned, "bshd"), ([x.transpose(1, 2) for x in turned], "bhsd")):
        out, lse = torch.full_like(given[0], torch.nan), torch.full_like(want_lse, torch.nan)
        returned = greenfast.attention_quantized(*given, layout=layout, out=out, lse=lse, return_lse=True)
        assert returned[0] is out and returned[1] is lse and torch.equal(lse, want_lse)
        assert torch.equal(out.transpose(1, 2) if layout == "bshd" else out, want)


def test_a_captured_quantised_attention_replays_with_new_inputs():
    q, k, v = tensors(rows=256, keys=300)
    attempt("", greenfast.attention_quantized, q, k, v, return_lse=True)
    greenfast.attention_quantized(q, k, v, accuracy="fast")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = torch.empty_like(q)
        greenfast.attention_quantized(q, k, v, out=given, accuracy="fast")
        made, lse = greenfast.attention_quantized(q, k, v, return_lse=True)
    for seed in range(3):
        for x in (q, k, v):
            x.normal_(std=10.0 ** -seed, generator=torch.Generator("cuda").manual_seed(seed))
        graph.replay()
        want, want_lse = greenfast.attention_quantized(q, k, v, return_lse=True)
        assert torch.equal(made, want) and torch.equal(lse, want_lse) and torch.equal(given, greenfast.attention_quantized(q, k, v, accuracy="fast"))


def test_quantised_attention_is_on_the_current_stream_and_compiles():
    q, k, v = tensors(rows=512, keys=512)
    expected = attempt("", greenfast.attention_quantized, q, k, v)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(greenfast.attention_quantized, fullgraph=True, backend="aot_eager")(q, k, v), expected)
    stream, out = torch.cuda.Stream(), torch.empty_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = q * 1
        greenfast.attention_quantized(late, k, v, out=out)
    stream.synchronize()
    assert torch.equal(out, expected)
