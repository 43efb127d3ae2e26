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
from tests.checkouts import STAMP, bare_checkout, entries, environment, give_tiny_data, refusal, script, whole_checkout
from tests.http_server import raw_server

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return bare_checkout(tmp_path / "checkout")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests in which nothing is made."""
    return bare_checkout(tmp_path_factory.mktemp("untouched") / "checkout")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return whole_checkout(tmp_path / "checkout")


BAD = {
    "quickstart: an unknown option": ("quickstart", ["--fast"], "quickstart: unknown argument --fast"),
    "quickstart: no value": ("quickstart", ["--seeds"], "quickstart: --seeds needs a value"),
    "quickstart: no seed": ("quickstart", ["--seeds", " "], "quickstart: --seeds needs a number"),
    "quickstart: a seed of words": ("quickstart", ["--seeds", "42 some"], "--seeds must be numbers, got 'some'"),
    "quickstart: negative": ("quickstart", ["--seeds", "-1"], "--seeds must be numbers, got '-1'"),
    "quickstart: octal": ("quickstart", ["--seeds", "042"], "--seeds must be numbers, got '042'"),
    "quickstart: a seed twice": ("quickstart", ["--seeds", "1 2 1"], "--seeds names a seed twice: 1 2 1"),
    "quickstart: no setting": ("quickstart", ["--rl", "a=1 steps"], "--sft and --rl take key=value, got 'steps'"),
    "quickstart: resume what": ("quickstart", ["--resume", "runs/no"], "runs/no holds no quickstart.json, so no"),
    "quickstart: resume and more": ("quickstart", ["--resume", ".", "--seeds", "1"], "--resume takes no other"),
    "quickstart: a file": ("quickstart", ["--output", "README.md"], "--output README.md is not an empty folder"),
    "first_rollouts: an unknown option": ("first_rollouts", ["--fast"], "first_rollouts: unknown argument --fast"),
    "first_rollouts: no value": ("first_rollouts", ["--tasks"], "first_rollouts: --tasks needs a value"),
    "first_rollouts: no number": ("first_rollouts", ["--tasks", "few"], "must be a positive number, got 'few'"),
    "first_rollouts: none": ("first_rollouts", ["--tasks", "0"], "--tasks must be a positive number, got '0'"),
    "first_rollouts: negative": ("first_rollouts", ["--tasks", "-1"], "must be a positive number, got '-1'"),
    "first_rollouts: no such file": ("first_rollouts", ["--source", "no.jsonl"], "no.jsonl: no such file"),
    "first_rollouts: no model folder": ("first_rollouts", ["--model", "./none"], "--model ./none: no such folder"),
    "train_sft: no arm": ("train_sft", [], "train_sft: which arm? a or b"),
    "train_sft: an unknown arm": ("train_sft", ["c"], "train_sft: unknown argument c"),
    "train_sft: two arms": ("train_sft", ["a", "b"], "train_sft: two arms: a and b"),
    "train_sft: an unknown option": ("train_sft", ["a", "--fast"], "train_sft: unknown option --fast"),
    "train_sft: an option as a setting": ("train_sft", ["a", "--seed=4"], "train_sft: unknown option --seed=4"),
    "train_sft: no value": ("train_sft", ["a", "--seed"], "train_sft: --seed needs a value"),
    "train_sft: a seed of words": ("train_sft", ["a", "--seed", "x1"], "--seed must be a number, got 'x1'"),
    "train_sft: an empty seed": ("train_sft", ["a", "--seed", ""], "--seed must be a number, got ''"),
    "train_sft: a device": ("train_sft", ["a", "--device", "mps"], "--device must be auto, cpu or cuda, got 'mps'"),
    "train_sft: an unknown scale": ("train_sft", ["a", "--scale", "big"], "must be mini, small or paper, got 'big'"),
    "train_sft: no model folder": ("train_sft", ["a", "--model", "runs/no"], "--model runs/no: no such folder"),
    "train_sft: no config": ("train_sft", ["a", "--config", "no.toml"], "--config no.toml: no such file"),
    "train_sft: an output with things": ("train_sft", ["a", "--output", "docs"], "--output docs is not an empty"),
    "train_sft: resume what": ("train_sft", ["--resume", "docs"], "docs holds no manifest.json, so no run to resume"),
    "train_sft: resume and more": ("train_sft", ["--resume", "docs", "a"], "--resume takes no other argument"),
    "train_rl: no model": ("train_rl", ["b"], "train_rl: which model? --model the arm's SFT run"),
    "train_rl: no model folder": ("train_rl", ["b", "--model", "runs/no"], "--model runs/no: no such folder"),
    "train_rl: none for small": ("train_rl", ["b", "--scale", "small", "--model", "./no"], "--model ./no: no such"),
    "evaluate: no model folder": ("evaluate", ["a", "./none", "test"], "./none: no such model folder"),
    "evaluate: nothing": ("evaluate", [], "[--serve] a|b MODEL validation|test"),
    "evaluate: no split": ("evaluate", ["a", "model"], "[--serve] a|b MODEL validation|test"),
    "evaluate: an unknown arm": ("evaluate", ["c", "m", "test"], "evaluate: the arm must be a or b, got 'c'"),
    "evaluate: an upper-case arm": ("evaluate", ["A", "m", "test"], "evaluate: the arm must be a or b, got 'A'"),
    "evaluate: an unknown split": ("evaluate", ["a", "m", "train"], "must be validation or test, got 'train'"),
    "evaluate: resume what": ("evaluate", ["--resume"], "bash scripts/evaluate.sh --resume RUN_FOLDER"),
    "evaluate: no scale": ("evaluate", ["--scale"], "--scale must be mini, small or paper"),
    "evaluate: an unknown scale": ("evaluate", ["--scale", "big", "a", "m", "test"], "--scale must be mini, small or"),
    "evaluate: a late scale": ("evaluate", ["a", "m", "test", "--scale", "mini"], "evaluate: --scale comes first"),
    "evaluate: no mini model": ("evaluate", ["--scale", "mini", "a", "m", "test"], "m: no such model folder"),
    "evaluate: no mini resume": ("evaluate", ["--scale", "mini", "--resume", "m"], "there is nothing to resume"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_before_anything_is_made(untouched: Path, name: str) -> None:
    which, arguments, message = BAD[name]
    said = refusal(which, untouched, *arguments)
    assert message in said
    assert "bash scripts/" in said or arguments[-1] in said  # the usage, or what was wrong


HELP = {
    "quickstart": 'bash scripts/quickstart.sh [--seeds "42 43 44"]',
    "first_rollouts": "bash scripts/first_rollouts.sh [--model",
    "train_sft": "bash scripts/train_sft.sh a|b [--scale mini|small]",
    "train_rl": "bash scripts/train_rl.sh a|b --model SFT_RUN",
    "evaluate": "bash scripts/evaluate.sh --scale mini|small a|b MODEL",
}


@pytest.mark.parametrize("name", HELP)
def test_help_is_no_fault(name: str) -> None:
    done = script(name, ROOT, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert HELP[name] in done.stdout
    assert "set -" not in done.stdout
    assert "#" not in done.stdout


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


def first_rollouts(checkout: Path, tasks: int, **variables: str) -> str:
    done = script("first_rollouts", checkout, "--output", "runs/one", **variables)
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


def test_first_rollouts_without_hub_model_or_mbpp(checkout: Path, tiny_data: Path) -> None:
    """The two tasks in data/mini save the minute that making the mini set takes; they are no full set to validate."""
    shutil.copytree(tiny_data, checkout / "data" / "mini")
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(
        python.read_text().replace("PYTHON", '[ "$2" != data.validate ] || exec echo "asked: $*"\nPYTHON', 1)
    )
    said = first_rollouts(checkout, tasks=2)
    assert "NO MBPP HERE: using the project's own small task set instead" in said
    assert "asked: -m data.validate data/mini" in said
    assert "DATA=data/mini bash scripts/evaluate.sh" in said


def test_first_rollouts_with_mbpp(checkout: Path, mbpp_source: Path, mbpp_data: Path) -> None:
    """With data prepared before, as in every second run."""
    shutil.copytree(mbpp_data, checkout / "data", dirs_exist_ok=True)
    said = first_rollouts(checkout, tasks=32, MBPP_SOURCE=str(mbpp_source))
    assert "data/ is there already" in said
    assert "NO MBPP HERE" not in said
    assert "data is valid" in said
    assert not (checkout / "data" / "mini").exists()


def test_first_rollouts_never_writes_into_a_run(checkout: Path) -> None:
    (checkout / "runs" / "one").mkdir(parents=True)
    (checkout / "runs" / "one" / "mine").touch()
    before = entries(checkout)
    done = script("first_rollouts", checkout, "--output", "runs/one")
    assert done.returncode == 2
    assert "runs/one is not empty" in done.stderr
    assert entries(checkout) == before


def test_first_rollouts_stops_at_a_bad_copy_of_mbpp(checkout: Path, tmp_path: Path) -> None:
    source = tmp_path / "mbpp.jsonl"
    source.write_text("no JSON\n")
    done = script("first_rollouts", checkout, "--source", str(source))
    assert done.returncode not in (0, 3)
    assert "mbpp.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert "NO MBPP HERE" not in done.stdout  # a named copy is never replaced by another task set
    assert not (checkout / "runs").exists()


@pytest.fixture
def faked(checkout: Path, tiny_data: Path) -> Path:
    """With tiny data and a `glyph` that only says what it was asked."""
    give_tiny_data(checkout, tiny_data)
    program = checkout / ".venv" / "bin" / "glyph"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/fake_glyph.py" "$@"\n')
    return checkout


def test_training_hands_its_options_on(faked: Path) -> None:
    """Folders are taken from where the caller stands, and the scripts from anywhere."""
    (faked / "docs" / "mine.toml").write_text("[rl]\nsteps = 3\n")
    (faked / "docs" / "sft").mkdir()
    options = ["--model", "sft", "--config", "mine.toml", "--output", "out", "--seed", "5", "credit.alpha=0"]
    done = subprocess.run(
        ["bash", "../scripts/train_rl.sh", "--scale", "mini", *options, "b", "--device", "cpu"],
        cwd=faked / "docs", env=environment(faked), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here = faked / "docs"
    handed_on = f"--config {here}/mine.toml --output {here}/out --seed 5 credit.alpha=0 --device cpu"
    assert f"asked: rl b --scale mini --data data/mini {handed_on} --model {here}/sft\n" in done.stdout

    done = script("train_sft", faked, "--resume", "docs/out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"asked: resume {here}/out\n")


def test_training_refuses_bad_settings_before_it_prepares_data(checkout: Path) -> None:
    before = entries(checkout)
    done = script("train_sft", checkout, "a", "sft.stepz=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "sft of arm a: override 'sft.stepz=3': unknown key 'sft.stepz'; did you mean 'sft.steps'" in done.stderr
    done = script("train_sft", checkout, "a", "--scale", "small", "device=cpu")
    assert done.returncode == 2
    assert "scale 'small' needs a CUDA GPU, got device 'cpu'" in done.stderr
    assert entries(checkout) == before


def test_tiny_sft(checkout: Path, tiny_data: Path) -> None:
    give_tiny_data(checkout, tiny_data)
    done = script("train_sft", checkout, "b", "--output", "runs/sft", "sft.steps=6", "sft.batch_size=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"next: glyph rl b --scale mini --model {checkout}/runs/sft" in done.stdout
    manifest = json.loads((checkout / "runs" / "sft" / "manifest.json").read_text())
    assert (manifest["status"], manifest["arm"], manifest["stage"]) == ("finished", "b", "sft")


def test_data_are_validated_again_only_when_they_changed(faked: Path) -> None:
    """The tiny set is no whole one, so that a second look at it finds its faults."""
    assert script("train_sft", faked, "a").returncode == 0
    with (faked / "data" / "mini" / "arm_a_test.jsonl").open("a") as file:
        file.write("\n")
    done = script("train_sft", faked, "a")
    assert done.returncode == 1
    assert "data/mini/arm_a_test.jsonl:3: no JSON object" in done.stderr
    assert "asked:" not in done.stdout


def test_evaluate_in_process_knows_what_a_run_knows(faked: Path) -> None:
    """A model folder is told the data; a run of the engine has its own."""
    for name in ("model", "run"):
        (faked / "runs" / name).mkdir(parents=True)
    (faked / "runs" / "run" / "config.toml").touch()
    for name, data in (("model", " --data data/mini"), ("run", "")):
        arguments = ("a", f"runs/{name}", "test", "rl.steps=1")
        done = script("evaluate", faked, "--scale", "mini", *arguments, OUTPUT="runs/e")
        assert done.returncode == 0, done.stderr
        evaluate, report = [line for line in done.stdout.splitlines() if line.startswith("asked: ")]
        folder, output = faked / "runs" / name, faked / "runs" / "e"
        options = f"--arm a --scale mini --split test{data} --output {output} rl.steps=1"
        assert evaluate == f"asked: evaluate {folder} {options}"
        assert report == f"asked: report {output} --output {output}"


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
    give_tiny_data(checkout, tiny_data)
    run = checkout / "runs" / "one"
    with scripted_endpoint(checkout, tiny_data, "validation") as url:
        options = {"DATA": "data/mini", "OUTPUT": str(run), "BASE_URL": url}
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
    give_tiny_data(checkout, tiny_data)
    run = checkout / "runs" / "one"
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # answers 501 to everything
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"DATA": "data/mini", "OUTPUT": str(run), "BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}
        done = script("evaluate", checkout, "a", "m", "validation", "--no-such-option", "1", **options)
        server.shutdown()
    assert done.returncode == 1
    assert not (run / "report.md").exists()
    assert "eval failed" in done.stderr
    assert "no-such-option" in done.stderr


def test_evaluate_says_that_nobody_answers(checkout: Path, tiny_data: Path) -> None:
    give_tiny_data(checkout, tiny_data)
    with raw_server() as server:
        url = server.url
    done = script("evaluate", checkout, "a", "m", "validation", DATA="data/mini", OUTPUT="runs/one", BASE_URL=url)
    assert done.returncode == 1
    assert f"evaluate: nothing answers at {url}" in done.stderr
    assert not (checkout / "runs" / "one" / "traces.jsonl").exists()


def test_test_sh_hands_its_arguments_to_pytest(checkout: Path) -> None:
    (checkout / ".venv" / ".installed").rename(checkout / ".venv" / ".installed-dev")
    done = script("test", checkout, "--co", "tests/test_workspace.py", TEST_WORKERS="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_workspace.py::test_a_project_begins_with_one_line" in done.stdout
    assert "test_episode.py" not in done.stdout
