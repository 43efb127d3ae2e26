"""Faulty candidates for a program of the mini world, and what a candidate really does on the assertions' inputs.

A fault is either another program in the gold code's clothes (another parameter, a neighbouring operation, a step
left out, two steps swapped) or a mutation of the gold code. Candidates are executed in this process: it is our own
text, its `range` is bounded, and a count of executed lines (not a clock, so that the answer is the same everywhere)
ends what does not end. Not for text that a model wrote: that is the executor's.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from types import FrameType
from typing import Any

from glyph.tasks.mini.gold import Style, function_name, render_gold
from glyph.tasks.mini.operations import Value
from glyph.tasks.mini.programs import BY_INPUT, PROBES, Program, Step, bounded, fingerprint
from glyph.tasks.mutations import RUNTIME_KINDS, SEMANTIC_KINDS, SYNTAX_KINDS, Mutation, mutations

Admits = Callable[[str], bool]
"""Whether a fingerprint may be shown."""

MOST_LINES = 4_000
LONGEST_RANGE = 2_000
_UNBOUNDED = frozenset({"repeat_letter"})
"""Operations whose mutations could build a text of any size in one step."""

_BUILTINS = (abs, bin, chr, dict, enumerate, float, int, len, list, max, min, next, oct, ord, set, sorted, str, sum)
_MORE_BUILTINS = (all, any, round, tuple, zip)


@dataclass(frozen=True)
class Outcome:
    """What one call gave: a value, or the name of the exception (and then no value)."""

    value: Any = None
    error: str | None = None


class _TooLongError(BaseException):
    pass


def execute(source: str, name: str, inputs: Sequence[Value]) -> list[Outcome | None]:
    """What a function of our own gives for each input; None where it runs too long or the value is out of bounds."""
    namespace: dict[str, Any] = {"__builtins__": _builtins()}
    try:
        exec(compile(source, "candidate", "exec"), namespace)
    except SyntaxError:
        return [Outcome(error="SyntaxError") for _ in inputs]
    return [_call(namespace[name], given) for given in inputs]


def _call(function: Callable[[Value], Any], given: Value) -> Outcome | None:
    tracing = sys.gettrace()
    sys.settrace(_line_counter())
    try:
        value = function(list(given) if isinstance(given, list) else given)
    except _TooLongError:
        return None
    except Exception as error:
        return Outcome(error=type(error).__name__)
    finally:
        sys.settrace(tracing)
    plain = type(value) in (int, str) or (type(value) is list and all(type(x) is int for x in value))
    return Outcome(value=value) if plain and bounded(value) else None


def _line_counter() -> Callable[[FrameType, str, Any], Any]:
    left = MOST_LINES

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooLongError
        return count

    return count


def _builtins() -> dict[str, Any]:
    return {function.__name__: function for function in (*_BUILTINS, *_MORE_BUILTINS)} | {"range": _bounded_range}


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > LONGEST_RANGE:
        raise _TooLongError
    return numbers


@dataclass(frozen=True)
class Fault:
    """A candidate that fails at least one of the inputs: its source and what it gives for each of them."""

    source: str
    outcomes: tuple[Outcome, ...]


def find_fault(
    program: Program,
    gold: tuple[str, Style, str],
    pairs: Sequence[tuple[Value, Value]],
    withheld: int | None,
    admits: Admits,
    rng: Random,
) -> Fault | None:
    """A faulty candidate, or None when a few tries found none.

    `gold` is (argument, style, source); `pairs` are (given, expected). No candidate behaves, as far as the probes
    tell, like a program that `admits` refuses.
    """
    argument, style, source = gold
    name = function_name(program)
    for _ in range(6):
        if rng.random() < 0.75:
            candidate = _other_program(program, (argument, style), withheld, admits, rng)
        else:
            candidate = _mutation(program, source, admits, rng)
        if candidate is None or candidate == source:
            continue
        outcomes = tuple(outcome for outcome in execute(candidate, name, [given for given, _ in pairs]) if outcome)
        if len(outcomes) == len(pairs) and list(wrong_places(outcomes, [wanted for _, wanted in pairs])):
            return Fault(candidate, outcomes)
    return None


def _other_program(
    program: Program, look: tuple[str, Style], withheld: int | None, admits: Admits, rng: Random
) -> str | None:
    """Another program under the same function name."""
    other = rng.choice((_parameter, _parameter, _sibling, _shorter, _swapped))(program, withheld, rng)
    if other is None or not admits(fingerprint(other.takes, other.outputs())):
        return None
    code = render_gold(other, *look)
    return code.replace(f"def {function_name(other)}(", f"def {function_name(program)}(", 1)


def _parameter(program: Program, withheld: int | None, rng: Random) -> Program | None:
    """Another value of a parameter, most often of the withheld one, most often a near one."""
    places = [place for place, step in enumerate(program.steps) if step.parameters]
    if not places:
        return None
    place = withheld if withheld is not None and rng.random() < 0.7 else rng.choice(places)
    others = list(program.steps[place].alternatives())
    return program.replaced(place, others[min(int(rng.expovariate(0.4)), len(others) - 1)]) if others else None


def _sibling(program: Program, _: int | None, rng: Random) -> Program | None:
    """Another operation of the same types in one place, with the same parameters where it takes such."""
    place = rng.randrange(len(program.steps))
    mine = program.steps[place]
    table = [
        op for op in BY_INPUT[mine.operation.takes] if op.gives is mine.operation.gives and op is not mine.operation
    ]
    operation = rng.choice(table)
    old = dict(mine.parameters)
    chosen = [(key, old[key] if old.get(key) in values else rng.choice(values)) for key, values in operation.choices]
    return program.replaced(place, Step(operation, tuple(chosen)))


def _shorter(program: Program, _: int | None, rng: Random) -> Program | None:
    return program.without(rng.randrange(len(program.steps)))


def _swapped(program: Program, _: int | None, rng: Random) -> Program | None:
    steps = list(program.steps)
    if len(steps) < 2:
        return None
    at = rng.randrange(len(steps) - 1)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    takes, fits = program.takes, True
    for step in steps:
        fits, takes = fits and step.operation.takes is takes, step.operation.gives
    return Program(tuple(steps)) if fits and steps[0].operation.takes is program.takes else None


def _mutation(program: Program, source: str, admits: Admits, rng: Random) -> str | None:
    """A mutation of the code; mostly a semantic one, some that raise, a few that do not compile."""
    if any(step.operation.name in _UNBOUNDED for step in program.steps):
        return None
    draw = rng.random()
    kinds = SEMANTIC_KINDS if draw < 0.65 else RUNTIME_KINDS if draw < 0.93 else SYNTAX_KINDS
    found = [mutation for mutation in _mutations(source + "\n") if mutation.kind in kinds]
    if not found:
        return None
    mutation = rng.choice(found)
    mutated = mutation.source.rstrip("\n")
    return mutated if mutation.kind in SYNTAX_KINDS or _is_admitted(program, mutated, admits) else None


@lru_cache(maxsize=8)
def _mutations(source: str) -> list[Mutation]:
    return mutations(source, SEMANTIC_KINDS | RUNTIME_KINDS | SYNTAX_KINDS)


def _is_admitted(program: Program, mutated: str, admits: Admits) -> bool:
    """Whether the behaviour on the probes may be shown, taken as it is and within the gold program's domain."""
    outcomes = execute(mutated, function_name(program), PROBES[program.takes])
    whole = tuple(outcome.value if outcome else None for outcome in outcomes)
    within = tuple(value if gold is not None else None for value, gold in zip(whole, program.outputs(), strict=True))
    return all(admits(fingerprint(program.takes, behaviour)) for behaviour in (whole, within))


def wrong_places(outcomes: Sequence[Outcome], expected: Sequence[Value]) -> Iterator[int]:
    """Indices of the assertions that do not hold."""
    pairs = zip(outcomes, expected, strict=True)
    return (place for place, (outcome, wanted) in enumerate(pairs) if outcome != Outcome(wanted))
