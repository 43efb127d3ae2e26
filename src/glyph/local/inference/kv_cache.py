"""Key/value memory: one row a live sequence, and the prefixes of conversations that will go on.

In `RowCache` the rows of a batch have different lengths: token i of a sequence lies at index i of its row, so
position ids need no padding rule and a row's content never depends on its neighbours. What lies beyond a row's end
is masked. A forward pass of ours calls `store`; for one of transformers, `select` says which rows and positions it
fills, and the cache then stands in for transformers' own.

`PrefixStore` keeps the key/values of finished completions, one entry a session, least recently used out first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache

LENGTH_STEP = 128
TokenArray = NDArray[np.int64]


class RowCache(Cache):
    """Keys and values of all layers in one tensor [layers, 2, rows, kv_heads, capacity, head_dim], grown on demand."""

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.fixed = False
        """Whether the memory must stay where it is, as for CUDA graphs."""
        self._kv = torch.zeros(config.num_hidden_layers, 2, 0, heads, 0, head_dim, dtype=dtype, device=device)
        self._first = self._last = self._visible = 0
        self._rows = self._positions = torch.zeros(0, 0, dtype=torch.long, device=device)

    def reset(self) -> None:
        """Forget everything; the memory is given back, unless it is `fixed`, in which case it is zeroed."""
        if self.fixed:
            self._kv.zero_()
        else:
            self._kv = self._kv[:, :, :0, :, :0].clone()

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` sequences of `length` tokens; what is stored stays."""
        layers, two, old_rows, heads, old_length, head_dim = self._kv.shape
        if rows <= old_rows and length <= old_length:
            return
        if self.fixed:
            raise RuntimeError(f"the cache is fixed at {old_rows} rows of {old_length}, asked for {rows} of {length}")
        new_rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
        wanted = old_length if length <= old_length else max(length, old_length * 3 // 2)
        new_length = -(-wanted // LENGTH_STEP) * LENGTH_STEP
        grown = self._kv.new_zeros(layers, two, new_rows, heads, new_length, head_dim)
        grown[:, :, :old_rows, :, :old_length] = self._kv
        self._kv = grown

    def select(self, first_row: int, positions: Tensor, visible: int) -> None:
        """Choose what the next forward pass fills: rows from `first_row`, at `positions` [n, t]; it sees `visible`."""
        self._first, self._last, self._visible = first_row, first_row + positions.shape[0], visible
        self._positions = positions
        self._rows = torch.arange(positions.shape[0], device=positions.device)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values [n, kv_heads, t, head_dim]; return all that is visible of the rows."""
        keys, values = self._kv[layer_idx, :, self._first : self._last]
        keys[self._rows, :, self._positions] = key_states.transpose(1, 2)
        values[self._rows, :, self._positions] = value_states.transpose(1, 2)
        return keys[:, :, : self._visible], values[:, :, : self._visible]

    def store(
        self, layer: int, row_ids: Tensor, positions: Tensor, new: Tensor, first_row: int, visible: int
    ) -> tuple[Tensor, Tensor]:
        """Write `new` [n, t, 2, kv_heads, head_dim] to rows [n, 1] at positions [n, t] of a layer.

        Returns the keys and values [n, kv_heads, visible, head_dim] of the n rows from `first_row`.
        """
        stored = self._kv[layer]
        stored[:, row_ids, :, positions] = new
        keys, values = stored[:, first_row : first_row + new.shape[0], :, :visible]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._visible - self._positions.shape[-1]

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self._visible, 0

    def copy_row(self, source: int, target: int, length: int) -> None:
        self._kv[:, :, target, :, :length] = self._kv[:, :, source, :, :length]

    def clear_rows(self, first: int, last: int) -> None:
        """Zero rows that may hold NaN: a masked value still counts as 0 · NaN for the row's next owner."""
        self._kv[:, :, first:last] = 0

    def read_row(self, row: int, length: int) -> Tensor:
        """A copy [layers, 2, kv_heads, length, head_dim] of a row's first `length` tokens."""
        return self._kv[:, :, row, :, :length].clone()

    def write_row(self, row: int, stored: Tensor) -> None:
        self._kv[:, :, row, :, : stored.shape[-2]] = stored


@dataclass(frozen=True)
class Prefix:
    """Token ids whose keys and values [layers, 2, kv_heads, len(token_ids), head_dim] are kept."""

    token_ids: TokenArray
    kv: Tensor


class PrefixStore:
    """Prefixes by session, at most `max_tokens` tokens in all."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._entries: OrderedDict[str, Prefix] = OrderedDict()
        self._tokens = 0

    @property
    def tokens(self) -> int:
        return self._tokens

    def put(self, session: str, prefix: Prefix) -> None:
        """Keep a session's newest prefix instead of its older one; push out what was used least recently."""
        self._drop(session)
        if len(prefix.token_ids) > self.max_tokens:
            return
        self._entries[session] = prefix
        self._tokens += len(prefix.token_ids)
        while self._tokens > self.max_tokens:
            self._drop(next(iter(self._entries)))

    def find(self, prompt: TokenArray, session: str | None = None) -> tuple[int, Prefix | None]:
        """The entry that shares the longest prefix with a prompt, and the number of tokens shared.

        The entry of the prompt's own session is taken without a look at the others if it is shared whole.
        """
        best, found, name = 0, None, ""
        if session is not None and session in self._entries:
            own = self._entries[session]
            if shared_length(prompt, own.token_ids) == len(own.token_ids):
                self._entries.move_to_end(session)
                return len(own.token_ids), own
        for key, prefix in self._entries.items():
            shared = shared_length(prompt, prefix.token_ids)
            if shared > best:
                best, found, name = shared, prefix, key
        if found:
            self._entries.move_to_end(name)
        return best, found

    def clear(self) -> None:
        self._entries.clear()
        self._tokens = 0

    def _drop(self, session: str) -> None:
        old = self._entries.pop(session, None)
        if old:
            self._tokens -= len(old.token_ids)


def shared_length(one: TokenArray, other: TokenArray) -> int:
    """The number of leading tokens that two sequences have in common."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
