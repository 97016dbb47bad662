"""What vLLM loads as its attention backend GREENFAST; greenfast.vllm makes it known.

vLLM hands out a cache [blocks, Hkv, page, D + Dv] of any order in memory, K and V side by side, which is two views to the library;
queries of all sequences lie one behind the other, whatever share of them are prompts, parts of prompts or single tokens. So a layer
is one call of greenfast.attention, without a plan and without reading lengths on the host.

A cache of e4m3 ("fp8") is read as it is; queries become e4m3 with the layer's q_scale for it. Single tokens and other short sequences, up
to 32 rows a head of K and V, have a kernel of their own, and so a call of their own where a batch has longer ones behind them: that reads
where sequences begin on the host, so graphs hold batches of single tokens alone.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)

from . import attention as _attention
from . import quantize_e4m3 as _quantize

__all__ = ["GreenfastBackend", "GreenfastImpl", "GreenfastMetadata", "GreenfastMetadataBuilder"]

_E4M3 = torch.float8_e4m3fn
_QUANTIZED = ("fp8", "fp8_e4m3")  # vLLM hands out bytes (torch.uint8) for either
_CACHES = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16, **dict.fromkeys(_QUANTIZED, _E4M3)}
_OLDEST = 80  # compute capability of the kernels that take pages
_HOPPER = 9   # that of the kernels that read pages of e4m3; the most rows a head of K and V that the one for few queries reads at once, and a step of their head dimensions
_MOST_ROWS = 32
_STEP_OF_E4M3 = 16
_WITHOUT_CACHE = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
_MOST_WIDTH = 256


def _refuse(what: str, possible: str) -> None:
    raise NotImplementedError(f"greenfast for vLLM: {what} is not offered: {possible}, or choose another --attention-backend")


def _holds_e4m3(kv_cache_spec: Any) -> bool:
    return getattr(kv_cache_spec, "dtype", None) in (torch.uint8, _E4M3)


class GreenfastBackend(AttentionBackend):
    """What vLLM asks before it selects the backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(_CACHES)
    # The default, True, would leave the cache unwritten: vLLM calls do_kv_cache_update only where this is False.
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        return "GREENFAST"

    @staticmethod
    def get_impl_cls() -> type[GreenfastImpl]:
        return GreenfastImpl

    @staticmethod
    def get_builder_cls() -> type[GreenfastMetadataBuilder]:
        return GreenfastMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        # The library takes any page. vLLM gives layers with a window the smallest size that is said here, and a page of one key
        # would cost an entry of the table for each.
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 8 <= head_size <= _MOST_WIDTH

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, *_WITHOUT_CACHE)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability.to_int() >= _OLDEST

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, block_size: int | None, use_mla: bool,
                             has_sink: bool, use_sparse: bool, use_mm_prefix: bool, device_capability: Any) -> str | None:
        stored = _CACHES.get(kv_cache_dtype)
        if stored == _E4M3:
            if head_size % _STEP_OF_E4M3:
                return f"a {kv_cache_dtype} cache with head_size {head_size}: kernels read e4m3 in steps of {_STEP_OF_E4M3}"
            if device_capability is not None and device_capability.to_int() // 10 != _HOPPER:
                return f"a {kv_cache_dtype} cache before or after Hopper (compute capability 9.0): the kernel there that reads e4m3 in pages does not divide keys, and is slow for few queries"
            return None
        if stored is not None and stored != dtype:
            return f"a {kv_cache_dtype} cache under {dtype} queries: kernels read one type, --kv-cache-dtype auto makes it so"
        return None


@dataclasses.dataclass
class GreenfastMetadata:
    """A batch as forward() reads it. Arrays are vLLM's own buffers, which it refills between replays of a graph."""
    num_actual_tokens: int         #: rows of query that are tokens; what lies behind pads
    max_query_len: int             #: most of one sequence's, or more
    query_start_loc: torch.Tensor  #: int32 [sequences + 1]
    max_seq_len: int               #: most keys of one sequence, or more
    seq_lens: torch.Tensor         #: int32 [sequences]: keys, those of this step included
    block_table: torch.Tensor      #: int32 [sequences, pages]
    slot_mapping: torch.Tensor     #: int64 [tokens]: page * page size + row, -1 for tokens that pad
    causal: bool
    starts: torch.Tensor | None = None  #: query_start_loc on the host
    split: dict[int, tuple[int, int] | None] = dataclasses.field(default_factory=dict)  #: found by layers of this batch

    def split_of(self, most: int) -> tuple[int, int] | None:
        """The first sequence that has more than `most` rows, and the most rows of one before it; None: there is none."""
        if self.max_query_len <= most:
            return None
        if most not in self.split:
            assert self.starts is not None
            starts = self.starts.tolist()
            rows = [end - begin for begin, end in zip(starts, starts[1:])]
            first = next((n for n, count in enumerate(rows) if count > most), None)
            self.split[most] = None if first is None else (first, max(rows[:first], default=0))
        return self.split[most]


