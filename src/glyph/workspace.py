"""The editable project of a rollout, in memory, and the two tools that work on it.

Nothing here touches a disk: the program loads the files once and writes back what changed at the end, so that no
turn of a model can leave a truncated file or reach a path outside.
"""

import posixpath
from dataclasses import dataclass, field

SOLUTION_PATH = "solution.py"
PROJECT_PATH = "."
PLACEHOLDER = "# Write the solution here.\n"
MAX_READ_CHARACTERS = 8_000
MAX_FILE_CHARACTERS = 200_000


@dataclass(frozen=True)
class Answer:
    """What a tool says back."""

    success: bool
    text: str


@dataclass
class Workspace:
    """Files of the project by normalised relative path."""

    files: dict[str, str] = field(default_factory=lambda: {SOLUTION_PATH: PLACEHOLDER})

    @property
    def solution(self) -> str:
        return self.files.get(SOLUTION_PATH, "")

    def read_file(self, path: str) -> Answer:
        text = self.files.get(path)
        return _missing(path) if text is None else Answer(True, text[:MAX_READ_CHARACTERS])

    def apply_patch(self, path: str, find: str, replace: str) -> Answer:
        """Replace the one occurrence of `find`; overlapping occurrences count as several."""
        text = self.files.get(path)
        if text is None:
            return _missing(path)
        fault = _find_fault(text, find)
        if fault:
            return Answer(False, f"patch failed: find {fault} in {path}, it must occur exactly once")
        patched = text.replace(find, replace)
        if len(patched) > MAX_FILE_CHARACTERS:
            return Answer(False, f"patch failed: {path} would exceed {MAX_FILE_CHARACTERS} characters")
        self.files[path] = patched
        return Answer(True, "patch applied")


def _missing(path: str) -> Answer:
    return Answer(False, f"no such file: {path}")


def _find_fault(text: str, find: str) -> str | None:
    """What keeps `find` from naming one place; overlapping occurrences are several, an empty text is everywhere."""
    first = text.find(find)
    if first < 0:
        return "does not occur"
    return "occurs more than once" if not find or text.find(find, first + 1) >= 0 else None


def normalise_path(path: str) -> str | None:
    """A path inside the workspace in normal form; None when it is absolute, leaves the workspace or is no path."""
    if not path or "\0" in path or path.startswith(("/", "~")) or "\\" in path or "\n" in path or len(path) > 255:
        return None
    normal = posixpath.normpath(path)
    return None if normal == ".." or normal.startswith("../") else normal
