"""Engines of `greenfast_bench.ab --dtype e4m3`: the kernels of the library for e4m3, its 16-bit ones on the same values, and the peers'
of both kinds.

Q, K and V are N(0,1) rounded to e4m3 with factors of 1; what an engine returns is compared with fp64 on these bits.
"""

from __future__ import annotations

import copy

from greenfast_bench import capi
from greenfast_bench.serving import (Engine, FlashAttention3, Greenfast, Refused, Row, TorchCudnn, Usage, first_line, _upstream, _vllm)


# Scales of cudnn's sdpa_fp8, in the order of its signature; all 1 here.
FACTORS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")


class Greenfast16(Greenfast):
    """What the library does for the same values in 16 bits."""

    def __init__(self, dtype: str, library: capi.Library):
        super().__init__("", library)
        self.name, self._dtype = f"greenfast:{dtype}", dtype

    def room(self, data):
        return data.room(self.torch_dtype())

    def torch_dtype(self):
        import torch

        return {"fp16": torch.float16, "bf16": torch.bfloat16}[self._dtype]

    def operands(self, row, data, o):
        q, k, v, o, arrays = super().operands(row, data, o)
        return *(x.to(self.torch_dtype()) for x in (q, k, v)), o, arrays


def refuse_serving(row):
    if row.packed or row.used or row.page or row.sinks or row.softcap or row.mask:
        raise Refused("it is for dense rows")


class GreenfastE4m3(Greenfast):
    def __init__(self, variant: str, library: capi.Library, **named):
        super().__init__(variant, library, **named)
        self.accuracy = int(variant == "cuda.sm90.fp8_fast")  # it takes none but problems that allow fast accuracy


def transposed(v):
    """The same V, its keys one behind the other, as quantize_e4m3(..., transposed=True) lays them."""
    import torch

    batch, heads, seq, dim = v.shape
    there = torch.empty((batch, heads, dim, (seq + 15) // 16 * 16), dtype=torch.uint8, device=v.device)[..., :seq].transpose(2, 3)
    there.copy_(v.view(torch.uint8))
    return there.view(torch.float8_e4m3fn)


class GreenfastTransposed(GreenfastE4m3):
    """With V as our quantiser lays it where it is asked to."""

    def __init__(self, variant: str, library: capi.Library):
        super().__init__(variant, library)
        self.name = f"{self.name}:transposed"

    def operands(self, row, data, o):
        refuse_serving(row)
        return data.q, data.k, transposed(data.v), o, {}


class GreenfastFrom16(GreenfastE4m3):
    """End to end from fp16: attention_quantized of the package greenfast, which quantises Q, K and V in every call."""

    allowed = 1.5  # quantising Q, K and V counts as well: 0.061 on N(0,1) (H200, 2026-11-23)

    def __init__(self, library: capi.Library, variant: str = ""):
        import greenfast

        super().__init__(variant, library)
        self.name, self._attend = f"{self.name}:from-fp16", greenfast.attention_quantized

    def bind(self, row, data, o, clock):
        import torch

        refuse_serving(row)
        q, k, v = data.twin
        codes = data.q, data.k, transposed(data.v)
        ones = {f"{name}_scale": torch.ones(x.shape[:2], device=x.device) for name, x in zip("qkv", codes)}
        problem = self._library.serving_problem(*codes, o, arrays=ones, batch=row.batch, seq_q=row.seq_q, seq_kv=row.seq_kv, window=row.band,
                                                chunk=row.chunk)
        problem.accuracy = self.accuracy
        self.room_for(row, problem, capi.CUDA if clock.kind == "cuda" else capi.CPU, o)  # for the plan that is kept of it
        facts = {"window": row.band, "align": "bottom_right", "chunk": row.chunk, "accuracy": ("exact", "fast")[self.accuracy],
                 "variant": self._variant or None}

        def call():
            return self._attend(q, k, v, out=o, stream=clock.stream() if clock.kind == "cuda" else None, **facts)

        return call


class FlashAttention3Fp8(FlashAttention3):
    """Of vLLM's build; a factor of 1 for each sequence and head, output in bf16, the only type it has for e4m3."""

    def __init__(self):
        super().__init__("fa3-fp8", _vllm(), varlen_only=True)

    def room(self, data):
        import torch

        return data.room(torch.bfloat16)

    def known(self, row: Row, data, o) -> dict:
        import torch

        ones = torch.ones(row.batch, row.heads_kv, device=data.q.device)
        return {**super().known(row, data, o), "q_descale": ones, "k_descale": ones, "v_descale": ones}


class CudnnFp8(Engine):
    """e4m3 in, e4m3 out, through cuDNN's frontend."""

    name = "cudnn-fp8"

    def __init__(self):
        import cudnn

        self._cudnn, self._handle = cudnn, cudnn.create_handle()
        self._key = self._graph = self._tensors = self._workspace = None

    def room(self, data):
        import torch

        # NaN where nothing is written: its byte is 0x7f.
        shape = (data.row.batch, data.row.heads_q, data.row.seq_q, data.row.dim_v)
        return torch.full(shape, 0x7f, dtype=torch.uint8, device=data.q.device).view(torch.float8_e4m3fn)

    def build(self, row: Row, data, o):
        """A graph, and what it computes with by name."""
        cudnn = self._cudnn
        graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self._handle)
        tensors = {name: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=cudnn.data_type.FP8_E4M3)
                   for name, x in (("q", data.q), ("k", data.k), ("v", data.v))}
        tensors.update({name: graph.tensor(name=name, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=cudnn.data_type.FLOAT)
                        for name in FACTORS})
        facts = {"attn_scale": row.dim ** -0.5, "use_causal_mask": row.causal}
        try:
            out, _, amax_s, amax_o = graph.sdpa_fp8(**tensors, **facts, generate_stats=False)
        except TypeError:
            out, _, amax_s, amax_o = graph.sdpa_fp8(**tensors, **facts, is_inference=True)
        out.set_output(True).set_dim(list(o.shape)).set_stride(list(o.stride())).set_data_type(cudnn.data_type.FP8_E4M3)
        for amax in (amax_s, amax_o):
            amax.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
        return graph, {**tensors, "o": out, "amax_s": amax_s, "amax_o": amax_o}

    def bind(self, row, data, o, clock):
        import torch

        refuse_serving(row)
        if row.seq_q != row.seq_kv and row.causal:
            raise Refused("it aligns causal masks with the first key")
        if row.chunk or row.band[0] >= 0:
            raise Refused("no chunks and windows here")
        key = (row, data.q.stride(), data.k.stride())
        if self._key != key:
            self._key = None
            self._graph, self._tensors = self.build(row, data, o)
            self._graph.build([self._cudnn.heur_mode.A])
            self._workspace = torch.empty(max(self._graph.get_workspace_size(), 16), dtype=torch.uint8, device=o.device)
            self._key = key
        one = torch.ones(1, 1, 1, 1, device=o.device)
        values = {"q": data.q, "k": data.k, "v": data.v, "o": o, "amax_s": torch.zeros_like(one), "amax_o": torch.zeros_like(one),
                  **{name: one for name in FACTORS}}
        pack = {self._tensors[name]: x for name, x in values.items()}
        graph, workspace, handle, set_stream = self._graph, self._workspace, self._handle, self._cudnn.set_stream

        def call():
            set_stream(handle=handle, stream=clock.stream())
            graph.execute(pack, workspace, handle=handle)
            return o

        return call


