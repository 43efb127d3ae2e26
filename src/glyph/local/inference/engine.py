"""The generate core: token ids and sampling parameters in, sampled ids with their log-probs out.

`EngineCore` is synchronous: `submit` hands in a request, `step` moves all of them on and returns what ended. Rows
join and leave the live batch between steps (continuous batching): a step prefills the newcomers, then draws one
token for every live row. Rows are packed, so that a step works on a slice of the cache. Newcomers take over the
keys and values of the longest prefix that a live row or a finished conversation (`session`) shares with their
prompt; members of a group that arrive together prefill it once.

What a row yields depends on its tokens, its parameters and its seed alone, as far as float arithmetic allows:
other rows change the shapes of matrix products, hence last bits of logits. The same calls on the same machine give
the same bits. The weights change inside `updating()`; after it, an idle core is as good as new.

Not done here: threads (`generation.GenerationEngine`), text, chat, streaming, stop strings, beams, penalties,
attention with a sliding window.
"""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from glyph.local.inference.cuda_graphs import Capture, DecodeGraphs
from glyph.local.inference.forward import is_lean, make_forward
from glyph.local.inference.kv_cache import Prefix, PrefixStore, RowCache, TokenArray, shared_length
from glyph.local.inference.loading import require_full_attention
from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest, PromptTooLongError
from glyph.local.inference.rows import Row
from glyph.local.inference.sampling import SamplingTable, UniformStream, sample
from glyph.local.inference.weights import copy_weights

logger = logging.getLogger(__name__)

MIN_SHARED_TOKENS = 16
"""A shared prefix shorter than this is not worth a copy."""

Outcome = Completion | GenerationError


