"""What is installed: PRIME-RL's checkout with our patches, the packages, and what it makes of configs."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glyph.doctor.machine import SETUP, Machine, Missing, is_rl
from glyph.versions import PACKAGES, versions

LAUNCH_SECONDS = 600
LOCKED = ("transformers", "torch", "datasets")
SUBMODULES = ("deps/verifiers", "deps/renderers", "deps/pydantic-config")


def prime_rl(machine: Machine) -> str:
    """The checkout at the pin, with exactly our patches, and its environment."""
    folder, patches = machine.prime_rl, sorted((machine.root / "patches" / "prime_rl").glob("*.patch"))
    if not (folder / ".git").exists():
        raise Missing(f"no checkout in {folder}", SETUP)
    pin, head = machine.pins["upstream"]["prime_rl"], _git(folder, "rev-parse", "HEAD").strip()
    if head != pin:
        raise Missing(f"{folder} is at {head}, the pin is {pin}", f"mv {folder} {folder}.old; {SETUP}")
    changed = _git(folder, "diff", "--name-only", "--ignore-submodules=all", _patched_tree(folder, pin, patches))
    if changed:
        raise Missing(f"{folder} is not the pin with our patches: {', '.join(changed.split())}", SETUP)
    if not (folder / ".venv" / ".glyph-installed").exists():
        raise Missing(f"{folder} has no environment, or one whose installation was interrupted", SETUP)
    return f"{pin[:12]} with {', '.join(patch.name for patch in patches) or 'no patch'}"


def _patched_tree(folder: Path, pin: str, patches: list[Path]) -> str:
    """The id of the pin's tree with the patches applied; only git's object store is written to."""
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        _git(folder, "read-tree", pin, **index)
        for patch in patches:
            _git(folder, "apply", "--cached", str(patch.resolve()), **index)
        return _git(folder, "write-tree", **index).strip()


def _git(folder: Path, *arguments: str, **variables: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    ran = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
    if ran.returncode:
        raise Missing(f"git {arguments[0]}: {ran.stderr.strip()}", SETUP)
    return ran.stdout


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
        wrong += _moved_submodules(machine.prime_rl)
    if wrong:
        raise Missing("; ".join(wrong), f"bash scripts/setup.sh; {SETUP}")
    return f"as in configs/versions.toml in {'both environments' if python.exists() else 'our environment'}"


def _unpinned(where: str, names: Sequence[str], found: dict[str, str], pinned: dict[str, Any]) -> Iterator[str]:
    """Where an environment has other versions than the pinned ones, or those on which the code is known to run too."""
    for name in names:
        wanted = [pins[name] for pins in (pinned["packages"], pinned["also_runs_on"]) if name in pins]
        if not any(found[name] == each or found[name].startswith((f"{each}.", f"{each}+")) for each in wanted):
            yield f"{where} has {name} {found[name]}, expected {' or '.join(wanted)}"


def _moved_submodules(folder: Path) -> Iterator[str]:
    """Verifiers and renderers are there as submodules, whose commits the pin names."""
    for path in SUBMODULES:
        if not (folder / path / ".git").exists():
            yield f"{folder / path} is absent"
        elif _git(folder / path, "rev-parse", "HEAD") != _git(folder, "rev-parse", f"HEAD:{path}"):
            yield f"{folder / path} is not at the commit that the pin names"


def dry_runs(machine: Machine) -> str:
    """PRIME-RL's own launchers read and resolve every config, with the model that is to be trained."""
    for path in machine.configs:
        program = machine.program("rl" if is_rl(machine.settings[path.name]) else "sft")
        if not program.exists():
            raise Missing(f"no {program}", SETUP)
        with tempfile.TemporaryDirectory() as output:
            command = [str(program), "@", str(path.resolve()), "--output-dir", output, "--dry-run"]
            command += ["--model.name", str(machine.model.resolve())] if machine.model else []
            variables = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
            ran = subprocess.run(
                command, cwd=machine.root, env=variables, capture_output=True, text=True, timeout=LAUNCH_SECONDS
            )
        if ran.returncode:
            tail = tuple((ran.stdout + ran.stderr).strip().splitlines()[-10:])
            raise Missing(f"{program.name} --dry-run refuses {path.name}; its last lines:", "mend the config", tail)
    return f"{', '.join(machine.settings)} resolve"
