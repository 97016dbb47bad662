"""PyTorch 2.6 and later: Greenfast where torch.nn.functional.scaled_dot_product_attention stands, and in its place.

    from greenfast.torch import scaled_dot_product_attention      # the same function, one import
    with greenfast.torch.replace_sdpa(): model(x)                 # every call of torch.nn.functional's
    torch.nn.attention.activate_flash_attention_impl("greenfast") # torch 2.10: from inside SDPA, where it selects FLASH

What the library does not do goes to PyTorch's own SDPA, which is said once for each reason as a FallbackWarning;
fallback="error" raises NotImplementedError instead.

Gradients are computed by PyTorch's own backward from (out, lse), where that is exact: full attention, and causal with
equal lengths (on the CPU, aligned top-left, also with unequal ones); grouped heads; on the CPU masks and values of another
head dimension; float32, float16 and bfloat16 on the CPU, float16 and bfloat16 on CUDA. With anything else (window, softcap, e4m3, another out_dtype) tensors that require
gradients are refused by name, before any work. There is no second derivative.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from typing import Any

import torch
from torch.autograd import forward_ad as _forward_ad
from torch.nn import functional as _functional

from . import _arrays, _core

__all__ = ["FallbackWarning", "replace_sdpa", "scaled_dot_product_attention"]

Tensor = torch.Tensor
_SDPA = _functional.scaled_dot_product_attention
_is_compiling, _is_dynamo_compiling = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling
if hasattr(torch.compiler, "_is_exporting_flag"):  # torch 2.7 has it first

    def _is_exporting() -> bool:
        """torch.compiler.is_exporting(), for which Dynamo of torch 2.11 takes True in torch.compile too."""
        return torch.compiler._is_exporting_flag
else:
    _is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
_is_grad_enabled, _is_any_autocast_enabled = torch.is_grad_enabled, torch._C._is_any_autocast_enabled
_dispatch_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_increment_version = torch.autograd.graph.increment_version
_EXACT = frozenset((torch.Tensor, torch.nn.Parameter))
_CODES = {getattr(torch, name): code for code, name in enumerate((*_arrays.DTYPES, "int32", "bool"))}
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16))
_TOP_LEFT, _BOTTOM_RIGHT = 0, 1
_LARGEST_SCALE = 2.0 ** 126
_NUMBERS = frozenset((int, bool))
_FLOAT_FEATURES = 3  # mask, sinks, slopes: the first of them
_NO_MASK = tuple(_arrays.FEATURES.values())[1:]
_CU_Q, _VALIDATE = (list(_arrays.FEATURES).index(name) for name in ("cu_q", "validate"))
# Torch 2.10 and later hand out DLPack's function table. Before, tensors are read attribute by attribute.
_table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_DIRECT = _table is not None and all([_core.register_type(kind, _table) for kind in _EXACT])
# PyTorch's SDPA divides by how many heads there are, and without any the process ends: with enable_gqa by key's and value's (2.6, 2.11), on the CPU
# by query's (2.11). 2.15 does not; what lies between was not tried.
_DIVIDES = torch.__version__ < (2, 15)
_devices: int | None = None


class FallbackWarning(UserWarning):
    """A call went to PyTorch's own attention; the text says why. Once for each reason."""


# --- reading tensors -----------------------------------------------------------------------------------------------

def _layered() -> bool:
    """Whether somebody watches calls of operators: a dispatch mode, a trace, forward-mode derivatives. (Tensors inside vmap and
    torch.func.grad have no memory, which the library's module finds.)"""
    return _dispatch_modes() > 0 or _is_tracing() or _forward_ad._current_level >= 0


@torch.compiler.assume_constant_result
def _dual_level() -> int:
    """-1: nobody asks for forward-mode derivatives. Graphs are guarded by it."""
    return _forward_ad._current_level


@torch.compiler.assume_constant_result
def _transformed() -> bool:
    """Whether a transform of torch.func runs this. Dynamo enters them while it traces, and guards its graphs by them."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _has_tangent(*tensors: Any) -> bool:
    """Whether a forward-mode derivative flows through one of them. What is traced does not say which tensors have one: all count there."""
    if _is_compiling():
        return _dual_level() >= 0
    return _forward_ad._current_level >= 0 and any(
        isinstance(x, torch.Tensor) and _forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _no_tangent(function: str, *tensors: Any) -> None:
    """Asked by operators: a graph that was traced outside forward-mode derivatives may be called inside of them, and tangents end at an operator
    that has no formula, without a word."""
    if _forward_ad._current_level >= 0 and any(x is not None and _forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        _refuse_tangent(function)


def _refuse_tangent(function: str) -> None:
    raise NotImplementedError(f"forward-mode derivatives through greenfast.{function} are not offered: use PyTorch's attention there, or "
                              "pass the primals")


def _of_torch(names: Any, tensors: tuple[Any, ...]) -> None:
    """Refuses what another library made: a call's tensors are of one library."""
    for name, x in zip(names, tensors):
        if x is not None and not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__module__}.{type(x).__name__}, and the first tensor PyTorch's: pass all of one library")


def _written(*tensors: Any) -> None:
    """Tells PyTorch that memory of the caller's holds something else now: backward of who saved it before raises, as after any
    operation in place, and does not compute with the new values."""
    given = [x for x in tensors if isinstance(x, torch.Tensor)]
    if given:
        _increment_version(given)


def _describe(name: str, x: Tensor) -> Any:
    """x as _core reads it. Memory that is not there, or not laid out in strides, is refused here."""
    if type(x) not in _EXACT:
        _of_torch((name,), (x,))
        raise TypeError(f"{name} is {type(x).__module__}.{type(x).__name__}, which holds no memory of its own: pass a torch.Tensor")
    if x.layout != torch.strided or x.is_nested or x.is_conj() or x.is_neg() or x._is_zerotensor():
        kind = "nested" if x.is_nested else str(x.layout) if x.layout != torch.strided else "conjugate, negated or zero"
        raise TypeError(f"{name} is a {kind} tensor: only plain strided ones can be read; convert it (to_dense, resolve_neg, ...)")
    if x.device.type not in _arrays.DEVICES:
        raise TypeError(f"{name} lies on {x.device}: only CPU and CUDA tensors hold memory that can be read")
    code = _CODES.get(x.dtype)
    if code is None:
        _arrays.element_code(name, x.dtype)  # says what is possible
    if _DIRECT:
        return x
    return (x.data_ptr(), tuple(x.shape), x.stride(), code, _arrays.DEVICES.index(x.device.type), x.device.index or 0, False, x)


_arrays.READERS.append((Tensor, _describe))


def _check_storage(name: str, x: Any) -> None:
    """Refuses a tensor whose storage was made smaller than what it says. 1.4 us each, a third of a whole short call (2-core Xeon, 2026-11-26), so on
    request alone; a storage without memory is always refused."""
    if isinstance(x, torch.Tensor) and x.numel() > 0:
        last = x.storage_offset() + sum((size - 1) * step for size, step in zip(x.shape, x.stride()))
        if (last + 1) * x.element_size() > x.untyped_storage().nbytes():
            raise ValueError(f"{name} needs {(last + 1) * x.element_size()} bytes, and its storage has {x.untyped_storage().nbytes()}: it was resized "
                             "or freed; make the tensor anew")


def _scratch(size: int, index: int) -> tuple[int, Any]:
    memory = torch.empty(size, dtype=torch.uint8, device=f"cuda:{index}")
    return memory.data_ptr(), memory


def _scratch_on(stream: int | None) -> Any:
    """Scratch for work on that stream, whose allocator may give it to nobody else before the work is done; None: on the current one."""
    if stream is None:
        return _scratch
    stream = 0 if stream == 1 else stream  # cudaStreamLegacy, which PyTorch knows as 0

    def scratch(size: int, index: int) -> tuple[int, Any]:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=index)):
            return _scratch(size, index)

    return scratch


def _scratch_of(x: Tensor, stream: int | None = None) -> Any:
    """How quantising gets scratch; on the CPU it wants none."""
    return _scratch_on(stream) if x.is_cuda else None


def _out_dtype(q: Tensor, given: Any) -> torch.dtype:
    if given is None:
        return torch.float16 if q.dtype == torch.float8_e4m3fn else q.dtype
    return given if isinstance(given, torch.dtype) else getattr(torch, _arrays.DTYPES[_arrays.dtype_code(given)])


