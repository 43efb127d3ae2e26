"""The parent's handle on a zygote process: start it, run one test at a time in it, be sure that it ends.

Owns the limits of a test and the fault that is ours. What is asked of a candidate is `judging.py`.
"""

import os
import socket
import subprocess
import time
import weakref
from dataclasses import asdict, dataclass
from typing import Any

from glyph.executor.frames import MAX_FRAME, Frames, pack
from glyph.executor.levels import python_executable

START_SECONDS = 20.0
END_SECONDS = 10.0
HANG_UP_SECONDS = 2.0
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_zygote.py")


class ExecutorError(RuntimeError):
    """The executor itself failed: no interpreter, a dead zygote, a broken pipe of ours. It is never a label."""


@dataclass(frozen=True)
class Limits:
    """What one test may use. Processes are counted with the two that the sandbox itself needs."""

    wall_seconds: float = 30.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    open_files: int = 32
    processes: int = 16


class Conversation:
    """The private socket to one candidate's process."""

    def __init__(self, connection: socket.socket) -> None:
        frames = Frames(connection, largest=MAX_FRAME)
        self.read, self.write, self.close = frames.read, frames.write, connection.close


class Zygote:
    """One zygote process; runs one test at a time.

    Raises:
        ExecutorError: the interpreter cannot be started, or the level cannot be set up.
    """

    def __init__(self, level: str) -> None:
        ours, theirs = socket.socketpair()
        command = [python_executable(), "-s", "-P", "-S", "-B", _SCRIPT, str(theirs.fileno()), level]
        try:
            self.process = subprocess.Popen(
                command,
                env={"PYTHONHASHSEED": "0"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ExecutorError(f"the interpreter cannot be started: {error}") from error
        finally:
            theirs.close()
        self._control, self._frames = ours, Frames(ours)
        self._finalizer = weakref.finalize(self, _end_process, self.process, ours, os.getpid())
        self.facts = self._answer(START_SECONDS)
        if "ready" not in self.facts:
            self.close()
            raise ExecutorError(f"isolation level {level!r} cannot be set up: {self.facts.get('error')}")

    def start(self, limits: Limits) -> Conversation:
        """Fork a candidate's process and return the conversation with it, once it is shut in and listens.

        Raises:
            ExecutorError: the zygote is gone, or the candidate's process could not be shut in.
        """
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [pack({"test": asdict(limits)})], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise ExecutorError("the zygote is gone") from error
        finally:
            theirs.close()
        conversation = Conversation(ours)
        try:
            hello = conversation.read(time.monotonic() + START_SECONDS)
        except (EOFError, TimeoutError, ValueError) as error:
            conversation.close()
            raise ExecutorError("the candidate's process did not start") from error
        if "here" not in hello:
            conversation.close()
            raise ExecutorError(f"the candidate's process could not be shut in: {hello.get('fault')}")
        return conversation

    def end(self, hung_up: bool) -> dict[str, Any]:
        """End the running test; returns how the candidate's process ended once nothing of it is left."""
        try:
            self._frames.write({"end": "wait" if hung_up else "now"}, time.monotonic() + END_SECONDS)
        except (EOFError, TimeoutError) as error:
            raise ExecutorError("the zygote is gone") from error
        return self._answer(END_SECONDS)

    def close(self) -> None:
        self._finalizer()

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            return self._frames.read(time.monotonic() + seconds)
        except (EOFError, TimeoutError, ValueError) as error:
            self.close()
            raise ExecutorError(f"the zygote did not answer (exit code {self.process.poll()})") from error


def _end_process(process: subprocess.Popen, control: socket.socket, owner: int) -> None:
    """Hang up, upon which the zygote ends all that it started and then itself; kill it when it does not."""
    if os.getpid() != owner:  # a fork of the parent has inherited the handle, not the process
        control.close()
        return
    try:
        control.shutdown(socket.SHUT_WR)
        process.wait(timeout=HANG_UP_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
    control.close()
