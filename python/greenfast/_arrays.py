"""Tensors of any library as the tuples that _core reads: (address, shape, strides in elements, dtype, device, index,
read-only, owner). PyTorch's go another way: greenfast.torch, which knows this module and is unknown to it."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import mmap
import sys
from collections.abc import Callable
from typing import Any

from . import _core

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn")  # at the library's numbers
DEVICES = ("cpu", "cuda")
_NAMES = {**{name: code for code, name in enumerate(DTYPES)}, "fp32": 0, "fp16": 1, "bf16": 2, "e4m3": 3}
_E4M3 = 3
_ELEMENTS = {**_NAMES, "int32": 4, "bool": 5}  # of arrays beside the tensors, at _core's numbers
# What a call may need beyond tensors, in the order in which _core reads it, and what stands there where it is not given.
FEATURES: dict[str, Any] = {"mask": None, "sinks": None, "slopes": None, "chunk": 0, "cu_q": None, "cu_kv": None, "max_q": None, "max_kv": None,
                            "used_q": None, "used_kv": None, "kv_start": None, "kv_index": None, "page_table": None, "max_splits": 0,
                            "validate": False, "accuracy": 0}
ACCURACIES = ("exact", "fast")  # at the library's numbers, which _core reads
_CU_Q = list(FEATURES).index("cu_q")
_DENSE = frozenset(("mask", "sinks", "slopes", "chunk", "max_splits", "validate", "accuracy"))  # those that attention_quantized takes
ARRAYS = tuple(name for name, absent in FEATURES.items() if absent is None and not name.startswith("max_"))


def features(given: dict[str, Any], function: str = "attention") -> tuple[Any, ...] | None:
    """The features of a call as _core reads them; None: none."""
    if not given:
        return None
    made = {**FEATURES, **given}
    if len(made) > len(FEATURES):
        unknown = next(name for name in given if name not in FEATURES)
        near = difflib.get_close_matches(unknown, FEATURES, 1)
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown!r}" + (f": is {near[0]!r} meant?" if near else ""))
    if "accuracy" in given:
        if given["accuracy"] not in ACCURACIES:
            raise ValueError(f"accuracy is {given['accuracy']!r}: 'exact' or 'fast' is possible")
        made["accuracy"] = ACCURACIES.index(given["accuracy"])
    if all(x is FEATURES[name] for name, x in made.items()):  # mask=None and the like
        return None
    return tuple(made.values())


def dense(more: tuple[Any, ...]) -> None:
    """Refuses by name the features that attention_quantized does not take."""
    for name, x in zip(FEATURES, more):
        if name not in _DENSE and x is not None:
            raise NotImplementedError(f"attention_quantized takes dense tensors, not {name}: keep the cache in e4m3 as it grows (quantize_e4m3), "
                                      "and call attention()")


def describe_features(more: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """The same with its arrays as _core reads them."""
    if more is None:
        return None
    return tuple(describe(name, x) if name in ARRAYS else x for name, x in zip(FEATURES, more))


def _one_library(names: tuple[str, ...], arrays: Any) -> None:
    """Refuses PyTorch's tensors beside arrays of another library, whose results and gradients are made differently. What is only read
    beside them (lengths, pages, masks, scales) may be of any."""
    torch = sys.modules.get("torch")
    for name, x in zip(names, arrays):
        if torch is not None and isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a torch.Tensor, and the first array is not: pass all of one library")


def _not_none(names: tuple[str, ...], arrays: Any) -> None:
    """Refuses None where an array may not be left out."""
    for name, x in zip(names, arrays):
        if x is None:
            raise TypeError(f"{name} is None: pass a tensor of PyTorch, NumPy, JAX or CuPy, or an object with __dlpack__ or __cuda_array_interface__")


_JAX = ("jax", "jaxlib")


def _root(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


def _writable(name: str, x: Any) -> Any:
    """x, which is to be written, as _core reads it. JAX's arrays never change: whoever holds one relies on it, compiled code too."""
    if _root(x) in _JAX:
        raise TypeError(f"{name} is a JAX array, which nothing may change: " + (
            "leave it out, and a new one is returned" if name in ("out", "lse", "q_out", "scale") else "pass memory of NumPy or CuPy"))
    return describe(name, x)