def _run(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, q_scale: Tensor | None, k_scale: Tensor | None,
         v_scale: Tensor | None, scale: float | None, softcap: float, left: int, right: int, align: int, bshd: int, variant: str | None,
         batch_invariant: bool, stream: int | None, more: tuple[Any, ...] | None = None) -> None:
    """The library's call on plain tensors, on their device."""
    tensors = (q, k, v, out, lse, q_scale, k_scale, v_scale)
    # The table refuses everything that is not plain strided memory, but reads past a lazy negation (torch 2.15).
    if not _DIRECT or q.is_neg() or k.is_neg() or v.is_neg() or out.is_neg():
        tensors = tuple(None if x is None else _describe(name, x) for name, x in zip(
            ("q", "k", "v", "out", "lse", "q_scale", "k_scale", "v_scale"), tensors))
    if more is not None and more[_VALIDATE]:
        for name, x in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse), ("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale),
                        *zip(_arrays.FEATURES, more)):
            _check_storage(name, x)
    if more is not None and not (_DIRECT and _readable(more)):
        more = _arrays.describe_features(more)
    scratch = _scratch
    if q.is_cuda:
        if stream is not None:
            scratch = _scratch_on(stream)
        elif not _DIRECT:
            stream = torch.cuda.current_stream(q.device).cuda_stream
        if _elsewhere(q):
            with torch.cuda.device(q.device):
                _core.attention(*tensors, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, scratch, more)
            return
    try:
        _core.attention(*tensors, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, scratch, more)
    except TypeError:
        for name, x in zip(("q", "k", "v", "out"), (q, k, v, out)):
            _describe(name, x)  # knows better why a tensor cannot be read
        raise


def _readable(more: tuple[Any, ...]) -> bool:
    """Whether the module reads the arrays of these features as they are."""
    for x in more:
        kind = type(x)
        if x is not None and kind not in _NUMBERS and (kind not in _EXACT or x.is_neg()):
            return False
    return True


def _elsewhere(q: Tensor) -> bool | None:
    """Whether q lies on a GPU that is not this thread's; None: there is one alone, and never need be asked again."""
    global _devices
    if _devices is None:
        _devices = torch.cuda.device_count()
    return None if _devices == 1 else torch.cuda.current_device() != q.device.index


def _attention(q: Any, k: Any, v: Any, out: Any, lse: Any, q_scale: Any, k_scale: Any, v_scale: Any, scale: float | None, softcap: float,
               left: int, right: int, align: int, bshd: int, variant: str | None, batch_invariant: bool, stream: int | None, out_dtype: Any,
               return_lse: bool, more: tuple[Any, ...] | None = None) -> Any:
    """greenfast.attention for PyTorch's tensors."""
    made, made_lse = out is None, lse is None
    if (not _is_compiling() and type(q) in _EXACT and type(k) in _EXACT and type(v) in _EXACT and (made or type(out) in _EXACT)
            and (made_lse or type(lse) in _EXACT) and not _layered()
            and not (_is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or more is not None and _learns(more)
                                             or not made and out.requires_grad or not made_lse and lse.requires_grad))):
        if made:
            out = torch.empty_like(q, dtype=_out_dtype(q, out_dtype)) if out_dtype is not None or q.dtype == torch.float8_e4m3fn \
                else torch.empty_like(q)
        elif out_dtype is not None and out.dtype != _out_dtype(q, out_dtype):
            raise TypeError(f"out is {out.dtype} and out_dtype {out_dtype}: leave one of them out")
        if return_lse and lse is None:
            lse = _empty_lse(q, bshd, more is not None and more[_CU_Q] is not None)
        try:
            _run(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, more)
        except ValueError:
            # Comparing two head dimensions costs 0.3 us, so only a refusal, which comes before any work, makes it worth asking.
            if not made or not q.dim() or not v.dim() or q.size(-1) == v.size(-1):
                raise
            out = _empty_out(q, v, _out_dtype(q, out_dtype))
            _run(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, more)
        if not made or not made_lse:
            _written(None if made else out, None if made_lse else lse)
        return (out, lse) if return_lse else out
    return _through_op(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, align, bshd, variant, batch_invariant,
                       stream, out_dtype, return_lse, more)


def _no_plain_sdpa(q: Any, k: Any, v: Any, is_causal: Any, scale: Any, enable_gqa: Any) -> None:
    return None


# A call that says no more than tensors, an output and a few numbers is read and checked in C.
if _DIRECT:
    _package = sys.modules[__package__]
    # Dynamo traces through the whole: where it meets the short ways they take nothing. To ask whether it is tracing took each call 26 ns.
    torch.compiler.substitute_in_graph(_core.plain, skip_signature_check=True)(_package._no_shortcut)
    torch.compiler.substitute_in_graph(_core.plain_sdpa, skip_signature_check=True)(_no_plain_sdpa)
    # What compiled graphs of Inductor make their buffers with: 0.2 us less than empty_like (2026-11-26).
    _empty = {f"empty_{kind}": getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None) for kind in ("cpu", "cuda")}
    if _core.plain_ready(
            tensor=torch.Tensor, parameter=torch.nn.Parameter, is_neg=torch.empty(0, device="cpu").is_neg, is_grad_enabled=_is_grad_enabled,
            dispatch_modes=_dispatch_modes, is_tracing=_is_tracing, function_modes=torch._C._is_torch_function_mode_enabled,
            transforms=torch._C._are_functorch_transforms_active, autocast=_is_any_autocast_enabled, empty_like=torch.empty_like, **_empty,
            increment_version=torch._C._increment_version, elsewhere=_elsewhere, scratch=_scratch, forward_ad=vars(_forward_ad),
            compiler=vars(torch.compiler)):
        _package._shortcut = _core.plain


def _learns(more: tuple[Any, ...]) -> bool:
    """Whether a mask, sinks or slopes require gradients."""
    return any(x is not None and getattr(x, "requires_grad", False) for x in more[:_FLOAT_FEATURES])


def _empty_lse(q: Tensor, bshd: int, packed: bool = False) -> Tensor:
    return torch.empty(_arrays.lse_shape(q.shape, bshd, packed), dtype=torch.float32, device=q.device)


