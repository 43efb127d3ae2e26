"""Programs of the mini world: one to three operations in a row, what they compute, and what holds them apart.

A program is evaluated directly, without the gold code's text. Its `fingerprint` is a digest of what it does to a
fixed set of probes: two programs with one fingerprint count as the same program, however they are written.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from glyph.tasks.mini.integer_operations import INTEGER_OPERATIONS
from glyph.tasks.mini.list_operations import LIST_OPERATIONS
from glyph.tasks.mini.operations import LARGEST, LONGEST, Operation, Parameters, Type, Value
from glyph.tasks.mini.string_operations import STRING_OPERATIONS

OPERATIONS = {op.name: op for op in LIST_OPERATIONS + INTEGER_OPERATIONS + STRING_OPERATIONS}
BY_INPUT = {kind: tuple(op for op in OPERATIONS.values() if op.takes is kind) for kind in Type}

PROBES: dict[Type, tuple[Value, ...]] = {
    Type.INTEGER: (*range(-3, 49), 53, 56, 60, 64, 77, 81, 99, 100, 121, 128, 165, 210, 256, 365, 487, 512, 729, 960),
    Type.LIST: (
        [],
        [5],
        [3, 3, 8],
        [-4, 12, 7, 0],
        [2, 9, 4, 9, 1],
        [10, -7, 6, 15, 3, 8],
        [1, 2, 3, 4, 5, 6, 7, 8],
        [20, 14, 11, -2, -9, 5, 5],
        [-1, -3, -6, -8, -5, 2, 13],
        [16, 18, 0, 7, 19, 10, 12, 17],
        [9, 8, 6, 4, 3, 1, 0, -2],
        [30, 24, 21, 15, 28, 12, 35],
        [13, 5, 17, -5, 11, 4, 14, 6],
        [7, 7, 2, 2, 0, 0, 1],
    ),
    Type.STRING: (
        "",
        "a",
        "Hello World 7",
        "the quick brown fox",
        "Room 101 is OPEN",
        "banana bread",
        "tomorrow Never knows",
        "small Steps matter 42",
        "Level 3",
        "MIXED case 5 Letters",
        "x9y8z7 in a Row",
        "Sunlight on 30 lemon trees",
        "one two three four 1234",
        "internationalisation",
    ),
}


@dataclass(frozen=True)
class Step:
    operation: Operation
    parameters: Parameters

    @property
    def key(self) -> str:
        """For instance `keep_between(a=1,b=9)`."""
        return f"{self.operation.name}({','.join(f'{name}={value!r}' for name, value in self.parameters)})"

    @cached_property
    def function(self) -> Callable[[Value], Value]:
        return _compiled(self.operation.expression, self.parameters)

    def fill(self, template: str, **more: str) -> str:
        """A template with the parameters as literals and the given names in place."""
        return template.format(**{name: repr(value) for name, value in self.parameters}, **more)

    def alternatives(self) -> Iterator["Step"]:
        """This step with another value of one parameter, nearest values first."""
        for place, (name, values) in enumerate(self.operation.choices):
            now = values.index(self.parameters[place][1])
            for other in sorted(range(len(values)), key=lambda i: (abs(i - now), i)):
                if other != now:
                    changed = (*self.parameters[:place], (name, values[other]), *self.parameters[place + 1 :])
                    yield Step(self.operation, changed)


@dataclass(frozen=True)
class Program:
    steps: tuple[Step, ...]

    @property
    def takes(self) -> Type:
        return self.steps[0].operation.takes

    @property
    def gives(self) -> Type:
        return self.steps[-1].operation.gives

    @property
    def key(self) -> str:
        return " | ".join(step.key for step in self.steps)

    def run(self, value: Value) -> Value | None:
        """What the program makes of a value; None where a step does not accept it or a bound is passed."""
        for step in self.steps:
            if not step.operation.accepts(value):
                return None
            value = step.function(value)
            if not bounded(value):
                return None
        return value

    def without(self, place: int) -> "Program | None":
        """The program with one step left out; None where the types no longer meet or nothing is left."""
        left_out = self.steps[place].operation
        rest = self.steps[:place] + self.steps[place + 1 :]
        return Program(rest) if rest and left_out.takes is left_out.gives else None

    def replaced(self, place: int, step: Step) -> "Program":
        return Program((*self.steps[:place], step, *self.steps[place + 1 :]))

    def outputs(self) -> tuple[Value | None, ...]:
        return tuple(self.run(probe) for probe in PROBES[self.takes])


def fingerprint(takes: Type, outputs: tuple[Value | None, ...]) -> str:
    """Hex SHA-256 of a behaviour on the probes."""
    return hashlib.sha256(f"{takes.value}\0{outputs!r}".encode()).hexdigest()


@cache
def _compiled(expression: str, parameters: Parameters) -> Callable[[Value], Value]:
    """The expression as a function. It is one of our own templates, so `eval` sees no foreign text."""
    filled = expression.format(v="v", **{name: repr(value) for name, value in parameters})
    return eval(f"lambda v: {filled}")


def bounded(value: Value) -> bool:
    if isinstance(value, int):
        return abs(value) <= LARGEST
    if isinstance(value, str):
        return len(value) <= LONGEST[Type.STRING]
    return len(value) <= LONGEST[Type.LIST] and all(abs(x) <= LARGEST for x in value)


def is_worth_posing(program: Program, outputs: tuple[Value | None, ...]) -> bool:
    """Whether a program accepts enough inputs, answers differently to them, and needs each of its steps."""
    given = [repr(output) for output in outputs if output is not None]
    if len(given) < 8 or len(set(given)) < 2:
        return False
    if max(given.count(output) for output in set(given)) > len(given) * 0.7:
        return False
    if len(program.steps) == 1:
        return True
    shorter = (program.without(place) for place in range(len(program.steps)))
    return all(_differs(other.outputs(), outputs) for other in shorter if other)


def _differs(other: tuple[Value | None, ...], outputs: tuple[Value | None, ...]) -> bool:
    """Whether two behaviours differ where the second one is defined."""
    return any(mine is not None and theirs != mine for theirs, mine in zip(other, outputs, strict=True))
