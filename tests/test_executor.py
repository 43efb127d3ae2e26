"""The executor: what a verdict says, what is a fault of ours, and what is left when it is done."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glyph.cli import build_app
from glyph.executor import LEVELS, Executor, ExecutorError, Limits, TestCodeError, levels, sandbox
from glyph.executor.rules import classify_ending
from glyph.executor.sandbox import Zygote
from glyph.protocol import Label
from glyph.records import Verdict

ROOT = Path(__file__).parents[1]
GOOD = "def f(x):\n    return 7 * x\n"
TESTS = "n = 1\nassert f(n) == 7\nassert f(2) == 14\n"


@pytest.fixture(scope="module")
def one() -> Iterator[Executor]:
    with Executor(workers=1) as executor:
        yield executor


# --- 1. The verdict names what failed, where and whose it was.

VERDICTS = {
    "pass": (GOOD, {"label": "PASS", "phase": None, "origin": None, "failed_step": None, "exception_type": None}),
    "compile": (
        "def f(x:\n",
        {"label": "SYNTAX_ERROR", "phase": "compile", "origin": "candidate", "failed_step": None}
        | {"exception_type": "SyntaxError"},
    ),
    "bad UTF-8": (
        b"# \xff\n",
        {"label": "SYNTAX_ERROR", "phase": "compile", "origin": "candidate", "failed_step": None},
    ),
    "load": (
        "1 / 0\n",
        {"label": "RUNTIME_ERROR", "phase": "load", "origin": "candidate", "failed_step": None}
        | {"exception_type": "ZeroDivisionError", "detail": "division by zero"},
    ),
    "call": (
        "def f(x):\n    return [][x]\n",
        {"label": "RUNTIME_ERROR", "phase": "call", "origin": "candidate", "failed_step": 1}
        | {"exception_type": "IndexError", "detail": "list index out of range"},
    ),
    "second call": (
        "def f(x):\n    return {1: 7}[x]\n",
        {"label": "RUNTIME_ERROR", "phase": "call", "origin": "candidate", "failed_step": 2}
        | {"exception_type": "KeyError"},
    ),
    "no such name": (
        "g = 1\n",
        {"label": "RUNTIME_ERROR", "phase": "call", "origin": "test", "failed_step": 1, "exception_type": "NameError"},
    ),
    "arguments": (
        "def f(): pass\n",
        {"label": "RUNTIME_ERROR", "phase": "call", "origin": "test", "failed_step": 1, "exception_type": "TypeError"},
    ),
    "wrong value": (
        "def f(x):\n    return 7\n",
        {"label": "ASSERTION_FAILURE", "phase": "call", "origin": "test", "failed_step": 2}
        | {"exception_type": "AssertionError", "detail": "does not hold: assert f(2) == 14"},
    ),
    "its own assertion": (
        "def f(x):\n    assert x > 1\n",
        {"label": "ASSERTION_FAILURE", "phase": "call", "origin": "candidate", "failed_step": 1},
    ),
    "exit": (
        "import sys\ndef f(x):\n    sys.exit(1)\n",
        {"label": "OTHER", "phase": "call", "origin": "candidate", "reason": "SystemExit", "failed_step": 1},
    ),
    "_exit": ("import os\ndef f(x):\n    os._exit(3)\n", {"label": "OTHER", "phase": None, "reason": "exit code 3"}),
    "abort": ("import os\nos.abort()\n", {"label": "OTHER", "reason": "signal 6", "failed_step": None}),
    "kill": (
        "import os\ndef f(x):\n    os.kill(os.getpid(), 9)\n",
        {"label": "OTHER", "reason": "signal 9", "failed_step": 1},
    ),
    "wall": (
        "import time\ndef f(x):\n    time.sleep(60)\n",
        {"label": "TIMEOUT", "published_label": "TIMEOUT", "reason": "wall limit", "failed_step": 1},
    ),
    "cpu": ("while True: pass\n", {"label": "TIMEOUT", "reason": "cpu limit", "failed_step": None}),
    "garbage": (
        "import os, contextlib\nfor n in range(3, 30):\n    with contextlib.suppress(OSError):\n"
        "        os.write(n, b'\\xff' * 8)\n",
        {"label": "OTHER", "reason": "malformed answer"},
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name: str, one: Executor) -> None:
    source, expected = VERDICTS[name]
    wall = 0.5 if name == "wall" else 10.0
    verdict = one.run(source, TESTS, Limits(wall_seconds=wall, cpu_seconds=1))
    found = {field: getattr(verdict, field) for field in expected}
    assert found == {name: Label(value) if name.endswith("label") else value for name, value in expected.items()}
    assert verdict.wall_seconds > 0
    assert verdict.cpu_seconds >= 0


THREE = "n = 2\nassert f(1) == 1\nassert f(n) == 4\nassert f(3) == 9\n"
OBSERVED = {
    "the second assertion, after a line of setup": ("def f(x):\n    return x\n", THREE, (2, 2, "2")),
    "text": ("def f(x):\n    return 'é' * x\n", "assert f(2) == 'a'\n", (0, 1, "'éé'")),
    "no comparison": ("def f(x):\n    return []\n", "assert f(2)\n", (0, 1, "[]")),
    "beside known values": ("def f(x):\n    return x\n", "assert f(2) == len('abc')\n", (0, 1, "2")),
    "of two values neither": ("def f(x):\n    return x\n", "assert f(2) == f(3)\n", (0, 1, None)),
    "60 characters": ("def f(x):\n    return 'a' * 58\n", "assert f(2) == 1\n", (0, 1, repr("a" * 58))),
    "61 characters": ("def f(x):\n    return 'a' * 59\n", "assert f(2) == 1\n", (0, 1, None)),
    "a set has no order": ("def f(x):\n    return {1, 2}\n", "assert f(2) == 1\n", (0, 1, None)),
    "an object": ("def f(x):\n    return object()\n", "assert f(2) == 1\n", (0, 1, None)),
    "its own assertion": ("def f(x):\n    assert x == 1\n    return 1\n", THREE, (2, None, None)),
    "an exception": ("def f(x):\n    return 1 / (x - 1)\n", THREE, (1, None, None)),
    "a pass": ("def f(x):\n    return x * x\n", THREE, (None, None, None)),
}
"""(failed_step, failed_assertion, observed)"""


@pytest.mark.parametrize("name", OBSERVED)
def test_a_failed_assertion_is_numbered_and_what_it_gave_is_told(name: str, one: Executor) -> None:
    source, tests, expected = OBSERVED[name]
    verdict = one.run(source, tests)
    assert (verdict.failed_step, verdict.failed_assertion, verdict.observed) == expected


PUBLISHED = {
    "def f(x):\n    raise ValueError('no SyntaxError here')\n": ("RUNTIME_ERROR", "SYNTAX_ERROR"),
    "class NotAnAssertionError(Exception): pass\ndef f(x):\n    raise NotAnAssertionError\n": (
        "RUNTIME_ERROR",
        "ASSERTION_FAILURE",
    ),
    "def f(x):\n    exec('x = = 1')\n": ("RUNTIME_ERROR", "SYNTAX_ERROR"),
    "def f(x):\n    try:\n        assert False\n    except AssertionError:\n        return [][1]\n": (
        "RUNTIME_ERROR",
        "ASSERTION_FAILURE",
    ),
    "import sys\ndef f(x):\n    sys.exit('Traceback of an AssertionError')\n": ("OTHER", "ASSERTION_FAILURE"),
    "class Mine(AssertionError): pass\ndef f(x):\n    raise Mine\n": ("ASSERTION_FAILURE", "RUNTIME_ERROR"),
    "def f(x):\n    return 1 / 0\n": ("RUNTIME_ERROR", "RUNTIME_ERROR"),
    "def f(x):\n    return 0\n": ("ASSERTION_FAILURE", "ASSERTION_FAILURE"),
    "def f(x:\n": ("SYNTAX_ERROR", "SYNTAX_ERROR"),
    "import sys\nsys.exit(0)\n": ("OTHER", "OTHER"),
    GOOD: ("PASS", "PASS"),
}


@pytest.mark.parametrize("source", PUBLISHED)
def test_the_published_label_stands_beside_ours(source: str, one: Executor) -> None:
    verdict = one.run(source, TESTS)
    assert (verdict.label.value, verdict.published_label.value) == PUBLISHED[source]


@pytest.mark.parametrize(
    ("code", "used", "hung_up", "label"),
    [
        (-signal.SIGXCPU, 9.9, True, Label.TIMEOUT),
        (-signal.SIGKILL, 10.4, True, Label.TIMEOUT),
        (-signal.SIGXCPU, 0.1, True, Label.OTHER),
        (-signal.SIGKILL, 0.1, True, Label.OTHER),
        (0, 10.2, False, Label.TIMEOUT),
        (0, 9.9, False, Label.PASS),
    ],
)
def test_cpu_time_decides_what_a_signal_means(code: int, used: float, hung_up: bool, label: Label) -> None:
    verdict = Verdict(Label.OTHER, Label.OTHER) if hung_up else Verdict(Label.PASS, Label.PASS)
    ending = {"natural": hung_up, "exit_code": code, "cpu_seconds": used}
    assert classify_ending(verdict, ending, hung_up, cpu_seconds=10).label is label


# --- 2. A fault of ours is an exception, never a label.


@pytest.mark.parametrize(
    "tests",
    ["", "assert f(1) ==", "x = 1", "for n in (1, 2):\n    assert f(n) == 7 * n\n", "assert f(1) == object()"],
)
def test_bad_tests_are_a_fault_of_the_task(tests: str, one: Executor) -> None:
    with pytest.raises(TestCodeError):
        one.run(GOOD, tests)
    assert one.run(GOOD, TESTS).label is Label.PASS


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "python_executable", lambda: "/no/such/python")
    with pytest.raises(ExecutorError, match="cannot be started"):
        Executor(level="process")


def test_an_interpreter_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "python_executable", lambda: "/bin/true")
    with pytest.raises(ExecutorError, match="did not answer"):
        Executor(level="process")


def test_no_such_level() -> None:
    with pytest.raises(ValueError, match="expected auto or one of namespaces, user, process"):
        Executor(level="total")


def refuse(*refused: str) -> object:
    class Refusing(Zygote):
        def __init__(self, level: str) -> None:
            if level in refused:
                raise ExecutorError(f"{level} is refused here")
            super().__init__(level)

    return Refusing


def test_the_best_level_that_works_is_taken_and_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(levels, "_chosen", {})
    monkeypatch.setattr("glyph.executor.pool.Zygote", refuse("namespaces", "user"))
    with caplog.at_level("INFO", "glyph.executor"), Executor() as executor:
        assert executor.level == "process"
        assert executor.run(GOOD, TESTS).label is Label.PASS
    assert "namespaces is refused here" in caplog.text
    assert "candidates run at isolation level process" in caplog.text
    assert ("WITHOUT ISOLATION" in caplog.text) == (os.geteuid() == 0)


def test_no_level_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_chosen", {})
    monkeypatch.setattr("glyph.executor.pool.Zygote", refuse(*LEVELS))
    with pytest.raises(ExecutorError, match="no isolation level works here"):
        Executor()


SLOW = "import time\ndef f(x):\n    time.sleep(0.4)\n    return 7 * x\n"


def zygotes() -> set[int]:
    """Process ids of the zygotes that are children of this process."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"start_zygote.py" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def test_an_idle_zygote_that_died_is_replaced() -> None:
    before = zygotes()
    with Executor(workers=1) as executor:
        for zygote in zygotes() - before:
            os.kill(zygote, signal.SIGKILL)
        assert executor.run(GOOD, TESTS).label is Label.PASS


