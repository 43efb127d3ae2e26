"""Where a candidate's process lives: one class for each isolation level, used by the zygote only.

A world is made once a zygote (`__init__`); for each test it gives a scratch folder (`open_scratch`), shuts in the
freshly forked process (`enter`), ends everything that the test started (`end`) and removes what it left behind
(`close_scratch`). `docs/sandbox.md` says what each level covers.
"""

import os
import signal
import socket
import stat
import sys
import tempfile
from typing import Any

from glyph.executor import isolation

Status = tuple[int, Any]
"""Of the candidate's first process: the wait status and the resource usage."""


class Process:
    """Level "process": resource limits and the killing of every descendant; files and network are open."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            isolation.prctl(isolation.PR_SET_CHILD_SUBREAPER, 1)
            isolation.prctl(isolation.PR_SET_DUMPABLE, 0)  # our memory is not for our children

    def open_scratch(self) -> str:
        return tempfile.mkdtemp(prefix="glyph-scratch-")

    def close_scratch(self, folder: str) -> None:
        remove_tree(folder)

    def enter(self) -> None:
        """Called in the candidate's process."""

    def end(self, process: int, status: Status | None) -> Status:
        """Kill and reap all; `status` is set when the first process is reaped already."""
        self._kill(process, status is None)
        if status is None:
            status = os.wait4(process, 0)[1:]
        while True:
            self._kill(process, False)  # orphans that came to us since
            try:
                os.wait()
            except ChildProcessError:
                return status

    def _kill(self, process: int, alive: bool) -> None:
        if alive:
            kill(-process)
            kill(process)
        for orphan in isolation.children():
            kill(orphan)


class User(Process):
    """Level "user": a user id of the test's own, for a zygote that is root and has no namespaces."""

    def __init__(self) -> None:
        super().__init__()
        self._user, self._claim = isolation.claim_user()

    def open_scratch(self) -> str:
        folder = super().open_scratch()
        os.chown(folder, self._user, self._user)
        return folder

    def enter(self) -> None:
        isolation.become(self._user)

    def _kill(self, process: int, alive: bool) -> None:
        helper = os.fork()
        if helper == 0:  # may signal the test's user but, by its other two ids, cannot be signalled by it
            os.setresuid(self._user + 1, self._user, self._user + 1)
            kill(-1)
            os._exit(0)
        os.waitpid(helper, 0)


class Namespaces(Process):
    """Level "namespaces": a world with nothing in it but the interpreter.

    The zygote stays outside of the process namespace: no process of a test can name it. Process 1 inside is the
    keeper, which reaps orphans, and ends everything else on command, at one stroke.
    """

    def __init__(self) -> None:
        isolation.enter_namespaces()
        self._line, keepers_end = socket.socketpair()
        self._keeper = os.fork()
        if self._keeper == 0:
            self._line.close()
            _keep(keepers_end)
        keepers_end.close()

    def open_scratch(self) -> str:
        isolation.fresh_scratch()
        return isolation.SCRATCH

    def close_scratch(self, folder: str) -> None:
        isolation.drop_scratch()

    def enter(self) -> None:
        isolation.drop_capabilities()

    def end(self, process: int, status: Status | None) -> Status:
        if status is None:
            kill(process)
            status = os.wait4(process, 0)[1:]
        self._line.send(b"k")
        if not self._line.recv(1):
            raise OSError("the keeper is gone")
        return status


def _keep(line: socket.socket) -> None:
    """Be process 1. It can be signalled by nobody inside, since it handles no signal. Never returns."""
    isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    os.setsid()
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, 256)
    while line.recv(1):
        kill(-1)
        try:
            os.wait()  # returns when there is no child left
        except ChildProcessError:
            pass
        line.send(b"k")
    os._exit(0)


WORLDS = {"namespaces": Namespaces, "user": User, "process": Process}


def kill(target: int) -> None:
    try:
        os.kill(target, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def remove_tree(folder: str) -> None:
    """Remove a folder whatever a candidate has made of it: closed to us, or thousands of folders deep."""
    token, count = os.urandom(8).hex(), 0
    try:
        _open_up(folder)
        while names := os.listdir(folder):
            for name in names:
                path = os.path.join(folder, name)
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    os.unlink(path)
                    continue
                _open_up(path)
                for inner in os.listdir(path):  # up to the first storey, so that no path grows long
                    source = os.path.join(path, inner)
                    if stat.S_ISDIR(os.lstat(source).st_mode):
                        _open_up(source)
                        count += 1
                        os.rename(source, os.path.join(folder, f"{token}-{count}"))
                    else:
                        os.unlink(source)
                os.rmdir(path)
        os.rmdir(folder)
    except OSError:
        pass  # the candidate has moved it away, which only the level without isolation lets it do


def _open_up(folder: str) -> None:
    os.chmod(folder, 0o700)