def _empty_out(q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for an output of v's head dimension, in q's order of strides."""
    order = sorted(range(q.dim() - 1), key=lambda dim: -q.stride(dim))
    made = torch.empty([q.shape[dim] for dim in order] + [v.shape[-1]], dtype=dtype, device=q.device)
    return made.permute([order.index(dim) for dim in range(q.dim() - 1)] + [q.dim() - 1])


# --- the op: for torch.compile, subclasses and gradients ----------------------------------------------------------------

_library = torch.library.Library("greenfast", "DEF")
# attention has a gradient; attention_forward is the same without one. Where no tensor requires gradients the latter is called: a
# formula registered from Python costs every call, also those without gradients, more than all the rest (torch 2.15, 2026-11-22).
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? q_scale=None, Tensor? k_scale=None, Tensor? v_scale=None, *, float? scale=None, "
    "float softcap=0.0, SymInt left=-1, SymInt right=-1, int align=2, bool bshd=False, str? variant=None, bool batch_invariant=False, "
    "ScalarType? out_dtype=None, bool with_lse=True) -> (Tensor out, Tensor lse)")
# Inductor may choose strides of its own for what a graph computes, and where only their order is fixed it makes memory of an expanded tensor
# with the expanded dimension innermost, which no kernel reads (torch 2.11 and 2.15, 2026-11-26).
_EXACT_STRIDES = hasattr(torch.Tag, "needs_exact_strides")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides if _EXACT_STRIDES else torch.Tag.needs_fixed_stride_order)


def _op(q, k, v, q_scale=None, k_scale=None, v_scale=None, *, scale=None, softcap=0.0, left=-1, right=-1, align=2, bshd=False,
        variant=None, batch_invariant=False, out_dtype=None, with_lse=True):
    _no_tangent("attention", q, k, v)
    out, lse = _op_fake(q, k, v, bshd=bshd, out_dtype=out_dtype, with_lse=with_lse)
    _run(q, k, v, out, lse if with_lse else None, q_scale, k_scale, v_scale, scale, softcap, left, right, align, int(bshd), variant,
         batch_invariant, None)
    return out, lse


def _op_fake(q, k, v, q_scale=None, k_scale=None, v_scale=None, *, scale=None, softcap=0.0, left=-1, right=-1, align=2, bshd=False,
             variant=None, batch_invariant=False, out_dtype=None, with_lse=True):
    return _made(q, v, bshd, out_dtype, with_lse, False)


def _made(q, v, bshd, out_dtype, with_lse, packed):
    if q.shape[-1] != v.shape[-1]:
        out = _empty_out(q, v, _out_dtype(q, out_dtype))
    elif out_dtype is None and q.dtype != torch.float8_e4m3fn:
        out = torch.empty_like(q)
    else:
        out = torch.empty_like(q, dtype=_out_dtype(q, out_dtype))
    return out, _empty_lse(q, bshd, packed) if with_lse else torch.empty(0, dtype=torch.float32, device=q.device)


for _name in ("attention", "attention_forward"):
    _library.define(_name + _SCHEMA, tags=_TAGS)
    _library.impl(_name, _op, "CPU")
    _library.impl(_name, _op, "CUDA")
    torch.library.register_fake(f"greenfast::{_name}", _op_fake, lib=_library)


# The same with features: an operator of its own, since each argument of one costs every call of it.
_FEATURE_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? q_scale, Tensor? k_scale, Tensor? v_scale, Tensor? mask, Tensor? sinks, Tensor? slopes, "
    "Tensor? cu_q, Tensor? cu_kv, Tensor? used_q, Tensor? used_kv, Tensor? kv_start, Tensor? kv_index, Tensor? page_table, *, "
    "SymInt chunk=0, SymInt? max_q=None, SymInt? max_kv=None, int max_splits=0, bool validate=False, int accuracy=0, float? scale=None, "
    "float softcap=0.0, SymInt left=-1, SymInt right=-1, int align=2, bool bshd=False, str? variant=None, bool batch_invariant=False, "
    "ScalarType? out_dtype=None, bool with_lse=True) -> (Tensor out, Tensor lse)")


def _op_features(q, k, v, q_scale, k_scale, v_scale, mask, sinks, slopes, cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, page_table, *,
                 chunk=0, max_q=None, max_kv=None, max_splits=0, validate=False, accuracy=0, scale=None, softcap=0.0, left=-1, right=-1,
                 align=2, bshd=False, variant=None, batch_invariant=False, out_dtype=None, with_lse=True):
    _no_tangent("attention", q, k, v, mask, sinks, slopes)
    out, lse = _made(q, v, bshd, out_dtype, with_lse, cu_q is not None)
    more = (mask, sinks, slopes, chunk, cu_q, cu_kv, max_q, max_kv, used_q, used_kv, kv_start, kv_index, page_table, max_splits, validate,
            accuracy)
    if cu_q is not None or used_q is not None:  # rows of no sequence are not written, and an operator's result is defined
        out.zero_()
        lse.fill_(-torch.inf)
    _run(q, k, v, out, lse if with_lse else None, q_scale, k_scale, v_scale, scale, softcap, left, right, align, int(bshd), variant,
         batch_invariant, None, more)
    return out, lse


def _op_features_fake(q, k, v, q_scale, k_scale, v_scale, mask, sinks, slopes, cu_q, *arrays, bshd=False, out_dtype=None, with_lse=True, **rest):
    return _made(q, v, bshd, out_dtype, with_lse, cu_q is not None)


for _name in ("attention_features", "attention_features_forward"):
    _library.define(_name + _FEATURE_SCHEMA, tags=_TAGS)
    _library.impl(_name, _op_features, "CPU")
    _library.impl(_name, _op_features, "CUDA")
    torch.library.register_fake(f"greenfast::{_name}", _op_features_fake, lib=_library)


# What compiled models call: an operator written in Python takes longer the more arguments it has.
_library.define("sdpa(Tensor q, Tensor k, Tensor v, bool causal, float? scale) -> Tensor", tags=_TAGS)


def _op_sdpa(q, k, v, causal, scale):
    _no_tangent("attention", q, k, v)
    out = torch.empty_like(q)
    _run(q, k, v, out, None, None, None, None, scale, 0.0, -1, 0 if causal else -1, _TOP_LEFT, 0, None, False, None)
    return out


_library.impl("sdpa", _op_sdpa, "CPU")
_library.impl("sdpa", _op_sdpa, "CUDA")
torch.library.register_fake("greenfast::sdpa", lambda q, k, v, causal, scale: torch.empty_like(q), lib=_library)


def _flops(q, k, v, bshd=False, cu_q=None, cu_kv=None, used_q=None, used_kv=None, page_table=None):
    """Those of both products, as PyTorch counts them for its own: whatever is masked counts."""
    heads, width = q.shape[-2 if bshd else -3], q.shape[-1] + v.shape[-1]
    batch = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
    rows, keys = (x.shape[-3 if bshd else -2] for x in (q, k))
    if page_table is not None:
        keys = keys * page_table.shape[1]
    rows, keys = ([whole] * batch if used is None and cu is None else used.tolist() if used is not None else cu.diff().tolist()
                  for whole, used, cu in ((rows, used_q, cu_q), (keys, used_kv, cu_kv)))
    return 2 * heads * width * sum(r * c for r, c in zip(rows, keys))


def _count_flops() -> None:
    """Tells torch.utils.flop_counter of the operators, without which it would count nothing."""
    log = logging.getLogger("torch.utils.flop_counter")
    said, log.disabled = log.disabled, True  # it warns of a missing Triton as it is imported, which is nothing to whoever imports this package
    try:
        from torch.utils.flop_counter import register_flop_formula
    finally:
        log.disabled = said
    ops = torch.ops.greenfast

    @register_flop_formula([ops.sdpa, ops.attention, ops.attention_forward], get_raw=True)
    def forward(q, k, v, *args, bshd=False, out_val=None, **options):
        return _flops(q, k, v, bshd)

    @register_flop_formula(ops.attention_quantized, get_raw=True)
    def quantized(q, k, v, *arrays, bshd=False, out_val=None, **options):
        return _flops(q, k, v, bshd)

    @register_flop_formula([ops.attention_features, ops.attention_features_forward], get_raw=True)
    def features(q, k, v, q_scale, k_scale, v_scale, mask, sinks, slopes, cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, page_table, *,
                 bshd=False, out_val=None, **options):
        return _flops(q, k, v, bshd, cu_q, cu_kv, used_q, used_kv, page_table)

    @register_flop_formula(ops.attention_backward, get_raw=True)
    def backward(grad_out, q, k, v, out, lse, scale, causal, bshd, mask=None, out_val=None):
        return _flops(q, k, v, bshd) * 5 // 2  # five products, of which PyTorch counts the one that is computed again too


def _no_gradient(q: Tensor, k: Tensor, v: Tensor, left: int, right: int, align: int, bshd: bool, softcap: float, out_dtype: Any,
                 more: tuple[Any, ...] | None = None) -> str | None:
    """Why PyTorch's backward would not be exact; None: it is."""
    if more is not None:
        named = dict(zip(_arrays.FEATURES, more))
        for name, x in named.items():
            if name not in _GRADIENT_FEATURES and x is not None and x is not False and (isinstance(x, torch.Tensor) or x != 0):
                return name
        if named["mask"] is not None and (q.is_cuda or named["mask"].requires_grad):
            return "a mask " + ("on CUDA" if q.is_cuda else "that requires gradients itself")
    if q.is_cuda and v.shape[-1] != q.shape[-1]:
        return "a value of another head dimension on CUDA"
    if q.dtype == torch.float8_e4m3fn:
        return "float8_e4m3fn"
    if q.is_cuda and q.dtype == torch.float32:
        return "float32 on CUDA"
    if softcap != 0.0:
        return "softcap"
    if left >= 0 or right > 0:
        return "a window"
    if out_dtype is not None and _out_dtype(q, out_dtype) != q.dtype:
        return "an out_dtype that is not the input's"
    if right == 0:
        dim = 1 if bshd else 2
        if (q.is_cuda or align != _TOP_LEFT) and q.shape[dim] != k.shape[dim]:
            return "a causal mask over unequal lengths" + ("" if q.is_cuda else " that is aligned bottom-right")
    return None


_GRADIENT_FEATURES = frozenset(("mask", "max_splits", "validate"))


def _refuse_gradient(reason: str) -> None:
    raise NotImplementedError(f"gradients through greenfast.attention with {reason} are not offered: detach the tensors or call it under "
                              "torch.no_grad(), use PyTorch's attention there, or leave the feature out")


def _setup_context(ctx, inputs, keyword_only_inputs, output):
    q, k, v = inputs[:3]
    options = keyword_only_inputs
    if inputs[3] is not None:
        _refuse_gradient("scales")
    if not options["with_lse"]:
        _refuse_gradient("with_lse=False")
    more = None
    if len(inputs) > 6:
        named = dict(zip([name for name in _arrays.FEATURES if name in _arrays.ARRAYS], inputs[6:]))
        more = tuple(named[name] if name in named else options[name] for name in _arrays.FEATURES)
    if reason := _no_gradient(q, k, v, options["left"], options["right"], options["align"], options["bshd"], options["softcap"],
                              options["out_dtype"], more):
        _refuse_gradient(reason)
    ctx.save_for_backward(q, k, v, *output, None if more is None else more[0])
    ctx.scale, ctx.causal, ctx.bshd, ctx.inputs = options["scale"], options["right"] == 0, options["bshd"], len(inputs)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_out, grad_lse):
    if grad_lse is not None:
        raise NotImplementedError("gradients through lse are not offered: only out is differentiable; detach lse")
    grads = (None, None, None)
    if grad_out is not None:
        q, k, v, out, lse, mask = ctx.saved_tensors
        grads = torch.ops.greenfast.attention_backward(grad_out, q, k, v, out, lse, ctx.scale, ctx.causal, ctx.bshd, mask)
    return (*grads, *[None] * (ctx.inputs - 3))


