"""Attention over rows that end in leaves, at the price of causal attention over their trunks.

`packing.py` puts the leaves of a row behind its trunk, which sees none of them: plain causal attention is right for
the trunk, in the fastest kernel that there is, and only the few queries of the leaves need a mask. Such a mask has
fewer queries than the row has tokens: [n, 1, queries, length], of the last columns. transformers hands a mask of four
dimensions to the attention function as it is.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from glyph.local.inference.attention import grouped_attention

NAME = "glyph_tree_sdpa"


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Query [n, heads, t, d], key and value [n, kv_heads, s, d] → output [n, t, heads, d].

    Without a mask for fewer queries than there are tokens it is `grouped_attention`.
    """
    steps = query.shape[2]
    if attention_mask is None or key.shape[2] != steps or attention_mask.shape[2] == steps:
        return grouped_attention(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    trunk = steps - attention_mask.shape[2]
    on_trunk, on_leaves = query.split([trunk, steps - trunk], dim=2)
    # Causal attention lets query i see up to key i, however many keys there are. CUDA has its fast kernel for as many
    # keys as queries alone, and transformers takes a single query for one that sees every key.
    cut = key.is_cuda or trunk == 1
    seen = (key[:, :, :trunk], value[:, :, :trunk]) if cut else (key, value)
    causal, _ = sdpa_attention_forward(module, on_trunk, *seen, None, dropout, scaling, **kwargs)
    leaves = _few_queries(on_leaves, key, value, attention_mask, dropout, scaling)
    return torch.cat([causal, leaves], dim=1), None


def _few_queries(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, scaling: float | None
) -> Tensor:
    """The query heads of a group as queries of their key/value head, so that keys and values are not repeated."""
    batch, heads, steps, width = query.shape
    group = heads // key.shape[1]
    grouped = query.reshape(batch, key.shape[1], group * steps, width)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask.repeat(1, 1, group, 1), dropout_p=dropout, scale=scaling
    )
    return output.reshape(batch, heads, steps, -1).transpose(1, 2)


def use_tree_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Switch a model over to `tree_attention`; masks that transformers makes itself are made as for SDPA."""
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return model
