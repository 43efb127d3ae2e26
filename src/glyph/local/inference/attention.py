"""Attention for decoding with grouped key/value heads, without repeating the cache.

transformers' SDPA path copies keys and values once for every query head of a group whenever a mask is given, which
at one token a step is most of the attention's time. Here the query heads of a group become the queries of their one
key/value head. Anything but a single-token step goes to transformers' own SDPA: a trainer on the same model sees no
difference.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "glyph_grouped_sdpa"


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Query [n, heads, t, d], key and value [n, kv_heads, s, d] → output [n, t, heads, d]."""
    batch, heads, steps, _ = query.shape
    kv_heads = key.shape[1]
    if steps != 1 or attention_mask is None or attention_mask.shape[1] != 1 or dropout or heads == kv_heads:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, -1)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(batch, 1, heads, -1), None


def use_grouped_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Switch a model over to `grouped_attention`; masks are made as for SDPA."""
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return model