class In16(Engine):
    """A 16-bit engine on the same values in fp16, which holds every e4m3: what someone would call who does not quantise."""

    def __init__(self, engine: Engine):
        self.name, self._engine = f"{engine.name}-fp16", engine

    def room(self, data):
        import torch

        return data.room(torch.float16)

    def bind(self, row, data, o, clock):
        import torch

        same = copy.copy(data)
        same.q, same.k, same.v = (x.to(torch.float16) for x in (data.q, data.k, data.v))
        same.twin = None
        return self._engine.bind(row, same, o, clock)


PEERS = {
    "fa3-fp8": FlashAttention3Fp8,
    "cudnn-fp8": CudnnFp8,
    "fa3-fp16": lambda: In16(FlashAttention3("fa3", _upstream(), varlen_only=False)),
    "cudnn-fp16": lambda: In16(TorchCudnn()),
}
DEFAULT_PEERS = "fa3-fp8,cudnn-fp8"


def open_engines(peers: list[str], variants: list[str], before: str | None) -> tuple[list[Engine], dict[str, str]]:
    """Ours first. A peer that cannot be imported is left out with its reason."""
    for name in peers:
        if name not in PEERS:
            raise Usage(f"peer '{name}' is unknown to --dtype e4m3; one of: {', '.join(PEERS)}")
    library = capi.load()
    engines: list[Engine] = [GreenfastE4m3(variant, library) for variant in ["", *variants]]
    engines += [GreenfastTransposed(variant, library) for variant in ["", *variants]
                if not variant or variant in ("cuda.sm90.fp8", "cuda.sm90.fp8_curved", "cuda.sm90.fp8_fast")]
    engines += [Greenfast16(dtype, library) for dtype in ("fp16", "bf16")]
    if before:
        engines.append(GreenfastE4m3("", capi.load(before), name="before"))
    missing = {}
    try:
        engines += [GreenfastFrom16(library, variant) for variant in ["", *(v for v in variants if v == "cuda.sm90.fp8_fast")]]
    except Exception as error:
        missing["greenfast:from-fp16"] = first_line(error)
    for name in peers:
        try:
            engines.append(PEERS[name]())
        except Exception as error:  # whatever a foreign package throws at import is a reason, not our failure
            missing[name] = first_line(error)
    return engines, missing
