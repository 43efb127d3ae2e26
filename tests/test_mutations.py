"""Mutations: hand-made cases, positions with non-ASCII text and tabs, and the whole of MBPP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glyph.protocol import Label
from glyph.tasks.mutations import (
    RUNTIME_KINDS,
    SEMANTIC_KINDS,
    SYNTAX_KINDS,
    TIMEOUT_KINDS,
    Kind,
    compiles,
    line_edit,
    mutations,
)

MBPP = Path(os.environ.get("MBPP_SOURCE") or Path(__file__).parents[2] / "shared/data/mbpp.jsonl")


def changes(source: str, kind: Kind) -> list[str]:
    return [mutation.source for mutation in mutations(source, {kind})]


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("x = 1 + y", Kind.OPERATOR, ["x = 1 - y", "x = 1 * y"]),
        ("x -= y", Kind.OPERATOR, ["x += y"]),
        ("x = -y", Kind.OPERATOR, ["x = y"]),
        ("x = a < b", Kind.COMPARISON, ["x = a <= b", "x = a > b"]),
        ("x = a  not  in b", Kind.COMPARISON, ["x = a  in b"]),
        ("x = (a)==(b)", Kind.COMPARISON, ["x = (a)!=(b)"]),
        ("x = a and b or c", Kind.BOOLEAN, ["x = a or b or c", "x = a and b and c"]),
        ("if not(a): b = True", Kind.BOOLEAN, ["if (a): b = True", "if not(a): b = False"]),
        ("if a(b): c()", Kind.BOOLEAN, ["if not a(b): c()"]),
        ("x = min(a, b)", Kind.BUILTIN, ["x = max(a, b)"]),
        ("x = s.upper()", Kind.BUILTIN, ["x = s.lower()"]),
        ("x = [-1, 7]", Kind.INTEGER, ["x = [0, 7]", "x = [-2, 7]", "x = [-1, 8]", "x = [-1, 6]"]),
        ("x = range(n)", Kind.BOUND, ["x = range(1, n)", "x = range(n + 1)", "x = range(n - 1)"]),
        (
            "x = range(a, n + 1, 2)",
            Kind.BOUND,
            ["x = range(a + 1, n + 1, 2)", "x = range(a - 1, n + 1, 2)", "x = range(a, n, 2)", "x = range(a, n + 1)"],
        ),
        ("x = s[:n + 1]", Kind.BOUND, ["x = s[1:n + 1]", "x = s[:n]"]),
        ("x = s[::-1]", Kind.BOUND, ["x = s[::1]"]),
        ("def f(a):\n    b = a\n    return b", Kind.RETURN, ["def f(a):\n    b = a\n    return a"]),
        ("x = sorted(y)", Kind.ORDER, ["x = sorted(y, reverse=True)"]),
        ("x = f(a, 'b')", Kind.ORDER, ["x = f('b', a)"]),
        ("x = len(y + z) * 2", Kind.UNWRAP, ["x = (y + z) * 2"]),
        ("x = [y for y in z if y]", Kind.FILTER, ["x = [y for y in z]"]),
        ("for x in y:\n    break", Kind.FLOW, ["for x in y:\n    continue"]),
        ("x = ''.join(y)", Kind.STRING, ["x = ' '.join(y)"]),
        ("x = y", Kind.NAME, ["x = ys"]),
        ("x = y.append", Kind.ATTRIBUTE, ["x = y.add"]),
        ("x = y[0]", Kind.INDEX, ["x = y[len(y)]"]),
        ("x = f(a, b)", Kind.ARGUMENT, ["x = f(a)"]),
        ("import math\nx = math.pi", Kind.IMPORT, ["x = math.pi"]),
        ("x = y % 2", Kind.ZERO, ["x = y % 0"]),
        ("x = y + 1", Kind.TYPE, ['x = y + "1"']),
        ("if a: b = {1: 2}", Kind.COLON, ["if a b = {1: 2}"]),
        ("x = f(a)", Kind.BRACKET, ["x = f(a"]),
        ("if a:\n    b()\n    c()", Kind.INDENT, ["if a:\nb()\n    c()", "if a:\n    b()\n     c()"]),
        ("if a == b: c()", Kind.ASSIGN, ["if a = b: c()"]),
        ("while a < b:\n    c()\n    a += 1", Kind.STALL, ["while a < b:\n    c()\n    pass"]),
        ("while a < b:\n    a += 1", Kind.ENDLESS, ["while True:\n    a += 1"]),
        ("if a > b:\n    c += 1", Kind.ENDLESS, ["while a > b:\n    c += 1"]),
        ("def f(x):\n\treturn x", Kind.ENDLESS, ["def f(x):\n\twhile True:\n\t\tpass\n\treturn x"]),
    ],
)
def test_each_kind_by_hand(source: str, kind: Kind, expected: list[str]) -> None:
    assert changes(source, kind) == expected


def test_positions_count_characters_not_bytes_and_leave_comments_alone() -> None:
    source = "x = 'žlutý' + y  # 3 + 4, größer\nz = x +\\\n\t1"
    assert changes(source, Kind.OPERATOR)[0] == "x = 'žlutý' - y  # 3 + 4, größer\nz = x +\\\n\t1"
    assert changes(source, Kind.INTEGER) == [source[:-1] + "2", source[:-1] + "0"]


def test_docstrings_annotations_and_f_strings_are_left_alone() -> None:
    source = 'def f(x: int) -> int:\n    "1 + 1"\n    return f"{x + 1}"'
    assert mutations(source, SEMANTIC_KINDS) == []


def test_a_mutation_says_where_and_what() -> None:
    first = mutations("def f(x):\n    return x + 1", {Kind.OPERATOR})[0]
    assert (first.line, first.before, first.after, first.aim) == (2, "+", "-", Label.ASSERTION_FAILURE)
    assert (first.find, first.replace) == ("    return x + 1", "    return x - 1")


def test_kinds_fall_into_four_groups() -> None:
    groups = [SEMANTIC_KINDS, RUNTIME_KINDS, SYNTAX_KINDS, TIMEOUT_KINDS]
    assert sum(map(len, groups)) == len(Kind) == len(frozenset().union(*groups))


def test_a_source_that_does_not_compile_or_has_carriage_returns_is_refused() -> None:
    with pytest.raises(SyntaxError):
        mutations("def f(:")
    with pytest.raises(ValueError, match="carriage return"):
        mutations("x = 1\r\ny = 2")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("a\nb\nc", "a\nB\nc", ("b", "B")),
        ("x\nx", "x\ny", ("x\nx", "x\ny")),  # a lone x occurs twice
        ("ab\nb\nc", "ab\nd\nc", ("b\nc", "d\nc")),  # b is also a part of another line
        ("a\nb", "a\nnew\nb", ("b", "new\nb")),
        ("a\nb\nc", "a\nc", ("b\nc", "c")),
        ("a", "", ("a", "")),
        ("a\n", "a", ("a\n", "a")),
    ],
)
def test_line_edit_by_hand(before: str, after: str, expected: tuple[str, str]) -> None:
    assert line_edit(before, after) == expected


def test_line_edit_refuses_what_no_patch_can_do() -> None:
    with pytest.raises(ValueError, match="equal"):
        line_edit("a", "a")
    with pytest.raises(ValueError, match="empty"):
        line_edit("", "a")


TEXTS = st.lists(st.sampled_from(["a", "b", "aa", "", "  a", "é"]), max_size=7).map("\n".join)


@given(TEXTS, TEXTS)
def test_line_edit_finds_once_and_restores(before: str, after: str) -> None:
    if before in ("", after):
        return
    find, replace = line_edit(before, after)
    places = [i for i in range(len(before)) if before.startswith(find, i)]
    assert len(places) == 1
    assert before.replace(find, replace) == after
    assert before[: places[0]].endswith("\n") or places[0] == 0
    assert before[places[0] + len(find) :].startswith("\n") or before.endswith(find)


@pytest.fixture(scope="module")
def golds() -> list[str]:
    if not MBPP.exists():
        pytest.skip(f"no MBPP at {MBPP}; set MBPP_SOURCE")
    rows = [json.loads(line) for line in MBPP.read_text(encoding="utf-8").splitlines()]
    return [row["code"].replace("\r\n", "\n").replace("\r", "\n").strip() for row in rows]


def test_every_mutation_of_every_mbpp_gold_is_a_valid_patch(golds: list[str]) -> None:
    assert len(golds) == 974
    without = 0
    for gold in golds:
        found = mutations(gold, SEMANTIC_KINDS | RUNTIME_KINDS)
        without += not any(mutation.kind in SEMANTIC_KINDS for mutation in found)
        assert len({mutation.source for mutation in found} | {gold}) == len(found) + 1
        for mutation in found:
            assert gold.count(mutation.find) == 1
            assert gold.replace(mutation.find, mutation.replace) == mutation.source
    assert without <= 15


def test_kinds_compile_or_do_not_as_they_promise(golds: list[str]) -> None:
    for gold in golds[::12]:
        for mutation in mutations(gold):
            assert compiles(mutation.source) is (mutation.kind not in SYNTAX_KINDS)


def test_two_mutations_chain(golds: list[str]) -> None:
    for gold in golds[::40]:
        for first in mutations(gold, SEMANTIC_KINDS)[:3]:
            for second in mutations(first.source, SEMANTIC_KINDS)[:5]:
                if second.source != gold:
                    find, replace = line_edit(second.source, gold)
                    assert second.source.replace(find, replace) == gold


def test_the_order_does_not_depend_on_the_hash_seed() -> None:
    source = "def f(xs, k):\n    best = 0\n    while k > 0:\n        k -= 1\n        best += xs[k] % 3\n    return best"
    command = f"from glyph.tasks.mutations import mutations\nprint(repr(mutations({source!r})))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
