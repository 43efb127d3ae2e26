"""`glyph cases`, `glyph serve`, `glyph parity`: hostile candidates, a real model behind an endpoint, its tokens."""

import json
from pathlib import Path
from typing import Annotated

import typer

from glyph.commands.console import fail, say
from glyph.executor import LEVELS
from glyph.executor.cases import load_cases, run_cases
from glyph.protocol import Arm


def register(app: typer.Typer) -> None:
    """Add the commands of the environment to the application."""
    app.command("cases")(cases)
    app.command("serve")(serve)
    app.command("parity")(parity)


def cases(
    file: Annotated[Path, typer.Argument(help="a case file, in the form of tests/cases/executor.json")],
    level: Annotated[str, typer.Option(help=f"isolation level: auto, {', '.join(LEVELS)}")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON on stdout and nothing else there")] = False,
) -> None:
    """Run hostile candidates among canaries: a line for each miss; exit 1 on a miss."""
    misses = []
    try:
        found = load_cases(file)
        for case, fault in run_cases(found, level):
            if fault:
                misses.append({"name": case.name, "fault": fault})
                if not as_json:
                    say(f"{case.name}: {fault}")
    except (ValueError, OSError) as error:
        fail(f"glyph cases: {error}")
    passed = len(found) - len(misses)
    if as_json:
        print(json.dumps({"cases": len(found), "as_accepted": passed, "misses": misses}, indent=2))
    else:
        say(f"{passed} of {len(found)} as accepted")
    raise typer.Exit(bool(misses))


def serve(
    model: Annotated[
        str, typer.Argument(help="a Hugging Face model folder or hub id whose tokenizer has the ChatML tokens")
    ],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="the model's name in the API; default: the folder's")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    max_model_len: Annotated[int, typer.Option(help="context limit in tokens", min=1)] = 4096,
    max_rows: Annotated[int, typer.Option(help="sequences generated at once", min=1)] = 16,
) -> None:
    """Serve a model over the OpenAI chat route and the token endpoint, on the CPU or one GPU."""
    from glyph.local.serving.server import serve as run_server

    try:
        run_server(model, host, port, served_name=name, device=device, max_model_len=max_model_len, max_rows=max_rows)
    except (ValueError, OSError) as error:
        fail(f"glyph serve: {error}")


def parity(
    model: Annotated[str, typer.Argument(help="a model folder or hub id: only its tokenizer is loaded")],
    as_saved: Annotated[
        bool, typer.Option("--as-saved", help="a folder as its files are: EOS, template and PRIME-RL's renderer too")
    ] = False,
) -> None:
    """Check that chat template, renderer and incremental prompts give the same ids over a two-recovery rollout."""
    from glyph.chat import ParityError, TokenizerError

    try:
        compared = _saved_parity(Path(model)) if as_saved else _loaded_parity(model)
    except ParityError as error:
        print(error)
        raise typer.Exit(1) from None
    except (TokenizerError, ValueError, OSError) as error:
        fail(f"glyph parity: {error}")
    for arm, tokens in compared.items():
        say(f"arm {arm.value}: {tokens} tokens: the same ids on every path")
    if not as_saved:
        say(f"next: glyph serve {model}")


def _saved_parity(model: Path) -> dict[Arm, int]:
    from glyph.local.base_folder import check_saved

    return check_saved(model)


def _loaded_parity(model: str) -> dict[Arm, int]:
    """As our engine and server load it, which set template and EOS themselves where they may."""
    from glyph.chat import check_parity
    from glyph.local.inference.loading import load_tokenizer
    from glyph.tasks.demonstrations import sample_conversation

    tokenizer = load_tokenizer(model)
    return {arm: check_parity(tokenizer, sample_conversation(arm)) for arm in Arm}
