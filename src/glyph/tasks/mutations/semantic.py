"""Mutations that leave a program running and make it wrong: an operator, a comparison, a bound, a returned name.

Each rule looks at one node and yields edits. A rule may offer an edit that does not compile; the caller drops it.
"""

import ast
from collections.abc import Iterator

from glyph.tasks.mutations import tables
from glyph.tasks.mutations.code import Code, Edit, Kind, Rule

_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Subscript, ast.Attribute, ast.List, ast.ListComp, ast.Dict, ast.Set)
_MAX_INTEGER = 10**15


def binary_operators(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp):
        symbol, others = tables.BINARY.get(type(node.op), ("", ()))
        token = code.find(code.end(node.left), code.start(node.right), symbol)
        if token:
            yield from (Edit(Kind.OPERATOR, token.start, token.end, other) for other in others)
    if isinstance(node, ast.AugAssign):
        symbol, others = tables.BINARY.get(type(node.op), ("", ()))
        token = code.find(code.end(node.target), code.start(node.value), symbol + "=")
        if token:
            yield from (Edit(Kind.OPERATOR, token.start, token.end, other + "=") for other in others)


def signs(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Drop the minus in front of anything but a number."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not _is_integer(node.operand):
        start = code.start(node)
        glued = start > 0 and code.source[start - 1].isalnum()
        yield Edit(Kind.OPERATOR, start, start + 1, " " if glued else "")


def comparisons(node: ast.AST, code: Code) -> Iterator[Edit]:
    if not isinstance(node, ast.Compare):
        return
    left: ast.expr = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        symbol, others = tables.COMPARISONS[type(operator)]
        token = code.find(code.end(left), code.start(right), *symbol.split())
        if token:
            yield from (Edit(Kind.COMPARISON, token.start, token.end, other) for other in others)
        left = right


def booleans(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield code.replace(Kind.BOOLEAN, node, str(not node.value))
    if isinstance(node, ast.BoolOp):
        symbol, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            token = code.find(code.end(left), code.start(right), symbol)
            if token:
                yield Edit(Kind.BOOLEAN, token.start, token.end, other)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start = code.start(node)
        rest = code.source[start + 3 :]
        yield Edit(Kind.BOOLEAN, start, start + 3 + len(rest) - len(rest.lstrip(" \t")), "")


def conditions(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Put `not` in front of a condition that has no operator of its own to turn round."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        tests.append(node.test)
    if isinstance(node, ast.comprehension):
        tests += node.ifs
    for test in tests:
        if isinstance(test, ast.Name | ast.Call | ast.Attribute | ast.Subscript | ast.BinOp):
            start = code.start(test)
            yield Edit(Kind.BOOLEAN, start, start, "not ")


def builtins(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for other in tables.FUNCTIONS.get(node.id, ()):
            yield code.replace(Kind.BUILTIN, node, other)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        end = code.end(node)
        for other in tables.METHODS.get(node.attr, ()):
            if code.source[end - len(node.attr) : end] == node.attr:
                yield Edit(Kind.BUILTIN, end - len(node.attr), end, other)


def integers(node: ast.AST, code: Code) -> Iterator[Edit]:
    """An integer literal one more and one less; a minus sign counts as part of it."""
    value = _integer(node)
    parent = code.parents.get(node)
    if value is None or (isinstance(parent, ast.UnaryOp) and _integer(parent) is not None):
        return
    assert isinstance(node, ast.expr)
    yield code.replace(Kind.INTEGER, node, str(value + 1))
    yield code.replace(Kind.INTEGER, node, str(value - 1))


def bounds(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Move the end of a range or a slice by one; drop a step; start a range at one."""
    ends: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        ends = node.args[:2]
        if len(ends) == 1:
            yield Edit(Kind.BOUND, code.start(ends[0]), code.start(ends[0]), "1, ")
        if len(node.args) == 3:
            yield Edit(Kind.BOUND, code.end(node.args[1]), code.end(node.args[2]), "")
    if isinstance(node, ast.Slice):
        ends = [end for end in (node.lower, node.upper) if end]
        yield from _slice_ends(node, code)
    for end in ends:
        yield from _moved(end, code)


def _moved(end: ast.expr, code: Code) -> Iterator[Edit]:
    if isinstance(end, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
        yield Edit(Kind.BOUND, code.end(end), code.end(end), " + 1")
        yield Edit(Kind.BOUND, code.end(end), code.end(end), " - 1")
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Add | ast.Sub) and _is_integer(end.right):
        yield Edit(Kind.BOUND, code.end(end.left), code.end(end.right), "")


def _slice_ends(node: ast.Slice, code: Code) -> Iterator[Edit]:
    start, end = code.start(node), code.end(node)  # type: ignore[arg-type]
    if node.step:
        text = code.text(node.step)
        yield code.replace(Kind.BOUND, node.step, "1" if text.startswith("-") else "-" + text)
        return
    if node.lower is None:
        yield Edit(Kind.BOUND, start, start, "1")
    if node.upper is None:
        yield Edit(Kind.BOUND, end, end, "-1")


def returns(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Return another variable of the same function: the parameters and whatever is assigned in it."""
    if not isinstance(node, ast.FunctionDef):
        return
    own = list(_own_nodes(node))
    names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]]
    names += [n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for found in own:
        if isinstance(found, ast.Return) and isinstance(found.value, ast.Name):
            for name in dict.fromkeys(names):
                if name != found.value.id:
                    yield code.replace(Kind.RETURN, found.value, name)


def orders(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and not any(keyword.arg == "reverse" for keyword in node.keywords):
        sorting = isinstance(node.func, ast.Name) and node.func.id == "sorted" and node.args
        if sorting or (isinstance(node.func, ast.Attribute) and node.func.attr == "sort"):
            end = code.end(node) - 1
            yield Edit(Kind.ORDER, end, end, ", reverse=True" if node.args or node.keywords else "reverse=True")
    if isinstance(node, ast.Call) and len(node.args) == 2 and not _is_range(node):
        yield from _swap(node.args[0], node.args[1], code)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow):
        yield from _swap(node.left, node.right, code)
    if isinstance(node, ast.IfExp):
        yield from _swap(node.body, node.orelse, code)


def unwrapping(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in tables.UNWRAPPED:
        place = -1 if node.func.id == "map" else 0
        inner = node.args[place] if node.args else None
        if inner is not None and not isinstance(inner, ast.Starred):
            text = code.text(inner)
            bare = isinstance(inner, _ATOMS) or text.startswith("(")
            yield code.replace(Kind.UNWRAP, node, text if bare else f"({text})")


def filters(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Drop the condition of a comprehension, from its `if` to its end."""
    if not isinstance(node, ast.comprehension):
        return
    for test in node.ifs:
        word = code.before(code.start(test))
        if word and word.text == "if":
            left = code.before(word.start)
            yield Edit(Kind.FILTER, left.end if left else word.start, code.end(test), "")


def flow(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Break):
        yield code.replace(Kind.FLOW, node, "continue")
    if isinstance(node, ast.Continue):
        yield code.replace(Kind.FLOW, node, "break")


def strings(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        other = tables.STRINGS.get(code.text(node))
        if other is not None:
            yield code.replace(Kind.STRING, node, other)


def _swap(left: ast.expr, right: ast.expr, code: Code) -> Iterator[Edit]:
    if isinstance(left, _ATOMS) and isinstance(right, _ATOMS) and code.end(left) <= code.start(right):
        middle = code.source[code.end(left) : code.start(right)]
        yield Edit(Kind.ORDER, code.start(left), code.end(right), code.text(right) + middle + code.text(left))


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions, lambdas and comprehensions inside it, in source order."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    scopes = (*inner, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, scopes):
            stack += reversed(list(ast.iter_child_nodes(node)))


def _is_range(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "range"


def _is_integer(node: ast.AST) -> bool:
    return _integer(node) is not None


def _integer(node: ast.AST | None) -> int | None:
    """The value of an integer literal, with its sign; None for anything else and for huge ones."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = _integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value if abs(node.value) <= _MAX_INTEGER else None
    return None


RULES: tuple[Rule, ...] = (
    binary_operators,
    signs,
    comparisons,
    booleans,
    conditions,
    builtins,
    integers,
    bounds,
    returns,
    orders,
    unwrapping,
    filters,
    flow,
    strings,
)
