"""`python -m benchmarks.engine`: measure, print markdown tables, and write the figures."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine.context import measure_context
from benchmarks.engine.generation import measure_generation
from benchmarks.engine.setting import FULL, QUICK, Engine, Setting, open_engine
from benchmarks.engine.steps import measure_rollouts_per_step, measure_step
from benchmarks.engine.tables import Figures, render
from benchmarks.engine.training import measure_checkpoint, measure_labels, measure_trainer
from glyph.commands.console import say
from glyph.executor import Executor
from glyph.local.inference.backends import load_generator
from glyph.local.inference.engine import EngineCore
from glyph.protocol import Arm
from glyph.versions import git_commit, versions


def main(
    model: Annotated[str, typer.Option(help="model folder or hub id")] = "models/mini",
    data: Annotated[Path | None, typer.Option(help="prepared data; without it the mini tasks are prepared")] = None,
    arm_a_sft: Annotated[str, typer.Option(help="SFT run of Arm A; without it a short SFT is done first")] = "",
    arm_b_sft: Annotated[str, typer.Option(help="SFT run of Arm B, likewise")] = "",
    device: Annotated[str, typer.Option(help="cpu (the mini scale) or cuda (the small scale)")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="also write the figures as JSON")] = None,
    quick: Annotated[bool, typer.Option(help="the least that touches everything: its figures mean nothing")] = False,
) -> None:
    """Measure the embedded engine on this machine."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    scale, sizes = ("small", FULL["cuda"]) if device.startswith("cuda") else ("mini", FULL["cpu"])
    runs = {arm: run for arm, run in ((Arm.REACTIVE, arm_a_sft), (Arm.PREDICTIVE, arm_b_sft)) if run}
    with tempfile.TemporaryDirectory(prefix="glyph-benchmark-") as folder:
        setting = Setting(model, data or prepared(Path(folder)), device, scale, QUICK if quick else sizes, runs)
        figures: Figures = {"quick": quick}
        try:
            measure(setting, figures)
        except BaseException:
            if output:
                write(figures, output.with_suffix(".incomplete.json"))
            raise
    say("\n" + render(figures))
    if output:
        write(keep_recorded(figures, output), output)


def write(figures: Figures, output: Path) -> None:
    output.write_text(json.dumps(figures, indent=2) + "\n")
    say(f"\nwrote {output}")


def prepared(folder: Path) -> Path:
    command = [sys.executable, "-m", "data.prepare", "--tasks", "mini", "--output", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def measure(setting: Setting, figures: Figures) -> None:
    """Fill in the figures, measure by measure."""
    started, load, chosen = time.perf_counter(), os.getloadavg()[0], setting.sizes.trained

    def told(what: str, work: Callable[..., Any], *arguments: Any) -> Any:
        result = work(setting, *arguments)
        say(f"{time.perf_counter() - started:6.1f} s  {what}")
        return result

    with Executor(workers=setting.config(Arm.REACTIVE).environment.test_workers) as executor:
        a, b = (told(f"Arm {arm.value} is ready", open_engine, arm, executor) for arm in (Arm.REACTIVE, Arm.PREDICTIVE))
        figures["step"], played = told("a step of each arm", measure_step, {Arm.REACTIVE: a, Arm.PREDICTIVE: b})
        figures["rollouts_per_step"] = told("steps of more and more rollouts", measure_rollouts_per_step, b)
        mine, others = played[Arm.PREDICTIVE][:chosen], played[Arm.REACTIVE][:chosen]
        figures["labels"] = told("label samples", measure_labels, b, mine, others)
        core = told("a generator of its own", _core, b)
        figures["generation"] = told("generation", measure_generation, b, core)
        figures["context"] = told("longer and longer rollouts", measure_context, a, core)
        figures["checkpoint"] = told("a checkpoint", measure_checkpoint, a)
        figures["trainer"] = told("the trainer", measure_trainer, a, others)
    figures |= {"scale": setting.scale, "model": _model(setting, a), "sft": _sft(setting), **_machine()}
    figures |= {"seconds": round(time.perf_counter() - started, 1), "load_average": [load, os.getloadavg()[0]]}


def _core(setting: Setting, engine: Engine) -> EngineCore:
    """The engine as `glyph evaluate` loads it, with room for the longest context that is measured."""
    longest = max(engine.config.environment.max_context_tokens, *setting.sizes.contexts)
    config = setting.config(Arm.PREDICTIVE, f"environment.max_context_tokens={longest}")
    core = load_generator(config, setting.model)
    assert isinstance(core, EngineCore)
    return core


def _model(setting: Setting, engine: Engine) -> Figures:
    parameters = sum(each.numel() for each in engine.bench.model.parameters())
    name = Path(setting.model).name if Path(setting.model).is_dir() else setting.model
    return {"name": name, "parameters": parameters, "forward": engine.config.dtype}


def _sft(setting: Setting) -> Figures:
    """How many steps of SFT the policies had here; None for one whose SFT run was given."""
    return {arm.value: None if arm in setting.sft_runs else setting.sizes.sft_steps for arm in Arm}


def _machine() -> Figures:
    machine: Figures = {"platform": platform.platform(), "cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    machine["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_initialized() else None
    if machine["gpu"]:
        machine["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return {"machine": machine, "versions": versions(), "commit": git_commit()}


def keep_recorded(figures: Figures, output: Path) -> Figures:
    """The figures with TRL's comparison of the file that they replace, where TRL was not here this time.

    That comparison is whole in itself: both rates, their ratio and the versions.
    """
    if figures["trainer"]["trl"] is None and output.is_file():
        recorded = json.loads(output.read_text())["trainer"]["trl"]
        return figures | {"trainer": figures["trainer"] | {"trl": recorded}}
    return figures


if __name__ == "__main__":
    typer.run(main)
