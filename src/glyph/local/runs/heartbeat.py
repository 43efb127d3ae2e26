"""What a run waits for, said when it lasts: to the user, and into a file for whoever looks from outside."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from glyph.files import write_atomically

_TICKS_PER_REPORT = 6
"""How often waits are looked at, and the file is written, between two reports."""


@dataclass
class _Wait:
    what: str | Callable[[], str]
    since: float
    said: float

    def text(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()


class Heartbeat:
    """A thread that reports waits: `with heartbeat("waiting for 3 tests of step 12"): ...`.

    A wait is said through `say` once every `every_seconds`, not at all if it ends sooner; of nested waits the
    innermost that lasts is said. `what` may be a function, called from the thread, for a count that goes down. With
    a `file`, {"time", "pid", "step", "what", "waiting_seconds"} is written there several times in between; `step` is
    whatever was set last. A report that cannot be written is dropped: it must not end a run.
    """

    def __init__(self, say: Callable[[str], None], every_seconds: float = 30.0, file: Path | None = None) -> None:
        self.step: int | None = None
        self._say, self._every, self._file = say, every_seconds, file
        self._waits: list[_Wait] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="glyph-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    @contextmanager
    def __call__(self, what: str | Callable[[], str]) -> Iterator[None]:
        now = time.monotonic()
        wait = _Wait(what, since=now, said=now)
        self._waits.append(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def _watch(self) -> None:
        while not self._stop.wait(self._every / _TICKS_PER_REPORT):
            try:
                self._beat(time.monotonic())
            except (OSError, ValueError):  # a full disk, a closed terminal
                continue

    def _beat(self, now: float) -> None:
        waits = list(self._waits)
        self._write(waits[-1] if waits else None, now)
        for wait in reversed(waits):
            if now - wait.said >= self._every:
                wait.said = now
                self._say(f"{wait.text()} ({now - wait.since:.0f} s)")
                return

    def _write(self, wait: _Wait | None, now: float) -> None:
        if self._file is None:
            return
        body = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "pid": os.getpid(),
            "step": self.step,
            "what": wait.text() if wait else None,
            "waiting_seconds": round(now - wait.since, 1) if wait else None,
        }
        write_atomically(self._file, json.dumps(body) + "\n")
