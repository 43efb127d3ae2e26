"""The documents of the pre-training text that change code: reviews, repairs, and conversations of several turns.

All are in a dress of their own: JSON records with the keys of `EDIT_KEYS`, answers of one line, rising numbers. None
is a turn of the agent. A faulty candidate is always given, never asked for.
"""

import json
from collections.abc import Iterator, Sequence
from random import Random

from glyph.tasks.mini.pretraining_documents import (
    EDIT_KEYS,
    EMPTY,
    FILES,
    Document,
    chat,
    edit,
    opening,
    statement,
    verdict,
)
from glyph.tasks.mini.pretraining_faults import Fault
from glyph.tasks.mini.pretraining_samples import Sample
from glyph.tasks.mutations import line_edit

Message = tuple[str, str, bool]
ENDINGS = ("Done.", "All tests hold.", "It works now.")
SAVED = ("saved", "written", "ok")
WHOLE_SHARE = 0.15
"""The share of repairs that replace the whole file instead of the lines that differ."""


def change(old: str, new: str, rng: Random) -> tuple[str, str]:
    """(old text, new text) of the edit from one source to another: the fewest whole lines, or all."""
    return (old, new) if rng.random() < WHOLE_SHARE else line_edit(old, new)


def review(sample: Sample, rng: Random) -> Document | None:
    """A candidate that nobody ran: the verdict and, where it is wrong, the edit."""
    fault = sample.fault(rng)
    path = rng.choice(FILES)
    if fault is None or rng.random() < 0.4:
        user = statement(sample, rng, f"{path}:\n{sample.code}", "Mend it if it is wrong.")
        return chat(*opening(rng, user), ("assistant", "all hold", True))
    user = statement(sample, rng, f"{path}:\n{fault.source}", "Mend it if it is wrong.")
    mend = edit(1, path, *change(fault.source, sample.code, rng), keys=rng.choice(EDIT_KEYS))
    return chat(*opening(rng, user), ("assistant", f"{verdict(sample, fault.outcomes)}\n{mend}", True))


def repair(sample: Sample, rng: Random) -> Document | None:
    """A candidate that is known to fail: the edit, then the code as it stands after it."""
    fault = sample.fault(rng)
    if fault is None:
        return None
    path = rng.choice(FILES)
    told = verdict(sample, fault.outcomes) if rng.random() < 0.5 else "It does not pass."
    user = statement(sample, rng, f"{path}:\n{fault.source}", told)
    mend = edit(rng.randint(1, 8), path, *change(fault.source, sample.code, rng), keys=rng.choice(EDIT_KEYS))
    after = [("user", f"Show {path}.", False), ("assistant", sample.code, True)] if rng.random() < 0.25 else []
    return chat(*opening(rng, user), ("assistant", mend, True), *after)


def conversation(sample: Sample, rng: Random) -> Document | None:
    """Numbered steps with answers: write, run, mend after a failed run or before any, run again, end."""
    faults = [fault for fault in (sample.fault(rng) for _ in range(_fault_count(rng))) if fault]
    sources = [fault.source for fault in faults] + [sample.code]
    if len(set(sources)) < len(sources):
        return None
    path, empty, keys = rng.choice(FILES), rng.choice(EMPTY), rng.choice(EDIT_KEYS)
    user = statement(sample, rng, f"{path} now holds:\n{empty}")
    turns = _turns(sample, faults, (path, empty, keys), rng)
    return chat(*opening(rng, user), *turns, ("assistant", rng.choice(ENDINGS), True))


def _fault_count(rng: Random) -> int:
    return rng.choices((0, 1, 2), (0.4, 0.42, 0.18))[0]


def _turns(
    sample: Sample, faults: Sequence[Fault], look: tuple[str, str, Sequence[str]], rng: Random
) -> Iterator[Message]:
    path, before, keys = look
    saved = rng.choice(SAVED)
    number = rng.randint(1, 5) if rng.random() < 0.3 else 1
    for place in range(len(faults) + 1):
        fault = faults[place] if place < len(faults) else None
        source = fault.source if fault else sample.code
        old, new = (before, source) if place == 0 else change(before, source, rng)
        yield "assistant", edit(number, path, old, new, keys), fault is None
        yield "tool", f"{number}: {saved}", False
        number += 1
        before = source
        if fault and rng.random() < 0.4:
            continue
        yield "assistant", json.dumps({keys[0]: str(number), "run": "tests"}), fault is None
        yield "tool", f"{number}: {_told(sample, fault, rng)}", False
        number += 1


def _told(sample: Sample, fault: Fault | None, rng: Random) -> str:
    """What a run says: mostly just how it ended."""
    if fault is None:
        return "all hold"
    told = verdict(sample, fault.outcomes)
    return told if rng.random() < 0.2 or not told.startswith("wrong") else "a test does not hold"
