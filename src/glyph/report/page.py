"""The HTML page and the figures' files: everything inline, nothing fetched, every text escaped.

In: `Content`. Out: `report.html` and `figures/*.svg`. The template is `page.html.jinja`, its style and script
`page.css` and `page.js`. The page's content policy allows no request and no script but that one.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from glyph.evaluation.predicates import failed_visible_test, has_revised, is_solved
from glyph.evaluation.traces import Trace
from glyph.files import write_atomically
from glyph.report.curves import evaluation_series
from glyph.report.figures import Figure, build_figures
from glyph.report.format import LEGEND, UNDEFINED, format_interval, format_metric, format_value
from glyph.report.groups import Group
from glyph.report.rollout import printable
from glyph.report.runs import TrainingRun
from glyph.report.text import comparison_rows, metric_sections, provenance_lines
from glyph.report.theme import page_css
from glyph.report.tokens import Exhibit, text_exhibit, training_exhibits
from glyph.report.training import Content, Snapshot, from_sft

SECTIONS = {
    "learning": "Learning curves",
    "outcome": "Outcome",
    "prediction": "Predictions",
    "gate": "The gate",
    "paired": "Paired tests",
    "optimisation": "Optimisation",
    "time": "Time",
}
MAX_TEXT = 40_000
"""Characters of a rollout shown as text; a longer one is left out."""


def write_page(content: Content, folder: str | Path) -> list[Path]:
    """Write `report.html` and `figures/*.svg` into a folder, replacing earlier ones; returns the page's path first."""
    folder = Path(folder)
    figures = build_figures(content)
    page = write_atomically(folder / "report.html", render_page(content, figures))
    for figure in figures:
        write_atomically(folder / "figures" / f"{figure.name}.svg", figure.canvas.render(figure.name, True) + "\n")
    return [page, *(folder / "figures" / f"{figure.name}.svg" for figure in figures)]


