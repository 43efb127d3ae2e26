"""`python -m study run | rejoin | runs`: what scripts/study.sh starts."""

import json
import shlex
import sys
import time
from collections.abc import Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from glyph.commands.console import fail, say
from glyph.config import Stage, load_config
from glyph.evaluation.traces import read_traces, write_traces
from glyph.files import write_atomically
from glyph.local.runs.durable import FileLock
from glyph.tasks.validation import data_manifest
from study.matrix import Matrix, MatrixError, load_matrix, quarters
from study.pieces import Kind, Piece, Plan, pieces
from study.publish import Publisher, drop_unfinished, is_published, pack
from study.runner import PACKING_SECONDS, Limits, Runner, cut_short, not_played, steps_done, unplayable, write_plan
from study.slim import rejoin as put_back
from study.slim import task_texts

ROOT = Path(__file__).parents[1]
OWNED = ("rl.steps", "checkpoints.", "evaluation.every")
SECONDS_A_MINUTE = 60
UNFINISHED = 3
STARTED = time.monotonic()
app = typer.Typer(help="The study: its runs, and their results.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def run(
    work: Annotated[Path, typer.Option(help="where runs and weights go")],
    results: Annotated[Path, typer.Option(help="where what is published goes, and the archives beside it")],
    model: Annotated[str, typer.Option(help="the base model: a folder or a hub id")],
    data: Annotated[Path, typer.Option(help="a prepared data folder")],
    scale: Annotated[str, typer.Option(help="small or mini")] = "small",
    runs: Annotated[str, typer.Option(help="names separated by commas; all without any")] = "",
    visit: Annotated[int | None, typer.Option(help="the runs of this visit of study/matrix.toml")] = None,
    steps: Annotated[int | None, typer.Option(help="of every run; a multiple of 4")] = None,
    until: Annotated[int, typer.Option(help="the quarter of these steps after which runs end", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="runs trained at once", min=1)] = 2,
    evaluations: Annotated[int, typer.Option(help="evaluations at once beside them", min=0)] = 1,
    minutes: Annotated[float | None, typer.Option(help="from now to the end, archives written")] = None,
    reserve: Annotated[float, typer.Option(help="seconds kept for the last evaluations", min=0)] = 240,
    num_tasks: Annotated[int, typer.Option(help="the first n test tasks; 0 for all", min=0)] = 0,
    evaluate_every: Annotated[int, typer.Option(help="steps between test evaluations; 0: every quarter", min=0)] = 0,
    sft: Annotated[str, typer.Option(help="further settings of SFT, key=value key=value")] = "",
    rl: Annotated[str, typer.Option(help="further settings of RL")] = "",
    python: Annotated[str, typer.Option(help="the command that runs our modules")] = sys.executable,
    commit: Annotated[str, typer.Option(help="of the sources, where this copy does not know it")] = "",
) -> None:
    """Make what is missing of the study, in order of priority; the same command goes on after whatever ended it."""
    matrix = load_matrix()
    try:
        settings = (sft.split(), rl.split())
        plan = _plan(matrix, work, scale, model, data, runs, visit, steps, settings, num_tasks, evaluate_every, until)
        limits = Limits(jobs, evaluations, minutes and minutes * SECONDS_A_MINUTE, reserve)
        _check(plan, matrix, limits)
        _check_places(plan, results.resolve())
        write_plan(plan, json.dumps(asdict(plan), default=str) + "\n")
        lock = _claim(plan.work)
        results.mkdir(parents=True, exist_ok=True)
        write_atomically(results / ".writable", "").unlink()
        drop_unfinished(results, [piece.name for piece in pieces(plan, matrix)])
    except (ValueError, OSError) as error:
        fail(f"study: {error}")
    data_name = "data/mini" if scale == "mini" else "data"
    places = {plan.work: "study", plan.data: data_name, ROOT: "."}
    if Path(plan.model).is_dir():
        places[Path(plan.model)] = Path(plan.model).name
    publisher = Publisher(results, places, {"source_commit": commit} if commit else {})
    publish = partial(_publish, publisher)
    runner = Runner(plan, matrix, limits, shlex.split(python), _say, publish, started=STARTED)
    left = runner.run()
    _close(plan, matrix, publisher, results, left, runner.failed)
    lock.release()


def _plan(
    matrix: Matrix,
    work: Path,
    scale: str,
    model: str,
    data: Path,
    runs: str,
    visit: int | None,
    steps: int | None,
    settings: tuple[list[str], list[str]],
    num_tasks: int,
    evaluate_every: int,
    until: int,
) -> Plan:
    """Raises: ValueError: an unknown scale, run or visit, steps without quarters, or an end at none of them."""
    if scale not in matrix.scale:
        raise MatrixError(f"--scale must be one of {', '.join(matrix.scale)}, got {scale!r}")
    chosen = matrix.select([name for name in runs.split(",") if name], visit)
    number = steps or matrix.scale[scale].steps
    of = None if visit is None else matrix.visit_of(visit)
    asked = f"--until {until}" if until or not of else f"visit {visit}, until = {of.until}"
    until = until or (of.until if of else 0)
    if until not in (0, *quarters(number)):
        known = ", ".join(map(str, quarters(number)))
        raise MatrixError(f"{asked}: no quarter of {number} steps; give --until one of {known}")
    sft, rl = map(tuple, settings)
    folder = str(Path(model).resolve()) if Path(model).is_dir() else model
    names = tuple(run.name for run in chosen)
    return Plan(
        work=work.resolve(),
        scale=scale,
        model=folder,
        data=data.resolve(),
        runs=names,
        steps=number,
        sft=sft,
        rl=rl,
        num_tasks=num_tasks,
        untrained=of.untrained if of else None,
        evaluate_every=evaluate_every,
        until=until % number,  # the last quarter is no end of its own
    )


