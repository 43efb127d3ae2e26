"""What an operation of the mini world is: its code, its wording, its parameters, the values that it accepts.

The tables are in `list_elements.py`, `list_operations.py`, `integer_operations.py` and `string_operations.py`; the
helpers here build the families (filter, map, fold, …) whose comprehension and loop follow from one condition or
one expression.

Templates are for `str.format`. In code, `{v}` is the input, `{out}` the variable that takes the result of a loop,
and a parameter stands under its own name. In wording, `{it}` is the input as a noun phrase.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Type(str, Enum):
    INTEGER = "integer"
    LIST = "list"  # of integers
    STRING = "string"


Value = int | str | list[int]
Parameters = tuple[tuple[str, int | str], ...]

LARGEST = 10**8
"""No integer in an input, between two steps or in a result is larger."""
LONGEST = {Type.LIST: 14, Type.STRING: 60}


@dataclass(frozen=True)
class Operation:
    """One typed step. `vague` phrases do without the parameter; only an operation that has some can withhold it.

    `choices` are the parameters, each with its possible values in order. `loop` (may be empty) are statements that
    leave in `{out}` what `expression` computes; `out` is a good name for that variable. `smallest` to `largest`
    bound an integer input, `shortest` is the least length of a list or string input, `needs_word` asks for a string
    with a word in it. `leaves` are names for the result in the wording of the next step.
    """

    name: str
    takes: Type
    gives: Type
    expression: str
    phrases: tuple[str, ...]
    vague: tuple[str, ...] = ()
    choices: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    loop: str = ""
    out: str = "result"
    leaves: tuple[str, ...] = ()
    smallest: int = -LARGEST
    largest: int = LARGEST
    shortest: int = 0
    needs_word: bool = False

    def accepts(self, value: Value) -> bool:
        if isinstance(value, int):
            return self.smallest <= value <= self.largest
        if self.needs_word and isinstance(value, str) and not value.strip():
            return False
        return len(value) >= self.shortest


Choices = Sequence[int | str]


def operation(
    name: str,
    takes: Type,
    gives: Type,
    expression: str,
    phrases: Sequence[str],
    choices: dict[str, Choices] | None = None,
    **more: Any,
) -> Operation:
    """An operation from plain tables: sequences become tuples."""
    if "vague" in more:
        more["vague"] = tuple(more["vague"])
    parameters = tuple((key, tuple(values)) for key, values in (choices or {}).items())
    return Operation(name, takes, gives, expression, tuple(phrases), choices=parameters, **more)


def keep(name: str, condition: str, phrases: Sequence[str], vague: Sequence[str] = (), **choices: Choices) -> Operation:
    """A filter of a list; the condition speaks of `x`."""
    loop = f"{{out}} = []\nfor x in {{v}}:\n    if {condition}:\n        {{out}}.append(x)"
    expression = f"[x for x in {{v}} if {condition}]"
    leaves = ("what is left", "the shorter list")
    more: dict[str, Any] = {"vague": vague, "loop": loop, "out": "kept", "leaves": leaves}
    return operation(name, Type.LIST, Type.LIST, expression, phrases, choices, **more)


def each(name: str, value: str, phrases: Sequence[str], vague: Sequence[str] = (), **choices: Choices) -> Operation:
    """A map over a list; the value is an expression of `x`."""
    loop = f"{{out}} = []\nfor x in {{v}}:\n    {{out}}.append({value})"
    leaves = ("the new list",)
    more: dict[str, Any] = {"vague": vague, "loop": loop, "out": "changed", "leaves": leaves}
    return operation(name, Type.LIST, Type.LIST, f"[{value} for x in {{v}}]", phrases, choices, **more)


def count(
    name: str, condition: str, phrases: Sequence[str], vague: Sequence[str] = (), **choices: Choices
) -> Operation:
    """How many elements of a list satisfy a condition on `x`."""
    loop = f"{{out}} = 0\nfor x in {{v}}:\n    if {condition}:\n        {{out}} += 1"
    more: dict[str, Any] = {"vague": vague, "loop": loop, "out": "count", "leaves": ("that count", "the count")}
    expression = f"sum(1 for x in {{v}} if {condition})"
    return operation(name, Type.LIST, Type.INTEGER, expression, phrases, choices, **more)


def fold(name: str, expression: str, start: str, step: str, phrases: Sequence[str], **more: Any) -> Operation:
    """A number from a list; `start` initialises `{out}` and `step` takes `x` in."""
    loop = f"{{out}} = {start}\nfor x in {{v}}:\n    " + step.replace("\n", "\n    ")
    more = {"out": "total", **more}
    return operation(name, Type.LIST, Type.INTEGER, expression, phrases, loop=loop, **more)


def keep_characters(
    name: str, condition: str, phrases: Sequence[str], vague: Sequence[str] = (), **choices: Choices
) -> Operation:
    """A filter of a string; the condition speaks of `c`."""
    loop = f"{{out}} = ''\nfor c in {{v}}:\n    if {condition}:\n        {{out}} += c"
    more: dict[str, Any] = {"vague": vague, "loop": loop, "out": "kept", "leaves": ("what is left", "the result")}
    expression = f"''.join(c for c in {{v}} if {condition})"
    return operation(name, Type.STRING, Type.STRING, expression, phrases, choices, **more)


def each_character(
    name: str, value: str, phrases: Sequence[str], vague: Sequence[str] = (), **choices: Choices
) -> Operation:
    """A map over the characters of a string; the value is a string expression of `c`."""
    loop = f"{{out}} = ''\nfor c in {{v}}:\n    {{out}} += {value}"
    more: dict[str, Any] = {"vague": vague, "loop": loop, "out": "changed", "leaves": ("the new string", "the result")}
    return operation(name, Type.STRING, Type.STRING, f"''.join({value} for c in {{v}})", phrases, choices, **more)


def count_characters(
    name: str, condition: str, phrases: Sequence[str], vague: Sequence[str] = (), **choices: Choices
) -> Operation:
    loop = f"{{out}} = 0\nfor c in {{v}}:\n    if {condition}:\n        {{out}} += 1"
    more: dict[str, Any] = {"vague": vague, "loop": loop, "out": "count", "leaves": ("that count", "the count")}
    expression = f"sum(1 for c in {{v}} if {condition})"
    return operation(name, Type.STRING, Type.INTEGER, expression, phrases, choices, **more)
