"""Fused scaled-dot-product attention on CPUs and NVIDIA GPUs.

    import greenfast
    out = greenfast.attention(q, k, v, causal=True)        # NumPy, PyTorch, JAX, CuPy, ...

`greenfast.torch` replaces PyTorch's scaled_dot_product_attention, `greenfast.hf` and `greenfast.diffusers` register with
transformers and diffusers, `greenfast.vllm` is vLLM's plugin, `greenfast.flash_attn_interface` has FlashAttention-3's names.
docs/python.md shows each.

Errors say what was asked, what is possible and what to change, before any work: TypeError for an element type or an
object that cannot be read, ValueError for a call that contradicts itself, NotImplementedError for a legal problem that no
kernel takes, RuntimeError for a device that is missing or failed, MemoryError.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Unpack

try:
    from . import _core
except ImportError as _error:
    raise ImportError(f"greenfast's extension module does not load ({_error}): install the package with pip, "
                      "a folder of its sources does not hold it") from _error
from . import _arrays
from ._arrays import TensorSpec

__all__ = ["Explanation", "Features", "TensorSpec", "Variant", "append", "attention", "attention_quantized", "device_facts", "explain", "merge",
           "prepare", "quantize_e4m3", "variants"]
__version__: str = _core.version

_TOP_LEFT, _BOTTOM_RIGHT, _UNSAID = 0, 1, 2
_ALIGN = {None: _UNSAID, "top_left": _TOP_LEFT, "bottom_right": _BOTTOM_RIGHT}
_LAYOUT = {"bhsd": 0, "bshd": 1}
_torch: Any = None  # greenfast.torch, from the first tensor on
_Function = TypeVar("_Function")


def _no_shortcut(q: Any, k: Any, v: Any, out: Any, options: dict[str, Any]) -> None:
    """Takes no call. It is also what Dynamo traces in place of the extension module's function."""
    return None


_shortcut: Any = _no_shortcut  # _core.plain, once greenfast.torch has said what it may ask of PyTorch


def _mask(causal: bool, window: tuple[int, int] | None, align: str | None) -> tuple[int, int, int]:
    """(left, right, alignment) as the library counts: -1 is no bound."""
    try:
        alignment = _ALIGN[align]
    except (KeyError, TypeError):
        raise ValueError(f"align is {align!r}: 'top_left', 'bottom_right' or None is possible") from None
    if window is None:
        return -1, 0 if causal else -1, alignment
    try:
        left, right = window
        left, right = -1 if left is None else left, -1 if right is None else right
    except (TypeError, ValueError):
        raise TypeError(f"window is {window!r}: (left, right) in keys is expected, None or -1 for no bound") from None
    if left < -1 or right < -1:
        raise ValueError(f"window is {window!r}: 0 or more keys on either side, None or -1 for no bound")
    return left, 0 if causal else right, alignment


def _bshd(layout: str) -> int:
    try:
        return _LAYOUT[layout]
    except (KeyError, TypeError):
        raise ValueError(f"layout is {layout!r}: 'bhsd' or 'bshd' is possible") from None


def _find_torch() -> Any:
    """greenfast.torch once PyTorch is loaded; it is never loaded for its own sake."""
    global _torch
    if _torch is None and "torch" in sys.modules:
        _torch = importlib.import_module("greenfast.torch")
    return _torch


class Features(TypedDict, total=False):
    """What attention() takes beyond dense tensors; its docstring has the meaning of each."""
    mask: Any
    sinks: Any
    slopes: Any
    chunk: int
    cu_q: Any
    cu_kv: Any
    max_q: int | None
    max_kv: int | None
    used_q: Any
    used_kv: Any
    kv_start: Any
    kv_index: Any
    page_table: Any
    max_splits: int
    validate: bool
    accuracy: str


def _library_of(x: Any) -> Any:
    """Whose merge and append take x."""
    torch = _torch or _find_torch()
    return torch if torch is not None and isinstance(x, torch.Tensor) else _arrays