_library.define("attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, float? scale, bool causal, "
                "bool bshd, Tensor? mask=None) -> (Tensor, Tensor, Tensor)", tags=_TAGS)


def _op_backward(grad_out, q, k, v, out, lse, scale, causal, bshd, mask=None):
    wanted = q, k, v
    if q.numel() == 0 or k.numel() == 0:
        return tuple(torch.zeros_like(x) for x in wanted)
    if bshd:
        grad_out, q, k, v, out = (x.transpose(1, 2) for x in (grad_out, q, k, v, out))
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    # The library reads head dimensions alone contiguous; PyTorch's kernels want that of the gradient too.
    grad_out = grad_out if grad_out.stride(-1) == 1 else grad_out.contiguous()
    if q.is_cuda:
        unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # the state of a generator, for dropout
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad_out, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unused, unused, scale=scale)
    else:
        if mask is not None:
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -torch.inf)
            # Four dimensions, or PyTorch's kernel reads it otherwise; and a row that sees nothing has weights exp(-inf - lse).
            mask = mask.expand(*[1] * (4 - mask.dim()), *mask.shape)
            lse = lse.masked_fill(lse == -torch.inf, 0.0)
        width, width_v = q.shape[-1], v.shape[-1]
        if width != width_v:  # it has one width too: columns of zeros add nothing to any product
            scale = width ** -0.5 if scale is None else scale
            whole = max(width, width_v)
            q, k = (_functional.pad(x, (0, whole - width)) for x in (q, k))
            v, out, grad_out = (_functional.pad(x, (0, whole - width_v)) for x in (v, out, grad_out))
        if groups > 1:  # this kernel has one head of K and V for each of Q
            k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
        if groups > 1:
            grads = (grads[0], *(x.unflatten(1, (heads, groups)).sum(2) for x in grads[1:]))
        if width != width_v:
            grads = (grads[0][..., :width], grads[1][..., :width], grads[2][..., :width_v])
    result = []
    for grad, like in zip(grads, wanted):
        empty = torch.empty_like(like)
        result.append(empty.copy_(grad.transpose(1, 2) if bshd else grad))
    return tuple(result)


def _op_backward_fake(grad_out, q, k, v, out, lse, scale, causal, bshd, mask=None):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _second_derivative(ctx, *grads):
    raise NotImplementedError("second derivatives of greenfast.attention are not offered: use PyTorch's math backend for them")


_library.impl("attention_backward", _op_backward, "CPU")
_library.impl("attention_backward", _op_backward, "CUDA")
torch.library.register_fake("greenfast::attention_backward", _op_backward_fake, lib=_library)
for _name in ("attention", "attention_features"):
    torch.library.register_autograd(f"greenfast::{_name}", _backward, setup_context=_setup_context, lib=_library)
torch.library.register_autograd("greenfast::attention_backward", _second_derivative, setup_context=None, lib=_library)


def _strided(q: Any, k: Any, v: Any) -> None:
    """Refuses what is no tensor with strides on a device that can be read."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__name__}: q is a torch.Tensor, and so must k and v be")
        if x.is_nested or x.layout != torch.strided:
            raise TypeError(f"{name} is a nested or sparse tensor: only plain strided ones can be read; convert it")
        if x.device.type not in _arrays.DEVICES:
            raise TypeError(f"{name} lies on {x.device}: only CPU and CUDA tensors hold memory that can be read")


def _through_op(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, align, bshd, variant, batch_invariant,
                stream, out_dtype, return_lse, more=None):
    if stream is not None:
        raise ValueError("stream is given, with gradients or under torch.compile: there the work is on PyTorch's current stream; set that")
    _of_torch(("out", "lse", "q_scale", "k_scale", "v_scale"), (out, lse, q_scale, k_scale, v_scale))
    _strided(q, k, v)
    if more is not None:
        more = tuple(more)
        _of_torch(_arrays.FEATURES, tuple(x if name in _arrays.ARRAYS else None for name, x in zip(_arrays.FEATURES, more)))
    if _has_tangent(q, k, v, *(() if more is None else more)):
        _refuse_tangent("attention")
    if _transformed():
        raise NotImplementedError("greenfast.attention inside a transform of torch.func is not offered: call it outside, or use "
                                  "greenfast.torch.scaled_dot_product_attention, which goes to PyTorch's there")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (out, lse)):
        raise NotImplementedError("out or lse requires gradients: what is written there has none; pass memory that does not, or leave it out")
    if not _EXACT_STRIDES and _is_compiling():
        k, v = _rows_of_their_own(k), _rows_of_their_own(v)
        if more is not None:
            more = (*(x if x is None else _rows_of_their_own(x) for x in more[:_FLOAT_FEATURES]), *more[_FLOAT_FEATURES:])
    needs_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or more is not None and _learns(more))
    if needs_gradient:
        reason = "scales" if q_scale is not None else "out" if out is not None else "lse given" if lse is not None else _no_gradient(
            q, k, v, left, right, align, bool(bshd), softcap, out_dtype, more)
        if reason is not None:
            _refuse_gradient(reason)
    # An exported program may be trained later, whatever was asked when it was made: there the operator that has gradients, or refuses them.
    trainable = needs_gradient or _is_exporting()
    if (not trainable and more is None and out is None and lse is None and not return_lse and q_scale is None and k_scale is None and v_scale is None
            and softcap == 0.0 and left == -1 and (right == -1 or (right == 0 and align == _TOP_LEFT)) and not bshd and variant is None
            and not batch_invariant and out_dtype is None and q.dtype != torch.float8_e4m3fn and q.shape[-1] == v.shape[-1]):
        return torch.ops.greenfast.sdpa.default(q, k, v, right == 0, scale)
    wanted = out.dtype if out is not None and out_dtype is None else None if out_dtype is None else _out_dtype(q, out_dtype)
    ops = torch.ops.greenfast
    # Its gradients need the log-sum-exp; where it refuses them, what was asked for will do.
    exact = trainable and (needs_gradient or q_scale is None and _no_gradient(q, k, v, left, right, align, bool(bshd), softcap, out_dtype, more) is None)
    options = dict(scale=scale, softcap=softcap, left=left, right=right, align=align, bshd=bool(bshd), variant=variant,
                   batch_invariant=batch_invariant, out_dtype=wanted, with_lse=return_lse or lse is not None or exact)
    if more is None:
        op = ops.attention.default if trainable else ops.attention_forward.default
        made, made_lse = op(q, k, v, q_scale, k_scale, v_scale, **options)
    else:
        op = ops.attention_features.default if trainable else ops.attention_features_forward.default
        mask, sinks, slopes, chunk, cu_q, cu_kv, max_q, max_kv, used_q, used_kv, kv_start, kv_index, page_table, max_splits, validate, accuracy = more
        made, made_lse = op(q, k, v, q_scale, k_scale, v_scale, mask, sinks, slopes, cu_q, cu_kv, used_q, used_kv, kv_start, kv_index,
                            page_table, chunk=chunk, max_q=max_q, max_kv=max_kv, max_splits=max_splits, validate=bool(validate), accuracy=accuracy,
                            **options)
    if out is not None:
        made = out.copy_(made)
    if lse is not None:
        made_lse = lse.copy_(made_lse)
    return (made, made_lse) if return_lse else made


# --- merge and append ------------------------------------------------------------------------------------------------

def _plain(function: str, tensors: tuple[Any, ...]) -> bool:
    """Whether these are tensors to be read at once; otherwise they go through an operator. What requires gradients is refused."""
    if _is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors):
        raise NotImplementedError(f"gradients through greenfast.{function} are not offered: detach the tensors, or call it under torch.no_grad()")
    if _has_tangent(*tensors):
        _refuse_tangent(function)
    return not _is_compiling() and not _layered() and all(x is None or type(x) in _EXACT for x in tensors)


def _call(function: Any, names: tuple[str, ...], tensors: tuple[Any, ...], *options: Any, stream: int | None) -> None:
    """A function of the module on plain tensors, on their device."""
    first = tensors[0]
    described = [_arrays.describe(name, x) for name, x in zip(names, tensors)]
    if first.is_cuda and stream is None and not _DIRECT:
        stream = torch.cuda.current_stream(first.device).cuda_stream
    if first.is_cuda and _elsewhere(first):
        with torch.cuda.device(first.device):
            function(*described, *options, stream)
    else:
        function(*described, *options, stream)


def _no_stream(stream: int | None) -> None:
    if stream is not None:
        raise ValueError("stream is given under torch.compile: there the work is on PyTorch's current stream; set that")


_library.define("merge(Tensor o1, Tensor lse1, Tensor o2, Tensor lse2, *, ScalarType? out_dtype=None, bool bshd=False) -> (Tensor out, Tensor lse)",
                tags=_TAGS)


def _op_merge(o1, lse1, o2, lse2, *, out_dtype=None, bshd=False):
    _no_tangent("merge", o1, lse1, o2, lse2)
    made = _op_merge_fake(o1, lse1, o2, lse2, out_dtype=out_dtype)
    _call(_core.merge, ("o1", "lse1", "o2", "lse2", "out", "lse"), (o1, lse1, o2, lse2, *made), int(bshd), stream=None)
    return made


def _op_merge_fake(o1, lse1, o2, lse2, *, out_dtype=None, bshd=False):
    return torch.empty_like(o1, dtype=out_dtype or o1.dtype), torch.empty_like(lse1)


def merge(o1, lse1, o2, lse2, out, lse, out_dtype, bshd, stream):
    """greenfast.merge for PyTorch's tensors."""
    dtype = None if out_dtype is None else _out_dtype(o1, out_dtype)
    if _plain("merge", (o1, lse1, o2, lse2, out, lse)):
        made = [torch.empty_like(o1, dtype=dtype or o1.dtype) if out is None else out, torch.empty_like(lse1) if lse is None else lse]
        _call(_core.merge, ("o1", "lse1", "o2", "lse2", "out", "lse"), (o1, lse1, o2, lse2, *made), bshd, stream=stream)
        _written(out, lse)
        return tuple(made)
    _no_stream(stream)
    _of_torch(("o1", "lse1", "o2", "lse2", "out", "lse"), (o1, lse1, o2, lse2, out, lse))
    made, made_lse = torch.ops.greenfast.merge.default(o1, lse1, o2, lse2, out_dtype=dtype, bshd=bool(bshd))
    return made if out is None else out.copy_(made), made_lse if lse is None else lse.copy_(made_lse)


