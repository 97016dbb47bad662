"""transformers: small models with random weights, greenfast beside eager."""
import copy
import dataclasses
import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402

import greenfast.hf  # noqa: E402

SMALL = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=8, max_position_embeddings=256)
GROUPED = dict(SMALL, num_key_value_heads=2, head_dim=16)


@dataclasses.dataclass
class Model:
    config: type
    options: dict
    kind: str = "ForCausalLM"


MODELS = {
    "qwen3": Model(transformers.Qwen3Config, GROUPED),
    "qwen3-window": Model(transformers.Qwen3Config, dict(GROUPED, use_sliding_window=True, sliding_window=8, max_window_layers=2)),
    "mistral": Model(transformers.MistralConfig, dict(GROUPED, sliding_window=8)),
    "gpt-oss": Model(transformers.GptOssConfig, dict(GROUPED, sliding_window=8, num_local_experts=4, num_experts_per_tok=2)),
    "gemma2": Model(transformers.Gemma2Config, dict(GROUPED, sliding_window=8, attn_logit_softcapping=5.0, query_pre_attn_scalar=16)),
    "llama4": Model(transformers.Llama4TextConfig, dict(GROUPED, intermediate_size_mlp=96, attention_chunk_size=8, num_local_experts=2,
                                                        no_rope_layers=[1, 1, 1, 0])),
    "deepseek-v3": Model(transformers.DeepseekV3Config, dict(SMALL, num_key_value_heads=8, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
                                                             qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, n_group=1, topk_group=1,
                                                             num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1)),
    "bert": Model(transformers.BertConfig, SMALL, "Model"),
    "modernbert": Model(transformers.ModernBertConfig, dict(SMALL, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                                                            sep_token_id=2), "Model"),
}
LIMIT = 2e-5  # on outputs of about 1; what is dropped on purpose makes 40 times as much
DECODERS = [name for name, model in MODELS.items() if model.kind == "ForCausalLM"]
ROWS = 20
IDS = torch.randint(3, 128, (2, ROWS), generator=torch.Generator().manual_seed(0))
LEFT, RIGHT = torch.ones(2, ROWS, dtype=torch.long), torch.ones(2, ROWS, dtype=torch.long)
LEFT[0, :6] = 0
RIGHT[0, 14:] = 0
PACKED = torch.cat([torch.arange(12), torch.arange(8)])[None].expand(2, -1)
STATIC = {"cache_implementation": "static"}
# transformers 5.17 hands its chunked mask an argument that this does not have, so that generate with a static cache fails, with eager attention too.
CHUNKS_ARE_GENERATED = "block_sequence_ids" not in (
    set(inspect.signature(masking_utils.create_masks_for_generate).parameters) - set(inspect.signature(masking_utils.create_chunked_causal_mask).parameters))
INPUTS = {"plain": {}, "padded-left": {"attention_mask": LEFT}, "padded-right": {"attention_mask": RIGHT},
          "packed": {"position_ids": PACKED, "use_cache": False}}


@pytest.fixture(scope="module", autouse=True)
def registered():
    greenfast.hf.register()
    greenfast.hf.register()


@pytest.fixture(scope="module")
def pairs():
    """(eager, greenfast) with the same weights, large enough for attention to be far from uniform."""
    made = {}

    def pair(name):
        if name not in made:
            model = MODELS[name]
            kind = getattr(transformers, model.config.__name__.removesuffix("TextConfig").removesuffix("Config") + model.kind)
            config = model.config(**model.options)
            torch.manual_seed(1)
            eager, ours = (kind._from_config(copy.deepcopy(config), attn_implementation=x).eval() for x in ("eager", "greenfast"))
            for parameter in eager.parameters():
                torch.nn.init.normal_(parameter, std=0.15)
            ours.load_state_dict(eager.state_dict())
            made[name] = eager, ours
        return made[name]

    return pair


def outputs(model, **options):
    with torch.no_grad():
        result = model(input_ids=IDS, **options)
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


