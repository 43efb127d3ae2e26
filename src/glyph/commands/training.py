"""`glyph sft`, `glyph rl`, `glyph resume`: runs of the embedded engine, each in a folder of its own."""

import hashlib
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from glyph.commands.console import fail, say
from glyph.commands.live import TrainingProgress
from glyph.config import RlConfig, SftConfig, Stage, dump_config, load_config, read_config
from glyph.executor import ExecutorError
from glyph.tasks.validation import data_facts, require_data

INTERRUPTED = 130

Overrides = Annotated[
    list[str] | None, typer.Argument(help="settings such as optimiser.learning_rate=1e-4 (docs/configuration.md)")
]
ArmName = Annotated[str, typer.Argument(help="a or b")]
Scale = Annotated[str, typer.Option(help="mini (CPU, minutes) or small (one GPU)")]
Output = Annotated[Path | None, typer.Option(help="the run folder to write; by default runs/SCALE-STAGE-ARM-SEED")]
Overlay = Annotated[list[Path] | None, typer.Option("--config", help="a TOML file laid over the scale's; repeatable")]
Seed = Annotated[int | None, typer.Option(help="of data order and sampling")]
Model = Annotated[str | None, typer.Option(help="model folder or hub id; for rl the arm's SFT run or checkpoint")]
Data = Annotated[Path | None, typer.Option(help="a prepared data folder")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda")]


def register(app: typer.Typer) -> None:
    app.command("sft")(_command("sft", "Fine-tune a model on the SFT traces of an arm."))
    app.command("rl")(_command("rl", "Train an arm by reinforcement learning, from its SFT model."))
    app.command("resume")(resume)


def _command(stage: Stage, summary: str) -> Callable[..., None]:
    """`glyph sft` or `glyph rl`: they take the same."""

    def command(
        arm: ArmName,
        overrides: Overrides = None,
        scale: Scale = "mini",
        output: Output = None,
        config: Overlay = None,
        seed: Seed = None,
        model: Model = None,
        data: Data = None,
        device: Device = None,
    ) -> None:
        fields = {"seed": seed, "model": model, "data": data and str(data), "device": device}
        _start(stage, arm, scale, output, config or [], overrides or [], fields)

    command.__doc__ = summary
    return command


def resume(run: Annotated[Path, typer.Argument(help="the folder of an interrupted run")]) -> None:
    """Go on with a run from its newest checkpoint; on a CPU its numbers are those of an unbroken run."""
    from glyph.local.runs.run_folder import RunFolder
    from glyph.local.runs.run_manifest import read_manifest

    with _one_line_errors("resume", run):
        begun = read_manifest(run)
        finished = begun["status"] == "finished"
        config = read_config(run)
        if not finished:
            _require_same_run(config, begun)
            _require_same_data(config, begun.get("data") or {})
            with RunFolder.open(run) as folder:
                _train(config, folder)
    _say_next(config, f"{run} is finished already: nothing is left to do" if finished else f"wrote {run}", run)


def _require_same_run(config: SftConfig | RlConfig, begun: Mapping[str, Any]) -> None:
    """Raises: ValueError: config.toml was changed since the run began."""
    now = {"stage": config.stage, "arm": config.arm.value, "scale": config.scale, "seed": config.seed}
    now |= {"model": config.model, "config_digest": _config_digest(config)}
    if changed := [name for name, value in now.items() if begun.get(name, value) != value]:
        raise ValueError(
            f"config.toml was changed since the run began ({', '.join(changed)} differ from manifest.json): "
            "put it back, or begin a new run with it: --config"
        )


def _config_digest(config: SftConfig | RlConfig) -> str:
    return hashlib.sha256(dump_config(config).encode()).hexdigest()


def _require_same_data(config: SftConfig | RlConfig, begun: Mapping[str, Any]) -> None:
    """Raises: ValueError: by their manifests, the data are no longer those that the run began with."""
    files = data_facts(config.data).get("files") or {}
    if changed := [name for name, digest in (begun.get("files") or {}).items() if files.get(name) != digest]:
        raise ValueError(
            f"{config.data} is no longer the data that the run began with: {', '.join(changed[:3])} differ; "
            "prepare it as it was, or begin a new run"
        )


def _start(
    stage: Stage,
    arm: str,
    scale: str,
    output: Path | None,
    overlays: list[Path],
    overrides: list[str],
    fields: dict[str, Any],
) -> None:
    from glyph.local.runs.run_folder import RunFolder

    with _one_line_errors(stage, output) as errors:
        config = load_config(stage, scale, arm, overlays, overrides, **fields)
        run = errors.run = output or Path("runs") / f"{scale}-{stage}-{arm}-seed{config.seed}"
        facts, created = _facts(config), False
        try:
            with RunFolder.create(run, dump_config(config), facts) as folder:
                created = True
                _train(config, folder)
        except Exception:
            if created and _never_began(run):  # a mended command must not find the remains of this one in its way
                shutil.rmtree(run)
            raise
    _say_next(config, f"wrote {run}", run)


def _never_began(run: Path) -> bool:
    """Whether a run holds no number and no weights yet."""
    return not any((run / name).exists() for name in ("metrics.jsonl", "checkpoints", "traces", "evaluations"))


def _train(config: SftConfig | RlConfig, folder: Any) -> None:
    """Train in a claimed folder, which is told how it ended."""
    from glyph.local.training.workbench import RunStopped

    try:
        _train_to_the_end(config, folder)
    except RunStopped as stopped:
        folder.log(str(stopped))
        folder.finish("interrupted")
        raise
    except Exception as error:
        folder.log(f"{type(error).__name__}: {error}")
        raise


def _train_to_the_end(config: SftConfig | RlConfig, folder: Any) -> None:
    from glyph.local.runs.tracking import open_trackers
    from glyph.local.training.rl import train_rl
    from glyph.local.training.sft import train_sft
    from glyph.local.training.workbench import StopRequest

    steps = config.sft.steps if isinstance(config, SftConfig) else config.rl.steps
    names = [name for name in ("wandb", "tensorboard") if getattr(config.tracking, name)]
    title = f"{config.stage.upper()} of arm {config.arm.value.upper()}, scale {config.scale}, seed {config.seed}"
    with ExitStack() as stack:
        resolved = config.model_dump(mode="json")
        done = max((line["step"] for line in folder.metrics("train")), default=0)
        run_id, project = folder.manifest["run_id"], config.tracking.project
        folder.trackers += open_trackers(names, folder.path, run_id, resolved, project, first_step=done)
        stop = stack.enter_context(StopRequest().listening())
        watch = stack.enter_context(_Console(title, steps, folder))
        if isinstance(config, SftConfig):
            train_sft(config, folder, watch, stop)
        else:
            train_rl(config, folder, watch, stop)


class _Console:
    """Shows a run in the terminal, and what it waits for; warnings are said once, and logged."""

    def __init__(self, title: str, steps: int, folder: Any) -> None:
        self._progress = TrainingProgress(title, steps)
        self._heartbeat = folder.heartbeat(self._progress.waiting_for)
        self._handler = _Say(logging.WARNING)
        self._stack = ExitStack()

    def __enter__(self) -> "_Console":
        logging.getLogger("glyph").addHandler(self._handler)
        self._stack.enter_context(self._progress)
        self._stack.enter_context(self._heartbeat)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        logging.getLogger("glyph").removeHandler(self._handler)

    def update(self, line: Mapping[str, Any]) -> None:
        self._heartbeat.step = line["step"]
        self._progress.update(dict(line))

    def waiting(self, what: str | Callable[[], str]) -> AbstractContextManager[None]:
        return self._heartbeat(what)


class _Say(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(f"{record.levelname.lower()}: {record.getMessage()}", file=sys.stderr, flush=True)
        except (RuntimeError, OSError):  # a signal came in the middle of a line; the terminal is gone: log.txt has it
            return


def _facts(config: SftConfig | RlConfig) -> dict[str, Any]:
    """What the manifest says of a run: where it comes from and on what it runs."""
    import torch

    from glyph.local.runs.checkpoints import CheckpointError, model_digest
    from glyph.local.training.workbench import model_folder

    source = model_folder(config.model)
    _require_same_arm(config)
    require_data(config.data, config.arm)
    try:
        digest: str | None = model_digest(Path(source))
    except CheckpointError:
        digest = None  # a hub id, or a folder of several weight files
    threads = config.threads or torch.get_num_threads()
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    return {
        "stage": config.stage,
        "arm": config.arm.value,
        "scale": config.scale,
        "seed": config.seed,
        "model": config.model,
        "model_folder": source,
        "model_digest": digest,
        "data": data_facts(config.data),
        "hardware": torch.cuda.get_device_name() if on_gpu else f"CPU, {threads} threads",
        "config_digest": _config_digest(config),
        "command": shlex.join(["glyph", *sys.argv[1:]]),
    }


def _require_same_arm(config: SftConfig | RlConfig) -> None:
    """Raises: ValueError: the model is a run of the other arm."""
    run = Path(config.model)
    if (run / "manifest.json").is_file() and (run / "config.toml").is_file():
        arm = read_config(run).arm
        if arm is not config.arm:
            raise ValueError(f"{run} is a run of arm {arm.value}, not {config.arm.value}: give that arm's own SFT run")


class _one_line_errors:
    """Turns what a run may raise into one line and an exit code. `run` is its folder, once it is known."""

    def __init__(self, command: str, run: Path | None) -> None:
        self._command, self.run = command, run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        from glyph.local.runs.checkpoints import CheckpointError
        from glyph.local.runs.run_folder import RunFolderError
        from glyph.local.runs.tracking import TrackerError
        from glyph.local.training.trainer import TrainingError
        from glyph.local.training.workbench import RunFailedError, RunStopped

        if isinstance(error, RunStopped | KeyboardInterrupt):
            begun = self.run is not None and (self.run / "manifest.json").exists()
            way_on = f"go on with: glyph resume {shlex.quote(str(self.run))}" if begun else "no run has begun"
            fail(f"{error if str(error) else 'interrupted'}; {way_on}", INTERRUPTED)
        known = (ValueError, OSError, ExecutorError, CheckpointError, RunFolderError, TrackerError)
        if isinstance(error, (*known, TrainingError, RunFailedError)):
            fail(f"glyph {self._command}: {error}")


def _say_next(config: SftConfig | RlConfig, ending: str, run: Path) -> None:
    from glyph.local.runs.metrics_file import read_lines

    steps = [entry for _, entry in read_lines(run / "metrics.jsonl") if entry and entry["kind"] == "train"]
    if skipped := sum(entry.get("skipped") is not None for entry in steps):
        say(f"{skipped} of {len(steps)} steps trained nothing: see `skipped` in {run / 'metrics.jsonl'}")
    say(ending)
    if isinstance(config, SftConfig):
        say(f"next: glyph rl {config.arm.value} --scale {config.scale} --model {shlex.quote(str(run))}")
    else:
        say(f"next: glyph report {shlex.quote(str(run))}")
