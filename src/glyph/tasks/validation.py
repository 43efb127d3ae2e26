"""The data folder, checked: what `preparation.py` wrote must be what it claims to be.

Every check runs on what stands in the files. Traces are replayed through the real environment, not through a copy
of its rules. A check returns how many things it looked at and what is wrong with them.
"""

import collections
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glyph.protocol import Arm, Label
from glyph.records import SCHEMA_VERSION
from glyph.tasks.demonstrations import PUBLISHED_COUNTS, Run, play_turns
from glyph.tasks.preparation import TASK_SPLITS
from glyph.tasks.prompts import Wording
from glyph.tasks.task import CodeTask
from glyph.workspace import PLACEHOLDER

Row = dict[str, Any]
MAX_TRACE_TOKENS = 1280
_TEXT_FIELDS = ("task_id", "arm", "split", "text", "test_code", "gold")


@dataclass(frozen=True)
class Check:
    """The outcome of one check: its name, how many things were looked at, and a line for each fault."""

    name: str
    checked: int
    faults: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class DataFolder:
    """A prepared folder in memory: the manifest, the task rows by (arm, split), the SFT rows by arm."""

    manifest: Row
    tasks: dict[tuple[Arm, str], list[Row]]
    traces: dict[Arm, list[Row]]
    digests: dict[str, str]


def read_folder(folder: Path) -> DataFolder:
    """Read a data folder.

    Raises:
        ValueError: a file or field is missing or no JSON; says where and how to mend it.
    """
    task_files = {(arm, split): f"arm_{arm.value}_{split}.jsonl" for arm in Arm for split in TASK_SPLITS}
    trace_files = {arm: f"sft/arm_{arm.value}/train.jsonl" for arm in Arm}
    tasks = {key: read_rows(folder, name, ("system", "prompt")) for key, name in task_files.items()}
    traces = {arm: read_rows(folder, name, ("messages", "family", "states")) for arm, name in trace_files.items()}
    names = (*task_files.values(), *trace_files.values())
    digests = {name: hashlib.sha256(_read(folder, name)).hexdigest() for name in names}
    try:
        manifest = json.loads(_read(folder, "manifest.json"))
    except ValueError as error:
        raise ValueError(f"{folder / 'manifest.json'}: no JSON: {error}; run python -m data.prepare") from error
    return DataFolder(manifest, tasks, traces, digests)


def read_rows(folder: Path, name: str, extra: Sequence[str]) -> list[Row]:
    """The rows of one file of a data folder, each with the fields of a task and those in `extra`.

    Raises:
        ValueError: the file or a field is missing; says where and how to mend it.
    """
    lines = _read(folder, name).splitlines()
    return [_row(line, f"{folder / name}:{i}", extra) for i, line in enumerate(lines, 1)]


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ValueError(f"{folder / name}: {error.strerror}; run python -m data.prepare --output {folder}") from error


def _row(line: bytes, where: str, extra: Sequence[str]) -> Row:
    try:
        row = json.loads(line)
        missing = [name for name in (*_TEXT_FIELDS, *extra) if name not in row]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: no JSON object: {error}; run python -m data.prepare") from error
    if missing or row.get("schema_version") != SCHEMA_VERSION:
        fault = f"no {', '.join(missing)}" if missing else f"schema_version {row.get('schema_version')!r}"
        raise ValueError(f"{where}: {fault}; run python -m data.prepare")
    return row


def task_of(row: Row) -> CodeTask:
    return CodeTask(row["task_id"], row["text"], row["test_code"], row["gold"])


def validate(
    data: DataFolder, wording: Wording, run: Run, track: Callable[..., Iterable[Any]], workers: int
) -> Iterator[Check]:
    """All checks, the cheap ones first. `track(items, what, total)` shows progress."""
    yield _digests(data, wording)
    yield _composition(data)
    yield _disjoint(data)
    yield _matched(data)
    yield _no_tests_in_workspace(data)
    with ThreadPoolExecutor(workers) as pool:
        yield _golds(data, run, lambda work, items, what: track(pool.map(work, items), what, len(items)))
        yield _replays(data, wording, run, lambda work, items, what: track(pool.map(work, items), what, len(items)))


def check_tokens(data: DataFolder, count: Callable[[list[dict[str, str]]], int]) -> Check:
    """Every trace fits the sequence length of SFT; `count` gives the tokens of a conversation."""
    sizes = {f"{row['arm']}/{row['task_id']}": count(row["messages"]) for rows in data.traces.values() for row in rows}
    faults = [
        f"{name}: {size} tokens, at most {MAX_TRACE_TOKENS}" for name, size in sizes.items() if size > MAX_TRACE_TOKENS
    ]
    mean = sum(sizes.values()) / len(sizes)
    note = f"longest {max(sizes.values())}, mean {mean:.0f} tokens"
    return Check("traces within the token limit", len(sizes), tuple(faults), note)


