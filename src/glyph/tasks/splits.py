"""The study's splits of MBPP, from the order key of spec and seed. Source: the published study's data description."""

import hashlib
from dataclasses import dataclass

from glyph.tasks.task import CodeTask

SEED = 42
OFFICIAL = {"train": range(601, 975), "validation": range(511, 601), "test": range(11, 511)}
VALIDATION_TO_POOL = 50
SFT_TASKS = 212


@dataclass(frozen=True)
class Splits:
    """Tasks of each split. sft and train are in key order; validation and test in order of their ids."""

    sft: tuple[CodeTask, ...]
    train: tuple[CodeTask, ...]
    validation: tuple[CodeTask, ...]
    test: tuple[CodeTask, ...]

    def items(self) -> list[tuple[str, tuple[CodeTask, ...]]]:
        return [("sft", self.sft), ("train", self.train), ("validation", self.validation), ("test", self.test)]


def order_key(task: CodeTask, seed: int = SEED) -> tuple[str, int]:
    digest = hashlib.sha256(f"{seed}\0{task.task_id}\0{task.text}".encode()).hexdigest()
    return digest, int(task.task_id)


def split_mbpp(tasks: list[CodeTask], seed: int = SEED) -> Splits:
    """Split the 964 tasks with ids 11 to 974.

    Raises:
        ValueError: ids are missing or stand twice.
    """
    by_id = {int(task.task_id): task for task in tasks}
    wanted = [i for ids in OFFICIAL.values() for i in ids]
    missing = sorted(set(wanted) - set(by_id))
    if missing or len(by_id) != len(tasks):
        raise ValueError(f"MBPP: expected each id from 11 to 974 once; missing {missing[:5]}, {len(tasks)} rows")
    official = {name: [by_id[i] for i in ids] for name, ids in OFFICIAL.items()}
    validation = sorted(official["validation"], key=lambda task: order_key(task, seed))
    pool = sorted(official["train"] + validation[:VALIDATION_TO_POOL], key=lambda task: order_key(task, seed))
    held_out = sorted(validation[VALIDATION_TO_POOL:], key=lambda task: int(task.task_id))
    return Splits(tuple(pool[:SFT_TASKS]), tuple(pool[SFT_TASKS:]), tuple(held_out), tuple(official["test"]))
