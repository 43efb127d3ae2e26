"""The candidate's process: compile, load, then answer one question at a time with an encoded value.

Runs after a fork of the zygote, already shut in. It never sees an expected value and is never asked for a truth
value. Everything that it says is untrusted: the candidate shares its memory. What it says of an exception it reads
without running the candidate's code, as far as Python lets it.
"""

import base64
import io
import os
import random
import socket
import sys
import tokenize
import traceback
import types
from typing import Any

from glyph.executor import values
from glyph.executor.frames import MAX_FRAME, Frames, pack

SOURCE_NAME = "solution.py"
TEST_NAME = "<test>"
MAX_DETAIL = 300
MAX_TRACEBACK = 20_000
# The candidate may replace what hangs in modules: keep our own references.
_getpid, _exit, _encode, _format = os.getpid, os._exit, values.encode, traceback.format_exception
_AssertionError, _SystemExit, _SyntaxError = AssertionError, SystemExit, SyntaxError
_NAME, _MODULE = type.__dict__["__name__"].__get__, type.__dict__["__module__"].__get__
_ARGUMENTS = BaseException.__dict__["args"].__get__
_TRACEBACK = BaseException.__dict__["__traceback__"].__get__


def answer_questions(connection: socket.socket) -> None:
    """Serve the parent until it hangs up. Never returns."""
    frames, owner = Frames(connection), _getpid()
    random.seed(0)
    namespace: dict[str, Any] = {}
    frames.write({"here": True})  # before anything of the candidate's has run
    while True:
        try:
            question = frames.read()
        except EOFError:
            _exit(0)  # the parent is done with us
        report = _answer(question, namespace)
        if _getpid() != owner:
            _exit(0)  # a fork that the candidate made came back here: it must not speak on the socket
        error = report.pop("error", None)
        frame = pack(report)
        frames.send(frame if len(frame) <= MAX_FRAME else pack({"value": values.OPAQUE}))
        if error is not None:
            frames.write({"traceback": _formatted(error)})


def _answer(question: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    phase = question["phase"]
    try:
        if phase == "load":
            code = _compile(base64.b64decode(question["code"]))
            phase = "run"
            namespace["module"] = _module(code)
            exec(code, namespace["module"].__dict__)
            return {"value": ["n"]}
        phase, scope = "call", namespace["module"].__dict__
        if question["phase"] == "exec":
            exec(compile(question["code"], TEST_NAME, "exec", dont_inherit=True), scope)
            return {"value": ["n"]}
        return {"value": _encode(eval(compile(question["code"], TEST_NAME, "eval", dont_inherit=True), scope))}
    except BaseException as error:
        return _describe(error, {"load": "compile", "run": "load"}.get(phase, "call"))


def _compile(source: bytes) -> types.CodeType:
    """Compile strictly by the coding cookie: bad UTF-8 is an error in a comment too."""
    try:
        with open(SOURCE_NAME, "wb") as file:
            file.write(source)
    except OSError:
        pass  # a source above the file limit: only introspection misses it
    lines = io.BytesIO(source.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    encoding, _ = tokenize.detect_encoding(lines.readline)
    return compile(source.decode(encoding), os.path.abspath(SOURCE_NAME), "exec", dont_inherit=True)


def _module(code: types.CodeType) -> types.ModuleType:
    module = types.ModuleType("solution")
    module.__file__ = code.co_filename
    sys.modules["solution"] = module
    return module


def _describe(error: BaseException, phase: str) -> dict[str, Any]:
    kind = type(error)
    return {
        "raised": _NAME(kind)[:200],
        "assertion": issubclass(kind, _AssertionError),
        "exit": issubclass(kind, _SystemExit),
        "phase": phase,
        "origin": _origin(error) if phase == "call" else "candidate",
        "detail": _detail(error),
        "error": error,
    }


def _detail(error: BaseException) -> str:
    """The message, of plain parts only: to format anything else is to run the candidate's code."""
    plain = [str(part)[:MAX_DETAIL] for part in _ARGUMENTS(error)[:3] if type(part) in (str, bool, float)]
    return ", ".join(plain)[:MAX_DETAIL]


def _origin(error: BaseException) -> str:
    """Whose code raised: the last frame that is the candidate's or the test's own."""
    origin, step = "test", _TRACEBACK(error)
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if name.endswith("/" + SOURCE_NAME):
            origin = "candidate"
        elif name == TEST_NAME:
            origin = "test"
        step = step.tb_next
    return origin


def _formatted(error: BaseException) -> str:
    """The traceback as Python prints it, without our own frame; what the published rule read its label from."""
    try:
        if isinstance(error, _SystemExit):
            return error.code if isinstance(error.code, str) else ""
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(_format(type(error), error, inner))[-MAX_TRACEBACK:]
    except BaseException:
        return f"Traceback (most recent call last):\n{_NAME(type(error))}"
