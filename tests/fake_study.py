#!/usr/bin/env python3
"""Stands in for `python -m` of our modules in the tests of the study's runner: every command takes a moment.

A run of RL makes the checkpoints that it is asked for, and one where SIGINT or SIGTERM ends it after a step; of
earlier ones it keeps what it is asked to keep. Environment variables name a folder each: HANG a run that goes no
further than its third step, DEAF one that no signal stops, FAIL what fails each time, FAIL_ONCE what fails the first
time. TRACES is what every evaluation is said to have played. `asked` in the work folder has every command that was
begun.
"""

import json
import os
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path
from types import FrameType

from glyph.local.runs.durable import FileLock

STEP_SECONDS = 0.3
HANGS_AFTER = 3


def main(module: str, command: str, *arguments: str) -> int:
    folder = Path(arguments[0] if command == "resume" else arguments[arguments.index("--output") + 1])
    with (Path(os.environ["WORK"]) / "asked").open("a") as file:
        file.write(f"{command} {folder.name}\n")
    begun = (Path(os.environ["WORK"]) / "asked").read_text().split().count(folder.name)
    if folder.name == os.environ.get("FAIL") or (folder.name == os.environ.get("FAIL_ONCE") and begun == 1):
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    if command in ("sft", "rl", "resume"):
        lock = FileLock(folder / ".lock")
        assert lock.acquire(), f"{folder} is held"
        return train(folder, settings(folder, arguments))
    manifest = json.dumps({"model": "m"})
    if command == "evaluate":
        (folder / "config.toml").write_text(f'data = "{arguments[arguments.index("--data") + 1]}"\n')
        (folder / "manifest.json").write_text(manifest)
        shutil.copy(os.environ["TRACES"], folder / "traces.jsonl.gz")
    else:
        (folder / "plain.jsonl").write_text(json.dumps({"task_id": "t1", "solved": True}) + "\n")
        (folder / "manifest.json").write_text(manifest)
    return 0


def settings(folder: Path, arguments: tuple[str, ...]) -> dict[str, int]:
    """Of a new run, remembered for one that is resumed."""
    file = folder / "config.toml"
    if not file.exists():
        wanted = dict(text.split("=") for text in arguments if text.startswith(("rl.steps=", "checkpoints.")))
        file.write_text("".join(f'"{name}" = {value}\n' for name, value in wanted.items()))
    return tomllib.loads(file.read_text())


def train(folder: Path, given: dict[str, int]) -> int:
    steps, every = given.get("rl.steps", 1), given.get("checkpoints.every", 1)
    stops: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        stops.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if folder.name == os.environ.get("DEAF") else note)
    write_status(folder, "running")
    done = max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step_*")), default=0)
    for step in range(done + 1, steps + 1):
        while folder.name == os.environ.get("HANG") and step > HANGS_AFTER and not stops:
            time.sleep(0.05)
        if stops:
            save(folder, step - 1, given)
            write_status(folder, "interrupted")
            return 130
        time.sleep(STEP_SECONDS)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": "train", "step": step, "skipped": None}) + "\n")
        if step % every == 0:
            save(folder, step, given)
    write_status(folder, "finished")
    return 0


def save(folder: Path, step: int, given: dict[str, int]) -> None:
    target = folder / "checkpoints" / f"step_{step:06d}"
    if target.exists() or step == 0:
        return
    partial = folder / "checkpoints" / ".partial"
    partial.mkdir(parents=True)
    for name in ("model.safetensors", "training.pt"):
        (partial / name).write_text(f"{folder.name} {step}")
    (partial / "state.json").write_text('{"digests": {"model.safetensors": "abc"}}')
    partial.rename(target)
    for other in (folder / "checkpoints").glob("step_*"):
        if other < target and int(other.name[5:]) % given.get("checkpoints.keep_every", step):
            shutil.rmtree(other)


def write_status(folder: Path, status: str) -> None:
    partial = folder / "manifest.partial"
    partial.write_text(json.dumps({"status": status, "model": "m", "model_digest": "abc", "seconds": 1.0}))
    partial.rename(folder / "manifest.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[2], *(sys.argv[3:] if sys.argv[2] == "glyph" else ["plain", *sys.argv[3:]])))