def worst(pair, **options):
    difference = (outputs(pair[0], **options) - outputs(pair[1], **options)).abs()
    mask = options.get("attention_mask")
    return (difference if mask is None else difference[mask.bool()]).max().item()


NOTHING_FALLS_BACK = pytest.mark.filterwarnings("ignore", "error::greenfast.torch.FallbackWarning")


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("name, inputs", [(name, inputs) for name in MODELS for inputs in INPUTS
                                          if inputs != "packed" or name in DECODERS])  # encoders are not told by positions
def test_a_forward_pass_is_eagers_and_computed_here(pairs, name, inputs):
    greenfast.hf._said.clear()
    assert worst(pairs(name), **INPUTS[inputs]) < LIMIT


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("options", [{}, {"attention_mask": LEFT}, STATIC, {**STATIC, "attention_mask": LEFT}],
                         ids=["dynamic", "padded", "static", "static-padded"])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_decoding_gives_the_same_tokens(pairs, name, options):
    if name == "llama4" and "cache_implementation" in options and not CHUNKS_ARE_GENERATED:
        pytest.skip("this transformers' own chunked masks fail over a static cache")
    greenfast.hf._said.clear()
    tokens = [model.generate(IDS, max_new_tokens=12, do_sample=False, pad_token_id=0, disable_compile=True, **options) for model in pairs(name)]
    assert torch.equal(*tokens)


# --- a static cache's mask -------------------------------------------------------------------------------------------------

