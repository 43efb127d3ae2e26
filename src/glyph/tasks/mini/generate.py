"""Draws the tasks of the mini set and deals them to the splits.

Draw number i of a seed is the task `mini-i`; it makes a program that no earlier draw made. The split follows from
the program's fingerprint (what it does), never from the order, so that no held-out program equals a training one.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count
from random import Random
from typing import TypeVar

from glyph.tasks.mini.gold import ARGUMENTS, Style, function_name, render_gold
from glyph.tasks.mini.inputs import Example, choose_examples
from glyph.tasks.mini.operations import Type
from glyph.tasks.mini.programs import BY_INPUT, Program, Step, fingerprint, is_worth_posing
from glyph.tasks.mini.wording import render_text
from glyph.tasks.task import CodeTask

DEFAULT_SEED = 42
STEP_WEIGHTS = {1: 0.3, 2: 0.5, 3: 0.2}
TYPE_WEIGHTS = {Type.LIST: 0.5, Type.STRING: 0.28, Type.INTEGER: 0.22}
WITHHELD_SHARE = 0.4
SPLIT_SHARES = {"sft": 0.08, "validation": 0.08, "test": 0.18}
"""The share of all programs that a split may draw from; the rest is train."""
_ATTEMPTS = 2000

T = TypeVar("T")


@dataclass(frozen=True)
class MiniSizes:
    """How many tasks each split gets."""

    sft: int = 212
    train: int = 2000
    validation: int = 200
    test: int = 500

    def as_dict(self) -> dict[str, int]:
        return {"sft": self.sft, "train": self.train, "validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class MiniTask(CodeTask):
    """A task of the mini set.

    `key` names its operations and parameters, `fingerprint` is the digest of what it does, `withheld` the key of the
    step whose parameter the text does not tell (None where it tells all).
    """

    key: str
    fingerprint: str
    withheld: str | None


@dataclass(frozen=True)
class MiniSplits:
    sft: tuple[MiniTask, ...]
    train: tuple[MiniTask, ...]
    validation: tuple[MiniTask, ...]
    test: tuple[MiniTask, ...]


@cache
def mini_tasks(seed: int = DEFAULT_SEED, sizes: MiniSizes | None = None) -> MiniSplits:
    """The mini set: the same tasks byte for byte for a seed. A task keeps its id when the sizes change.

    Raises:
        ValueError: the sizes are more than the world can fill.
    """
    wanted = (sizes or MiniSizes()).as_dict()
    found: dict[str, list[MiniTask]] = {name: [] for name in wanted}
    for task in draw_tasks(seed):
        split = found[split_of(task.fingerprint, seed)]
        if len(split) < wanted[split_of(task.fingerprint, seed)]:
            split.append(task)
        if all(len(found[name]) == size for name, size in wanted.items()):
            break
    return MiniSplits(**{name: tuple(tasks) for name, tasks in found.items()})


def split_of(behaviour: str, seed: int) -> str:
    """The split that a program belongs to, by a hash of its fingerprint; no other text may show held-out programs."""
    place = int(hashlib.sha256(f"{seed}\0{behaviour}".encode()).hexdigest()[:8], 16) / 16**8
    for name, share in SPLIT_SHARES.items():
        if place < share:
            return name
        place -= share
    return "train"


def draw_tasks(seed: int) -> Iterator[MiniTask]:
    """Tasks without end, each with a program that none before it had.

    Raises:
        ValueError: no new program was found within a fixed number of attempts.
    """
    seen: set[str] = set()
    for index in count():
        rng = Random(f"mini {seed} {index}")
        size = _weighted(STEP_WEIGHTS, rng)
        withhold = rng.random() < WITHHELD_SHARE
        for _ in range(_ATTEMPTS):
            task = _attempt(f"mini-{index:05d}", size, withhold, seen, rng)
            if task:
                seen.add(task.fingerprint)
                yield task
                break
        else:
            raise ValueError(f"mini: no new program of {size} steps after {index} tasks; ask for fewer tasks")


def random_program(size: int, rng: Random) -> Program:
    """A program of `size` steps whose types meet."""
    kind = _weighted(TYPE_WEIGHTS, rng)
    steps: list[Step] = []
    for _ in range(size):
        operation = rng.choice([op for op in BY_INPUT[kind] if not steps or op is not steps[-1].operation])
        steps.append(Step(operation, tuple((name, rng.choice(values)) for name, values in operation.choices)))
        kind = operation.gives
    return Program(tuple(steps))


@dataclass(frozen=True)
class Draft:
    """A program that can be posed: its fingerprint, the place of the step to withhold, and examples that tell."""

    program: Program
    fingerprint: str
    withheld: int | None
    examples: tuple[Example, ...]


def draft_program(size: int, withhold: bool, admits: Callable[[str], bool], rng: Random) -> Draft | None:
    """One try; None when the program is not admitted, is not worth posing, or cannot be pinned down."""
    program = random_program(size, rng)
    candidates = [place for place, step in enumerate(program.steps) if step.operation.vague]
    if withhold and not candidates:
        return None
    withheld = rng.choice(candidates) if withhold else None
    outputs = program.outputs()
    behaviour = fingerprint(program.takes, outputs)
    if not admits(behaviour) or not is_worth_posing(program, outputs):
        return None
    examples = choose_examples(program, withheld, rng)
    return Draft(program, behaviour, withheld, tuple(examples)) if examples else None


def _attempt(task_id: str, size: int, withhold: bool, seen: set[str], rng: Random) -> MiniTask | None:
    """One try at a task whose program is new."""
    draft = draft_program(size, withhold, lambda behaviour: behaviour not in seen, rng)
    if not draft:
        return None
    program, withheld = draft.program, draft.withheld
    return MiniTask(
        task_id=task_id,
        text=render_text(program, withheld, rng),
        test_code="".join(_assertion(program, example) for example in draft.examples),
        gold=render_gold(program, rng.choice(ARGUMENTS[program.takes]), rng.choice(tuple(Style))),
        key=program.key,
        fingerprint=draft.fingerprint,
        withheld=None if withheld is None else program.steps[withheld].key,
    )


def _assertion(program: Program, example: Example) -> str:
    return f"assert {function_name(program)}({example.given!r}) == {example.expected!r}\n"


def _weighted(weights: Mapping[T, float], rng: Random) -> T:
    place = rng.random() * sum(weights.values())
    for item, weight in weights.items():
        place -= weight
        if place < 0:
            return item
    return item
