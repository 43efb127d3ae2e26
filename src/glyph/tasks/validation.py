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

from glyph.plugins import is_reference
from glyph.protocol import (
    Arm,
    Call,
    Decision,
    Detail,
    Label,
    Prediction,
    Tool,
    parse_prediction_turn,
    parse_turn,
    render_label,
)
from glyph.records import SCHEMA_VERSION, RolloutRecord
from glyph.tasks.demonstrations import COMPOSITIONS, FORESEEN, Family, Run, play_turns
from glyph.tasks.preparation import TASK_SPLITS
from glyph.tasks.prompts import DEFAULT_PROMPTS, Wording
from glyph.tasks.task import CodeTask
from glyph.variants import STANDARD, Variant, parse_variant
from glyph.workspace import PLACEHOLDER

Row = dict[str, Any]
MAX_TRACE_TOKENS = 1280
TRACE_FIELDS = ("messages", "family", "states")
_TEXT_FIELDS = ("task_id", "arm", "split", "text", "test_code", "gold")
_LISTS = {"messages": ("role", "content"), "states": ("source", "label")}
_SLIP = {"step": int, "find": str, "replace": str, "read": bool}  # what a row's "slip", where it has one, holds


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
    traces = {arm: read_rows(folder, name, TRACE_FIELDS) for arm, name in trace_files.items()}
    names = (*task_files.values(), *trace_files.values())
    digests = {name: hashlib.sha256(_read(folder, name)).hexdigest() for name in names}
    try:
        manifest = json.loads(_read(folder, "manifest.json"))
    except ValueError as error:
        raise ValueError(f"{folder / 'manifest.json'}: no JSON: {error}; run python -m data.prepare") from error
    return DataFolder(manifest, tasks, traces, digests)


def data_facts(folder: Path) -> Row:
    """What a run's manifest says of its data: the task set, and the digests of the wording and the files."""
    manifest = data_manifest(folder)
    if manifest is None:
        return {"task_set": "unknown"}
    return {name: manifest.get(name) for name in ("task_set", "wording_digest", "files")}


