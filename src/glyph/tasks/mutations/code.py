"""A Python source as text and tree at once: where each node stands, and the edits that change it in place.

Owns the position arithmetic. `ast` counts UTF-8 bytes, `tokenize` counts characters; here everything is an offset
in characters of the whole source. Knows nothing of what a good mutation is: that is `semantic.py` and `faults.py`.
"""

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from glyph.protocol import Label


class Kind(str, Enum):
    """What a mutation changes. The groups below say which outcome a kind aims at."""

    OPERATOR = "operator"  # + for -, // for /, a sign dropped, += for -=
    COMPARISON = "comparison"  # < for <=, == for !=, in for not in
    BOOLEAN = "boolean"  # and for or, `not` dropped or added, True for False
    BUILTIN = "builtin"  # min for max, any for all, upper for lower
    INTEGER = "integer"  # a literal one more or one less
    BOUND = "bound"  # the end of a range or a slice moved, a step dropped
    RETURN = "return"  # another variable returned
    ORDER = "order"  # sorted the other way round, operands or branches swapped
    UNWRAP = "unwrap"  # sorted(x) becomes x
    FILTER = "filter"  # the condition of a comprehension dropped
    FLOW = "flow"  # break for continue
    STRING = "string"  # an empty string becomes a space, and back
    NAME = "name"  # a name that nothing defines
    ATTRIBUTE = "attribute"  # a method or attribute that does not exist
    INDEX = "index"  # an index past the end
    ARGUMENT = "argument"  # the last argument left out
    IMPORT = "import"  # an import left out
    ZERO = "zero"  # a divisor of zero
    TYPE = "type"  # a number written as a string
    COLON = "colon"  # the colon of a header dropped
    BRACKET = "bracket"  # a closing bracket dropped
    INDENT = "indent"  # a line indented by one column
    ASSIGN = "assign"  # = for ==
    STALL = "stall"  # a loop that never advances
    ENDLESS = "endless"  # while True, or `while` for `if`


RUNTIME_KINDS = frozenset({Kind.NAME, Kind.ATTRIBUTE, Kind.INDEX, Kind.ARGUMENT, Kind.IMPORT, Kind.ZERO, Kind.TYPE})
SYNTAX_KINDS = frozenset({Kind.COLON, Kind.BRACKET, Kind.INDENT, Kind.ASSIGN})
TIMEOUT_KINDS = frozenset({Kind.STALL, Kind.ENDLESS})
SEMANTIC_KINDS = frozenset(Kind) - RUNTIME_KINDS - SYNTAX_KINDS - TIMEOUT_KINDS


def aim(kind: Kind) -> Label:
    """The outcome that mutations of this kind are made for; what really happens is the executor's to say."""
    if kind in RUNTIME_KINDS:
        return Label.RUNTIME_ERROR
    if kind in SYNTAX_KINDS:
        return Label.SYNTAX_ERROR
    return Label.TIMEOUT if kind in TIMEOUT_KINDS else Label.ASSERTION_FAILURE


@dataclass(frozen=True)
class Edit:
    """Replace the characters [start, end) of the source by `text`."""

    kind: Kind
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Token:
    text: str
    start: int
    end: int


class Code:
    """A parsed source with offsets.

    Raises:
        SyntaxError: the source does not compile.
        ValueError: the source has carriage returns or NUL characters (normalise line ends first).
    """

    def __init__(self, source: str) -> None:
        if "\r" in source:
            raise ValueError("a source to mutate must have LF line ends, got a carriage return")
        self.source = source
        self.tree = parse(source)
        self._lines = source.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.tokens = self._read_tokens()
        self._token_starts = [token.start for token in self.tokens]
        self.words = frozenset(re.findall(r"\w+", source))
        self.nodes = tuple(_walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.start(node) : self.end(node)]

    def line_number(self, offset: int) -> int:
        """The 1-based line of an offset."""
        return bisect_right(self._starts, offset)

    def line_text(self, number: int) -> str:
        return self._lines[number - 1]

    def line_start(self, number: int) -> int:
        return self._starts[number - 1]

    def between(self, start: int, end: int) -> list[Token]:
        """The operator and name tokens that start in [start, end), in order."""
        return self.tokens[bisect_left(self._token_starts, start) : bisect_left(self._token_starts, end)]

    def before(self, offset: int) -> Token | None:
        """The last operator, name, number or string token that starts before the offset."""
        place = bisect_left(self._token_starts, offset)
        return self.tokens[place - 1] if place else None

    def find(self, start: int, end: int, *texts: str) -> Token | None:
        """The first run of tokens in [start, end) that reads `texts`, as one token."""
        tokens = self.between(start, end)
        for i in range(len(tokens) - len(texts) + 1):
            run = tokens[i : i + len(texts)]
            if all(token.text == text for token, text in zip(run, texts, strict=True)):
                return Token(" ".join(texts), run[0].start, run[-1].end)
        return None

    def replace(self, kind: Kind, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(kind, self.start(node), self.end(node), text)

    def apply(self, edit: Edit) -> str:
        return self.source[: edit.start] + edit.text + self.source[edit.end :]

    def _offset(self, line: int, column_bytes: int) -> int:
        text = self._lines[line - 1]
        column = column_bytes if text.isascii() else len(text.encode()[:column_bytes].decode())
        return self._starts[line - 1] + column

    def _read_tokens(self) -> list[Token]:
        f_string_end = getattr(tokenize, "FSTRING_END", None)  # from 3.12 on; before, an f-string is one STRING
        kept = (tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING, f_string_end)
        found = tokenize.generate_tokens(io.StringIO(self.source).readline)
        return [
            Token(t.string, self._starts[t.start[0] - 1] + t.start[1], self._starts[t.end[0] - 1] + t.end[1])
            for t in found
            if t.type in kept
        ]


Rule = Callable[[ast.AST, Code], Iterator[Edit]]
"""Yields the edits that one node offers; called once for every node of `Code.nodes`."""


def parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "solution.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, parents first, without docstrings, annotations and what stands inside f-strings.

    Python 3.11 has no right positions inside f-strings, and 3.12 would offer other mutations than 3.11.
    """
    yield node
    if isinstance(node, ast.JoinedStr):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_docstring(child):
                yield from _walk(child)


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is nothing but a string (a docstring, or a comment written as one)."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
