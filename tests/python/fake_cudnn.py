"""As much of cuDNN's frontend as the harness calls, without a GPU: a graph of one sdpa or sdpa_fp8, computed in plain fp32."""
import enum
import types

import torch

data_type = enum.Enum("data_type", "HALF BFLOAT16 FLOAT INT32 FP8_E4M3")
diagonal_alignment = enum.Enum("diagonal_alignment", "TOP_LEFT BOTTOM_RIGHT")
heur_mode = enum.Enum("heur_mode", "A FALLBACK")
KINDS = {torch.float16: data_type.HALF, torch.bfloat16: data_type.BFLOAT16, torch.float32: data_type.FLOAT,
         torch.int32: data_type.INT32, torch.float8_e4m3fn: data_type.FP8_E4M3}
built: list = []  # graphs, as they were built


def create_handle():
    return "handle"


def set_stream(handle, stream):
    assert handle == "handle" and stream == 0


class Described:
    def __init__(self, dim=None, stride=None, kind=None):
        self.dim, self.stride, self.kind = dim, stride, kind

    def set_output(self, _):
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def set_data_type(self, kind):
        self.kind = kind
        return self


class pygraph:
    def __init__(self, io_data_type, intermediate_data_type, compute_data_type, handle):
        assert handle == "handle"

    def tensor(self, name, dim, stride, data_type):
        return Described(dim, stride, data_type)

    def sdpa(self, generate_stats, **arguments):
        self.arguments, self.outputs = arguments, [Described(), None]
        return self.outputs

    def sdpa_fp8(self, generate_stats, **arguments):
        self.arguments, self.outputs = arguments, [Described(), None, Described(), Described()]
        return self.outputs

    def build(self, heuristics):
        assert heuristics == [heur_mode.A]
        built.append(self)

    def get_workspace_size(self):
        return 0

    def execute(self, pack, workspace, handle):
        for described, value in pack.items():  # a buffer that is not as described would be read wrongly
            assert list(value.shape) == described.dim and list(value.stride()) == described.stride and KINDS[value.dtype] == described.kind
        a = {name: pack[x] if isinstance(x, Described) else x for name, x in self.arguments.items()}
        o = pack[self.outputs[0]]
        for b in range(o.shape[0]):
            o[b].copy_(self.one(a, b))

    @staticmethod
    def one(a, b):
        q, k, v = a["q"][b].float(), a["k"], a["v"]
        if "paged_attention_k_table" in a:
            tables = (a["paged_attention_k_table"], a["paged_attention_v_table"])
            k, v = (x[t[b, 0, :, 0].long()].float().transpose(0, 1).flatten(1, 2)[:, :a["paged_attention_max_seq_len_kv"]]
                    for x, t in zip((k, v), tables))
        else:
            k, v = k[b].float(), v[b].float()
        rows, keys = q.shape[1], k.shape[1]
        if a.get("use_padding_mask"):
            rows, keys = int(a["seq_len_q"][b]), int(a["seq_len_kv"][b])
            k, v = k[:, :keys], v[:, :keys]
        group = q.shape[0] // k.shape[0]
        s = q @ k.repeat_interleave(group, 0).transpose(1, 2) * a["attn_scale"]
        bottom = a.get("diagonal_alignment") == diagonal_alignment.BOTTOM_RIGHT
        i, j = torch.arange(rows)[:, None] + (keys - rows if bottom else 0), torch.arange(keys)[None]
        seen = torch.ones(rows, keys, dtype=torch.bool)
        if a.get("use_causal_mask"):
            seen &= j <= i
        if a.get("diagonal_band_right_bound") is not None:
            seen &= j <= i + a["diagonal_band_right_bound"]
        if a.get("diagonal_band_left_bound") is not None:
            seen &= j > i - a["diagonal_band_left_bound"]
        s = s.masked_fill(~seen, -torch.inf)
        if "sink_token" in a:
            s = torch.cat((s, a["sink_token"][0].expand(-1, rows, 1)), -1)
        return torch.softmax(s, -1)[..., :keys] @ v.repeat_interleave(group, 0)


def module():
    made = types.ModuleType("cudnn")
    for name in ("data_type", "diagonal_alignment", "heur_mode", "create_handle", "set_stream", "pygraph"):
        setattr(made, name, globals()[name])
    return made
