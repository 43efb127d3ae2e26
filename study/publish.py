"""From the work folder to files that can be published: clean manifests, slim traces, a summary, and packed archives.

    RESULTS/NAME/
      manifest.json  config.toml  log.txt                       as the engine wrote them, but for paths of the machine
      metrics.jsonl.gz                                          likewise, compressed
      evaluations/step_N/traces.jsonl.gz                        validation traces of a run, slim
      traces.jsonl.gz                                           test traces, slim
      summary.json                                              what it is of, its status, every metric

Weights and training rollouts are left out.
"""

import gzip
import json
import shutil
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glyph.evaluation.metrics import compute_all
from glyph.evaluation.traces import Trace, read_traces, write_traces
from glyph.files import write_atomically
from glyph.local.runs.checkpoint_folders import checkpoints, recorded_sha256
from glyph.report.data import rollouts_of
from glyph.report.runs import METRICS
from study.pieces import PLAIN, SUMMARY, TRACES, Kind, Piece
from study.slim import slim, task_texts

TEXTS = ("config.toml", "log.txt", PLAIN)
PRIVATE = ("pid", "host")
ARCHIVE_BYTES = 14 * 2**20


class Publisher:
    """Writes the pieces of a study into a results folder. `places` are paths of this machine, and what stands for them.

    `facts` are added to every summary (the commit of the sources where the copy that runs does not know it). `done` are
    the names of what was published, `faults` says why others could not be.
    """

    def __init__(self, results: Path, places: Mapping[Path, str], facts: Mapping[str, Any]) -> None:
        self._results, self._facts = results, dict(facts)
        self.done, self.faults = set[str](), dict[str, str]()
        self._places = {str(path): name for path, name in sorted(places.items(), key=lambda item: -len(str(item[0])))}

    def publish(self, piece: Piece) -> None:
        """Write what a piece has so far; nothing where it has not begun."""
        manifest = piece.folder / "manifest.json"
        if piece.kind is Kind.DATA or not manifest.is_file():
            return
        target = self._results / piece.name
        facts = json.loads(self._clean(manifest.read_text()))
        for session in facts.get("sessions", ()):
            for name in PRIVATE:
                session.pop(name, None)
        for name in TEXTS:
            if (file := piece.folder / name).is_file():
                write_atomically(target / name, self._clean(file.read_text("utf-8", errors="replace")))
        if (metrics := piece.folder / METRICS).is_file():
            packed = gzip.compress(self._clean(metrics.read_text("utf-8")).encode(), mtime=0)
            write_atomically(target / f"{METRICS}.gz", packed)
        for traces in sorted(piece.folder.glob(f"evaluations/*/{TRACES}")):
            self._write_slim(piece.folder, read_traces(traces).traces, target / traces.relative_to(piece.folder))
        played = read_traces(traces).traces if (traces := piece.folder / TRACES).is_file() else None
        if played is not None:
            self._write_slim(piece.folder, played, target / TRACES)
        write_atomically(target / SUMMARY, json.dumps(self._summary(piece, facts, played), indent=1) + "\n")
        write_atomically(target / "manifest.json", json.dumps(facts, indent=1) + "\n")
        self.done.add(piece.name)

    def _clean(self, text: str) -> str:
        for path, name in self._places.items():
            text = text.replace(path, name)
        return text

    def _write_slim(self, run: Path, read: Sequence[Trace], target: Path) -> None:
        """Raises: RejoinError: the texts of the traces are not those of the run's data."""
        data = Path(tomllib.loads((run / "config.toml").read_text("utf-8"))["data"])
        arm, split = next((t.arm, t.split) for t in read if t.arm and t.split)
        texts = task_texts(data, arm.lower(), split)
        thin = [slim(trace, texts) for trace in read]
        cleaned = [replace(trace, model=trace.model and self._clean(trace.model)) for trace in thin]
        write_traces(target, cleaned, overwrite=True)

    def _summary(self, piece: Piece, manifest: Mapping[str, Any], played: Sequence[Trace] | None) -> dict[str, Any]:
        summary = {"schema_version": 1, "kind": piece.kind.value, **piece.facts, **self._facts}
        summary |= {"status": manifest.get("status", "finished"), "seconds": manifest.get("seconds")}
        if piece.is_training:
            return summary | _training_facts(piece)
        if played is not None:
            metrics = compute_all(rollouts_of(played))
            summary |= {"rollouts": len(played), "errors": sum(trace.error is not None for trace in played)}
            summary["metrics"] = {name: metric.to_dict() for name, metric in metrics.items()}
        return summary


def _training_facts(piece: Piece) -> dict[str, Any]:
    """Steps done, those that trained nothing, and the digest of the last weights that stand."""
    metrics = piece.folder / METRICS
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    steps = [line for line in lines if line.get("kind") == "train"]
    found = checkpoints(piece.folder / "checkpoints")
    return {
        "steps_done": max((line["step"] for line in steps), default=0),
        "steps_skipped": sum(line.get("skipped") is not None for line in steps),
        "checkpoint": found[-1].name if found else None,
        "weights_sha256": recorded_sha256(found[-1]) if found else None,
    }


def pack(results: Path, output: Path, limit_bytes: int = ARCHIVE_BYTES) -> list[Path]:
    """Pack the folders of a results folder into `results-N.tar.xz`, each of at most about `limit_bytes`.

    Traces are compressed already, so that their size in the archive is theirs. Older archives are replaced.

    Raises:
        ValueError: one folder alone is too large.
    """
    output.mkdir(parents=True, exist_ok=True)
    parts: list[list[Path]] = [[]]
    room = limit_bytes
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if size > limit_bytes:
            raise ValueError(f"{folder}: {size} bytes, an archive holds {limit_bytes}")
        if size > room:
            parts.append([])
            room = limit_bytes
        parts[-1].append(folder)
        room -= size
    made = [_archive(output / f"results-{number}.tar.xz", part) for number, part in enumerate(parts, 1) if part]
    for old in set(output.glob("results-*.tar.xz")) - set(made):
        old.unlink()
    return made


def _archive(path: Path, folders: Sequence[Path]) -> Path:
    partial = path.with_name(f"{path.name}.partial")
    with tarfile.open(partial, "w:xz", preset=6) as archive:
        for folder in folders:
            archive.add(folder, arcname=folder.name)
    partial.replace(path)
    return path


def drop_unfinished(results: Path, names: Iterable[str]) -> None:
    """Of these results remove what a kill left without its manifest, which is written last, or without a summary."""
    for name in names:
        if (results / name).is_dir() and not is_published(results / name):
            shutil.rmtree(results / name)


def is_published(folder: Path) -> bool:
    """Whether a result stands whole."""
    try:
        return all(isinstance(json.loads((folder / name).read_text()), dict) for name in ("manifest.json", SUMMARY))
    except (OSError, ValueError):
        return False
