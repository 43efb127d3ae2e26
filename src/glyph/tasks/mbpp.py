"""MBPP: from the hub at the pinned revision, or from a copy; always checked against one digest of its contents.

MBPP is by Google Research (Austin et al., 2021), CC-BY-4.0. Tasks 1 to 10 are its few-shot examples and unused.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glyph.tasks.task import CodeTask

HUB_ID = "google-research-datasets/mbpp"
REVISION = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
CONTENT_DIGEST = "8cb981abf2669ab9d87cf3c83213088de928e484fd34c0d71cba270366dc5deb"
FIRST_ID = 11
HUB_SECONDS = 20


@dataclass(frozen=True)
class Source:
    """Where the tasks came from, for the manifest: a name, and the SHA-256 of each file read."""

    name: str
    files: dict[str, str]


def load_mbpp(source: Path | None = None) -> tuple[list[CodeTask], Source]:
    """The 964 tasks with ids 11 to 974, ordered by id.

    Args:
        source: a JSON-lines file, a parquet file, or a folder of parquet files; None takes the hub.

    Raises:
        ValueError: unreadable rows, or contents other than the pinned ones.
        ConnectionError: the hub cannot be reached.
    """
    rows, origin = _from_hub() if source is None else _from_copy(source)
    tasks = sorted((_task(row, origin.name) for row in rows), key=lambda task: int(task.task_id))
    tasks = [task for task in tasks if int(task.task_id) >= FIRST_ID]
    found = content_digest(tasks)
    if found != CONTENT_DIGEST:
        raise ValueError(
            f"{origin.name}: these are not the pinned MBPP tasks: digest of {len(tasks)} tasks is {found}, "
            f"expected {CONTENT_DIGEST} (964 tasks of {HUB_ID} at {REVISION})"
        )
    return tasks, origin


def content_digest(tasks: list[CodeTask]) -> str:
    """SHA-256 over the normalised tasks: the same for the hub's parquet files and the JSON-lines file."""
    lines = [json.dumps([t.task_id, t.text, t.test_code, t.gold], ensure_ascii=False) for t in tasks]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _from_hub() -> tuple[Iterable[dict[str, Any]], Source]:
    from datasets import load_dataset  # seconds to import: only when it is needed
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        if not HF_HUB_OFFLINE:  # fail at once where there is no hub: datasets would retry for half a minute
            HfApi().dataset_info(HUB_ID, revision=REVISION, timeout=HUB_SECONDS)
        splits = load_dataset(HUB_ID, "full", revision=REVISION)
    except Exception as error:  # the hub's client raises many unrelated types when there is no network
        raise ConnectionError(
            f"the hub cannot be reached ({type(error).__name__}); give a copy of MBPP with --source FILE or MBPP_SOURCE"
        ) from error
    return (row for split in splits.values() for row in split), Source(f"{HUB_ID}@{REVISION}", {})


def _from_copy(source: Path) -> tuple[list[dict[str, Any]], Source]:
    paths = sorted(source.rglob("*.parquet")) if source.is_dir() else [source]
    if not paths or not all(path.is_file() for path in paths):
        raise ValueError(f"{source}: no such file, or a folder without parquet files")
    rows = [row for path in paths for row in (_parquet if path.suffix == ".parquet" else _json_lines)(path)]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return rows, Source(", ".join(path.name for path in paths), digests)


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a parquet file: {error}") from error


def _json_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from error
    return rows


def _task(row: dict[str, Any], where: str) -> CodeTask:
    try:
        task_id = str(int(row["task_id"]))
        setup, asserts = normalise(row["test_setup_code"]), [normalise(test) for test in row["test_list"]]
        text, gold = normalise(row["text"]), normalise(row["code"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: a row is no MBPP task: {type(error).__name__}: {error}") from error
    return CodeTask(task_id, text, "\n".join([*([setup] if setup else []), *asserts]) + "\n", gold)


def normalise(text: str) -> str:
    """LF line ends, no space around."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()
