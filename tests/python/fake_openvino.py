"""As much of OpenVINO as the harness calls, in NumPy: one ScaledDotProductAttention, in fp32. FAKE_OPENVINO says how it misbehaves."""
import enum
import os
import time
import types

import numpy

__version__ = "2026.4.1-22982-fake"
HOW = os.environ.get("FAKE_OPENVINO", "")
Type = enum.Enum("Type", "f32 f16 bf16")
BITS = {Type.f32: numpy.float32, Type.f16: numpy.float16, Type.bf16: numpy.uint16}
if HOW == "ends":
    os._exit(7)


class Tensor:
    def __init__(self, array, shape, kind):
        assert array.dtype == BITS[kind] and list(array.shape) == shape and array.flags.c_contiguous
        self.array, self.kind = array, kind


class Parameter:
    def __init__(self, shape, kind):
        self.shape, self.kind = shape, kind


class Attention:
    def __init__(self, q, k, v, causal=False):
        assert q.kind == k.kind == v.kind and q.shape[1] == k.shape[1] and k.shape == v.shape
        self.inputs, self.causal = [q, k, v], causal


opset13 = types.SimpleNamespace(parameter=Parameter, scaled_dot_product_attention=Attention)


class Model:
    def __init__(self, results, parameters, name):
        (self.attention,) = results
        assert self.attention.inputs == parameters


def wide(tensor):
    return (tensor.array.astype(numpy.uint32) << 16).view(numpy.float32) if tensor.kind == Type.bf16 else tensor.array.astype(numpy.float32)


class Request:
    def __init__(self, attention):
        self.attention, self.inputs, self.out, self.calls = attention, [None] * 3, None, 0

    def set_input_tensor(self, index, tensor):
        assert list(tensor.array.shape) == self.attention.inputs[index].shape
        self.inputs[index] = tensor

    def set_output_tensor(self, index, tensor):
        assert index == 0
        self.out = tensor

    def infer(self, share_outputs=False):
        assert share_outputs  # or each call would copy what it computed
        self.calls += 1
        if HOW == "dies" and self.calls > 3:
            os.abort()
        if HOW == "hangs" and self.calls > 3:
            time.sleep(60)
        q, k, v = map(wide, self.inputs)
        s = q @ k.swapaxes(2, 3) * numpy.float32(q.shape[3] ** -0.5)
        if self.attention.causal:
            s[..., numpy.triu(numpy.ones(s.shape[2:], bool), 1)] = -numpy.inf
        weights = numpy.exp(s - s.max(-1, keepdims=True))
        o = weights @ v / weights.sum(-1, keepdims=True)
        if HOW == "wrong" or HOW == "wrong later" and self.calls > 3:
            o = o + 1
        if self.out.kind == Type.bf16:
            raw = numpy.ascontiguousarray(o).view(numpy.uint32)
            o = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(numpy.uint16)
        self.out.array[...] = o


class Compiled:
    def __init__(self, attention):
        self.attention = attention

    def create_infer_request(self):
        return Request(self.attention)


class Core:
    def get_property(self, device, name):
        assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
        return ["FP32", "BF16"]

    def compile_model(self, model, device, config):
        kind = model.attention.inputs[0].kind
        assert device == "CPU" and config["NUM_STREAMS"] == 1 and config["ENABLE_CPU_PINNING"] is True
        assert config["INFERENCE_NUM_THREADS"] == int(os.environ["OMP_NUM_THREADS"])
        assert config["INFERENCE_PRECISION_HINT"] == ("bf16" if kind == Type.bf16 else "f32")
        # A plugin that reads the caller's mask must find all that it is to have.
        assert len(os.sched_getaffinity(0)) == config["INFERENCE_NUM_THREADS"]
        if HOW == "no fp16" and kind == Type.f16:
            raise RuntimeError("f16 is not supported here")
        return Compiled(model.attention)
