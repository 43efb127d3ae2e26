"""scripts/study.sh: what it hands on, and the multi-process service that it starts and ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = '#!/bin/sh\necho "python $* pipe=$CUDA_MPS_PIPE_DIRECTORY" >> "$SAID"\nexit ${STATUS:-0}\n'
SERVICE = '#!/bin/sh\necho "mps $*$(if [ $# = 0 ]; then cat; fi)" >> "$SAID"\n'


def study(
    folder: Path,
    *options: str,
    service: bool = True,
    python: str = PYTHON,
    send: signal.Signals | None = None,
    **variables: str,
) -> "subprocess.CompletedProcess[str]":
    """Run the script with fake programs; `send` reaches it once the runs have begun."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"fake": python, **({"nvidia-cuda-mps-control": SERVICE} if service else {})}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    data = folder / "data"
    data.mkdir()
    (data / "manifest.json").write_text("{}")
    given = (
        "--scale",
        "mini",
        "--work",
        str(folder / "work"),
        "--results",
        str(folder / "results"),
        "--data",
        str(data),
    )
    said = folder / "said"
    with subprocess.Popen(
        ["bash", "scripts/study.sh", *given, "--python", str(programs / "fake"), *options],
        cwd=ROOT,
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SAID": str(said), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    ) as started:
        while send and not (said.exists() and "runs" in said.read_text()):
            time.sleep(0.05)
        if send:
            started.send_signal(send)
        out, errors = started.communicate(timeout=60)
    return subprocess.CompletedProcess(started.args, started.returncode, out, errors)


@pytest.mark.parametrize("status", ["0", "3"])
def test_the_service_lasts_as_long_as_the_runs(tmp_path: Path, status: str) -> None:
    done = study(tmp_path, "--visit", "1", "--mps", STATUS=status)
    assert done.returncode == int(status), done.stderr
    begun, runs, ended = (tmp_path / "said").read_text().splitlines()
    assert (begun, ended) == ("mps -d", "mps quit")
    assert "-m study run" in runs
    assert "--visit 1" in runs
    pipe = Path(runs.rpartition("pipe=")[2])
    assert pipe.is_absolute()
    assert not pipe.exists()


def test_without_it_the_processes_take_turns(tmp_path: Path) -> None:
    assert study(tmp_path).returncode == 0
    [runs] = (tmp_path / "said").read_text().splitlines()
    assert runs.endswith("pipe=")


def test_a_machine_without_the_service_is_told(tmp_path: Path) -> None:
    done = study(tmp_path, "--mps", service=False)
    assert done.returncode == 2
    assert "there is no nvidia-cuda-mps-control here" in done.stderr
    assert not (tmp_path / "said").exists()


def test_a_signal_reaches_the_runs_and_the_service_ends_after_them(tmp_path: Path) -> None:
    slow = (
        '#!/bin/sh\ntrap \'echo stopped >> "$SAID"; exit 3\' TERM\necho runs >> "$SAID"\nwhile :; do sleep 0.1; done\n'
    )
    done = study(tmp_path, "--mps", "--visit", "1", python=slow, send=signal.SIGTERM)
    assert done.returncode == 3
    assert (tmp_path / "said").read_text().splitlines() == ["mps -d", "runs", "stopped", "mps quit"]
