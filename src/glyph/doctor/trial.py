"""A few steps of SFT with PRIME-RL: the one check that trains."""

import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from glyph.doctor.hardware import visible_gpus
from glyph.doctor.machine import SETUP, Machine, Missing

STEP_LINE = re.compile(r"Step \d+ +\|[^\x1b\n]*\| Loss[^\x1b\n]*")


def sft_steps(machine: Machine) -> str:
    """`machine.steps` steps of Arm A's SFT on the given model, without a checkpoint, into a folder that is removed."""
    if not visible_gpus():
        raise Missing("no GPU visible", "export CUDA_VISIBLE_DEVICES=0")
    if machine.model is None:
        raise Missing("no model given", "glyph make-base MODEL OUT; glyph doctor --model OUT --steps 2")
    if not machine.program("sft").exists():
        raise Missing(f"no {machine.program('sft')}", SETUP)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        status, said = _run(machine, Path(folder))
        seconds = time.monotonic() - began
    losses = STEP_LINE.findall(said)
    if status or len(losses) < machine.steps:
        tail = tuple(said.strip().splitlines()[-10:])
        raise Missing(f"sft ended with {status} after {seconds:.0f} s; its last lines:", "see them", tail)
    return f"{machine.steps} steps in {seconds:.0f} s, loading included: {losses[-1]}"


def _run(machine: Machine, folder: Path) -> tuple[int, str]:
    """The exit status of `sft` and what its trainer said, or it itself; nothing that it started outlives it."""
    trainer, launcher = folder / "logs" / "trainer.log", folder / "said"
    with (
        launcher.open("w") as said,
        subprocess.Popen(
            sft_command(machine, folder),
            cwd=machine.root,
            env=machine.variables,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as started,
    ):
        try:
            status = started.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
    return status, (trainer if trainer.exists() else launcher).read_text(errors="replace")


def sft_command(machine: Machine, output: Path) -> list[str]:
    """The pin's linear schedule has no room for its decay in a few steps, so there is none."""
    assert machine.model is not None
    config = machine.root / "configs" / "paper" / "arm_a_sft.toml"
    paths = {"model.name": machine.model, "data.name": machine.data / "sft" / "arm_a", "output-dir": output}
    options = [part for name, path in paths.items() for part in (f"--{name}", str(path.resolve()))]
    steps = ["--max-steps", str(machine.steps), "--scheduler.decay-steps", "0"]
    return [str(machine.program("sft")), "@", str(config), *options, *steps, "--no-ckpt"]
