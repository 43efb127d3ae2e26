"""The scripts at the paper scale, in a copy of the checkout where fakes stand in for PRIME-RL's programs."""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.checkouts import bare_checkout, entries, environment, give_tiny_data, refusal, script, whole_checkout
from tests.prime_rl_checkout import ROOT
from tests.prime_rl_configs import resolve
from tests.tiny_model import save_tiny_model, tiny_tokenizer

PROGRAMS = ".vendor/prime-rl/.venv/bin"


def give_prime_rl(checkout: Path) -> Path:
    folder = checkout / PROGRAMS
    folder.mkdir(parents=True)
    for name in ("sft", "rl", "inference"):
        (folder / name).write_text(f"#!{sys.executable}\n{(ROOT / 'tests' / 'fake_prime_rl.py').read_text()}")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests in which nothing is made: a checkout with a model folder and runs, and no PRIME-RL."""
    checkout = bare_checkout(tmp_path_factory.mktemp("untouched") / "checkout")
    save_tiny_model(checkout / "model")
    done = checkout / "runs" / "done"
    save_tiny_model(done / "weights" / "step_60")
    (done / "finished").touch()
    (done / "manifest.json").write_text('{\n  "plan": {\n    "arm": "b"\n  }\n}\n')
    command = f"sft b\n{checkout}/{PROGRAMS}/sft\n--output-dir\n{done}\n"
    for name, text in (
        ("done", command),
        ("moved", command),
        ("foreign", command.replace(PROGRAMS, "x").replace("done", "foreign")),
        ("bare", command.partition("\n")[2]),
    ):
        (checkout / "runs" / name).mkdir(exist_ok=True)
        (checkout / "runs" / name / "command").write_text(text)
    return checkout


@pytest.fixture
def paper(tmp_path: Path, tiny_data: Path) -> Path:
    checkout = whole_checkout(tmp_path / "checkout")
    give_tiny_data(checkout, tiny_data)
    give_prime_rl(checkout)
    save_tiny_model(checkout / "model")
    return checkout


TRAIN = ["a", "--scale", "paper"]
BAD = {
    "no arm": ("train_sft", ["--scale", "paper"], "train_sft: which arm? a or b"),
    "two arms": ("train_sft", [*TRAIN, "b"], "two arms: a and b"),
    "two scales": ("train_rl", [*TRAIN, "--scale", "mini"], "two scales: paper and mini"),
    "no base": ("train_sft", TRAIN, "--model the folder that glyph make-base made"),
    "no checkpoint": ("train_rl", TRAIN, "--model the arm's SFT checkpoint: RUN/weights/step_N"),
    "no model folder": ("train_rl", [*TRAIN, "--model", "docs"], "--model docs: no model folder (no config.json)"),
    "no value": ("train_rl", [*TRAIN, "--model"], "--model needs a value"),
    "a seed of words": ("train_rl", [*TRAIN, "--seed", "4x"], "--seed must be a number, got '4x'"),
    "GPUs": ("train_rl", [*TRAIN, "--gpus", "three"], "--gpus must be two or shared, got 'three'"),
    "GPUs of SFT": ("train_sft", [*TRAIN, "--gpus", "shared"], "--gpus is of RL: SFT has one GPU"),
    "no config": ("train_rl", [*TRAIN, "--config", "no.toml"], "--config no.toml: no such file"),
    "a key": ("train_rl", [*TRAIN, "credit.alpha=0"], "unknown argument credit.alpha=0; options of PRIME-RL itself"),
    "an option": ("train_rl", [*TRAIN, "--max-steps", "2"], "unknown option --max-steps; options of PRIME-RL itself"),
    "a line break": ("train_rl", [*TRAIN, "--", "a\nb"], "an argument after -- holds a line break"),
    "an output": (
        "train_sft",
        [*TRAIN, "--model", "model", "--output", "docs"],
        "--output docs is not an empty folder",
    ),
    "no PRIME-RL": ("train_sft", [*TRAIN, "--model", "model"], "first: bash scripts/setup.sh --prime-rl"),
    "an output after --": (
        "train_rl",
        [*TRAIN, "--", "--output-dir", "x"],
        "the folder of the run is given by --output",
    ),
    "an empty output": ("train_sft", [*TRAIN, "--output", ""], "--output needs a value"),
    "data that are not there": (
        "train_sft",
        [*TRAIN, "--model", "model", "--data", "dta"],
        "--data dta: no prepared data (no manifest.json)",
    ),
    "the other arm's model": (
        "train_rl",
        [*TRAIN, "--model", "runs/done/weights/step_60"],
        "step_60 is a model of arm b, not of arm a",
    ),
    "evaluate the other arm's": ("evaluate", ["a", "runs/done/weights/step_60", "test"], "is a model of arm b, not of"),
    "resume what": ("train_rl", ["--scale", "paper", "--resume", "docs"], "docs holds no command, so no run to resume"),
    "resume where": ("train_rl", ["--resume", "/nowhere", "--scale", "paper"], "/nowhere holds no command, so no run"),
    "resume what was moved": ("train_sft", ["--resume", "runs/moved"], "runs/moved was moved: the run was made as /"),
    "resume another's": ("train_sft", ["--resume", "runs/foreign"], "runs/foreign/command is none of this checkout"),
    "resume what says nothing": ("train_sft", ["--resume", "runs/bare"], "runs/bare/command is none of this checkout"),
    "resume and more": ("train_sft", ["--resume", "runs/done", "a"], "--resume takes no other argument"),
    "resume the end": ("train_sft", ["--resume", "runs/done"], "runs/done is finished; its checkpoints are in"),
    "serve a name": ("evaluate", ["--serve", "a", "gpt", "test"], "--serve takes a model folder, and gpt is none"),
    "serve without": ("evaluate", ["--serve", "a", "model", "test"], "first: bash scripts/setup.sh --prime-rl"),
    "serve late": ("evaluate", ["a", "model", "test", "--serve"], "--scale comes first, then --serve"),
    "serve mini": ("evaluate", ["--scale", "mini", "--serve", "a", "model", "test"], "--serve is of the paper scale"),
    "serve a resumed": ("evaluate", ["--serve", "--resume", "runs/done"], "leave --serve out"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_before_anything_is_made(untouched: Path, name: str) -> None:
    which, arguments, message = BAD[name]
    assert message in refusal(which, untouched, *arguments)


def test_seconds_to_wait_must_be_a_number(untouched: Path) -> None:
    done = script("evaluate", untouched, "a", "model", "test", READY_SECONDS="2m")
    assert (done.returncode, done.stdout) == (2, "")
    assert "READY_SECONDS must be a number, got '2m'" in done.stderr


def test_print_says_what_would_run_and_makes_nothing(untouched: Path) -> None:
    before = entries(untouched)
    options = ["--model", "model", "--output", "runs/new", "--seed", "43", "--gpus", "shared", "--print"]
    done = script("train_rl", untouched, "b", "--scale", "paper", *options, "--", "--max-steps", "2")
    assert (done.returncode, done.stderr) == (0, "")
    given = untouched / "runs/new/given"
    assert shlex.split(done.stdout) == [
        f"PATH={untouched}/{PROGRAMS}:$PATH",
        *("env", "CUDA_VISIBLE_DEVICES=0,0", f"{untouched}/{PROGRAMS}/rl"),
        *("@", f"{given}/0-arm_b_rl.toml", "@", f"{given}/1-one_gpu.toml"),
        *("--model.name", f"{untouched}/model", "--output-dir", f"{untouched}/runs/new", "--inference.seed", "43"),
        *("--max-steps", "2"),
    ]
    assert entries(untouched) == before


def train(checkout: Path, stage: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    options = ["--scale", "paper", "--data", "data/mini", "--model", "model", "--output", "runs/one"]
    return script(f"train_{stage}", checkout, *options, *arguments, **variables)


def asked(run: Path) -> dict[str, Any]:
    """What the newest program of a run was asked."""
    lines = [json.loads(line) for line in (run / "log").read_text().splitlines() if line.startswith('{"program"')]
    return dict(lines[-1])


def test_sft_records_what_it_runs(paper: Path) -> None:
    done = train(paper, "sft", "b", "--seed", "7", "--", "--max-steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    run = paper / "runs" / "one"
    assert asked(run) == {
        "program": "sft",
        "arguments": [
            *("@", f"{run}/given/0-arm_b_sft.toml", "--model.name", f"{paper}/model", "--output-dir", str(run)),
            *("--data.seed", "7", "--max-steps", "2"),
        ],
        "gpus": None,
        "programs": f"{paper}/{PROGRAMS}",
    }
    assert (run / "log").read_text() in done.stdout
    original = (paper / "configs/paper/arm_b_sft.toml").read_text()
    given = (run / "given" / "0-arm_b_sft.toml").read_text()
    assert given == original.replace('"data/sft/arm_b"', f'"{paper}/data/mini/sft/arm_b"') != original
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["plan"]["stage"], manifest["plan"]["arm"], manifest["plan"]["scale"]) == ("sft", "b", "paper")
    about, *command = (run / "command").read_text().splitlines()
    assert (about, " ".join(command)) == ("sft b", manifest["plan"]["command"])
    assert f"the model is {run}/weights/step_100" in done.stdout
    assert f"next: bash scripts/train_rl.sh b --scale paper --model {run}/weights/step_100" in done.stdout

    again = script("train_sft", paper, "--resume", "runs/one")
    assert again.returncode == 2
    assert "runs/one is finished" in again.stderr


def test_rl_layers_its_configuration(paper: Path) -> None:
    (paper / "mine.toml").write_text('[orchestrator.algo]\nalpha = 0.0\n[wandb]\nname = "data/b"\n')
    done = train(paper, "rl", "b", "--gpus", "shared", "--config", "mine.toml", CUDA_VISIBLE_DEVICES="3,4")
    assert done.returncode == 0, done.stdout + done.stderr
    run = paper / "runs" / "one"
    said = asked(run)
    files = [f"{run}/given/{name}" for name in ("0-arm_b_rl.toml", "1-one_gpu.toml", "2-mine.toml")]
    assert said["arguments"][:6] == ["@", files[0], "@", files[1], "@", files[2]]
    assert said["gpus"] == "3,3"
    assert Path(files[1]).read_text() == (paper / "configs/paper/one_gpu.toml").read_text()
    assert Path(files[2]).read_text() == (paper / "mine.toml").read_text()  # what is not ours stays as it is
    assert Path(files[0]).read_text().count(f'data = "{paper}/data/mini"') == 2
    assert f"next: bash scripts/evaluate.sh --scale paper --serve b {run}/weights/step_100 test" in done.stdout


def test_a_dry_run_ends_without_a_model(paper: Path) -> None:
    done = train(paper, "rl", "a", "--", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"PRIME-RL's own files are in {paper}/runs/one; there is no model yet" in done.stdout
    assert not (paper / "runs" / "one" / "finished").exists()


def test_a_failed_run_goes_on_from_its_newest_whole_checkpoint(paper: Path) -> None:
    done = train(paper, "rl", "a", "--seed", "43", FAIL="1")
    run = paper / "runs" / "one"
    assert done.returncode == 3
    assert "the GPU is on fire" in done.stdout
    assert f"rl ended with exit status 3; go on: bash scripts/train_rl.sh --resume {run}" in done.stderr
    first = asked(run)["arguments"]

    assert script("train_rl", paper, "--resume", "runs/one", FAIL="1").returncode == 3
    assert asked(run)["arguments"] == first  # nothing was saved: it starts over

    for step, parts in ((25, 3), (9, 3), (50, 1), (75, 2)):  # of the last two not all reached the disk
        give_checkpoint(run, *CHECKPOINT[:parts], step=step)
    done = script("train_sft", paper, "--resume", "runs/one")  # the run knows its stage
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming after step 25" in done.stdout
    assert f"next: bash scripts/evaluate.sh --scale paper --serve a {run}/weights/step_100 test" in done.stdout
    assert asked(run)["arguments"] == [*first, "--ckpt.resume-step", "25"]
    assert done.stdout.count("the GPU is on fire") == 0  # the old log is not shown again
    assert (run / "log").read_text().count("the GPU is on fire") == 2


CHECKPOINT = (
    "checkpoints/step_{}/trainer/.metadata",
    "run_default/checkpoints/step_{}/orchestrator/progress.pt",
    "weights/step_{}/STABLE",
)


def give_checkpoint(run: Path, *files: str, step: int) -> None:
    for file in files:
        path = run / file.format(step)
        path.parent.mkdir(parents=True)
        path.touch()


@pytest.mark.parametrize("file", [*CHECKPOINT[:2], "checkpoints/step_{}/trainer/__0_0.distcp"])
def test_a_run_whose_first_checkpoint_is_half_written_starts_over(paper: Path, file: str) -> None:
    run = paper / "runs" / "one"
    train(paper, "rl", "a", FAIL="1")
    first = asked(run)["arguments"]
    give_checkpoint(run, file, step=25)
    done = script("train_rl", paper, "--resume", "runs/one", "--scale", "paper")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{run} has no whole checkpoint to go on from: starting over" in done.stdout
    assert asked(run)["arguments"] == first
    (aside,) = run.glob("half_written-*")
    assert (aside / file.format(25)).is_file()
    assert f"what is half-written is now {aside}/" in done.stdout


def test_a_run_is_never_resumed_after_its_last_step(paper: Path) -> None:
    run = paper / "runs" / "one"
    train(paper, "rl", "a", FAIL="1")
    give_checkpoint(run, *CHECKPOINT, step=25)
    give_checkpoint(run, *CHECKPOINT[:2], step=100)
    done = script("train_rl", paper, "--resume", "runs/one", FAIL="1")
    assert "resuming after step 25" in done.stdout
    give_checkpoint(run, CHECKPOINT[2], step=100)
    calls = (run / "log").read_text()
    done = script("train_rl", paper, "--resume", "runs/one")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the model is {run}/weights/step_100" in done.stdout
    assert (run / "log").read_text() == calls
    assert (run / "finished").exists()


def test_a_job_that_was_submitted_is_not_finished(paper: Path) -> None:
    run = paper / "runs" / "one"
    done = train(paper, "rl", "a", "--", "--slurm.partition", "gpu")
    assert "there is no model yet" in done.stdout
    give_checkpoint(run, *CHECKPOINT, step=25)
    done = script("train_rl", paper, "--resume", "runs/one")
    assert "there is no model yet" in done.stdout
    assert not (run / "finished").exists()


def test_a_run_is_trained_by_one_at_a_time(paper: Path) -> None:
    train(paper, "sft", "a", FAIL="1")
    with (paper / "runs/one/.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = script("train_sft", paper, "--resume", "runs/one")
    assert done.returncode == 2
    assert "runs/one is being trained by another process" in done.stderr


def test_a_model_that_ends_its_turns_otherwise_is_refused(paper: Path) -> None:
    tiny_tokenizer(eos="<|endoftext|>", prepare=False).save_pretrained(paper / "model")
    done = train(paper, "sft", "a")
    assert done.returncode == 1
    assert "tokenizer: the EOS is 0, expected 2 (<|im_end|>)" in done.stdout
    assert f"glyph make-base {paper}/model OUT" in done.stdout
    done = evaluate(paper, "--serve", "a", "model", "test")
    assert done.returncode == 1
    assert "tokenizer: the EOS is 0, expected 2 (<|im_end|>)" in done.stdout
    assert not (paper / "runs").exists()


def test_data_are_validated_before_a_run_is_made(paper: Path) -> None:
    with (paper / "data" / "mini" / "arm_a_test.jsonl").open("a") as file:
        file.write("\n")
    for done in (train(paper, "sft", "a"), evaluate(paper, "--serve", "a", "model", "test")):
        assert done.returncode == 1
        assert "arm_a_test.jsonl:3: no JSON object" in done.stderr
    assert not (paper / "runs").exists()


def gone(pid: int) -> bool:
    """Whether a process has ended, perhaps not yet noticed by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen in a minute"
        time.sleep(0.05)


