"""One engine of attention on the CPU in a process of its own: the side of greenfast_bench.ab_cpu that computes.

Orders come on standard input and answers go to standard output, a JSON object on a line each; tensors lie in files as the
bits of dense [B, H, S, D]. NumPy is all that it needs beside the engine. bf16, which NumPy has not, is uint16 here.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

import numpy

from greenfast_bench import capi
from greenfast_bench.measure import first_line

BITS = {"fp32": numpy.float32, "fp16": numpy.float16, "bf16": numpy.uint16}
NAN = {"fp32": numpy.float32("nan"), "fp16": numpy.float16("nan"), "bf16": 0x7FC0}
# Workers of a pool spin for a while after a call, and one that is to be timed alone would be timed beside them.
PAUSE_SECONDS = 2e-3
PAGE = 4096


def room(shape, dtype: str) -> numpy.ndarray:
    """Memory that begins at a page, so that no engine owes its speed to where its inputs happen to lie."""
    bits = numpy.dtype(BITS[dtype])
    size = int(numpy.prod(shape)) * bits.itemsize
    raw = numpy.empty(size + PAGE, numpy.uint8)
    begin = -raw.ctypes.data % PAGE
    return raw[begin:begin + size].view(bits).reshape(shape)


def copied(array: numpy.ndarray, dtype: str) -> numpy.ndarray:
    out = room(array.shape, dtype)
    out[...] = array
    return out


class Engine:
    """bind() gives a call on these arrays, and what turns what the call returned into the bits of [B, H, S, D]."""

    version = ""

    def bind(self, q, k, v, o, dtype: str, causal: bool):
        raise NotImplementedError


class Dense:
    """As much of a tensor as capi.bind asks for."""

    def __init__(self, array: numpy.ndarray, dtype: str):
        self.array, self.shape = array, array.shape
        self.dtype = next(torch for torch, name in capi.TORCH_DTYPES.items() if name == dtype)

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def data_ptr(self):
        return self.array.ctypes.data


class Greenfast(Engine):
    def __init__(self, threads, cpus, variant):
        self._library, self._variant = capi.load(), variant
        self.facts = self._library.device_facts()
        self.version = f"greenfast {self._library.version()} ({self.facts.isa.decode()})"

    def bind(self, q, k, v, o, dtype, causal):
        dense = [Dense(array, dtype) for array in (q, k, v, o)]
        call = self._library.bind(*dense, causal=causal, variant=self._variant, device=capi.CPU)
        return call, lambda _: dense[3].array


class Torch(Engine):
    def __init__(self, threads, cpus, variant):
        import torch

        torch.set_num_threads(threads)
        self._torch, self.version = torch, f"torch {torch.__version__}"

    def _tensors(self, arrays, dtype):
        torch = self._torch
        return [torch.from_numpy(a.view(numpy.int16)).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(a) for a in arrays]

    def _bits(self, out):
        out = out.contiguous()
        return out.view(self._torch.int16).numpy().view(numpy.uint16) if out.dtype == self._torch.bfloat16 else out.numpy()

    def bind(self, q, k, v, o, dtype, causal):
        attention, grouped = self._torch.nn.functional.scaled_dot_product_attention, q.shape[1] != k.shape[1]
        q, k, v = self._tensors((q, k, v), dtype)
        return lambda: attention(q, k, v, is_causal=causal, enable_gqa=grouped), self._bits


class Zentorch(Torch):
    """AMD's plugin for PyTorch, which has an attention operator of its own."""

    def __init__(self, threads, cpus, variant):
        super().__init__(threads, cpus, variant)
        import zentorch

        self._attention = self._torch.ops.zentorch.zentorch_sdpa
        self.version = f"zentorch {zentorch.__version__} with {self.version}"

    def bind(self, q, k, v, o, dtype, causal):
        if q.shape[1] != k.shape[1]:
            raise ValueError("zentorch: zentorch_sdpa takes as many key heads as query heads")
        q, k, v = self._tensors((q, k, v), dtype)
        attention = self._attention
        return lambda: attention(q, k, v, dropout_p=0.0, is_causal=causal), lambda returned: self._bits(returned[0])


class Message:
    """A message of protocol buffers, as far as a model of one node needs them: numbers, text and messages."""

    def __init__(self):
        self.bytes = b""

    @staticmethod
    def _number(value: int) -> bytes:
        digits = []
        while value > 0x7F:
            digits.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*digits, value])

    def add(self, field: int, value: int | str | Message) -> Message:
        if isinstance(value, int):
            self.bytes += self._number(field << 3) + self._number(value)
        else:
            content = value.encode() if isinstance(value, str) else value.bytes
            self.bytes += self._number(field << 3 | 2) + self._number(len(content)) + content
        return self


# Numbers of fields and types: onnx.proto.
ONNX_FLOAT, ONNX_FLOAT16, ONNX_BFLOAT16 = 1, 10, 16


