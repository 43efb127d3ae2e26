"""`glyph make-base`: the start model of a training run, from a base model's folder."""

import re
from pathlib import Path
from typing import Annotated

import typer

from glyph.commands.console import fail, progress, say

HUB_ID = re.compile(r"[\w-]+/[\w.-]+")


def register(app: typer.Typer) -> None:
    app.command("make-base")(make_base)


def make_base(
    model: Annotated[str, typer.Argument(help="a base model's folder or hub id, weights as safetensors")],
    output: Annotated[Path, typer.Argument(help="the folder to write; it must not exist")],
) -> None:
    """Write a model's folder anew, with our chat template and `<|im_end|>` as the EOS of all its parts."""
    from glyph.local import base_folder
    from glyph.local.hub import fetch

    try:
        folder = Path(fetch(model) if HUB_ID.fullmatch(model) and not Path(model).exists() else model)
        record = base_folder.make_base(folder, output, lambda files: progress(files, "files", len(files)))
    except (ValueError, ConnectionError) as error:
        fail(f"glyph make-base: {error}")
    except OSError as error:
        fail(f"glyph make-base: {error.filename or output}: {error.strerror or error}; nothing is left at {output}")
    for part, facts in record["before"].items():
        say(f"{part}: EOS {facts['eos_token_id']} → {record['after'][part]['eos_token_id']}")
    say(f"wrote {output} (what was changed, and digests: {output / base_folder.RECORD})")
    say(f"next: glyph parity {output} --as-saved; bash scripts/train_sft.sh a --scale paper --model {output}")