_library.define(
    "append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? q, Tensor? cu_new, Tensor? used_new, Tensor? used_kv, "
    "Tensor? kv_start, Tensor? kv_index, Tensor? page_table, Tensor? cos, Tensor? sin, *, SymInt? max_new=None, int rotary=2, "
    "bool bshd=False, bool validate=False) -> Tensor", tags=_TAGS)


def _op_append(k, v, k_cache, v_cache, q, *arrays, max_new=None, rotary=2, bshd=False, validate=False):
    _no_tangent("append", k, v, k_cache, v_cache, q)
    made = _op_append_fake(k, v, k_cache, v_cache, q)
    _call(_core.append, _arrays.APPENDED, (k, v, k_cache, v_cache, q, None if q is None else made, *arrays), max_new, rotary, int(bshd),
          int(validate), stream=None)
    _written(k_cache, v_cache)  # an operator defined from Python does not, whatever its schema says
    return made


def _op_append_fake(k, v, k_cache, v_cache, q, *arrays, max_new=None, rotary=2, bshd=False, validate=False):
    return k.new_empty(0) if q is None else torch.empty_like(q)


for _name, _of, _fake in (("merge", _op_merge, _op_merge_fake), ("append", _op_append, _op_append_fake)):
    _library.impl(_name, _of, "CPU")
    _library.impl(_name, _of, "CUDA")
    torch.library.register_fake(f"greenfast::{_name}", _fake, lib=_library)


# Scales that are not given are computed, of shape [B, H] or [1], and returned; given ones come back as an empty tensor, for an
# operator may not return what it was given. Arguments are only added: programs that inductor keeps call the operator by their names.
_library.define("quantize_e4m3(Tensor values, Tensor? scale=None, *, bool per_head=True, bool bshd=False, bool transposed=False, "
                "bool rotate=False, bool per_block=False) -> (Tensor codes, Tensor scale)", tags=_TAGS)
_QUANTIZED = ("values", "out", "scale")


def _new_scale(values, per, bshd):
    shape = _arrays.scale_shape(values.shape, per, bshd)
    # Of no values it is 1, as of zeros; nothing is enqueued for them.
    return (torch.empty if values.numel() else torch.ones)(shape, dtype=torch.float32, device=values.device)


