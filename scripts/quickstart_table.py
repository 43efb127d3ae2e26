"""The quickstart's closing table: pass@1 of each arm on the test tasks after SFT and after RL, and the differences.

In: the folders `test-{sft,rl}-ARM-seedN` of a quickstart. Out: rows of text. The numbers are `glyph.evaluation`'s.
"""

from collections.abc import Sequence
from pathlib import Path

from glyph.evaluation.compare import Comparison, compare
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.seeds import seed_mean
from glyph.evaluation.traces import read_traces
from glyph.report.data import rollouts_of
from glyph.report.format import format_interval, format_metric, format_value

HEADINGS = ["", "after SFT", "after RL", "RL − SFT, paired"]
UNITS = ("share", "share", "difference")
LEGEND = "value [95% interval] n = tasks; intervals: Wilson; † bootstrap over tasks; § Student's t over seeds"
SHARES = tuple[float | None, float | None, float]


def table(output: Path, seeds: Sequence[int]) -> list[list[str]]:
    """A row an arm and one for B against A, of every seed; below, with several seeds, the means over them.

    Raises:
        UnpairedError: a stage has no rollout of any task that the other has.
        TraceError, OSError: traces are absent or cannot be read.
    """
    rows, shares = [HEADINGS], {"Arm A": list[SHARES](), "Arm B": list[SHARES]()}
    between: list[tuple[float, float]] = []
    for seed in seeds:
        a, b = (_stages(output, arm, seed) for arm in "ab")
        for name, (sft, rl) in zip(shares, (a, b), strict=True):
            change = compare(sft, rl)
            rows.append([f"{name}, seed {seed}", *_passes(change), _difference(change)])
            shares[name].append((change.first_pass.value, change.second_pass.value, change.difference))
        after_sft, after_rl = compare(a[0], b[0]), compare(a[1], b[1])
        rows.append([f"B − A, seed {seed}", _difference(after_sft), _difference(after_rl), ""])
        between.append((after_sft.difference, after_rl.difference))
    if len(seeds) > 1:
        rows += [[f"{name}, mean", *_means(values, UNITS)] for name, values in shares.items()]
        rows.append(["B − A, mean", *_means(between, ("difference", "difference")), ""])
    return rows


def lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _stages(output: Path, arm: str, seed: int) -> tuple[tuple[Rollout, ...], tuple[Rollout, ...]]:
    sft, rl = (rollouts_of(read_traces(output / f"test-{stage}-{arm}-seed{seed}").traces) for stage in ("sft", "rl"))
    return sft, rl


def _passes(comparison: Comparison) -> list[str]:
    return [format_metric(comparison.first_pass), format_metric(comparison.second_pass)]


def _difference(comparison: Comparison) -> str:
    interval = format_interval(comparison.interval, "difference")
    return _cell(format_value(comparison.difference, "difference"), interval, f"n={comparison.tasks}")


def _means(of_seeds: Sequence[Sequence[float | None]], units: Sequence[str]) -> list[str]:
    cells = []
    for values, unit in zip(zip(*of_seeds, strict=True), units, strict=True):
        found = seed_mean(values, unit == "share")
        interval = format_interval(found.interval, unit)
        cells.append(_cell(format_value(found.mean, unit), interval, f"n={found.n} seeds"))
    return cells


def _cell(*parts: str) -> str:
    return " ".join(filter(None, parts))
