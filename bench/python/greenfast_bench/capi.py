"""The C ABI through ctypes: no compiler, no dependency. Mirrors include/greenfast/greenfast.h."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import pathlib

ABI_VERSION = 1
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "e4m3": 3}
TORCH_DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16",
                "torch.float8_e4m3fn": "e4m3"}
CPU, CUDA = 0, 1
TOP_LEFT, BOTTOM_RIGHT = 0, 1
STATUS_UNSUPPORTED = 2
SCALE_NONE, SCALE_TENSOR, SCALE_PER_HEAD = 0, 1, 2
ALIBI_PER_HEAD, ALIBI_PER_BATCH_HEAD = 1, 2
MASK_BOOLEAN, MASK_ADDITIVE = 1, 2
# Arrays of a call beside Q, K, V and O that a problem says it has by a field of another name.
ARRAY_FIELDS = {"cu_q": "packed_q", "cu_kv": "packed_kv", "used_q": "used_q", "used_kv": "used_kv", "kv_start": "kv_start",
                "kv_index": "kv_index", "sinks": "sinks"}


class Error(RuntimeError):
    """A call failed; the text names what was asked, what is possible and what to change."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class _Struct(ctypes.Structure):
    """Every struct of the ABI begins with its size and the version it was written for."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), abi_version=ABI_VERSION, **fields)


class Layout(ctypes.Structure):
    _fields_ = [("stride", ctypes.c_int64 * 4), ("alignment", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class Problem(_Struct):
    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32),
        ("batch", ctypes.c_int64), ("heads_q", ctypes.c_int64), ("heads_kv", ctypes.c_int64),
        ("seq_q", ctypes.c_int64), ("seq_kv", ctypes.c_int64), ("head_dim", ctypes.c_int64),
        ("dtype", ctypes.c_int32), ("out_dtype", ctypes.c_int32), ("scales", ctypes.c_int32),
        ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("mask_alignment", ctypes.c_int32),
        ("mask_left", ctypes.c_int64), ("mask_right", ctypes.c_int64),
        ("lse", ctypes.c_int32), ("reserved", ctypes.c_int32),
        ("q", Layout), ("k", Layout), ("v", Layout), ("o", Layout),
        # Here version 0.1.0 ended.
        ("head_dim_v", ctypes.c_int64), ("total_q", ctypes.c_int64), ("total_kv", ctypes.c_int64), ("kv_rows", ctypes.c_int64),
        ("page_size", ctypes.c_int64), ("page_count", ctypes.c_int64), ("page_row_stride", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
    ] + [(name, ctypes.c_int32) for name in ("packed_q", "packed_kv", "used_q", "used_kv", "kv_start", "kv_index", "sinks",
                                            "alibi", "array_mask_kind", "array_mask_dtype")] + [
        ("array_mask_stride", ctypes.c_int64 * 4),
        ("accuracy", ctypes.c_int32), ("reserved_accuracy", ctypes.c_int32),
    ]


class Tensors(_Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32)] + [
        (name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "q_scale", "k_scale", "v_scale", "cu_q", "cu_kv", "used_q",
                                             "used_kv", "kv_start", "kv_index", "page_table", "sinks", "mask", "slopes")]


class Options(_Struct):
    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32),
        ("device", ctypes.c_int32), ("device_index", ctypes.c_int32), ("stream", ctypes.c_void_p),
        ("variant", ctypes.c_char_p), ("batch_invariant", ctypes.c_int32), ("reserved", ctypes.c_int32),
        ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t),
        ("max_splits", ctypes.c_int32), ("validate", ctypes.c_int32),
    ]


class DeviceFacts(_Struct):
    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32), ("device", ctypes.c_int32),
        ("index", ctypes.c_int32), ("arch", ctypes.c_int32), ("multiprocessors", ctypes.c_int32),
        ("shared_per_block", ctypes.c_int64), ("l2_bytes", ctypes.c_int64),
        ("name", ctypes.c_char * 128), ("isa", ctypes.c_char * 32), ("driver", ctypes.c_char * 32),
    ]


class PlanInfo(_Struct):
    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32), ("variant", ctypes.c_char_p),
        ("grid", ctypes.c_int32 * 3), ("block", ctypes.c_int32 * 3), ("cluster", ctypes.c_int32 * 3),
        ("tile_q", ctypes.c_int32), ("tile_kv", ctypes.c_int32), ("stages", ctypes.c_int32),
        ("splits", ctypes.c_int32), ("shared_bytes", ctypes.c_int64), ("workspace_bytes", ctypes.c_int64),
        ("kernel", ctypes.c_char * 256), ("note", ctypes.c_char * 256),
    ]


def find_library() -> pathlib.Path:
    """GREENFAST_LIBRARY, a libgreenfast.so beside the package, or one built in this checkout, newest first."""
    named = os.environ.get("GREENFAST_LIBRARY")
    if named:
        path = pathlib.Path(named)
        if not path.exists():
            raise OSError(f"GREENFAST_LIBRARY={named}: no such file")
        return path
    here = pathlib.Path(__file__).resolve()
    beside = here.parent / "libgreenfast.so"
    if beside.exists():
        return beside
    built = sorted(here.parents[3].glob("build*/**/libgreenfast.so"), key=lambda p: p.stat().st_mtime)
    if not built:
        raise OSError("libgreenfast.so was not found: build the project, or set GREENFAST_LIBRARY to the file")
    return built[-1]


class Library:
    def __init__(self, path: str | os.PathLike):
        self._dll = ctypes.CDLL(str(path))
        dll = self._dll
        dll.gf_last_error.restype = dll.gf_version.restype = ctypes.c_char_p
        dll.gf_abi_version.restype = ctypes.c_uint32
        dll.gf_attention.argtypes = [ctypes.POINTER(Problem), ctypes.POINTER(Tensors), ctypes.POINTER(Options)]
        dll.gf_plan.argtypes = [ctypes.POINTER(Problem), ctypes.c_void_p, ctypes.POINTER(Options),
                                ctypes.POINTER(PlanInfo)]
        numbers = [ctypes.c_int64] * 6 + [ctypes.c_int32] * 2
        dll.gf_problem_init.argtypes = [ctypes.POINTER(Problem)] + numbers
        # A library of version 0.1.0 (`ab --before`) has no such function, and knows nothing of what the struct has since.
        self._sized = getattr(dll, "gf_problem_init_sized", None)
        if self._sized:
            self._sized.argtypes = [ctypes.POINTER(Problem), ctypes.c_size_t] + numbers
        if dll.gf_abi_version() != ABI_VERSION:
            raise OSError(f"{path} has ABI {dll.gf_abi_version()}, this package needs {ABI_VERSION}: "
                          "use a library and a package of one release")

    def version(self) -> str:
        return self._dll.gf_version().decode()

    def identity(self) -> dict[str, str]:
        """Which library a record speaks of."""
        return {"version": self.version(), "sha256": hashlib.sha256(pathlib.Path(self._dll._name).read_bytes()).hexdigest()}

    def _check(self, status: int) -> None:
        if status != 0:
            raise Error(status, self._dll.gf_last_error().decode())

    def problem(self, batch: int, heads_q: int, heads_kv: int, seq_q: int, seq_kv: int, head_dim: int,
                dtype: str, causal: int | None = None, value_dim: int | None = None) -> Problem:
        """A dense BHSD problem with the default scale; causal: None, TOP_LEFT or BOTTOM_RIGHT; value_dim: of V and O, where
        it is not head_dim."""
        problem = Problem()
        numbers = (batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, DTYPES[dtype], 0)
        self._check(self._sized(problem, ctypes.sizeof(Problem), *numbers) if self._sized else
                    self._dll.gf_problem_init(problem, *numbers))
        if causal is not None:
            problem.mask_right, problem.mask_alignment = 0, causal
        if value_dim not in (None, head_dim):
            problem.head_dim_v = value_dim
            for layout, heads, seq in ((problem.v, heads_kv, seq_kv), (problem.o, heads_q, seq_q)):
                layout.stride[:] = (heads * seq * value_dim, seq * value_dim, value_dim, 1)
        return problem

    def plan(self, problem: Problem, device: int = CUDA, variant: str = "", batch_invariant: bool = False) -> PlanInfo:
        """What the selected variant will do; raises Error where none takes the problem."""
        plan = PlanInfo()
        options = Options(device=device, variant=variant.encode(), batch_invariant=int(batch_invariant))
        self._check(self._dll.gf_plan(problem, None, options, plan))
        return plan

    def device_facts(self, device: int = CPU, index: int = 0) -> DeviceFacts:
        facts = DeviceFacts()
        self._check(self._dll.gf_get_device_facts(device, index, ctypes.byref(facts)))
        return facts

    def bind(self, q, k, v, o, causal: bool = False, variant: str = "", stream: int = 0, device: int = CUDA, *,
             lse=None, scale: float | None = None, softcap: float = 0.0, causal_alignment: int = TOP_LEFT, workspace=None):
        """A call of attention() with these arguments: what is left to do at each is the library's alone. The tensors
        must outlive it. lse: room for the log-sum-exp of every row, fp32 [B, Hq, Sq]; scale: 1/sqrt(D) unless given;
        workspace: a tensor of as many bytes as the plan asks for."""
        batch, heads_q, seq_q, head_dim = q.shape
        problem = self.problem(batch, heads_q, k.shape[1], seq_q, k.shape[2], head_dim,
                               TORCH_DTYPES[str(q.dtype)], causal_alignment if causal else None, v.shape[3])
        problem.out_dtype = DTYPES[TORCH_DTYPES[str(o.dtype)]]
        for layout, tensor in ((problem.q, q), (problem.k, k), (problem.v, v), (problem.o, o)):
            layout.stride[:] = tensor.stride()
        problem.lse, problem.softcap = int(lse is not None), softcap
        if scale is not None:
            problem.scale = scale
        tensors = Tensors(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(),
                          lse=None if lse is None else lse.data_ptr())
        options = Options(device=device, stream=stream, variant=variant.encode())
        if device == CUDA:
            options.device_index = q.device.index or 0
        if workspace is not None:
            options.workspace, options.workspace_bytes = workspace.data_ptr(), workspace.numel()
        arguments = [ctypes.byref(argument) for argument in (problem, tensors, options)]
        attention, check = self._dll.gf_attention, self._check

        def call() -> None:
            if status := attention(*arguments):
                check(status)

        return call

    def serving_problem(self, q, k, v, o, *, batch: int, seq_q: int, seq_kv: int, arrays: dict | None = None,
                        window: tuple[int, int] = (-1, -1), alignment: int = BOTTOM_RIGHT, chunk: int = 0,
                        scale: float | None = None, softcap: float = 0.0, lse: bool = False) -> Problem:
        """A problem with sequences, pages, sinks, from torch tensors of the shapes that docs/serving.md gives: q and o
        [B, Hq, Sq, D] or packed [1, Hq, total, D]; k and v [B, Hkv, Skv, D], packed [1, Hkv, total, D] or pages
        [count, Hkv, size, D]. arrays: the device arrays of the call by their names in gf_tensors; seq_q and seq_kv are the
        most that a sequence has; mask is [B, Hq, Sq, Skv] with 1 where it is broadcast, but over keys. window: keys seen before and after a row's position; -1 is all."""
        arrays = arrays or {}
        problem = self.problem(batch, q.shape[1], k.shape[1], seq_q, seq_kv, q.shape[3], TORCH_DTYPES[str(q.dtype)])
        problem.out_dtype = DTYPES[TORCH_DTYPES[str(o.dtype)]]
        for layout, tensor in ((problem.q, q), (problem.k, k), (problem.v, v), (problem.o, o)):
            layout.stride[:] = tensor.stride()
        problem.mask_left, problem.mask_right = window
        problem.mask_alignment, problem.chunk, problem.softcap, problem.lse = alignment, chunk, softcap, int(lse)
        if scale is not None:
            problem.scale = scale
        if v.shape[3] != q.shape[3]:
            problem.head_dim_v = v.shape[3]
        for array, field in ARRAY_FIELDS.items():
            setattr(problem, field, int(arrays.get(array) is not None))
        mask = arrays.get("mask")
        if mask is not None:
            boolean = str(mask.dtype) == "torch.bool"
            problem.array_mask_kind = MASK_BOOLEAN if boolean else MASK_ADDITIVE
            problem.array_mask_dtype = problem.dtype if boolean else DTYPES[TORCH_DTYPES[str(mask.dtype)]]
            # Broadcast where it has one; keys are contiguous, be it one.
            problem.array_mask_stride[:] = [*(stride if size > 1 else 0 for stride, size in zip(mask.stride()[:3], mask.shape)), 1]
        if problem.packed_q:
            problem.total_q = q.shape[2]
        if problem.packed_kv:
            problem.total_kv = k.shape[2]
        if problem.kv_index:
            problem.kv_rows = k.shape[0]
        if arrays.get("page_table") is not None:
            problem.page_count, problem.page_size = k.shape[0], k.shape[2]
            problem.page_row_stride = arrays["page_table"].stride()[0]
        if "q_scale" in arrays:
            problem.scales = SCALE_TENSOR if math.prod(arrays["q_scale"].shape) == 1 else SCALE_PER_HEAD
        return problem

    def bind_problem(self, problem: Problem, q, k, v, o, arrays: dict | None = None, *, device: int = CUDA, variant: str = "",
                     workspace=None, lse=None, max_splits: int = 0, batch_invariant: bool = False):
        """A call of this problem on these tensors, which must outlive it: call(stream=0). workspace: a tensor of bytes, at
        least what the plan asks for."""
        held = dict(arrays or {})
        tensors = Tensors(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=o.data_ptr(),
                          lse=None if lse is None else lse.data_ptr(),
                          **{name: array.data_ptr() for name, array in held.items() if array is not None})
        options = Options(device=device, variant=variant.encode(), max_splits=max_splits, batch_invariant=int(batch_invariant))
        if device == CUDA:
            options.device_index = q.device.index or 0
        if workspace is not None:
            options.workspace, options.workspace_bytes = workspace.data_ptr(), workspace.numel()
        arguments = [ctypes.byref(argument) for argument in (problem, tensors, options)]
        attention, check = self._dll.gf_attention, self._check

        def call(stream: int = 0) -> None:
            options.stream = stream
            if status := attention(*arguments):
                check(status)

        call.held = (q, k, v, o, held, workspace, lse)
        return call

    def attention(self, q, k, v, o, causal: bool = False, variant: str = "", stream: int = 0,
                  device: int = CUDA) -> None:
        """O from torch tensors [B, H, S, D] of any strides with a contiguous last dimension; causal is top-left."""
        self.bind(q, k, v, o, causal, variant, stream, device)()


def load(path: str | os.PathLike | None = None) -> Library:
    return Library(path or find_library())