class EngineCore:
    """Continuous batching over one Hugging Face causal language model, driven from one thread by `step`.

    `max_rows` sequences are live at once. `prefill_tokens` bounds the (padded) tokens of one prefill pass; a longer
    prompt gets a pass of its own. While rows are live, newcomers are admitted every `prefill_interval` steps: above
    1 they wait a little and share their passes. `prefix_cache_tokens` 0 keeps no finished prefixes.

    `cuda_graphs` replays the step of one token a row as a CUDA graph. It takes the memory of a full cache at once
    and lays the parameters anew, so the model must be the core's own: a trainer pushes its weights with
    `load_weights_from`. `capture` replaces the capture of graphs, for tests.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_model_len: int = 4096,
        max_rows: int = 16,
        prefix_cache_tokens: int = 32_768,
        prefill_tokens: int = 2048,
        prefill_interval: int = 1,
        cuda_graphs: bool = False,
        capture: Capture | None = None,
    ) -> None:
        require_full_attention(model)
        if cuda_graphs and not is_lean(model):
            raise ValueError(f"CUDA graphs need a Llama, Qwen2 or Qwen3 model, got {type(model).__name__}")
        positions = getattr(model.config, "max_position_embeddings", None) or max_model_len
        self.model, self.device = model.eval(), model.device
        self.max_model_len = min(max_model_len, positions)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
        self.max_rows, self.prefill_tokens, self.prefill_interval = max_rows, prefill_tokens, prefill_interval
        self.prefill_passes = self.steps = 0
        self._forward = make_forward(model, fuse=cuda_graphs)
        self._cache = RowCache(model.config, model.dtype, self.device)
        self.graphs: DecodeGraphs | None = None
        if cuda_graphs:
            self.graphs = DecodeGraphs(self._forward, self._cache, max_rows, self.max_model_len, self.device, capture)
        self._prefixes = PrefixStore(prefix_cache_tokens)
        self._tickets = count()
        self._live: list[Row] = []
        self._joining: list[Row] = []
        self._waiting: deque[Row] = deque()
        self._ended: list[tuple[int, Outcome]] = []
        self._table: SamplingTable | None = None
        self._steps_since_prefill = 0

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request and return its ticket; tickets ascend.

        Raises: PromptTooLongError, ValueError (an empty prompt, an id outside the vocabulary).
        """
        self.check(request)
        sampling, prompt = request.sampling, np.array(request.token_ids, dtype=np.int64)
        room = self.max_model_len - len(prompt)
        max_tokens = min(sampling.max_tokens or room, room)
        uniforms = UniformStream(sampling.seed)
        row = Row(next(self._tickets), prompt, sampling, request.session, max_tokens, uniforms)
        self._waiting.append(row)
        return row.ticket

    def check(self, request: GenerationRequest) -> None:
        """Refuse what `submit` would refuse; unlike all else here this may be called from any thread."""
        if not len(request.token_ids):
            raise ValueError("the prompt is empty: at least one token is needed")
        if min(request.token_ids) < 0 or max(request.token_ids) >= self.vocabulary:
            raise ValueError(f"a token id lies outside the vocabulary of {self.vocabulary}")
        if len(request.token_ids) >= self.max_model_len:
            raise PromptTooLongError(
                f"This model's maximum context length is {self.max_model_len} tokens; the prompt has "
                f"{len(request.token_ids)}, which leaves no room for a completion."
            )

    def cancel(self, ticket: int) -> None:
        """Forget a request: no step returns it any more. A ticket that has ended already is ignored."""
        self._waiting = deque(row for row in self._waiting if row.ticket != ticket)
        for index in reversed(range(len(self._live))):
            if self._live[index].ticket == ticket:
                self._remove(index)

    @property
    def busy(self) -> bool:
        return bool(self._live or self._waiting)

    @property
    def waiting(self) -> int:
        """How many requests are not live yet."""
        return len(self._waiting)

    @torch.no_grad()
    def step(self) -> list[tuple[int, Outcome]]:
        """Admit and prefill newcomers, draw one token for every live row; return what ended, tickets ascending.

        A fault of the forward pass, such as too little memory, is the outcome of every live request.
        """
        try:
            self._admit()
            if self._live:
                self.steps += 1
                self._steps_since_prefill += 1
                self._decode()
        except Exception as error:
            self._fail_all(error)
        ended, self._ended = sorted(self._ended, key=lambda pair: pair[0]), []
        return ended

    @contextmanager
    def updating(self) -> Iterator[PreTrainedModel]:
        """Yield the model, to change its weights in place; kept prefixes, which the old ones made, are forgotten.

        With nothing live the cache starts afresh, so that what follows has the bits that a new core would give.
        Live rows, if any, go on with their old keys and values, as in an in-flight weight update.
        """
        try:
            yield self.model
        finally:
            self.model.eval()
            self._prefixes.clear()
            if not self._live:
                self._cache.reset()
                self._steps_since_prefill = 0

    def load_weights_from(self, source: PreTrainedModel) -> None:
        """Take over a trainer's weights, cast to the dtype here; nothing is copied if it trains this very model.

        Raises: WeightsError where names or shapes differ.
        """
        with self.updating():
            copy_weights(source, self.model)

    def _admit(self) -> None:
        """Let waiting requests join, where there is room and it is time, and prefill them."""
        if self._live and self._steps_since_prefill < self.prefill_interval:
            return
        while self._waiting and len(self._live) + len(self._joining) < self.max_rows:
            self._joining.append(self._waiting.popleft())
        if self._joining:
            self._steps_since_prefill = 0
        while self._joining:
            self._joining = self._prefill_some(self._joining)

    def _prefill_some(self, newcomers: list[Row]) -> list[Row]:
        """Prefill what fits into one pass; return the rest, with those that can take over from a row of this pass.

        Newcomers that lack only their last token need no pass: the step feeds it.
        """
        first, rest, longest = len(self._live), [], 0
        for row in newcomers:
            shared, source = self._best_prefix(row)
            fresh, batch = len(row.prompt) - shared, self._live[first:]
            sibling = any(_alike(row.prompt, other.prompt, shared + MIN_SHARED_TOKENS) for other in batch)
            padded = (len(batch) + 1) * max(longest, fresh)
            if batch and (sibling or fresh == 1 or padded > self.prefill_tokens):
                rest.append(row)
                continue
            self._adopt(row, shared, source)
            if fresh == 1:
                first += 1
            else:
                longest = max(longest, fresh)
        if first < len(self._live):
            self._prefill(first)
        return rest

    def _best_prefix(self, newcomer: Row) -> tuple[int, Prefix | int | None]:
        """How many tokens of a prompt need no prefill (never all of it), and where they are: a row or a prefix."""
        prompt = newcomer.prompt
        best, source = self._prefixes.find(prompt, newcomer.session)
        found: Prefix | int | None = source
        if source is None or best < len(source.token_ids):
            for index, row in enumerate(self._live):
                if _alike(prompt, row.prompt, min(best + 1, row.length)):
                    shared = min(shared_length(prompt, row.prompt), row.length)
                    if shared > best:
                        best, found = shared, index
        best = min(best, len(prompt) - 1)
        return (best, found) if best >= MIN_SHARED_TOKENS else (0, None)

    def _adopt(self, row: Row, shared: int, source: Prefix | int | None) -> None:
        """Make a newcomer the last live row, with the keys and values of what it shares."""
        index = len(self._live)
        self._cache.reserve(index + 1, shared)
        if isinstance(source, Prefix):
            self._cache.write_row(index, source.kv[..., :shared, :])
        elif source is not None:
            self._cache.copy_row(source, index, shared)
        row.length = row.cached_tokens = shared
        self._live.append(row)
        self._table = None

    def _prefill(self, first: int) -> None:
        """Feed what is left of the prompts of the rows from `first` on and draw their first tokens.

        Short rows are padded on the left, so that the last column is every row's last token. A pad's key and value
        go right behind the row's end, where nothing looks before the next token overwrites them.
        """
        self.prefill_passes += 1
        rows = self._live[first:]
        width = max(len(row.prompt) - row.length for row in rows)
        fed = np.zeros((2, len(rows), width), dtype=np.int64)  # token ids, positions
        for i, row in enumerate(rows):
            pads = width - (len(row.prompt) - row.length)
            fed[0, i, pads:] = row.prompt[row.length :]
            fed[1, i, :pads] = len(row.prompt)
            fed[1, i, pads:] = np.arange(row.length, len(row.prompt))
            row.length = len(row.prompt)
        visible = max(row.length for row in rows)
        self._cache.reserve(len(self._live), visible + 1)
        token_ids, positions = torch.from_numpy(fed).to(self.device)
        logits = self._forward(self._cache, token_ids, positions, first, visible)
        table = SamplingTable.of([row.sampling for row in rows], self.vocabulary, self.device)
        self._append(first, *sample(logits, table, [row.next_uniform() for row in rows]))

    def _decode(self) -> None:
        """Feed every live row its last token and draw the next."""
        rows = self._live
        if self._table is None:  # made before the forward pass, for a copy to the device waits for what runs there
            self._table = SamplingTable.of([row.sampling for row in rows], self.vocabulary, self.device)
        inputs = np.array(
            [[row.last_token for row in rows], [row.length for row in rows], [row.next_uniform() for row in rows]]
        )
        for row in rows:
            row.length += 1
        visible = int(inputs[1].max()) + 1
        logits, uniforms = self.graphs(inputs, visible) if self.graphs else self._decode_eagerly(inputs, visible)
        self._append(0, *sample(logits, self._table, uniforms))

    def _decode_eagerly(self, inputs: NDArray[np.float64], visible: int) -> tuple[Tensor, Tensor]:
        """Logits [n, vocabulary] and uniforms [n] on the device, from token ids, positions and uniforms [3, n]."""
        self._cache.reserve(inputs.shape[1], visible)
        token_ids, positions, uniforms = torch.from_numpy(inputs).to(self.device)
        logits = self._forward(self._cache, token_ids.long()[:, None], positions.long()[:, None], 0, visible)
        return logits, uniforms

    def _append(self, first: int, tokens: list[int], logprobs: list[float]) -> None:
        """Add a token to each row from `first` on; take out those that are done, the last first."""
        for offset in reversed(range(len(tokens))):
            row = self._live[first + offset]
            row.completion.append(tokens[offset])
            row.logprobs.append(logprobs[offset])
            self._retire_if_done(first + offset)

    def _retire_if_done(self, index: int) -> None:
        row = self._live[index]
        reason = row.finish_reason
        if not isfinite(row.logprobs[-1]):
            self._cache.clear_rows(index, index + 1)
            self._remove(index)
            self._ended.append((row.ticket, GenerationError("the model's logits are not finite")))
        elif reason:
            if row.session is not None and self._prefixes.max_tokens:
                fed = np.concatenate([row.prompt, np.array(row.completion, dtype=np.int64)])[: row.length]
                self._prefixes.put(row.session, Prefix(fed, self._cache.read_row(index, row.length)))
            self._remove(index)
            completion = Completion(row.completion, row.logprobs, reason, row.cached_tokens)
            self._ended.append((row.ticket, completion))

    def _remove(self, index: int) -> None:
        """Take a row out; the last one moves into its place, so that the live rows stay packed."""
        last = self._live.pop()
        if index < len(self._live):
            self._live[index] = last
            self._cache.copy_row(len(self._live), index, last.length)
        self._table = None

    def _fail_all(self, error: Exception) -> None:
        logger.warning("a generation step failed, and with it all live requests: %s", error, exc_info=error)
        failure = GenerationError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        tickets = dict.fromkeys(row.ticket for row in [*self._live, *self._joining])
        self._ended += [(ticket, failure) for ticket in tickets]
        self._cache.clear_rows(0, len(self._live))
        self._live, self._joining, self._table = [], [], None


def _alike(one: TokenArray, other: TokenArray, count: int) -> bool:
    """Whether two sequences have the same first `count` tokens."""
    return len(one) >= count <= len(other) and bool((one[:count] == other[:count]).all())
