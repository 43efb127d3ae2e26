"""The one shape of a task, whatever its source."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CodeTask:
    """A function to write, its visible assertions and a gold solution.

    `test_code` is the set-up code (if any) and the assertions, one a line, with a final newline.
    `text` is the wording of the task; `gold` a solution that passes; all three have LF line ends.
    """

    task_id: str
    text: str
    test_code: str
    gold: str