def test_a_zygote_killed_in_the_middle_is_replaced() -> None:
    before = zygotes()
    with Executor(workers=1) as executor, ThreadPoolExecutor(1) as thread:
        (first,) = zygotes() - before
        running = thread.submit(executor.run, SLOW, TESTS)
        time.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        assert running.result().label is Label.PASS
        assert first not in zygotes()


def test_two_zygotes_killed_are_a_fault() -> None:
    before, over = zygotes(), threading.Event()

    def kill_all() -> None:
        while not over.wait(0.05):
            for zygote in zygotes() - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote, signal.SIGKILL)

    with Executor(workers=1) as executor:
        killer = threading.Thread(target=kill_all)
        killer.start()
        try:
            with pytest.raises(ExecutorError):
                executor.run("import time\ntime.sleep(20)\n", TESTS)
        finally:
            over.set()
            killer.join()
        assert executor.run(GOOD, TESTS).label is Label.PASS


# --- 3. Limits.


def test_limits_hold_and_are_reported() -> None:
    limits = Limits(memory_bytes=200 << 20, file_bytes=1000, open_files=20, processes=5)
    write = "open('a', 'ab', 0).write(bytes(900))"
    fork = "os.fork() or time.sleep(9)"
    tests = {
        "def f(x):\n    return len(bytearray(300 << 20))\n": "MemoryError",
        f"def f(x):\n    {write}\n    {write}\n    {write}\n": "OSError",
        "def f(x):\n    return len([open('/dev/null') for _ in range(20)])\n": "OSError",
        f"import os, time\ndef f(x):\n    return [{fork} for _ in range(5)]\n": "BlockingIOError",
    }
    with Executor(limits, workers=1) as executor:
        facts = executor.facts()
        if executor.level == "process" and os.geteuid() == 0:
            pytest.skip("the kernel counts no processes for root")
        found = {source: executor.run(source, TESTS).exception_type for source in tests}
    assert found == tests
    assert facts["limit_memory_bytes"] == str(200 << 20)
    assert facts["isolation"] in LEVELS
    assert facts["candidate_python"].startswith("3.")