def _new_codes(values, bshd, transposed):
    if not transposed or values.dim() != 4:
        return torch.empty_like(values, dtype=torch.float8_e4m3fn)
    batch, heads, seq, dim = (values.transpose(1, 2) if bshd else values).shape
    codes = torch.empty((batch, heads, dim, (seq + 15) // 16 * 16), dtype=torch.float8_e4m3fn, device=values.device)[..., :seq]
    return codes.permute(0, 3, 1, 2) if bshd else codes.transpose(2, 3)


def _op_quantize(values, scale=None, *, per_head=True, bshd=False, transposed=False, rotate=False, per_block=False):
    _no_tangent("quantize_e4m3", values, scale)
    codes, made = _op_quantize_fake(values, scale, per_head=per_head, bshd=bshd, transposed=transposed, per_block=per_block)
    _call(_core.quantize_e4m3, _QUANTIZED, (values, codes, made if scale is None else scale), int(scale is None), int(bshd), int(rotate),
          _scratch_of(values), stream=None)
    return codes, made


def _op_quantize_fake(values, scale=None, *, per_head=True, bshd=False, transposed=False, rotate=False, per_block=False):
    per = "block" if per_block else "head" if per_head else "tensor"
    return (_new_codes(values, bshd, transposed),
            _new_scale(values, per, bshd) if scale is None else torch.empty(0, dtype=torch.float32, device=values.device))


_library.impl("quantize_e4m3", _op_quantize, "CPU")
_library.impl("quantize_e4m3", _op_quantize, "CUDA")
torch.library.register_fake("greenfast::quantize_e4m3", _op_quantize_fake, lib=_library)


def quantize(values, out, scale, per, bshd, transposed, rotate, stream):
    """greenfast.quantize_e4m3 for PyTorch's tensors."""
    if _plain("quantize_e4m3", (values, out, scale)):
        codes = _new_codes(values, bshd, transposed) if out is None else out
        used = _new_scale(values, per, bshd) if scale is None else scale
        _call(_core.quantize_e4m3, _QUANTIZED, (values, codes, used), int(scale is None), bshd, int(rotate), _scratch_of(values, stream),
              stream=stream)
        _written(out)
        return codes, used
    _no_stream(stream)
    _of_torch(_QUANTIZED, (values, out, scale))
    codes, made = torch.ops.greenfast.quantize_e4m3.default(values, scale, per_head=per == "head", bshd=bool(bshd), transposed=transposed,
                                                              rotate=rotate, per_block=per == "block")
    return codes if out is None else out.copy_(codes), made if scale is None else scale


_library.define(
    "attention_quantized(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? sinks, Tensor? slopes, *, SymInt chunk=0, int max_splits=0, "
    "int accuracy=0, float? scale=None, float softcap=0.0, SymInt left=-1, SymInt right=-1, int align=2, bool bshd=False, str? variant=None, "
    "bool batch_invariant=False, ScalarType? out_dtype=None, bool with_lse=True, bool smooth_k=False, "
    "bool rotate=False) -> (Tensor out, Tensor lse)", tags=_TAGS)
_QUANTIZED_CALL = ("q", "k", "v", "out", "lse")


def _run_quantized(q, k, v, out, lse, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, more, *quantizing):
    described = [_arrays.describe(name, x) for name, x in zip(_QUANTIZED_CALL, (q, k, v, out, lse))]
    if more is not None:
        more = _arrays.describe_features(more)

    scratch = _scratch_on(stream) if q.is_cuda else _arrays.host_scratch

    def call():
        _core.attention_quantized(*described, None, None, None, scale, softcap, left, right, align, bshd, variant, int(batch_invariant), stream,
                                  scratch, more, *map(int, quantizing))

    if q.is_cuda and stream is None and not _DIRECT:
        stream = torch.cuda.current_stream(q.device).cuda_stream
    if q.is_cuda and _elsewhere(q):
        with torch.cuda.device(q.device):
            call()
    else:
        call()


def _op_quantized(q, k, v, mask, sinks, slopes, *, chunk=0, max_splits=0, accuracy=0, scale=None, softcap=0.0, left=-1, right=-1, align=2,
                  bshd=False, variant=None, batch_invariant=False, out_dtype=None, with_lse=True, smooth_k=False, rotate=False):
    _no_tangent("attention_quantized", q, k, v, mask, sinks, slopes)
    out, lse = _made(q, v, bshd, out_dtype, with_lse, False)
    named = {**_arrays.FEATURES, "mask": mask, "sinks": sinks, "slopes": slopes, "chunk": chunk, "max_splits": max_splits, "accuracy": accuracy}
    _run_quantized(q, k, v, out, lse if with_lse else None, scale, softcap, left, right, align, int(bshd), variant, batch_invariant, None,
                   tuple(named.values()), smooth_k, rotate)
    return out, lse


def _op_quantized_fake(q, k, v, mask, sinks, slopes, *, bshd=False, out_dtype=None, with_lse=True, **rest):
    return _made(q, v, bshd, out_dtype, with_lse, False)


_library.impl("attention_quantized", _op_quantized, "CPU")
_library.impl("attention_quantized", _op_quantized, "CUDA")
torch.library.register_fake("greenfast::attention_quantized", _op_quantized_fake, lib=_library)
_count_flops()


def attention_quantized(q, k, v, out, lse, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, out_dtype, return_lse, more,
                        smooth_k, rotate):
    """greenfast.attention_quantized for PyTorch's tensors."""
    features = dict(zip(_arrays.FEATURES, more or _arrays.FEATURES.values()))
    arrays = tuple(features[name] for name in ("mask", "sinks", "slopes"))
    _strided(q, k, v)
    _of_torch(("out", "lse"), (out, lse))
    if out is not None and out_dtype is not None and out.dtype != _out_dtype(q, out_dtype):
        raise TypeError(f"out is {out.dtype} and out_dtype {out_dtype}: leave one of them out")
    if _plain("attention_quantized", (q, k, v, out, lse, *[x for x in arrays if isinstance(x, torch.Tensor)])):
        if features["validate"]:
            for name, x in (*zip(_QUANTIZED_CALL, (q, k, v, out, lse)), *features.items()):
                _check_storage(name, x)
        made_out = _made(q, v, bshd, out_dtype, False, False)[0] if out is None else out
        made_lse = _empty_lse(q, bshd) if return_lse and lse is None else lse
        _run_quantized(q, k, v, made_out, made_lse, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream, more, smooth_k,
                       rotate)
        _written(out, lse)
        return (made_out, made_lse) if return_lse else made_out
    _no_stream(stream)
    _of_torch(("mask", "sinks", "slopes"), arrays)
    if not _EXACT_STRIDES and _is_compiling():
        k, v = _rows_of_their_own(k), _rows_of_their_own(v)
        arrays = tuple(x if x is None else _rows_of_their_own(x) for x in arrays)
    wanted = out.dtype if out is not None else None if out_dtype is None else _out_dtype(q, out_dtype)
    made_out, made_lse = torch.ops.greenfast.attention_quantized.default(
        q, k, v, *arrays, chunk=features["chunk"], max_splits=features["max_splits"], accuracy=features["accuracy"], scale=scale, softcap=softcap,
        left=left, right=right, align=align, bshd=bool(bshd), variant=variant, batch_invariant=bool(batch_invariant),
        out_dtype=wanted, with_lse=bool(return_lse or lse is not None), smooth_k=smooth_k,
        rotate=rotate)
    made_out = made_out if out is None else out.copy_(made_out)
    made_lse = made_lse if lse is None else lse.copy_(made_lse)
    return (made_out, made_lse) if return_lse else made_out


def append(*arguments):
    """greenfast.append for PyTorch's tensors."""
    *tensors, max_new, rotary, bshd, validate, stream = arguments
    q, q_out = tensors[4:6]
    if _plain("append", tuple(tensors)):
        given = q_out
        if validate:
            for name, x in zip(_arrays.APPENDED, tensors):
                _check_storage(name, x)
        if q is not None and q_out is None:
            tensors[5] = q_out = torch.empty_like(q)
        _call(_core.append, _arrays.APPENDED, tuple(tensors), max_new, rotary, bshd, validate, stream=stream)
        _written(*tensors[2:4], given)
        return None if q is None else q_out
    _no_stream(stream)
    _of_torch(_arrays.APPENDED, tuple(tensors))
    made = torch.ops.greenfast.append.default(*tensors[:5], *tensors[6:], max_new=max_new, rotary=rotary, bshd=bool(bshd), validate=bool(validate))
    return None if q is None else made if q_out is None else q_out.copy_(made)


# --- scaled_dot_product_attention ---------------------------------------------------------------------------------------

_said: set[str] = set()


@torch.compiler.assume_constant_result
def _say(reason: str) -> bool:
    """Once for each reason; while a graph is traced it is said then."""
    if reason not in _said:
        _said.add(reason)
        warnings.warn(f"greenfast: scaled_dot_product_attention went to PyTorch's own: {reason}", FallbackWarning, stacklevel=3)
    return True


_answers: dict[Any, str | None] = {}


@torch.compiler.assume_constant_result
def _refusal(kind: str, index: int, dtype: torch.dtype, *features: str) -> str | None:
    """Why no kernel of this device takes a plain problem with these features, in the library's words; None: one does: a
    package built without CUDA, a device too old, a feature that nobody has learned.

    Asked once for each: a compiled graph cannot ask when it runs, and a refusal takes longer than most calls."""
    key = (kind, index, dtype, features)
    if key not in _answers:
        _answers[key] = _ask(*key)
    return _answers[key]


def _ask(kind: str, index: int, dtype: torch.dtype, features: tuple[str, ...]) -> str | None:
    spec = functools.partial(_arrays.TensorSpec, device=kind, index=index)
    name, ints = str(dtype), functools.partial(spec, dtype="int32")
    rows = {"q": spec((1, 2, 128, 64), name), "k": spec((1, 2, 128, 64), name), "v": spec((1, 2, 128, 64), name)}
    given: dict[str, Any] = {}
    causal = False
    for feature in features:
        if feature == "value_dim":
            rows["v"] = spec((1, 2, 128, 32), name)
        elif feature == "bool mask":
            given["mask"] = spec((1, 1, 128, 128), "bool")
        elif feature == "float mask":
            given["mask"] = spec((1, 1, 128, 128), "float32")
        elif feature == "packed":
            rows = {name_: spec((2, 128, 64), name) for name_ in rows}
            given |= {"cu_q": ints((2,)), "cu_kv": ints((2,))}
        elif feature in ("used_kv", "kv_start"):
            given[feature] = ints((1,))
        elif feature == "sinks":
            given["sinks"] = spec((2,), "float32")
        elif feature == "chunk":
            given["chunk"], causal = 32, True
        else:
            raise ValueError(feature)
    described = [_arrays.describe(name_, x) for name_, x in rows.items()]
    try:
        told = _core.explain(*described, *[None] * 6, 0.0, -1, 0 if causal else -1, _TOP_LEFT, 0, None, 0, None, None,
                             _arrays.describe_features(_arrays.features(given)), None, None)
    except (RuntimeError, NotImplementedError) as error:
        return str(error)
    return None if told[0] else told[2]


def _why_not(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Any, enable_gqa: bool) -> str | None:
    """Why this call is PyTorch's; None: the library takes it."""
    if not (isinstance(query, torch.Tensor) and isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor)):
        return "an argument that is no tensor"
    if is_causal is not True and is_causal is not False:
        return "an is_causal that is no bool"
    if attn_mask is not None and (is_causal or not isinstance(attn_mask, torch.Tensor)):
        return "attn_mask with is_causal" if is_causal else "an attn_mask that is no tensor"
    if dropout_p != 0.0:
        return "dropout"
    if not _is_compiling():
        if torch.overrides.has_torch_function((query, key, value, attn_mask)):
            return f"a tensor subclass ({', '.join(sorted({type(x).__name__ for x in (query, key, value, attn_mask)} - {'Tensor', 'NoneType'}))})"
        if _is_tracing():
            return "torch.jit.trace"
        if query.is_neg() or key.is_neg() or value.is_neg() or query._is_zerotensor() or key._is_zerotensor() or value._is_zerotensor():
            return "a tensor that is negated lazily, or zero without memory"
    if _has_tangent(query, key, value, attn_mask):
        return "a forward-mode derivative"
    if _transformed():
        return "a transform of torch.func"
    if (query.is_nested or key.is_nested or value.is_nested or query.layout != torch.strided or key.layout != torch.strided
            or value.layout != torch.strided):
        return "nested or sparse tensors"
    device = query.device
    if device.type not in _arrays.DEVICES:
        return f"tensors on {device.type}"
    dtype, k_dtype, v_dtype, mask_dtype = query.dtype, key.dtype, value.dtype, None if attn_mask is None else attn_mask.dtype
    if torch.is_autocast_enabled(device.type):
        cast = torch.get_autocast_dtype(device.type)
        dtype, k_dtype, v_dtype, mask_dtype = (x and _met(x, cast) for x in (dtype, k_dtype, v_dtype, mask_dtype))
    if key.device != device or value.device != device or k_dtype != dtype or v_dtype != dtype:
        return "tensors of several devices or types"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16) or (dtype == torch.float32 and device.type == "cuda"):
        return f"{dtype} on {device.type}"
    if device.type == "cuda" and (why := _refusal("cuda", device.index or 0, torch.float16)):
        return why
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        return "fewer than two dimensions"
    if ((_is_compiling() or not (query.numel() and key.numel() and value.numel()))
            and any(x.dim() > 2 and _known(x.shape[-3] == 0) for x in (query, key, value))):
        return "no heads"
    width, width_v = query.shape[-1], value.shape[-1]
    if key.shape[-1] != width or _known(key.shape[-2] != value.shape[-2]):
        return "shapes that do not belong together"
    if width % 8 != 0 or not 8 <= width <= 256:
        return f"head dimension {width}: 8 to 256 in steps of 8 is possible"
    features: tuple[str, ...] = ()
    if width_v != width:
        if width_v % 8 != 0 or not 8 <= width_v <= 256:
            return f"a value of head dimension {width_v}: 8 to 256 in steps of 8 is possible"
        features = ("value_dim",)
    if attn_mask is not None:
        if attn_mask.is_nested or attn_mask.layout != torch.strided or attn_mask.device != device:
            return "an attn_mask that is nested, sparse or on another device"
        if attn_mask.dim() < 2:
            return "an attn_mask of fewer than two dimensions"
        if attn_mask.requires_grad and torch.is_grad_enabled():
            return "an attn_mask that requires gradients"
        if mask_dtype not in (torch.bool, torch.float32, dtype):
            return f"an attn_mask of {attn_mask.dtype}"
        features += ("bool mask" if attn_mask.dtype == torch.bool else "float mask",)
    if features and (why := _refusal(device.type, device.index or 0, dtype, *features)):
        return why
    if scale is not None and not isinstance(scale, (int, float, torch.SymFloat, torch.SymInt)):
        return "a scale that is no number"
    if isinstance(scale, float) and not abs(scale) <= _LARGEST_SCALE:
        return f"scale {scale}"
    if enable_gqa and (query.dim() != 4 or key.dim() != 4 or value.dim() != 4):
        return "enable_gqa without four dimensions"
    return None


