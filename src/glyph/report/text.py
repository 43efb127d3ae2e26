"""The report in a terminal: rich tables with n and 95% interval; plain text where the output is no terminal."""

from collections.abc import Iterable, Sequence
from typing import TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from glyph.evaluation.compare import Comparison
from glyph.evaluation.metrics import ConfusionMatrix, Metric
from glyph.report.data import Column, Report, pair_name
from glyph.report.format import LEGEND, UNDEFINED, counted, format_interval, format_metric, format_p, format_value
from glyph.report.rollout import printable

PLAIN_WIDTH = 10_000


def make_console(file: TextIO | None = None) -> Console:
    """A console that neither wraps nor decorates its tables when nobody watches."""
    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=PLAIN_WIDTH, no_color=True)


def put(content: RenderableType, console: Console) -> None:
    """Print; where nobody watches, without the blanks that tables leave at the ends of lines."""
    if console.is_terminal:
        console.print(content)
        return
    with console.capture() as captured:
        console.print(content)
    console.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def print_report(report: Report, console: Console) -> None:
    put(Text(printable(report.title), style="bold"), console)
    for line in provenance_lines(report.columns):
        put(Text(line), console)
    for note in report.notes:
        put(Text(printable(f"note: {note}")), console)
    if "note" in report.manifest:
        put(Text(f"NOTE: {report.manifest['note']}", style="bold"), console)
    put(Text(LEGEND), console)
    for section, rows in metric_sections(report.columns):
        put(metric_table(section, rows, [column.name for column in report.columns], console), console)
    for column in report.columns:
        if column.confusion.total:
            put(confusion_table(f"{column.name}: verified (rows) by predicted", column.confusion, console), console)
            if column.confusion_published != column.confusion:
                title = f"{column.name}: published_label (rows) by predicted"
                put(confusion_table(title, column.confusion_published, console), console)
    if report.comparisons:
        put(comparison_table(report.comparisons, report.holm_p, console), console)


def provenance_lines(columns: Sequence[Column]) -> list[str]:
    """What was read, column by column; errors and skipped lines are never silent."""
    lines = []
    for column in columns:
        facts = [*column.variants, *column.splits, *column.models]
        more = f" and {counted(len(column.more_sources), 'more file')}" if column.more_sources else ""
        lines.append(
            f"{column.name}: {column.source}{more} ({', '.join(facts) or 'no record'}): "
            f"{counted(column.tasks, 'task')}, {counted(len(column.rollouts), 'rollout')} scored; "
            f"{errors_phrase(column)}"
        )
    for source, skipped in {column.source: column.skipped for column in columns}.items():
        if skipped:
            numbers = ", ".join(str(bad.line) for bad in skipped)
            lines.append(f"{source}: bad lines skipped: {len(skipped)} (line {numbers})")
    return [printable(line) for line in lines]


def errors_phrase(column: Column) -> str:
    """How many errors, and the text that most of them share with its count."""
    phrase = f"errors excluded: {column.errors}"
    if column.commonest_error is None:
        return phrase
    text, count = column.commonest_error
    return f"{phrase}, {count} of them: {printable(text)}"


def metric_sections(columns: Sequence[Column]) -> list[tuple[str, list[list[Metric]]]]:
    """Rows of metrics (one a column) under their section; rows that say nothing in any column are left out.

    A row says nothing when it is undefined everywhere in a section of a gated arm, or a zero count of a kind of
    protocol error. The JSON form keeps them all.
    """
    sections: dict[str, list[list[Metric]]] = {}
    for name in columns[0].metrics if columns else ():
        row = [column.metrics[name] for column in columns]
        if not _says_nothing(row):
            sections.setdefault(row[0].section, []).append(row)
    return list(sections.items())


def _says_nothing(row: Sequence[Metric]) -> bool:
    section = row[0].section
    if section == "Protocol errors":
        return not any(metric.numerator for metric in row)
    if section == "Prediction by class":
        return not any(metric.value for metric in row)
    return section in {"Prediction", "Gate", "Never revised / revised"} and all(m.value is None for m in row)


def metric_table(title: str, rows: Iterable[Sequence[Metric]], names: Sequence[str], console: Console) -> Table:
    table = _table(title, console)
    table.add_column("metric")
    for name in names:
        table.add_column(Text(printable(name)), justify="right")
    for row in rows:
        table.add_row(row[0].title, *(format_metric(metric) for metric in row))
    return table


def confusion_table(title: str, matrix: ConfusionMatrix, console: Console) -> Table:
    table = _table(title, console)
    table.add_column("verified")
    for name in matrix.columns:
        table.add_column(name, justify="right")
    for name, counts in zip(matrix.rows, matrix.counts, strict=True):
        table.add_row(name, *map(str, counts))
    return table


def comparison_table(comparisons: Sequence[Comparison], holm_p: dict[str, float], console: Console) -> Table:
    """pass@1 of both sides on their common tasks, the paired difference, and the tests."""
    table = _table("Paired by task (second minus first)", console)
    headings, rows = comparison_rows(comparisons, holm_p)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "pair" else "right", no_wrap=heading == "difference")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def comparison_rows(comparisons: Sequence[Comparison], holm_p: dict[str, float]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells. `only` counts the tasks that the first and the second side alone solved."""
    headings = ["pair", "tasks", "first", "second", "difference", "only", "exact p", "corrected p"]
    rows = [_comparison_cells(comparison) for comparison in comparisons]
    if len(comparisons) > 1:
        headings.append("Holm p")
        for comparison, row in zip(comparisons, rows, strict=True):
            row.append(format_p(holm_p.get(pair_name(comparison))))
    return headings, rows


def _comparison_cells(comparison: Comparison) -> list[str]:
    test = comparison.mcnemar
    difference = format_value(comparison.difference, "difference")
    return [
        pair_name(comparison),
        str(comparison.tasks),
        format_value(comparison.first_pass.value, "share"),
        format_value(comparison.second_pass.value, "share"),
        f"{difference} {format_interval(comparison.interval, 'difference')}".rstrip(),
        f"{test.only_first} : {test.only_second}" if test else UNDEFINED,
        format_p(test.p_exact if test else None),
        format_p(test.p_corrected if test else None),
    ]


def _table(title: str, console: Console) -> Table:
    shape = box.SIMPLE_HEAD if console.is_terminal else None
    title = title if console.is_terminal else f"\n{title}"
    return Table(title=Text(title), title_justify="left", box=shape, show_edge=False, pad_edge=False)
