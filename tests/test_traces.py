"""The reader: both forms, and everything that can be wrong with a file."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from glyph.evaluation.traces import (
    Message,
    Trace,
    TraceError,
    arm_folders,
    local_trace_line,
    parse_trace,
    read_traces,
    write_traces,
)
from tests.builders import error_trace, trace, verifiers_line

GOOD = local_trace_line(trace("t1")).encode()
OTHER = local_trace_line(trace("t2", solved=False)).encode()


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize("name", ["traces.jsonl", "traces.jsonl.gz"])
def test_write_then_read_gives_the_same_traces(tmp_path: Path, name: str) -> None:
    traces = (trace("t1"), trace("t2", solved=False), error_trace("t3"))
    path = write_traces(tmp_path / name, traces)
    assert read_traces(path).traces == traces
    assert read_traces(tmp_path).path == path


def test_compressed_writing_is_deterministic_and_never_overwrites(tmp_path: Path) -> None:
    first, second = (write_traces(tmp_path / name, [trace()]) for name in ("a.gz", "b.gz"))
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(FileExistsError):
        write_traces(first, [trace("t2")])
    write_traces(first, [trace("t2")], overwrite=True)
    assert read_traces(first).traces[0].task_id == "t2"


def test_a_verifiers_trace_and_a_local_one_are_the_same_rollout() -> None:
    original = trace()
    read = parse_trace(json.dumps(verifiers_line(original)))
    assert read == replace(original, model=None)


def test_a_real_verifiers_trace_is_read() -> None:
    """Against the installed package: the form is its own dump, not our idea of it."""
    v1 = pytest.importorskip("verifiers.v1.trace")
    original = trace()
    line = verifiers_line(original)
    for node in line["nodes"]:
        if node["message"]["role"] == "tool":
            node["message"]["tool_call_id"] = "c1"
    real = v1.WireTrace.model_validate(line)
    assert parse_trace(json.dumps(real.to_record())) == replace(original, model=None)


def test_messages_come_from_the_newest_branch() -> None:
    line = verifiers_line(trace())
    fork = {"parent": 1, "message": {"role": "assistant", "content": "again"}, "sampled": True}
    line["nodes"].append(fork)
    assert [message.content for message in parse_trace(json.dumps(line)).messages] == [
        "You write Python.",
        "Write double(n).",
        "again",
    ]


def test_content_parts_become_text() -> None:
    line = verifiers_line(trace())
    line["nodes"] = [
        {
            "parent": None,
            "message": {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
        },
        {"parent": 0, "message": {"role": "assistant", "content": None}},
    ]
    assert parse_trace(json.dumps(line)).messages == (Message("user", "a\n"), Message("assistant", ""))


@pytest.mark.parametrize("parent", [99, 3, -1])
def test_a_node_graph_that_is_no_tree_is_refused(parent: int) -> None:
    line = verifiers_line(trace())
    line["nodes"][3]["parent"] = parent
    with pytest.raises(ValueError, match=r"nodes\.3\.parent: expected an earlier node"):
        parse_trace(json.dumps(line))


def test_errors_are_kept_apart_from_failures() -> None:
    local = parse_trace(local_trace_line(error_trace()))
    assert (local.error, local.record, local.scored, local.task_id, local.arm) == (
        "SandboxError: no interpreter",
        None,
        None,
        "t9",
        "b",
    )
    remote = parse_trace(json.dumps(verifiers_line(error_trace())))
    assert (remote.error, remote.scored, remote.task_id) == ("SandboxError: no interpreter", None, "t9")


def test_a_record_beside_an_error_is_not_scored() -> None:
    faulted = replace(trace(), error="HarnessError: timeout")
    read = parse_trace(local_trace_line(faulted))
    assert read.record is not None
    assert read.scored is None


def test_surrogates_survive_the_trip(tmp_path: Path) -> None:
    odd = replace(trace(), messages=(Message("assistant", "bad \ud800 text\x00\x1b[31m"),))
    assert read_traces(write_traces(tmp_path / "t.jsonl", [odd])).traces == (odd,)


BROKEN = {
    "half a line": (GOOD[:200], "not JSON.*interrupted"),
    "no JSON": (b"hello\n", "not JSON"),
    "no object": (b"[1, 2]\n", "expected a JSON object, got list"),
    "neither form": (b'{"id": "x"}\n', "neither a Verifiers trace"),
    "bad UTF-8": (b'{"id": "\xff"}\n', "not UTF-8 at byte 8"),
    "other version": (GOOD.replace(b'{"schema_version":1', b'{"schema_version":2', 1), "schema_version: .*got '2'"),
    "no version": (GOOD.replace(b'{"schema_version":1,', b"{", 1), "schema_version: Field required"),
    "other record version": (
        GOOD.replace(b'"schema_version":1},"error"', b'"schema_version":7},"error"'),
        "rollout record: schema_version 7, this code reads 1",
    ),
    "unknown stop reason": (GOOD.replace(b'"stop_reason":"final"', b'"stop_reason":"tired"'), "record.stop_reason"),
    "no record": (b'{"schema_version":1,"id":"x","messages":[],"record":null}\n', "no record and no error"),
    "message without role": (b'{"schema_version":1,"id":"x","messages":[{}],"record":{}}\n', r"messages\.0\.role"),
    "deep JSON": (b"[" * 100_000 + b"\n", "not JSON"),
    "the same line twice": (GOOD, "repeats line 1 byte for byte"),
    "another task": (
        json.dumps(verifiers_line(replace(trace(), task_id="t5"))).encode() + b"\n",
        "task_id must agree: the task says 't5', the record 't1'",
    ),
}


@pytest.mark.parametrize(("bad", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, bad: bytes, reason: str) -> None:
    path = write(tmp_path / "traces.jsonl", GOOD, b"\n", bad)
    with pytest.raises(TraceError, match=reason) as caught:
        read_traces(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    read = read_traces(path, lenient=True)
    assert [trace.task_id for trace in read.traces] == ["t1"]
    assert [line.line for line in read.skipped] == [3]


def test_lenient_goes_on_after_a_bad_line(tmp_path: Path) -> None:
    path = write(tmp_path / "traces.jsonl", GOOD, b"{\n", OTHER, b'{"half": ')
    read = read_traces(path, lenient=True)
    assert [trace.task_id for trace in read.traces] == ["t1", "t2"]
    assert [line.line for line in read.skipped] == [2, 4]


def test_blank_lines_a_byte_order_mark_and_a_missing_last_line_end_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path / "traces.jsonl", b"\xef\xbb\xbf", GOOD, b"\r\n", b"  \n", OTHER.rstrip())
    assert len(read_traces(path).traces) == 2


def test_several_samples_of_a_task_are_kept(tmp_path: Path) -> None:
    samples = [trace("t1", trace_id="same", wall_seconds=float(index)) for index in range(3)]
    assert len(read_traces(write_traces(tmp_path / "t.jsonl", samples)).traces) == 3


def test_a_cut_gzip_file(tmp_path: Path) -> None:
    lines = [local_trace_line(trace(f"t{i}", wall_seconds=float(i * i))) for i in range(400)]
    whole = gzip.compress("".join(lines).encode())
    path = write(tmp_path / "traces.jsonl.gz", whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="the gzip stream is damaged or cut short"):
        read_traces(path)
    read = read_traces(path, lenient=True)
    assert 0 < len(read.traces) < 400
    assert read.skipped[0].line == len(read.traces) + 1


def test_damaged_and_false_gzip_files(tmp_path: Path) -> None:
    body = bytearray(gzip.compress(GOOD * 5))
    body[len(body) // 2] ^= 0xFF
    for name, content in (("damaged.gz", bytes(body)), ("plain.gz", GOOD)):
        with pytest.raises(TraceError, match=r":1: "):
            read_traces(write(tmp_path / name, content))
        with pytest.raises(TraceError, match=r"no rollout in it; . bad lines?, the first is line 1"):
            read_traces(tmp_path / name, lenient=True)


def test_gzip_is_recognised_by_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "traces.jsonl", gzip.compress(GOOD) + gzip.compress(OTHER))
    assert len(read_traces(path).traces) == 2


def test_missing_empty_and_ambiguous_places(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace file"):
        read_traces(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match=r"neither of traces\.jsonl and traces\.jsonl\.gz"):
        read_traces(tmp_path)
    with pytest.raises(TraceError, match=r"no rollout in it$"):
        read_traces(write(tmp_path / "traces.jsonl", b"\n"))
    write(tmp_path / "traces.jsonl.gz", gzip.compress(GOOD))
    with pytest.raises(TraceError, match="both of"):
        read_traces(tmp_path)


def test_a_run_folder_names_its_arms(tmp_path: Path) -> None:
    arms = [write_traces(tmp_path / arm / "traces.jsonl", [trace()]).parent for arm in ("arm_a", "arm_b")]
    (tmp_path / "arm_c").mkdir()
    assert arm_folders(tmp_path) == arms
    with pytest.raises(TraceError, match=f"several arms; name one of its folders: {arms[0]}, {arms[1]}$"):
        read_traces(tmp_path)
    write_traces(tmp_path / "traces.jsonl", [trace()])
    assert arm_folders(tmp_path) == []
    assert read_traces(tmp_path).path == tmp_path / "traces.jsonl"


def test_demonstrations_are_what_the_prompt_held_before_the_task() -> None:
    original = trace()
    assert list(original.demonstrations) == []
    system, *rollout = original.messages
    assert replace(original, messages=(system, *rollout, *rollout)).demonstrations == range(1, 7)
    assert replace(original, messages=(*rollout, *rollout)).demonstrations == range(0, 6)
    assert list(error_trace().demonstrations) == []


def test_the_record_supplies_task_and_arm() -> None:
    line = json.loads(GOOD)
    line["arm"] = "B"
    read = parse_trace(json.dumps(line))
    assert isinstance(read, Trace)
    assert (read.task_id, read.arm) == ("t1", "b")
