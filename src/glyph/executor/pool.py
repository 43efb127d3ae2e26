"""The parent's side: `Executor` runs a candidate against tests and returns a `Verdict`.

Owns the zygote processes, every clock, the tests and their expected values. A candidate is code from a model and
may do anything; what it does becomes a label. Faults of ours become `ExecutorError`, never a label.
"""

import base64
import json
import os
import queue
import select
import socket
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from glyph.executor import values
from glyph.executor.assertions import Evaluator, Step, TestFailure, parse_tests, unknown_rights
from glyph.executor.levels import choose_level, python_executable
from glyph.executor.rules import classify_death, classify_exception, published_rule
from glyph.executor.values import OPAQUE, Encoded
from glyph.protocol import Label
from glyph.records import Verdict

MAX_FRAME = 64 << 20
START_SECONDS = 20.0
END_SECONDS = 10.0
AFTERWORD_SECONDS = 0.5


class ExecutorError(RuntimeError):
    """The executor itself failed: no interpreter, a dead zygote, a broken pipe of ours. It is never a label."""


@dataclass(frozen=True)
class Limits:
    """What one test may use. Processes are counted with the three that the sandbox itself needs."""

    wall_seconds: float = 30.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    open_files: int = 32
    processes: int = 16


class _Gone(Exception):
    """The candidate's process hung up, or said something that is no answer."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _OutOfTime(Exception):
    """The wall clock ran out."""


class _Raised(Exception):
    """The candidate's process reported an exception; the report is untrusted but typed."""

    def __init__(self, report: dict[str, Any], traceback: str) -> None:
        self.report, self.traceback = report, traceback


class Channel:
    """Frames of JSON over a socket, every wait bounded by a monotonic deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)

    def write(self, message: dict[str, Any], deadline: float) -> None:
        body = json.dumps(message).encode()
        data = memoryview(struct.pack("!I", len(body)) + body)
        while data:
            self._wait(deadline, writing=True)
            try:
                data = data[self.connection.send(data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise _Gone("hung up") from error

    def read(self, deadline: float) -> dict[str, Any]:
        (size,) = struct.unpack("!I", self._exactly(4, deadline))
        if size > MAX_FRAME:
            raise _Gone("malformed answer")
        try:
            message = json.loads(self._exactly(size, deadline))
        except (ValueError, RecursionError) as error:
            raise _Gone("malformed answer") from error
        if not isinstance(message, dict):
            raise _Gone("malformed answer")
        return message

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(deadline, writing=False)
            try:
                part = self.connection.recv(min(size - len(data), 1 << 20))
            except BlockingIOError:
                continue
            except OSError as error:
                raise _Gone("hung up") from error
            if not part:
                raise _Gone("hung up")
            data += part
        return bytes(data)

    def _wait(self, deadline: float, writing: bool) -> None:
        remaining = deadline - time.monotonic()
        poller = select.poll()
        poller.register(self.connection, select.POLLOUT if writing else select.POLLIN)
        if remaining <= 0 or not poller.poll(max(1, remaining * 1000)):
            raise _OutOfTime


class Zygote:
    """One zygote process; runs one test at a time."""

    def __init__(self, level: str) -> None:
        ours, theirs = socket.socketpair()
        flags = ["-s", "-P", "-S", "-B"]
        script = str(Path(__file__).with_name("zygote.py"))
        self.process = subprocess.Popen(
            [python_executable(), *flags, script, str(theirs.fileno()), level],
            env={"PYTHONHASHSEED": "0"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        self.channel = Channel(ours)
        self._finalizer = weakref.finalize(self, _end_process, self.process, ours)
        self.facts = self._frame(START_SECONDS)
        if "ready" not in self.facts:
            self.close()
            raise ExecutorError(f"isolation level {level!r} cannot be set up: {self.facts.get('error')}")

    def start(self, limits: Limits) -> Channel:
        """Fork a candidate's process and return the channel to it."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.channel.connection, [b"T"], [theirs.fileno()])
            self.channel.write(asdict(limits), time.monotonic() + END_SECONDS)
        except (OSError, _Gone, _OutOfTime) as error:
            ours.close()
            raise ExecutorError("the zygote is gone") from error
        finally:
            theirs.close()
        return Channel(ours)

    def end(self, hung_up: bool) -> dict[str, Any]:
        """End the running test; returns how the candidate's process ended once nothing of it is left."""
        try:
            self.channel.connection.send(b"W" if hung_up else b"K")
        except OSError as error:
            raise ExecutorError("the zygote is gone") from error
        return self._frame(END_SECONDS)

    def close(self) -> None:
        self._finalizer()

    def _frame(self, seconds: float) -> dict[str, Any]:
        try:
            return self.channel.read(time.monotonic() + seconds)
        except (_Gone, _OutOfTime) as error:
            self.close()
            raise ExecutorError(f"the zygote did not answer (exit code {self.process.poll()})") from error


