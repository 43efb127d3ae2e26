"""The forward pass of the generate core: fresh tokens in, next-token logits out, keys and values into a `RowCache`.

`LeanForward` runs Llama, Qwen2 and Qwen3 models from their weights with few, fused operations: a step of one token
a row is small work, of which transformers' own Python and kernels would be the greater part. It changes no
parameter and holds no copy, so what a trainer does to the weights in place takes effect. Any other model goes
through its own `forward` (`TransformersForward`). Not done here: gradients, sampling, what is fed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from glyph.local.inference.attention import grouped_attention
from glyph.local.inference.kv_cache import RowCache

LEAN_MODELS = {"llama", "qwen2", "qwen3"}
STATIC_ROPES = {"default", "linear", "llama3", "yarn"}

Forward = Callable[[RowCache, Tensor, Tensor, int, int], Tensor]
"""`forward(cache, token_ids [n, t], positions [n, t], first_row, visible)` → logits [n, vocabulary] of the last column.

Token ids and positions are on the model's device; a token sees the keys of its row up to its own position, which is
below `visible`.
"""


def make_forward(model: PreTrainedModel, fuse: bool = False) -> Forward:
    return LeanForward(model, fuse) if is_lean(model) else TransformersForward(model)


def is_lean(model: PreTrainedModel) -> bool:
    config: Any = model.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return config.model_type in LEAN_MODELS and rope in STATIC_ROPES and config.hidden_act == "silu"


class TransformersForward:
    """The model's own forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._dtype = model, model.dtype

    def __call__(self, cache: RowCache, token_ids: Tensor, positions: Tensor, first_row: int, visible: int) -> Tensor:
        cache.select(first_row, positions, visible)
        output = self._model(
            input_ids=token_ids,
            attention_mask=causal_mask(positions, visible, self._dtype),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


class LeanForward:
    """The same function for the models of `LEAN_MODELS`; each parameter is read where the model keeps it.

    `fuse` lays the parameters of projections that share their input side by side in memory, for one product instead
    of two or three; the model's parameters become views of them. It is for a model that nobody else trains.
    """

    def __init__(self, model: PreTrainedModel, fuse: bool = False) -> None:
        inner: Any = model.model
        self._inner, self._head = inner, model.get_output_embeddings()
        self._eps = float(model.config.rms_norm_eps)
        rotary = type(inner.rotary_emb)(config=model.config)  # a new one: a cast of the model coarsens its frequencies
        self._frequencies = rotary.inv_freq.to(model.device, torch.float32)  # [d / 2]
        self._rope_scale = float(rotary.attention_scaling)
        parts = [(layer.self_attn, layer.mlp) for layer in inner.layers]
        self._qkv = [_Projection([a.q_proj, a.k_proj, a.v_proj], fuse) for a, _ in parts]
        self._gate_up = [_Projection([mlp.gate_proj, mlp.up_proj], fuse) for _, mlp in parts]

    def __call__(self, cache: RowCache, token_ids: Tensor, positions: Tensor, first_row: int, visible: int) -> Tensor:
        inner, rows = self._inner, token_ids.shape[0]
        hidden = F.embedding(token_ids, inner.embed_tokens.weight)  # [n, t, width]
        mask = causal_mask(positions, visible, hidden.dtype)
        rope = self._rope(positions, hidden.dtype)
        row_ids = torch.arange(first_row, first_row + rows, device=positions.device)[:, None]
        for number, layer in enumerate(inner.layers):
            attention = layer.self_attn
            projected = self._qkv[number](self._norm(hidden, layer.input_layernorm))
            queries, new = self._heads(attention, projected, rope)
            keys, values = cache.store(number, row_ids, positions, new, first_row, visible)
            mixed, _ = grouped_attention(attention, queries, keys, values, mask, scaling=attention.scaling)
            hidden = hidden + _linear(mixed.flatten(2), attention.o_proj)
            gate, up = self._gate_up[number](self._norm(hidden, layer.post_attention_layernorm))
            hidden = hidden + _linear(F.silu(gate) * up, layer.mlp.down_proj)
        return _linear(self._norm(hidden[:, -1], inner.norm), self._head)

    def _heads(self, attention: Any, projected: Sequence[Tensor], rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Queries [n, heads, t, d], and keys with values [n, t, 2, kv_heads, d] for the cache."""
        n, t, _ = projected[0].shape
        queries, keys, values = (part.view(n, t, -1, attention.head_dim) for part in projected)
        if hasattr(attention, "q_norm"):
            queries, keys = self._norm(queries, attention.q_norm), self._norm(keys, attention.k_norm)
        heads = queries.shape[2]
        turned = _turn(torch.cat([queries, keys], dim=2), rope)
        return turned[:, :, :heads].transpose(1, 2), torch.stack([turned[:, :, heads:], values], dim=2)

    def _rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [n, t, 1, d] at positions [n, t]; the sines carry the sign of the half that they turn.

        Element by element: transformers' matrix product of positions and frequencies is coarse where TF32 is allowed.
        """
        angles = positions[:, :, None, None].float() * self._frequencies
        cos, sin = angles.cos() * self._rope_scale, angles.sin() * self._rope_scale
        return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)

    def _norm(self, hidden: Tensor, norm: Any) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], norm.weight, self._eps)


class _Projection:
    """Linear maps of the same input [n, t, width]."""

    def __init__(self, modules: Sequence[Any], fuse: bool) -> None:
        self._modules = modules
        self._sizes = [module.weight.shape[0] for module in modules]
        self._weight = _side_by_side([module.weight for module in modules]) if fuse else None
        biased = fuse and modules[0].bias is not None
        self._bias = _side_by_side([module.bias for module in modules]) if biased else None

    def __call__(self, hidden: Tensor) -> Sequence[Tensor]:
        if self._weight is None:
            return [_linear(hidden, module) for module in self._modules]
        return F.linear(hidden, self._weight, self._bias).split(self._sizes, dim=-1)


def _side_by_side(parameters: Sequence[Any]) -> Tensor:
    """Parameters joined along their first dimension; they become views of what is returned."""
    joined = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, piece in zip(parameters, joined.split([len(p) for p in parameters]), strict=True):
        parameter.data = piece
    return joined


def causal_mask(positions: Tensor, visible: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [n, 1, t, visible] for queries at positions [n, t]: a query sees the keys up to its own index."""
    hidden = torch.arange(visible, device=positions.device) > positions[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, torch.finfo(dtype).min)


def _linear(hidden: Tensor, module: Any) -> Tensor:
    return F.linear(hidden, module.weight, module.bias)


def _turn(heads: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs (i, i + d/2) of heads [n, t, heads, d] by their positions' angles."""
    cos, sin = rope
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)