def test_limits_of_one_run(one: Executor) -> None:
    slow = "import time\ntime.sleep(60)\n" + GOOD
    assert one.run(slow, TESTS, replace(one.limits, wall_seconds=0.3)).reason == "wall limit"
    assert one.run(GOOD, TESTS).label is Label.PASS


def test_the_second_line_refuses_calls(one: Executor) -> None:
    """What the filter of system calls refuses, at every level."""
    if one.facts()["syscall_filter"] != "yes":
        pytest.skip("no filter of system calls on this machine")
    source = textwrap.dedent("""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        number = {"x86_64": (250, 425, 56), "aarch64": (219, 425, 220)}[os.uname().machine]
        def refused(name, *arguments):
            ctypes.set_errno(0)
            return getattr(libc, name)(*arguments), ctypes.get_errno()
        def f(x):
            return [
                refused("shmget", 1, 4096, 0o1600), refused("unshare", 0x10000000), refused("ptrace", 0, 0, 0, 0),
                refused("socket", 2, 1, 0), refused("socket", 1, 1, 0), refused("kill", -1, 0),
                refused("syscall", number[0], 0, 0, 0), refused("syscall", number[1], 1, 0),
                refused("syscall", number[2], 0x10000000 | 17, 0, 0, 0, 0),
            ]
    """)
    assert one.run(source, f"assert f(1) == {[(-1, 1)] * 9}").label is Label.PASS


