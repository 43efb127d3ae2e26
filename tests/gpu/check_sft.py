"""Check that SFT on a GPU is repeatable: twice at once, and the weights must be equal to the bit.

    PYTHONPATH=src python tests/gpu/check_sft.py [--steps 8] [--device cuda] [KEY=VALUE ...]

The mini model and its data by default; `--scale small --model DIR --data DIR` takes a real one.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from glyph.local.runs.checkpoint_folders import checkpoints, recorded_sha256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", default="mini")
    parser.add_argument("--model")
    parser.add_argument("--data", type=Path)
    parser.add_argument("settings", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (data := asked.data) is None:
            data = folder / "data"
            glyph("prepare", "--tasks", "mini", "--output", data).wait()
        options = ["--scale", asked.scale, "--device", asked.device, "--data", data]
        options += ["--model", asked.model] if asked.model else []
        settings = [f"sft.steps={asked.steps}", f"checkpoints.every={asked.steps}", "dtype=bfloat16", *asked.settings]
        runs = [folder / "one", folder / "two"]
        both = [glyph("sft", "b", *options, "--output", run, *settings) for run in runs]
        if {each.wait() for each in both} != {0}:
            sys.exit("a run failed")
        digests = [recorded_sha256(checkpoints(run / "checkpoints")[-1]) for run in runs]
    print("\n".join(map(str, digests)))
    sys.exit("the weights differ" if len(set(digests)) > 1 else 0)


def glyph(*arguments: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "glyph", *map(str, arguments)])


if __name__ == "__main__":
    main()
