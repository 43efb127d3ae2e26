"""The candidate's process: compile, load, then answer one question at a time with an encoded value.

Runs after a fork of the zygote, already shut in. It never sees an expected value and is never asked for a truth
value. Everything that it says is untrusted: the candidate shares its memory.
"""

import base64
import io
import json
import os
import random
import socket
import struct
import sys
import tokenize
import traceback
import types
from typing import Any

from glyph.executor import values

SOURCE_NAME = "solution.py"
TEST_NAME = "<test>"
MAX_DETAIL = 300
MAX_TRACEBACK = 20_000
# The candidate may replace what hangs in modules: keep our own references.
_dumps, _loads, _getpid, _exit, _pack, _unpack = json.dumps, json.loads, os.getpid, os._exit, struct.pack, struct.unpack
_encode, _format = values.encode, traceback.format_exception
AssertionError_, SystemExit_ = AssertionError, SystemExit


class Channel:
    """Length-prefixed JSON over the private socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._receive, self._send = connection.recv, connection.sendall

    def read(self) -> dict[str, Any]:
        (size,) = _unpack("!I", self._exactly(4))
        return _loads(self._exactly(size))

    def write(self, message: dict[str, Any]) -> None:
        body = _dumps(message).encode()
        self._send(_pack("!I", len(body)) + body)

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._receive(min(size, 1 << 20))
            if not part:
                _exit(0)  # the parent is done with us
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def answer_questions(connection: socket.socket) -> None:
    """Serve the parent until it hangs up. Never returns."""
    channel, owner = Channel(connection), _getpid()
    random.seed(0)
    namespace: dict[str, Any] = {}
    channel.write({"here": True})  # before anything of the candidate's has run
    while True:
        question = channel.read()
        report = _answer(question, namespace)
        if _getpid() != owner:
            _exit(0)  # a fork that the candidate made came back here: it must not speak on the pipe
        error = report.pop("error", None)
        channel.write(report)
        if error is not None:
            channel.write({"traceback": _formatted(error)})


def _answer(question: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    phase = question["phase"]
    try:
        if phase == "load":
            code = _compile(base64.b64decode(question["source"]))
            phase = "run"
            namespace["module"] = _module(code)
            exec(code, namespace["module"].__dict__)
            return {"value": ["n"]}
        phase, scope = "call", namespace["module"].__dict__
        if question["phase"] == "exec":
            exec(compile(question["code"], TEST_NAME, "exec"), scope)
            return {"value": ["n"]}
        return {"value": _encode(eval(compile(question["code"], TEST_NAME, "eval"), scope))}
    except BaseException as error:
        return _describe(error, {"load": "compile", "run": "load"}.get(phase, "call"))


def _compile(source: bytes) -> types.CodeType:
    """Compile strictly by the coding cookie: bad UTF-8 is an error in a comment too."""
    try:
        with open(SOURCE_NAME, "wb") as file:
            file.write(source)
    except OSError:
        pass  # a source above the file limit: only introspection misses it
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return compile(source.decode(encoding), os.path.abspath(SOURCE_NAME), "exec", dont_inherit=True)


def _module(code: types.CodeType) -> types.ModuleType:
    module = types.ModuleType("solution")
    module.__file__ = code.co_filename
    sys.modules["solution"] = module
    return module


def _describe(error: BaseException, phase: str) -> dict[str, Any]:
    kind = type(error)
    plain = kind.__module__ == "builtins"
    try:
        detail = BaseException.__str__(error)[:MAX_DETAIL] if plain else ""
    except BaseException:
        detail = ""
    return {
        "raised": kind.__name__[:200],
        "assertion": issubclass(kind, AssertionError_),
        "exit": issubclass(kind, SystemExit_),
        "phase": phase,
        "origin": _origin(error),
        "detail": detail,
        "error": error,
    }


def _origin(error: BaseException) -> str:
    """Whose code raised: the last frame that is the candidate's or the test's own."""
    origin, step = "test", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if name.endswith("/" + SOURCE_NAME):
            origin = "candidate"
        elif name == TEST_NAME:
            origin = "test"
        step = step.tb_next
    return "candidate" if isinstance(error, SyntaxError) and error.__traceback__ is None else origin


def _formatted(error: BaseException) -> str:
    """The traceback as Python prints it, without our own frame; what the published rule read its label from."""
    if isinstance(error, SystemExit_):
        return error.code if isinstance(error.code, str) else ""
    try:
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(_format(type(error), error, inner))[-MAX_TRACEBACK:]
    except BaseException:
        return f"Traceback (most recent call last):\n{type(error).__name__}"