def _digests(data: DataFolder, wording: Wording) -> Check:
    stated = data.manifest.get("files", {})
    faults = [
        f"{name}: differs from the manifest" for name, digest in data.digests.items() if stated.get(name) != digest
    ]
    if data.manifest.get("wording_digest") != wording.digest:
        faults.append("the wording is another one than the manifest's; run python -m data.prepare, or give --prompts")
    return Check("files equal the manifest", len(data.digests), tuple(faults))


def _composition(data: DataFolder) -> Check:
    wanted, faults = {family.value: n for family, n in PUBLISHED_COUNTS.items()}, []
    for arm, rows in data.traces.items():
        found = dict(collections.Counter(row["family"] for row in rows))
        if found != wanted:
            faults.append(f"arm {arm.value}: {found}, expected {wanted}")
        faults += [
            f"arm {arm.value}, task {row['task_id']}: does not end with FINAL"
            for row in rows
            if not row["messages"][-1]["content"].startswith("FINAL:")
        ]
    return Check("composition of the SFT traces", sum(map(len, data.traces.values())), tuple(faults))


def _disjoint(data: DataFolder) -> Check:
    homes: dict[str, set[str]] = collections.defaultdict(set)
    for rows in (*data.tasks.values(), *data.traces.values()):
        for row in rows:
            homes[row["task_id"]].add(row["split"])
    faults = [f"task {task_id} stands in {sorted(splits)}" for task_id, splits in homes.items() if len(splits) > 1]
    for (arm, split), rows in data.tasks.items():
        if len({row["task_id"] for row in rows}) != len(rows):
            faults.append(f"arm {arm.value} {split}: a task stands twice")
        if [row["task_id"] for row in rows] != [row["task_id"] for row in data.tasks[Arm.REACTIVE, split]]:
            faults.append(f"{split}: the arms do not hold the same tasks in the same order")
    return Check("splits are disjoint", len(homes), tuple(faults))


def _matched(data: DataFolder) -> Check:
    faults, shared = [], ("task_id", "family", "states", "text", "test_code", "gold")
    pairs = list(zip(data.traces[Arm.REACTIVE], data.traces[Arm.PREDICTIVE], strict=False))
    for a, b in pairs:
        differing = [name for name in shared if a[name] != b[name]]
        if differing:
            faults.append(f"task {a['task_id']} / {b['task_id']}: the arms differ in {', '.join(differing)}")
    return Check("arms match on task, code and outcome", len(pairs), tuple(faults))


def _no_tests_in_workspace(data: DataFolder) -> Check:
    """Neither the file as the agent finds it nor any state that a trace writes holds a line of the tests."""
    faults, looked = [], 0
    for row in (row for rows in (*data.tasks.values(), *data.traces.values()) for row in rows):
        sources = [PLACEHOLDER, *(state["source"] for state in row.get("states", ()))]
        looked += len(sources)
        lines = [line for line in row["test_code"].splitlines() if line.startswith("assert")]
        if any(line in source for line in lines for source in sources):
            faults.append(f"task {row['task_id']}: test text in the workspace")
    return Check("no test text in the workspace", looked, tuple(faults))


def _golds(data: DataFolder, run: Run, over: Callable[..., Iterable[Any]]) -> Check:
    rows = [row for split in TASK_SPLITS for row in data.tasks[Arm.REACTIVE, split]] + data.traces[Arm.REACTIVE]

    def fault(row: Row) -> str | None:
        verdict = run(row["gold"] + "\n", row["test_code"])
        return None if verdict.label is Label.PASS else f"task {row['task_id']}: {verdict.label.value} {verdict.detail}"

    faults = [line for line in over(fault, rows, "gold solutions") if line]
    return Check("gold solutions pass", len(rows), tuple(faults))


def _replays(data: DataFolder, wording: Wording, run: Run, over: Callable[..., Iterable[Any]]) -> Check:
    rows = [row for rows in data.traces.values() for row in rows]
    faults = [line for lines in over(lambda row: _replay(row, wording, run), rows, "trace replays") for line in lines]
    return Check("traces replay through the environment", len(rows), tuple(faults))


def _replay(row: Row, wording: Wording, run: Run) -> list[str]:
    """Play a trace's assistant turns again; the conversation, the outcomes and the reward must come out the same."""
    where, arm = f"arm {row['arm']}, task {row['task_id']}", Arm(row["arm"])
    turns = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    try:
        messages, record = play_turns(task_of(row), arm, turns, wording, run)
    except StopIteration:
        return [f"{where}: the trace ends before the rollout does"]
    states = [(state["source"], state["label"]) for state in row["states"]]
    seen = [(c.source, c.verdict.label.value) for c in record.candidates if c.verdict]
    faults = []
    if messages != row["messages"]:
        faults.append(f"{where}: the environment answers differently than the trace says")
    if seen != states:
        faults.append(f"{where}: states are {[label for _, label in seen]}, the trace says {[s[1] for s in states]}")
    if any(label == "PASS" for _, label in states[:-1]) or not states or states[-1][1] != "PASS":
        faults.append(f"{where}: faulty states must fail and the final state pass")
    if record.reward != 1.0:
        faults.append(f"{where}: earns no reward ({record.stop_reason.value})")
    return faults
