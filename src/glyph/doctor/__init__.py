"""Whether this machine can run the study at the published scale: one function a check, each on its own.

A check looks at one thing and says what it found and, where something is missing, how to mend it. Nothing is changed;
what it takes to answer is written to a temporary folder. No GPU is used but by the trial steps of SFT, which are asked
for. Printing is `commands/doctor.py`.
"""

from collections.abc import Callable, Iterator

from glyph.doctor import environment, hardware, installation, trial
from glyph.doctor.machine import PAPER, Finding, Machine, Missing

__all__ = ["CHECKS", "PAPER", "Finding", "Machine", "examine"]

CHECKS: tuple[Callable[[Machine], str], ...] = (
    installation.prime_rl,
    installation.pins,
    hardware.gpus,
    hardware.disk,
    hardware.port,
    environment.data,
    environment.tasks,
    environment.model,
    environment.executor,
    environment.episodes,
    installation.dry_runs,
)
"""Each returns what it found; it raises `Missing` where something is missing."""


def examine(machine: Machine) -> Iterator[Finding]:
    """All checks, in the order in which things are mended; one that fails, in whatever way, stops no other."""
    for check in (*CHECKS, *([trial.sft_steps] if machine.steps else [])):
        name = check.__name__.replace("_", " ")
        try:
            yield Finding(name, check(machine))
        except Missing as missing:
            yield Finding(name, missing.found, missing.mend, missing.details)
        except Exception as error:  # the boundary: whatever a machine answers, the other checks are still of use
            yield Finding(name, f"could not be looked at: {type(error).__name__}: {error}", "see the message")
