"""Test code → steps: what is run in the candidate's process, and what only the parent ever sees.

The parent parses the tests. A statement that is no assertion is run by the candidate's process as it is. An
assertion is taken apart: its calls (the leaves) go to the candidate's process one at a time, and every comparison,
truth value and literal stays here. `Evaluator` walks one assertion in Python's order of evaluation.

A leaf that needs no candidate, such as `sys.getsizeof(())`, has its value from a clean process; the candidate's is
asked only for the exception that it may raise. What a leaf calls by itself runs where the candidate lives: an
assertion of `all(f(x) > 0 for x in y)` is as good as the candidate's own `all`.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from glyph.executor import values
from glyph.executor.values import OPAQUE, Encoded


class TestCodeError(ValueError):
    """The test code itself is unusable: a fault of the task, not of a candidate."""

    __test__ = False


@dataclass(frozen=True)
class Node:
    """A part of an asserted expression.

    `kind` is literal (`value`: its encoding), leaf (its source), and, or, not, truth, compare (the operators), or
    apply (the function and the names of its keyword arguments, which come last in `parts`).
    """

    kind: str
    value: Any = None
    parts: tuple["Node", ...] = ()


@dataclass(frozen=True)
class Step:
    """One statement of the tests. `condition` is the asserted expression, None for a plain statement."""

    index: int
    source: str
    condition: Node | None

    def leaves(self) -> list[str]:
        """The sources of what the candidate's process is asked for, in order, each once."""
        return list(dict.fromkeys(_leaves(self.condition))) if self.condition else []


class TestFailure(Exception):
    """An operation on the candidate's value raised in the parent, as it would have raised in the test."""

    __test__ = False

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.exception_type = type(error).__name__


@lru_cache(maxsize=4096)
def parse_tests(tests: str) -> tuple[Step, ...]:
    """Split test code into steps.

    Raises:
        TestCodeError: it does not compile, holds no assertion, or holds one that cannot be kept from a candidate.
    """
    try:
        compile(tests, "<test>", "exec", dont_inherit=True)
        body = ast.parse(tests).body
        steps = tuple(_step(i, node) for i, node in enumerate(body))
    except TestCodeError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise TestCodeError(f"test code cannot be used: {type(error).__name__}: {error}") from error
    if not any(step.condition for step in steps):
        raise TestCodeError("test code holds no assertion")
    return steps


def _step(index: int, node: ast.stmt) -> Step:
    source = ast.unparse(node)
    if isinstance(node, ast.Assert):
        if isinstance(node.test, ast.Tuple):
            raise TestCodeError(f"statement {index}: an asserted tuple always holds: {source[:100]}")
        return Step(index, source, _take_apart(node.test))
    if any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
        raise TestCodeError(
            f"statement {index}: an assertion inside another statement would show the candidate what is expected; "
            f"write assertions at the top level: {source[:100]}"
        )
    return Step(index, source, None)


def _leaves(node: Node) -> Iterator[str]:
    if node.kind == "leaf":
        yield node.value
    for part in node.parts:
        yield from _leaves(part)


_ORDERINGS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {ast.Add: operator.add, ast.Sub: operator.sub}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "math.isclose": math.isclose,
    "round": round,
}
"""Functions of numbers that the parent applies itself, so that a candidate that replaces them gains nothing."""


