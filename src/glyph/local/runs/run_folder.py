"""The folder of one training run: claimed by one process at a time, appended to, never silently overwritten.

    RUN/
      manifest.json             facts, versions, commit, status, sessions (run_manifest.py)
      config.toml               the resolved config
      metrics.jsonl             one JSON object a line, with `kind` and `step`
      traces/step_000001.jsonl.gz      evaluations/step_000000/traces.jsonl.gz      checkpoints/step_000010/
      superseded-1/             what a resume computes again: the same files and lines, set aside
      log.txt   heartbeat.json

The order that makes a resume exact: a step's traces, then its metrics line, then the checkpoint, then the evaluations
of that step. A checkpoint of step k vouches for all lines up to k, but not for the evaluations of k.
"""

import gzip
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from glyph.evaluation.traces import Trace, local_trace_line
from glyph.local.runs.durable import FileLock, append_durably, write_durably
from glyph.local.runs.heartbeat import Heartbeat
from glyph.local.runs.metrics_file import clean_line, cut_torn_line, read_lines
from glyph.local.runs.run_manifest import (
    ENDINGS,
    Manifest,
    RunFolderError,
    begin_session,
    end_session,
    new_manifest,
    now,
    read_manifest,
)
from glyph.local.runs.tracking import Tracker
from glyph.versions import git_commit

__all__ = ["RunFolder", "RunFolderError"]

logger = logging.getLogger(__name__)

CONFIG, METRICS, LOG, HEARTBEAT = "config.toml", "metrics.jsonl", "log.txt", "heartbeat.json"
_LOCK = ".lock"
_STEP = re.compile(r"step_(\d{6,})")
_GZIP_LEVEL = 6


