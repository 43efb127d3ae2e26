"""Makes the pieces of a study: several processes at once on one machine, until all is done or the time is over.

A run of RL is stopped when what is left of the time is needed for evaluations (`reserve_seconds`): it finishes its
step, saves, and is evaluated where it stands. Whatever ends this process, children end too, and the same command
goes on: a piece is done when its folder says so, and nothing is remembered elsewhere.
"""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from glyph.files import write_atomically
from glyph.local.runs.checkpoint_folders import TRAINING as TRAINING_STATE
from glyph.local.runs.checkpoint_folders import checkpoints
from glyph.local.runs.durable import FileLock
from study.matrix import Matrix, Run
from study.pieces import Kind, Piece, Plan, pieces

POLL_SECONDS = 0.5
PROGRESS_SECONDS = float(os.environ.get("PROGRESS_SECONDS", "30"))
PACKING_SECONDS = 30.0
GRACE_SECONDS = 8.0
ATTEMPTS = 2  # what has no room on the GPU now may have it in a minute
LOG_TAIL_BYTES = 8192
SHOWN_WIDTH = 130
COMMAND = "== "
PR_SET_PDEATHSIG = 1
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Limits:
    """`jobs` runs are trained at once, beside so many evaluations, which also have the room that no run takes any more.
    `seconds` None is without an end; training ends `reserve_seconds` before it.
    """

    jobs: int
    evaluations: int
    seconds: float | None
    reserve_seconds: float