def _end_process(process: subprocess.Popen, connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


class Executor:
    """Runs candidates against tests, several at a time.

    Args:
        limits: what one test may use.
        level: an isolation level's name, or "auto" for the best that this machine offers (probed once).
        workers: how many tests may run at once; each keeps one zygote process, started when first needed.

    Raises:
        ExecutorError: the named level cannot be set up here.
    """

    def __init__(self, limits: Limits | None = None, level: str = "auto", workers: int = 2) -> None:
        self.limits = limits or Limits()
        self.level = choose_level(level, self._probe)
        self._idle: queue.LifoQueue[Zygote] = queue.LifoQueue()
        self._slots = threading.BoundedSemaphore(workers)
        self._lock = threading.Lock()
        self._rights: dict[str, dict[str, Encoded]] = {}
        self._owner = os.getpid()
        self.python_version = ""
        self._release(self._new_zygote())

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every idle zygote. Tests in flight keep theirs until they are done."""
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def facts(self) -> dict[str, str]:
        """What a manifest should say about this executor."""
        limits = {f"limit_{name}": str(value) for name, value in asdict(self.limits).items()}
        return {"isolation": self.level, "candidate_python": self.python_version, **limits}

    def run(self, source: str | bytes, tests: str, limits: Limits | None = None) -> Verdict:
        """Run one candidate. The verdict comes within the wall limit plus about a second.

        Raises:
            TestCodeError: the tests are unusable.
            ExecutorError: the executor failed twice in a row; nothing is known about the candidate.
        """
        steps = parse_tests(tests)
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        chosen = limits or self.limits
        rights = self._rights_of(tests, steps)
        return self._with_zygote(lambda zygote: _run_on(zygote, data, steps, rights, chosen))

    def _rights_of(self, tests: str, steps: tuple[Step, ...]) -> dict[str, Encoded]:
        """Values of the non-literal right-hand sides, from a process that holds no candidate."""
        expressions = unknown_rights(steps)
        if expressions and tests not in self._rights:
            statements = [step.source for step in steps if step.condition is None]
            known = self._with_zygote(lambda zygote: _evaluate_clean(zygote, statements, expressions, self.limits))
            self._rights[tests] = known
        return self._rights[tests] if expressions else {}

    def _with_zygote(self, work: Callable[[Zygote], Any]) -> Any:
        """Do work on a zygote of the pool; once more on a fresh one when the first breaks."""
        with self._slots:
            for attempt in (1, 2):
                zygote = self._acquire()
                try:
                    result = work(zygote)
                except ExecutorError:
                    zygote.close()
                    if attempt == 2:
                        raise
                else:
                    self._release(zygote)
                    return result

    def _acquire(self) -> Zygote:
        if os.getpid() != self._owner:  # after a fork the zygotes' sockets are shared with the parent: leave them
            self._idle, self._owner = queue.LifoQueue(), os.getpid()
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._new_zygote()

    def _release(self, zygote: Zygote) -> None:
        self._idle.put(zygote)

    def _new_zygote(self) -> Zygote:
        zygote = Zygote(self.level)
        self.python_version = zygote.facts["python"]
        return zygote

    @staticmethod
    def _probe(level: str) -> str | None:
        """Whether a level works here: None, or why it does not. It really runs a candidate that imports modules."""
        try:
            zygote = Zygote(level)
        except (ExecutorError, OSError) as error:
            return str(error)
        try:
            sample = b"import wave\ndef f(): return 1\n"
            verdict = _run_on(zygote, sample, parse_tests("assert f() == 1"), {}, Limits(wall_seconds=10))
            return (
                None
                if verdict.label is Label.PASS
                else f"a trivial candidate got {verdict.label.value}: {verdict.detail}"
            )
        except ExecutorError as error:
            return str(error)
        finally:
            zygote.close()


@dataclass
class _Progress:
    step: int | None = None


def _run_on(
    zygote: Zygote, source: bytes, steps: tuple[Step, ...], rights: dict[str, Encoded], limits: Limits
) -> Verdict:
    started, progress, hung_up = time.monotonic(), _Progress(), False
    channel = zygote.start(limits)
    try:
        _greet(channel)
        verdict = _judge(channel, source, steps, rights, started + limits.wall_seconds, progress)
    except _Gone as gone:
        verdict, hung_up = Verdict(Label.OTHER, Label.OTHER, reason=gone.reason, failed_step=progress.step), True
    except _OutOfTime:
        verdict = Verdict(Label.TIMEOUT, Label.TIMEOUT, reason="wall limit", failed_step=progress.step)
    finally:
        channel.connection.close()
    ending = zygote.end(hung_up)
    if hung_up:
        verdict = classify_death(verdict, ending, limits.cpu_seconds)
    return replace(
        verdict, wall_seconds=round(time.monotonic() - started, 4), cpu_seconds=round(ending["cpu_seconds"], 4)
    )


def _greet(channel: Channel) -> None:
    try:
        hello = channel.read(time.monotonic() + START_SECONDS)
    except (_Gone, _OutOfTime) as error:
        raise ExecutorError("the candidate's process did not start") from error
    if "here" not in hello:
        raise ExecutorError(f"the candidate's process could not be shut in: {hello.get('fault')}")


def _judge(
    channel: Channel,
    source: bytes,
    steps: tuple[Step, ...],
    rights: dict[str, Encoded],
    deadline: float,
    progress: _Progress,
) -> Verdict:
    """Ask one question at a time; the first failing step decides."""
    try:
        _ask(channel, {"phase": "load", "source": base64.b64encode(source).decode()}, deadline)
        evaluator = Evaluator(lambda code: _ask(channel, {"phase": "eval", "code": code}, deadline), rights)
        for step in steps:
            progress.step = step.index
            if step.condition is None:
                _ask(channel, {"phase": "exec", "code": step.source}, deadline)
            elif not evaluator.holds(step.condition):
                return Verdict(
                    Label.ASSERTION_FAILURE,
                    Label.ASSERTION_FAILURE,
                    exception_type="AssertionError",
                    phase="call",
                    origin="test",
                    failed_step=step.index,
                    detail=f"does not hold: {step.source[:200]}",
                )
    except _Raised as raised:
        label, reason = classify_exception(raised.report)
        return Verdict(
            label,
            published_rule(raised.traceback),
            exception_type=raised.report["raised"],
            phase=raised.report["phase"],
            origin=raised.report["origin"],
            reason=reason,
            failed_step=progress.step,
            detail=raised.report["detail"],
        )
    except TestFailure as failure:
        return Verdict(
            Label.RUNTIME_ERROR,
            Label.RUNTIME_ERROR,
            exception_type=failure.exception_type,
            phase="call",
            origin="test",
            failed_step=progress.step,
            detail=str(failure)[:200],
        )
    return Verdict(Label.PASS, Label.PASS)


def _ask(channel: Channel, question: dict[str, Any], deadline: float) -> Encoded:
    channel.write(question, deadline)
    answer = channel.read(deadline)
    if "raised" in answer:
        raise _Raised(_checked_report(answer), _afterword(channel))
    value = answer.get("value")
    if not isinstance(value, list) or not values.well_formed(value):
        raise _Gone("malformed answer")
    return value


def _checked_report(answer: dict[str, Any]) -> dict[str, Any]:
    kinds = {"raised": str, "phase": str, "origin": str, "detail": str, "assertion": bool, "exit": bool}
    if any(not isinstance(answer.get(name), kind) for name, kind in kinds.items()):
        raise _Gone("malformed answer")
    if answer["phase"] not in ("compile", "load", "call") or answer["origin"] not in ("candidate", "test"):
        raise _Gone("malformed answer")
    clipped = {name: answer[name][:300].encode("utf-8", "replace").decode() for name in ("raised", "detail")}
    return {**answer, **clipped}


def _afterword(channel: Channel) -> str:
    """The formatted traceback; formatting runs the candidate's code, so that it may never come."""
    try:
        text = channel.read(time.monotonic() + AFTERWORD_SECONDS).get("traceback")
    except (_Gone, _OutOfTime):
        text = None
    return text if isinstance(text, str) else "Traceback"


def _evaluate_clean(
    zygote: Zygote, statements: list[str], expressions: list[str], limits: Limits
) -> dict[str, Encoded]:
    deadline, known = time.monotonic() + limits.wall_seconds, {}
    channel = zygote.start(limits)
    try:
        _greet(channel)
        _ask(channel, {"phase": "load", "source": base64.b64encode(b"import sys").decode()}, deadline)
        for phase, code in [("exec", code) for code in statements] + [("eval", code) for code in expressions]:
            try:
                value = _ask(channel, {"phase": phase, "code": code}, deadline)
            except _Raised:
                continue  # it needs the candidate
            if phase == "eval" and value != OPAQUE:
                known[code] = value
    except (_Gone, _OutOfTime) as error:
        raise ExecutorError("the tests' own values could not be computed") from error
    finally:
        channel.connection.close()
    zygote.end(hung_up=False)
    return known
