"""The figures of docs/results.md, from the runs' published metrics: how Arm B's behaviour comes about in training.

In: the published runs. Out: SVG texts by name, which document.py writes to docs/figures.
"""

from collections.abc import Mapping, Sequence

from glyph.report.charts import Curve, curves
from glyph.report.curves import SMOOTHING, Series, training_series
from glyph.report.groups import Group
from glyph.report.runs import TrainLine, read_run
from study.pieces import Kind
from study.results import Results
from study.tables import ROOT

FOLDER = ROOT / "docs" / "figures"
FIGURES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "study_rejections": (
        "Bad patches rejected",
        "bad_patch_rejection",
        ("b", "b-alpha0", "b-overlap", "b-overlap-alpha0", "b-overlap-budget"),
    ),
    "study_breaches": (
        "Rollouts ended by a breach of the protocol",
        "stop_protocol_error",
        ("a", "b", "b-alpha0", "b-overlap", "b-overlap-alpha0", "b-overlap-ungated"),
    ),
}
"""Title, metric of the training rollouts, and the runs that are compared by it."""
ORDER = ("b-overlap", "b-overlap-alpha0", "b-overlap-budget", "b-overlap-ungated", "a", "b", "b-alpha0")
COLOURS = {run: place for place, run in enumerate(ORDER)}


def figures(results: Results) -> dict[str, str]:
    """Every figure by name; without those that no published run has a line in."""
    drawn = {}
    for name, (title, metric, runs) in FIGURES.items():
        several = [series for run in runs if (series := _series(results, run, metric)) and series.defined]
        if several:
            drawn[name] = _drawn(name, title, results.subject.model.replace("**", ""), several)
    return drawn


def _series(results: Results, run: str, metric: str) -> Series | None:
    """A share of the rollouts that a run was trained on, its seeds in the last visit that made it; None without any."""
    made = [entry for entry in results.training(Kind.RL) if entry.summary.run == run]
    if not made:
        return None
    visit = max(entry.folder.parent for entry in made)
    found = sorted((e for e in made if e.folder.parent == visit), key=lambda entry: entry.summary.seed or 0)
    seeds = tuple(read_run(entry.folder) for entry in found)

    def value(line: TrainLine) -> float | None:
        stored = line.metrics.get(metric)
        return stored.value if stored else None

    return training_series(Group(run, "rl", found[0].summary.arm or "", seeds), value, "share")


def _drawn(name: str, title: str, model: str, several: Sequence[Series]) -> str:
    lines = [Curve(each.group, each.by_seed, each.mean_line, colour=COLOURS[each.group]) for each in several]
    subtitle = (
        f"{model}. Sampled training rollouts, moving mean of {SMOOTHING} steps. Thin lines: seeds; thick: their mean."
    )
    return curves(title, subtitle, lines, "share").render(name, standalone=True) + "\n"
