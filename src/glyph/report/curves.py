"""Learning curves as numbers: one value a seed and step, their mean over seeds, and its interval.

In: groups of runs. Out: `Series`. Means and intervals are taken over the steps that every run of a group reached;
the line of a single seed goes as far as its run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glyph.evaluation.seeds import SeedMean, seed_mean
from glyph.evaluation.statistics import Interval
from glyph.report.groups import Group
from glyph.report.runs import TrainingRun, TrainLine

SMOOTHING = 5
"""Steps in the moving mean of training curves: the step itself and two on each side."""

Line = tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Series:
    """A quantity of a group over steps. `raw` and `by_seed` have a line a run (`raw` is empty where nothing is
    smoothed), `means` a summary for each step of `steps`.

    The interval is over seeds; with one seed it is that of the metric itself, over tasks, where there is one.
    """

    group: str
    seeds: tuple[int, ...]
    unit: str
    steps: tuple[int, ...]
    by_seed: tuple[Line, ...]
    means: tuple[SeedMean, ...]
    raw: tuple[Line, ...] = ()

    @property
    def defined(self) -> bool:
        return any(value is not None for line in self.by_seed for _, value in line)

    @property
    def mean_line(self) -> Line:
        return tuple((step, mean.mean) for step, mean in zip(self.steps, self.means, strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "unit": self.unit,
            "seeds": self.seeds,
            "by_seed": [dict(line) for line in self.raw or self.by_seed],
            "mean": {
                step: {"mean": m.mean, "n": m.n, "interval": m.interval and [m.interval.low, m.interval.high]}
                for step, m in zip(self.steps, self.means, strict=True)
            },
        }


def training_series(group: Group, value: Callable[[TrainLine], float | None], unit: str) -> Series:
    """A quantity of the training steps, smoothed by a moving mean over `SMOOTHING` steps."""
    raw = tuple(tuple((line.step, value(line)) for line in run.training) for run in group.runs)
    smooth = tuple(map(smoothed, raw))
    return _series(group, unit, smooth, raw)


def evaluation_series(group: Group, split: str, metric: str, unit: str = "share") -> Series:
    """A metric of the evaluations of a split; not smoothed."""

    def line_of(run: TrainingRun) -> Line:
        found = ((line.step, line.metrics.get(metric)) for line in run.of_split(split))
        return tuple((step, stored.value if stored else None) for step, stored in found)

    series = _series(group, unit, tuple(map(line_of, group.runs)), ())
    if len(group.runs) > 1:
        return series
    own = {line.step: line.metrics.get(metric) for line in group.runs[0].of_split(split)}
    means = []
    for step, mean in zip(series.steps, series.means, strict=True):
        stored = own[step]
        interval = stored.interval if stored else None
        kept = Interval(interval.low, interval.high, interval.method) if interval else None
        means.append(SeedMean(mean.mean, kept, mean.n))
    return Series(series.group, series.seeds, unit, series.steps, series.by_seed, tuple(means))


def smoothed(line: Line, width: int = SMOOTHING) -> Line:
    """The moving mean over the defined values of the neighbouring entries; at the ends over fewer."""
    reach = width // 2
    values = [value for _, value in line]
    means = []
    for place in range(len(values)):
        near = [value for value in values[max(0, place - reach) : place + reach + 1] if value is not None]
        means.append(sum(near) / len(near) if near and values[place] is not None else None)
    return tuple((step, mean) for (step, _), mean in zip(line, means, strict=True))


def _series(group: Group, unit: str, lines: Sequence[Line], raw: tuple[Line, ...]) -> Series:
    tables = [dict(line) for line in lines]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    means = tuple(seed_mean([table[step] for table in tables], unit == "share") for step in steps)
    return Series(group.name, group.seeds, unit, tuple(steps), tuple(lines), means, raw)
