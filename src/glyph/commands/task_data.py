"""`glyph prepare` and `glyph validate` (also `python -m data.prepare`, `python -m data.validate`): the task data."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from glyph.commands.console import fail, progress, say
from glyph.executor import Executor
from glyph.records import Verdict
from glyph.tasks.demonstrations import FAULT_LIMITS
from glyph.tasks.preparation import check_expected, plan, record_digests, write_data
from glyph.tasks.prompts import DEFAULT_PROMPTS, load_wording
from glyph.tasks.validation import Check, DataFolder, check_tokens, read_folder, validate
from glyph.variants import parse_variant

NO_SOURCE = 3
WORKERS = 2


def register(app: typer.Typer) -> None:
    """Add the commands of the task data to the application."""
    app.command("prepare")(prepare_data)
    app.command("validate")(validate_data)


def prepare_data(
    tasks: Annotated[
        str, typer.Option(help="task set: mbpp, mini, or module:function for one of your own (docs/extending.md)")
    ] = "mbpp",
    source: Annotated[
        Path | None,
        typer.Option(
            help="a copy of MBPP (JSON lines or parquet); default: $MBPP_SOURCE, else the hub; a task set of your own"
            " gets it as it is"
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="the data folder to write")] = Path("data"),
    prompts: Annotated[Path, typer.Option(help="the wording")] = DEFAULT_PROMPTS,
    variant: Annotated[
        str,
        typer.Option(
            help="the grammar of Arm B's SFT traces: standard, ungated, detailed_prediction(level=index|value)"
        ),
    ] = "standard",
    record: Annotated[
        bool, typer.Option("--record-digests", help="make the result the committed one for its wording")
    ] = False,
) -> None:
    """Write the task files and SFT traces of both arms, and a manifest. Exit 2: bad input; 3: no MBPP to be had."""
    if tasks == "mbpp" and source is None and os.environ.get("MBPP_SOURCE"):
        source = Path(os.environ["MBPP_SOURCE"])
    try:
        wording = load_wording(prompts)
        output.mkdir(parents=True, exist_ok=True)  # fail before the work where it cannot be written
        with Executor() as executor:

            def run(code: str, tests: str) -> Verdict:
                return executor.run(code, tests, FAULT_LIMITS)

            shown = parse_variant(variant)
            prepared = plan(tasks, source, run, lambda plans, n: progress(plans, "demonstrations", n), shown)
            manifest = write_data(prepared, output, wording, run)
        if record:
            record_digests(manifest)
        verdict = check_expected(manifest)
    except ConnectionError as error:
        fail(f"data.prepare: {error}", NO_SOURCE)
    except (ValueError, OSError) as error:
        fail(f"data.prepare: {error}")
    say(f"{prepared.task_set}: {manifest['counts']}; Arm B's labels {manifest['arm_b_label_histogram']}; {verdict}")
    say(f"wrote {output}/manifest.json and {len(manifest['files'])} files")
    say(f"next: python -m data.validate {output}")


def validate_data(
    folder: Annotated[Path, typer.Argument(help="the data folder")] = Path("data"),
    tokenizer: Annotated[
        str | None, typer.Option(help="a model folder or hub id: also check the traces' token limit")
    ] = None,
    prompts: Annotated[Path, typer.Option(help="the wording that the data were made with")] = DEFAULT_PROMPTS,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON on stdout and nothing else there")] = False,
) -> None:
    """Execute every gold solution, replay every trace and check what the manifest claims; exit 1 on a fault."""
    try:
        data, wording = read_folder(folder), load_wording(prompts)
        loaded = _load_tokenizer(tokenizer) if tokenizer is not None else None
        with Executor(workers=WORKERS) as executor:
            checks = list(validate(data, wording, executor.run, progress, WORKERS))
        if loaded is not None:
            checks.append(_token_check(data, loaded))
    except (ValueError, OSError) as error:
        fail(f"data.validate: {error}")
    _print(checks, folder, tokenizer, as_json)
    raise typer.Exit(any(check.faults for check in checks))


def _load_tokenizer(name: str) -> Any:
    from glyph.local.inference.loading import load_tokenizer

    return load_tokenizer(name)


def _token_check(data: DataFolder, tokenizer: Any) -> Check:
    from glyph.chat import render

    return check_tokens(data, lambda messages: len(render(tokenizer, messages).token_ids))


def _print(checks: list[Check], folder: Path, tokenizer: str | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
        return
    for check in checks:
        state = "ok" if not check.faults else f"{len(check.faults)} FAULTS"
        say(f"{state:>9}  {check.name}: {check.checked}{'; ' + check.note if check.note else ''}")
        for line in check.faults[:20]:
            say(f"           {line}")
    if tokenizer is None:
        say("           token limit not checked: give --tokenizer MODEL")
    if any(check.faults for check in checks):
        say(f"{folder} is not valid; next: python -m data.prepare --output {folder}")
    else:
        where = "" if folder == Path("data") else f"DATA={folder} "
        say(f"{folder} is valid; next: {where}bash scripts/evaluate.sh a MODEL validation")