def pids(log: Path) -> list[int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return next((json.loads(line)["pids"] for line in lines if line.startswith('{"pids"')), [])


def has_stopped(log: Path) -> bool:
    started = pids(log)
    assert len(started) == 2, log.read_text()
    return all(map(gone, started))


SENT = {
    "Ctrl-C": (signal.SIGINT, ()),
    "a kill": (signal.SIGTERM, ()),
    "a closed terminal": (signal.SIGHUP, ()),
    "a kill under nohup": (signal.SIGTERM, (signal.SIGHUP, signal.SIGINT)),  # as a background job of a script has it
}


@pytest.mark.parametrize(("sent", "ignored"), SENT.values(), ids=SENT)
def test_a_signal_ends_the_run_and_all_its_processes(
    paper: Path, sent: signal.Signals, ignored: tuple[signal.Signals, ...]
) -> None:
    def set_signals() -> None:  # whatever the tests themselves were started with
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    options = ["a", "--scale", "paper", "--data", "data/mini", "--model", "model", "--output", "runs/one"]
    run = paper / "runs" / "one"
    started = subprocess.Popen(
        ["bash", "scripts/train_sft.sh", *options],
        cwd=paper, env=environment(paper, HANG="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=set_signals,
    )  # fmt: skip
    try:
        until(lambda: len(pids(run / "log")) == 2)
        os.kill(started.pid, sent)
        said, _ = started.communicate(timeout=60)
    finally:
        started.kill()
        for pid in pids(run / "log"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert started.returncode == 1
    assert "interrupted" in said
    assert "sft ended with exit status 1; go on: bash scripts/train_sft.sh --resume" in said
    until(lambda: has_stopped(run / "log"))


@pytest.fixture
def served(paper: Path) -> Path:
    """With an `eval` and a `glyph` that only say what they were asked; every model is fit to be served."""
    (paper / ".venv" / "bin" / "eval").write_text('#!/bin/sh\necho "asked: $*"\nexit ${EVAL:-0}\n')
    program = paper / ".venv" / "bin" / "glyph"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/fake_glyph.py" "$@"\n')
    return paper


def evaluate(checkout: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    fixed = {"DATA": "data/mini", "OUTPUT": "runs/eval"}
    return script("evaluate", checkout, *arguments, **{**fixed, **variables})


def test_serve_starts_vllm_waits_for_it_and_stops_it(served: Path) -> None:
    prompts = f"{served}/theirs.toml"
    options = ["--scale", "paper", "--serve", "b", "model", "test", "--taskset.prompts", prompts]
    done = evaluate(served, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    run, model = served / "runs" / "eval", served / "model"
    said = json.loads((run / "serve.log").read_text().splitlines()[0])
    port = said["arguments"][-1]
    assert said["program"] == "inference"
    assert said["arguments"] == [
        *("@", f"{served}/configs/paper/serve.toml", "--model.name", str(model)),
        *("--server.host", "127.0.0.1", "--server.port", port),
    ]
    call = (run / "eval.out").read_text()
    assert f"-m {model} --client.base-url http://127.0.0.1:{port}/v1" in call
    assert "--taskset.arm b --taskset.split test" in call
    assert f"--taskset.prompts {prompts}\n" in call
    assert (run / "served").read_text() == f"{model}\n{port}\nvllm\n"
    assert has_stopped(run / "serve.log")

    (run / "config.toml").touch()
    (run / "serve.log").unlink()
    done = evaluate(served, "--resume", "runs/eval")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run / "serve.log").read_text().splitlines()[0])["program"] == "inference"
    assert (run / "eval.out").read_text() == f"asked: --resume {run}\n"
    assert has_stopped(run / "serve.log")


def test_the_server_is_stopped_when_the_evaluation_fails(served: Path) -> None:
    done = evaluate(served, "--serve", "a", "model", "validation", EVAL="5")
    assert done.returncode == 1
    assert "evaluate: eval failed" in done.stderr
    assert has_stopped(served / "runs/eval/serve.log")


def test_a_server_that_does_not_start_is_said(served: Path) -> None:
    done = evaluate(served, "--serve", "a", "model", "validation", FAIL="1")
    assert done.returncode == 1
    assert "evaluate: the server did not start:" in done.stderr
    assert "the GPU is on fire" in done.stderr
    assert not (served / "runs" / "eval" / "eval.out").exists()


def test_a_server_that_is_never_ready_is_stopped(served: Path) -> None:
    program = served / PROGRAMS / "inference"
    program.write_text(program.read_text().replace("HTTPServer((", "time.sleep(600) or HTTPServer(("))
    done = evaluate(served, "--serve", "a", "model", "validation", READY_SECONDS="2")
    assert done.returncode == 1
    assert "evaluate: the server did not start in 2 s:" in done.stderr
    assert has_stopped(served / "runs/eval/serve.log")


def test_the_pinned_classes_take_what_the_scripts_run(served: Path, patched_prime_rl: Path) -> None:
    """The commands of every script, with each of its options, as the programs received them."""
    commands: list[list[str]] = []
    expected: list[tuple[str, list[str]]] = []
    runs = {
        "sft": ([], ["--seed", "7"], ["--", "--max-steps", "2", "--optim.lr", "1e-5"]),
        "rl": (
            ["--seed", "43"],
            ["--gpus", "shared"],
            ["--config", "configs/paper/multi_node.toml", "--", "--slurm.partition", "gpu"],
            ["--", "--trainer.ckpt.weights-only", "--ckpt.resume-step", "25"],
        ),
    }
    for stage, several in runs.items():
        for arm in "ab":
            for options in several:
                done = train(served, stage, arm, *options)
                assert done.returncode == 0, done.stdout + done.stderr
                said = asked(served / "runs" / "one")
                folder = served / "runs" / f"{stage}-{arm}-{len(commands)}"
                (served / "runs" / "one").rename(folder)
                moved = [str(each).replace(f"{served}/runs/one/", f"{folder}/") for each in said["arguments"]]
                commands.append([stage, *moved])
                expected.append((stage, options))
    assert evaluate(served, "--serve", "a", "model", "test").returncode == 0
    serving = json.loads((served / "runs/eval/serve.log").read_text().splitlines()[0])["arguments"]
    *trained, server = resolve(patched_prime_rl, [*commands, ["inference", *serving]])
    assert server["model"]["name"] == f"{served}/model"
    for (stage, options), got in zip(expected, trained, strict=True):
        assert "refused" not in got, (stage, options, got)
        assert_as_asked(served, stage, options, got)


def assert_as_asked(checkout: Path, stage: str, options: list[str], got: dict[str, Any]) -> None:
    assert got["output_dir"] == f"{checkout}/runs/one"
    if stage == "sft":
        assert got["model"]["name"] == f"{checkout}/model"
        assert got["data"]["name"] in [f"{checkout}/data/mini/sft/arm_{arm}" for arm in "ab"]
        assert got["data"]["seed"] == (7 if "--seed" in options else 42)
        return
    parts = [got[part]["model"]["name"] for part in ("trainer", "orchestrator", "inference")]
    assert parts == [f"{checkout}/model"] * 3
    environments = got["orchestrator"]["train"]["env"] + got["orchestrator"]["eval"]["env"]
    assert [each["taskset"]["data"] for each in environments] == [f"{checkout}/data/mini"] * 2
    assert got["inference"]["seed"] == (43 if "--seed" in options else 42)
    assert (got["trainer"]["model"]["impl"] == "hf") == ("shared" in options)
    assert (got["slurm"] is not None) == ("--slurm.partition" in options)
    assert got["trainer"]["ckpt"]["resume_step"] == (25 if "--ckpt.resume-step" in options else None)
