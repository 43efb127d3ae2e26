"""What every command shares: plain or rich output, progress with rate and ETA, and one-line errors with exit code 2."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
USAGE_ERROR = 2
PLAIN_SECONDS = 10.0


def say(text: str) -> None:
    print(text, flush=True)


def fail(message: str, code: int = USAGE_ERROR) -> NoReturn:
    """Print a one-line error to stderr and leave with an exit code."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Show a bar with count, rate and ETA on a terminal; without one, a line now and then and one at the end."""
    with _Display(what, total) as display:
        for item in items:
            display.advance()
            yield item


class _Display:
    """A progress bar, or plain lines on stderr where that is no terminal."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total, self._count = what, total, 0
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        self._started = self._told = time.monotonic()

    def __enter__(self) -> "_Display":
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        else:
            self._tell()

    def advance(self) -> None:
        self._count += 1
        if self._bar:
            self._bar.update(self._task, completed=self._count, rate=f"{self._rate():.1f}/s")
        elif time.monotonic() - self._told > PLAIN_SECONDS:
            self._tell()

    def _rate(self) -> float:
        return self._count / max(1e-6, time.monotonic() - self._started)

    def _tell(self) -> None:
        self._told = time.monotonic()
        of = f" of {self._total}" if self._total is not None else ""
        print(f"{self._what}: {self._count}{of}, {self._rate():.1f}/s", file=sys.stderr, flush=True)