def generated(model, mask, **options):
    return model.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0, attention_mask=mask, **STATIC, **options)


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("mask", [None, LEFT], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3-window"])
def test_the_mask_of_a_static_cache_reaches_the_library_as_it_is(pairs, name, mask, monkeypatch):
    from transformers.modeling_utils import AttentionInterface
    handed, read = [], []
    forward, run = greenfast.hf.attention_forward, greenfast.torch._run

    def seen(module, query, key, value, attention_mask, **options):
        if query.shape[2] == 1:
            handed.append(attention_mask)
        return forward(module, query, key, value, attention_mask, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "greenfast", seen)
    monkeypatch.setattr(greenfast.torch, "_run", lambda *a: (read.append(a[-1][0]) if a[0].shape[2] == 1 else None, run(*a))[1])
    greenfast.hf._said.clear()
    generated(pairs(name)[1], mask, disable_compile=True)
    assert len(handed) == len(read) == 4 * SMALL["num_hidden_layers"] and all(x is y for x, y in zip(handed, read))
    kinds = 2 if "window" in name else 1
    assert len({id(x) for x in read}) == 4 * kinds and len({x.shape for x in read}) == kinds  # one in each step for all layers of a kind
    assert all(x.dtype == torch.bool and x.shape[:3] == (2, 1, 1) and x.is_contiguous() for x in read)


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("mask", [None, LEFT], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_compiled_steps_over_a_static_cache_read_the_mask_that_they_are_given(pairs, name, mask):
    from torch._dynamo.backends.common import aot_autograd
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    eager, ours = pairs(name)
    ours = copy.deepcopy(ours)  # generate() keeps what it compiled with the model
    config = transformers.CompileConfig(fullgraph=True, mode=None, backend=aot_autograd(fw_compiler=keep))
    config._compile_all_devices = True
    greenfast.hf._said.clear()
    torch._dynamo.reset()
    assert torch.equal(generated(ours, mask, compile_config=config), generated(eager, mask, disable_compile=True))
    torch._dynamo.reset()
    kinds = 2 if name == "gemma2" else 1
    assert 1 <= len(graphs) <= kinds  # of a window's cache transformers' graph knows the position
    for graph in graphs:
        read = [node.args[6] for node in graph.graph.nodes if node.target is torch.ops.greenfast.attention_features_forward.default]
        assert len(read) == SMALL["num_hidden_layers"] and len(set(read)) == kinds and all(node.op == "placeholder" for node in read)


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_without_a_mask_over_a_static_cache_is_sdpas(pairs, rows):
    """transformers makes its mask of one entry for all of the batch then, in the graph where all of the model is compiled."""
    ours = pairs("qwen3")[1]
    sdpa = copy.deepcopy(ours)
    sdpa.config._attn_implementation = "sdpa"
    greenfast.hf._said.clear()
    torch._dynamo.reset()

    def step(model, call):
        cache = transformers.StaticCache(config=model.config, max_cache_len=31)
        with torch.no_grad():
            model(input_ids=IDS, past_key_values=cache)
            return call(input_ids=IDS[:, :rows], past_key_values=cache).logits

    theirs = step(sdpa, sdpa)
    for call in (ours, torch.compile(ours, backend="aot_eager", fullgraph=True)):
        assert (step(ours, call) - theirs).abs().max() < LIMIT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, inputs, plant", [
    ("qwen3", "padded-left", "mask"), ("bert", "padded-right", "mask"), ("llama4", "plain", "chunks"), ("qwen3-window", "plain", "window"),
    ("gemma2", "plain", "softcap"), ("gpt-oss", "plain", "sinks"), ("qwen3", "packed", "mask"),
])
def test_the_comparison_finds_what_is_dropped(pairs, name, inputs, plant, monkeypatch):
    """Each of these, dropped on purpose, has to be seen by the comparison above."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface
    if plant == "chunks":
        monkeypatch.setattr(greenfast.hf, "_chunk_of", lambda module: None)
    elif plant == "mask":
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, "greenfast", lambda *args, **kwargs: None)
    elif plant == "window":
        monkeypatch.setattr(greenfast.hf, "_window_of", lambda module, given: None)
    else:
        argument = {"softcap": "softcap", "sinks": "s_aux"}[plant]
        monkeypatch.setitem(AttentionInterface._global_mapping, "greenfast",
                            lambda *args, **kwargs: greenfast.hf.attention_forward(*args, **{**kwargs, argument: None}))
    assert worst(pairs(name), **INPUTS[inputs]) > 10 * LIMIT


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("name, inputs", [("qwen3", "plain"), ("qwen3", "padded-right"), ("llama4", "padded-right"), ("deepseek-v3", "padded-right")])
def test_gradients_of_a_model_are_eagers(pairs, name, inputs):
    greenfast.hf._said.clear()
    labels = IDS.masked_fill(INPUTS[inputs]["attention_mask"] == 0, -100) if INPUTS[inputs] else IDS
    grads = []
    for model in pairs(name):
        model.zero_grad()
        model(input_ids=IDS, labels=labels, **INPUTS[inputs]).loss.backward()
        grads.append({name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None})
        model.zero_grad()
    assert grads[0].keys() == grads[1].keys()
    for name in grads[0]:
        torch.testing.assert_close(grads[1][name], grads[0][name], atol=2e-5, rtol=2e-3)


def test_sinks_that_learn_go_to_transformers(pairs):
    greenfast.hf._said.clear()
    eager, ours = pairs("gpt-oss")
    with pytest.warns(greenfast.torch.FallbackWarning, match="gradients with sinks"):
        ours(input_ids=IDS, labels=IDS).loss.backward()
    eager(input_ids=IDS, labels=IDS).loss.backward()
    theirs = dict(eager.named_parameters())
    checked = [torch.testing.assert_close(x.grad, theirs[name].grad, atol=2e-5, rtol=2e-3) for name, x in ours.named_parameters() if "sinks" in name]
    assert len(checked) == 4
    eager.zero_grad()
    ours.zero_grad()


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("causal", [False, True])
def test_packed_lengths_without_a_mask_are_each_alone(causal):
    greenfast.hf._said.clear()
    module = torch.nn.Module()
    q, k, v = torch.randn(1, 4, 20, 16), torch.randn(1, 2, 20, 16), torch.randn(1, 2, 20, 16)
    cu = torch.tensor([0, 12, 12, 20])
    lengths = dict(cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=12, max_length_k=12)
    ours, _ = greenfast.hf.attention_forward(module, q, k, v, None, is_causal=causal, **lengths)
    for part in (slice(0, 12), slice(12, 20)):
        alone = torch.nn.functional.scaled_dot_product_attention(*(x[:, :, part] for x in (q, k, v)), is_causal=causal, enable_gqa=True)
        torch.testing.assert_close(ours[:, part], alone.transpose(1, 2))


def test_packed_lengths_that_differ_face_each_others_end():
    """What is in a cache is before what is asked: as FlashAttention aligns packed sequences."""
    q, k, v = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 15, 16), torch.randn(1, 2, 15, 16)
    cu_q, cu_k = torch.tensor([0, 3, 8]), torch.tensor([0, 7, 15])
    ours, _ = greenfast.hf.attention_forward(torch.nn.Module(), q, k, v, None, is_causal=True, cu_seq_lens_q=cu_q, cu_seq_lens_k=cu_k)
    for rows, keys in ((slice(0, 3), slice(0, 7)), (slice(3, 8), slice(7, 15))):
        alone = greenfast.attention(q[:, :, rows], *(x[:, :, keys] for x in (k, v)), causal=True, align="bottom_right")
        torch.testing.assert_close(ours[:, rows], alone.transpose(1, 2))


def test_packed_lengths_that_fall_back_are_the_same(monkeypatch):
    q, k, v = torch.randn(1, 4, 20, 16), torch.randn(1, 4, 20, 16), torch.randn(1, 4, 20, 16)
    lengths = dict(cu_seq_lens_q=torch.tensor([0, 12, 20]), is_causal=True)
    ours, _ = greenfast.hf.attention_forward(torch.nn.Module(), q, k, v, None, **lengths)
    monkeypatch.setitem(greenfast.torch._answers, ("cpu", 0, torch.float32, ("packed",)), "no kernel has learned packed sequences")
    with pytest.warns(greenfast.torch.FallbackWarning, match="packed sequences"):
        theirs, _ = greenfast.hf.attention_forward(torch.nn.Module(), q, k, v, None, **lengths)
    torch.testing.assert_close(ours, theirs)


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("mask", [None, torch.rand(2, 1, 7, 9) < 0.8, torch.randn(2, 1, 7, 9)], ids=["none", "bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_position_bias_is_added(mask, dtype):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    greenfast.hf._said.clear()
    module = torch.nn.Module()
    q, k, v = (torch.randn(2, 4, n, 16, dtype=dtype) for n in (7, 9, 9))
    bias = torch.randn(1, 4, 7, 9, dtype=dtype)
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    ours, theirs = (function(module, q, k, v, mask, is_causal=False, position_bias=bias)[0] for function in
                    (greenfast.hf.attention_forward, sdpa_attention_forward))
    torch.testing.assert_close(ours, theirs, atol=2e-6 if dtype == torch.float32 else 3e-2, rtol=2e-2)


@NOTHING_FALLS_BACK
def test_a_position_bias_over_an_empty_static_cache_is_that_of_its_keys():
    greenfast.hf._said.clear()
    q, k, v = (torch.randn(2, 4, n, 16) for n in (5, 9, 9))
    bias = torch.randn(1, 4, 5, 9)
    ours, _ = greenfast.hf.attention_forward(torch.nn.Module(), q, k, v, None, is_causal=True, position_bias=bias)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    want = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :5], v[:, :, :5], bias[..., :5].masked_fill(hidden, -torch.inf))
    torch.testing.assert_close(ours, want.transpose(1, 2), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name, inputs", [("qwen3", "plain"), ("qwen3", "padded-left"), ("gemma2", "plain")])
def test_a_compiled_model_has_no_graph_break(pairs, name, inputs):
    torch._dynamo.reset()
    model = pairs(name)[1]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(input_ids=IDS, use_cache=False, **INPUTS[inputs]).logits, outputs(model, use_cache=False, **INPUTS[inputs]))


@pytest.mark.parametrize("name", ["qwen3", "qwen3-window", "mistral", "gpt-oss", "gemma2"])
def test_layers_compiled_alone_share_what_was_compiled(pairs, name):
    """Not one program for every number of a layer: two kinds of layers, two programs."""
    ours = copy.deepcopy(pairs(name)[1])
    expected = outputs(ours, use_cache=False)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for layer in ours.model.layers:
            layer.compile(backend="eager")
        assert (outputs(ours, use_cache=False) - expected).abs().max() < LIMIT
    torch._dynamo.reset()


def test_a_paged_cache_is_refused_by_name():
    x = torch.randn(1, 2, 4, 16)
    with pytest.raises(NotImplementedError, match="paged cache"):
        greenfast.hf.attention_forward(torch.nn.Module(), x, x, x, None, cache=object())


# --- models that do not hand their attention over ---------------------------------------------------------------------------

BERT = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
BART = dict(vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
            decoder_ffn_dim=96, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)
OTHERS = {
    "Bloom": (dict(vocab_size=128, hidden_size=64, n_layer=2, n_head=4), "ForCausalLM"),
    "Mpt": (dict(vocab_size=128, d_model=64, n_layers=2, n_heads=4, max_seq_len=64), "ForCausalLM"),
    "Falcon": (dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4), "ForCausalLM"),
    "XGLM": (dict(vocab_size=128, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4), "ForCausalLM"),
    "TrOCR": (dict(vocab_size=128, d_model=64, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=96), "ForCausalLM"),
    "GPTNeoXJapanese": (dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4), "ForCausalLM"),
    "MegatronBert": (BERT, "Model"),
    "RemBert": (dict(BERT, input_embedding_size=64, output_embedding_size=64), "Model"),
    "RoFormer": (dict(BERT, embedding_size=64), "Model"),
    "MPNet": (BERT, "Model"),
    "Longformer": (dict(BERT, attention_window=8, pad_token_id=0), "Model"),
    "LED": (dict(BART, attention_window=8, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64), "Model"),
    "Mvp": (BART, "Model"),
    "BigBirdPegasus": (dict(BART, attention_type="original_full"), "Model"),
    "NllbMoe": (dict(BART, num_experts=4, expert_capacity=64), "Model"),
    "DeepseekV4": (dict(vocab_size=128, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1, head_dim=16, q_lora_rank=16,
                        sliding_window=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, max_position_embeddings=256), "ForCausalLM"),
}


def two_models(name):
    """(eager, one for which greenfast was asked), with the same weights."""
    options, kind = OTHERS[name]
    config, kind = getattr(transformers, name + "Config")(**options), getattr(transformers, name + kind)
    torch.manual_seed(1)
    eager, ours = (kind._from_config(copy.deepcopy(config), attn_implementation=x).eval() for x in ("eager", "greenfast"))
    for parameter in eager.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def furthest(pair, mask):
    """How far apart both are, over tokens that are there, as a part of the largest."""
    def output(model):
        options = {"decoder_input_ids": IDS[:, :12]} if model.config.is_encoder_decoder else {}
        with torch.no_grad():
            made = model(input_ids=IDS, attention_mask=mask, **options)
        return made.logits if hasattr(made, "logits") else made.last_hidden_state

    theirs, ours = map(output, pair)
    difference = (theirs - ours).abs()
    return ((difference[mask.bool()] if mask is not None and difference.shape[1] == ROWS else difference).max() / theirs.abs().max()).item()


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_keeps_its_attention_is_right_and_said(name):
    if not hasattr(transformers, name + "Config"):
        pytest.skip("this transformers does not have it")
    greenfast.hf._said.clear()
    with pytest.warns(greenfast.torch.FallbackWarning, match=f"{name}.* does not hand its attention over"):
        pair = two_models(name)
    assert pair[1].config._attn_implementation in ("eager", "sdpa")
    for mask in (None, LEFT, RIGHT):
        assert furthest(pair, mask) < LIMIT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Bloom", "RoFormer"])
def test_the_comparison_finds_a_model_whose_masks_are_dropped(name, monkeypatch):
    monkeypatch.setattr(greenfast.hf, "_asks", lambda kind: True)
    pair = two_models(name)
    assert max(furthest(pair, mask) for mask in (None, LEFT)) > 5 * LIMIT


@pytest.mark.filterwarnings("ignore")
def test_a_part_that_keeps_its_attention_leaves_the_other_parts():
    vision = transformers.ViTConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8)
    text = transformers.TrOCRConfig(**OTHERS["TrOCR"][0])
    model = transformers.VisionEncoderDecoderModel._from_config(
        transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text), attn_implementation="greenfast")
    assert model.encoder.config._attn_implementation == "greenfast" and model.decoder.config._attn_implementation == "eager"


@NOTHING_FALLS_BACK
def test_a_model_without_attention_is_not_warned_of():
    greenfast.hf._said.clear()
    transformers.MambaForCausalLM._from_config(transformers.MambaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=1), attn_implementation="greenfast")


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_keeps_its_attention_keeps_it_when_asked_later():
    config = transformers.BigBirdPegasusConfig(**OTHERS["BigBirdPegasus"][0])
    model = transformers.BigBirdPegasusModel(config)
    model.set_attn_implementation("greenfast")
    assert model.config._attn_implementation == "eager"


# --- tensors as models hand them over ---------------------------------------------------------------------------------------

@NOTHING_FALLS_BACK
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("change", [
    lambda q, k, v: (q, k.transpose(2, 3).contiguous().transpose(2, 3), v), lambda q, k, v: (q, k, v.transpose(2, 3).contiguous().transpose(2, 3)),
    lambda q, k, v: (q.transpose(2, 3).contiguous().transpose(2, 3), k, v), lambda q, k, v: (q[:1].expand(2, -1, -1, -1), k, v),
    lambda q, k, v: (q[:, :1].expand(-1, 4, -1, -1), k, v)], ids=["k", "v", "q", "q of one batch", "q of one head"])
def test_any_strides_are_taken(change, compiled):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    greenfast.hf._said.clear()
    module = torch.nn.Module()
    q, k, v = change(*(torch.randn(2, 4, n, 16) for n in (7, 9, 9)))
    mask = torch.rand(2, 1, 7, 9) < 0.8
    run = lambda *x: greenfast.hf.attention_forward(module, *x, mask, is_causal=False)[0]  # noqa: E731
    torch._dynamo.reset()
    ours = (torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)(q, k, v)
    torch.testing.assert_close(ours, sdpa_attention_forward(module, q, k, v, mask, is_causal=False)[0], atol=2e-6, rtol=1e-5)


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("types", [(torch.float32,) * 3, (torch.float32, torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32, torch.float16)])
@pytest.mark.parametrize("bias", [False, True])
def test_autocast_casts_as_for_sdpa(types, bias):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    greenfast.hf._said.clear()
    module = torch.nn.Module()
    q, k, v = (torch.randn(2, 4, 9, 16, dtype=dtype) for dtype in types)
    options = dict(position_bias=torch.randn(1, 4, 9, 9)) if bias else {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = (function(module, q, k, v, None, is_causal=not bias, **options)[0] for function in
                        (greenfast.hf.attention_forward, sdpa_attention_forward))
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


@NOTHING_FALLS_BACK
@pytest.mark.parametrize("name", ["qwen3", "qwen3-window", "gemma2", "mistral", "gpt-oss", "bert"])
def test_models_under_autocast_are_computed_here(pairs, name):
    greenfast.hf._said.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs, ours = (outputs(model).float() for model in pairs(name))
    assert (theirs - ours).abs().max() < 0.05 * theirs.abs().max()
