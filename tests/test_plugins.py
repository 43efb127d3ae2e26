"""What `module:attribute` finds, and how each way to miss it reads."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glyph.plugins import is_reference, load

OURS = {"length": len, "total": sum}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder whose modules are forgotten afterwards; Python finds none of them by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("plug_")]:
        del sys.modules[name]


def refusal(reference: str, kind: type | None = None) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011, each caller looks at the message
        load(reference, OURS, "measure", kind)
    return str(caught.value)


def test_ours_go_by_name_and_the_users_by_module(folder: Path) -> None:
    (folder / "plug_a.py").write_text("def double(n):\n    return 2 * n\n\nSEVEN = 7\n")
    assert load("total", OURS, "measure") is sum
    assert load("plug_a:double", OURS, "measure")(4) == 8
    assert load("plug_a:SEVEN", OURS, "measure", int) == 7
    assert load("os.path:basename", OURS, "measure")("a/b") == "b"
    assert [is_reference(name) for name in ("plug_a:double", "total", "test_budget(n=1)")] == [True, False, False]


def test_a_package_in_the_working_folder_is_found_too(folder: Path) -> None:
    (folder / "plug_b").mkdir()
    (folder / "plug_b" / "inner.py").write_text("from plug_b.outer import answer\n")
    (folder / "plug_b" / "outer.py").write_text("def answer():\n    return 42\n")
    assert load("plug_b.inner:answer", OURS, "measure")() == 42


def test_a_file_in_the_working_folder_hides_nothing(folder: Path) -> None:
    (folder / "bisect.py").write_text("def bisect_left():\n    return 'mine'\n")
    from bisect import bisect_left

    assert load("bisect:bisect_left", OURS, "measure") is bisect_left


@pytest.mark.parametrize("name", ["", "nothing", "total ", ":", "m:", ":a", "m:a:b", "m.py:a b", ".m:a", "m-n:a"])
def test_a_name_of_neither_form_is_answered_with_both(folder: Path, name: str) -> None:
    assert refusal(name) == f"measure {name!r}: expected length or total, or module:attribute for one of your own"


def test_without_names_of_ours_only_the_form_is_named() -> None:
    with pytest.raises(ValueError, match=r"^measure 'x': expected module:attribute for one of your own$"):
        load("x", {}, "measure")


def test_a_module_that_is_not_there_is_named_with_where_it_was_looked_for(folder: Path) -> None:
    said = refusal("plug_none:f")
    assert said.startswith("measure 'plug_none:f': cannot import 'plug_none': No module named 'plug_none'; ")
    assert f"a file in {folder}, where this process runs" in said


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import plug_nowhere", "No module named 'plug_nowhere'"),
        ("from os import plug_nothing", "cannot import name 'plug_nothing' from 'os'"),
        ("def f(:\n", "invalid syntax (plug_bad.py, line 1)"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(folder: Path, source: str, reason: str) -> None:
    (folder / "plug_bad.py").write_text(source)
    assert refusal("plug_bad:f").startswith(f"measure 'plug_bad:f': cannot import 'plug_bad': {reason}")


def test_what_the_users_code_raises_is_left_as_it_is(folder: Path) -> None:
    (folder / "plug_raises.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load("plug_raises:f", OURS, "measure")


def test_a_missing_attribute_is_named_with_the_file(folder: Path) -> None:
    (folder / "plug_c.py").write_text("")
    assert refusal("plug_c:f") == f"measure 'plug_c:f': 'plug_c' ({folder / 'plug_c.py'}) has no 'f'"


def test_an_object_of_another_kind_is_refused(folder: Path) -> None:
    (folder / "plug_d.py").write_text("SEVEN = 7\n\nclass Thing:\n    pass\n")
    assert refusal("plug_d:SEVEN").endswith("'plug_d:SEVEN': expected a function, got an object of type int")
    assert refusal("plug_d:SEVEN", str).endswith("expected an object of type str, got an object of type int")
    assert refusal("plug_d:Thing", int).endswith("expected an object of type int, got the class Thing")


def test_a_file_written_after_a_first_miss_is_found(folder: Path) -> None:
    refusal("plug_late:f")
    (folder / "plug_late.py").write_text("def f():\n    return 1\n")
    assert load("plug_late:f", OURS, "measure")() == 1
