"""`glyph report`, `passk`, `compare` and `show`: trace files and run folders in, tables, JSON or a page out.

Owns the command line of the analysis and nothing else: reading is `evaluation/traces.py`, numbers are
`evaluation/`, forms are `report/`. Bad input is one line on stderr and exit code 2.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from glyph.commands.console import USAGE_ERROR
from glyph.evaluation.compare import Comparison, UnpairedError, compare
from glyph.evaluation.metrics import pass_at_k_metric
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.traces import (
    DEMONSTRATIONS,
    Trace,
    TraceError,
    TraceFile,
    arm_folders,
    read_traces,
    trace_to_dict,
)
from glyph.report.attached import attach_evaluations
from glyph.report.data import REPORT_SCHEMA_VERSION, Column, Report, columns_of, rollouts_of
from glyph.report.format import LEGEND, counted, format_metric
from glyph.report.markdown import write_report
from glyph.report.page import write_page
from glyph.report.rollout import printable, render_rollout
from glyph.report.runs import find_runs, has_traces, read_run
from glyph.report.text import comparison_table, errors_phrase, make_console, metric_table, print_report, put
from glyph.report.training import Content, build_content

EXIT_NOTHING_SCORED = 1
NO_MODEL = "no model was run: a script played demonstrations, and these figures are no result of a model"

TracePath = Annotated[Path, typer.Argument(help="A trace file (.jsonl or .jsonl.gz), or the run folder that holds it.")]
RunPaths = Annotated[list[Path], typer.Argument(help="Runs of the engine, a folder of them, or trace files.")]
OUTPUT_HELP = "Where report.html, report.md, report.json and figures/ go; beside training runs if not given."
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="Skip bad lines; their numbers are reported.")]


def register(app: typer.Typer) -> None:
    """Add the commands of the analysis to the application."""
    app.command("report")(report)
    app.command("passk")(passk)
    app.command("compare")(compare_files)
    app.command("show")(show)


def report(
    traces: RunPaths,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=OUTPUT_HELP)] = None,
    title: Annotated[str | None, typer.Option(help="The report's title.")] = None,
    lenient: Lenient = False,
    as_json: Json = False,
) -> None:
    """Every metric with n and 95% interval; learning curves and paired tests of training runs; an HTML page."""
    with _one_line_errors():
        if output is not None and output.is_file():
            raise TraceError(f"--output must be a folder, {output} is a file")
        folders = [folder for given in traces for folder in find_runs(given)]
        plain = [path for given in traces for path in _trace_places(given)]
        read = [read_traces(path, lenient) for given in plain for path in arm_folders(given) or [given]]
        runs, files = attach_evaluations([read_run(folder) for folder in folders], read)
        title = title if title is not None else "Training runs" if runs else "Rollouts"
        content = build_content(runs, files, title, run_facts(files), lenient)
        output = output or _default_output(folders)
        written = _write(content, output) if output is not None else ()
    if as_json:
        _print_json(content.report.to_dict())
    else:
        print_report(content.report, make_console())
    for path in written:
        typer.echo(f"wrote {path}", err=as_json)
    for shown in sorted(content.shown, key=lambda column: column.example is None)[:1]:
        _next(as_json, "show", shown.source, "--task", (shown.example and shown.example.task_id) or "TASK")
    if content.report.columns:
        _refuse_all_errors(content.report)


def _trace_places(given: Path) -> list[Path]:
    """Where to read traces: what was given, unless it is a run or a folder of runs; there, beside the runs."""
    runs = find_runs(given)
    if not runs:
        return [given]
    return [] if runs == [given] else [child for child in sorted(given.iterdir()) if has_traces(child)]


def _default_output(folders: list[Path]) -> Path | None:
    """Beside what was read: in the one run, or next to several; None for trace files, which are only printed."""
    if not folders:
        return None
    parents = {folder.resolve().parent for folder in folders}
    if len(folders) > 1 and len(parents) > 1:
        raise TraceError("these runs lie in different folders; say where the report goes with --output")
    return (folders[0] if len(folders) == 1 else folders[0].parent) / "report"


def _write(content: Content, output: Path) -> tuple[Path, ...]:
    page, *figures = write_page(content, output)
    return page, *write_report(content.report, output), *([figures[0].parent] if figures else [])


def _refuse_all_errors(content: Report) -> None:
    """A report without one scored rollout is written, but it is no success."""
    if any(column.rollouts for column in content.columns):
        return
    said = "; ".join(f"{column.name}: {errors_phrase(column)}" for column in content.columns)
    typer.echo(f"error: no rollout was scored; {printable(said)}", err=True)
    raise typer.Exit(EXIT_NOTHING_SCORED)


def run_facts(files: list[TraceFile]) -> dict[str, Any]:
    """How the traces came about: from the manifest beside them (or a folder above), or from eval's config.toml."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for folder in (file.path.parent, file.path.parent.parent):
            facts = _facts_of(folder)
            if facts:
                found[str(folder)] = facts
                break
    facts = next(iter(found.values())) if len(found) == 1 else dict(found)
    models = {trace.model for file in files for trace in file.traces}
    if DEMONSTRATIONS in models or any(each.get("model") == DEMONSTRATIONS for each in found.values()):
        facts["note"] = NO_MODEL
    return facts


