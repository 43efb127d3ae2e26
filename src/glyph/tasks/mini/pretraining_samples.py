"""What the documents of the pre-training text are written from: a program that may be shown, with three examples.

Held out are all programs of the splits sft, validation and test, and the programs of the RL tasks: what the base
model has seen says nothing about any task that is later trained or measured on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from glyph.tasks.mini.generate import DEFAULT_SEED, STEP_WEIGHTS, WITHHELD_SHARE, draft_program, mini_tasks, split_of
from glyph.tasks.mini.gold import ARGUMENTS, Style, function_name, render_gold
from glyph.tasks.mini.inputs import Example
from glyph.tasks.mini.operations import Value
from glyph.tasks.mini.pretraining_faults import Fault, find_fault
from glyph.tasks.mini.programs import Program
from glyph.tasks.mini.wording import render_text


def admission(seed: int = DEFAULT_SEED, share: str = "train") -> Callable[[str], bool]:
    """Whether a program may be shown, by its fingerprint: of the share and of none of the tasks that RL and SFT use.

    `share` is "train" for the text that a model learns from; "validation" for measuring its loss on programs of a
    kind that it has not seen, never for learning.
    """
    dealt = _dealt(seed)
    return lambda behaviour: behaviour not in dealt and split_of(behaviour, seed) == share


@cache
def _dealt(seed: int) -> frozenset[str]:
    splits = mini_tasks(seed)
    return frozenset(task.fingerprint for tasks in (splits.sft, splits.train) for task in tasks)


@dataclass(frozen=True)
class Sample:
    """A program in one wording and one look. `code` is the gold code without a final newline."""

    program: Program
    fingerprint: str
    withheld: int | None
    examples: tuple[Example, ...]
    text: str
    argument: str
    style: Style
    admits: Callable[[str], bool]

    @property
    def name(self) -> str:
        return function_name(self.program)

    @property
    def code(self) -> str:
        return render_gold(self.program, self.argument, self.style)

    @property
    def tests(self) -> str:
        return "\n".join(f"assert {self.name}({each.given!r}) == {each.expected!r}" for each in self.examples)

    @property
    def given(self) -> list[Value]:
        return [each.given for each in self.examples]

    @property
    def expected(self) -> list[Value]:
        return [each.expected for each in self.examples]

    def reworded(self, rng: Random, style: Style | None = None) -> "Sample":
        """The same program and examples with another text, argument name and style."""
        return replace(
            self,
            text=render_text(self.program, self.withheld, rng),
            argument=rng.choice(ARGUMENTS[self.program.takes]),
            style=style or rng.choice(tuple(Style)),
        )

    def fault(self, rng: Random) -> Fault | None:
        """A faulty candidate in the same look."""
        gold = (self.argument, self.style, self.code)
        pairs = list(zip(self.given, self.expected, strict=True))
        return find_fault(self.program, gold, pairs, self.withheld, self.admits, rng)


def draw_sample(admits: Callable[[str], bool], rng: Random) -> Sample:
    """A sample with the shares of the task set: number of steps, withheld parameters, examples that tell."""
    size = rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
    withhold = rng.random() < WITHHELD_SHARE
    while True:
        sample = _attempt(size, withhold, admits, rng)
        if sample:
            return sample


def _attempt(size: int, withhold: bool, admits: Callable[[str], bool], rng: Random) -> Sample | None:
    draft = draft_program(size, withhold, admits, rng)
    if not draft:
        return None
    sample = Sample(draft.program, draft.fingerprint, draft.withheld, draft.examples, "", "", Style.NESTED, admits)
    return sample.reworded(rng)
