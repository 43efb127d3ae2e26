#!/usr/bin/env python3
"""Stands in for PRIME-RL's `sft`, `rl` and `inference`, in tests of the scripts around them: says what it was asked.

A run that is not resumed is refused where its folder holds a checkpoint, as by the pin's `validate_output_dir`, and one
that is resumed after its last step never ends. A run has 100 steps, whatever it is asked.
FAIL ends it with exit code 3. HANG lets it wait for Ctrl-C, with a child of its own. `inference` answers every request
until it is stopped, with a child too.
"""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def main(program: str, *arguments: str) -> int:
    says = {"program": program, "arguments": arguments, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    says["programs"] = os.environ["PATH"].split(":")[0]
    print(json.dumps(says), flush=True)
    if program != "inference":
        write_config(program, Path(arguments[arguments.index("--output-dir") + 1]))
    if "FAIL" in os.environ:
        print("the GPU is on fire", file=sys.stderr)
        return 3
    if program == "inference":
        serve(int(arguments[arguments.index("--server.port") + 1]))
    output = Path(arguments[arguments.index("--output-dir") + 1])
    if "--ckpt.resume-step" not in arguments and any(output.glob("checkpoints/*")):
        raise FileExistsError(f"Directory '{output}' already contains checkpoints from a previous run.")
    if "HANG" in os.environ or arguments[-1] == "100":
        return hang()
    if "--dry-run" not in arguments and "--slurm.partition" not in arguments:
        for step in ("step_25", "step_100"):
            (output / "weights" / step).mkdir(parents=True, exist_ok=True)
            (output / "weights" / step / "STABLE").touch()
    return 0


def write_config(program: str, output: Path) -> None:
    file = output / "configs" / ("sft.toml" if program == "sft" else "trainer.toml")
    file.parent.mkdir(exist_ok=True)
    file.write_text("max_steps = 100\n\n[ckpt]\nmax_steps = 7\n")


def have_a_child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(json.dumps({"pids": [os.getpid(), child.pid]}), flush=True)


def hang() -> int:
    try:
        have_a_child()
        time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    return 1


def serve(port: int) -> None:
    have_a_child()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, *sys.argv[1:]))
