"""Which runs belong together: the seeds of one arm at one stage, under one configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glyph.report.runs import RunError, TrainingRun


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone: one arm at one stage, under one configuration."""

    name: str
    stage: str
    arm: str
    runs: tuple[TrainingRun, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.manifest.seed for run in self.runs)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(split for run in self.runs for split in run.splits))


SEED_SETTINGS = frozenset({"seed", "name", "run", "output", "folder", "path", "model", "resume", "data", "checkpoint"})
"""Settings that may differ between the seeds of one group: names, places, and the seed."""


def group_runs(runs: Sequence[TrainingRun]) -> tuple[Group, ...]:
    """Runs by stage, scale, arm and configuration, RL before SFT, Arm A first; seeds in order.

    Raises:
        RunError: a folder is given twice.
    """
    folders = [run.folder.resolve() for run in runs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise RunError(f"{folder}: given twice")
    keys = [(run.manifest.stage == "sft", run.manifest.stage, run.manifest.scale, run.manifest.arm) for run in runs]
    several = {part: len({key[part] for key in keys}) > 1 for part in (1, 2)}
    groups = []
    for key in sorted(set(keys)):
        members = [run for run, own in zip(runs, keys, strict=True) if own == key]
        extra = [key[2]] if several[2] else []
        extra += [key[1].upper()] if several[1] else []
        for difference, alike in _by_settings(members).items():
            name = ", ".join([f"Arm {key[3].upper()}", *extra, *([difference] if difference else [])])
            ordered = tuple(sorted(alike, key=lambda run: (run.manifest.seed, run.name)))
            groups.append(Group(name, key[1], key[3], ordered))
    return tuple(groups)


def _by_settings(runs: Sequence[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """The runs under the settings in which they differ, written `credit.alpha=0.2`; under "" where in none."""
    settings = [dict(_flat(run.config or {})) for run in runs]
    names = sorted({name for each in settings for name in each})
    differing = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    found: dict[str, list[TrainingRun]] = {}
    for run, each in zip(runs, settings, strict=True):
        found.setdefault(", ".join(f"{name}={each.get(name, 'unset')}" for name in differing), []).append(run)
    return found


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif name not in SEED_SETTINGS:
            yield prefix + name, value
