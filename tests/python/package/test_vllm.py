"""vLLM's backend: against the interface as recorded from its wheel, and against vLLM itself where it can be imported."""
import dataclasses
import enum
import abc
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import pathlib
import subprocess
import sys
import types
import typing

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import greenfast  # noqa: E402, F401
import reference  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
RECORD = json.loads((HERE / "vllm_interface.json").read_text())
BASE = RECORD["sources"]["vllm/v1/attention/backend.py"]
I32 = torch.int32


def why_no_vllm():
    """Why vLLM's own classes cannot be had here; None: they can."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed"
    tried = subprocess.run([sys.executable, "-c", "import vllm.v1.attention.backend"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"vllm.v1.attention.backend: {tried.stderr.strip().splitlines()[-1]}"


NO_VLLM = why_no_vllm()
needs_vllm = pytest.mark.skipif(NO_VLLM is not None, reason=str(NO_VLLM))


# --- stand-ins: classes of the recorded names, fields and abstract methods, which do nothing ---------------------------------

def signature(recorded):
    """The parameters of a recorded method, "(self, x=None) abstractmethod"."""
    text = recorded[:recorded.rindex(")") + 1]
    return inspect.signature(eval(f"lambda {text[1:-1]}: 0", {"AttentionType": types.SimpleNamespace(DECODER="decoder")}))


def stand_in(name, made):
    """The recorded class `name`. Enums are enums, dataclasses dataclasses, and what is abstract has to be defined."""
    entry = BASE[name]
    fields = [field.partition(" = ")[::2] for field in entry["fields"]]
    if "Enum" in entry["bases"]:
        kinds = tuple({"str": str, "Enum": enum.Enum}[base] for base in entry["bases"])
        return enum.Enum(name, [(field, eval(value)) for field, value in fields], type=kinds[0] if len(kinds) > 1 else None)
    if "dataclass" in entry["marks"]:
        return dataclasses.make_dataclass(name, [(field, typing.Any, dataclasses.field(default=eval(value))) if value else (field, typing.Any)
                                                 for field, value in fields])
    body = {}
    for field, value in fields:
        if value:
            try:
                body[field] = eval(value, {"torch": torch, **made})
            except NameError:
                pytest.fail(f"{name}.{field} = {value} is nothing that the stand-ins know")
    for method, recorded in entry["methods"].items():
        if "abstractmethod" in recorded:
            def function(self, *arguments, **options):
                raise NotImplementedError
            body[method] = abc.abstractmethod(function)
    bases = tuple(made[base] for base in entry["bases"] if base in made)

    def generic(cls, item):
        return cls
    body["__class_getitem__"] = classmethod(generic)
    if name == "AttentionMetadataBuilder":
        def remember(self, kv_cache_spec, layer_names, vllm_config, device):
            self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device
        body["__init__"] = abc.abstractmethod(remember)
    return abc.ABCMeta(name, bases or (abc.ABC,), body)


@pytest.fixture(params=["recorded", pytest.param("vllm", marks=needs_vllm)])
def backend(request, monkeypatch):
    """greenfast.vllm_backend on stand-ins, and on vLLM's own classes."""
    if request.param == "recorded":
        made = {}
        for name in BASE:
            made[name] = stand_in(name, made)
        for name in ("vllm", "vllm.v1", "vllm.v1.attention"):
            package = types.ModuleType(name)
            package.__path__ = []
            monkeypatch.setitem(sys.modules, name, package)
        module = types.ModuleType("vllm.v1.attention.backend")
        vars(module).update(made)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "greenfast.vllm_backend", raising=False)
    loaded = importlib.import_module("greenfast.vllm_backend")
    yield loaded
    sys.modules.pop("greenfast.vllm_backend", None)


# --- the interface -----------------------------------------------------------------------------------------------------------

def all_methods(name):
    """Recorded methods of a class and of its bases."""
    methods = {}
    for base in BASE[name]["bases"]:
        methods |= all_methods(base) if base in BASE else {}
    return methods | BASE[name]["methods"]


OURS = {"GreenfastBackend": "AttentionBackend", "GreenfastMetadataBuilder": "AttentionMetadataBuilder", "GreenfastImpl": "AttentionImpl"}