def onnx_node(operator: str, domain: str, **attributes: int) -> Message:
    node = Message()
    for name in "qkv":
        node.add(1, name)
    node.add(2, "o").add(4, operator)
    for name, value in attributes.items():
        attribute_is_integer = 2
        node.add(5, Message().add(1, name).add(3, value).add(20, attribute_is_integer))
    return node.add(7, domain)


def onnx_model(node: Message, shapes: dict[str, tuple[int, ...]], kind: int, opsets: list[tuple[str, int]]) -> bytes:
    """A model of this node, from q, k and v to o. By hand, because a machine that has ONNX Runtime need not have the package onnx."""
    graph = Message().add(1, node).add(2, "attention")
    for name, sizes in shapes.items():
        shape = Message()
        for size in sizes:
            shape.add(1, Message().add(1, size))
        tensor = Message().add(1, kind).add(2, shape)
        graph.add(12 if name == "o" else 11, Message().add(1, name).add(2, Message().add(1, tensor)))
    ir_version = 10
    model = Message().add(1, ir_version).add(7, graph)
    for domain, version in opsets:
        model.add(8, Message().add(1, domain).add(2, version))
    return model.bytes


class OnnxRuntime(Engine):
    """fp32 with as many key heads as query heads is MultiHeadAttention on [B, S, H D], the layout it takes without copies; what else
    there is, the standard's Attention on [B, H, S, D]."""

    def __init__(self, threads, cpus, variant):
        import onnxruntime

        self._runtime, self._threads, self._cpus = onnxruntime, threads, cpus
        self.version = f"onnxruntime {onnxruntime.__version__}"

    def _session(self, node, shapes, kind, opsets):
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        if 1 < self._threads <= len(self._cpus):  # of its workers, which are one fewer; it counts processors from 1
            options.add_session_config_entry("session.intra_op_thread_affinities",
                                             ";".join(str(cpu + 1) for cpu in self._cpus[1:self._threads]))
        return self._runtime.InferenceSession(onnx_model(node, shapes, kind, opsets), options, providers=["CPUExecutionProvider"])

    def bind(self, q, k, v, o, dtype, causal):
        kind, element = {"fp32": (ONNX_FLOAT, numpy.float32), "fp16": (ONNX_FLOAT16, numpy.float16),
                         "bf16": (ONNX_BFLOAT16, ONNX_BFLOAT16)}[dtype]
        batch, heads, seq, dim = q.shape
        packed = dtype == "fp32" and heads == k.shape[1]
        if packed:
            node = onnx_node("MultiHeadAttention", "com.microsoft", num_heads=heads, unidirectional=int(causal))
            arrays = [copied(a.transpose(0, 2, 1, 3).reshape(a.shape[0], a.shape[2], -1), dtype) for a in (q, k, v)]
            out = o.reshape(batch, seq, heads * dim)
            opsets = [("", 17), ("com.microsoft", 1)]
        else:
            node = onnx_node("Attention", "", is_causal=int(causal))
            arrays, out, opsets = [q, k, v], o, [("", 23)]
        session = self._session(node, dict(zip("qkvo", (*(a.shape for a in arrays), out.shape))), kind, opsets)
        binding = session.io_binding()
        for name, array in zip("qkv", arrays):
            binding.bind_input(name, "cpu", 0, element, list(array.shape), array.ctypes.data)
        binding.bind_output("o", "cpu", 0, element, list(out.shape), out.ctypes.data)
        held = (session, arrays)

        def call():
            held[0].run_with_iobinding(binding)

        return call, lambda _: out.reshape(batch, seq, heads, dim).transpose(0, 2, 1, 3) if packed else out


class OpenVino(Engine):
    """The operator ScaledDotProductAttention of its opset 13, computed in the type of the inputs where its CPU plugin can."""

    def __init__(self, threads, cpus, variant):
        import openvino
        from openvino import opset13

        self._openvino, self._operators, self._core, self._threads = openvino, opset13, openvino.Core(), threads
        self.version = f"openvino {openvino.__version__.partition('-')[0]}"
        self._compiled = {}

    def _compile(self, shapes, dtype, causal):
        openvino, operators = self._openvino, self._operators
        kind = {"fp32": openvino.Type.f32, "fp16": openvino.Type.f16, "bf16": openvino.Type.bf16}[dtype]
        ends = [operators.parameter(list(shape), kind) for shape in shapes]
        node = operators.scaled_dot_product_attention(*ends, causal=causal)
        model = openvino.Model([node], ends, "attention")
        # Asked for a type that the processor has not, it takes bf16 where fp16 was meant, which is 15 times as wrong.
        capable = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precise = {"fp16": "f16", "bf16": "bf16"}.get(dtype, "f32") if dtype.upper() in capable else "f32"
        return kind, self._core.compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": self._threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": True, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precise})

    def bind(self, q, k, v, o, dtype, causal):
        if q.shape[1] != k.shape[1]:
            raise ValueError("openvino: ScaledDotProductAttention takes as many key heads as query heads")
        key = (q.shape, k.shape, dtype, causal)
        if key not in self._compiled:
            self._compiled = {key: self._compile((q.shape, k.shape, v.shape), dtype, causal)}
        kind, compiled = self._compiled[key]
        request = compiled.create_infer_request()
        for index, array in enumerate((q, k, v)):
            request.set_input_tensor(index, self._openvino.Tensor(array, list(array.shape), kind))
        request.set_output_tensor(0, self._openvino.Tensor(o, list(o.shape), kind))
        return lambda: request.infer(share_outputs=True), lambda _: o


