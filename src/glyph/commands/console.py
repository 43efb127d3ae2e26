"""What every command shares: plain or rich output, progress with rate and ETA, and one-line errors with exit code 2."""

import sys
from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
USAGE_ERROR = 2


def say(text: str) -> None:
    print(text, flush=True)


def fail(message: str) -> NoReturn:
    """Print a one-line error to stderr and leave with exit code 2."""
    print(message, file=sys.stderr)
    raise typer.Exit(USAGE_ERROR)


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Show a bar with count, time and ETA on a terminal; without one, a line at the start and at the end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        count = 0
        for count, item in enumerate(items, 1):
            yield item
        print(f"{what}: {count} done", file=sys.stderr, flush=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield from bar.track(items, total=total, description=what)
