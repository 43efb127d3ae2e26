"""What is installed: PRIME-RL's checkout with our patches, the packages, and what it makes of configs."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from glyph.doctor.machine import SETUP, Machine, Missing, is_rl
from glyph.versions import PACKAGES, versions

CHECK_SECONDS = 120
LAUNCH_SECONDS = 600
LOCKED = ("transformers", "torch", "datasets")


def prime_rl(machine: Machine) -> str:
    """The checkout at the pin with our patches and its environment, as scripts/setup.sh says."""
    command = [*SETUP.split(), "--check"]
    ran = subprocess.run(command, cwd=machine.root, capture_output=True, text=True, timeout=CHECK_SECONDS)
    if ran.returncode:
        found, *mend = ran.stderr.strip().splitlines()[-2:] or [f"{SETUP} --check ended with {ran.returncode}"]
        raise Missing(found.removeprefix("setup: "), "".join(mend).strip() or SETUP)
    return ran.stdout.strip()


def pins(machine: Machine) -> str:
    """The packages of our environment and of PRIME-RL's against configs/versions.toml."""
    wrong = list(_unpinned("our environment", PACKAGES, versions(), machine.pins))
    python = machine.program("python")
    if python.exists():
        ask = "import json; from glyph.versions import versions; print(json.dumps(versions()))"
        ran = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=120)
        if ran.returncode:
            raise Missing(f"{python} does not import this package: {ran.stderr.strip()[-200:]}", SETUP)
        wrong += _unpinned("PRIME-RL's environment", LOCKED, json.loads(ran.stdout), machine.pins)
    if wrong:
        raise Missing("; ".join(wrong), f"bash scripts/setup.sh; {SETUP}")
    return f"as in configs/versions.toml in {'both environments' if python.exists() else 'our environment'}"


def _unpinned(where: str, names: Sequence[str], found: dict[str, str], pinned: dict[str, Any]) -> Iterator[str]:
    """Where an environment has other versions than the pinned ones, or those on which the code is known to run too."""
    for name in names:
        wanted = [pins[name] for pins in (pinned["packages"], pinned["also_runs_on"]) if name in pins]
        if not any(found[name] == each or found[name].startswith((f"{each}.", f"{each}+")) for each in wanted):
            yield f"{where} has {name} {found[name]}, expected {' or '.join(wanted)}"


def dry_runs(machine: Machine) -> str:
    """PRIME-RL's own launchers read and resolve every config, with the model that is to be trained."""
    for path in machine.configs:
        program = machine.program("rl" if is_rl(machine.settings[path.name]) else "sft")
        if not program.exists():
            raise Missing(f"no {program}", SETUP)
        with tempfile.TemporaryDirectory() as output:
            command = [str(program), "@", str(path.resolve()), "--output-dir", output, "--dry-run"]
            command += ["--model.name", str(machine.model.resolve())] if machine.model else []
            ran = subprocess.run(
                command, cwd=machine.root, env=machine.variables, capture_output=True, text=True, timeout=LAUNCH_SECONDS
            )
        if ran.returncode:
            tail = tuple((ran.stdout + ran.stderr).strip().splitlines()[-10:])
            raise Missing(f"{program.name} --dry-run refuses {path.name}; its last lines:", "mend the config", tail)
    return f"{', '.join(machine.settings)} resolve"
