"""Mutations for the other outcome classes: programs that raise, that do not compile, that never end.

Each rule looks at one node and yields edits; the caller keeps a runtime or timeout edit only if it compiles and a
syntax edit only if it does not.
"""

import ast
import builtins
import keyword
from collections.abc import Iterator

from glyph.tasks.mutations import tables
from glyph.tasks.mutations.code import Code, Edit, Kind, Rule, is_docstring

_MAX_SUBJECT_CHARACTERS = 24


def names(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Misspell a name where it is read, so that nothing defines it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for wrong in (_plural(node.id), f"{node.id}_value"):
            if wrong not in code.words and not keyword.iskeyword(wrong) and not hasattr(builtins, wrong):
                yield code.replace(Kind.NAME, node, wrong)
                return


def attributes(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        end = code.end(node)
        wrong = tables.WRONG_ATTRIBUTES.get(node.attr, _plural(node.attr))
        if code.source[end - len(node.attr) : end] == node.attr:
            yield Edit(Kind.ATTRIBUTE, end - len(node.attr), end, wrong)


def indices(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Read one past the end: x[len(x)]."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Slice):
        subject = code.text(node.value)
        if isinstance(node.value, ast.Name | ast.Subscript) and len(subject) <= _MAX_SUBJECT_CHARACTERS:
            yield code.replace(Kind.INDEX, node.slice, f"len({subject})")


def arguments(node: ast.AST, code: Code) -> Iterator[Edit]:
    if not isinstance(node, ast.Call) or not node.args:
        return
    last = node.args[-1]
    if isinstance(last, ast.GeneratorExp | ast.Starred):
        return
    start = code.end(node.args[-2]) if len(node.args) > 1 else code.start(last)
    yield Edit(Kind.ARGUMENT, start, code.end(last), "")


def imports(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Leave out an import that has a line of its own."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        line = code.line_number(code.start(node))
        start, end = code.line_start(line), code.end(node)
        if code.source[start : end + 1].strip() == code.text(node) and end < len(code.source):
            yield Edit(Kind.IMPORT, start, end + 1, "")


def zeros(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
        right = node.right
        if isinstance(right, ast.Constant) and isinstance(right.value, int) and right.value:
            yield code.replace(Kind.ZERO, right, "0")


def types(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Write a number that is added, subtracted or ordered as a string."""
    operands: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.FloorDiv | ast.Div):
        operands = [node.left, node.right]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        operands = [node.left, *node.comparators]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        operands = [node.value]
    for operand in operands:
        if isinstance(operand, ast.Constant) and type(operand.value) is int:
            yield code.replace(Kind.TYPE, operand, f'"{operand.value}"')


def colons(node: ast.AST, code: Code) -> Iterator[Edit]:
    body = getattr(node, "body", None)
    if isinstance(node, ast.stmt) and isinstance(body, list):
        token = code.before(code.start(body[0]))
        if token and token.text == ":":
            yield Edit(Kind.COLON, token.start, token.end, "")


def brackets(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Call | ast.Subscript | ast.List | ast.ListComp):
        end = code.end(node)
        yield Edit(Kind.BRACKET, end - 1, end, "")


def indents(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Indent a statement by one column, or bring the first one of a block back to the margin of its header."""
    body = getattr(node, "body", None)
    if not isinstance(node, ast.stmt) or not isinstance(body, list):
        return
    for statement in body:
        offset = code.start(statement)
        line = code.line_number(offset)
        start = code.line_start(line)
        if code.source[start:offset].strip():
            continue
        if statement is body[0]:
            header = code.line_text(code.line_number(code.start(node)))
            margin = header[: len(header) - len(header.lstrip())]
            yield Edit(Kind.INDENT, start, offset, margin)
        else:
            yield Edit(Kind.INDENT, offset, offset, " ")


def assignments(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        token = code.find(code.end(node.left), code.start(node.comparators[0]), "==")
        if token:
            yield Edit(Kind.ASSIGN, token.start, token.end, "=")


def stalls(node: ast.AST, code: Code) -> Iterator[Edit]:
    """Replace the statement of a while loop that changes a name of its condition by `pass`."""
    if not isinstance(node, ast.While):
        return
    watched = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    for statement in (s for part in node.body for s in ast.walk(part)):
        targets: list[ast.expr] = []
        if isinstance(statement, ast.AugAssign):
            targets = [statement.target]
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        if watched & {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}:
            assert isinstance(statement, ast.stmt)
            yield code.replace(Kind.STALL, statement, "pass")


def endless_loops(node: ast.AST, code: Code) -> Iterator[Edit]:
    if isinstance(node, ast.While) and not _leaves(node):
        yield code.replace(Kind.ENDLESS, node.test, "True")
    if isinstance(node, ast.If) and not node.orelse and all(_counts(statement) for statement in node.body):
        start = code.start(node)
        if code.source.startswith("if", start):
            yield Edit(Kind.ENDLESS, start, start + 2, "while")
    if isinstance(node, ast.FunctionDef):
        yield from _spin(node, code)


def _spin(function: ast.FunctionDef, code: Code) -> Iterator[Edit]:
    """Put a `while True` that does nothing in front of the first statement of a function."""
    first = next((statement for statement in function.body if not is_docstring(statement)), None)
    if first is None:
        return
    offset = code.start(first)
    margin = code.source[code.line_start(code.line_number(offset)) : offset]
    if not margin.strip():
        deeper = margin + ("\t" if margin.endswith("\t") else "    ")
        yield Edit(Kind.ENDLESS, offset, offset, f"while True:\n{deeper}pass\n{margin}")


def _leaves(loop: ast.While) -> bool:
    return any(isinstance(n, ast.Break | ast.Return | ast.Raise) for part in loop.body for n in ast.walk(part))


def _counts(statement: ast.stmt) -> bool:
    """Whether a statement only adds or subtracts a number: repeated for ever, it takes time but no memory."""
    return (
        isinstance(statement, ast.AugAssign)
        and isinstance(statement.op, ast.Add | ast.Sub)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, int)
    )


def _plural(name: str) -> str:
    return name[:-1] if name.endswith("s") and len(name) > 2 else name + "s"


RULES: tuple[Rule, ...] = (
    names,
    attributes,
    indices,
    arguments,
    imports,
    zeros,
    types,
    colons,
    brackets,
    indents,
    assignments,
    stalls,
    endless_loops,
)