def _short_way_first(whole: _Function) -> _Function:
    """attention, for calls that say little: twenty keywords with defaults take 0.1 us longer than one and a dictionary
    (Python 3.11, 2-core Xeon, 2026-11-25), and the extension module reads the dictionary. What it does not take, wrong keywords too,
    goes to the function that has them all, which is also what help(), signatures and editors see."""

    @functools.wraps(whole)  # type: ignore[arg-type]
    def attention(q: Any, k: Any, v: Any, *, out: Any = None, **options: Any) -> Any:
        done = _shortcut(q, k, v, out, options)
        return whole(q, k, v, out=out, **options) if done is None else done  # type: ignore[operator]

    return attention  # type: ignore[return-value]


@_short_way_first
def attention(q: Any, k: Any, v: Any, *, out: Any = None, scale: float | None = None, causal: bool = False,
              window: tuple[int, int] | None = None, align: str | None = None, softcap: float = 0.0, layout: str = "bhsd",
              return_lse: bool = False, lse: Any = None, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None,
              out_dtype: Any = None, variant: str | None = None, batch_invariant: bool = False, stream: int | None = None,
              **features: Unpack[Features]) -> Any:
    """softmax(softcap(scale * q k^T) + mask) v.

    q            [B, Hq, Sq, D], or [B, Sq, Hq, D] with layout="bshd"; k, v [B, Hkv, Skv, D] likewise. Query head h reads
                 KV head h // (Hq / Hkv). float32 (CPU), float16, bfloat16 or float8_e4m3fn (CUDA, fastest on Hopper), all three the same; D 8 to
                 256 in steps of 8, contiguous; other strides are free, and 0 is allowed in k and v. v may have a D of its
                 own, which out then has. Objects of PyTorch, NumPy, JAX or CuPy, or any with __dlpack__ or
                 __cuda_array_interface__, on one device.
    out          where to write, of q's shape with v's D; None: allocated, in q's order of strides, by q's library.
    scale        None: 1 / sqrt(D).
    causal       query i sees key j iff j <= i + shift; align="top_left": shift 0, "bottom_right": shift Skv - Sq. It has to
                 be said where Sq and Skv differ, also for window, slopes and chunk.
    window       (left, right): and i + shift - left <= j <= i + shift + right; None or -1 is no bound.
    softcap      c > 0: scores become c * tanh(score / c).
    return_lse   returns (out, lse), the natural logarithm of the sum of exponentials, float32 [B, Hq, Sq], -inf where a
                 query sees no key (out is 0 there); lse: where to write it.
    q_scale, ... what e4m3 values are multiplied by: float32, one value each, one for each (batch, head), or one for each block of 128 rows of them, [B, H, ceil(S / 128)].
    out_dtype    None: q's type, float16 for e4m3.
    variant      forces a kernel (greenfast.variants()); None: the fastest that takes the problem.
    batch_invariant  a row's bits do not depend on the other rows of its batch. An entry that is computed alone needs the strides that it has
                 in the batch, the batch stride too, as q[3:4] has them: which kernel can read it depends on them.
    stream       a cudaStream_t as an int; None: PyTorch's or CuPy's current stream, else the default stream.

    Masks and biases, each beside causal and window:
    mask         bool: True where a query may see a key; float32 or of q's type: added to the scores, -inf hides a key.
                 Broadcast to [B, Hq, Sq, Skv] from the last dimension on, whatever the layout; keys contiguous.
    slopes       ALiBi: -slope * |i + shift - j| is added. float32 [Hq] or [B, Hq].
    sinks        exp(sink) joins the denominator of each row, and its lse. float32 [Hq].
    chunk        keys in chunks of so many: a query sees its own chunk alone. 0: off.

    Sequences of different lengths; all arrays are int32, contiguous, on the device of q:
    cu_q, cu_kv  [sequences + 1]: where each packed sequence begins and ends. q and out are then [Hq, total, D] ([total, Hq, D]
                 with layout="bshd"), lse [Hq, total]; k and v with cu_kv likewise. Either may be packed alone.
    max_q, max_kv  the longest sequence, as far as the host knows: more is allowed, less is not. None: all rows.
    used_q, used_kv  [B]: rows and keys that each sequence has of those its tensor has room for. What lies behind is never
                 read. Rows of out behind used_q are not written.
    kv_start     [B]: the first key that may be seen (left padding).
    kv_index     [B]: the row of k and v that an entry of the batch reads; k and v have any batch then.
    page_table   [B, pages]: key j of sequence b is row j % page of page page_table[b, j // page]; k and v are [blocks, Hkv,
                 page, D], or [blocks, page, Hkv, D] with layout="bshd". A page of 1 key or more.
    max_splits   most parts that the keys of a row are divided into; 0: as many as pay, 1: none.
    validate     checks the arrays on CUDA as well, at the price of a copy and a synchronisation; else kernels clamp them there.
                 On the CPU they always are checked, before any work.

    accuracy     "exact", or "fast": kernels for float8_e4m3fn may take weights that are linear between powers of two, up to 8% off
                 each (docs/numerics.md). Exact kernels of the CPU take it, too; on CUDA cuda.sm90.fp8_fast.

    PyTorch: gradients flow where they are exact (greenfast.torch says where), torch.compile traces through; under it `out` is copied to. What is
    given as `out` or `lse` may not require gradients, and counts as changed in place. On the CPU the call returns when `out` is written; on CUDA it is
    enqueued, allocates nothing but `out` and the scratch that some kernels want, synchronises for `validate` alone, and may be captured in a graph.

    Errors, before any work, with what was asked, what is possible and what to change:
    TypeError            an element type; an object without plain strided memory (traced, sparse, nested, meta, fake, masked); libraries that
                         are mixed; a JAX array to be written.
    ValueError           shapes, strides, devices or numbers that contradict each other; memory that overlaps what is written or is read-only;
                         lengths, indices and pages out of range (on CUDA with `validate`).
    NotImplementedError  a legal problem that no kernel of the device takes (explain() says why), or not `variant`; gradients that are not exact.
    RuntimeError         a device that is missing or failed. MemoryError: no scratch.
    """
    left, right, alignment = (-1, -1, _UNSAID) if not causal and window is None and align is None else _mask(causal, window, align)
    bshd = 0 if layout == "bhsd" else _bshd(layout)
    more = _arrays.features(features) if features else None  # type: ignore[arg-type]
    torch = _torch or _find_torch()
    if torch is not None and isinstance(q, torch.Tensor):
        return torch._attention(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, alignment, bshd, variant,
                                batch_invariant, stream, out_dtype, return_lse, more)
    return _arrays.attention(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, alignment, bshd, variant,
                             batch_invariant, stream, out_dtype, return_lse, more)


