"""transformers: small models with random weights, greenfast beside eager."""
import copy
import dataclasses
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import greenfast.hf  # noqa: E402

SMALL = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=8, max_position_embeddings=256)
GROUPED = dict(SMALL, num_key_value_heads=2, head_dim=16)


@dataclasses.dataclass
class Model:
    config: type
    options: dict
    kind: str = "ForCausalLM"
    all_ours: bool = True  # whether a plain forward pass needs nothing of transformers' own


MODELS = {
    "qwen3": Model(transformers.Qwen3Config, GROUPED),
    "qwen3-window": Model(transformers.Qwen3Config, dict(GROUPED, use_sliding_window=True, sliding_window=8, max_window_layers=2)),
    "mistral": Model(transformers.MistralConfig, dict(GROUPED, sliding_window=8), all_ours=False),
    "gpt-oss": Model(transformers.GptOssConfig, dict(GROUPED, sliding_window=8, num_local_experts=4, num_experts_per_tok=2), all_ours=False),
    "gemma2": Model(transformers.Gemma2Config, dict(GROUPED, sliding_window=8, attn_logit_softcapping=5.0, query_pre_attn_scalar=16)),
    "llama4": Model(transformers.Llama4TextConfig, dict(GROUPED, intermediate_size_mlp=96, attention_chunk_size=8, num_local_experts=2,
                                                        no_rope_layers=[1, 1, 1, 0]), all_ours=False),
    "deepseek-v3": Model(transformers.DeepseekV3Config, dict(SMALL, num_key_value_heads=8, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
                                                             qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, n_group=1, topk_group=1,
                                                             num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1), all_ours=False),
    "bert": Model(transformers.BertConfig, SMALL, "Model"),
    "modernbert": Model(transformers.ModernBertConfig, dict(SMALL, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                                                            sep_token_id=2), "Model", all_ours=False),
}
LIMIT = 2e-5  # on outputs of about 1; what is dropped on purpose makes 40 times as much
DECODERS = [name for name, model in MODELS.items() if model.kind == "ForCausalLM"]
ROWS = 20
IDS = torch.randint(3, 128, (2, ROWS), generator=torch.Generator().manual_seed(0))
LEFT, RIGHT = torch.ones(2, ROWS, dtype=torch.long), torch.ones(2, ROWS, dtype=torch.long)
LEFT[0, :6] = 0
RIGHT[0, 14:] = 0
PACKED = torch.cat([torch.arange(12), torch.arange(8)])[None].expand(2, -1)
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, inputs", [(name, inputs) for name in MODELS for inputs in INPUTS
                                          if inputs != "packed" or name in DECODERS])  # encoders are not told by positions
def test_a_forward_pass_is_eagers(pairs, name, inputs):
    assert worst(pairs(name), **INPUTS[inputs]) < LIMIT


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_pass_is_computed_here_where_the_library_can(pairs, name):
    greenfast.hf._said.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs(pairs(name)[1])
    said = [str(x.message) for x in caught if x.category is greenfast.torch.FallbackWarning]
    assert (said == []) == MODELS[name].all_ours, said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"attention_mask": LEFT}, {"cache_implementation": "static"}], ids=["dynamic", "padded", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_decoding_gives_the_same_tokens(pairs, name, options):
    tokens = [model.generate(IDS, max_new_tokens=12, do_sample=False, pad_token_id=0, disable_compile=True, **options) for model in pairs(name)]
    assert torch.equal(*tokens)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, inputs, plant", [
    ("qwen3", "padded-left", "mask"), ("bert", "padded-right", "mask"), ("llama4", "plain", "chunks"), ("qwen3-window", "plain", "window"),
    ("gemma2", "plain", "softcap"), ("gpt-oss", "plain", "sinks"),
])
def test_the_comparison_finds_what_is_dropped(pairs, name, inputs, plant, monkeypatch):
    """Each of these, dropped on purpose, has to be seen by the comparison above."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface
    if plant in ("mask", "chunks"):
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, "greenfast", lambda *args, **kwargs: None)
    elif plant == "window":
        monkeypatch.setattr(greenfast.hf, "_window_of", lambda module, given: None)
    else:
        argument = {"softcap": "softcap", "sinks": "s_aux"}[plant]
        monkeypatch.setitem(AttentionInterface._global_mapping, "greenfast",
                            lambda *args, **kwargs: greenfast.hf.attention_forward(*args, **{**kwargs, argument: None}))
    assert worst(pairs(name), **INPUTS[inputs]) > 10 * LIMIT


@pytest.mark.filterwarnings("ignore")
def test_gradients_of_a_model_are_eagers(pairs):
    grads = []
    for model in pairs("qwen3"):
        model.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        grads.append({name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None})
        model.zero_grad()
    assert grads[0].keys() == grads[1].keys()
    for name in grads[0]:
        torch.testing.assert_close(grads[1][name], grads[0][name], atol=1e-5, rtol=1e-3)


def test_a_compiled_model_has_no_graph_break(pairs):
    torch._dynamo.reset()
    model = pairs("qwen3")[1]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(input_ids=IDS, use_cache=False).logits, outputs(model, use_cache=False))


def test_a_paged_cache_is_refused_by_name():
    x = torch.randn(1, 2, 4, 16)
    with pytest.raises(NotImplementedError, match="paged cache"):
        greenfast.hf.attention_forward(torch.nn.Module(), x, x, x, None, cache=object())
