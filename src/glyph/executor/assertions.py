"""Test code → steps: what is run in the candidate's process, and what only the parent ever sees.

The parent parses the tests. A statement that is no assertion is run by the candidate's process as it is. An
assertion is taken apart: calls go to the candidate's process one at a time, and every comparison, truth value and
literal stays here. `Evaluator` walks one assertion in Python's order of evaluation.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from glyph.executor import values
from glyph.executor.values import OPAQUE, Encoded


class TestCodeError(ValueError):
    """The test code itself is unusable: a fault of the task, not of a candidate."""

    __test__ = False


@dataclass(frozen=True)
class Step:
    """One statement of the tests. `condition` is the asserted expression, None for a plain statement."""

    index: int
    source: str
    condition: ast.expr | None


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
        TestCodeError: it does not parse, or holds no assertion.
    """
    try:
        body = ast.parse(tests).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TestCodeError(f"test code does not parse: {error}") from error
    steps = tuple(
        Step(i, ast.unparse(node), node.test if isinstance(node, ast.Assert) else None) for i, node in enumerate(body)
    )
    if not any(step.condition for step in steps):
        raise TestCodeError("test code holds no assertion")
    return steps


def unknown_rights(steps: tuple[Step, ...]) -> list[str]:
    """The right-hand sides that are no literals: they are evaluated once in a process without the candidate."""
    found = []
    for step in steps:
        for node in ast.walk(step.condition) if step.condition else ():
            if isinstance(node, ast.Compare) and literal(node.left) is None:
                found += [ast.unparse(right) for right in node.comparators if literal(right) is None]
    return list(dict.fromkeys(found))


def literal(node: ast.expr) -> Encoded | None:
    """The encoded value of a literal expression, None when it is no literal."""
    try:
        value = values.encode(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return None if value == OPAQUE else value


_ORDERINGS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {ast.Add: operator.add, ast.Sub: operator.sub}
_BUILTINS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": bool,
    "float": float,
    "int": int,
    "list": list,
    "round": round,
    "sorted": sorted,
    "tuple": tuple,
}


class Evaluator:
    """Evaluates one asserted expression; `ask` gets an expression's value from the candidate's process.

    `rights` maps the source of a non-literal right-hand side to its value from the clean process; a source that is
    not in it could not be evaluated there (it needs the candidate), so that the candidate's value stands.
    """

    def __init__(self, ask: Callable[[str], Encoded], rights: dict[str, Encoded]) -> None:
        self._ask = ask
        self._rights = rights

    def holds(self, node: ast.expr) -> bool:
        """Whether the expression is true.

        Raises:
            TestFailure: an operation in the test raised.
        """
        if isinstance(node, ast.BoolOp):
            parts = (self.holds(part) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.value(node.operand) != OPAQUE and not self.holds(node.operand)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        return _truth(self.value(node))

    def _compare(self, node: ast.Compare) -> bool:
        left, of_candidate = self.value(node.left), literal(node.left) is None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._right(right_node) if of_candidate else self.value(right_node)
            if not _holds(op, left, right):
                return False
            left = right
        return True

    def _right(self, node: ast.expr) -> Encoded:
        known = literal(node)
        if known is not None:
            return known
        asked = self.value(node)  # for the exception that it may raise where the candidate lives
        return self._rights.get(ast.unparse(node), asked)

    def value(self, node: ast.expr) -> Encoded:
        """The value of an operand: a literal, a builtin applied here to the candidate's values, or theirs."""
        known = literal(node)
        if known is not None:
            return known
        if isinstance(node, ast.BoolOp | ast.Compare):
            return ["b", int(self.holds(node))]
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _apply(_ARITHMETIC[type(node.op)], [self.value(node.left), self.value(node.right)])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
            if not node.keywords and not any(isinstance(arg, ast.Starred) for arg in node.args):
                return _apply(_BUILTINS[node.func.id], [self.value(arg) for arg in node.args])
        return self._ask(ast.unparse(node))


def _apply(function: Callable[..., Any], operands: list[Encoded]) -> Encoded:
    """Apply a builtin in the parent, on plain values only: the candidate's operators are never asked."""
    try:
        plain = [values.to_python(operand) for operand in operands]
    except ValueError:
        return OPAQUE
    try:
        return values.encode(function(*plain))
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        raise TestFailure(error) from error


def _truth(value: Encoded) -> bool:
    if value[0] in "lkStDOC":
        return bool(value[1])
    try:
        return bool(values.to_python(value))
    except ValueError:
        return False


def _holds(op: ast.cmpop, left: Encoded, right: Encoded) -> bool:
    if OPAQUE in (left, right):
        return False
    if isinstance(op, ast.Eq):
        return values.equal(left, right)
    if isinstance(op, ast.NotEq):
        return not values.equal(left, right)
    if isinstance(op, ast.Is | ast.IsNot):
        same = left[0] == right[0] and left[0] in "nbe" and left == right
        return same is isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn):
        return _contains(right, left) is isinstance(op, ast.In)
    ordered = _apply(_ORDERINGS[type(op)], [left, right])
    return ordered != OPAQUE and bool(values.to_python(ordered))


def _contains(container: Encoded, item: Encoded) -> bool:
    if container[0] == "s" and item[0] == "s":
        return item[1] in container[1]
    if container[0] in "ltkS":
        return any(values.equal(item, member) for member in container[1])
    if container[0] in "DOC":
        return any(values.equal(item, pair[0]) for pair in container[1])
    raise TestFailure(TypeError("argument of 'in' is no container"))