@pytest.mark.parametrize("ours, theirs", OURS.items())
def test_methods_are_those_that_vllm_recorded(backend, ours, theirs):
    cls, recorded = getattr(backend, ours), all_methods(theirs)
    assert not getattr(cls, "__abstractmethods__", None)
    recorded = recorded | ({"do_kv_cache_update": RECORD["sources"]["vllm/v1/attention/backends/triton_attn.py"]["TritonAttentionImpl"]["methods"][
        "do_kv_cache_update"]} if theirs == "AttentionImpl" else {})
    names = [name for name in vars(cls) if inspect.isroutine(inspect.getattr_static(cls, name)) or isinstance(
        inspect.getattr_static(cls, name), (staticmethod, classmethod))]
    names = [name for name in names if name == "__init__" or not name.startswith("_")]
    assert {"get_name", "build", "forward"} & set(names)
    for name in names:
        assert name in recorded, f"{ours}.{name} is nothing that vLLM {RECORD['vllm']} calls"
        static = inspect.getattr_static(cls, name)
        kind = next((mark for mark, of in (("staticmethod", staticmethod), ("classmethod", classmethod)) if isinstance(static, of)), "")
        assert all((mark in recorded[name]) == (mark == kind) for mark in ("staticmethod", "classmethod")), name
        function = static.__func__ if kind else static
        mine, wanted = inspect.signature(function).parameters, signature(recorded[name]).parameters
        assert list(mine)[:len(wanted)] == list(wanted), name
        for parameter in list(mine)[len(wanted):]:  # sinks, as other backends have it
            assert mine[parameter].default is not inspect.Parameter.empty, (name, parameter)
        for parameter in wanted:  # what may be left out there may be left out here
            if wanted[parameter].default is not inspect.Parameter.empty:
                assert mine[parameter].default is not inspect.Parameter.empty, (name, parameter)
        assert not any(x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD) for x in mine.values()), name


def test_class_variables_are_names_that_vllm_reads(backend):
    for ours, theirs in OURS.items():
        read = {field.partition(" = ")[0] for base in (theirs, "AttentionImplBase") for field in BASE[base]["fields"]}
        kept = [name for name, value in vars(getattr(backend, ours)).items() if not name.startswith("__") and not inspect.isroutine(value)
                and not isinstance(value, (staticmethod, classmethod)) and name not in ("_abc_impl", "_is_protocol")]
        assert set(kept) <= read, ours
    theirs = RECORD["sources"]["vllm/v1/attention/backends/triton_attn.py"]["TritonAttentionImpl"]["methods"]["__init__"]
    assert "sinks=None" in theirs and "sinks" in inspect.signature(backend.GreenfastImpl.__init__).parameters


def test_its_answers_to_vllm(backend):
    answers, decoder = backend.GreenfastBackend, backend.AttentionType.DECODER
    assert answers.get_name() == "GREENFAST" and answers.forward_includes_kv_cache_update is False
    assert answers.get_impl_cls() is backend.GreenfastImpl and answers.get_builder_cls() is backend.GreenfastMetadataBuilder
    assert [size.base for size in answers.get_supported_kernel_block_sizes()] == [16]
    assert [size for size in (0, 4, 8, 96, 100, 128, 256, 264) if answers.supports_head_size(size)] == [8, 96, 128, 256]
    assert answers.supports_attn_type(decoder) and not answers.supports_attn_type(backend.AttentionType.ENCODER_DECODER)
    capability = types.SimpleNamespace
    assert answers.supports_compute_capability(capability(to_int=lambda: 90)) and not answers.supports_compute_capability(
        capability(to_int=lambda: 75))
    rest = (16, False, False, False, False, None)
    assert answers.supports_combination(128, torch.float16, "auto", *rest) is None
    assert "float16 cache" in answers.supports_combination(128, torch.bfloat16, "float16", *rest)
    for name in ("fp8", "fp8_e4m3"):
        assert answers.supports_combination(128, torch.bfloat16, name, *rest) is None and name in answers.supported_kv_cache_dtypes
        assert answers.supports_combination(128, torch.bfloat16, name, *rest[:-1], capability(to_int=lambda: 90)) is None
        for other in (80, 89, 100):
            assert "Hopper" in answers.supports_combination(128, torch.bfloat16, name, *rest[:-1], capability(to_int=lambda other=other: other))
        assert "steps of 16" in answers.supports_combination(72, torch.bfloat16, name, *rest)