class GreenfastMetadataBuilder(AttentionMetadataBuilder[GreenfastMetadata]):
    # Kernels read lengths, pages and where sequences begin on the device, host maxima may be loose, sequences may be empty, and scratch
    # is PyTorch's, which a capture keeps: so a graph of any batch may be replayed with any that its maxima cover.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if _holds_e4m3(kv_cache_spec):
            self.reorder_batch_threshold = 1  # vLLM puts single tokens first, before the sequences that another kernel takes

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE if _holds_e4m3(kv_cache_spec) else cls._cudagraph_support

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> GreenfastMetadata:
        common = common_attn_metadata
        if common_prefix_len:
            _refuse(f"cascade attention (common_prefix_len={common_prefix_len})", "pass 0: a shared prefix is read through the page table")
        if isinstance(common.causal, torch.Tensor):
            _refuse("causal as a tensor, one for each sequence", "True or False for the whole batch")
        for name, meaning in (("mm_req_doc_ranges", "PrefixLM"), ("rswa_prefix_lens", "R-SWA")):
            if getattr(common, name, None) is not None:
                _refuse(f"{name} ({meaning})", "leave it out")
        return GreenfastMetadata(common.num_actual_tokens, common.max_query_len, common.query_start_loc, common.max_seq_len, common.seq_lens,
                                 common.block_table_tensor, common.slot_mapping, common.causal, common.query_start_loc_cpu)

    def update_block_table(self, metadata: GreenfastMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor) -> GreenfastMetadata:
        other = copy.copy(metadata)
        other.block_table, other.slot_mapping = blk_table, slot_mapping
        return other


