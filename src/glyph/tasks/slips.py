"""Patches that do not apply, as an agent makes them: its `find` is not in the file, or is there more than once.

States of a solution go in, edits that fail at one of them come out, tried on a real workspace. Which demonstration
shows which of them is planned in `demonstrations.py`.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from glyph.tasks.mutations import SEMANTIC_KINDS, line_edit, mutations
from glyph.workspace import SOLUTION_PATH, Workspace


class SlipKind(str, Enum):
    """How the agent came to a `find` that names no single place."""

    MISQUOTED = "misquoted"  # it quotes the line with one small difference
    WORDS = "words"  # it quotes the changed words without their line, and they stand in several places
    STALE = "stale"  # it quotes the file as it was before its last patch


@dataclass(frozen=True)
class Slip:
    """A patch that fails where states[step] is to be mended; then the right one follows.

    `read` says that the agent looks at the file before it patches again.
    """

    step: int
    find: str
    replace: str
    read: bool = False


def failing_edits(states: Sequence[str]) -> Iterator[tuple[SlipKind, Slip]]:
    """What could be tried instead of the edits that lead from each source to the next, and really fails."""
    for step, (present, mended) in enumerate(itertools.pairwise(states)):
        workspace = Workspace({SOLUTION_PATH: present})
        for kind, (find, replace) in _edits(states[step - 1] if step else None, present, mended):
            if find and find != replace and not workspace.apply_patch(SOLUTION_PATH, find, replace).success:
                yield kind, Slip(step, find, replace)
                workspace = Workspace({SOLUTION_PATH: present})


def _edits(earlier: str | None, present: str, mended: str) -> Iterator[tuple[SlipKind, tuple[str, str]]]:
    if earlier is not None and earlier != mended:
        yield SlipKind.STALE, line_edit(earlier, mended)
    find, replace = line_edit(present, mended)
    yield SlipKind.WORDS, _changed_words(find, replace)
    first = present[: present.index(find)].count("\n") + 1
    lines = range(first, first + find.count("\n") + 1)
    for mutation in mutations(present, SEMANTIC_KINDS):
        if mutation.line in lines and mutation.source != mended:
            yield SlipKind.MISQUOTED, line_edit(mutation.source, mended)


def _changed_words(before: str, after: str) -> tuple[str, str]:
    old, new = before.split(" "), after.split(" ")
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    return " ".join(old[head : len(old) - tail]), " ".join(new[head : len(new) - tail])


def _common(one: list[str], other: list[str]) -> int:
    """How many items the two begin with alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
