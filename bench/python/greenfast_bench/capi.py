"""The C ABI through ctypes: no compiler, no dependency. Mirrors include/greenfast/greenfast.h."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib

ABI_VERSION = 1
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "e4m3": 3}
TORCH_DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16",
                "torch.float8_e4m3fn": "e4m3"}
CPU, CUDA = 0, 1
TOP_LEFT, BOTTOM_RIGHT = 0, 1
STATUS_UNSUPPORTED = 2


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
    ]


class Tensors(_Struct):
    _fields_ = [("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32)] + [
        (name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse", "q_scale", "k_scale", "v_scale")]


class Options(_Struct):
    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("abi_version", ctypes.c_uint32),
        ("device", ctypes.c_int32), ("device_index", ctypes.c_int32), ("stream", ctypes.c_void_p),
        ("variant", ctypes.c_char_p), ("batch_invariant", ctypes.c_int32), ("reserved", ctypes.c_int32),
        ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t),
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
        dll.gf_problem_init.argtypes = [ctypes.POINTER(Problem)] + [ctypes.c_int64] * 6 + [ctypes.c_int32] * 2
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
                dtype: str, causal: int | None = None) -> Problem:
        """A dense BHSD problem with the default scale; causal: None, TOP_LEFT or BOTTOM_RIGHT."""
        problem = Problem()
        self._check(self._dll.gf_problem_init(problem, batch, heads_q, heads_kv, seq_q, seq_kv, head_dim,
                                              DTYPES[dtype], 0))
        if causal is not None:
            problem.mask_right, problem.mask_alignment = 0, causal
        return problem

    def plan(self, problem: Problem, device: int = CUDA, variant: str = "") -> PlanInfo:
        """What the selected variant will do; raises Error where none takes the problem."""
        plan = PlanInfo()
        self._check(self._dll.gf_plan(problem, None, Options(device=device, variant=variant.encode()), plan))
        return plan

    def device_facts(self, device: int = CPU, index: int = 0) -> DeviceFacts:
        facts = DeviceFacts()
        self._check(self._dll.gf_get_device_facts(device, index, ctypes.byref(facts)))
        return facts

    def bind(self, q, k, v, o, causal: bool = False, variant: str = "", stream: int = 0, device: int = CUDA, *,
             lse=None, scale: float | None = None, softcap: float = 0.0, causal_alignment: int = TOP_LEFT):
        """A call of attention() with these arguments: what is left to do at each is the library's alone. The tensors
        must outlive it. lse: room for the log-sum-exp of every row, fp32 [B, Hq, Sq]; scale: 1/sqrt(D) unless given."""
        batch, heads_q, seq_q, head_dim = q.shape
        problem = self.problem(batch, heads_q, k.shape[1], seq_q, k.shape[2], head_dim,
                               TORCH_DTYPES[str(q.dtype)], causal_alignment if causal else None)
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
        arguments = [ctypes.byref(argument) for argument in (problem, tensors, options)]
        attention, check = self._dll.gf_attention, self._check

        def call() -> None:
            if status := attention(*arguments):
                check(status)

        return call

    def attention(self, q, k, v, o, causal: bool = False, variant: str = "", stream: int = 0,
                  device: int = CUDA) -> None:
        """O from torch tensors [B, H, S, D] of any strides with a contiguous last dimension; causal is top-left."""
        self.bind(q, k, v, o, causal, variant, stream, device)()


def load(path: str | os.PathLike | None = None) -> Library:
    return Library(path or find_library())