ENGINES = {"greenfast": Greenfast, "torch-cpu": Torch, "zentorch": Zentorch, "onnxruntime": OnnxRuntime, "openvino": OpenVino}


class Slot:
    def __init__(self, inputs, o, call, bits):
        self.inputs, self.o, self.call, self.bits, self.expected = inputs, o, call, bits, b""


class Worker:
    """What it does for each order; the answer is what a method returns."""

    def __init__(self, engine: str, threads: int, cpus: list[int], variant: str):
        self._cpus, self._slots, self._flush = cpus, [], None
        self._engine = ENGINES[engine](threads, cpus, variant)
        facts = getattr(self._engine, "facts", None)
        self.hello = {"version": self._engine.version, "device": facts.name.decode() if facts else ""}

    def row(self, shapes, dtype, causal, files, slots, flush_bytes) -> dict:
        """Calls for every slot, and the bits of the first outputs in files of their own."""
        self._slots = []
        os.sched_setaffinity(0, self._cpus)
        self._dtype, self._flush = dtype, numpy.ones(flush_bytes // 8, numpy.int64) if flush_bytes else None
        for index in range(slots):
            files_of_slot = files[index % len(files)]
            inputs = [copied(numpy.fromfile(file, BITS[dtype]).reshape(shape), dtype) for file, shape in zip(files_of_slot, shapes)]
            o = room(shapes[0], dtype)
            o[...] = NAN[dtype]
            self._slots.append(Slot(inputs, o, *self._engine.bind(*inputs, o, dtype, causal)))
        seconds = []
        for index, files_of_slot in enumerate(files[:slots]):
            begin = time.perf_counter()
            returned = self._slots[index].call()
            seconds.append(time.perf_counter() - begin)
            expected = numpy.ascontiguousarray(self._slots[index].bits(returned)).tobytes()
            for slot in self._slots[index::len(files)]:
                slot.expected = expected
            with open(files_of_slot[3], "wb") as file:
                file.write(expected)
        # Its pool is there by now. The caller stays where the pools of OpenMP put theirs; who took its mask later would find one processor.
        os.sched_setaffinity(0, self._cpus[:1])
        return {"seconds": min(seconds)}

    def warm(self, first, most, seconds) -> dict:
        begin = time.perf_counter()
        for at in range(most):
            if time.perf_counter() - begin > seconds:
                break
            self._slots[(first + at) % len(self._slots)].call()
        return {}

    def sample(self, slots, wake, wrong, pause=0.0) -> dict:
        """Seconds of these calls: off the clock the caches are emptied, the pool comes to rest (for `pause` seconds at least) and the
        output is poisoned. An output that is not the bits it was goes to the file `wrong`."""
        if self._flush is not None:
            self._flush.sum()
        time.sleep(max(PAUSE_SECONDS, pause))
        last = self._slots[slots[-1]]
        if wake >= 0:
            self._slots[wake].call()
        last.o[...] = NAN[self._dtype]
        calls = [self._slots[slot].call for slot in slots]
        returned = None
        begin = time.perf_counter()
        for call in calls:
            returned = call()
        seconds = time.perf_counter() - begin
        bits = numpy.ascontiguousarray(last.bits(returned)).tobytes()
        same = bits == last.expected
        if not same:
            with open(wrong, "wb") as file:
                file.write(bits)
        return {"seconds": seconds, "same": same}

    def drop(self) -> dict:
        self._slots, self._flush = [], None
        return {}


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl_parent_death = 1
    ctypes.CDLL(None).prctl(prctl_parent_death, signal.SIGKILL)  # or it would stay, stopped, when its parent is killed
    # What an engine prints must not look like an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    given = json.loads(sys.argv[1])
    os.sched_setaffinity(0, given["cpus"])
    try:
        worker = Worker(given["engine"], given["threads"], given["cpus"], given["variant"])
    except Exception as error:  # whatever an engine throws is its refusal
        answer({"refused": first_line(error)})
        return 3
    answer(worker.hello)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer(getattr(worker, order.pop("do"))(**order))
        except Exception as error:
            answer({"refused": first_line(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
