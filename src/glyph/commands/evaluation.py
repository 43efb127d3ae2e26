"""`glyph evaluate`: a trained model on held-out tasks, in this process, as its own run evaluates it."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from glyph.commands.console import fail, progress, say
from glyph.config import ConfigError, RlConfig, SftConfig, dump_config, load_config, read_config
from glyph.evaluation.metrics import compute_all
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.traces import Trace, write_traces
from glyph.executor import Executor, ExecutorError
from glyph.files import write_atomically
from glyph.tasks.validation import data_facts, first_tasks, read_tasks
from glyph.versions import manifest


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    model: Annotated[str, typer.Argument(help="a run folder of glyph sft or glyph rl, a model folder or a hub id")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="settings such as environment.variant=forced_keep")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="the folder to write")] = None,
    split: Annotated[str, typer.Option(help="validation or test")] = "test",
    num_tasks: Annotated[int, typer.Option("--num-tasks", "-n", help="the first n tasks; 0 for all", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="rollouts a task", min=1)] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy", min=0.0)] = 0.0,
    arm: Annotated[str | None, typer.Option(help="a or b; a run knows its own")] = None,
    scale: Annotated[str | None, typer.Option(help="mini or small; a run knows its own")] = None,
    data: Annotated[Path | None, typer.Option(help="a prepared data folder")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
) -> None:
    """Play held-out tasks with a trained model; greedy unless told otherwise."""
    given = {
        "evaluation.split": json.dumps(split),
        "evaluation.num_tasks": num_tasks,
        "evaluation.samples": samples,
        "evaluation.temperature": temperature,
    }
    settings = [f"{name}={value}" for name, value in given.items()] + (overrides or [])
    fields = {"data": data and str(data), "device": device}
    try:
        config = _config(model, arm, scale, settings, fields)
        folder = output or _default_output(config, split)
        if folder.exists() and (folder.is_file() or any(folder.iterdir())):
            raise ValueError(f"{folder}: not an empty folder, and nothing is overwritten: give another --output")
        traces = _play(config, folder)
    except (ValueError, OSError, ExecutorError) as error:
        fail(f"glyph evaluate: {error}")
    scored = [Rollout(trace.scored, trace.test_code) for trace in traces if trace.scored is not None]
    metrics = compute_all(scored)
    value = metrics["pass_at_1"]
    interval = f" (95%: {value.interval.low:.3f} to {value.interval.high:.3f})" if value.interval else ""
    say(
        f"pass@1 of arm {config.arm.value.upper()}: {value.value:.3f}{interval}, n = {value.denominator:.0f}"
        if value.value is not None
        else "pass@1 is undefined: no rollout was scored"
    )
    say(f"wrote {folder}")
    say(f"next: glyph report {folder}")


def _config(model: str, arm: str | None, scale: str | None, settings: list[str], fields: dict[str, Any]) -> RlConfig:
    """The settings that the model's own run would evaluate with, else those of a scale."""
    overlays: list[Path] = []
    run = Path(model)
    if (run / "config.toml").is_file():
        own: SftConfig | RlConfig = read_config(run)
        if arm not in (None, own.arm.value) or scale not in (None, own.scale):
            raise ConfigError(f"{model} is a run of arm {own.arm.value} at scale {own.scale}; leave --arm, --scale out")
        arm, scale = own.arm.value, own.scale
        if isinstance(own, RlConfig):
            overlays = [run / "config.toml"]
        else:
            shared = {"data": str(own.data), "seed": own.seed, "prompts": own.prompts and str(own.prompts)}
            fields = shared | {k: v for k, v in fields.items() if v is not None}
    if arm is None:
        raise ConfigError(f"{model} is no run folder: give --arm a or b")
    return load_config("rl", scale or "mini", arm, overlays, settings, **{**fields, "model": model})


def _default_output(config: RlConfig, split: str) -> Path:
    name = Path(config.model).name
    return Path("runs") / f"{name}-arm_{config.arm.value}-{split}-{time.strftime('%Y%m%d-%H%M%S')}"


def _play(config: RlConfig, folder: Path) -> list[Trace]:
    """Play the tasks, and store the traces and what they were made with."""
    from glyph.local.inference.backends import load_generator
    from glyph.local.inference.loading import load_tokenizer
    from glyph.local.rollouts.playing import Player
    from glyph.local.training.workbench import model_folder, wording_of

    split = config.evaluation.split
    tasks = first_tasks(read_tasks(config.data, config.arm, split), config.evaluation.num_tasks, split, say)
    source = model_folder(config.model)
    started = time.monotonic()
    with Executor(workers=config.environment.test_workers, limits=config.limits()) as executor:
        generator, tokenizer = load_generator(config, source), load_tokenizer(source)
        player = Player(config, tokenizer, wording_of(config), generator, executor)
        total = len(tasks) * config.evaluation.samples
        title = f"arm {config.arm.value} rollouts"
        played = player.evaluation(0, tasks, lambda items: progress(items, title, total))
    traces = [each.trace for each in played.played]
    folder.mkdir(parents=True, exist_ok=True)
    facts = manifest(
        model=config.model,
        model_folder=source,
        arm=config.arm.value,
        split=config.evaluation.split,
        data=data_facts(config.data),
        executor=executor.facts(),
        seconds=round(time.monotonic() - started, 1),
        generated_tokens=played.tokens,
    )
    write_atomically(folder / "config.toml", dump_config(config))
    write_atomically(folder / "manifest.json", json.dumps(facts, indent=2) + "\n")
    write_traces(folder / "traces.jsonl.gz", traces)
    return traces
