"""Tasks → the data folder: one file an arm and split, the SFT traces of both arms, and a manifest.

Everything is a function of the source, the seed and the wording, byte for byte. `validation.py` reads it back.
"""

import collections
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from glyph.files import write_atomically
from glyph.protocol import Arm
from glyph.records import SCHEMA_VERSION, RolloutRecord
from glyph.tasks.demonstrations import (
    Demonstration,
    Family,
    Run,
    assistant_turns,
    plan_demonstrations,
    play_turns,
    proportional,
)
from glyph.tasks.prompts import Wording, opening
from glyph.tasks.splits import Splits
from glyph.tasks.task import CodeTask
from glyph.tasks.task_sets import UNSTATED, load_task_set
from glyph.variants import STANDARD, Gate, Variant
from glyph.versions import CONFIGS, versions

EXPECTED_DIGESTS = CONFIGS / "data_digests.json"
TASK_SPLITS = ("train", "validation", "test")
Track: TypeAlias = Callable[[Iterable[Demonstration], int], Iterable[Demonstration]]


@dataclass(frozen=True)
class Prepared:
    """What was read and what it became, for `write_data`."""

    task_set: str
    source: dict[str, Any]
    splits: Splits
    demonstrations: list[Demonstration]
    seed: int
    variant: Variant = STANDARD
    licence: str = UNSTATED


def plan(
    name: str,
    source: Path | None,
    run: Run,
    track: Track = lambda plans, total: plans,
    variant: Variant = STANDARD,
) -> Prepared:
    """Load a task set and build its demonstrations; `track` wraps the iterator of so many, to show progress.

    Raises:
        ValueError: as `load_task_set` says, or a variant that demonstrations cannot show.
    """
    if replace(variant, detail=None) not in (STANDARD, Variant(gate=Gate.UNGATED)):
        raise ValueError(f"variant {variant.name!r}: demonstrations are of standard, ungated or detailed_prediction")
    of = load_task_set(name, source)
    shown = of.composition or proportional(len(of.splits.sft))
    families = {family: shown.families.get(family, 0) for family in Family}
    made = plan_demonstrations(of.splits.sft, run, families, of.seed, shown.slips)
    planned = {d.task.task_id: d for d in track(made, len(of.splits.sft))}
    demonstrations = [planned[task.task_id] for task in of.splits.sft]
    return Prepared(name, of.source, of.splits, demonstrations, of.seed, variant, of.licence)


def write_data(prepared: Prepared, output: Path, wording: Wording, run: Run) -> dict[str, Any]:
    """Write the data folder; returns the manifest, which is written last."""
    digests: dict[str, str] = {}
    labels: collections.Counter[str] = collections.Counter()
    for arm in Arm:
        for split, tasks in prepared.splits.items():
            if split in TASK_SPLITS:
                name = f"arm_{arm.value}_{split}.jsonl"
                rows = (_task_row(task, arm, split, wording, prepared.variant) for task in tasks)
                digests[name] = _write_lines(output / name, rows)
        traces, records = _traces(prepared, arm, wording, run)
        name = f"sft/arm_{arm.value}/train.jsonl"
        digests[name] = _write_lines(output / name, traces)
        labels.update(target.label.value for record in records for target in record.targets if target.label)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "task_set": prepared.task_set,
        "licence": prepared.licence,
        "source": prepared.source,
        "seed": prepared.seed,
        "variant": prepared.variant.name,
        "wording_digest": wording.digest,
        "counts": {split: len(tasks) for split, tasks in prepared.splits.items()},
        "families": dict(collections.Counter(d.family.value for d in prepared.demonstrations)),
        "slips": dict(collections.Counter(d.family.value for d in prepared.demonstrations if d.slip)),
        "arm_b_label_histogram": dict(sorted(labels.items())),
        "faulty_state_labels": dict(sorted(_faulty_labels(prepared.demonstrations).items())),
        "files": digests,
        "versions": versions(),
    }
    write_atomically(output / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    return manifest


def _faulty_labels(demonstrations: list[Demonstration]) -> collections.Counter[str]:
    return collections.Counter(state.label.value for d in demonstrations for state in d.states[:-1])


def _task_row(task: CodeTask, arm: Arm, split: str, wording: Wording, variant: Variant) -> dict[str, Any]:
    system, user = opening(task, arm, variant if arm is Arm.PREDICTIVE else STANDARD, wording)
    return {
        "schema_version": SCHEMA_VERSION,
        "task_id": task.task_id,
        "arm": arm.value,
        "split": split,
        "system": system["content"],
        "prompt": user["content"],
        "text": task.text,
        "test_code": task.test_code,
        "gold": task.gold,
    }


def _traces(
    prepared: Prepared, arm: Arm, wording: Wording, run: Run
) -> tuple[list[dict[str, Any]], list[RolloutRecord]]:
    """The SFT rows of an arm and the records of their rollouts, each of which must have earned its reward."""
    rows, records = [], []
    for demonstration in prepared.demonstrations:
        task, turns = demonstration.task, assistant_turns(demonstration, arm, wording, prepared.variant)
        messages, record = play_turns(task, arm, turns, wording, run, prepared.variant)
        if record.reward != 1.0:
            raise ValueError(f"task {task.task_id}: its demonstration for arm {arm.value} earns no reward: {record}")
        records.append(record)
        states = [{"source": state.source, "label": state.label.value} for state in demonstration.states]
        facts = {"schema_version": SCHEMA_VERSION, "task_id": task.task_id, "arm": arm.value, "split": "sft"}
        task_facts = {"text": task.text, "test_code": task.test_code, "gold": task.gold}
        shown: dict[str, Any] = {"family": demonstration.family.value, "states": states}
        if demonstration.slip:
            shown["slip"] = asdict(demonstration.slip)
        rows.append({"messages": messages, **facts, **shown, **task_facts})
    return rows, records


def check_expected(manifest: dict[str, Any], path: Path = EXPECTED_DIGESTS) -> str:
    """Compare what was written with the committed digests of this wording; returns a sentence about it.

    Raises:
        ValueError: the wording has committed digests and a file differs.
    """
    expected = json.loads(path.read_text()).get(manifest["wording_digest"], {}).get(_digest_key(manifest))
    if expected is None:
        return "this wording has no committed digests to compare with"
    wrong = [name for name, digest in manifest["files"].items() if expected.get(name) != digest]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)}: not the committed content for this wording (see {path.name}). Either the executor "
            "labelled a state differently on this machine, or code changed: then run with --record-digests"
        )
    return f"all {len(expected)} files equal the committed digests"


def record_digests(manifest: dict[str, Any], path: Path = EXPECTED_DIGESTS) -> None:
    """Make what was written the expected content for its wording."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault(manifest["wording_digest"], {})[_digest_key(manifest)] = manifest["files"]
    write_atomically(path, json.dumps(known, indent=2, sort_keys=True) + "\n")


def _digest_key(manifest: dict[str, Any]) -> str:
    variant = manifest.get("variant", STANDARD.name)
    return manifest["task_set"] if variant == STANDARD.name else f"{manifest['task_set']}, {variant}"


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomically(path, text)
    return hashlib.sha256(text.encode()).hexdigest()
