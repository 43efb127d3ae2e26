"""Validate prepared task data: `python -m data.validate DIR [--tokenizer MODEL]`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from glyph.commands.console import fail, progress, say
from glyph.executor import Executor
from glyph.tasks.prompts import DEFAULT_PROMPTS, load_wording
from glyph.tasks.validation import Check, DataFolder, check_tokens, read_folder, validate

WORKERS = 2


def main(
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
        with Executor(workers=WORKERS) as executor:
            checks = list(validate(data, wording, executor.run, progress, WORKERS))
        if tokenizer is not None:
            checks.append(_token_check(data, tokenizer))
    except (ValueError, OSError) as error:
        fail(f"data.validate: {error}")
    _print(checks, folder, tokenizer, as_json)
    raise typer.Exit(any(check.faults for check in checks))


def _token_check(data: DataFolder, name: str) -> Check:
    from transformers import AutoTokenizer

    from glyph.chat import prepare_tokenizer, render

    tokenizer = prepare_tokenizer(AutoTokenizer.from_pretrained(name), set_eos=True)
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
        say(f"{folder} is valid; next: bash scripts/evaluate.sh a MODEL validation")


if __name__ == "__main__":
    typer.run(main)
