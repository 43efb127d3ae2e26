"""The parent's side: `Executor` runs candidates against tests and returns a `Verdict` for each.

Owns a pool of zygote processes. A candidate is code from a model and may do anything; what it does becomes a label.
Faults of ours become `ExecutorError`, never a label.
"""

import ast
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from glyph.executor.assertions import Step, parse_tests
from glyph.executor.judging import KnownValues, find_known_values, run_test
from glyph.executor.levels import choose_level
from glyph.executor.sandbox import ExecutorError, Limits, Zygote
from glyph.protocol import Label
from glyph.records import Verdict

T = TypeVar("T")


class Executor:
    """Runs candidates against tests, several at a time, from any thread.

    Args:
        limits: what one test may use.
        level: an isolation level's name, or "auto" for the best that this machine offers (probed once).
        workers: how many tests may run at once; each keeps one zygote process, started when first needed.

    Raises:
        ExecutorError: the named level cannot be set up here.
        ValueError: there is no such level.
    """

    def __init__(self, limits: Limits | None = None, level: str = "auto", workers: int = 2) -> None:
        self.limits = limits or Limits()
        self.python_version, self.syscall_filter, self._closed = "", False, False
        self.workers = workers
        self._known: dict[str, KnownValues] = {}
        self._adopt_process()
        self.level, zygote = choose_level(level, _try_level)
        self._add(zygote or Zygote(self.level))

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every idle zygote, and those of tests in flight once they are done."""
        self._closed = True
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def facts(self) -> dict[str, str]:
        """What a manifest should say about this executor."""
        limits = {f"limit_{name}": str(value) for name, value in asdict(self.limits).items()}
        filtered = "yes" if self.syscall_filter else "no"
        return {"isolation": self.level, "syscall_filter": filtered, "candidate_python": self.python_version, **limits}

    def run(self, source: str | bytes, tests: str, limits: Limits | None = None) -> Verdict:
        """Run one candidate. The verdict comes within the wall limit plus about a second.

        Raises:
            TestCodeError: the tests are unusable.
            ExecutorError: the executor failed twice in a row; nothing is known about the candidate.
        """
        steps = parse_tests(tests)
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        known = self._known_values(tests, steps)
        return self._with_zygote(lambda zygote: run_test(zygote, data, steps, known, limits or self.limits))

    def _known_values(self, tests: str, steps: tuple[Step, ...]) -> KnownValues:
        """Values of the parts of the tests that need no candidate, computed once in a process that has none."""
        if not any(len(step.leaves()) > 1 for step in steps):
            return {}
        if tests not in self._known:
            imports = _imports_for(tests)
            self._known[tests] = self._with_zygote(lambda z: find_known_values(z, steps, imports, self.limits))
        return self._known[tests]

    def _with_zygote(self, work: Callable[[Zygote], T]) -> T:
        """Do work on a zygote of the pool; once more on a fresh one when the first breaks."""
        if os.getpid() != self._owner:
            self._adopt_process()
        with self._slots:
            try:
                return self._work_on(self._acquire(), work)
            except ExecutorError:
                return self._work_on(Zygote(self.level), work)

    def _work_on(self, zygote: Zygote, work: Callable[[Zygote], T]) -> T:
        try:
            result = work(zygote)
        except BaseException:  # a test may still run in it
            zygote.close()
            raise
        self._add(zygote)
        if self._closed:
            self.close()
        return result

    def _adopt_process(self) -> None:
        """Begin with an empty pool; after a fork too, since the parent goes on using its zygotes' sockets."""
        self._idle: queue.LifoQueue[Zygote] = queue.LifoQueue()
        self._slots = threading.BoundedSemaphore(self.workers)
        self._owner = os.getpid()

    def _acquire(self) -> Zygote:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return Zygote(self.level)

    def _add(self, zygote: Zygote) -> None:
        self.python_version, self.syscall_filter = zygote.facts["python"], zygote.facts["syscall_filter"]
        self._idle.put(zygote)


def _imports_for(tests: str) -> bytes:
    """Imports of `sys` and of every standard module that the tests name, for the process without a candidate."""
    names = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
    return "".join(f"import {name}\n" for name in sorted({"sys", *names & sys.stdlib_module_names})).encode()


def _try_level(level: str) -> Zygote:
    """A zygote of the level, once a trivial candidate that imports a module has passed in it.

    Raises:
        ExecutorError: the level does not work here, and why.
    """
    zygote = Zygote(level)
    try:
        sample = b"import colorsys\ndef f(): return 1\n"
        verdict = run_test(zygote, sample, parse_tests("assert f() == 1"), {}, Limits(wall_seconds=10))
    except ExecutorError:
        zygote.close()
        raise
    if verdict.label is not Label.PASS:
        zygote.close()
        raise ExecutorError(f"a trivial candidate got {verdict.label.value}: {verdict.detail or verdict.reason}")
    return zygote
