"""Both arms of the mini scale at once, for quickstart.sh: a process each, stage after stage, then the report.

    OUTPUT/quickstart.json                          what was asked for: seeds, data, settings
    OUTPUT/{sft,rl}-ARM-seedN/                      run folders of the engine
    OUTPUT/test-{sft,rl}-ARM-seedN/                 their last models on all test tasks, greedy
    OUTPUT/arm_{a,b}.log   OUTPUT/report.html       what each arm said; the page

What is finished is never done again, so a second call on the same folder goes on where the first ended. An arm that
fails is named and leaves what it has; the other goes on.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from quickstart_table import LEGEND, lines, table

from glyph.evaluation.compare import UnpairedError
from glyph.evaluation.traces import TraceError, read_traces
from glyph.files import write_atomically
from glyph.report.data import choose_example

GLYPH = "glyph"
ARMS = ("a", "b")
PLAN, COMMAND = "quickstart.json", "== "
POLL_SECONDS = 0.2
PROGRESS_SECONDS = float(os.environ.get("PROGRESS_SECONDS", "15"))
SHOWN_WIDTH = 130
LOG_TAIL_BYTES = 8192
INTERRUPTED = 130
AFTER_THE_STEP = "after the step, which is saved (Ctrl-C again: at once)"
STARTED = time.monotonic()
_IN_BRACKETS = re.compile(r" \([^()]*\)")  # the split of a step's seconds; what is left of the run stands behind it
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Plan:
    """What was asked for. `sft` and `rl` are overrides, `key=value`."""

    seeds: list[int]
    data: str
    sft: list[str]
    rl: list[str]


@dataclass(frozen=True)
class Job:
    """One command of an arm, and the folder that it fills."""

    title: str
    folder: Path
    arguments: tuple[str, ...]

    @property
    def is_training(self) -> bool:
        return self.arguments[0] in ("sft", "rl")

    def finished(self) -> bool:
        if not self.is_training:
            return (self.folder / "traces.jsonl.gz").is_file()  # written last
        with suppress(OSError, ValueError):
            return json.loads((self.folder / "manifest.json").read_text())["status"] == "finished"
        return False

    def command(self) -> list[str]:
        """Begin it or go on with it. What a kill left before there was anything to go on with is cleared away."""
        if self.is_training and (self.folder / "manifest.json").is_file():
            return [GLYPH, "resume", str(self.folder)]
        if self.is_training:
            (self.folder / "config.toml").unlink(missing_ok=True)
        elif self.folder.is_dir():
            shutil.rmtree(self.folder)
        return [GLYPH, *self.arguments, "--output", str(self.folder)]


def jobs_of(arm: str, plan: Plan, output: Path) -> list[Job]:
    return [job for seed in plan.seeds for job in _jobs_of_seed(arm, seed, plan, output)]


def _jobs_of_seed(arm: str, seed: int, plan: Plan, output: Path) -> Iterator[Job]:
    sft, rl = (output / f"{stage}-{arm}-seed{seed}" for stage in ("sft", "rl"))
    common = ("--scale", "mini", "--data", plan.data, "--seed", str(seed))
    yield Job(f"SFT, seed {seed}", sft, ("sft", arm, *common, *plan.sft))
    yield Job(f"RL, seed {seed}", rl, ("rl", arm, *common, "--model", str(sft), *plan.rl))
    rules = [setting for setting in plan.rl if not setting.startswith("evaluation.")]  # RL's run has them of itself
    for stage, run, settings in (("SFT", sft, rules), ("RL", rl, [])):
        test = ("evaluate", str(run), "--split", "test", *settings)
        yield Job(f"test after {stage}, seed {seed}", output / f"test-{run.name}", test)


class Arm:
    """The jobs of one arm, one at a time, all of their output in one log."""

    def __init__(self, name: str, jobs: Sequence[Job], log: Path) -> None:
        self.name, self.log = name, log
        self.failed = False
        self._waiting = [job for job in jobs if not job.finished()]
        self._job: Job | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._begun, self._interrupts = 0.0, 0

    @property
    def running(self) -> bool:
        return self._process is not None

    def advance(self, stops: int) -> None:
        """Take note of a job that ended, and begin the next one; or hand on so many requests to stop."""
        if self._process is not None and self._process.poll() is not None:
            self._end(stops > 0)
        if self._process is None and self._waiting and not self.failed and not stops:
            self._begin(self._waiting.pop(0))
        if self._process is not None and self._interrupts < stops:
            self._interrupts += 1
            self._process.send_signal(signal.SIGINT)

    def _begin(self, job: Job) -> None:
        command = job.command()
        with self.log.open("ab") as log:
            log.write(f"{COMMAND}{shlex.join(command)}\n".encode())
            log.flush()
            # A session of its own: Ctrl-C in the terminal reaches this process alone, which hands it on once.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._job, self._begun = job, time.monotonic()
        say(f"arm {self.name}: {job.title}{' (going on)' if 'resume' in command else ''}")

    def _end(self, stopping: bool) -> None:
        assert self._process is not None
        assert self._job is not None
        code, self._process = self._process.returncode, None
        if code == 0:
            say(f"arm {self.name}: {self._job.title}: done in {clock(time.monotonic() - self._begun)}")
        elif not stopping:
            self.failed = True
            how = f"killed by signal {-code}" if code < 0 else f"exit {code}"
            say(f"arm {self.name} FAILED in {self._job.title} ({how}); the end of {self.log}:", sys.stderr)
            for line in last_lines(self.log, 6):
                print(f"    {line}", file=sys.stderr, flush=True)

    def abandon(self) -> None:
        """Let no process outlive this one."""
        if self._process is not None:
            self._process.terminate()

    def report(self) -> None:
        if self._process is not None and self._job is not None:
            last = next(iter(last_lines(self.log, 1)), "")
            last = "starting" if last.startswith(COMMAND) else last
            say(f"arm {self.name}: {self._job.title}: {_IN_BRACKETS.sub('', last)[:SHOWN_WIDTH]}")


class Stops:
    """How often it was asked to stop: by Ctrl-C, by SIGTERM, or because the terminal went away."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def last_lines(log: Path, number: int) -> list[str]:
    """The last lines with text in them, without styles and progress bars."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        text = file.read().decode(errors="replace")
    lines = (_STYLE.sub("", line.split("\r")[-1]) for line in text.split("\n"))
    cleaned = (" ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in lines)
    return [line for line in cleaned if line and "%|" not in line][-number:]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def say(text: str, file: TextIO | None = None) -> None:
    print(f"[{clock(time.monotonic() - STARTED):>5}] {text}", file=file or sys.stdout, flush=True)


def train(plan: Plan, output: Path) -> int:
    """Run both arms to their ends; the exit code."""
    jobs = {name: jobs_of(name, plan, output) for name in ARMS}
    arms = [Arm(name, jobs[name], output / f"arm_{name}.log") for name in ARMS]
    try:
        attend(arms, Stops())
    finally:
        for arm in arms:
            arm.abandon()
    if all(job.finished() for several in jobs.values() for job in several):
        return 0
    failed = [arm.name for arm in arms if arm.failed]
    what = f"arm {' and arm '.join(failed)} failed" if failed else "stopped"
    again = f"bash scripts/quickstart.sh --resume {shlex.quote(str(output))}"
    print(f"{what}; what was done is in {output}\ngo on with: {again}", file=sys.stderr)
    return 1 if failed else INTERRUPTED


def attend(arms: Sequence[Arm], stops: Stops) -> None:
    """Until all have ended, begin what is next, hand on Ctrl-C, and say now and then what is being done."""
    told, heard = time.monotonic(), 0
    while True:
        if heard < stops.count:
            heard += 1
            with suppress(OSError):  # no terminal any more
                say(f"stopping both arms {'at once' if heard > 1 else AFTER_THE_STEP}")
        for arm in arms:
            arm.advance(heard)
        if not any(arm.running for arm in arms):
            return
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            for arm in arms:
                arm.report()
        time.sleep(POLL_SECONDS)


def make_report(output: Path) -> int:
    log = output / "report.log"
    command = [GLYPH, "report", str(output), "--output", str(output), "--title", "Quickstart"]
    with log.open("wb") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        print(f"the report failed (exit {code}); the end of {log}:", *last_lines(log, 6), sep="\n    ", file=sys.stderr)
    return code


def say_next(output: Path, seed: int) -> None:
    a, b = (shlex.quote(str(output / f"test-rl-{arm}-seed{seed}")) for arm in ARMS)
    example = choose_example(read_traces(output / f"test-rl-b-seed{seed}").traces)
    print(f"\nthe report is {output / 'report.html'}")
    print(f"next: source {os.environ.get('VENV', '.venv')}/bin/activate")
    if example is not None:
        print(f"      glyph show {b} --task {example.task_id}    a rollout, turn by turn")
    print(f"      glyph compare {a} {b}    the arms, paired by task")


def read_plan(output: Path) -> Plan:
    return Plan(**json.loads((output / PLAN).read_text()))


def parse_arguments() -> tuple[Plan, Path]:
    parser = argparse.ArgumentParser(description="The second half of quickstart.sh, which see.")
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--resume", type=Path)
    for name in ("--seeds", "--data", "--sft", "--rl"):
        parser.add_argument(name, default="")
    given = parser.parse_args()
    if given.resume is not None:
        return read_plan(given.resume), given.resume
    seeds = [int(seed) for seed in given.seeds.split()]
    plan = Plan(seeds, given.data, given.sft.split(), given.rl.split())
    given.output.mkdir(parents=True, exist_ok=True)
    write_atomically(given.output / PLAN, json.dumps(asdict(plan), indent=1) + "\n")
    return plan, given.output


def main() -> int:
    plan, output = parse_arguments()
    print(f"== 2 of 3: both arms: SFT, RL, evaluation (logs: {output}/arm_a.log, arm_b.log)", flush=True)
    if code := train(plan, output):
        return code
    print("== 3 of 3: report", flush=True)
    if code := make_report(output):
        return code
    try:
        rows = table(output, plan.seeds)
    except (UnpairedError, TraceError, OSError) as error:
        print(f"no table: {error}", file=sys.stderr)
        return 1
    print("\npass@1 on the held-out test tasks, greedy", *lines(rows), LEGEND, sep="\n")
    say_next(output, plan.seeds[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
