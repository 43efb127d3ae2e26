"""The report as files: `report.md` for people and `report.json` for programs. The HTML page is `page.py`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from glyph.evaluation.metrics import ConfusionMatrix
from glyph.files import write_atomically
from glyph.report.data import Report
from glyph.report.format import LEGEND, format_metric
from glyph.report.rollout import printable, render_rollout
from glyph.report.text import comparison_rows, metric_sections, provenance_lines


def write_report(report: Report, folder: str | Path) -> tuple[Path, Path]:
    """Write `report.md` and `report.json` into a folder, replacing earlier ones; returns their paths."""
    folder = Path(folder)
    page = write_atomically(folder / "report.md", render_markdown(report))
    return page, write_atomically(folder / "report.json", json.dumps(report.to_dict(), indent=1, default=str) + "\n")


def render_markdown(report: Report) -> str:
    """Title, what ran, the arms side by side, confusion matrices, paired tests, one rollout a column."""
    names = [column.name for column in report.columns]
    lines = [f"# {report.title}", "", "## What ran", ""]
    lines += [f"- {_escape(line)}" for line in provenance_lines(report.columns)]
    lines += [f"- note: {_escape(note)}" for note in report.notes]
    lines += [f"- {name}: {_escape(_fact(value))}" for name, value in report.manifest.items()]
    lines += ["", LEGEND, "Rollouts ended by an environment fault are in no denominator."]
    for section, rows in metric_sections(report.columns):
        cells = [[row[0].title, *(format_metric(metric) for metric in row)] for row in rows]
        lines += ["", f"## {section}", "", *_table(["metric", *names], cells)]
    for column in report.columns:
        if column.confusion.total:
            lines += ["", f"## Confusion matrix, {column.name}", "", "Rows: the verified label.", ""]
            lines += _confusion(column.confusion)
            lines += ["", "Rows: `published_label`, the study's rule.", "", *_confusion(column.confusion_published)]
    if report.comparisons:
        lines += ["", "## Paired by task", "", "Differences are second minus first; p values are McNemar's.", ""]
        lines += _table(*comparison_rows(report.comparisons, report.holm_p))
    for column in report.columns:
        if column.example:
            lines += ["", f"## One rollout of {column.name}", "", *_fenced(render_rollout(column.example))]
    return printable("\n".join(lines) + "\n")


def _confusion(matrix: ConfusionMatrix) -> list[str]:
    rows = [[name, *map(str, counts)] for name, counts in zip(matrix.rows, matrix.counts, strict=True)]
    return _table(["verified", *matrix.columns], rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(map(_escape, headings)) + " |", "|---|" + "---:|" * (len(headings) - 1)]
    return lines + ["| " + " | ".join(map(_escape, row)) + " |" for row in rows]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _fact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _fenced(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks inside: a rollout may hold fences of its own."""
    longest = max((len(run) for run in _backtick_runs(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", text.rstrip("\n"), fence]


def _backtick_runs(text: str) -> Iterable[str]:
    return (run for run in "".join(char if char == "`" else " " for char in text).split())
