"""The project in memory: exactly one place for a patch, and no path out."""

import pytest

from glyph.workspace import (
    MAX_FILE_CHARACTERS,
    MAX_READ_CHARACTERS,
    PLACEHOLDER,
    SOLUTION_PATH,
    Answer,
    Workspace,
    normalise_path,
)

PATCHED = Answer(True, "patch applied")


def test_a_project_begins_with_one_line() -> None:
    workspace = Workspace()
    assert workspace.files == {"solution.py": PLACEHOLDER}
    assert PLACEHOLDER.count("\n") == 1
    assert PLACEHOLDER.startswith("#")
    assert workspace.read_file(SOLUTION_PATH) == Answer(True, PLACEHOLDER)


def test_a_read_gives_at_most_8000_characters() -> None:
    workspace = Workspace({SOLUTION_PATH: "é" * 8_001})
    assert workspace.read_file(SOLUTION_PATH).text == "é" * MAX_READ_CHARACTERS
    assert MAX_READ_CHARACTERS == 8_000


def test_a_patch_replaces_the_one_place() -> None:
    workspace = Workspace({SOLUTION_PATH: "a = 1\nb = 2\n"})
    assert workspace.apply_patch(SOLUTION_PATH, "b = 2", "b = 3\nc = 4") == PATCHED
    assert workspace.solution == "a = 1\nb = 3\nc = 4\n"
    assert workspace.apply_patch(SOLUTION_PATH, "a = 1\n", "") == PATCHED
    assert workspace.solution == "b = 3\nc = 4\n"


@pytest.mark.parametrize(
    ("find", "fault"),
    [
        ("x", "does not occur"),
        ("a", "occurs more than once"),
        ("aa", "occurs more than once"),  # overlapping places are two
        ("", "occurs more than once"),
        ("A", "does not occur"),
        ("aaa\r\n", "does not occur"),
    ],
)
def test_a_patch_that_does_not_fit_changes_nothing(find: str, fault: str) -> None:
    workspace = Workspace({SOLUTION_PATH: "aaa\n"})
    answer = workspace.apply_patch(SOLUTION_PATH, find, "b")
    assert not answer.success
    assert fault in answer.text
    assert workspace.files == {SOLUTION_PATH: "aaa\n"}


def test_an_empty_file_has_no_place() -> None:
    assert not Workspace({SOLUTION_PATH: ""}).apply_patch(SOLUTION_PATH, "", "b").success


def test_a_replacement_is_no_pattern() -> None:
    workspace = Workspace({SOLUTION_PATH: "x.y(\n"})
    assert workspace.apply_patch(SOLUTION_PATH, "x.y(", r"\1 $0 {}") == PATCHED
    assert workspace.solution == "\\1 $0 {}\n"


def test_a_file_cannot_grow_without_end() -> None:
    workspace = Workspace()
    assert not workspace.apply_patch(SOLUTION_PATH, "#", "x" * (MAX_FILE_CHARACTERS + 1)).success
    assert workspace.solution == PLACEHOLDER


def test_only_files_of_the_project_exist() -> None:
    workspace = Workspace()
    assert workspace.read_file("other.py") == Answer(False, "no such file: other.py")
    assert not workspace.apply_patch("other.py", "", "x").success
    assert list(workspace.files) == [SOLUTION_PATH]
    assert Workspace({}).solution == ""


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("solution.py", "solution.py"),
        ("./solution.py", "solution.py"),
        ("a/../solution.py", "solution.py"),
        ("a//b.py", "a/b.py"),
        (".", "."),
        ("./", "."),
        ("...", "..."),
    ],
)
def test_a_path_inside_is_brought_to_normal_form(path: str, normal: str) -> None:
    assert normalise_path(path) == normal


@pytest.mark.parametrize(
    "path",
    ["", "..", "../x", "a/../..", "a/../../etc", "/etc/passwd", "//x", "~/x", "a\0", "a\\b", "a\nb", "x" * 256],
)
def test_a_path_that_leaves_or_is_none(path: str) -> None:
    assert normalise_path(path) is None
