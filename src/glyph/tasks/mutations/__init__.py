"""One-step mutations of a Python source, in a fixed order, and the line edit that a patch needs to make one.

A source goes in, a list of `Mutation` comes out: an edit in place that leaves formatting and comments alone. There
is no randomness here (callers choose by hash) and nothing is executed: whether a mutation really fails, and how, is
the executor's to say. Semantic, runtime and timeout kinds always compile, syntax kinds never do.
"""

from collections.abc import Collection
from dataclasses import dataclass

from glyph.protocol import Label
from glyph.tasks.mutations import faults, semantic
from glyph.tasks.mutations.code import (
    RUNTIME_KINDS,
    SEMANTIC_KINDS,
    SYNTAX_KINDS,
    TIMEOUT_KINDS,
    Code,
    Edit,
    Kind,
    aim,
    compiles,
)
from glyph.tasks.mutations.lines import line_edit

__all__ = [
    "RUNTIME_KINDS",
    "SEMANTIC_KINDS",
    "SYNTAX_KINDS",
    "TIMEOUT_KINDS",
    "Kind",
    "Mutation",
    "compiles",
    "line_edit",
    "mutations",
]


@dataclass(frozen=True)
class Mutation:
    """One mutated source.

    `find` and `replace` are the whole-line edit from the original to `source`; `find` occurs there exactly once.
    `line` is the 1-based line of the original where the change begins, `before` and `after` the characters changed.
    """

    kind: Kind
    source: str
    find: str
    replace: str
    line: int
    before: str
    after: str

    @property
    def aim(self) -> Label:
        """The outcome that this kind of mutation is made for, which the executor need not confirm."""
        return aim(self.kind)


def mutations(source: str, kinds: Collection[Kind] | None = None) -> list[Mutation]:
    """All one-step mutations of a source, by place, without duplicates; `kinds` None means every kind.

    Raises:
        SyntaxError: the source does not compile.
        ValueError: the source has a carriage return or a NUL.
    """
    code = Code(source)
    edits = [edit for rule in (*semantic.RULES, *faults.RULES) for node in code.nodes for edit in rule(node, code)]
    wanted = [edit for edit in edits if kinds is None or edit.kind in kinds]
    found: dict[str, Mutation] = {}
    for edit in sorted(wanted, key=lambda edit: (edit.start, edit.end)):
        mutated = code.apply(edit)
        if mutated in found or mutated == source or compiles(mutated) is (edit.kind in SYNTAX_KINDS):
            continue
        found[mutated] = _describe(code, edit, mutated)
    return list(found.values())


def _describe(code: Code, edit: Edit, mutated: str) -> Mutation:
    find, replace = line_edit(code.source, mutated)
    before = code.source[edit.start : edit.end]
    return Mutation(edit.kind, mutated, find, replace, code.line_number(edit.start), before, edit.text)