def test_a_test_in_flight_outlives_the_close() -> None:
    before = zygotes()
    executor = Executor(workers=1)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(executor.run, SLOW, TESTS)
        time.sleep(0.1)
        executor.close()
        assert running.result().label is Label.PASS
    assert zygotes() <= before


# --- 4. Several at once, and after a fork.


def test_sixteen_threads() -> None:
    def run(n: int) -> Label:
        return executor.run(f"def f(x):\n    return x + {n}\n", f"assert f(1) == {n + 1 + n % 2}").label

    before = zygotes()
    with Executor(workers=3) as executor, ThreadPoolExecutor(16) as threads:
        found = list(threads.map(run, range(96)))
        assert len(zygotes() - before) <= 3
    assert found == [Label.PASS, Label.ASSERTION_FAILURE] * 48
    assert zygotes() <= before


def python(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_fork_of_the_parent_has_a_pool_of_its_own() -> None:
    done = python("""
        import os
        from glyph.executor import Executor
        executor = Executor(workers=1)
        def passes(n):
            return executor.run(f"def f(): return {n}", f"assert f() == {n}").label.value == "PASS"
        assert passes(1)
        child = os.fork()
        if child == 0:
            ok = all(passes(n) for n in range(20))
            executor.close()
            os._exit(0 if ok else 1)
        assert all(passes(n) for n in range(100, 120))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert passes(2)
        child = os.fork()
        if child == 0:
            raise SystemExit(0)  # its finalizers must leave the parent's zygotes alone
        os.waitpid(child, 0)
        zygote = executor._idle.queue[-1]
        assert passes(3) and executor._idle.queue[-1] is zygote and zygote.process.poll() is None
        print("fine")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_nothing_but_the_standard_library() -> None:
    done = python(
        """
        import sys
        import glyph.executor
        light = {"ctypes", "logging", "pathlib", "subprocess", "socket"} & set(sys.modules)
        from glyph.executor import Executor
        import glyph.executor.cases, glyph.executor.zygote
        with Executor() as executor:
            assert executor.run("def f(): return 1", "assert f() == 1").label.value == "PASS"
        tops = {name.partition(".")[0] for name in sys.modules}
        print(sorted(light), sorted(tops - sys.stdlib_module_names - {"__main__", "__mp_main__"}))
        """,
        "-S",
    )
    assert (done.stdout, done.stderr) == ("[] ['glyph']\n", "")


# --- 5. A thousand hostile candidates leave nothing.

LEAVERS = [
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n" + GOOD,
    "import os\nos.fork()\n" + GOOD,
    "import os\ndef f(x):\n    os._exit(0)\n",
    "import os\ndef f(x):\n    os.kill(os.getpid(), 9)\n",
    "for n in range(20):\n    open(f'left{n}', 'w').write('x' * 1000)\n" + GOOD,
    "import os\nos.makedirs('a/b/c/d')\nos.chmod('a/b', 0)\n" + GOOD,
    "import os\nos.closerange(3, 60)\n" + GOOD,
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n" + GOOD,
    "import os, socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0, 1, 2])\n" + GOOD,
    "import os\nos.write(3, b'\\0\\0\\0\\2{}') if os.path.exists('/dev/null') else 0\n" + GOOD,
    "import os\nos.memfd_create('left')\nos.pipe()\n" + GOOD,
    "import signal\nfor n in (1, 2, 3, 15):\n    signal.signal(n, signal.SIG_IGN)\n" + GOOD,
    "def f(x):\n    raise SystemExit\n",
    "def f(x:\n",
]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def scratch_folders() -> set[str]:
    return {name for name in os.listdir("/tmp") if name.startswith("glyph-scratch-")}


def shared_memory() -> list[str]:
    return [
        Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg") if Path("/proc/sysvipc").exists()
    ]


def test_a_thousand_hostile_candidates_leave_nothing() -> None:
    from glyph.executor.cases import Canaries

    before = descriptors(), scratch_folders(), shared_memory(), zygotes()
    with Canaries() as canaries:
        with Executor(workers=2) as executor, ThreadPoolExecutor(4) as threads:
            runs = [threads.submit(executor.run, LEAVERS[n % len(LEAVERS)], TESTS) for n in range(1000)]
            labels = {run.result().label for run in runs}
            assert canaries.disturbed() is None
        assert canaries.disturbed() is None
    assert labels == {Label.PASS, Label.OTHER, Label.RUNTIME_ERROR, Label.SYNTAX_ERROR}
    assert (descriptors(), shared_memory(), zygotes()) == (before[0], before[2], before[3])
    assert scratch_folders() <= before[1]


# --- 6. `glyph cases`.


def case_file(path: Path, *accepted: str) -> str:
    cases = [
        {"name": f"case {n}", "source": GOOD, "tests": TESTS, "accept": [label]} for n, label in enumerate(accepted)
    ]
    path.write_text(json.dumps(cases))
    return str(path)


def test_cases_on_the_command_line(tmp_path: Path) -> None:
    run = CliRunner().invoke
    good = run(build_app(), ["cases", case_file(tmp_path / "a.json", "PASS", "PASS")])
    assert (good.exit_code, good.stdout) == (0, "2 of 2 as accepted\n")
    missed = run(build_app(), ["cases", case_file(tmp_path / "b.json", "PASS", "TIMEOUT")])
    assert missed.exit_code == 1
    assert missed.stdout.splitlines() == ["case 1: PASS (no fault), accepted TIMEOUT", "1 of 2 as accepted"]
    as_json = run(build_app(), ["cases", case_file(tmp_path / "c.json", "OTHER"), "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["misses"][0]["name"] == "case 0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON"),
        ("{}", "expected a list of cases, got dict"),
        ('[{"name": "a", "source": "", "tests": ""}]', "case 0: KeyError: 'accept'"),
        ('[{"name": "a", "source": "", "tests": "", "accept": ["FINE"]}]', "'FINE' is not a valid Label"),
        ('[{"name": "a", "source_base64": "%", "tests": "", "accept": 3}]', "case 0"),
        (None, "No such file"),
    ],
)
def test_a_bad_case_file_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    if content is not None:
        path.write_text(content)
    done = CliRunner().invoke(build_app(), ["cases", str(path)])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_level_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(build_app(), ["cases", case_file(tmp_path / "a.json", "PASS"), "--level", "total"])
    assert done.exit_code == 2
    assert "isolation level 'total'" in done.stderr


def test_unusable_tests_in_a_case_are_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"name": "a", "source": GOOD, "tests": "f(1)", "accept": ["PASS"]}]))
    done = CliRunner().invoke(build_app(), ["cases", str(path)])
    assert done.exit_code == 1
    assert "a: TestCodeError: test code holds no assertion" in done.stdout