def _take_apart(node: ast.expr, numeric: bool = False) -> Node:
    """The tree of an asserted expression. `numeric`: numbers are expected here, so that `+` and `-` are ours."""
    known = _literal(node)
    if known is not None:
        return Node("literal", known)
    if isinstance(node, ast.BoolOp):
        return Node("or" if isinstance(node.op, ast.Or) else "and", None, tuple(map(_take_apart, node.values)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return Node("not", None, (_take_apart(node.operand),))
    if isinstance(node, ast.Compare):
        numeric = any(type(op) in _ORDERINGS for op in node.ops)
        parts = tuple(_take_apart(part, numeric) for part in (node.left, *node.comparators))
        return Node("compare", tuple(node.ops), parts)
    if numeric and isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        parts = (_take_apart(node.left, True), _take_apart(node.right, True))
        return Node("apply", (_ARITHMETIC[type(node.op)], ()), parts)
    return _take_call_apart(node) if isinstance(node, ast.Call) else Node("leaf", ast.unparse(node))


def _take_call_apart(node: ast.Call) -> Node:
    name, names = ast.unparse(node.func), [keyword.arg for keyword in node.keywords]
    if None in names or any(isinstance(argument, ast.Starred) for argument in node.args):
        return Node("leaf", ast.unparse(node))
    if name == "bool" and len(node.args) == 1 and not names:
        return Node("truth", None, (_take_apart(node.args[0]),))
    if name in _FUNCTIONS:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return Node("apply", (_FUNCTIONS[name], tuple(names)), tuple(_take_apart(part, True) for part in arguments))
    return Node("leaf", ast.unparse(node))


def _literal(node: ast.expr) -> Encoded | None:
    try:
        value = values.encode(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return None if value == OPAQUE else value


class Evaluator:
    """Evaluates one asserted expression.

    `ask` gets a leaf's value from the candidate's process; `known` has, by source, the values of the leaves that
    need no candidate. `given` collects the values of the others, in the order in which they were asked for.
    """

    def __init__(self, ask: Callable[[str], Encoded], known: dict[str, Encoded]) -> None:
        self._ask, self._known = ask, known
        self.given: list[Encoded] = []

    def holds(self, node: Node) -> bool:
        """Whether the expression is true.

        Raises:
            TestFailure: an operation in the test raised.
        """
        return _truth(self._value(node))

    def _value(self, node: Node) -> Encoded:
        kind = node.kind
        if kind == "literal":
            return node.value
        if kind == "leaf":
            asked = self._ask(node.value)
            if node.value in self._known:
                return self._known[node.value]
            self.given.append(asked)
            return asked
        if kind in ("and", "or"):
            return self._first(node.parts, until=kind == "or")
        if kind == "compare":
            return ["b", int(self._compare(node))]
        operands = [self._value(part) for part in node.parts]
        if kind == "apply":
            function, names = node.value
            return _apply(function, names, operands)
        return OPAQUE if operands[0] == OPAQUE else ["b", int(_truth(operands[0]) is (kind == "truth"))]

    def _first(self, parts: tuple[Node, ...], until: bool) -> Encoded:
        """The first operand whose truth is `until`, or the last one, as `or` and `and` give it."""
        value = OPAQUE
        for part in parts:
            value = self._value(part)
            if _truth(value) is until:
                break
        return value

    def _compare(self, node: Node) -> bool:
        left = self._value(node.parts[0])
        for op, part in zip(node.value, node.parts[1:], strict=True):
            right = self._value(part)
            if not _holds(op, left, right):
                return False
            left = right
        return True


def _apply(function: Callable[..., Any], names: tuple[str, ...], operands: list[Encoded]) -> Encoded:
    """Apply a function in the parent, on plain values only: the candidate's operators are never asked."""
    try:
        plain = [values.to_python(operand) for operand in operands]
    except ValueError:
        return OPAQUE
    if not all(map(_cheap, plain)):
        return OPAQUE
    positional = len(plain) - len(names)
    try:
        return values.encode(function(*plain[:positional], **dict(zip(names, plain[positional:], strict=True))))
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        raise TestFailure(error) from error


def _cheap(value: Any) -> bool:
    """False for a Decimal whose integer has millions of digits: `int` and `round` would write them out."""
    return not hasattr(value, "adjusted") or not value.is_finite() or abs(value.adjusted()) < 10_000


def _truth(value: Encoded) -> bool:
    if value[0] in "lkStDOC":
        return bool(value[1])
    return value != OPAQUE and bool(values.to_python(value))


def _holds(op: ast.cmpop, left: Encoded, right: Encoded) -> bool:
    """One comparison. An opaque operand makes it false, except that it certainly `is not` None, True or False."""
    if isinstance(op, ast.Is | ast.IsNot):
        if OPAQUE in (left, right) and not (left[0] in "nbe" or right[0] in "nbe"):
            return False
        return (left == right and left[0] in "nbei") is isinstance(op, ast.Is)
    if OPAQUE in (left, right):
        return False
    if isinstance(op, ast.Eq):
        return values.equal(left, right)
    if isinstance(op, ast.NotEq):
        return not values.equal(left, right)
    if isinstance(op, ast.In | ast.NotIn):
        return _contains(right, left) is isinstance(op, ast.In)
    ordered = _apply(_ORDERINGS[type(op)], (), [left, right])
    return ordered != OPAQUE and bool(values.to_python(ordered))


def _contains(container: Encoded, item: Encoded) -> bool:
    if container[0] in "ltkS":
        return any(values.equal(item, member) for member in container[1])
    if container[0] in "DOC":
        return any(values.equal(item, pair[0]) for pair in container[1])
    if container[0] == "r":  # for anything but an int, Python would walk the whole range
        whole = item[0] in "ib" or (item[0] == "f" and values.to_python(item).is_integer())
        return whole and int(values.to_python(item)) in values.to_python(container)
    if container[0] in "sy":
        return bool(_apply(operator.contains, (), [container, item])[-1] == 1)
    raise TestFailure(TypeError("argument of 'in' is no container"))
