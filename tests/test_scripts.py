"""The scripts as a person runs them, in a copy of the checkout whose `.venv` is this very environment."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from glyph.evaluation.traces import read_traces
from tests.http_server import raw_server

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
STAMP = "cat pyproject.toml constraints.txt | cksum > .venv/.installed"


def tracked_files() -> list[str]:
    """What git knows or would add: the files of a fresh clone, and those that are about to be committed."""
    if not shutil.which("git"):
        pytest.skip("no git: which files make a checkout is not known")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("this is no git checkout: which files belong to it is not known")
    return [name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(ROOT / name)]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A copy of the checkout, without an environment."""
    checkout = tmp_path / "checkout"
    for name in tracked_files():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name, follow_symlinks=False)
    return checkout


@pytest.fixture
def checkout(bare: Path) -> Path:
    """A copy of the checkout whose environment is this one, as if it had been installed."""
    programs = bare / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "glyph", "eval"):
        program = programs / name  # a link would not find its pyvenv.cfg
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{bare}/src" exec "{BIN}/{name}" "$@"\n')
        program.chmod(0o755)
    subprocess.run(STAMP, shell=True, cwd=bare, check=True)
    return bare


def environment(checkout: Path, **variables: str) -> dict[str, str]:
    """Nothing of this shell but where programs are; no hub, and no model that an earlier run fetched."""
    fixed = {"HOME": str(checkout.parent), "HF_HOME": str(checkout.parent / "hub"), "HF_HUB_OFFLINE": "1"}
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", **fixed, **variables}


