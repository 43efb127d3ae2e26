"""The generate core: token ids and sampling parameters in, sampled ids with their log-probs out.

One thread owns the model. Requests join and leave the live batch between steps (continuous batching): a step
prefills the newcomers, then draws one token for every live row. Rows are packed, so that a step works on a slice
of the cache. Newcomers take over the keys and values of the longest prefix that a live row or a finished
conversation (`session`) shares with their prompt; members of a group that arrive together prefill it once.

What a row yields depends on its tokens, its parameters and its seed alone, as far as float arithmetic allows:
other rows change the shapes of matrix products, hence last bits of logits. `generate_batch` admits its requests
together and in order, so that the same calls on the same machine give the same bits.

The server, the in-process client and a trainer share this class. A trainer changes weights inside `exclusive()`.
Not done here: text, chat, streaming, stop strings, beams, penalties, attention with a sliding window.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from glyph.local.kv_cache import Prefix, PrefixStore, RowCache, TokenArray, shared_length
from glyph.local.loading import load_model, require_full_attention
from glyph.local.requests import (
    Completion,
    FinishReason,
    GenerationError,
    GenerationRequest,
    PromptTooLongError,
    QueueFullError,
)
from glyph.local.sampling import SamplingParams, SamplingTable, UniformStream, sample

MIN_SHARED_TOKENS = 16
"""A shared prefix shorter than this is not worth a copy."""


@dataclass
class _Row:
    """A live sequence. `length` counts the tokens whose keys and values are in the cache."""

    prompt: TokenArray
    sampling: SamplingParams
    session: str | None
    max_tokens: int
    uniforms: UniformStream
    future: "Future[Completion]" = field(default_factory=Future)
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    length: int = 0
    cached_tokens: int = 0

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.completion and self.completion[-1] in self.sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.completion) >= self.max_tokens else None

    def fresh_tokens(self) -> TokenArray:
        """The tokens that the next forward pass feeds."""
        return self.prompt[self.length :] if not self.completion else np.array(self.completion[-1:], dtype=np.int64)


class GenerationEngine:
    """Continuous batching over one Hugging Face causal language model.

    `max_rows` sequences are live at once and at most `max_queue` wait. `prefill_tokens` bounds the (padded) tokens
    of one prefill pass; a longer prompt gets a pass of its own. `prefix_cache_tokens` 0 keeps no finished prefixes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_model_len: int = 4096,
        max_rows: int = 16,
        max_queue: int = 1024,
        prefix_cache_tokens: int = 32_768,
        prefill_tokens: int = 2048,
    ) -> None:
        require_full_attention(model)
        positions = getattr(model.config, "max_position_embeddings", None) or max_model_len
        self.model = model.eval()
        self.max_model_len = min(max_model_len, positions)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
        self.max_rows, self.max_queue, self.prefill_tokens = max_rows, max_queue, prefill_tokens
        self.prefill_passes = self.steps = 0
        self._cache = RowCache(model.config, model.dtype, model.device)
        self._prefixes = PrefixStore(prefix_cache_tokens)
        self._live: list[_Row] = []
        self._joining: list[_Row] = []
        self._waiting: deque[_Row] = deque()
        self._table: SamplingTable | None = None
        self._changed = threading.Condition()
        self._stepping, self._holds, self._closed = False, 0, False
        self._thread = threading.Thread(target=self._run, name="glyph-generation", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, model_dir: str | Path, device: str = "auto", **options: Any) -> "GenerationEngine":
        """Load a model folder: float32 on a CPU, where bf16 is slow, and bfloat16 elsewhere."""
        return cls(load_model(model_dir, device), **options)

    async def generate(
        self, token_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Generate one completion. Cancelling the call takes the row out of the batch at the next step.

        Raises: PromptTooLongError, ValueError (an empty prompt, an id outside the vocabulary), QueueFullError,
        GenerationError.
        """
        return await asyncio.wrap_future(self.submit(GenerationRequest(token_ids, sampling, session)))

    def submit(self, request: GenerationRequest) -> "Future[Completion]":
        """Queue one request; see `generate` for what it raises."""
        return self._enqueue([self._new_row(request)], self.max_queue)[0]

    def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Generate all completions, admitted together and in order; the queue's bound does not apply."""
        rows = [self._new_row(request) for request in requests]
        return [future.result() for future in self._enqueue(rows, None)]

    @contextmanager
    def exclusive(self) -> Iterator[PreTrainedModel]:
        """Hold the engine between two steps and yield the model, to change its weights.

        Kept prefixes are forgotten, for they belong to the old weights. Live rows, if any, go on afterwards with
        their old keys and values, as in an in-flight weight update.
        """
        with self._changed:
            self._holds += 1
            self._changed.wait_for(lambda: not self._stepping)
        try:
            yield self.model
        finally:
            with self._changed:
                self._prefixes.clear()
                self._holds -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread; what is unfinished fails with GenerationError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> "GenerationEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_row(self, request: GenerationRequest) -> _Row:
        if not len(request.token_ids):
            raise ValueError("the prompt is empty: at least one token is needed")
        if min(request.token_ids) < 0 or max(request.token_ids) >= self.vocabulary:
            raise ValueError(f"a token id lies outside the vocabulary of {self.vocabulary}")
        prompt = np.array(request.token_ids, dtype=np.int64)
        room = self.max_model_len - len(prompt)
        if room < 1:
            raise PromptTooLongError(
                f"This model's maximum context length is {self.max_model_len} tokens; the prompt has {len(prompt)}, "
                "which leaves no room for a completion."
            )
        sampling = request.sampling
        max_tokens = min(sampling.max_tokens or room, room)
        return _Row(prompt, sampling, request.session, max_tokens, UniformStream(sampling.seed))

    def _enqueue(self, rows: list[_Row], limit: int | None) -> "list[Future[Completion]]":
        with self._changed:
            if self._closed:
                raise GenerationError("the engine is closed")
            if limit is not None and len(self._waiting) + len(rows) > limit:
                raise QueueFullError(f"{len(self._waiting)} requests wait already, at most {limit} may")
            self._waiting.extend(rows)
            self._changed.notify_all()
        return [row.future for row in rows]

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or (not self._holds and (self._live or self._waiting)))
                if self._closed:
                    break
                self._stepping = True
            try:
                with torch.no_grad():
                    self._step()
            except Exception as error:
                self._fail_live(error)
        self._fail_live(GenerationError("the engine was closed"))
        while self._waiting:
            _fail(self._waiting.popleft(), GenerationError("the engine was closed"))

    def _step(self) -> None:
        """Drop cancelled rows, admit and prefill newcomers, then draw one token for every live row."""
        for index in reversed(range(len(self._live))):
            if self._live[index].future.cancelled():
                self._remove(index)
        self._joining = self._take_newcomers()
        while self._joining:
            self._joining = self._prefill_some(self._joining)
        if self._live:
            self.steps += 1
            self._forward(0)

    def _take_newcomers(self) -> list[_Row]:
        newcomers: list[_Row] = []
        with self._changed:
            while self._waiting and len(self._live) + len(newcomers) < self.max_rows:
                row = self._waiting.popleft()
                if not row.future.cancelled():
                    newcomers.append(row)
        return newcomers

    def _prefill_some(self, newcomers: list[_Row]) -> list[_Row]:
        """Prefill what fits into one pass; return the rest, with those that can take over from a row of this pass."""
        first, rest, longest = len(self._live), [], 0
        for row in newcomers:
            shared, source = self._best_prefix(row.prompt)
            fresh = len(row.prompt) - shared
            batch = self._live[first:]
            sibling = any(shared_length(row.prompt, other.prompt) >= shared + MIN_SHARED_TOKENS for other in batch)
            padded = (len(batch) + 1) * max(longest, fresh)
            if sibling or (batch and padded > self.prefill_tokens):
                rest.append(row)
                continue
            longest = max(longest, fresh)
            self._adopt(row, shared, source)
        self.prefill_passes += 1
        self._forward(first)
        return rest

    def _best_prefix(self, prompt: TokenArray) -> tuple[int, Prefix | int | None]:
        """How many tokens of a prompt need no prefill (never all of it), and where they are: a row or a prefix."""
        best: int = 0
        source: Prefix | int | None = None
        for index, row in enumerate(self._live):
            shared = min(shared_length(prompt, row.prompt), row.length)
            if shared > best:
                best, source = shared, index
        stored, prefix = self._prefixes.find(prompt)
        if stored > best:
            best, source = stored, prefix
        best = min(best, len(prompt) - 1)
        return (best, source) if best >= MIN_SHARED_TOKENS else (0, None)

    def _adopt(self, row: _Row, shared: int, source: Prefix | int | None) -> None:
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

    def _forward(self, first: int) -> None:
        """Feed the fresh tokens of the rows from `first` on, draw one token for each, retire those that are done."""
        rows = self._live[first:]
        logits = self._logits(first, [row.fresh_tokens() for row in rows])  # [n, vocabulary]
        if first or self._table is None:
            table = SamplingTable.of([row.sampling for row in rows], logits.shape[-1], logits.device)
            self._table = None if first else table
        else:
            table = self._table
        uniforms = [row.uniforms.next() if row.sampling.temperature else 0.0 for row in rows]
        tokens, logprobs = sample(logits, table, uniforms)
        for index in reversed(range(len(rows))):
            rows[index].completion.append(tokens[index])
            rows[index].logprobs.append(logprobs[index])
            self._retire_if_done(first + index)

    def _logits(self, first: int, fresh: list[TokenArray]) -> Tensor:
        """Next-token logits [n, vocabulary] of rows from `first` on, fed with their fresh tokens.

        Short rows are padded on the left, so that the last column is every row's last token. A pad's key and value
        go behind the row's end, where nothing looks before a real token overwrites them.
        """
        rows = self._live[first : first + len(fresh)]
        width = max(map(len, fresh))
        token_ids = np.zeros((len(fresh), width), dtype=np.int64)
        positions = np.zeros_like(token_ids)
        for i, (row, tokens) in enumerate(zip(rows, fresh, strict=True)):
            pads = width - len(tokens)
            token_ids[i, pads:] = tokens
            positions[i] = row.length + (np.arange(width) - pads) % width
            row.length += len(tokens)
        visible = max(row.length for row in rows)
        self._cache.reserve(first + len(fresh), int(positions.max()) + 1)
        positions_nt = torch.from_numpy(positions).to(self.model.device)
        self._cache.select(first, positions_nt, visible)
        output = self.model(
            input_ids=torch.from_numpy(token_ids).to(self.model.device),
            attention_mask=_causal_mask(positions_nt, visible, self.model.dtype),
            position_ids=positions_nt,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _retire_if_done(self, index: int) -> None:
        row = self._live[index]
        reason = row.finish_reason
        if not np.isfinite(row.logprobs[-1]):
            self._cache.clear_rows(index, index + 1)
            self._remove(index)
            _fail(row, GenerationError("the model's logits are not finite"))
        elif reason:
            if row.session is not None and self._prefixes.max_tokens:
                fed = np.concatenate([row.prompt, np.array(row.completion, dtype=np.int64)])[: row.length]
                self._prefixes.put(row.session, Prefix(fed, self._cache.read_row(index, row.length)))
            self._remove(index)
            if row.future.set_running_or_notify_cancel():
                row.future.set_result(Completion(row.completion, row.logprobs, reason, row.cached_tokens))

    def _remove(self, index: int) -> None:
        """Take a row out; the last one moves into its place, so that the live rows stay packed."""
        last = self._live.pop()
        if index < len(self._live):
            self._live[index] = last
            self._cache.copy_row(len(self._live), index, last.length)
        self._table = None

    def _fail_live(self, error: Exception) -> None:
        failure = error if isinstance(error, GenerationError) else GenerationError(f"{type(error).__name__}: {error}")
        for row in [*self._live, *self._joining]:
            _fail(row, failure)
        self._cache.clear_rows(0, len(self._live))
        self._live, self._joining, self._table = [], [], None


def _causal_mask(positions: Tensor, visible: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [n, 1, t, visible] for queries at positions [n, t]: a query sees the keys up to its own index."""
    hidden = torch.arange(visible, device=positions.device) > positions[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill(hidden, torch.finfo(dtype).min)


def _fail(row: _Row, error: Exception) -> None:
    if not row.future.done() and row.future.set_running_or_notify_cancel():
        row.future.set_exception(error)