def render_page(content: Content, figures: Sequence[Figure] | None = None) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=PackageLoader("glyph.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    here = Path(__file__).parent
    script = (here / "page.js").read_text("utf-8")
    figures = build_figures(content) if figures is None else figures
    return environment.get_template("page.html.jinja").render(
        report=content.report,
        style=Markup(page_css() + (here / "page.css").read_text("utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        sections=_sections(figures),
        svg=lambda figure: Markup(figure.canvas.render(f"svg-{figure.name}", False)),
        glance=_glance(content),
        provenance=provenance_lines(content.report.columns),
        legend=LEGEND,
        run_headings=RUN_HEADINGS,
        runs=[_run_cells(group, run) for group in content.groups for run in group.runs],
        configs=_configs(content.groups),
        facts=_facts(content),
        metrics=[
            (section, [(row[0].title, [format_metric(metric) for metric in row]) for row in rows])
            for section, rows in metric_sections(content.report.columns)
        ],
        comparisons=comparison_rows(content.report.comparisons, content.report.holm_p),
        exhibits=Markup(embed([exhibit.to_dict() for exhibit in exhibits_of(content)])),
    )


def _shown(value: Any) -> Any:
    """What the template prints: texts without control characters and lone surrogates."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def embed(data: Any) -> str:
    """JSON that is safe inside a script element: ASCII, without <, > and &."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def exhibits_of(content: Content) -> list[Exhibit]:
    """Training rollouts with token roles, then rollouts of the last evaluations and of trace files as text."""
    found = training_exhibits(content.groups)
    stored = [(snapshot.column.name, snapshot.traces) for snapshot in content.snapshots if snapshot.at == "last"]
    stored += [(f"{file.path.parent.name}/{file.path.name}", file.traces) for file in content.files]
    for place, traces in stored:
        shown = (text_exhibit(place, trace) for trace in _telling(traces))
        found += [exhibit for exhibit in shown if len(exhibit.text or "") <= MAX_TEXT]
    return found


def _telling(traces: Sequence[Trace]) -> list[Trace]:
    """The first rollout of each arm and kind, of which solved after a failure or revision is the most telling."""
    kinds: dict[tuple[str, int], Trace] = {}
    for trace in traces:
        kinds.setdefault((trace.arm or "", _kind(trace)), trace)
    return [kinds[key] for key in sorted(kinds)]


def _kind(trace: Trace) -> int:
    record = trace.scored
    if record is None:
        return 4
    troubled = has_revised(record) or failed_visible_test(record)
    return (0 if troubled else 1) if is_solved(record) else (2 if troubled else 3)


def _sections(figures: Sequence[Figure]) -> list[tuple[str, str, list[Figure]]]:
    """Anchor, title and figures of each section that has any."""
    found = [(key, title, [figure for figure in figures if figure.section == key]) for key, title in SECTIONS.items()]
    return [section for section in found if section[2]]


def _glance(content: Content) -> tuple[list[str], list[list[str]]]:
    """pass@1 of every group before and after with the paired difference; of plain trace files, their outcome."""
    if not content.groups:
        names = ("pass_at_1", "first_patch", "recovery", "prediction_accuracy")
        columns = content.report.columns
        headings = ["", *(columns[0].metrics[name].title for name in names if columns)]
        return headings, [[each.name, *(format_metric(each.metrics[name]) for name in names)] for each in columns]
    headings = ["group", "seeds", "tasks", "pass@1 before", "pass@1 after", "paired difference"]
    last = [snapshot for snapshot in content.snapshots if snapshot.at == "last"]
    return headings, [_glance_row(content, snapshot) for snapshot in last]


def _glance_row(content: Content, last: Snapshot) -> list[str]:
    """Before is the first evaluation of the group, else what SFT of the same arm came to."""
    same = [each for each in content.snapshots if each.group is last.group and each.split == last.split]
    sft = [each for each in content.snapshots if each.at == "last" and from_sft(each, last)]
    first = next((each for each in same if each.at == "first"), sft[0] if len(sft) == 1 else None)
    pairs = {(each.first, each.second): each for each in content.report.comparisons}
    pair = pairs.get((first.column.name, last.column.name)) if first else None
    difference = UNDEFINED
    if pair:
        difference = format_value(pair.difference, "difference")
        difference += " " + format_interval(pair.interval, "difference") + f" n={pair.tasks}"
    name = last.column.name.replace(f", step {last.step}", "")
    before, after = (_seed_mean(each) if each else UNDEFINED for each in (first, last))
    return [name, str(len(last.group.runs)), str(last.column.tasks), before, after, difference]


def _seed_mean(snapshot: Snapshot) -> str:
    series = evaluation_series(snapshot.group, snapshot.split, "pass_at_1")
    mean = dict(zip(series.steps, series.means, strict=True))[snapshot.step]
    place = f"{snapshot.group.stage.upper()} step {snapshot.step}"
    return f"{format_value(mean.mean, 'share')} {format_interval(mean.interval, 'share')} ({place})"


RUN_HEADINGS = ("group", "run", "stage", "seed", "scale", "model", "steps", "seconds", "hardware", "commit")


def _run_cells(group: Group, run: TrainingRun) -> list[str]:
    facts = run.manifest
    steps = run.training[-1].step if run.training else 0
    seconds = UNDEFINED if facts.seconds is None else f"{facts.seconds:.0f}"
    model, hardware = facts.model or UNDEFINED, _fact(facts.hardware) if facts.hardware else UNDEFINED
    middle = [facts.stage, str(facts.seed), facts.scale, model, str(steps), seconds]
    return [group.name, str(run.folder), *middle, hardware, facts.commit[:12]]


def _facts(content: Content) -> dict[str, str]:
    commits = sorted({run.manifest.commit for group in content.groups for run in group.runs})
    known = {"commit": ", ".join(commits)} if commits else {}
    return known | {name: _fact(value) for name, value in content.report.manifest.items() if name != "note"}


def _configs(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The resolved configuration of the first run of each group; the others differ in seed, names and places."""
    firsts = [(group, group.runs[0]) for group in groups]
    return [(f"{group.name}, seed {run.manifest.seed}", run.config_text) for group, run in firsts if run.config_text]


def _fact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