@dataclass
class Running:
    piece: Piece
    process: "subprocess.Popen[bytes]"
    log: Path
    begun: float
    told_to_stop: bool = False
    killed: bool = False

    def last_line(self) -> str:
        """What its log ends with."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
        for line in reversed(text.split("\n")):
            shown = "".join(c if c.isprintable() else " " for c in line.split("\r")[-1]).strip()
            if shown and "%|" not in shown:
                return "starting" if shown.startswith(COMMAND) else shown[:SHOWN_WIDTH]
        return ""

    def stop(self, number: int = signal.SIGINT) -> None:
        self.told_to_stop = True
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass
class Runner:
    """`python` is the command that runs a module of ours; `published` is told of every piece that ended."""

    plan: Plan
    matrix: Matrix
    limits: Limits
    python: Sequence[str]
    say: Callable[[str], None]
    published: Callable[[Piece], None]
    started: float = field(default_factory=time.monotonic)
    running: dict[str, Running] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    stopped: bool = False
    runs_waiting: int = 0
    shortest_evaluation: float = 0.0

    # Time.

    def left(self) -> float:
        """Seconds that are left; infinite without an end."""
        if self.limits.seconds is None:
            return float("inf")
        return self.started + self.limits.seconds - time.monotonic()

    def may_train(self) -> bool:
        return not self.stopped and self.left() > self.limits.reserve_seconds

    def may_evaluate(self) -> bool:
        return not self.stopped and self.left() > PACKING_SECONDS

    @property
    def failed(self) -> set[str]:
        """The pieces that are given up."""
        return {name for name, times in self.faults.items() if times >= ATTEMPTS}

    # The loop.

    def run(self) -> list[Piece]:
        """Go on until nothing can be begun any more; what is not done then, in order."""
        self._listen()
        told = time.monotonic()
        ended: deque[Piece] = deque()
        try:
            while True:
                ended.extend(self._look_after())
                self._begin()
                if ended:  # takes seconds: one at a time, when what comes next has begun
                    self.published(ended.popleft())
                elif not (self.running or self._is_held_up()) or self.left() < PACKING_SECONDS - 2 * GRACE_SECONDS:
                    break
                if time.monotonic() - told >= PROGRESS_SECONDS:
                    told = time.monotonic()
                    self.report()
                time.sleep(POLL_SECONDS)
        finally:
            for each in self.running.values():
                each.stop(signal.SIGTERM)
        return [piece for piece in self.pieces() if not piece.done()]

    def pieces(self) -> list[Piece]:
        return pieces(self.plan, self.matrix)

    def _look_after(self) -> list[Piece]:
        """Take note of what ended, and return it; ask what must make room in time to stop."""
        ended = []
        for name, each in list(self.running.items()):
            if (code := each.process.poll()) is not None:
                del self.running[name]
                self._end(each, code)
                ended.append(each.piece)
            elif not each.told_to_stop and not (self.may_train() if each.piece.is_training else self.may_evaluate()):
                self.say(f"{name}: told to stop" + (" after its step" if each.piece.is_training else ""))
                each.stop()
            elif not each.killed and self.left() < PACKING_SECONDS - GRACE_SECONDS:
                self.say(f"{name}: killed: it does not stop")
                each.stop(signal.SIGKILL)
                each.killed = True
        return ended

    def _is_held_up(self) -> bool:
        """Whether a run waits for a process that a killed runner left, which is to finish its step."""
        return self.may_train() and any(
            piece.is_training and not piece.done() and piece.name not in self.failed and is_held(piece.folder)
            for piece in self.pieces()
        )

    def _end(self, each: Running, code: int) -> None:
        piece, seconds = each.piece, time.monotonic() - each.begun
        if code == 0 and piece.done():
            self.say(f"{piece.name}: done in {seconds:.0f} s")
            if not piece.is_training:
                self.shortest_evaluation = min(seconds, self.shortest_evaluation or seconds)
        elif each.told_to_stop:
            self.say(f"{piece.name}: stopped after {seconds:.0f} s")
        else:
            self.faults[piece.name] += 1
            self.say(f"{piece.name}: FAILED (exit {code}) after {seconds:.0f} s: {each.last_line()}; see {each.log}")
        if piece.is_training and piece.done():
            drop_training_state(piece.folder)

    def _begin(self) -> None:
        """Begin what is ready, in order, as far as there is room; what is evaluated is then no longer needed."""
        found = self.pieces()
        done = {piece.name for piece in found if piece.done()}
        preparing = [piece for piece in found if piece.is_training or piece.kind is Kind.DATA]
        self._begin_of(preparing, done)
        waiting = [piece for piece in preparing if piece.is_training and self._is_waiting(piece, done)]
        hopeful = [piece for piece in waiting if not self.failed & set(piece.after)]
        # where nothing is at work, nothing that waits can ever begin
        self.runs_waiting = len(hopeful) if self.running and self.may_train() else 0
        self._begin_of([piece for piece in found if piece not in preparing], done)
        for run in self.plan.chosen(self.matrix):
            make_room(self.plan, run, found, done)

    def _begin_of(self, found: Sequence[Piece], done: set[str]) -> None:
        for piece in found:
            if self._is_waiting(piece, done) and self._has_room(piece) and self._is_ready(piece, done):
                self._start(piece)

    def _is_waiting(self, piece: Piece, done: set[str]) -> bool:
        return piece.name not in done | self.running.keys() | self.failed

    def _has_room(self, piece: Piece) -> bool:
        training = sum(each.piece.is_training for each in self.running.values())
        if piece.kind is Kind.DATA:
            return self.may_train()
        if piece.is_training:
            return self.may_train() and training < self.limits.jobs
        room = self.limits.evaluations + max(0, self.limits.jobs - training - self.runs_waiting)
        in_time = self.may_evaluate() and self.left() > PACKING_SECONDS + self.shortest_evaluation
        return in_time and len(self.running) - training < room

    def _is_ready(self, piece: Piece, done: set[str]) -> bool:
        there = all(path.exists() for path in piece.needs) and done >= set(piece.after)
        if piece.is_training:
            return there and not is_held(piece.folder)
        return there and not (piece.deleted_by and self._goes_on(piece.deleted_by))

    def _goes_on(self, run: str) -> bool:
        """Whether a run that is not at its end may yet delete the checkpoint at which it was stopped."""
        at_work = run in self.running or is_held(self.plan.runs_folder / run)
        return at_work or (self.may_train() and run not in self.failed)

    def _start(self, piece: Piece) -> None:
        command = [*self.python, "-m", *piece.command()]
        if not piece.is_training and piece.folder.is_dir():
            shutil.rmtree(piece.folder)  # what a kill left of it
        elif piece.is_training and piece.status() is None:
            (piece.folder / "config.toml").unlink(missing_ok=True)
        log = self.plan.work / "logs" / f"{piece.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"{COMMAND}{shlex.join(command)}\n".encode())
            file.flush()
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.running[piece.name] = Running(piece, process, log, time.monotonic())
        self.say(f"{piece.name}: begun" + (" again" if "resume" in command else ""))

    def report(self) -> None:
        left = f", {self.left():.0f} s left" if self.limits.seconds is not None else ""
        free = shutil.disk_usage(self.plan.work).free / GIBIBYTE
        self.say(f"{len(self.running)} at work{left}, {free:.0f} GiB of disk free")
        for name, each in self.running.items():
            self.say(f"  {name}: {each.last_line()}")

    def _listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent dies of whatever, so that no run goes on unwatched (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def is_held(folder: Path) -> bool:
    """Whether a living process, which a killed runner left, still writes a run."""
    if not folder.is_dir():
        return False
    lock = FileLock(folder / ".lock")
    if lock.acquire():
        lock.release()
        return False
    return True


def make_room(plan: Plan, run: Run, found: Sequence[Piece], done: set[str]) -> None:
    """Delete the checkpoints of quarters that were evaluated; of those that wait, what only their run would need.

    The last one stays: the run goes on from it, and its weights' digest is published.
    """
    for checkpoint in checkpoints(plan.checkpoints(run))[:-1]:
        waiting = [piece for piece in found if checkpoint in piece.needs]
        if waiting and all(piece.name in done for piece in waiting):
            shutil.rmtree(checkpoint, ignore_errors=True)
        elif waiting:
            (checkpoint / TRAINING_STATE).unlink(missing_ok=True)


def drop_training_state(run: Path) -> None:
    """A finished run is never resumed: two thirds of its last checkpoint are of no use."""
    for checkpoint in checkpoints(run / "checkpoints"):
        (checkpoint / TRAINING_STATE).unlink(missing_ok=True)


# Of what is left in the end: what is missing, and why.


def cut_short(left: Sequence[Piece]) -> list[Piece]:
    """The runs that did not come to their last step."""
    return [piece for piece in left if piece.kind is Kind.RL]


def not_played(left: Sequence[Piece]) -> list[Piece]:
    """The evaluations that are missing, but for those of steps that their run did not come to."""
    return [piece for piece in left if not piece.is_training and all(path.exists() for path in piece.needs)]


def unplayable(left: Sequence[Piece]) -> list[Piece]:
    """The evaluations of checkpoints that are gone, of runs that have ended."""
    going = {piece.folder for piece in cut_short(left)}
    evaluations = [piece for piece in left if piece.kind is Kind.AFTER_RL]
    return [p for p in evaluations if any(not path.exists() and path.parents[1] not in going for path in p.needs)]


def steps_done(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count('"kind": "train"') if metrics.is_file() else 0


def write_plan(plan: Plan, text: str) -> None:
    """Remember what was asked for. Raises: ValueError: the folder holds another study."""
    file = plan.work / "study.json"
    if file.is_file() and file.read_text() != text:
        raise ValueError(
            f"{file}: this folder holds a study that was asked for otherwise; give another --work, or the same "
            f"arguments: {file.read_text().strip()}"
        )
    write_atomically(file, text)
