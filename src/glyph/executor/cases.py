"""Case files: candidates with the labels that are accepted for them, run among canaries.

A case is `{name, source | source_base64, tests, accept, timeout_seconds, repeat, stdin}`. It fails when a verdict
is not accepted or comes late, when repeats or two fresh executors disagree, when a canary file changes, when a
canary port is reached, or when a process outlives the run.
"""

import base64
import contextlib
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glyph.executor.assertions import TestCodeError
from glyph.executor.pool import Executor
from glyph.executor.sandbox import ExecutorError, Limits
from glyph.protocol import Label

LATE_SECONDS = 2.0
CANARY_FILES = (".glyph/tests.py", ".glyph/trace.json", "data/p/solution.py", "solution.py")


@dataclass(frozen=True)
class Case:
    name: str
    source: bytes
    tests: str
    accept: tuple[Label, ...]
    timeout_seconds: float
    repeat: int
    stdin_pipe: bool


def load_cases(path: Path) -> list[Case]:
    """Read a case file.

    Raises:
        ValueError: the file is no list of cases; says which case and field.
    """
    try:
        items = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    if not isinstance(items, list):
        raise ValueError(f"{path}: expected a list of cases, got {type(items).__name__}")
    return [_case(item, f"{path}: case {i}") for i, item in enumerate(items)]


def _case(item: Any, where: str) -> Case:
    try:
        source = base64.b64decode(item["source_base64"]) if "source_base64" in item else item["source"].encode()
        return Case(
            name=str(item["name"]),
            source=source,
            tests=item["tests"],
            accept=tuple(Label(label) for label in item["accept"]),
            timeout_seconds=float(item.get("timeout_seconds", 3)),
            repeat=int(item.get("repeat", 1)),
            stdin_pipe=item.get("stdin") == "pipe",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def run_cases(cases: list[Case], level: str = "auto") -> Iterator[tuple[Case, str | None]]:
    """Run the cases among canaries; yields each with None, or with what is wrong.

    Raises:
        ValueError: the level does not exist or does not work here.
    """
    with contextlib.ExitStack() as stack:
        canaries = stack.enter_context(Canaries())
        try:
            first, second = (stack.enter_context(Executor(level=level)) for _ in range(2))
        except ExecutorError as error:
            raise ValueError(str(error)) from error
        for case in cases:
            with _stdin(case.stdin_pipe):
                yield case, _run_case(case, [first, second]) or canaries.disturbed()


def _run_case(case: Case, executors: list[Executor]) -> str | None:
    limits = replace(
        Limits(), wall_seconds=case.timeout_seconds, cpu_seconds=min(10, max(1, int(case.timeout_seconds)))
    )
    seen = set()
    for executor in executors if case.repeat > 1 else executors[:1]:
        for _ in range(case.repeat):
            started = time.monotonic()
            try:
                verdict = executor.run(case.source, case.tests, limits)
            except (ExecutorError, TestCodeError) as error:
                return f"{type(error).__name__}: {error}"
            seconds = time.monotonic() - started
            if verdict.label not in case.accept:
                wanted = "/".join(label.value for label in case.accept)
                causes = (verdict.reason, verdict.exception_type, verdict.detail)
                cause = ": ".join(filter(None, causes)) or "no fault"
                return f"{verdict.label.value} ({cause}), accepted {wanted}"
            if seconds > case.timeout_seconds + LATE_SECONDS:
                return f"verdict after {seconds:.1f} s, limit {case.timeout_seconds} s"
            seen.add(verdict.label)
    return f"not deterministic: {sorted(label.value for label in seen)}" if len(seen) > 1 else None


class Canaries:
    """Files, a secret, a port and a process table around the run; `disturbed` says what was touched."""

    def __enter__(self) -> "Canaries":
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="glyph-canaries-")))
        for name in CANARY_FILES:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"canary {name}\nassert f(1) == 42\nassert f(2) == 43\n")
        self._digests = self._digest()
        self._stack.enter_context(contextlib.chdir(self._folder))
        os.environ["GLYPH_INITIAL"] = os.environ["CANARY_API_KEY"] = "canary-secret"
        self._port = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._port.setblocking(False)
        os.environ["CANARY_PORT"] = str(self._port.getsockname()[1])
        _adopt_orphans(True)
        self._before = set(_stray_processes())
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("GLYPH_INITIAL", "CANARY_API_KEY", "CANARY_PORT"):
            os.environ.pop(name, None)
        _adopt_orphans(False)
        self._stack.close()

    def disturbed(self) -> str | None:
        if self._digest() != self._digests:
            self._digests = self._digest()
            return "a canary file was changed"
        with contextlib.suppress(BlockingIOError):
            self._port.accept()[0].close()
            return "the canary port was reached"
        strays = [pid for pid in _stray_processes() if pid not in self._before]
        return f"processes outlived the test: {strays}" if strays else None

    def _digest(self) -> dict[str, str]:
        files = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _adopt_orphans(wanted: bool) -> None:
    """Let orphans of a test become our children, so that they can be seen."""
    if os.uname().sysname == "Linux":
        from glyph.executor import isolation

        isolation.prctl(isolation.PR_SET_CHILD_SUBREAPER, int(wanted))


def _stray_processes() -> list[int]:
    """Living descendants of this process other than zygotes and, in namespaces, the first child of each: its keeper."""
    table = _process_table()
    zygotes = {pid for pid, process in table.items() if process.parent == os.getpid() and process.is_zygote}
    keepers = set()
    for zygote in zygotes:
        inner = [(process.started, pid) for pid, process in table.items() if process.parent == zygote]
        if table[zygote].in_namespaces and inner:
            keepers.add(min(inner)[1])
    return sorted(pid for pid in table if pid not in zygotes | keepers and _is_below_us(pid, table))


@dataclass(frozen=True)
class _Process:
    parent: int
    started: int
    command: list[str]

    @property
    def is_zygote(self) -> bool:
        return any(word.endswith("start_zygote.py") for word in self.command)

    @property
    def in_namespaces(self) -> bool:
        return self.command[-1:] == ["namespaces"]


def _process_table() -> dict[int, _Process]:
    table = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):  # a dead one's entry is all that is left of it
                command = (entry / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
                table[int(entry.name)] = _Process(int(fields[1]), int(fields[19]), command)
    return table


def _is_below_us(pid: int, table: dict[int, _Process]) -> bool:
    while pid in table and table[pid].parent != os.getpid():
        pid = table[pid].parent
    return pid in table


@contextlib.contextmanager
def _stdin(pipe: bool) -> Iterator[None]:
    """Give this process an open, silent pipe as its standard input while a case asks for it."""
    if not pipe:
        yield
        return
    saved = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    try:
        yield
    finally:
        os.dup2(saved, 0)
        for handle in (saved, reading, writing):
            os.close(handle)