def script(name: str, checkout: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", f"scripts/{name}.sh", *arguments],
        cwd=checkout,
        env=environment(checkout, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


BAD = {
    "quickstart: an unknown option": ("quickstart", ["--fast"], "quickstart: unknown argument --fast"),
    "quickstart: no value": ("quickstart", ["--tasks"], "quickstart: --tasks needs a value"),
    "quickstart: no number": ("quickstart", ["--tasks", "few"], "--tasks must be a positive number, got 'few'"),
    "quickstart: none": ("quickstart", ["--tasks", "0"], "--tasks must be a positive number, got '0'"),
    "quickstart: negative": ("quickstart", ["--tasks", "-1"], "--tasks must be a positive number, got '-1'"),
    "quickstart: no such file": ("quickstart", ["--source", "no.jsonl"], "quickstart: no.jsonl: no such file"),
    "quickstart: no model folder": ("quickstart", ["--model", "./none"], "--model ./none: no such folder"),
    "evaluate: no model folder": ("evaluate", ["a", "./none", "test"], "./none: no such model folder"),
    "evaluate: nothing": ("evaluate", [], "bash scripts/evaluate.sh a|b MODEL validation|test"),
    "evaluate: no split": ("evaluate", ["a", "model"], "bash scripts/evaluate.sh a|b MODEL validation|test"),
    "evaluate: an unknown arm": ("evaluate", ["c", "m", "test"], "evaluate: the arm must be a or b, got 'c'"),
    "evaluate: an upper-case arm": ("evaluate", ["A", "m", "test"], "evaluate: the arm must be a or b, got 'A'"),
    "evaluate: an unknown split": ("evaluate", ["a", "m", "train"], "must be validation or test, got 'train'"),
    "evaluate: resume what": ("evaluate", ["--resume"], "bash scripts/evaluate.sh --resume RUN_FOLDER"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_before_anything_is_made(bare: Path, name: str) -> None:
    which, arguments, message = BAD[name]
    before = entries(bare)
    done = script(which, bare, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert message in done.stderr
    assert "bash scripts/" in done.stderr or arguments[-1] in done.stderr  # the usage, or what was wrong
    assert entries(bare) == before


def test_help_is_no_fault(bare: Path) -> None:
    done = script("quickstart", bare, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "bash scripts/quickstart.sh [--model" in done.stdout


REFUSED = {
    "no data": (["a", "m", "test"], "no prepared data in data; run python -m data.prepare --output data"),
    "no data there": (["b", "m", "validation"], "/nowhere; run python -m data.prepare"),
    "no run to resume": (["--resume", "runs/none"], "runs/none holds no config.toml, so no run to resume"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_evaluate_refuses_what_is_not_there(checkout: Path, name: str) -> None:
    arguments, message = REFUSED[name]
    before = entries(checkout)
    done = script("evaluate", checkout, *arguments, **({"DATA": "nowhere"} if "nowhere" in message else {}))
    assert done.returncode == 2
    assert message in done.stderr
    assert entries(checkout) == before


def test_evaluate_never_touches_an_existing_run(checkout: Path, tiny_data: Path) -> None:
    run = checkout / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "traces.jsonl").write_text("someone's\n")
    done = script("evaluate", checkout, "a", "m", "test", DATA=str(tiny_data), OUTPUT="runs/mine")
    assert done.returncode == 2
    assert "runs/mine holds a run already; choose another OUTPUT or --resume it" in done.stderr
    assert [(path.name, path.read_text()) for path in run.iterdir()] == [("traces.jsonl", "someone's\n")]


def test_no_fitting_python_is_said_and_nothing_is_made(bare: Path, tmp_path: Path) -> None:
    shadowed = tmp_path / "bin"
    shadowed.mkdir()
    for name in ("python3", "python3.11", "python3.12"):  # each stands for a Python of another version
        (shadowed / name).write_text("#!/bin/sh\nexit 1\n")
        (shadowed / name).chmod(0o755)
    before = entries(bare)
    done = script("quickstart", bare, PATH=f"{shadowed}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Python 3.11 or 3.12 is needed: none of python3, python3.11, python3.12 is one" in done.stderr
    assert entries(bare) == before


def test_a_changed_pin_makes_the_environment_stale(checkout: Path) -> None:
    """pip is asked again; here it is a program that fails, and the stamp stays the old one."""
    stamp = checkout / ".venv" / ".installed"
    old = stamp.read_text()
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# another\n")
    python = checkout / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "pip was asked: $*" >&2; exit 1; }\n')
    done = script("quickstart", checkout, PYTHON=sys.executable)
    assert done.returncode == 1
    assert "pip was asked: -m pip install" in done.stderr
    assert "the installation failed" in done.stderr
    assert stamp.read_text() == old
    subprocess.run(STAMP, shell=True, cwd=checkout, check=True)
    assert stamp.read_text() != old


def quickstart(checkout: Path, tasks: int, **variables: str) -> str:
    done = script("quickstart", checkout, "--output", "runs/one", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    run = checkout / "runs" / "one"
    assert f"the report is {run}/report.md" in done.stdout
    assert "NO MODEL HERE: a script plays demonstrations" in done.stdout
    assert "no model was run" in (run / "report.md").read_text()
    for arm in "ab":
        traces = read_traces(run / f"arm_{arm}").traces
        assert [trace.scored and trace.scored.reward for trace in traces] == [1.0] * tasks
        assert {trace.model for trace in traces} == {"demonstrations"}
    return done.stdout


def test_quickstart_without_hub_model_or_mbpp(checkout: Path, tiny_data: Path) -> None:
    """The two tasks in data/mini save the minute that making the mini set takes; they are no full set to validate."""
    shutil.copytree(tiny_data, checkout / "data" / "mini")
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(
        python.read_text().replace("PYTHON", '[ "$2" != data.validate ] || exec echo "asked: $*"\nPYTHON', 1)
    )
    said = quickstart(checkout, tasks=2)
    assert "NO MBPP HERE: using the project's own small task set instead" in said
    assert "asked: -m data.validate data/mini" in said
    assert "DATA=data/mini bash scripts/evaluate.sh" in said


def test_quickstart_with_mbpp(checkout: Path, mbpp_source: Path, mbpp_data: Path) -> None:
    """With data prepared before, as in every second run."""
    shutil.copytree(mbpp_data, checkout / "data", dirs_exist_ok=True)
    said = quickstart(checkout, tasks=32, MBPP_SOURCE=str(mbpp_source))
    assert "data/ is there already" in said
    assert "NO MBPP HERE" not in said
    assert "data is valid" in said
    assert not (checkout / "data" / "mini").exists()


def test_quickstart_never_writes_into_a_run(checkout: Path) -> None:
    (checkout / "runs" / "one").mkdir(parents=True)
    (checkout / "runs" / "one" / "mine").touch()
    before = entries(checkout)
    done = script("quickstart", checkout, "--output", "runs/one")
    assert done.returncode == 2
    assert "runs/one is not empty" in done.stderr
    assert entries(checkout) == before


def test_quickstart_stops_at_a_bad_copy_of_mbpp(checkout: Path, tmp_path: Path) -> None:
    source = tmp_path / "mbpp.jsonl"
    source.write_text("no JSON\n")
    done = script("quickstart", checkout, "--source", str(source))
    assert done.returncode not in (0, 3)
    assert "mbpp.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert "NO MBPP HERE" not in done.stdout  # a named copy is never replaced by another task set
    assert not (checkout / "runs").exists()


@contextmanager
def scripted_endpoint(checkout: Path, data: Path, split: str) -> Iterator[str]:
    """The base URL of `benchmarks.scripted`, a process of its own as a real endpoint is."""
    command = [checkout / ".venv/bin/python", "-m", "benchmarks.scripted", data, split]
    with subprocess.Popen(
        command, cwd=checkout, env=environment(checkout), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def test_evaluate_at_an_endpoint_and_resume(checkout: Path, tiny_data: Path) -> None:
    run = checkout / "runs" / "one"
    with scripted_endpoint(checkout, tiny_data, "validation") as url:
        options = {"DATA": str(tiny_data), "OUTPUT": str(run), "BASE_URL": url}
        done = script("evaluate", checkout, "b", "scripted/gold", "validation", "-n", "1", "-r", "3", **options)
        assert done.returncode == 0, done.stdout + done.stderr
        whole = read_traces(run).traces
        assert [trace.scored and trace.scored.reward for trace in whole] == [1.0] * 3
        assert {(trace.task_id, trace.arm) for trace in whole} == {("tiny-1", "b")}
        assert json.loads((run / "manifest.json").read_text())["versions"]["verifiers"]
        assert "3 rollouts scored" in (run / "report.md").read_text()

        path = run / "traces.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]))
        done = script("evaluate", checkout, "--resume", "runs/one", BASE_URL=url)
    assert done.returncode == 0, done.stdout + done.stderr
    resumed = path.read_bytes().splitlines(keepends=True)
    assert set(lines[:-1]) < set(resumed)
    assert [trace.scored and trace.scored.reward for trace in read_traces(run).traces] == [1.0] * 3
    assert "3 rollouts scored" in (run / "report.md").read_text()
    assert not (run / "served").exists()  # an endpoint is not ours to start or stop


def test_evaluate_says_where_the_failure_stands(checkout: Path, tiny_data: Path) -> None:
    run = checkout / "runs" / "one"
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # answers 501 to everything
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"DATA": str(tiny_data), "OUTPUT": str(run), "BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}
        done = script("evaluate", checkout, "a", "m", "validation", "--no-such-option", "1", **options)
        server.shutdown()
    assert done.returncode == 1
    assert not (run / "report.md").exists()
    assert "eval failed" in done.stderr
    assert "no-such-option" in done.stderr


def test_evaluate_says_that_nobody_answers(checkout: Path, tiny_data: Path) -> None:
    with raw_server() as server:
        url = server.url
    done = script("evaluate", checkout, "a", "m", "validation", DATA=str(tiny_data), OUTPUT="runs/one", BASE_URL=url)
    assert done.returncode == 1
    assert f"evaluate: nothing answers at {url}" in done.stderr
    assert not (checkout / "runs" / "one" / "traces.jsonl").exists()


def test_test_sh_hands_its_arguments_to_pytest(checkout: Path) -> None:
    (checkout / ".venv" / ".installed").rename(checkout / ".venv" / ".installed-dev")
    done = script("test", checkout, "--co", "tests/test_workspace.py", TEST_WORKERS="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_workspace.py::test_a_project_begins_with_one_line" in done.stdout
    assert "test_episode.py" not in done.stdout
