"""Hand-written demonstrations, one for each family and some with a slip, and a data folder made of two of them."""

from dataclasses import replace
from pathlib import Path

from glyph.executor import Executor
from glyph.protocol import Label
from glyph.tasks.demonstrations import Demonstration, Family, State
from glyph.tasks.preparation import Prepared, write_data
from glyph.tasks.prompts import load_wording
from glyph.tasks.slips import Slip
from glyph.tasks.splits import Splits
from glyph.tasks.task import CodeTask

DOUBLE = CodeTask(
    "tiny-1",
    "Write a function double(n) that returns twice the number n.",
    "assert double(2) == 4\nassert double(-3) == -6\nassert double(0) == 0\n",
    "def double(n):\n    return 2 * n",
)
LARGEST = CodeTask(
    "tiny-2",
    "Write a function largest(numbers) that returns the largest of the numbers, and None when there are none.",
    "assert largest([1, 3, 2]) == 3\nassert largest([-5]) == -5\nassert largest([]) is None\n",
    "def largest(numbers):\n    if not numbers:\n        return None\n    return max(numbers)",
)

_WRONG = State(LARGEST.gold.replace("max(", "min(") + "\n", Label.ASSERTION_FAILURE)
_BOTH = State(_WRONG.source.replace("not numbers", "numbers"), Label.ASSERTION_FAILURE)
_GOLD = State(LARGEST.gold + "\n", Label.PASS)

DEMONSTRATIONS = {
    Family.DIRECT: Demonstration(DOUBLE, Family.DIRECT, (State(DOUBLE.gold + "\n", Label.PASS),)),
    Family.SHADOW: Demonstration(LARGEST, Family.SHADOW, (_WRONG, _GOLD)),
    Family.VISIBLE: Demonstration(LARGEST, Family.VISIBLE, (_WRONG, _GOLD)),
    Family.DEEP_SHADOW: Demonstration(LARGEST, Family.DEEP_SHADOW, (_BOTH, _WRONG, _GOLD)),
    Family.DEEP_VISIBLE: Demonstration(LARGEST, Family.DEEP_VISIBLE, (_BOTH, _WRONG, _GOLD)),
}

_MISQUOTED = Slip(0, "    return min(number)", "    return max(numbers)")
SLIPPED = {
    "visible": replace(DEMONSTRATIONS[Family.VISIBLE], slip=replace(_MISQUOTED, read=True)),
    "shadow": replace(DEMONSTRATIONS[Family.SHADOW], slip=_MISQUOTED),
}


def write_tiny_data(folder: Path, executor: Executor) -> None:
    """A data folder whose every split holds both tasks."""
    tasks = (DOUBLE, LARGEST)
    shown = [DEMONSTRATIONS[Family.DIRECT], DEMONSTRATIONS[Family.SHADOW]]
    prepared = Prepared("mini", {"name": "hand-written"}, Splits(tasks, tasks, tasks, tasks), shown, 0)
    write_data(prepared, folder, load_wording(), executor.run)