def test_graphs_hold_any_batch_but_of_an_fp8_cache_single_tokens(backend):
    builder = backend.GreenfastMetadataBuilder
    for dtype, support, threshold in ((torch.bfloat16, "ALWAYS", None), (torch.uint8, "UNIFORM_SINGLE_TOKEN_DECODE", 1)):
        spec = types.SimpleNamespace(dtype=dtype)
        assert builder.get_cudagraph_support(None, spec).name == support
        assert builder(spec, ["layer"], None, torch.device("cpu")).reorder_batch_threshold == threshold


@needs_vllm
def test_the_record_is_of_the_vllm_that_is_here():
    import vllm
    if vllm.__version__ != RECORD["vllm"]:
        pytest.skip(f"vllm {vllm.__version__} is here, the record is of {RECORD['vllm']}")
    root = HERE.parents[2]
    told = subprocess.run([sys.executable, root / "tools" / "record_vllm", pathlib.Path(vllm.__file__).parents[1]], capture_output=True, text=True,
                          check=True)
    assert json.loads(told.stdout)["sources"] == RECORD["sources"]


@needs_vllm
def test_vllm_refuses_by_name_what_is_not_taken(monkeypatch):
    monkeypatch.delitem(sys.modules, "greenfast.vllm_backend", raising=False)
    from greenfast.vllm_backend import GreenfastBackend
    from vllm.platforms.interface import DeviceCapability

    def reasons(capability=(9, 0), **changes):
        asked = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16, use_mla=False, has_sink=True, use_sparse=False,
                     use_mm_prefix=False, use_per_head_quant_scales=False, attn_type="decoder", has_sliding_window=True)
        return GreenfastBackend.validate_configuration(device_capability=DeviceCapability(*capability), **(asked | changes))
    assert reasons() == [] and reasons(attn_type="encoder_only") == [] and reasons(use_non_causal=True) == []
    assert reasons(kv_cache_dtype="fp8") == [] and reasons(kv_cache_dtype="fp8_e4m3", head_size=64) == []
    for change, word in (({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype"), ({"kv_cache_dtype": "fp8", "capability": (10, 0)}, "Hopper"),
                         ({"kv_cache_dtype": "fp8", "head_size": 72}, "steps of 16"), ({"use_mla": True}, "MLA"), ({"head_size": 100}, "head_size"),
                         ({"use_sparse": True}, "sparse"), ({"use_mm_prefix": True}, "multimodal"), ({"use_rswa": True}, "R-SWA"),
                         ({"use_dcp": True}, "DCP"), ({"use_pcp": True}, "PCP"), ({"attn_type": "encoder_decoder"}, "encoder_decoder"),
                         ({"capability": (7, 5)}, "capability"), ({"block_size": 8}, "block_size"), ({"dtype": torch.float32}, "dtype"),
                         ({"kv_cache_dtype": "float16"}, "float16 cache"), ({"use_batch_invariant": True}, "batch invariance")):
        told = reasons(**change)
        assert len(told) == 1 and word in told[0], (change, told)


# --- forward -----------------------------------------------------------------------------------------------------------------

LAYERS = 3


def caches(order, blocks, heads, page, width, dtype, nothing=torch.nan, device="cpu"):
    """[blocks, Hkv, page, width] of each layer: one memory in one of vLLM's orders of [layer, block, head, row, element]; NaN: whatever
    is read that no request wrote shows."""
    sizes = (LAYERS, blocks, heads, page, width)
    memory = torch.full([sizes[dim] for dim in order], nothing, dtype=dtype, device=device)
    return memory.permute([order.index(dim) for dim in range(5)]).unbind(0)


class Engine:
    """What vLLM does around the backend: requests with their pages, batches of their new tokens, layers; and each request's dense
    keys and values, for the reference."""
    stored, layer = "auto", types.SimpleNamespace(_k_scale=None, _v_scale=None)  # the kind of the cache, and what vLLM's layer is to its implementation

    def __init__(self, backend, *, heads=8, heads_kv=2, width=32, width_v=None, page=16, order=(0, 1, 2, 3, 4), dtype=torch.float32, seed=0,
                 device="cpu", **options):
        self.backend, self.page, self.dtype, self.device = backend, page, dtype, torch.device(device)
        self.heads, self.heads_kv, self.width, self.width_v = heads, heads_kv, width, width_v or width
        self.rng = torch.Generator().manual_seed(seed)
        self.caches = caches(order, 64, heads_kv, page, width + self.width_v, dtype, device=device)
        self.free = torch.randperm(63, generator=self.rng).tolist()  # the last page is nobody's: where slot -1 would be written
        self.tables, self.history = {}, {}
        self.options = options
        self.layers = [backend.GreenfastImpl(heads, width, width ** -0.5, heads_kv, options.get("slopes"), options.get("window"), self.stored,
                                             options.get("softcap"), backend.AttentionType.DECODER, None, sinks=options.get("sinks"))
                       for _ in range(LAYERS)]
        for layer in self.layers:
            layer.process_weights_after_loading(dtype)
        self.builder = backend.GreenfastMetadataBuilder(None, ["layer"], None, self.device)

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.rng).to(self.dtype)

    def kept(self, x, which):
        """A key or value as it is once it is in the cache."""
        return x.float()

    def asked(self, q, step, name):
        """A request's query as kernels meet it, and how near the answer has to come for each unit of what step() returns."""
        return q.float(), 1.0

    def common(self, step, padding=0, causal=True):
        """vLLM's metadata of a step: {request: new tokens}."""
        before = {name: self.history[name][0][0].shape[0] if name in self.history else 0 for name in step}
        lengths = [before[name] + new for name, new in step.items()]
        for name, length in zip(step, lengths):
            own = self.tables.setdefault(name, [])
            while len(own) * self.page < length:
                own.append(self.free.pop())
        table = torch.full((len(step), max(len(self.tables[name]) for name in step) + 1), -7, dtype=I32)  # garbage where no page is
        slots = []
        for row, name in enumerate(step):
            table[row, :len(self.tables[name])] = torch.tensor(self.tables[name], dtype=I32)
            slots += [self.tables[name][n // self.page] * self.page + n % self.page for n in range(before[name], before[name] + step[name])]
        starts = torch.tensor([0, *np.cumsum(list(step.values()))], dtype=I32)
        tokens = sum(step.values())
        return self.backend.CommonAttentionMetadata(
            query_start_loc=starts.to(self.device), query_start_loc_cpu=starts, seq_lens=torch.tensor(lengths, dtype=I32, device=self.device),
            num_reqs=len(step), num_actual_tokens=tokens, max_query_len=max(step.values()) + 3, max_seq_len=10_000,
            block_table_tensor=table.to(self.device), slot_mapping=torch.tensor(slots + [-1] * padding, device=self.device), causal=causal)

    def step(self, step, padding=0, causal=True):
        """One forward pass of all layers; the largest error beside the reference."""
        common = self.common(step, padding, causal)
        metadata = self.builder.build(0, common)
        tokens, worst = common.num_actual_tokens, 0.0
        for n, (layer, cache) in enumerate(zip(self.layers, self.caches)):
            wide = self.randn(tokens + padding, self.heads + self.heads_kv, self.width).to(self.device)
            q, k = wide[:, :self.heads], wide[:, self.heads:]  # slices, as models make them
            v = self.randn(tokens + padding, self.heads_kv, self.width_v).to(self.device)
            output = torch.full((tokens + padding, self.heads, self.width_v), 77.0, dtype=self.dtype, device=self.device)
            layer.do_kv_cache_update(self.layer, k, v, cache, common.slot_mapping)
            assert layer.forward(self.layer, q, k, v, cache, metadata, output) is output
            assert (output[tokens:] == 77).all() and cache[-1].to(torch.float32).isnan().all()
            q, k, v, output = (x.cpu() for x in (q, k, v, output))
            first = 0
            for name, new in step.items():
                own = slice(first, first + new)
                first += new
                past = self.history.setdefault(name, [(torch.empty(0, self.heads_kv, self.width), torch.empty(0, self.heads_kv, self.width_v))] * LAYERS)
                past[n] = tuple(torch.cat([old, self.kept(x[own], which)]) for old, x, which in zip(past[n], (k, v), "kv"))
                window = self.options.get("window")
                left = -1 if window is None else window - 1
                query, unit = self.asked(q[own], step, name)
                want, _ = reference.attention(*(x.transpose(0, 1)[None].numpy() for x in (query, *past[n])), left=left,
                                              right=0 if causal else left, bottom_right=True, softcap=self.options.get("softcap") or 0.0,
                                              slopes=self.options.get("slopes"), sinks=None if "sinks" not in self.options else
                                              self.options["sinks"].float().cpu().numpy())
                error = abs(output[own].float().numpy().swapaxes(0, 1) - want[0]).max() / unit
                worst = error if not error < worst else worst
        return worst


class E4m3Engine(Engine):
    """The same with vLLM's fp8 cache: bytes, which nobody wrote are NaN, and scales of the layer."""
    SCALES = {"q": 0.03, "k": 0.02, "v": 0.05}

    def __init__(self, backend, stored="fp8", **options):
        self.stored = stored
        scales = {f"_{name}_scale": torch.tensor(value, device=options.get("device", "cpu")) for name, value in self.SCALES.items()}
        self.layer = types.SimpleNamespace(**scales, **{f"_{name}_scale_float": torch.tensor(value).item() for name, value in self.SCALES.items()})
        super().__init__(backend, **options)
        self.caches = [cache.view(torch.float8_e4m3fn) for cache in caches(options.get("order", (0, 1, 2, 3, 4)), 64, self.heads_kv, self.page,
                                                                           self.width + self.width_v, torch.uint8, 0x7f, self.device)]

    def codes(self, x, which):
        return (x.float() / self.SCALES[which]).clamp(-448, 448).to(torch.float8_e4m3fn).float() * self.SCALES[which]

    def kept(self, x, which):
        return self.codes(x, which)

    def asked(self, q, step, name):
        return self.codes(q, "q"), 0.03  # weights of 16 bits on the CPU


STEPS = [{"a": 20}, {"a": 23, "b": 5}, {"a": 1, "b": 1, "c": 33}, {"a": 1, "c": 1, "b": 1, "d": 16}, {"d": 1, "c": 1, "a": 1, "b": 1}]
SINKS = torch.linspace(-1, 2, 8)
KINDS = {
    "plain": {}, "one head": dict(heads=3, heads_kv=3), "group of all": dict(heads=8, heads_kv=1), "wide": dict(width=128), "odd page": dict(page=48),
    "window": dict(window=9), "window of 1": dict(window=1), "softcap": dict(softcap=3.0), "sinks": dict(sinks=SINKS),
    "sinks in bfloat16": dict(sinks=SINKS.bfloat16()), "slopes": dict(slopes=[2.0 ** -n for n in range(8)]),
    "all of it": dict(window=17, softcap=5.0, sinks=SINKS, slopes=[2.0 ** -n for n in range(8)]), "another width of v": dict(width=64, width_v=32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_chunks_and_tokens_in_one_batch_are_dense_attention(backend, kind):
    engine = Engine(backend, **KINDS[kind])
    with torch.inference_mode():
        assert max(engine.step(step, padding=n) for n, step in enumerate(STEPS)) < 5e-6


@pytest.mark.parametrize("dtype, limit", [(torch.bfloat16, 0.02), (torch.float16, 3e-3)])
def test_types_of_the_model(backend, dtype, limit):
    engine = Engine(backend, dtype=dtype, sinks=SINKS.to(dtype), window=30)
    assert max(engine.step(step) for step in STEPS) < limit


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (0, 2, 1, 3, 4), (1, 0, 2, 3, 4), (1, 0, 3, 2, 4), (1, 2, 0, 3, 4)])
def test_every_order_of_the_cache_in_memory(backend, order):
    engine = Engine(backend, order=order)
    assert max(engine.step(step) for step in STEPS[:3]) < 5e-6


@pytest.mark.parametrize("window", [None, 6])
def test_a_batch_that_is_not_causal_sees_both_ways(backend, window):
    engine = Engine(backend, window=window)
    assert max(engine.step(step, causal=False) for step in STEPS[:3]) < 5e-6


E4M3_STEPS = [{"a": 20}, {"a": 23, "b": 5}, {"a": 1, "b": 1, "c": 33}, {"a": 1, "c": 1, "b": 16, "d": 17}, {"d": 2, "c": 1, "a": 40, "b": 1}, {"d": 1, "c": 1, "a": 1, "b": 1}]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "slopes" not in KINDS[kind]])
def test_a_cache_of_e4m3_is_dense_attention_of_what_it_holds(backend, kind):
    engine = E4m3Engine(backend, **KINDS[kind])
    with torch.inference_mode():
        assert max(engine.step(step, padding=n) for n, step in enumerate(E4M3_STEPS)) < 1


def test_sequences_over_e4m3_are_read_in_place_short_ones_by_a_call_of_their_own(backend, monkeypatch):
    engine = E4m3Engine(backend)  # whose bound of the longest query is 3 too long
    calls = []

    def recorded(q, k, v, **options):
        calls.append((k.dtype, q.dtype, options["max_q"] * q.shape[1] // k.shape[2], k.data_ptr() in {cache.data_ptr() for cache in engine.caches}))
        return greenfast.attention(q, k, v, **options)
    monkeypatch.setattr(backend, "_attention", recorded)
    for step, kinds in (({"a": 8}, 1), ({"a": 1, "b": 7}, 1), ({"b": 1, "a": 9}, 2), ({"a": 9}, 1)):
        calls.clear()
        assert engine.step(step) < 1 and len(calls) == kinds * LAYERS
        assert all(stored == asked == torch.float8_e4m3fn and in_place for stored, asked, _, in_place in calls)
        assert kinds == 1 or max(rows for _, _, rows, _ in calls[::2]) <= 32 < min(rows for _, _, rows, _ in calls[1::2])


@pytest.mark.parametrize("options", [dict(order=(1, 0, 2, 3, 4)), dict(order=(0, 2, 1, 3, 4)), dict(stored="fp8_e4m3"), dict(dtype=torch.bfloat16), dict(dtype=torch.float16)],
                         ids=str)
def test_a_cache_of_e4m3_in_every_order_and_type(backend, options):
    engine = E4m3Engine(backend, **options)
    assert max(engine.step(step) for step in E4M3_STEPS) < 1
    assert engine.step({"e": 50}, causal=False) < 1


def write_as_vllm(key, value, key_cache, value_cache, slots, kind, k_scale, v_scale):
    """What vllm._custom_ops.reshape_and_cache_flash does, in operations of PyTorch's."""
    tokens = (slots >= 0).nonzero()[:, 0]
    size = key_cache.shape[1]
    for cache, new, scale in ((key_cache, key, k_scale), (value_cache, value, v_scale)):
        new = new[tokens]
        if kind != "auto":
            new, cache = (new.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8), cache.view(torch.uint8)
        cache[slots[tokens] // size, slots[tokens] % size] = new


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored, options", [("auto", {}), ("fp8", {}), ("fp8", dict(sinks=SINKS, window=9)), ("fp8", dict(softcap=3.0, width=128)),
                                             ("fp8", dict(heads=64, heads_kv=1, width=256)), ("fp8", dict(order=(0, 2, 1, 3, 4), heads_kv=8))], ids=str)
def test_on_a_gpu_it_is_the_same(backend, monkeypatch, dtype, stored, options):
    if stored == "fp8" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("e4m3 in pages is Hopper's")
    module = types.ModuleType("vllm._custom_ops")
    module.reshape_and_cache_flash = write_as_vllm
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", module)
    monkeypatch.setattr(sys.modules["vllm"], "_custom_ops", module, raising=False)
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    engine = (E4m3Engine if stored == "fp8" else Engine)(backend, dtype=dtype, device="cuda", **{"width": 64} | options)
    limit = 1 if stored == "fp8" else 0.03
    with torch.inference_mode():
        assert max(engine.step(step, padding=n) for n, step in enumerate(E4M3_STEPS)) < limit


def test_single_tokens_over_e4m3_ask_nothing_of_the_host(backend):
    engine = E4m3Engine(backend)
    engine.step({"a": 40, "b": 1})
    common = dataclasses.replace(engine.common({"a": 1, "b": 1}), max_query_len=1, query_start_loc_cpu=None)
    metadata = engine.builder.build(0, common)
    q, k, v = (torch.randn(2, heads, 32) for heads in (8, 2, 2))
    out = torch.full_like(q, torch.nan)
    engine.layers[0].do_kv_cache_update(engine.layer, k, v, engine.caches[0], common.slot_mapping)
    engine.layers[0].forward(engine.layer, q, k, v, engine.caches[0], metadata, out)
    assert out.isfinite().all() and not metadata.split


def test_encoders_attend_without_a_cache(backend):
    impl = backend.GreenfastImpl(8, 32, 32 ** -0.5, 2, attn_type=backend.AttentionType.ENCODER_ONLY, sliding_window=6)
    q, k, v = torch.randn(40, 8, 32), torch.randn(40, 2, 32), torch.randn(40, 2, 32)
    starts = torch.tensor([0, 30, 40], dtype=I32)
    metadata = backend.GreenfastMetadata(40, 30, starts, 30, torch.tensor([30, 10], dtype=I32), torch.empty(2, 0, dtype=I32), None, True)
    out = torch.empty_like(q)
    impl.do_kv_cache_update(None, k, v, torch.empty(0), None)
    impl.forward(None, q, k, v, torch.empty(0), metadata, out)
    for rows in (slice(0, 30), slice(30, 40)):
        want, _ = reference.attention(*(x[rows].transpose(0, 1)[None].numpy() for x in (q, k, v)), left=5, right=5)
        np.testing.assert_allclose(out[rows].transpose(0, 1), want[0], atol=5e-6)


def test_requests_that_pad_a_graph_are_empty(backend):
    engine = Engine(backend)
    engine.step({"a": 20})
    common = engine.common({"a": 1})
    pad = dict(query_start_loc=torch.tensor([0, 1, 1, 1], dtype=I32), seq_lens=torch.tensor([21, 0, 0], dtype=I32), num_reqs=3,
               block_table_tensor=torch.cat([common.block_table_tensor, torch.full((2, common.block_table_tensor.shape[1]), -1, dtype=I32)]))
    q, k, v = (torch.randn(4, heads, 32) for heads in (8, 2, 2))
    outputs = []
    for metadata in (common, dataclasses.replace(common, num_actual_tokens=4, **pad)):
        outputs.append(torch.full((4, 8, 32), 77.0))
        engine.layers[0].do_kv_cache_update(None, k, v, engine.caches[0], common.slot_mapping)
        engine.layers[0].forward(None, q, k, v, engine.caches[0], engine.builder.build(0, metadata), outputs[-1])
    assert torch.equal(*outputs) and (outputs[0][1:] == 77).all() and outputs[0][0].isfinite().all()


def test_what_is_not_taken_is_refused_by_name(backend):
    impl = backend.GreenfastImpl
    for arguments, word in ((dict(kv_cache_dtype="fp8_e5m2"), "kv_cache_dtype='fp8_e5m2'"), (dict(head_size=100), "head_size=100"),
                            (dict(kv_cache_dtype="fp8", alibi_slopes=[1.0] * 8), "'fp8' with ALiBi"),
                            (dict(kv_cache_dtype="fp8", head_size=72), "'fp8' with head_size=72"),
                            (dict(attn_type=backend.AttentionType.ENCODER_DECODER), "attn_type")):
        with pytest.raises(NotImplementedError, match=word):
            impl(**(dict(num_heads=8, head_size=64, scale=1.0, num_kv_heads=2) | arguments))
    with pytest.raises(ValueError, match=r"sinks has shape \[2\]"):
        impl(8, 64, 1.0, 2, sinks=torch.zeros(2))
    with pytest.raises(ValueError, match="num_kv_heads=3"):
        impl(8, 64, 1.0, 3)
    with pytest.raises(TypeError, match="chunk_lookback"):
        impl(8, 64, 1.0, 2, chunk_lookback=1)
    engine = Engine(backend)
    common = engine.common({"a": 4})
    with pytest.raises(NotImplementedError, match=r"cascade attention \(common_prefix_len=16\)"):
        engine.builder.build(16, common)
    for change, word in ((dict(causal=torch.tensor([True])), "causal as a tensor"), (dict(mm_req_doc_ranges={0: [(0, 2)]}), "PrefixLM"),
                         (dict(rswa_prefix_lens=torch.zeros(1)), "R-SWA")):
        with pytest.raises(NotImplementedError, match=word):
            engine.builder.build(0, dataclasses.replace(common, **change))
    output = torch.ones(4, 8, 32)
    call = (None, *(torch.zeros(4, heads, 32) for heads in (8, 2, 2)), engine.caches[0])
    with pytest.raises(NotImplementedError, match="output_scale"):
        engine.layers[0].forward(*call, engine.builder.build(0, common), output, torch.ones(1))
    engine.layers[0].forward(*call, None, output)
    assert not output.any()


def test_a_block_table_is_replaced_alone(backend):
    engine = Engine(backend)
    metadata = engine.builder.build(0, engine.common({"a": 4}))
    table, slots = torch.zeros(1, 1, dtype=I32), torch.arange(4)
    other = engine.builder.update_block_table(metadata, table, slots)
    assert other.block_table is table and other.slot_mapping is slots and metadata.block_table is not table and other.seq_lens is metadata.seq_lens


def test_on_cuda_the_cache_is_written_by_vllms_kernel(backend, monkeypatch):
    """As far as it can be seen here: the call is one that vLLM's function takes, with pages as it wants them."""
    class Cuda(torch.Tensor):
        is_cuda = True
    seen = []
    recorded = signature(RECORD["sources"]["vllm/_custom_ops.py"]["reshape_and_cache_flash"])
    module = types.ModuleType("vllm._custom_ops")
    module.reshape_and_cache_flash = lambda *arguments: seen.append(recorded.bind(*arguments).arguments)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", module)
    monkeypatch.setattr(sys.modules["vllm"], "_custom_ops", module, raising=False)
    cache = torch.zeros(5, 2, 16, 64).as_subclass(Cuda)
    impl = backend.GreenfastImpl(8, 32, 1.0, 2)
    layer, new, slots = types.SimpleNamespace(_k_scale=torch.ones(1), _v_scale=torch.ones(1)), torch.zeros(3, 2, 32), torch.arange(3)
    impl.do_kv_cache_update(layer, new, new, cache, slots)
    given = seen[0]
    assert given["key_cache"].shape == given["value_cache"].shape == (5, 16, 2, 32) and given["kv_cache_dtype"] == "auto"
    assert given["slot_mapping"] is slots and given["value_cache"].data_ptr() - given["key_cache"].data_ptr() == 32 * 4
    quantized = backend.GreenfastImpl(8, 32, 1.0, 2, kv_cache_dtype="fp8")
    quantized.do_kv_cache_update(layer, new, new, torch.zeros(5, 2, 16, 64, dtype=torch.uint8).as_subclass(Cuda), slots)
    assert seen[1]["kv_cache_dtype"] == "fp8" and seen[1]["key_cache"].dtype == torch.uint8 and seen[1]["k_scale"] is layer._k_scale
    with pytest.raises(NotImplementedError, match="head dimension 16 beside keys of 32, on CUDA"):
        impl.do_kv_cache_update(layer, new, new[..., :16], cache, slots)


# --- the plugin --------------------------------------------------------------------------------------------------------------

def test_the_package_has_the_entry_point_and_loads_no_vllm():
    (found,) = importlib.metadata.entry_points(group=RECORD["sources"]["vllm/plugins/__init__.py"]["DEFAULT_PLUGINS_GROUP"], name="greenfast")
    assert found.value == "greenfast.vllm:register"
    code = "import sys, greenfast, greenfast.vllm; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def registry(monkeypatch, **names):
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        package = types.ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    module = types.ModuleType("vllm.v1.attention.backends.registry")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_registering_twice_is_once(monkeypatch):
    import greenfast.vllm
    members = {}
    recorded = RECORD["sources"]["vllm/v1/attention/backends/registry.py"]["register_backend"]

    def register_backend(*arguments, **options):
        given = signature(recorded).bind(*arguments, **options).arguments
        assert given["backend"] not in members, "vLLM raises ValueError"
        members[given["backend"]] = given["class_path"]
    registry(monkeypatch, AttentionBackendEnum=types.SimpleNamespace(__members__=members), register_backend=register_backend)
    greenfast.vllm.register()
    greenfast.vllm.register()
    assert members == {"GREENFAST": "greenfast.vllm_backend.GreenfastBackend"}


def test_a_vllm_without_a_register_is_left_alone(monkeypatch):
    import greenfast.vllm
    registry(monkeypatch)
    with pytest.warns(RuntimeWarning, match="GREENFAST.*0.33"):
        greenfast.vllm.register()


@needs_vllm
def test_vllm_finds_the_backend_and_its_layer_runs_it():
    """In a process of its own: vLLM's plugins are loaded once."""
    done = subprocess.run([sys.executable, HERE / "vllm_layer.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("vLLM's layer is dense attention") == 2, done.stdout + done.stderr