def data_manifest(folder: Path) -> Row | None:
    """The manifest of a data folder; None where there is none that can be read."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def check_wording(folder: Path, wording: Wording, prompts: Path) -> None:
    """Refuse prompts by default that the data were not prepared with: an ablation must not change its wording.

    Raises:
        ValueError: the data's manifest names another wording, and `prompts` is merely the default.
    """
    prepared = data_facts(folder).get("wording_digest")
    if prompts == DEFAULT_PROMPTS and prepared not in (None, wording.digest):
        raise ValueError(
            f"{folder} was prepared with another wording than {prompts}; give that file with --prompts "
            f"(--taskset.prompts), or run python -m data.prepare --output {folder}"
        )


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
    wrong = [name for name in (*_TEXT_FIELDS, *extra) if not _is_well_formed(name, row[name])]
    if "slip" in row and not _is_slip(row["slip"]):
        wrong.append("slip")
    if wrong:
        raise ValueError(f"{where}: {', '.join(wrong)} not of the form that data.prepare writes; run it again")
    return row


def _is_well_formed(name: str, value: Any) -> bool:
    """Every field is a text, or for `messages` and `states` a list of at least one object of texts."""
    if name not in _LISTS:
        return isinstance(value, str)
    keys = _LISTS[name]
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and all(isinstance(item.get(key), str) for key in keys) for item in value)
    )


def _is_slip(value: Any) -> bool:
    return isinstance(value, dict) and {name: type(item) for name, item in value.items()} == _SLIP


def task_of(row: Row) -> CodeTask:
    return CodeTask(row["task_id"], row["text"], row["test_code"], row["gold"])


def require_data(folder: Path, arm: Arm) -> None:
    """Refuse files of an arm that are not those that the manifest names: a run would record what it did not train on.

    Raises:
        ValueError: a file is missing or has another digest; says which and how to mend it.
    """
    for name, expected in (data_facts(folder).get("files") or {}).items():
        if f"arm_{arm.value}" in name and hashlib.sha256(_read(folder, name)).hexdigest() != expected:
            raise ValueError(
                f"{folder / name} is not the file that manifest.json names; run python -m data.prepare "
                f"--output {folder} again, or prepare your own tasks (docs/extending.md)"
            )


def read_tasks(folder: Path, arm: Arm, split: str) -> list[CodeTask]:
    """The tasks of an arm's split, in file order.

    Raises:
        ValueError: an unknown split, or a file or field that is missing; says where and how to mend it.
    """
    if split not in TASK_SPLITS:
        raise ValueError(f"split {split!r}: expected one of {', '.join(TASK_SPLITS)}")
    return [task_of(row) for row in read_rows(folder, f"arm_{arm.value}_{split}.jsonl", ("system", "prompt"))]


def first_tasks(tasks: list[CodeTask], number: int, split: str, say: Callable[[str], None]) -> list[CodeTask]:
    """The first `number` tasks of a split; 0 is all. `say` is told where it has fewer."""
    if number > len(tasks):
        say(f"{split} has {len(tasks)} tasks, not {number}: all of them are played")
    return tasks[: number or None]


def validate(
    data: DataFolder, wording: Wording, run: Run, track: Callable[..., Iterable[Any]], workers: int
) -> Iterator[Check]:
    """All checks, the cheap ones first. `track(items, what, total)` shows progress."""
    yield _digests(data, wording)
    yield _composition(data)
    yield _disjoint(data)
    yield _in_place(data)
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
    faults: list[str] = []
    for arm, rows in data.traces.items():
        faults += [f"arm {arm.value}: {fault}" for fault in _miscounts(data.manifest, rows)]
        faults += [
            f"arm {arm.value}, task {row['task_id']}: does not end with FINAL"
            for row in rows
            if not row["messages"][-1]["content"].startswith("FINAL:")
        ]
    return Check("composition of the SFT traces", sum(map(len, data.traces.values())), tuple(faults))


def _miscounts(manifest: Row, rows: list[Row]) -> Iterator[str]:
    """Where the traces of an arm are not the task set's families and slips; of the user's own, the manifest's."""
    task_set = manifest.get("task_set")
    if task_set in COMPOSITIONS:
        of = COMPOSITIONS[task_set]
        families, slips = ({family.value: n for family, n in each.items()} for each in (of.families, of.slips))
    elif isinstance(task_set, str) and is_reference(task_set):
        families, slips = manifest.get("families", {}), manifest.get("slips", {})
    else:
        yield f"task set {task_set!r}, expected one of {', '.join(COMPOSITIONS)}, or module:function"
        return
    slipping = [row for row in rows if "slip" in row]
    for what, wanted, chosen in (("", families, rows), (" with a slip", slips, slipping)):
        found = dict(collections.Counter(row["family"] for row in chosen))
        if found != wanted:
            yield f"{found}{what}, expected {wanted}"


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
    for arm, rows in data.traces.items():
        if len({row["task_id"] for row in rows}) != len(rows):
            faults.append(f"arm {arm.value} sft: a task stands twice")
    return Check("splits are disjoint", len(homes), tuple(faults))


def _in_place(data: DataFolder) -> Check:
    """Every row says the arm and split of the file that it stands in."""
    files = {**data.tasks, **{(arm, "sft"): rows for arm, rows in data.traces.items()}}
    faults = [
        f"arm {arm.value} {split}: task {row['task_id']} says arm {row['arm']!r}, split {row['split']!r}"
        for (arm, split), rows in files.items()
        for row in rows
        if (row["arm"], row["split"]) != (arm.value, split)
    ]
    return Check("rows stand in their files", sum(map(len, files.values())), tuple(faults))


def _matched(data: DataFolder) -> Check:
    faults, shared = [], ("task_id", "family", "states", "slip", "text", "test_code", "gold")
    pairs = list(zip(data.traces[Arm.REACTIVE], data.traces[Arm.PREDICTIVE], strict=False))
    for a, b in pairs:
        differing = [name for name in shared if a.get(name) != b.get(name)]
        if differing:
            faults.append(f"task {a['task_id']} / {b['task_id']}: the arms differ in {', '.join(differing)}")
    return Check("arms match on task, code and outcome", len(pairs), tuple(faults))


