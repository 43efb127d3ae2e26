"""`glyph doctor`: what this machine lacks for the study at the published scale, and how to mend it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from glyph.commands.console import fail, say


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    config: Annotated[
        list[Path] | None, typer.Option(help="a config of PRIME-RL that is to run; repeatable; default: configs/paper")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="the start model's folder, from glyph make-base")] = None,
    data: Annotated[Path, typer.Option(help="the prepared data folder")] = Path("data"),
    steps: Annotated[int, typer.Option(min=0, help="also train so many steps of SFT, on the first GPU; 2 will do")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON on stdout and nothing else there")] = False,
) -> None:
    """Check GPUs, disk, pins, patches, data, model, sandbox and configs; exit 1 if anything is missing."""
    from glyph.doctor import PAPER, Machine, examine

    for path in config or []:
        if not path.is_file():
            fail(f"glyph doctor: --config {path}: no such file")
    findings = []
    for finding in examine(Machine(tuple(config) if config else PAPER, model, data, steps=steps)):
        findings.append(finding)
        if not as_json:
            say(f"{'ok' if finding.ok else 'MISSING':>7}  {finding.name:<9}  {finding.found}")
            for line in [*finding.details, *([f"mend: {finding.mend}"] if finding.mend else [])]:
                say(f"{'':>7}  {'':<9}  {line}")
    missing = sum(not finding.ok for finding in findings)
    if as_json:
        print(json.dumps([{**asdict(finding), "ok": finding.ok} for finding in findings], indent=2))
    elif missing:
        say(f"{missing} of {len(findings)} are missing")
    else:
        say(f"nothing is missing; next: bash scripts/train_sft.sh a --scale paper --model {model}")
    raise typer.Exit(bool(missing))