def merge(o1: Any, lse1: Any, o2: Any, lse2: Any, *, out: Any = None, lse: Any = None, out_dtype: Any = None, layout: str = "bhsd",
          stream: int | None = None) -> tuple[Any, Any]:
    """(out, lse) of two parts of the same attention over disjoint keys, as attention(..., return_lse=True) gives them.

    o1, o2      [B, H, S, D] ([B, S, H, D] with layout="bshd"), packed [H, total, D] ([total, H, D]); float32, float16, bfloat16.
    lse1, lse2  float32, contiguous [B, H, S], packed [H, total]. -inf or +inf: that part is empty, and not read; both:
                out is 0, lse -inf. NaN is not empty: the row's lse is NaN, and its out too unless the other part is empty. Sinks
                belong into one part only.
    out, lse    where to write; those of a part, if they have its type and strides, or None: allocated.
    On the CPU and on CUDA. The order of the parts changes no bit.
    Errors: TypeError for types and objects that cannot be read, ValueError for shapes that do not belong together, NotImplementedError for
    tensors that require gradients, which there are none of.
    """
    return _library_of(o1).merge(o1, lse1, o2, lse2, out, lse, out_dtype, _bshd(layout), stream)


def attention_quantized(q: Any, k: Any, v: Any, *, out: Any = None, scale: float | None = None, causal: bool = False,
                        window: tuple[int, int] | None = None, align: str | None = None, softcap: float = 0.0, layout: str = "bhsd",
                        return_lse: bool = False, lse: Any = None, out_dtype: Any = None, variant: str | None = None,
                        batch_invariant: bool = False, stream: int | None = None, smooth_k: bool = False, rotate: bool = False,
                        **features: Unpack[Features]) -> Any:
    """attention() of float16, bfloat16 or float32 tensors by way of float8_e4m3fn: q, k and v are quantised, with a scale for each (batch, head),
    and attention is of the codes. On Hopper faster than attention() from 2,048 or 4,096 keys on, causal from 8,192, on the CPU slower, and less accurate:
    three bits of mantissa are left of each element.

    Arguments and results are attention()'s, for dense tensors: there are no scales to give, and packed sequences, pages, used lengths, kv_start
    and kv_index are refused; keep such a cache in e4m3 as it grows (quantize_e4m3). A mask that is added is float32, whatever q's type. `variant`
    names a kernel for e4m3; accuracy="fast" allows the faster ones.
    smooth_k     subtracts a mean of each of k's columns over its keys, up to 1,024 of them, before quantising, so that columns far from zero (the bias of a
                 projection) cost the others no digits. That moves all scores of a row alike: out stays, and lse is given it back. Not with softcap or
                 sinks.
    rotate       multiplies rows of q and k by the same orthogonal matrix (Hadamard matrices of 32 neighbouring columns) before quantising, which changes
                 no product of two rows. Where columns lie far above the rest in q and k alike, a third to a half of the error is left, of single such
                 elements two thirds; where all columns are alike it gains nothing, and where q's large ones are others than k's it may cost.
    Codes and scales lie in scratch: on CUDA of PyTorch's or CuPy's allocator, a byte an element.
    torch.compile traces through; there are no gradients.
    Errors: attention()'s. NotImplementedError where no kernel for e4m3 takes the problem, as on CUDA before compute capability 8.0.
    """
    left, right, alignment = _mask(causal, window, align)
    more = _arrays.features(features, "attention_quantized") if features else None  # type: ignore[arg-type]
    if more is not None:
        _arrays.dense(more)
    return _library_of(q).attention_quantized(q, k, v, out, lse, scale, softcap, left, right, alignment, _bshd(layout), variant,
                                              batch_invariant, stream, out_dtype, return_lse, more, bool(smooth_k), bool(rotate))


