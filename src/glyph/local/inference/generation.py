"""One thread around an `EngineCore`, for callers that come at any time: the server and the in-process client.

Requests go in from any thread and come out as futures. `generate_batch` admits its requests together and in order,
so that the same calls give the same bits. The thread alone touches the core, but for `exclusive()`, which holds it
between two steps. Cancelled requests leave the batch at the next step.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from glyph.local.inference.engine import EngineCore, Outcome
from glyph.local.inference.loading import load_model
from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest, QueueFullError
from glyph.local.inference.sampling import SamplingParams


class GenerationEngine:
    """A thread that steps an `EngineCore` while anything is to be done. At most `max_queue` requests wait.

    The other options are those of the core.
    """

    def __init__(self, model: PreTrainedModel, *, max_queue: int = 1024, **options: Any) -> None:
        self.core = EngineCore(model, **options)
        self.max_queue = max_queue
        self._inbox: deque[tuple[GenerationRequest, Future[Completion]]] = deque()
        self._live: dict[int, Future[Completion]] = {}
        self._changed = threading.Condition()
        self._stepping, self._holds, self._closed = False, 0, False
        self._thread = threading.Thread(target=self._run, name="glyph-generation", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, model_dir: str | Path, device: str = "auto", **options: Any) -> "GenerationEngine":
        """Load a model folder: float32 on a CPU, where bf16 is slow, and bfloat16 elsewhere."""
        return cls(load_model(model_dir, device), **options)

    @property
    def model(self) -> PreTrainedModel:
        return self.core.model

    @property
    def max_model_len(self) -> int:
        return self.core.max_model_len

    @property
    def max_rows(self) -> int:
        return self.core.max_rows

    @property
    def vocabulary(self) -> int:
        return self.core.vocabulary

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
        return self._enqueue([request], self.max_queue)[0]

    def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Generate all completions, admitted together and in order; the queue's bound does not apply."""
        return [future.result() for future in self._enqueue(requests, None)]

    @contextmanager
    def exclusive(self) -> Iterator[PreTrainedModel]:
        """Hold the engine between two steps and yield the model, to change its weights; see `EngineCore.updating`."""
        with self._changed:
            self._holds += 1
            self._changed.wait_for(lambda: not self._stepping)
        try:
            with self.core.updating() as model:
                yield model
        finally:
            with self._changed:
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

    def _enqueue(self, requests: Sequence[GenerationRequest], limit: int | None) -> "list[Future[Completion]]":
        for request in requests:
            self.core.check(request)
        entries: list[tuple[GenerationRequest, Future[Completion]]] = [(request, Future()) for request in requests]
        with self._changed:
            if self._closed:
                raise GenerationError("the engine is closed")
            waiting = len(self._inbox) + self.core.waiting
            if limit is not None and waiting + len(entries) > limit:
                raise QueueFullError(f"{waiting} requests wait already, at most {limit} may")
            self._inbox.extend(entries)
            self._changed.notify_all()
        return [future for _, future in entries]

    # What follows runs in the engine's thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or (not self._holds and (self._live or self._inbox)))
                if self._closed:
                    break
                self._stepping = True
                self._admit()
            for ticket, outcome in self.core.step():
                _settle(self._live.pop(ticket), outcome)
        for future in [*self._live.values(), *(future for _, future in self._inbox)]:
            _settle(future, GenerationError("the engine was closed"))

    def _admit(self) -> None:
        """Take cancelled requests out of the core and hand it what has come in."""
        for ticket in [ticket for ticket, future in self._live.items() if future.cancelled()]:
            self.core.cancel(ticket)
            del self._live[ticket]
        while self._inbox:
            request, future = self._inbox.popleft()
            if not future.cancelled():
                self._live[self.core.submit(request)] = future


def _settle(future: "Future[Completion]", outcome: Outcome) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Completion):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
