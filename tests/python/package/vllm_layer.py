#!/usr/bin/env python3
"""vLLM's own plugin loader finds the backend, and vLLM's own Attention layer runs it on the CPU: one step of a single token and a prompt's
chunk, over a cache of the model's type and over one of e4m3, beside the reference. Started by test_vllm.py, in a process of its own. Exit codes: 0 as told, 1 not."""
import sys

import numpy as np
import reference
import torch
from vllm.config import CacheConfig, CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.plugins import load_general_plugins
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum

HEADS, HEADS_KV, WIDTH, PAGE = 8, 2, 64, 16
I32 = torch.int32


KEPT = torch.float8_e4m3fn
SCALES = {"_q_scale": 0.03, "_k_scale": 0.02, "_v_scale": 0.05}


def coded(x, scale):
    return (x / scale).clamp(-448, 448).to(KEPT)


def step(backend, stored):
    """The largest error of vLLM's layer over a cache of this kind, and what the layer says of itself."""
    quantized = stored == "fp8"
    cache = CacheConfig(cache_dtype=stored)
    config = VllmConfig(device_config=DeviceConfig(device="cpu"), compilation_config=CompilationConfig(custom_ops=["none"]), cache_config=cache)
    with set_current_vllm_config(config):
        layer = Attention(HEADS, WIDTH, WIDTH ** -0.5, num_kv_heads=HEADS_KV, prefix="layers.0", attn_backend=backend, logits_soft_cap=20.0,
                          cache_config=cache, sinks=torch.nn.Parameter(torch.linspace(-1, 1, HEADS)))
    layer.impl.process_weights_after_loading(torch.float32)
    if quantized:
        assert layer.query_quant is None
        for name, value in SCALES.items():  # as a checkpoint with scales leaves them
            getattr(layer, name).fill_(value)
            setattr(layer, name + "_float", getattr(layer, name).item())
    layer.kv_cache = torch.full((12, HEADS_KV, PAGE, 2 * WIDTH), torch.nan)
    lengths, new = [20, 37], [1, 36]  # the first has 19 keys in the cache, the second one
    pages = [[4, 0, 7], [3, 9, 1]]
    history = [torch.randn(length, 2, HEADS_KV, WIDTH) for length in lengths]
    for own, keys, count in zip(pages, history, new):
        for n in range(len(keys) - count):
            layer.kv_cache[own[n // PAGE], :, n % PAGE] = torch.cat([keys[n, 0], keys[n, 1]], -1)
    if quantized:
        scale = torch.cat([torch.full((WIDTH,), SCALES[name]) for name in ("_k_scale", "_v_scale")])
        layer.kv_cache = coded(layer.kv_cache, scale).view(torch.uint8)
    starts = torch.tensor([0, 1, 37], dtype=I32)
    slots = torch.tensor([own[n // PAGE] * PAGE + n % PAGE for own, length, count in zip(pages, lengths, new) for n in range(length - count, length)])
    common = CommonAttentionMetadata(query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor(lengths, dtype=I32), num_reqs=2,
                                     num_actual_tokens=37, max_query_len=36, max_seq_len=37, block_table_tensor=torch.tensor(pages, dtype=I32),
                                     slot_mapping=slots)
    metadata = backend.get_builder_cls()(None, ["layers.0"], config, torch.device("cpu")).build(0, common)
    query = torch.randn(37, HEADS * WIDTH)
    k, v = (torch.cat([keys[len(keys) - count:, n] for keys, count in zip(history, new)]).flatten(1) for n in range(2))
    with torch.no_grad(), set_forward_context({"layers.0": metadata}, config, slot_mapping={"layers.0": slots}):
        out = layer(query, k, v).view(37, HEADS, WIDTH)
    worst = 0.0
    for rows, keys in zip((slice(0, 1), slice(1, 37)), history):
        q, kept = query.view(37, HEADS, WIDTH)[rows], keys
        if quantized:
            kept = torch.stack([coded(keys[:, n], SCALES[name]).float() * SCALES[name] for n, name in enumerate(("_k_scale", "_v_scale"))], 1)
            if rows.stop == 1:  # few rows: the kernel reads e4m3, which q becomes
                q = coded(q, SCALES["_q_scale"]).float() * SCALES["_q_scale"]
        want, _ = reference.attention(q.transpose(0, 1)[None].numpy(), *(kept[:, n].transpose(0, 1)[None].numpy() for n in range(2)), right=0,
                                      bottom_right=True, softcap=20.0, sinks=np.linspace(-1, 1, HEADS))
        error = abs(out[rows].transpose(0, 1).numpy() - want[0]).max()
        worst = error if not error < worst else worst
    return worst, layer.extra_repr()


def main():
    load_general_plugins()
    backend = AttentionBackendEnum["GREENFAST"].get_class()
    for stored, limit in (("auto", 5e-6), ("fp8", 0.03)):
        error, said = step(backend, stored)
        if not error < limit:
            print(f"{stored}: error {error}")
            return 1
        print(f"{said}, {stored} cache: vLLM's layer is dense attention")
    return 0


if __name__ == "__main__":
    sys.exit(main())
