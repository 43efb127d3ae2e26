"""The one reader of trace files, and the writer of local ones.

In: JSON lines, plain or gzip, one rollout a line, as Verifiers 0.2 writes them (messages in a node graph, the
record under `info.glyph`) or as the local engine does (`messages` and `record`). Out: typed `Trace`s.
A bad line stops the reader with its place and cause; `lenient` skips and lists it instead.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from glyph.files import write_atomically
from glyph.records import TRACE_KEY, RolloutRecord, record_from_dict

LOCAL_SCHEMA_VERSION = 1
DEMONSTRATIONS = "demonstrations"
"""The model that a trace names when no model was run: a script played demonstrations."""
TRACE_FILE_NAMES = ("traces.jsonl", "traces.jsonl.gz")
GZIP_MAGIC = b"\x1f\x8b"


class TraceError(ValueError):
    """A trace file, or one line of it, cannot be read; the message says where and why."""


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Trace:
    """One rollout as stored. `error` is an environment fault: such a rollout is counted, never scored.

    `record` is None only where `error` is set. `task_id`, `arm` and `test_code` are None where the file has none.
    """

    id: str
    task_id: str | None
    arm: str | None
    split: str | None
    messages: tuple[Message, ...]
    record: RolloutRecord | None
    test_code: str | None = None
    error: str | None = None
    model: str | None = None

    @property
    def scored(self) -> RolloutRecord | None:
        """The record that metrics may count: None for a rollout that an environment fault ended."""
        return None if self.error is not None else self.record

    @property
    def demonstrations(self) -> range:
        """The indices of the messages that were shown as examples in the prompt: neither model nor rollout.

        The environment speaks as `user` once, to set the task, so all before the last such message (system apart)
        was prompt.
        """
        roles = [message.role for message in self.messages]
        if roles.count("user") < 2:
            return range(0)
        start = next(index for index, role in enumerate(roles) if role != "system")
        return range(start, len(roles) - 1 - roles[::-1].index("user"))


@dataclass(frozen=True)
class BadLine:
    line: int
    reason: str


@dataclass(frozen=True)
class TraceFile:
    """What a file held: the readable rollouts in file order, and the lines that `lenient` skipped."""

    path: Path
    traces: tuple[Trace, ...]
    skipped: tuple[BadLine, ...] = ()


def read_traces(path: str | Path, lenient: bool = False) -> TraceFile:
    """Read a trace file, or the `traces.jsonl[.gz]` of a run folder.

    Raises:
        TraceError: the file is absent, unreadable or without one rollout; or, unless `lenient`, a line is bad.
    """
    file = find_trace_file(Path(path))
    traces: list[Trace] = []
    skipped: list[BadLine] = []
    seen: dict[bytes, int] = {}
    for number, raw in _numbered_lines(file):
        try:
            if isinstance(raw, _Damage):
                raise ValueError(raw.reason)
            if raw.strip():
                _refuse_repeated(raw, number, seen)
                traces.append(parse_trace(raw))
        except ValueError as error:
            if not lenient:
                raise TraceError(f"{file}:{number}: {error} (--lenient skips bad lines)") from None
            skipped.append(BadLine(number, str(error)))
    if not traces:
        lines = "1 bad line" if len(skipped) == 1 else f"{len(skipped)} bad lines"
        first = "".join(f"; {lines}, the first is line {b.line}: {b.reason}" for b in skipped[:1])
        raise TraceError(f"{file}: no rollout in it{first}")
    return TraceFile(file, tuple(traces), tuple(skipped))


def find_trace_file(path: Path) -> Path:
    """The file itself, or the one trace file of a run folder.

    Raises:
        TraceError: nothing is there, or a folder holds both forms and one would have to be guessed.
    """
    if not path.is_dir():
        if not path.is_file():
            raise TraceError(f"{path}: no such trace file or run folder")
        return path
    found = _trace_files(path)
    if arms := arm_folders(path):
        raise TraceError(f"{path}: a run of several arms; name one of its folders: {', '.join(map(str, arms))}")
    if len(found) != 1:
        state = "both of" if found else "neither of"
        raise TraceError(f"{path}: the folder holds {state} {' and '.join(TRACE_FILE_NAMES)}; name one file")
    return found[0]


def arm_folders(path: Path) -> list[Path]:
    """The `arm_*` folders with traces in a run folder of `glyph rollouts`; none where it has traces of its own."""
    return [] if _trace_files(path) else sorted(folder for folder in path.glob("arm_*") if _trace_files(folder))


def _trace_files(folder: Path) -> list[Path]:
    return [folder / name for name in TRACE_FILE_NAMES if (folder / name).is_file()]


@dataclass(frozen=True)
class _Damage:
    reason: str


def _numbered_lines(file: Path) -> Iterator[tuple[int, bytes | _Damage]]:
    """The lines with their numbers from 1; at the point where a gzip stream breaks, the damage instead."""
    number = 0
    try:
        with file.open("rb") as raw:
            compressed = raw.read(2) == GZIP_MAGIC or file.suffix == ".gz"
            raw.seek(0)
            stream: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if compressed else raw
            for line in stream:
                number += 1
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield number + 1, _Damage(f"the gzip stream is damaged or cut short: {error}")
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None


def _refuse_repeated(raw: bytes, number: int, seen: dict[bytes, int]) -> None:
    """Samples of a task may share everything but their very bytes: two equal lines are one rollout twice."""
    digest = hashlib.sha256(raw.strip()).digest()
    if digest in seen:
        raise ValueError(f"repeats line {seen[digest]} byte for byte")
    seen[digest] = number


class _WireMessage(BaseModel):
    role: str
    content: str | list[Any] | None = None

    def plain(self) -> Message:
        if isinstance(self.content, list):
            parts = [part.get("text", "") for part in self.content if isinstance(part, dict)]
            return Message(self.role, "\n".join(str(part) for part in parts))
        return Message(self.role, self.content or "")


class _WireNode(BaseModel):
    parent: int | None = None
    message: _WireMessage


class _WireTaskData(BaseModel):
    task_id: str | int | None = None
    arm: str | None = None
    split: str | None = None
    test_code: str | None = None


class _WireTask(BaseModel):
    data: _WireTaskData


class _WireError(BaseModel):
    type: str = "error"
    message: str = ""


class _VerifiersLine(BaseModel):
    """The fields of a Verifiers 0.2 trace that are read here; all others are left alone."""

    id: str
    task: _WireTask
    nodes: list[_WireNode]
    info: dict[str, Any] = Field(default_factory=dict)
    errors: list[_WireError] = Field(default_factory=list)


class _LocalLine(BaseModel):
    schema_version: Literal[1]
    id: str
    split: str | None = None
    model: str | None = None
    messages: list[_WireMessage]
    record: dict[str, Any] | None = None
    tests: str | None = None
    error: str | None = None
    task_id: str | None = None
    arm: str | None = None


def parse_trace(raw: bytes | str) -> Trace:
    """Parse one line of either form.

    Raises:
        ValueError: the line is no UTF-8, no JSON, of neither form, or holds neither a record nor an error.
    """
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        cut = "" if text.endswith("\n") else "; the line has no end, so its writer was probably interrupted"
        raise ValueError(f"not JSON: {error}{cut}") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    try:
        if "nodes" in data:
            return _from_verifiers(_VerifiersLine.model_validate(data))
        if "messages" in data:
            return _from_local(_LocalLine.model_validate(data))
    except ValidationError as error:
        raise ValueError(_first_fault(error)) from None
    raise ValueError("neither a Verifiers trace (task, nodes, info) nor a local one (messages, record)")


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}, got {str(fault['input'])[:80]!r}"


def _from_verifiers(line: _VerifiersLine) -> Trace:
    task = line.task.data
    error = f"{line.errors[-1].type}: {line.errors[-1].message}" if line.errors else None
    return _assemble(
        Trace(
            id=line.id,
            task_id=None if task.task_id is None else str(task.task_id),
            arm=task.arm,
            split=task.split,
            messages=_branch_messages(line.nodes),
            record=_read_record(line.info.get(TRACE_KEY), error, "info.glyph"),
            test_code=task.test_code,
            error=error,
        )
    )


def _from_local(line: _LocalLine) -> Trace:
    return _assemble(
        Trace(
            id=line.id,
            task_id=line.task_id,
            arm=line.arm,
            split=line.split,
            messages=tuple(message.plain() for message in line.messages),
            record=_read_record(line.record, line.error, "record"),
            test_code=line.tests,
            error=line.error,
            model=line.model,
        )
    )


def _read_record(data: Any, error: str | None, where: str) -> RolloutRecord | None:
    """The typed record. Beside an error it may be absent or half made: then there is none."""
    if data is None and error is None:
        raise ValueError(f"no {where} and no error: the rollout was neither recorded nor dropped")
    try:
        return None if data is None else record_from_dict(data)
    except ValueError:
        if error is None:
            raise
        return None


def _assemble(trace: Trace) -> Trace:
    """Take task and arm from the record where there is one, and refuse a task that contradicts it."""
    if trace.record is None:
        return trace
    for name in ("task_id", "arm"):
        outer, inner = getattr(trace, name), getattr(trace.record, name)
        if outer is not None and outer.lower() != inner.lower():
            raise ValueError(f"{name} must agree: the task says {outer!r}, the record {inner!r}")
    fields = {**trace.__dict__, "task_id": trace.record.task_id, "arm": trace.record.arm}
    return Trace(**fields)


def _branch_messages(nodes: list[_WireNode]) -> tuple[Message, ...]:
    """The messages of the last branch: from the root to the newest leaf, which holds the latest full context."""
    for index, node in enumerate(nodes):
        if node.parent is not None and not 0 <= node.parent < index:
            raise ValueError(f"nodes.{index}.parent: expected an earlier node, got {node.parent}")
    path: list[Message] = []
    at: int | None = len(nodes) - 1 if nodes else None
    while at is not None:
        path.append(nodes[at].message.plain())
        at = nodes[at].parent
    return tuple(reversed(path))


def trace_to_dict(trace: Trace) -> dict[str, Any]:
    """The local form of a trace. Task and arm stand beside the record only where there is no record."""
    data: dict[str, Any] = {
        "schema_version": LOCAL_SCHEMA_VERSION,
        "id": trace.id,
        "split": trace.split,
        "model": trace.model,
        "messages": [{"role": message.role, "content": message.content} for message in trace.messages],
        "record": trace.record.to_dict() if trace.record else None,
        "error": trace.error,
    }
    if trace.test_code is not None:
        data["tests"] = trace.test_code
    if trace.record is None:
        data |= {"task_id": trace.task_id, "arm": trace.arm}
    return data


def local_trace_line(trace: Trace) -> str:
    """One line of a local trace file, with its line end. ASCII, so that a lone surrogate survives the trip."""
    return json.dumps(trace_to_dict(trace), allow_nan=False, separators=(",", ":")) + "\n"


def write_traces(path: str | Path, traces: Iterable[Trace], overwrite: bool = False) -> Path:
    """Write a local trace file in one step (all or nothing), compressed if the name ends in .gz.

    Raises:
        FileExistsError: the file is there and `overwrite` is off.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; remove it or write elsewhere")
    body = "".join(local_trace_line(trace) for trace in traces).encode("ascii")
    if path.suffix == ".gz":
        body = gzip.compress(body, mtime=0)
    return write_atomically(path, body)
