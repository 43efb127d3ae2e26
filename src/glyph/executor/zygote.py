"""The zygote: a small, freshly executed interpreter that is shut in once and then forks one process a test.

Started by `pool.py` as a script with a control socket. Commands: `T` (a test: a frame with limits and, in
ancillary data, the candidate's end of a private socket), `W` (the candidate hung up: give it a moment to end by
itself, then end it), `K` (end it now). After `W` or `K` everything that the test started is dead and reaped, its
scratch folder is gone, and a frame says how the candidate ended. The end of the control socket ends the zygote.
It never sees a test or an expected value.
"""

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from glyph.executor import child, isolation
from glyph.executor.isolation import Level

NATURAL_END_SECONDS = 0.3
PRELOADED = (
    "array bisect collections copy datetime decimal fractions functools heapq itertools math operator re statistics "
    "string typing"
)


def main() -> None:
    isolation.fix_addresses()
    control, level = socket.socket(fileno=int(sys.argv[1])), Level(sys.argv[2])
    control.set_inheritable(False)
    sys.path.pop(0)
    try:
        _shut_in(level, control)
    except (OSError, KeyError) as error:
        send_frame(control, {"error": f"{type(error).__name__}: {error}"})
        return
    _warm_up()
    send_frame(control, {"ready": True, "python": sys.version.split()[0], "executable": sys.executable})
    _serve(control, level)


def _shut_in(level: Level, control: socket.socket) -> None:
    os.environ.pop("GLYPH_FIXED", None)
    if level is Level.NAMESPACES:
        isolation.enter_namespaces()
        inner = os.fork()
        if inner:  # the outer half only waits: when it is killed, its child and so the whole world die with it
            control.close()
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
        isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)
    elif sys.platform == "linux":
        isolation.prctl(isolation.PR_SET_CHILD_SUBREAPER, 1)


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


def _serve(control: socket.socket, level: Level) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        limits = read_frame(control)
        connection = socket.socket(fileno=descriptors[0])
        scratch = _open_scratch(level)
        process = os.fork()
        if process == 0:
            _become_candidate(connection, limits, level, scratch)
        connection.close()
        command = control.recv(1)
        report = _end_test(process, level, command == b"W")
        _close_scratch(level, scratch)
        if not command:
            return
        send_frame(control, report)


def _open_scratch(level: Level) -> str:
    if level is Level.NAMESPACES:
        isolation.fresh_scratch()
        return isolation.SCRATCH
    folder = tempfile.mkdtemp(prefix="glyph-scratch-")
    if level is Level.USER:
        os.chown(folder, isolation.OWN_USER_ID, isolation.OWN_USER_ID)
    return folder


def _close_scratch(level: Level, scratch: str) -> None:
    if level is Level.NAMESPACES:
        isolation.drop_scratch()
    else:
        shutil.rmtree(scratch, ignore_errors=True)


def _become_candidate(connection: socket.socket, limits: dict[str, Any], level: Level, scratch: str) -> None:
    """Turn the fresh fork into the candidate's process. Never returns."""
    try:
        os.setsid()
        kept = connection.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, 256)
        os.chdir(scratch)
        if level is Level.NAMESPACES:
            isolation.drop_capabilities()
        elif level is Level.USER:
            isolation.become_own_user()
        if sys.platform == "linux":
            isolation.prctl(isolation.PR_SET_NO_NEW_PRIVS, 1)
        _set_limits(limits)
        child.answer_questions(connection)
    except BaseException as error:  # before the candidate has spoken: our fault, and the parent will say so
        send_frame(connection, {"fault": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(70)


def _set_limits(limits: dict[str, Any]) -> None:
    cpu = int(limits["cpu_seconds"])
    wanted = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_FSIZE": (limits["file_bytes"],) * 2,
        "RLIMIT_NOFILE": (limits["open_files"],) * 2,
        "RLIMIT_CPU": (cpu, cpu + 1),  # soft below hard: the soft limit's signal tells a time-out from a kill
        "RLIMIT_AS": (limits["memory_bytes"],) * 2,
        "RLIMIT_NPROC": (limits["processes"],) * 2,
    }
    for name, pair in wanted.items():
        if sys.platform == "linux" or name not in ("RLIMIT_AS", "RLIMIT_NPROC"):
            resource.setrlimit(getattr(resource, name), pair)


def _end_test(process: int, level: Level, let_it_end: bool) -> dict[str, Any]:
    """Kill all that the test started, reap it, and say how the candidate's first process ended."""
    deadline, status, usage = time.monotonic() + NATURAL_END_SECONDS, None, None
    while let_it_end and status is None and time.monotonic() < deadline:
        done, code, used = os.wait4(process, os.WNOHANG)
        if done:
            status, usage = code, used
        else:
            time.sleep(0.001)
    natural = status is not None
    _kill_all(process, level, gone=natural)
    while True:
        try:
            done, code, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        if done == process:
            status, usage = code, used
        if level is not Level.NAMESPACES:
            _kill_all(process, level, gone=True)  # orphans that came to us since
    cpu = usage.ru_utime + usage.ru_stime if usage else 0.0
    exit_code = os.waitstatus_to_exitcode(status) if status is not None else None
    return {"natural": natural, "exit_code": exit_code, "cpu_seconds": cpu}


def _kill_all(process: int, level: Level, gone: bool) -> None:
    if level is Level.NAMESPACES:
        _kill(-1)  # as process 1: everything in this world but us, atomically with respect to fork
        return
    if level is Level.USER:
        helper = os.fork()
        if helper == 0:
            isolation.become_own_user()
            _kill(-1)
            os._exit(0)
        os.waitpid(helper, 0)
        return
    if not gone:
        _kill(-process)
        _kill(process)
    for orphan in _children():
        _kill(orphan)


def _children() -> list[int]:
    """Our direct children, orphans of the test included (we are their subreaper)."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.append(int(name))
    return found


def _kill(target: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(target, signal.SIGKILL)


def send_frame(connection: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack("!I", len(body)) + body)


def read_frame(connection: socket.socket) -> dict[str, Any]:
    """One frame; EOFError when the other side is gone."""
    size = struct.unpack("!I", _exactly(connection, 4))[0]
    return json.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the other side closed the socket")
        data += part
    return data


if __name__ == "__main__":
    main()