class RunFolder:
    """One claimed run, from `create` or `open` to `finish`.

    As a context manager it finishes by itself: `interrupted` after Ctrl-C, `failed` with the `error` after any other
    exception, else `finished`. Warnings logged anywhere in `glyph` go to log.txt too. `trackers` get every metrics
    line; one that fails is dropped with a warning. Not for use by several threads.
    """

    def __init__(self, path: Path, lock: FileLock, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.trackers: list[Tracker] = []
        self._lock = lock
        self._started = time.monotonic()
        self._handler = _LogHandler(self.log)
        logging.getLogger("glyph").addHandler(self._handler)

    @classmethod
    def create(cls, path: Path, config_toml: str, facts: Mapping[str, Any]) -> "RunFolder":
        """Claim a new or empty folder: write the config, then the manifest with `facts` and status `running`.

        Raises: RunFolderError: the folder is not empty, or another process uses it.
        """
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path}: a file; give a folder")
        with _claimed(path) as lock:
            if others := sorted(entry.name for entry in path.iterdir() if entry.name != _LOCK):
                raise RunFolderError(
                    f"{path}: not empty (it holds {', '.join(others[:3])}) and nothing is overwritten: "
                    f"give another folder, or go on with the run in it: glyph resume {path}"
                )
            write_durably(path / CONFIG, config_toml)
            return cls(path, lock, begin_session(path, new_manifest(facts)))

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Claim the run in a folder to go on with it. A metrics line that a kill tore is cut off, with a warning.

        Raises: RunFolderError: no run, or one that another living process writes.
        """
        read_manifest(path)
        with _claimed(path) as lock:
            before = read_manifest(path)
            for partial in path.rglob("*.partial"):
                if partial.is_file():
                    partial.unlink()
            manifest = begin_session(path, before)  # first: it looks at the times of the files
            torn = cut_torn_line(path / METRICS)
            run = cls(path, lock, manifest)
        run.log(f"session {len(run.manifest['sessions'])}: resumed")
        if torn:
            logger.warning("%s: the last line was torn and is cut off: %s", path / METRICS, torn[:200])
        if (commit := git_commit()) != before["commit"]:
            logger.warning("%s: begun at commit %s, resumed at %s: numbers may differ", path, before["commit"], commit)
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.manifest["status"] in ENDINGS:
            return
        if error is None:
            self.finish("finished")
        elif isinstance(error, KeyboardInterrupt):
            self.finish("interrupted")
        else:
            self.finish("failed", error=f"{type(error).__name__}: {error}")

    @property
    def checkpoints(self) -> Path:
        """The folder for `save_checkpoint` and `latest_checkpoint`."""
        return self.path / "checkpoints"

    @property
    def config_toml(self) -> str:
        return (self.path / CONFIG).read_text(encoding="utf-8")

    def log_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a line with `kind` and `step`. A number that is not finite becomes null, its name in `non_finite`.

        Raises: ValueError: no kind or step. RunFolderError: the disk refuses; then no part of the line is written.
        """
        clean = clean_line(line)
        try:
            append_durably(self.path / METRICS, (json.dumps(clean, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise _unwritable(self.path / METRICS, error) from error
        for tracker in list(self.trackers):
            try:
                tracker.log(clean)
            except Exception as error:  # whatever ails a dashboard, the run goes on
                self.trackers.remove(tracker)
                logger.warning("%s is dropped: %s: %s", type(tracker).__name__, type(error).__name__, error)

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The readable lines so far, in order, of one kind or all."""
        found = (entry for _, entry in read_lines(self.path / METRICS) if entry is not None)
        return [entry for entry in found if kind in (None, entry["kind"])]

    def write_traces(self, step: int, lines: Iterable[str]) -> Path:
        """Write a step's rollouts, one JSON line each, as traces/step_NNNNNN.jsonl.gz; equal lines give equal bytes.

        Raises: RunFolderError: other content stands there, or the disk refuses.
        """
        return self._write_gzip(self.path / "traces" / f"{_name(step)}.jsonl.gz", lines)

    def write_evaluation(self, step: int, traces: Iterable[Trace]) -> Path:
        """Write an evaluation's traces as evaluations/step_NNNNNN/traces.jsonl.gz, which `glyph report` reads.

        Raises: RunFolderError: other content stands there, or the disk refuses.
        """
        target = self.path / "evaluations" / _name(step) / "traces.jsonl.gz"
        return self._write_gzip(target, map(local_trace_line, traces))

    def _write_gzip(self, target: Path, lines: Iterable[str]) -> Path:
        body = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
        packed = gzip.compress(body.encode(), _GZIP_LEVEL, mtime=0)
        if target.exists():
            if target.read_bytes() != packed:
                raise RunFolderError(f"{target}: stands there with other content; nothing is overwritten")
            return target
        try:
            return write_durably(target, packed)
        except OSError as error:
            raise _unwritable(target, error) from error

    def truncate_after(self, step: int) -> Path | None:
        """Go back to the end of a step: set aside in superseded-N/ what is later; returns that folder if one is made.

        Later are metrics lines, traces, evaluations and checkpoints of a step above `step`, unreadable metrics lines,
        and traces of an evaluation of `step` itself that did not come to its metrics line.
        """
        lines = read_lines(self.path / METRICS)
        kept = [raw for raw, entry in lines if entry is not None and entry["step"] <= step]
        dropped = [raw for raw, entry in lines if entry is None or entry["step"] > step]
        evaluated = {entry["step"] for _, entry in lines if entry is not None and entry["kind"] == "evaluation"}
        moved = [path for name in ("traces", "checkpoints") for path in self._after(name, step)]
        moved += [path for path in self._after("evaluations", step - 1) if _step(path) > step or step not in evaluated]
        if not dropped and not moved:
            return None
        aside = self._superseded()
        try:
            if dropped:
                write_durably(aside / METRICS, b"".join(dropped))
                write_durably(self.path / METRICS, b"".join(kept))
            for path in moved:
                target = aside / path.relative_to(self.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(path, target)
        except OSError as error:
            raise _unwritable(aside, error) from error
        self.log(f"back to step {step}: {len(dropped)} metrics lines and {len(moved)} later files are in {aside.name}/")
        return aside

    def _after(self, folder: str, step: int) -> list[Path]:
        entries = sorted((self.path / folder).glob("step_*"))
        return [path for path in entries if _STEP.match(path.name) and _step(path) > step]

    def _superseded(self) -> Path:
        number = 1
        while (self.path / f"superseded-{number}").exists():
            number += 1
        return self.path / f"superseded-{number}"

    def log(self, text: str) -> None:
        """Append a line to log.txt with the time."""
        try:
            with (self.path / LOG).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{now()} {text}\n")
        except OSError:  # a full disk: a log must not end the run, and the next checkpoint will say so
            return

    def heartbeat(self, say: Callable[[str], None], every_seconds: float = 30.0) -> Heartbeat:
        """A heartbeat that also writes heartbeat.json here."""
        return Heartbeat(say, every_seconds, self.path / HEARTBEAT)

    def finish(self, status: str, **facts: Any) -> None:
        """Write the ending, the seconds of all sessions and last `facts` into the manifest, and give the folder up.

        `status` is finished, interrupted or failed. Raises: RunFolderError.
        """
        if status not in ENDINGS:
            raise ValueError(f"status {status!r}: expected {', '.join(ENDINGS)}")
        seconds = time.monotonic() - self._started
        try:
            self.log(f"{status} after {seconds:.1f} s")
            self.manifest = end_session(self.path, self.manifest, status, seconds, facts)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        finally:
            self._close()

    def _close(self) -> None:
        logging.getLogger("glyph").removeHandler(self._handler)
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as error:  # as in log_metrics
                logger.warning("%s: %s: %s", type(tracker).__name__, type(error).__name__, error)
        self.trackers.clear()
        self._lock.release()


class _LogHandler(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(f"{record.levelname} {record.name}: {record.getMessage()}")


@contextmanager
def _claimed(path: Path) -> Iterator[FileLock]:
    """Hold a folder's lock, which is given back only if what follows fails. Raises: RunFolderError."""
    lock = FileLock(path / _LOCK)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not lock.acquire():
            raise RunFolderError(f"{path}: {lock.holder()} is writing this run; wait for it or stop it")
        yield lock
    except OSError as error:
        lock.release()
        raise _unwritable(path, error) from error
    except BaseException:
        lock.release()
        raise


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path}: cannot be written: {error.strerror or error}")


def _name(step: int) -> str:
    return f"step_{step:06d}"


def _step(path: Path) -> int:
    match = _STEP.match(path.name)
    assert match is not None
    return int(match[1])