_ROTARY = {"interleaved": 1, "neox": 2}


def append(k: Any, v: Any, k_cache: Any, v_cache: Any, *, used_kv: Any = None, q: Any = None, q_out: Any = None, cos: Any = None, sin: Any = None,
           rotary: str = "neox", page_table: Any = None, kv_index: Any = None, kv_start: Any = None, cu_new: Any = None,
           max_new: int | None = None, used_new: Any = None, layout: str = "bhsd", validate: bool = False, stream: int | None = None) -> Any:
    """Writes new keys and values to a cache: token t of sequence b becomes key used_kv[b] + t. Then attend, with used_kv of as
    many more. Returns q turned, None without q.

    k, v         [B, Hkv, Snew, D] ([B, Snew, Hkv, D] with layout="bshd"; v's D may be another); with cu_new packed, [Hkv, total,
                 D] ([total, Hkv, D]), and max_new the most tokens that a sequence has (None: all).
    k_cache, v_cache  [B, Hkv, Skv, D]; with kv_index any batch; with page_table [blocks, Hkv, page, D], or [blocks, page, Hkv, D].
    used_kv      keys before the call; None: none. used_new: how many of its new tokens each sequence has; None: all.
    cos, sin     float32 [positions, R / 2]: the first R elements of each head of k (and q) are turned by the angle of the
                 key's position in the cache, less kv_start. rotary: "neox" turns n with n + R / 2, "interleaved" 2 n with 2 n + 1.
    q            [B, Hq, Snew, D], packed as k; q_out: where to write it, q itself is possible; None: allocated.
    Arrays are int32 [B], on the device of k; page_table [B, pages]; cu_new [B + 1].
    validate     checks the arrays on CUDA as well, and synchronises. On the CPU they always are checked: ValueError, and nothing is written, for a
                 sequence that outgrows its cache or its pages, a page that does not exist, or that two sequences would write.
    On CUDA nobody else reads the arrays before: tokens without a place in the cache, or
    without a row of cos and sin, are dropped, and their rows of q_out stay as they were.
    Errors, before any work: TypeError for types and objects that cannot be read, or a cache of JAX, which nothing may change; ValueError for
    shapes that do not belong together, caches that share memory; NotImplementedError for tensors that require gradients, which there are none of.
    """
    try:
        kind = _ROTARY[rotary]
    except (KeyError, TypeError):
        raise ValueError(f"rotary is {rotary!r}: 'neox' or 'interleaved' is possible") from None
    return _library_of(k).append(k, v, k_cache, v_cache, q, q_out, cu_new, used_new, used_kv, kv_start, kv_index, page_table, cos, sin,
                                    max_new, kind, _bshd(layout), int(validate), stream)