def _facts_of(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        manifest = json.loads((folder / "manifest.json").read_text())
        kept = ("commit", "versions", "executor", "machine", "wording_digest", "data")
        plan = manifest.get("plan") or {name: manifest[name] for name in ("model", "arm", "split") if name in manifest}
        return {**plan, **{name: manifest[name] for name in kept if name in manifest}}
    with suppress(OSError, ValueError):
        config = tomllib.loads((folder / "config.toml").read_text())
        return {name: config[name] for name in ("model", "sampling", "taskset") if name in config}
    return {}


def passk(
    traces: TracePath,
    k: Annotated[str, typer.Option("--k", help="Comma-separated numbers of samples.")] = "1,5,10",
    lenient: Lenient = False,
    as_json: Json = False,
) -> None:
    """pass@k by the unbiased estimator; a task with fewer than k samples is in no denominator."""
    with _one_line_errors():
        wanted = _parse_ks(k)
        file = read_traces(traces, lenient)
        columns = columns_of(file)
        rows = [[pass_at_k_metric(column.rollouts, each) for column in columns] for each in wanted]
        note = run_facts([file]).get("note")
    if as_json:
        values = {
            column.name: {metric.name: metric.to_dict() for metric in (row[index] for row in rows)}
            for index, column in enumerate(columns)
        }
        errors = {column.name: column.errors for column in columns}
        _print_analysis(note, {"source": str(file.path), "errors": errors, "pass_at_k": values})
        return
    _print_note(note)
    console = make_console()
    put(metric_table("pass@k (n = tasks)", rows, [column.name for column in columns], console), console)
    typer.echo(LEGEND)
    for column in columns:
        typer.echo(_samples_line(column))
    _report_skipped([file])
    _next(as_json, "report", file.path)


def compare_files(
    first: TracePath,
    second: TracePath,
    lenient: Lenient = False,
    as_json: Json = False,
) -> None:
    """Pair two trace files by task: exact and corrected McNemar, paired bootstrap of the pass@1 difference."""
    with _one_line_errors():
        files = [read_traces(path, lenient) for path in (first, second)]
        names = (f"first ({_arm_of(files[0])})", f"second ({_arm_of(files[1])})")
        if files[0].path.samefile(files[1].path):
            raise TraceError(f"{files[1].path}: both sides are this file; compare needs two runs")
        result = compare(_rollouts(files[0]), _rollouts(files[1]), names)
        note = run_facts(files).get("note")
    if as_json:
        _print_analysis(note, result.to_dict())
        return
    typer.echo(f"first:  {files[0].path}\nsecond: {files[1].path}")
    _print_note(note)
    console = make_console()
    put(comparison_table([result], {}, console), console)
    for line in _comparison_remarks(result):
        typer.echo(line)
    _report_skipped(files)
    _next(as_json, "report", *(file.path for file in files))


def show(
    traces: TracePath,
    task: Annotated[str, typer.Option("--task", "-t", help="The task id; its number is enough if that is unique.")],
    sample: Annotated[int, typer.Option("--sample", help="Which rollout of the task, from 0.")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Show the demonstrations in the prompt, too.")] = False,
    lenient: Lenient = False,
    as_json: Json = False,
) -> None:
    """One rollout as a person reads it: turns, patches, verdicts, predicted against verified labels."""
    with _one_line_errors():
        file = read_traces(traces, lenient)
        samples = _find_task(file, task)
        if not 0 <= sample < len(samples):
            raise TraceError(
                f"{file.path}: task {task} has {counted(len(samples), 'rollout')}; --sample must be below that"
            )
        facts = run_facts([file])
    trace, note = _with_model(samples[sample], facts), facts.get("note")
    if as_json:
        _print_analysis(note, {**trace_to_dict(trace), "demonstration_messages": list(trace.demonstrations)})
        return
    _print_note(note)
    typer.echo(render_rollout(trace, full))
    _report_skipped([file])
    if sample + 1 < len(samples):
        _next(as_json, "show", file.path, "--task", task, "--sample", sample + 1)
    else:
        _next(as_json, "report", file.path)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn what bad input raises into one line and exit code 2. Faults of the program keep their traceback."""
    try:
        yield
    except (TraceError, UnpairedError, OSError) as error:
        typer.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)
        raise typer.Exit(USAGE_ERROR) from None


def _parse_ks(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise TraceError(f"--k: expected positive whole numbers such as 1,5,10; got {text!r}")
    return sorted({int(part) for part in parts})


def _rollouts(file: TraceFile) -> tuple[Rollout, ...]:
    _arm_of(file)
    return rollouts_of(file.traces)


def _arm_of(file: TraceFile) -> str:
    """The one arm of a file.

    Raises:
        TraceError: the file mixes arms, so that a task would be paired with both at once.
    """
    columns = columns_of(file)
    if len(columns) > 1:
        held = " and ".join(column.name for column in columns)
        raise TraceError(f"{file.path}: holds {held}; compare needs one arm a file (report compares the arms of one)")
    return columns[0].name


def _find_task(file: TraceFile, task: str) -> list[Trace]:
    """The rollouts of a task, in file order; a bare number finds the one task whose id ends in that number."""
    ids = list(dict.fromkeys(trace.task_id for trace in file.traces if trace.task_id is not None))
    number = _number_at_end(task) if re.fullmatch("[0-9]+", task) else None
    matches = [name for name in ids if name == task] or [
        name for name in ids if number is not None and _number_at_end(name) == number
    ]
    if len(matches) != 1:
        problem = f"several tasks match {task!r}" if matches else f"no task {task!r}"
        problem = problem if task.strip() else "--task is empty: give a task id or its number"
        listed = ", ".join((matches or ids)[:5]) + (" …" if len(matches or ids) > 5 else "")
        raise TraceError(f"{file.path}: {problem}; the file has {listed or 'no task ids'}")
    return [trace for trace in file.traces if trace.task_id == matches[0]]


def _number_at_end(name: str) -> str | None:
    """The whole number that ends a name, without leading zeros: `157` of `mini-00157`."""
    found = re.search("[0-9]+$", name)
    return None if found is None else found.group().lstrip("0") or "0"


def _with_model(trace: Trace, facts: dict[str, Any]) -> Trace:
    """The trace with the model of its run's facts where it names none itself (a Verifiers trace)."""
    model = facts.get("model")
    return replace(trace, model=model) if trace.model is None and isinstance(model, str) else trace


def _comparison_remarks(result: Comparison) -> Iterator[str]:
    yield f"first pass@1  {format_metric(result.first_pass)}"
    yield f"second pass@1 {format_metric(result.second_pass)}"
    if result.no_mcnemar:
        yield f"no McNemar test: {result.no_mcnemar}; it needs one outcome a task. Read the bootstrap interval."
    for name, tasks in (("first", result.only_in_first), ("second", result.only_in_second)):
        if tasks:
            yield f"{counted(len(tasks), 'task')} only in {name}, left out: {', '.join(tasks)}"


def _samples_line(column: Column) -> str:
    counts = f"{counted(len(column.rollouts), 'scored rollout')} of {counted(column.tasks, 'task')}"
    return f"{column.name}: {counts}; {errors_phrase(column)}"


def _report_skipped(files: list[TraceFile]) -> None:
    for file in files:
        for bad in file.skipped:
            typer.echo(f"skipped {file.path}:{bad.line}: {printable(bad.reason)}", err=True)


def _print_note(note: str | None) -> None:
    if note:
        typer.echo(f"NOTE: {note}")


def _print_analysis(note: str | None, data: dict[str, Any]) -> None:
    """JSON with its version and the note on the run, null where there is none. A trace has its own version."""
    _print_json({"schema_version": REPORT_SCHEMA_VERSION, **data, "note": note})


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=1, default=str))


def _next(as_json: bool, *words: object) -> None:
    if not as_json:
        typer.echo(f"next: glyph {shlex.join(map(str, words))}")
