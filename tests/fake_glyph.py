#!/usr/bin/env python3
"""Stands in for the `glyph` command where a test is about the scripts around it: a run takes a moment, and is scripted.

FAIL names a folder whose command ends with exit code 3. HANG names one whose command waits for Ctrl-C; with STUBBORN it
takes two. TRACES holds sft.jsonl.gz and rl.jsonl.gz, what the evaluations after each stage are said to have played.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType


def main(command: str, *arguments: str) -> int:
    print("asked:", command, *arguments, flush=True)
    if command == "parity":
        return 0
    if command in ("resume", "report"):
        folder = Path(arguments[0])
    else:
        folder = Path(arguments[arguments.index("--output") + 1]) if "--output" in arguments else Path(".")
    folder.mkdir(parents=True, exist_ok=True)
    if command in ("sft", "rl", "resume"):
        (folder / "manifest.json").write_text(json.dumps({"status": "running"}))
    print("\x1b[1mstep 1\x1b[0m of  2\nLoading weights: 100%|███| 57/57", flush=True)
    if os.environ.get("HANG") == folder.name:
        return wait_for_interrupts(1 + ("STUBBORN" in os.environ))
    if os.environ.get("FAIL") == folder.name:
        print("the disk is full", file=sys.stderr)
        return 3
    if command in ("sft", "rl", "resume"):
        (folder / "manifest.json").write_text(json.dumps({"status": "finished"}))
    elif command == "evaluate" and "TRACES" in os.environ:
        stage = folder.name.split("-")[1]
        shutil.copy(Path(os.environ["TRACES"]) / f"{stage}.jsonl.gz", folder / "traces.jsonl.gz")
    return 0


def wait_for_interrupts(number: int) -> int:
    heard = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        print(f"interrupt {len(heard)}", flush=True)

    signal.signal(signal.SIGINT, note)
    print("hanging", flush=True)
    while len(heard) < number:
        time.sleep(0.05)
    return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
