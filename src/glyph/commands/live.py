"""What a training run shows while it runs: the last steps as a table, and what is being waited for.

In: the lines of metrics.jsonl as they are written. On a terminal a table that is redrawn; without one a plain line a
step, and one for each heartbeat. Nothing is computed here but the time that is left.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from time import monotonic
from typing import Any, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from glyph.report.format import UNDEFINED
from glyph.report.rollout import printable

SHOWN_STEPS = 12
STEPS_FOR_ETA = 20
PARTS = ("generation", "environment", "training")


class TrainingProgress:
    """A context manager around a run: `update` with each line, `waiting_for` with each heartbeat (from any thread)."""

    def __init__(self, title: str, total_steps: int, console: Console | None = None) -> None:
        self._title, self._total = printable(title), total_steps
        self._console = console or Console(stderr=True, highlight=False)
        self._lines: deque[dict[str, Any]] = deque(maxlen=SHOWN_STEPS)
        self._seconds: deque[float] = deque(maxlen=STEPS_FOR_ETA)
        self._evaluation: dict[str, Any] | None = None
        self._waiting = ""
        self._updated = monotonic()
        self._lock = threading.RLock()
        self._live = Live(self.render(), console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._print(f"{self._title}: {self._total} steps")
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting = ""
        if self._console.is_terminal:
            self._live.update(self.render(), refresh=True)
            self._live.stop()

    def update(self, line: Mapping[str, Any]) -> None:
        """Take a line of metrics.jsonl, of either kind; the wait before it is over."""
        with self._lock:
            now = monotonic()
            self._waiting = ""
            if line.get("kind") == "evaluation":
                self._evaluation = dict(line)
                text = f"evaluation after step {line.get('step')}: pass@1 {_pass(line)} n={line.get('n', UNDEFINED)}"
            else:
                self._lines.append(dict(line))
                self._seconds.append(now - self._updated)
                text = self._plain(line)
            self._updated = now
            self._show(text)

    def waiting_for(self, text: str) -> None:
        """Say what the run waits for; the next line ends it."""
        with self._lock:
            self._waiting = printable(" ".join(text.split()))
            self._show(f"waiting for {self._waiting}")

    def eta_seconds(self) -> float | None:
        """The median time of the last steps times the steps that are left; None before the first step."""
        if not self._seconds:
            return None
        return median(self._seconds) * max(0, self._total - int(self._lines[-1].get("step", 0)))

    def render(self) -> RenderableType:
        """The table of the last steps with a line above and one below."""
        done = self._lines[-1].get("step", 0) if self._lines else 0
        head = f"{self._title} · step {done} of {self._total}"
        if self._seconds:
            head += f" · {_clock(self.eta_seconds())} left"
        if self._evaluation:
            step = self._evaluation.get("step")
            head += f" · pass@1 {_pass(self._evaluation)} at step {step}"
        below = f"waiting for {self._waiting}" if self._waiting else "" if done < self._total else "done"
        return Group(Text(head, style="bold"), self._table(), Text(below, style="dim"))

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        columns = self._columns()
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for line in self._lines:
            table.add_row(*(cell(line) for cell in columns.values()))
        return table

    def _columns(self) -> dict[str, Callable[[Mapping[str, Any]], str]]:
        """The columns that some shown line has a value for; step and seconds always."""
        found = {"step": _value("step", "{:.0f}")}
        for title, name, form in (
            ("reward", "reward_mean", "{:.3f}"),
            ("loss", "loss", "{:.4f}"),
            ("policy loss", "policy_loss", "{:+.4f}"),
            ("label loss", "label_loss", "{:.4f}"),
            ("grad norm", "grad_norm", "{:.3g}"),
            ("tokens/s", "tokens_per_second", "{:.0f}"),
        ):
            if any(line.get(name) is not None for line in self._lines):
                found[title] = _value(name, form)
        return {**found, "seconds": _split}

    def _plain(self, line: Mapping[str, Any]) -> str:
        cells = ", ".join(f"{name} {cell(line)}" for name, cell in self._columns().items() if name != "step")
        return f"step {line.get('step')} of {self._total}: {cells}, {_clock(self.eta_seconds())} left"

    def _show(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.update(self.render(), refresh=True)
        else:
            self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
        self._console.file.flush()


def _value(name: str, form: str) -> Callable[[Mapping[str, Any]], str]:
    def cell(line: Mapping[str, Any]) -> str:
        value = line.get(name)
        return UNDEFINED if value is None else form.format(value)

    return cell


def _split(line: Mapping[str, Any]) -> str:
    """`3.1 (g 1.9, e 0.4, t 0.8)`: the step's seconds, of them generation, environment and training."""
    seconds = line.get("seconds") or {}
    if isinstance(seconds, int | float):
        return f"{seconds:.2f}"
    total = seconds.get("total", sum(seconds.get(part, 0.0) for part in PARTS))
    parts = [f"{part[0]} {seconds[part]:.1f}" for part in PARTS if part in seconds]
    return f"{total:.2f}" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")


def _pass(line: Mapping[str, Any]) -> str:
    value = ((line.get("metrics") or {}).get("pass_at_1") or {}).get("value")
    return UNDEFINED if value is None else f"{100 * value:.1f}%"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return UNDEFINED
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