class Explanation(NamedTuple):
    """What selection decides for a call, and why."""
    variant: str                                  #: the chosen one; "" where none takes the problem
    forced: bool                                  #: by `variant` or GREENFAST_VARIANT
    refusal: str                                  #: why there is none; "" otherwise
    candidates: list[tuple[str, bool, int, str]]  #: every variant: id, whether it can, rank (higher is preferred), reason
    plan: dict[str, Any] | None                   #: what the chosen one will do: grid, tile, kernel, workspace_bytes, ...
    problem: str                                  #: shape and options in words
    device: dict[str, Any]                        #: the facts that were looked at

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device['name']}: {self.variant or self.refusal}"]
        lines += [f"{'*' if name == self.variant else ' '} {name}  {reason}" for name, _, _, reason in self.candidates]
        return "\n".join(lines)


def explain(q: Any, k: Any, v: Any, *, out: Any = None, scale: float | None = None, causal: bool = False,
            window: tuple[int, int] | None = None, align: str | None = None, softcap: float = 0.0, layout: str = "bhsd",
            lse: Any = None, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None, out_dtype: Any = None,
            variant: str | None = None, batch_invariant: bool = False, device: str | tuple[str, int] | None = None,
            **features: Unpack[Features]) -> Explanation:
    """Which variant attention() would run for these arguments, and every variant's answer; nothing is computed.

    q, k, v and the arrays may be TensorSpec(shape, dtype), "int32" and "bool" too. device: None for that of q, ("cuda", 0) or ("cpu", 0) for another of this
    machine, or the name of a model ("h200", "h100", "a100", "l4", "cpu") to plan for one that is not here. Scratch on CUDA is taken for granted,
    as PyTorch's and CuPy's allocators give it to attention().

    Errors: those of attention() for arguments that contradict each other or cannot be read; RuntimeError for a device that is not here. That no
    variant takes the problem is no error: `variant` is "" then, and `refusal` says why.
    """
    place = _arrays.device_of(device)
    return Explanation(*_core.explain(*_unmade("explain", q, k, v, out, scale, causal, window, align, softcap, layout, lse, q_scale, k_scale,
                                               v_scale, variant, batch_invariant, features), place, _dtype_or_none(out_dtype)))


def prepare(q: Any, k: Any, v: Any, *, out: Any = None, scale: float | None = None, causal: bool = False,
            window: tuple[int, int] | None = None, align: str | None = None, softcap: float = 0.0, layout: str = "bhsd",
            lse: Any = None, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None, out_dtype: Any = None,
            variant: str | None = None, batch_invariant: bool = False, **features: Unpack[Features]) -> None:
    """Does what a first call of attention() with these arguments does beside computing: loads the kernel, opts in to its shared memory,
    starts threads. The next is as fast as any, and may be captured into a CUDA graph.

    Arguments as explain's: TensorSpec(shape, dtype, device="cuda") stands for tensors that are not there yet.
    Errors: as attention()'s.
    """
    _core.prepare(*_unmade("prepare", q, k, v, out, scale, causal, window, align, softcap, layout, lse, q_scale, k_scale, v_scale, variant,
                           batch_invariant, features), None, _dtype_or_none(out_dtype))


def _dtype_or_none(dtype: Any) -> int | None:
    return None if dtype is None else _arrays.dtype_code(dtype)


def _unmade(function: str, q: Any, k: Any, v: Any, out: Any, scale: float | None, causal: bool, window: tuple[int, int] | None, align: str | None,
            softcap: float, layout: str, lse: Any, q_scale: Any, k_scale: Any, v_scale: Any, variant: str | None, batch_invariant: bool,
            features: Any) -> list[Any]:
    """A call that is not to be made, as _core reads it."""
    left, right, alignment = _mask(causal, window, align)
    _find_torch()
    tensors = [_arrays.describe(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse), ("q_scale", q_scale),
                                                         ("k_scale", k_scale), ("v_scale", v_scale))]
    return [*tensors, scale, softcap, left, right, alignment, _bshd(layout), variant, int(batch_invariant), None, None,
            _arrays.describe_features(_arrays.features(features, function))]


