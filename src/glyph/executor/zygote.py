"""The zygote: a small, freshly executed interpreter that is shut in once and then forks one process a test.

Started by `start_zygote.py` with a control socket and a level. Frames on the socket: `{"test": limits}` with,
in ancillary data, the candidate's end of a private socket; then `{"end": "now"}`, or `{"end": "wait"}` when the
candidate has hung up (give it a moment to end by itself). The answer says how the candidate's process ended, once
everything that the test started is dead and reaped and its scratch folder is gone. The end of the control socket
ends the zygote. It never sees a test or an expected value.
"""

import gc
import math
import os
import resource
import select
import socket
import sys
import time
from typing import Any

from glyph.executor import child, isolation, seccomp
from glyph.executor.frames import Frames
from glyph.executor.worlds import WORLDS, Process, Status

NATURAL_END_SECONDS = 1.0
BLIND_SECONDS = 0.02  # between looks at a process where the kernel cannot announce its end
PRELOADED = (
    "array bisect collections copy datetime decimal fractions functools heapq itertools math operator re statistics "
    "string typing"
)


def main() -> None:
    control, level = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    control.set_inheritable(False)
    sys.argv[:], sys.orig_argv[:] = ["solution.py"], [sys.executable, "solution.py"]
    isolation.be_first_to_go()
    try:
        world = WORLDS[level]()
    except (OSError, KeyError) as error:
        Frames(control).write({"error": f"{type(error).__name__}: {error}"})
        return
    _warm_up()
    _serve(control, world)


def _warm_up() -> None:
    """Import what candidates often import, and give back `exit` and `quit`, which -S takes away."""
    import _sitebuiltins
    import builtins

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D")  # type: ignore[assignment]
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D")  # type: ignore[assignment]
    for name in PRELOADED.split():
        __import__(name)
    child.values.encode([0, 1.0, "a", {"b": (1,)}, {1}])
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket, world: Process) -> None:
    descriptors: list[int] = []

    def receive(size: int) -> bytes:
        data, found, _, _ = socket.recv_fds(control, size, 1)
        descriptors.extend(found)
        return data

    frames = Frames(control, receive)
    frames.write({"ready": True, "python": sys.version.split()[0], "syscall_filter": seccomp.available()})
    while True:
        try:
            limits = frames.read()["test"]
        except EOFError:
            return
        report = _run_test(socket.socket(fileno=descriptors.pop()), limits, world, control, frames)
        frames.write(report)


def _run_test(
    connection: socket.socket, limits: dict[str, Any], world: Process, control: socket.socket, frames: Frames
) -> dict[str, Any]:
    scratch = world.open_scratch()
    process = os.fork()
    if process == 0:
        _become_candidate(connection, limits, world, scratch)
    connection.close()
    status = _ended(process, control)
    if status:
        world.end(process, status)  # what it has forked may hold its socket: the parent must hear of its end
    try:
        wait = frames.read()["end"] == "wait"
    except EOFError:
        wait = False
    if wait and not status:
        status = _ended(process, None, NATURAL_END_SECONDS)
    natural = status is not None
    code, usage = world.end(process, status)
    world.close_scratch(scratch)
    used = usage.ru_utime + usage.ru_stime
    return {"natural": natural, "exit_code": os.waitstatus_to_exitcode(code), "cpu_seconds": used}


def _ended(process: int, control: socket.socket | None, seconds: float = math.inf) -> Status | None:
    """Wait for the end of a process; None when `control` has something to read first, or time is up."""
    deadline = time.monotonic() + seconds
    handle = os.pidfd_open(process) if hasattr(os, "pidfd_open") else None
    watched = [each for each in (control, handle) if each is not None]
    try:
        while True:
            done, code, usage = os.wait4(process, os.WNOHANG)
            if done:
                return code, usage
            remaining = min(deadline - time.monotonic(), BLIND_SECONDS if handle is None else 60.0)
            if remaining <= 0 or control in select.select(watched, [], [], remaining)[0]:
                return None
    finally:
        if handle is not None:
            os.close(handle)


def _become_candidate(connection: socket.socket, limits: dict[str, Any], world: Process, scratch: str) -> None:
    """Turn the fresh fork into the candidate's process. Never returns."""
    try:
        os.setsid()
        kept = connection.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, 256)
        os.chdir(scratch)
        world.enter()
        isolation.give_up_privileges()
        _set_limits(limits)
        child.answer_questions(connection)
    except BaseException as error:  # before the candidate has spoken: our fault, and the parent will say so
        Frames(connection).write({"fault": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(70)


def _set_limits(limits: dict[str, Any]) -> None:
    """Let the kernel enforce the limits.

    Its CPU limits are soft below hard, since the soft one's signal tells a time-out from a kill, and a second above
    ours, since the kernel counts in ticks, up to a tenth too fast: whoever is signalled has truly used up its time.
    """
    cpu = int(limits["cpu_seconds"])
    wanted = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_FSIZE": (limits["file_bytes"],) * 2,
        "RLIMIT_NOFILE": (limits["open_files"],) * 2,
        "RLIMIT_CPU": (cpu + 1, cpu + 2),
        "RLIMIT_AS": (limits["memory_bytes"],) * 2,
        "RLIMIT_NPROC": (limits["processes"],) * 2,
    }
    for name, pair in wanted.items():
        if sys.platform == "linux" or name not in ("RLIMIT_AS", "RLIMIT_NPROC"):
            resource.setrlimit(getattr(resource, name), pair)