def _no_tests_in_workspace(data: DataFolder) -> Check:
    """Neither the file as the agent finds it nor any state that a trace writes holds a line of the tests."""
    faults, looked = [], 0
    for row in (row for rows in data.traces.values() for row in rows):
        sources = [PLACEHOLDER, *(state["source"] for state in row["states"])]
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
    work = [(arm, row) for arm, rows in data.traces.items() for row in rows]
    variant = parse_variant(data.manifest.get("variant", STANDARD.name))
    played = over(lambda pair: _replay(pair[0], pair[1], wording, run, variant), work, "trace replays")
    return Check("traces replay through the environment", len(work), tuple(line for lines in played for line in lines))


def _replay(arm: Arm, row: Row, wording: Wording, run: Run, variant: Variant) -> list[str]:
    """Play a trace's assistant turns again; the conversation, the outcomes and the reward must come out the same."""
    where = f"arm {arm.value}, task {row['task_id']}"
    turns = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    try:
        messages, record = play_turns(task_of(row), arm, turns, wording, run, variant)
    except StopIteration:
        return [f"{where}: the trace ends before the rollout does"]
    states = [(state["source"], state["label"]) for state in row["states"]]
    seen = [(c.source, c.verdict.label.value) for c in record.candidates if c.verdict]
    faults = []
    if messages != row["messages"]:
        faults.append(f"{where}: the environment answers differently than the trace says")
    if seen != states:
        faults.append(f"{where}: states are {[label for _, label in seen]}, the trace says {[s[1] for s in states]}")
    if any(label == "PASS" for _, label in states[:-1]) or states[-1][1] != "PASS":
        faults.append(f"{where}: faulty states must fail and the final state pass")
    faults += [f"{where}: {fault}" for fault in _untaught(row["family"], len(states), record, variant)]
    faults += [f"{where}: {fault}" for fault in _other_slips(row.get("slip"), messages, record)]
    if record.reward != 1.0:
        faults.append(f"{where}: earns no reward ({record.stop_reason.value})")
    return faults


def _other_slips(stated: Row | None, messages: list[dict[str, str]], record: RolloutRecord) -> Iterator[str]:
    """Where the patches that failed, and the looks at the file after them, are not what the trace states."""
    seen: list[Row] = []
    applied = reads = 0
    for call in record.calls:
        if call.tool is Tool.READ_FILE:
            reads += 1
        elif call.tool is Tool.APPLY_PATCH and not call.success:
            arguments = _call_in(messages[call.message_index]["content"]).arguments
            seen.append({"step": applied - 1, "find": arguments["find"], "replace": arguments["replace"]})
        applied += call.tool is Tool.APPLY_PATCH and call.success
    wanted = [{name: stated[name] for name in ("step", "find", "replace")}] if stated else []
    if seen != wanted:
        yield f"patches that fail: {seen}, the trace states {wanted}"
    if reads != bool(stated and stated["read"]):
        yield f"{reads} looks at the file, the trace states {int(bool(stated and stated['read']))}"


def _call_in(text: str) -> Call:
    """The call of a turn that the environment carried out."""
    turn = parse_turn(text)
    if isinstance(turn, Call):
        return turn
    prediction = parse_prediction_turn(text, level=Detail.VALUE)
    assert isinstance(prediction, Prediction)
    return prediction.call


def _untaught(family: str, states: int, record: RolloutRecord, variant: Variant) -> list[str]:
    """Where a trace is not what its family shows: the number of states, and Arm B's predictions and decisions."""
    wanted = {Family.DIRECT.value: 1, Family.DEEP_SHADOW.value: 3, Family.DEEP_VISIBLE.value: 3}.get(family, 2)
    faults = [] if states == wanted else [f"{states} states, a {family} trace has {wanted}"]
    foreseen = family in FORESEEN
    for target in record.targets:
        label = target.verified_label if foreseen else Label.PASS
        detail = target.verified_detail if foreseen else None
        decision = (Decision.KEEP if label is Label.PASS else Decision.REVISE) if variant.gated else None
        if (target.label, target.detail, target.decision) != (label, detail, decision):
            said = target.label and render_label(target.label, target.detail)
            done = target.decision and target.decision.value
            right = f"{render_label(label, detail)}, {decision and decision.value}"
            faults.append(f"predicts {said}, {done} where a {family} trace says {right}")
    return faults
