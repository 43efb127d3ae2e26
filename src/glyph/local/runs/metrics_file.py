"""The lines of metrics.jsonl: JSON objects with a `kind` and a `step`, all numbers finite or null."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glyph.local.runs.durable import write_durably


def clean_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """The line as it is written: numbers that are not finite are null, their names in `non_finite`.

    Raises: ValueError: no kind or step.
    """
    if not isinstance(line.get("kind"), str) or not isinstance(line.get("step"), int):
        raise ValueError(f"a metrics line needs a kind and an integer step, got {dict(line)}")
    bad: list[str] = []
    clean = {name: _finite(value, name, bad) for name, value in line.items()}
    return {**clean, "non_finite": bad} if bad else clean


def cut_torn_line(path: Path) -> bytes:
    """Remove what follows the last line end, and return it."""
    if not path.exists():
        return b""
    body = path.read_bytes()
    torn = body[body.rfind(b"\n") + 1 :]
    if torn:
        write_durably(path, body[: len(body) - len(torn)])
    return torn


def read_lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Each line as it stands, and its content: None where it is no object with a kind and a step."""
    return [(raw, _entry(raw)) for raw in (path.read_bytes() if path.exists() else b"").splitlines(True)]


def _entry(raw: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(raw)
    except ValueError:
        return None
    known = isinstance(entry, dict) and isinstance(entry.get("step"), int) and isinstance(entry.get("kind"), str)
    return entry if known else None


def _finite(value: Any, name: str, bad: list[str]) -> Any:
    """The value with plain finite numbers; the names of others, `seconds/total` for nested ones, go into `bad`."""
    if isinstance(value, Mapping):
        return {key: _finite(part, f"{name}/{key}", bad) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part, f"{name}/{index}", bad) for index, part in enumerate(value)]
    if hasattr(value, "item"):  # a number of torch or numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        bad.append(name)
        return None
    return value
