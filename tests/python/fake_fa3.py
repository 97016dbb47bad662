"""FlashAttention-3's operators without a GPU: their schemas, and what they compute, in plain fp32. For tests of the harness alone."""
import sys
import types

import torch

# Of the builds that the harness meets: upstream's, and vLLM's, where everything must be given and the varlen entry is the only one.
UPSTREAM = """fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, Tensor? q_v=None, Tensor(out!)? out=None,
Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None,
int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None,
Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None,
Tensor? v_descale=None, float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, int window_size_right=-1,
int attention_chunk=0, float softcap=0., bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0,
bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)"""
VLLM = """fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, Tensor? cu_seqlens_q,
Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k,
Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary,
Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, float softmax_scale, bool is_causal, int window_size_left,
int window_size_right, float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa,
int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"""
VLLM_PLAN = """get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, int headdim,
int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new,
Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, bool is_causal, int window_size_left,
int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, int sm_margin) -> Tensor"""
calls: list[dict] = []  # what reached the operators


def require(condition, text):
    if not condition:
        raise RuntimeError(text)


def forward(a: dict, varlen_only: bool):
    """Their rules as far as the harness can break them, then attention."""
    calls.append(a)
    q, k, v, cu_q, cu_k = a["q"], a["k"], a["v"], a["cu_seqlens_q"], a["cu_seqlens_k"]
    used, table = a["seqused_k"], a["page_table"]
    require(not varlen_only or cu_q is not None, "this build has the varlen entry only")
    require(not (cu_k is not None and table is not None), "If cu_seqlens_k is passed in, then page table is not supported")
    require(cu_q is None or a["max_seqlen_q"] is not None, "max_seqlen_q must be provided if cu_seqlens_q is provided")
    require(cu_k is None or a["max_seqlen_k"] is not None, "max_seqlen_k must be provided if cu_seqlens_k is provided")
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table"):
        require(a[name] is None or a[name].dtype == torch.int32, f"{name} must have dtype torch.int32")
    require(q.dtype == k.dtype == v.dtype, "query and key must have the same dtype")
    require(all(x.stride(-1) == 1 for x in (q, k, v)), "Input tensor must have contiguous last dimension")
    require(q.dim() == (4 if cu_q is None else 3) and k.dim() == (4 if cu_k is None else 3), "q or k has a wrong rank")
    batch = q.shape[0] if cu_q is None else cu_q.numel() - 1
    narrow = q.element_size() == 1
    out = a["out"] if a["out"] is not None else torch.empty(*q.shape[:-1], v.shape[-1], dtype=torch.bfloat16 if narrow else q.dtype)
    require(out.shape == (*q.shape[:-1], v.shape[-1]), "out has a wrong shape")
    require(out.dtype == (torch.bfloat16 if narrow else q.dtype), "For FP8 input, output must have dtype BF16")
    plan = a["scheduler_metadata"]
    require(plan is None or bool(plan[0]) == (a["softcap"] > 0), "the plan is of another call: a softcap has other tiles")
    sinks = a.get("s_aux")
    require(sinks is None or sinks.dtype == torch.bfloat16, "We only support bf16 dtype for S aux.")
    for name in ("q_descale", "k_descale", "v_descale"):
        require(a[name] is None or a[name].shape == (batch, k.shape[-2]), f"{name} must have shape (batch_size, num_heads_k)")
    for b in range(batch):
        rows = (q[b], out[b]) if cu_q is None else (x[cu_q[b]:cu_q[b + 1]] for x in (q, out))
        query, target = rows
        if table is not None:
            keys, values = (x[table[b].long()].reshape(-1, *x.shape[2:])[:int(used[b])] for x in (k, v))
        elif cu_k is not None:
            keys, values = (x[cu_k[b]:cu_k[b + 1]] for x in (k, v))
        else:
            keys, values = (x[b][:int(used[b])] if used is not None else x[b] for x in (k, v))
        target.copy_(one_sequence(query, keys, values, a, sinks))
    return out


def one_sequence(q, k, v, a, sinks):
    q, k, v = (x.float() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) * a["softmax_scale"]
    if a.get("softcap"):
        s = a["softcap"] * torch.tanh(s / a["softcap"])
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])[None]
    left, right = a["window_size_left"], 0 if a["is_causal"] else a["window_size_right"]
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    seen &= (j >= i - left) if left >= 0 else seen
    seen &= (j <= i + right) if right >= 0 else seen
    if a.get("attention_chunk"):
        seen &= j // a["attention_chunk"] == i // a["attention_chunk"]
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat((s, sinks.float()[:, None, None].expand(-1, q.shape[0], 1)), -1)
    return torch.einsum("hij,jhd->ihd", torch.softmax(s, -1)[..., :k.shape[0]], v)


def named(operator, given):
    """By name; the dispatcher leaves out trailing arguments that have their defaults."""
    schema = operator.default._schema.arguments
    return {**{argument.name: argument.default_value for argument in schema}, **dict(zip((argument.name for argument in schema), given))}


def upstream(*arguments):
    a = named(torch.ops.flash_attn_3.fwd, arguments)
    out, nothing = forward(a, varlen_only=False), torch.empty(0)
    return out, nothing, nothing.clone(), nothing.clone()


def vllm(*arguments):
    return [forward(named(torch.ops._vllm_fa3_C.fwd, arguments), varlen_only=True), torch.empty(0)]


def vllm_plan(*arguments):
    a = named(torch.ops._vllm_fa3_C.get_scheduler_metadata, arguments)
    require(a["seqused_k"].numel() == a["batch_size"], "seqused_k must have shape (batch_size)")
    return torch.full((4 * a["batch_size"],), int(a["has_softcap"]), dtype=torch.int32)


def install() -> list:
    """Registers the operators and the modules that bring them; what it returns keeps them."""
    flash, other = torch.library.Library("flash_attn_3", "DEF"), torch.library.Library("_vllm_fa3_C", "DEF")
    flash.define(UPSTREAM.replace("\n", " "))
    flash.impl("fwd", upstream, "CompositeExplicitAutograd")
    other.define(VLLM.replace("\n", " "))
    other.define(VLLM_PLAN.replace("\n", " "))
    other.impl("fwd", vllm, "CompositeExplicitAutograd")
    other.impl("get_scheduler_metadata", vllm_plan, "CompositeExplicitAutograd")
    for name in ("peer_fa3", "peer_fa3_fp8"):
        sys.modules[name] = types.ModuleType(name)
    return [flash, other]