def dtype_code(dtype: Any) -> int:
    """The library's number of an element type given as a name, or as NumPy, PyTorch, JAX, ... write it."""
    if dtype is float:
        raise TypeError("dtype is float, which is 64 bits wide: use float32, float16, bfloat16 or float8_e4m3fn")
    name = _name_of(dtype)
    code = _NAMES.get(name)
    if code is None:
        raise TypeError(f"element type {name} is not supported: use {', '.join(DTYPES[:-1])} or {DTYPES[-1]}")
    return code


def _name_of(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.")


def element_code(argument: str, dtype: Any) -> int:
    code = _ELEMENTS.get(_name_of(dtype))
    if code is None:
        raise TypeError(f"{argument} is {_name_of(dtype)}: tensors may be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, arrays of lengths and indices "
                        "int32, masks bool; convert it")
    return code


def device_of(device: Any) -> Any:
    """A device as _core reads it: None, the name of a model, or (kind, index) by number."""
    if device is None or isinstance(device, str):
        return device
    if isinstance(device, tuple) and len(device) == 2 and device[0] in DEVICES and isinstance(device[1], int) and 0 <= device[1] < 2 ** 31:
        return DEVICES.index(device[0]), device[1]
    raise ValueError(f"device is {device!r}: ('cpu', 0) or ('cuda', index) is possible, or the name of a model, such as 'h200'")


class TensorSpec:
    """A tensor without memory, for explain(): shape, element type and strides (in elements; None: contiguous)."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = "float16", strides: tuple[int, ...] | None = None,
                 device: str = "cpu", index: int = 0):
        self.shape, self.dtype, self.device, self.index = tuple(shape), dtype, device, index
        if strides is None:
            dense = 1
            reverse = []
            for size in reversed(self.shape):
                reverse.append(dense)
                dense *= size
            strides = tuple(reversed(reverse))
        self.strides = tuple(strides)


# Who reads tensors of a kind of their own; greenfast.torch enters itself, which the package's functions see to.
READERS: list[tuple[type, Callable[[str, Any], Any]]] = []


def describe(name: str, x: Any) -> Any:
    """x as _core reads it: None stays None, a PyTorch tensor of a registered type stays itself."""
    if x is None:
        return None
    if isinstance(x, TensorSpec):
        return (0, x.shape, x.strides, element_code(name, x.dtype), *device_of((x.device, x.index)), False, x)
    for kind, read in READERS:
        if isinstance(x, kind):
            return read(name, x)
    if type(x).__module__ == "numpy" and hasattr(x, "strides"):
        return _from_numpy(name, x)
    if type(x).__module__.startswith("numpy.ma"):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: pass x.filled(0), and the mask as mask=")
    try:
        cuda = getattr(x, "__cuda_array_interface__", None)
    except Exception:  # some libraries have the attribute and raise for arrays of the CPU
        cuda = None
    if cuda is not None:
        return _from_interface(name, x, cuda, 1, _cuda_index(x))
    host = getattr(x, "__array_interface__", None)
    if host is not None:
        return _from_interface(name, x, host, 0, 0)
    make = getattr(x, "__dlpack__", None)
    if make is None:
        raise TypeError(f"{name} is {type(x).__module__}.{type(x).__name__}: pass a tensor of PyTorch, NumPy, JAX or CuPy, or an object "
                        "with __dlpack__ or __cuda_array_interface__ (a traced or lazy array holds no memory)")
    try:
        capsule = make(max_version=(1, 0))  # which says whether memory may be written
    except TypeError:
        capsule = make()
    return _core.from_dlpack(capsule)


_NUMPY: dict[Any, int] = {}  # numbers of dtypes seen, which take 1 us to name


def _from_numpy(name: str, x: Any) -> tuple[Any, ...]:
    code = _NUMPY.get(x.dtype)
    if code is None:
        if not x.dtype.isnative:
            raise TypeError(f"{name} is big-endian: convert it with x.astype(x.dtype.newbyteorder('='))")
        code = _NUMPY[x.dtype] = element_code(name, x.dtype)
    size = x.itemsize
    if any(step % size for step in x.strides):
        raise ValueError(f"{name}'s strides {x.strides} are not multiples of its {size}-byte elements: copy it")
    address, readonly = x.__array_interface__["data"]
    return (address, x.shape, tuple(step // size for step in x.strides), code, 0, 0, readonly, x)


def _cuda_index(x: Any) -> int:
    device = getattr(x, "device", None)
    for attribute in ("id", "index"):
        index = getattr(device, attribute, None)
        if isinstance(index, int):
            return index
    return 0


_TYPES = {"<f4": "float32", "<f2": "float16", "<i4": "int32", "|b1": "bool"}  # of arrays that do not say it otherwise


def _from_interface(name: str, x: Any, interface: dict[str, Any], device: int, index: int) -> tuple[Any, ...]:
    """NumPy's array interface, or its like for CUDA: byte strides, an address, whether it may be written."""
    for key in ("typestr", "shape", "data"):
        if key not in interface or (key == "data" and not (isinstance(interface[key], tuple) and len(interface[key]) == 2)):
            raise ValueError(f"{name}'s array interface has no {key if key != 'data' else 'data of (address, read-only)'}: it describes no memory")
    dtype = getattr(x, "dtype", None)
    code = element_code(name, dtype if dtype is not None else _TYPES.get(interface["typestr"], interface["typestr"]))
    if str(interface["typestr"]).startswith(">"):
        raise TypeError(f"{name} is big-endian: convert it")
    size = int(str(interface["typestr"])[2:])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(step * size for step in TensorSpec(shape).strides)
    if any(step % size for step in strides):
        raise ValueError(f"{name}'s strides {tuple(strides)} are not multiples of its {size}-byte elements: copy it")
    address, readonly = interface["data"]
    return (address or 0, shape, tuple(step // size for step in strides), code, device, index, bool(readonly), x)


def _made_by(x: Any, code: int) -> tuple[Any, Any]:
    """The library that makes results for x, and its name for an element type."""
    if _root(x) == "cupy":
        library = sys.modules["cupy"]
    else:
        import numpy as library  # the results of other libraries on the CPU are made from NumPy's
    name = DTYPES[code]
    if name not in ("bfloat16", "float8_e4m3fn"):
        return library, name
    import ml_dtypes
    return library, getattr(ml_dtypes, name)


def _transposed(values: Any, described: tuple[Any, ...], bshd: int) -> Any:
    """Codes that lie as [B, H, D, S], S padded to 16 bytes, seen in the order of values."""
    if _root(values) in _JAX:
        raise NotImplementedError("transposed: JAX's arrays have no strides to say how codes lie; leave it away")
    library, dtype = _made_by(values, _E4M3)
    batch, heads, seq, dim = (described[1][axis] for axis in ((0, 2, 1, 3) if bshd else (0, 1, 2, 3)))
    codes = library.empty((batch, heads, dim, (seq + 15) // 16 * 16), dtype=dtype)[..., :seq]
    return codes.transpose((0, 3, 1, 2) if bshd else (0, 1, 3, 2))


def _like(x: Any, described: tuple[Any, ...], code: int, shape: tuple[int, ...] | None = None) -> Any:
    """Memory of x's library for a result: of x's shape or another, and its order of strides where it has as many dimensions. What describe
    made of x says these, since some objects have no more than a protocol."""
    library, dtype = _made_by(x, code)
    # Of strides of 0 numpy.empty_like makes an order in which D need not be last.
    if shape is not None or not hasattr(x, "strides") or 0 in described[2]:
        whole, strides = described[1], described[2]
        shape = whole if shape is None else shape
        if len(shape) != len(whole) or not shape:
            return library.empty(shape, dtype=dtype)
        order = sorted(range(len(shape) - 1), key=lambda dim: -strides[dim]) + [len(shape) - 1]
        made = library.empty([shape[dim] for dim in order], dtype=dtype)
        return made.transpose([order.index(dim) for dim in range(len(shape))])
    return library.empty_like(x, dtype=dtype, subok=False) if library.__name__ == "numpy" else library.empty_like(x, dtype=dtype)


def _returned(made: Any, like: Any) -> Any:
    """A result in the library of q."""
    if _root(like) in _JAX:
        return sys.modules["jax"].numpy.asarray(made)
    return made


def _stream(x: Any, given: int | None) -> int | None:
    if given is not None:
        return given
    if _root(x) == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return (getattr(x, "__cuda_array_interface__", None) or {}).get("stream") if hasattr(x, "__cuda_array_interface__") else None


def _allocate_of(x: Any, device: int = 1, stream: int | None = None) -> Any:
    """How to get scratch: on CUDA from CuPy's pool, which keeps what is freed for the stream it was got on, the given one or the current."""
    if device == 0:
        return host_scratch
    if _root(x) != "cupy":
        return None

    def allocate(size: int, index: int) -> tuple[int, Any]:
        cupy = sys.modules["cupy"]
        with contextlib.nullcontext() if stream is None else cupy.cuda.ExternalStream(stream):
            memory = cupy.empty(size, dtype="uint8")
        return memory.data.ptr, memory

    return allocate


def host_scratch(size: int, index: int) -> tuple[int, Any]:
    """Memory of the host at a multiple of 256 bytes, for attention_quantized."""
    memory = mmap.mmap(-1, size)  # pages, which nobody fills with zeros before they are touched
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def lse_shape(q_shape: tuple[int, ...], bshd: int, packed: bool) -> tuple[int, ...]:
    """[B, Hq, Sq]; [Hq, total] for packed sequences."""
    rank = len(q_shape)
    if rank != 4 and not (packed and rank == 3):
        raise ValueError(f"q has shape {list(q_shape)}: {'three' if packed else 'four'} dimensions are expected")
    heads, rows = (q_shape[-2], q_shape[-3]) if bshd else (q_shape[-3], q_shape[-2])
    return (heads, rows) if packed else (q_shape[0], heads, rows)


def attention(q, k, v, out, lse, q_scale, k_scale, v_scale, scale, softcap, left, right, align, bshd, variant, batch_invariant, stream,
              out_dtype, return_lse, more=None, function=None):
    """greenfast.attention for everything but PyTorch, or another function of the module with its arguments."""
    if q is None or k is None or v is None:
        _not_none(("q", "k", "v"), (q, k, v))
    _one_library(("k", "v", "out", "lse"), (k, v, out, lse))
    tensors = [describe("q", q), describe("k", k), describe("v", v)]
    shape, code, device = tensors[0][1], tensors[0][3], tensors[0][4]
    made_out = made_lse = None
    wanted = dtype_code(out_dtype) if out_dtype is not None else 1 if code == _E4M3 else code
    if out is None:
        if device and _root(q) != "cupy":
            raise ValueError(f"out is None: memory for a result cannot be made for {type(q).__module__}.{type(q).__name__} on CUDA; pass out, "
                             "of CuPy for example")
        v_shape = tensors[2][1]
        other = v_shape and shape and v_shape[-1] != shape[-1]
        out = made_out = _like(q, tensors[0], wanted if wanted < len(DTYPES) else 0, (*shape[:-1], v_shape[-1]) if other else None)
    if lse is None and return_lse:
        lse = made_lse = _like(q, tensors[0], 0, lse_shape(shape, bshd, more is not None and more[_CU_Q] is not None))
    described = _writable("out", out)
    if out_dtype is not None and described[3] != wanted:
        raise TypeError(f"out is {(*DTYPES, 'int32', 'bool')[described[3]]} and out_dtype {DTYPES[wanted]}: leave one of them out")
    allocate = _allocate_of(q, 1 if function is None else device, stream)
    if function is not None and allocate is None:
        raise ValueError(f"attention_quantized wants scratch, which cannot be made for {type(q).__module__}.{type(q).__name__} on CUDA: pass tensors of "
                         "PyTorch or CuPy")
    (function or _core.attention)(
        *tensors, described, None if lse is None else _writable("lse", lse),
        *[describe(name, x) for name, x in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale))],
        scale, softcap, left, right, align, bshd, variant, int(batch_invariant), _stream(q, stream), allocate, describe_features(more))
    result = out if made_out is None else _returned(out, q)
    return (result, lse if made_lse is None else _returned(lse, q)) if return_lse else result


def attention_quantized(q, k, v, out, lse, *options):
    """greenfast.attention_quantized for everything but PyTorch."""
    *options, smooth_k, rotate = options
    return attention(q, k, v, out, lse, None, None, None, *options,
                     function=lambda *arguments: _core.attention_quantized(*arguments, smooth_k, rotate))


def merge(o1, lse1, o2, lse2, out, lse, out_dtype, bshd, stream):
    """greenfast.merge for everything but PyTorch."""
    names = ("o1", "lse1", "o2", "lse2", "out", "lse")
    _one_library(names, (o1, lse1, o2, lse2, out, lse))
    made_out, made_lse = out is None, lse is None
    _not_none(names, (o1, lse1, o2, lse2))
    given = [describe(name, x) for name, x in zip(names, (o1, lse1, o2, lse2))]
    if made_out:
        out = _like(o1, given[0], given[0][3] if out_dtype is None else dtype_code(out_dtype))
    if made_lse:
        lse = _like(lse1, given[1], 0)
    _core.merge(*given, _writable("out", out), _writable("lse", lse), bshd,
                _stream(o1, stream))
    return _returned(out, o1) if made_out else out, _returned(lse, o1) if made_lse else lse


WRITTEN = ("k_cache", "v_cache", "q_out")
APPENDED = ("k", "v", "k_cache", "v_cache", "q", "q_out", "cu_new", "used_new", "used_kv", "kv_start", "kv_index", "page_table", "cos", "sin")


def append(*arguments):
    """greenfast.append for everything but PyTorch."""
    *tensors, max_new, rotary, bshd, validate, stream = arguments
    _one_library(APPENDED[:6], tensors[:6])
    q, q_out = tensors[4:6]
    made = q is not None and q_out is None
    if made:
        described = describe("q", q)
        tensors[5] = q_out = _like(q, described, described[3])
    _core.append(*[(_writable if name in WRITTEN and x is not None else describe)(name, x) for name, x in zip(APPENDED, tensors)], max_new, rotary, bshd, validate, _stream(tensors[0], stream))
    return None if q is None else _returned(q_out, q) if made else q_out


def scale_shape(shape, per, bshd):
    """Of the scales of values [B, H, S, D], or [B, S, H, D], that quantize_e4m3 computes."""
    if per == "tensor" or len(shape) != 4:
        return (1,)
    batch, heads, seq = shape[0], shape[2 if bshd else 1], shape[1 if bshd else 2]
    return (batch, heads) if per == "head" else (batch, heads, (seq + 127) // 128)


def quantize(values, out, scale, per, bshd, transposed, rotate, stream):
    """greenfast.quantize_e4m3 for everything but PyTorch."""
    compute = scale is None
    _not_none(("values",), (values,))
    source = describe("values", values)
    _one_library(("out", "scale"), (out, scale))
    if out is None:
        out = made = _transposed(values, source, bshd) if transposed and len(source[1]) == 4 else _like(values, source, _E4M3)
    else:
        made = None
    if compute:
        scale = _like(values, source, 0, scale_shape(source[1], per, bshd))
    _core.quantize_e4m3(source, _writable("out", out), (_writable if compute else describe)("scale", scale), int(compute), bshd,
                        int(rotate), _allocate_of(values, stream=stream), _stream(values, stream))
    return (out if made is None else _returned(out, values)), (_returned(scale, values) if compute else scale)