class GreenfastImpl(AttentionImpl[GreenfastMetadata]):
    """One layer."""

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None, alibi_slopes: list[float] | None = None,
                 sliding_window: int | None = None, kv_cache_dtype: str = "auto", logits_soft_cap: float | None = None,
                 attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: str | None = None,
                 sinks: torch.Tensor | None = None) -> None:
        if kv_cache_dtype not in _CACHES:
            _refuse(f"kv_cache_dtype={kv_cache_dtype!r}", f"{', '.join(_CACHES)} are possible")
        if not GreenfastBackend.supports_attn_type(attn_type):
            _refuse(f"attn_type={str(attn_type)!r}", "decoder, encoder and encoder_only are possible")
        if not GreenfastBackend.supports_head_size(head_size):
            _refuse(f"head_size={head_size}", f"8 to {_MOST_WIDTH} in steps of 8 is possible")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.attn_type, self.kv_sharing_target_layer_name = kv_cache_dtype, attn_type, kv_sharing_target_layer_name
        self.quantized = kv_cache_dtype in _QUANTIZED and attn_type not in _WITHOUT_CACHE
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(f"greenfast for vLLM: num_heads={num_heads} is no multiple of num_kv_heads={num_kv_heads}")
        self.group = num_heads // self.num_kv_heads
        if self.quantized and alibi_slopes is not None:
            _refuse(f"kv_cache_dtype={kv_cache_dtype!r} with ALiBi", "'auto' is possible")
        if self.quantized and head_size % _STEP_OF_E4M3:
            _refuse(f"kv_cache_dtype={kv_cache_dtype!r} with head_size={head_size}", f"steps of {_STEP_OF_E4M3} are possible")
        if sinks is not None and tuple(sinks.shape) != (num_heads,):
            raise ValueError(f"greenfast for vLLM: sinks has shape {list(sinks.shape)}: [num_heads], that is [{num_heads}], is expected")
        self.sliding_window, self.softcap = sliding_window, logits_soft_cap or 0.0
        self.sinks = self._sinks = sinks  # the model's own parameter, and what kernels read
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        # Kernels read float32, and checkpoints have sinks of the model's type: once here, not once a step.
        if self.sinks is not None:
            self._sinks = self.sinks.detach().float()

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: GreenfastMetadata, output: torch.Tensor, output_scale: torch.Tensor | None = None,
                output_block_scale: torch.Tensor | None = None) -> torch.Tensor:
        """query [tokens, Hq, D], key and value [tokens, Hkv, D], kv_cache [blocks, Hkv, page, D + Dv] -> output [tokens, Hq, Dv], written
        for the tokens that are not padding. The cache has the keys of this step already (do_kv_cache_update). attn_metadata None: vLLM
        measures memory, and output is zeros."""
        if output_scale is not None or output_block_scale is not None:
            _refuse("output_scale or output_block_scale (a quantized output)", "leave the fusion of attention and quantization off")
        if attn_metadata is None:
            return output.fill_(0)
        batch = attn_metadata
        causal = batch.causal and self.attn_type not in _WITHOUT_CACHE
        left, right = -1, 0 if causal else -1
        if self.sliding_window is not None:
            left = self.sliding_window - 1  # vLLM's window counts the query's own key
            right = 0 if causal else left
        # Features that are not given are not named: a plain call stays one.
        features: dict[str, Any] = {"scale": self.scale, "window": (left, right), "align": "bottom_right", "softcap": self.softcap, "layout": "bshd"}
        if self._sinks is not None:
            features["sinks"] = self._sinks.detach().float()  # no copy once weights are loaded
        if self.alibi_slopes is not None:
            if self.alibi_slopes.device != query.device:
                self.alibi_slopes = self.alibi_slopes.to(query.device)
            features["slopes"] = self.alibi_slopes
        rows = batch.num_actual_tokens
        if self.quantized:
            self._forward_e4m3(layer, query[:rows], kv_cache, batch, output[:rows], features)
            return output
        if self.attn_type in _WITHOUT_CACHE:
            k, v = key[:rows], value[:rows]
            features |= {"cu_kv": batch.query_start_loc, "max_kv": batch.max_query_len}
        else:
            k, v = self._pages(kv_cache)
            # vLLM's bound may be the model's longest text, above what a row of the table has room for.
            features |= {"used_kv": batch.seq_lens, "page_table": batch.block_table,
                         "max_kv": min(batch.max_seq_len, batch.block_table.shape[1] * k.shape[1])}
        _attention(query[:rows], k, v, out=output[:rows], cu_q=batch.query_start_loc, max_q=batch.max_query_len, **features)
        return output

    def _pages(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, [blocks, page, Hkv, D], of a cache."""
        pages = kv_cache.transpose(1, 2)
        return pages[..., :self.head_size], pages[..., self.head_size:]

    def _forward_e4m3(self, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor, batch: GreenfastMetadata, output: torch.Tensor,
                      features: dict[str, Any]) -> None:
        possible = max(1, _MOST_ROWS // self.group)
        k, v = self._pages(kv_cache.view(_E4M3))
        codes = _quantize(query[None], scale=layer._q_scale, layout="bshd")[0][0]
        features |= {"q_scale": layer._q_scale, "k_scale": layer._k_scale, "v_scale": layer._v_scale,
                     "max_kv": min(batch.max_seq_len, batch.block_table.shape[1] * kv_cache.shape[2])}

        def attend(sequences: slice, starts: torch.Tensor, most: int) -> None:
            _attention(codes, k, v, out=output, cu_q=starts, max_q=most, used_kv=batch.seq_lens[sequences],
                       page_table=batch.block_table[sequences], **features)

        starts, split = batch.query_start_loc, batch.split_of(possible)
        if split is None:
            attend(slice(None), starts, min(batch.max_query_len, possible))
            return
        first, most = split
        if first:
            attend(slice(first), starts[:first + 1], most)
        attend(slice(first, None), starts[first:], batch.max_query_len)

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Writes key and value of this step's tokens to their slots; those at -1 pad. On CUDA by vLLM's own kernel."""
        if self.attn_type in _WITHOUT_CACHE:
            return
        caches = self._pages(kv_cache)
        if kv_cache.is_cuda:
            if value.shape[-1] != self.head_size:
                _refuse(f"a value of head dimension {value.shape[-1]} beside keys of {self.head_size}, on CUDA", "one width for both is possible")
            from vllm import _custom_ops
            kind = self.kv_cache_dtype if self.quantized else "auto"
            _custom_ops.reshape_and_cache_flash(key, value, *caches, slot_mapping, kind, layer._k_scale, layer._v_scale)
            return
        tokens = (slot_mapping >= 0).nonzero()[:, 0]
        size = kv_cache.shape[2]
        page, row = slot_mapping[tokens] // size, slot_mapping[tokens] % size
        if self.quantized:
            caches = self._pages(kv_cache.view(torch.uint8))
        for cache, new, scale in zip(caches, (key, value), ("_k_scale", "_v_scale")):
            if self.quantized:
                codes, _ = _quantize(new[None, tokens], scale=getattr(layer, scale), layout="bshd")
                cache[page, row] = codes[0].view(torch.uint8)
            else:
                cache[page, row] = new[tokens].to(cache.dtype)
