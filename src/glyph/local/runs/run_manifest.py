"""manifest.json of a run folder: its facts, its status, and one entry per session (a start or a resume)."""

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from glyph.local.runs.durable import write_durably
from glyph.versions import git_commit
from glyph.versions import manifest as base_manifest

MANIFEST = "manifest.json"
RUNNING = "running"
ENDINGS = ("finished", "interrupted", "failed")
KILLED = "killed"
_SIGNS_OF_LIFE = ("metrics.jsonl", "log.txt", "heartbeat.json", MANIFEST)

Manifest = dict[str, Any]


class RunFolderError(RuntimeError):
    """The folder cannot be claimed, written or read as a run."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_manifest(facts: Mapping[str, Any]) -> Manifest:
    """A manifest without a session. Facts cannot stand in for what the run folder itself says."""
    own: Manifest = {"run_id": uuid4().hex[:12], "status": RUNNING, "started": now(), "seconds": None, "sessions": []}
    return {**base_manifest(**facts), **own}


def read_manifest(folder: Path) -> Manifest:
    """Raises: RunFolderError."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = {"status", "sessions", "run_id"} <= manifest.keys()
    except FileNotFoundError:
        raise RunFolderError(f"{folder}: no run to resume: there is no {MANIFEST}") from None
    except (OSError, ValueError, AttributeError) as error:
        raise RunFolderError(f"{path}: no readable manifest: {error}") from error
    if not known:
        raise RunFolderError(f"{path}: not the manifest of a training run: it has no status, sessions, run_id")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_durably(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def begin_session(folder: Path, manifest: Manifest) -> Manifest:
    """Write down that this process runs it now. A session still open was killed: it ends at its last sign of life."""
    sessions = [dict(session) for session in manifest["sessions"]]
    if sessions and sessions[-1]["status"] == RUNNING:
        started = datetime.fromisoformat(sessions[-1]["started"]).timestamp()
        times = [file.stat().st_mtime for name in _SIGNS_OF_LIFE if (file := folder / name).exists()]
        sessions[-1] |= {"status": KILLED, "seconds": round(max(0.0, max(times) - started), 1)}
    here = {"started": now(), "pid": os.getpid(), "host": socket.gethostname(), "commit": git_commit()}
    manifest = {**manifest, "status": RUNNING, "sessions": [*sessions, {**here, "status": RUNNING, "seconds": None}]}
    write_manifest(folder, manifest)
    return manifest


def end_session(folder: Path, manifest: Manifest, status: str, seconds: float, facts: Mapping[str, Any]) -> Manifest:
    """Write down how it ended; `seconds` of the run is the sum over its sessions."""
    sessions = [
        *manifest["sessions"][:-1],
        {**manifest["sessions"][-1], "status": status, "seconds": round(seconds, 1)},
    ]
    total = round(sum(session["seconds"] for session in sessions), 1)
    manifest = {**manifest, **facts, "status": status, "seconds": total, "sessions": sessions}
    write_manifest(folder, manifest)
    return manifest