def _check(plan: Plan, matrix: Matrix, limits: Limits) -> None:
    """Refuse what every run would refuse, before the first begins. Raises: ValueError, OSError."""
    if plan.evaluate_every % plan.quarter:
        raise ValueError(f"--evaluate-every {plan.evaluate_every}: expected a multiple of {plan.quarter}, a quarter")
    if limits.seconds is not None and not PACKING_SECONDS < limits.reserve_seconds < limits.seconds:
        raise ValueError(
            f"--reserve {limits.reserve_seconds:g}: expected seconds between {PACKING_SECONDS:g}, which packing takes, "
            f"and the {limits.seconds:g} of --minutes"
        )
    if data_manifest(plan.data) is None:
        raise ValueError(f"{plan.data}: no prepared data; run python -m data.prepare --output {plan.data}")
    for text in (*plan.sft, *plan.rl):
        if "=" not in text or text.startswith(OWNED):
            raise ValueError(f"{text!r}: expected key=value, and none of {', '.join(OWNED)}, which are the study's own")
    for piece in pieces(plan, matrix):
        if piece.kind in (Kind.SFT, Kind.RL):
            settings = [text for text in piece.arguments if "=" in text]
            stage: Stage = "sft" if piece.kind is Kind.SFT else "rl"
            config = load_config(stage, plan.scale, piece.arguments[1], (), settings, model=plan.model)
            if plan.until and stage == "rl" and config.optimiser.schedule != "constant":
                raise ValueError(
                    f"--until {plan.until} with optimiser.schedule={config.optimiser.schedule}: runs that end early "
                    "are the first part of longer ones with a constant learning rate alone"
                )


def _check_places(plan: Plan, results: Path) -> None:
    """What is in the results folder is packed, and what is not whole there is made anew. Raises: ValueError."""
    for name, place in (("--work", plan.work), ("--data", plan.data), ("the repository", ROOT)):
        if place.is_relative_to(results) or (place != ROOT and results.is_relative_to(place)):
            raise ValueError(f"--results {results}: expected a folder of its own, apart from {name}, {place}")


def _claim(work: Path) -> FileLock:
    """Raises: ValueError: another runner is at work in the folder."""
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / ".lock")
    if not lock.acquire():
        raise ValueError(f"{work}: {lock.holder()} makes this study already")
    return lock


def _say(text: str) -> None:
    seconds = int(time.monotonic() - STARTED)
    say(f"[{seconds // 60:>2}:{seconds % 60:02d}] {text}")


def _publish(publisher: Publisher, piece: Piece) -> None:
    """A fault of a file must not end the runs that go on."""
    try:
        publisher.publish(piece)
    except (ValueError, OSError) as error:
        publisher.faults[piece.name] = str(error)
        _say(f"{piece.name}: not published: {error}")
    else:
        publisher.faults.pop(piece.name, None)


def _close(
    plan: Plan, matrix: Matrix, publisher: Publisher, results: Path, left: list[Piece], failed: Set[str]
) -> None:
    """Publish what there is, pack it, and say what is missing."""
    for piece in pieces(plan, matrix):
        if piece.name not in publisher.done and (piece.is_training or not is_published(results / piece.name)):
            _publish(publisher, piece)
    try:
        for archive in pack(results, results.parent / f"{results.name}-archives"):
            _say(f"wrote {archive} ({archive.stat().st_size / 2**20:.1f} MiB)")
    except (ValueError, OSError) as error:
        publisher.faults["the archives"] = str(error)
        _say(f"not packed: {error}")
    for piece in cut_short(left):
        _say(f"cut short: {piece.name}: {steps_done(piece.folder)} of {plan.last_step} steps")
    for piece in not_played(left):
        _say(f"not played: {piece.name}")
    for name in sorted(failed):
        _say(f"failed: {name}: see {plan.work / 'logs' / name}.log")
    gone = unplayable(left)
    for piece in gone:
        _say(f"cannot be played any more: {piece.name}: its checkpoint is gone")
    for name, fault in publisher.faults.items():
        _say(f"not published: {name}: {fault}")
    if len(left) > len(gone):
        _say("the same command goes on with what is missing")
    if left or publisher.faults:
        raise typer.Exit(1 if failed or gone or publisher.faults else UNFINISHED)
    _say(f"all done; results in {results}")


@app.command("rejoin")
def rejoin_traces(
    traces: Annotated[Path, typer.Argument(help="a slim trace file, or the folder that holds it")],
    data: Annotated[Path, typer.Argument(help="the prepared data folder that holds the texts")],
    output: Annotated[Path, typer.Argument(help="the trace file to write, .jsonl or .jsonl.gz")],
) -> None:
    """Put the tasks' prompts and tests back into published traces."""
    try:
        read = read_traces(traces).traces
        texts: dict[str, Any] = {}
        for arm, split in sorted({(t.arm, t.split) for t in read if t.arm and t.split}):
            texts |= task_texts(data, arm, split)
        write_traces(output, [put_back(trace, texts) for trace in read])
    except (ValueError, OSError) as error:
        fail(f"rejoin: {error}")
    say(f"wrote {output}\nnext: glyph report {output}")


@app.command("runs")
def list_runs() -> None:
    """The runs, what they start from, and their settings."""
    for each in load_matrix().runs():
        say(f"{each.name:22} {each.sft.name:14} {' '.join(each.spec.settings)}".rstrip())


if __name__ == "__main__":
    app()
