"""Prepare the task data: `python -m data.prepare [--tasks mbpp|mini] [--source FILE] [--output DIR]`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from glyph.commands.console import fail, progress, say
from glyph.executor import Executor
from glyph.records import Verdict
from glyph.tasks.demonstrations import FAULT_LIMITS
from glyph.tasks.preparation import check_expected, plan, record_digests, write_data
from glyph.tasks.prompts import DEFAULT_PROMPTS, load_wording

NO_SOURCE = 3


def main(
    tasks: Annotated[str, typer.Option(help="task set: mbpp or mini")] = "mbpp",
    source: Annotated[
        Path | None, typer.Option(help="a copy of MBPP (JSON lines or parquet); default: $MBPP_SOURCE, else the hub")
    ] = None,
    output: Annotated[Path, typer.Option(help="the data folder to write")] = Path("data"),
    prompts: Annotated[Path, typer.Option(help="the wording")] = DEFAULT_PROMPTS,
    record: Annotated[
        bool, typer.Option("--record-digests", help="make the result the committed one for its wording")
    ] = False,
) -> None:
    """Write the task files and SFT traces of both arms, and a manifest. Exit 2: bad input; 3: no MBPP to be had."""
    copy = source or (Path(os.environ["MBPP_SOURCE"]) if os.environ.get("MBPP_SOURCE") else None)
    try:
        wording = load_wording(prompts)
        with Executor() as executor:

            def run(code: str, tests: str) -> Verdict:
                return executor.run(code, tests, FAULT_LIMITS)

            prepared = plan(tasks, copy, run, lambda plans: progress(plans, "demonstrations", 212))
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


if __name__ == "__main__":
    typer.run(main)