def _torchs(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Any, enable_gqa: bool) -> Tensor:
    """PyTorch's own answer. Where that divides by no heads it takes its way without kernels, and without enable_gqa."""
    if _DIVIDES and (_headless(query) or _headless(key) or _headless(value)):
        if enable_gqa and (_headless(key) or _headless(value)):
            if not _headless(query):
                raise RuntimeError("enable_gqa: query has heads, and key or value has none")
            enable_gqa = False
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return _SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return _SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _headless(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_nested and x.dim() > 2 and _known(x.shape[-3] == 0)


def _known(fact: Any) -> bool:
    """Whether this comparison of sizes holds. Of sizes that a graph does not know when it is traced (a result of nonzero or item) nothing holds
    here: they count as equal and as more than 1, as for PyTorch's SDPA, and the operator looks again when it runs."""
    if fact is True or fact is False or not _is_compiling():
        return fact
    from torch.fx.experimental import symbolic_shapes
    if hasattr(symbolic_shapes, "guard_or_false"):  # torch 2.7 has it first
        return symbolic_shapes.guard_or_false(fact)
    return True if fact else False  # not bool(fact), which Dynamo of torch 2.6 does not trace


def _heads_match(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> bool:
    """Whether [B, H, S, D] tensors need no broadcasting."""
    if not _is_compiling() and q.shape[:2] == k.shape[:2] == v.shape[:2]:
        return True
    if _known(q.shape[0] != k.shape[0]) or _known(q.shape[0] != v.shape[0]) or _known(k.shape[1] != v.shape[1]):
        return False
    return not _known(q.shape[1] != k.shape[1]) or (enable_gqa and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0)


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _rows_of_their_own(q: Tensor) -> Tensor:
    """This with contiguous rows and memory for each element. Of a query: an output of its order of strides would share memory too."""
    strides = q.stride()
    if _is_compiling():  # the stride first, and no size is asked for that a graph may not know
        shared = any(_known(step == 0) and not _known(size == 1) for size, step in zip(q.shape, strides))
    else:
        shared = 0 in strides and any(step == 0 and size > 1 for size, step in zip(q.shape, strides))
    return q.contiguous() if shared else _contiguous_rows(q)


def _autocast(kind: str, *tensors: Tensor | None) -> list[Any]:
    """These as autocast hands them to SDPA: floats of this device, but float64, in its type."""
    cast = torch.get_autocast_dtype(kind)
    return [x if x is None or x.device.type != kind else x.to(_met(x.dtype, cast)) for x in tensors]


def _met(dtype: torch.dtype, cast: torch.dtype) -> torch.dtype:
    """The type in which SDPA meets a tensor of this one, where autocast has the other."""
    return dtype if dtype == torch.float64 or not dtype.is_floating_point else cast


def _features_of_mask(mask: Tensor) -> tuple[Any, ...]:
    """A mask alone, as _core reads features."""
    if mask.dim() > 0 and mask.stride(-1) not in (0, 1) and mask.shape[-1] > 1:
        mask = mask.contiguous()
    return (mask, *_NO_MASK)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
                                 fallback: str = "torch") -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, with its arguments and its results.

    query [..., Hq, L, E], key [..., H, S, E], value [..., H, S, E]: two dimensions or more, which broadcast as PyTorch's do;
    is_causal aligns top-left; the output has query's order of strides. Autocast casts as it does PyTorch's.

    fallback  "torch": what the library does not do goes to PyTorch's own function, and a FallbackWarning says why, once for
              each reason. "error": NotImplementedError says it. Calls that PyTorch refuses raise PyTorch's error either way
              they reach it.
    """
    if fallback != "torch" and fallback != "error":
        raise ValueError(f"fallback is {fallback!r}: 'torch' or 'error' is possible")
    if attn_mask is None and dropout_p == 0.0:
        # The common case. Whether it is one, the library finds out faster than Python; what it refuses is looked at below.
        if _DIRECT:
            done = _core.plain_sdpa(query, key, value, is_causal, scale, enable_gqa)
            if done is not None:
                return done
        elif (not _is_dynamo_compiling() and type(is_causal) is bool and not _is_compiling() and type(query) in _EXACT and type(key) in _EXACT
              and type(value) in _EXACT and query.dtype in _FLOATS and not _layered() and not _is_any_autocast_enabled()
              and not (_is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad))):
            try:
                if enable_gqa or query.size(1) == key.size(1):
                    out = torch.empty_like(query)
                    _run(query, key, value, out, None, None, None, None, scale, 0.0, -1, 0 if is_causal else -1, _TOP_LEFT, 0, None, False, None)
                    return out
            except (TypeError, ValueError, RuntimeError, IndexError):
                pass
    reason = _why_not(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if reason is None:
        q, k, v, mask = query, key, value, attn_mask
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            q, k, v, mask = _autocast(kind, q, k, v, mask)
        leading = None
        if not (q.dim() == 4 and k.dim() == 4 and v.dim() == 4 and _heads_match(q, k, v, enable_gqa)):
            q, k, v, mask, leading, reason = _broadcast(q, k, v, mask, enable_gqa)
        elif mask is not None and not _fits(mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2])):
            reason = "an attn_mask that does not broadcast"
    if reason is None:
        q, k, v = _rows_of_their_own(q), _contiguous_rows(k), _contiguous_rows(v)
        more = None if mask is None else _features_of_mask(mask)
        right = 0 if is_causal else -1
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            reason = _no_gradient(q, k, v, -1, right, _TOP_LEFT, False, 0.0, None, more)
            reason = None if reason is None else f"gradients with {reason}"
    if reason is not None:
        if fallback == "error":
            raise NotImplementedError(f"greenfast does not take this call: {reason}; change it, or let fallback='torch' hand it to PyTorch")
        _say(reason)
        return _torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    call = (q, k, v, None, None, None, None, None, scale, 0.0, -1, right, _TOP_LEFT, 0, None, False, None, None, False, more)
    if _is_compiling() or fallback == "error":
        out = _attention(*call)
    else:
        try:
            out = _attention(*call)
        except NotImplementedError as error:  # no kernel takes this problem, in the library's words
            _say(str(error))
            return _torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return out if leading is None else out.reshape(leading)


def _fits(mask: Tensor, wanted: tuple[int, ...]) -> bool:
    """Whether the mask broadcasts to [B, Hq, Sq, Skv]."""
    return mask.dim() <= 4 and all(size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(wanted)))


def _broadcast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, enable_gqa: bool):
    """(q, k, v as [B, H, S, D], the mask, the output's shape, why not): batch dimensions and heads as matmul broadcasts them."""
    if enable_gqa and not (q.shape[1] == k.shape[1] == v.shape[1]):
        return q, k, v, mask, None, "enable_gqa with heads that do not divide, or batches that broadcast"
    try:
        lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        if mask is not None and mask.dim() > 1:
            mask = mask.expand(*lead, *[size if size == 1 else whole for size, whole in zip(mask.shape[-2:], (q.shape[-2], k.shape[-2]))])
    except RuntimeError:
        return q, k, v, mask, None, "shapes that do not broadcast"
    if any(x.shape[:-2] != lead for x in (q, k, v)) and not (q.numel() and k.numel() and v.numel()):
        return q, k, v, mask, None, "empty tensors that broadcast"  # whose result has a shape of PyTorch's own choosing
    tensors = []
    for x in (q, k, v) if mask is None else (q, k, v, mask):
        rows = x.shape[-2:]
        x = x.expand(*lead, *rows)
        x = x.reshape(1, 1, *rows) if not lead else x.reshape(lead[0], 1, *rows) if len(lead) == 1 else x.flatten(0, len(lead) - 2)
        tensors.append(x)
    q, k, v = tensors[:3]
    return q, k, v, None if mask is None else tensors[3], (*lead, q.shape[-2], v.shape[-1]), None


_replaced: list[replace_sdpa] = []  # those that have not been removed, the last on top


class replace_sdpa:
    """Puts greenfast.torch.scaled_dot_product_attention in the place of torch.nn.functional's, for code that looks it up there
    at each call. As a context manager for its body; called alone, until remove().

        with greenfast.torch.replace_sdpa(): model(x)
        handle = greenfast.torch.replace_sdpa(fallback="error"); ...; handle.remove()
    """

    def __init__(self, fallback: str = "torch"):
        if fallback not in ("torch", "error"):
            raise ValueError(f"fallback is {fallback!r}: 'torch' or 'error' is possible")
        self._before = _functional.scaled_dot_product_attention
        if fallback == "torch":
            self._ours: Any = scaled_dot_product_attention
        else:
            def strict(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
                return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa,
                                                    fallback="error")
            self._ours = strict
        _replaced.append(self)
        _functional.scaled_dot_product_attention = self._ours

    def remove(self) -> None:
        """Back to what stood there before, unless someone else has replaced it since. Replacements may be removed in any order."""
        if self not in _replaced:
            return
        above = _replaced[_replaced.index(self) + 1:]
        _replaced.remove(self)
        if above and above[0]._before is self._ours:
            above[0]._before = self._before
        elif not above and _functional.scaled_dot_product_attention is self._ours:
            _functional.scaled_dot_product_attention = self._before

    def __enter__(self) -> replace_sdpa:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.remove()


# --- PyTorch's registry of flash attention, 2.10 and later ----------------------------------------------------------------

class _Registered:
    """What activate_flash_attention_impl keeps: the overrides live as long as their library."""

    def __init__(self, library: Any):
        self._library = library

    def remove(self) -> None:
        self._library = None


def _takes(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, attn_mask: Any = None) -> bool:
    return (_why_not(query, key, value, attn_mask, dropout_p, False, None, False) is None and query.dim() == 4 and key.dim() == 4
            and value.dim() == 4 and query.shape[-1] == value.shape[-1] and _heads_match(query, key, value, True)
            and (attn_mask is None or _fits(attn_mask, (*query.shape[:3], key.shape[2]))) and all(x.stride(-1) == 1 for x in (query, key, value))
            and all(type(x) in _EXACT for x in (query, key, value))
            and all(step != 0 or size == 1 for size, step in zip(query.shape, query.stride())))


def _register_flash() -> _Registered:
    """SDPA's flash kernels on CPU and CUDA: what the library does not take goes on to the kernel that stood there."""
    library = torch.library.Library("aten", "IMPL")
    cpu, cuda = "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"
    before = {name: torch.library.get_kernel(f"aten::{name}", key) for name, key in ((cpu, "CPU"), (cuda, "CUDA"))}

    def run(query, key, value, out, is_causal, scale, align, mask=None):
        lse = _empty_lse(query, 0)
        _run(query, key, value, out, lse, None, None, None, scale, 0.0, -1, 0 if is_causal else -1, align, 0, None, False, None,
             None if mask is None else _features_of_mask(mask))
        # PyTorch's backward takes exp(score - lse), also where both are -inf.
        return lse if mask is None else lse.masked_fill_(lse == -torch.inf, 0.0)

    def on_cpu(keys, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
        if not _takes(query, key, value, dropout_p, attn_mask):
            return before[cpu].call_boxed(keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        # The strides that PyTorch's own has, which compiled graphs rely on: query's order, and [B, S, H].
        out = torch.empty_like(query)
        lse = run(query, key, value, out, is_causal, scale, _TOP_LEFT, attn_mask)
        return out, lse.transpose(1, 2).contiguous().transpose(1, 2)

    def on_cuda(keys, query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
        if return_debug_mask or not _takes(query, key, value, dropout_p):
            return before[cuda].call_boxed(keys, query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
        out = torch.empty_like(query)
        # On CUDA this operator's causal masks are aligned bottom-right: torch.nn.attention.bias.causal_lower_right calls it for that.
        lse = run(query, key, value, out, is_causal, scale, _BOTTOM_RIGHT)
        state = torch.empty(2, dtype=torch.uint64, device=query.device)
        return (out, lse, None, None, query.shape[2], key.shape[2], state, torch.empty((), dtype=torch.uint64, device=query.device),
                torch.empty(0, dtype=query.dtype, device=query.device))

    library.impl(cpu, on_cpu, "CPU", with_keyset=True)
    library.impl(cuda, on_cuda, "CUDA", with_keyset=True)
    return _Registered(library)


def _join_registry() -> None:
    register = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register is not None and hasattr(torch.library, "get_kernel"):
        register("greenfast", register_fn=_register_flash)


import torch.nn.attention  # noqa: E402

_join_registry()