# Keywords of their own would cost every call 0.4 us, more than all of the extension module; so they are one dictionary to
# Python, and only here each has its name and default, for help() and editors.
for _function in (attention, attention_quantized, explain, prepare):
    _plain = inspect.signature(_function)
    _function.__signature__ = _plain.replace(parameters=[  # type: ignore[attr-defined]
        *[x for x in _plain.parameters.values() if x.kind is not x.VAR_KEYWORD],
        *[inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_arrays.ACCURACIES[0] if name == "accuracy" else absent, annotation=Features.__annotations__[name].__forward_arg__)
          for name, absent in _arrays.FEATURES.items()]])


class Variant(NamedTuple):
    """One kernel in one configuration."""
    id: str                  #: device.family.name
    idea: str                #: one line
    device: str              #: "cpu" or "cuda"
    min_arch: int            #: lowest compute capability, 10 * major + minor; 0 on the CPU
    built: bool              #: it is in this package
    automatic: bool          #: it may be chosen unasked
    predecessor: str         #: the rung of the ladder that it is compared with
    toggles: dict[str, int]  #: what it was compiled with


def variants() -> list[Variant]:
    """Every variant that the library knows, also those that this package was built without."""
    return [Variant(*row) for row in _core.variants()]


def device_facts(device: str | tuple[str, int] = "cpu") -> dict[str, Any]:
    """What selection knows of a device: ("cuda", 0), ("cpu", 0), or of a model by name ("h200", "h100", "a100", "l4").

    Errors: ValueError for what is no device or no known model, RuntimeError for one that is not here.
    """
    return _core.device_facts(_arrays.device_of(("cpu", 0) if device is None or device == "cpu" else device))


def quantize_e4m3(values: Any, *, out: Any = None, scale: Any = None, per: str = "head", layout: str = "bhsd",
                  transposed: bool = False, rotate: bool = False, stream: int | None = None) -> tuple[Any, Any]:
    """(codes, scale): values = codes * scale, as attention() takes them.

    values  [B, H, S, D] (or [B, S, H, D] with layout="bshd") of float32, float16 or bfloat16.
    scale   given: used as it is; None: computed, the largest finite magnitude / 448, one for each (batch, head) with
            per="head", one for all with per="tensor", one for each block of 128 rows of them, [B, H, ceil(S / 128)], with per="block". float32.
    transposed  codes of the same shape whose S is contiguous in place of D, rows padded to 16 bytes: what attention() on Hopper
            multiplies V by, and else makes of it in every call. For V alone, of dense calls there (with a log-sum-exp up to D 128), or on the CPU: other
            kernels refuse it (NotImplementedError names it). An `out` says by its strides how it lies.
    rotate  multiplies rows by an orthogonal matrix first, as attention_quantized does: Q and K both, or neither. `scale` is of rotated values then, which may be 5.7 times as
            large; infinities and magnitudes above 1e37 may make NaN of up to 32 columns. Not with codes that lie transposed.
    Rounds to nearest even, saturates at 448; NaN stays NaN. CPU and CUDA give the same bits. torch.compile traces through.
    Errors, before any work: TypeError for types and objects that cannot be read; ValueError for shapes that do not belong together or a `scale`
    that is neither one value nor contiguous [B, H] or [B, H, ceil(S / 128)]; NotImplementedError for values that require gradients, which there are none of, and
    for `transposed` with JAX, whose arrays have no strides.
    """
    if per not in ("head", "tensor", "block"):
        raise ValueError(f"per is {per!r}: 'head', 'tensor' or 'block' is possible")
    if transposed and out is not None:
        raise ValueError("transposed and out: an out says by its strides how it lies; leave transposed away")
    return _library_of(values).quantize(values, out, scale, per, _bshd(layout), bool(transposed), bool(rotate), stream)


_find_torch()
