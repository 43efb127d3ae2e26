"""Encodings: equality by hand, equality against Python's own for nested builtins, and what nobody may make it do."""

import collections
import datetime
import fractions
import math
import time
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glyph.executor import values
from glyph.executor.frames import Frames, pack
from glyph.executor.values import OPAQUE, encode, equal, to_python, well_formed


class Celsius(float):
    """Equal as a float is."""


class Yes(int):
    """Equal to everything, says it."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Swapped(dict):
    """A dict that shows other items than it holds."""

    def items(self) -> Any:
        return [("b", 2)]


Point = collections.namedtuple("Point", "x y")

EQUAL = [
    (1, True),
    (1, 1.0),
    (0, -0.0),
    (2, Fraction(4, 2)),
    (2, Decimal("2.000")),
    (2, 2 + 0j),
    (complex(-0.0, 1), complex(0.0, 1)),
    (Decimal("Infinity"), math.inf),
    (Decimal("1E+20000"), Decimal("10E+19999")),
    (10**300, Decimal("1E+300")),
    (Fraction(1, 2), 0.5),
    (Celsius(2.5), 2.5),
    (Point(1, 2), (1, 2)),
    (b"ab", bytearray(b"ab")),
    ("", ""),
    ([], []),
    ([1, [2, (3,)]], [1.0, [2, (Decimal(3),)]]),
    ({1, 2}, frozenset([2.0, True])),
    ({0, (1 << 61) - 1, -1, -2}, {-2, -1, (1 << 61) - 1, 0}),
    ({frozenset({1}), (2, "a")}, {(2.0, "a"), frozenset({True})}),
    ({1: "a", "k": [2]}, {"k": [2], 1.0: "a"}),
    ({"a": 1}.keys(), {"a"}),
    ({"a": [1]}.items(), {"a": [1]}.items()),
    (Counter(a=1, b=0), Counter(a=1)),
    (Counter("ab"), {"a": 1, "b": 1}),
    (OrderedDict(a=1, b=2), {"b": 2, "a": 1}),
    (OrderedDict(a=1, b=2), Counter(b=2, a=1)),
    (collections.defaultdict(int, a=1), {"a": 1}),
    (deque([1, 2]), deque([1, 2], maxlen=5)),
    (range(0, 6, 2), range(0, 5, 2)),
    (range(0), range(5, 1)),
    ("\ud800", "\ud800"),
    (None, None),
    (..., ...),
]
DIFFERENT = [
    (1, 2),
    (1, "1"),
    (0, None),
    (0, ""),
    (1, [1]),
    (0.1 + 0.2, 0.3),
    (10**400, math.inf),
    (math.nan, math.nan),
    ([math.nan], [math.nan]),
    (Decimal("NaN"), Decimal("NaN")),
    (Decimal("sNaN"), 1),
    ({Decimal("NaN")}, {Decimal("NaN")}),
    ([1, 2], (1, 2)),
    ([1, 2], [1, 2, 3]),
    ([1, 2], deque([1, 2])),
    ("ab", b"ab"),
    ({1, 2}, [1, 2]),
    ({1, 2}, {1, 3}),
    ({1, 2}, {1: 2}.keys()),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ({1: "a"}.keys(), {"a": 1}.keys()),
    (Counter(a=0), {}),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (range(3), [0, 1, 2]),
    ("\ud83d\ude00", "\U0001f600"),
    (Yes(5), 5),
    (object, object),
    (datetime.date(2020, 1, 1), datetime.date(2020, 1, 1)),
    ({"a": 1}.values(), {"a": 1}.values()),
]


def sent(value: Any) -> Any:
    """The encoding of a value as the parent gets it: framed, sent, read and checked."""
    encoded = Received(pack({"value": encode(value)})).read()["value"]
    assert well_formed(encoded), encoded
    return encoded


class Received(Frames):
    def __init__(self, data: bytes) -> None:
        self._receive, self._largest, self._rest = lambda size: b"", None, data


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal_as_python_says(a: Any, b: Any) -> None:
    assert a == b
    assert equal(sent(a), encode(b))
    assert equal(encode(b), sent(a))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a: Any, b: Any) -> None:
    assert not equal(sent(a), encode(b))
    assert not equal(encode(b), sent(a))


NUMBERS = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.booleans(),
    st.floats(allow_nan=False),
    st.fractions(max_denominator=8),
    st.decimals(allow_nan=False, places=2),
    st.sampled_from([0.5, Fraction(1, 2), Decimal("0.50"), 2**61 - 1, 0, -1, -2, 1j, complex(1, 0), Decimal("1E+5")]),
)
HASHABLE = st.recursive(
    st.one_of(NUMBERS, st.text(max_size=3), st.binary(max_size=3), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)),
    max_leaves=6,
)
NESTED = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.sets(HASHABLE, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict),
        st.dictionaries(HASHABLE, st.integers(0, 2), max_size=3).map(Counter),
        st.dictionaries(HASHABLE, inner, max_size=3).map(dict.keys),
        st.builds(range, st.integers(-4, 4), st.integers(-4, 4), st.sampled_from([-2, 1, 3])),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(NESTED, NESTED)
def test_two_values_are_equal_when_python_says_so(a: Any, b: Any) -> None:
    assert equal(sent(a), encode(b)) == (a == b)


@settings(max_examples=200, deadline=None)
@given(NUMBERS, NUMBERS)
def test_numbers_of_all_kinds(a: Any, b: Any) -> None:
    assert equal(sent(a), encode(b)) == (a == b)
    assert equal(sent({a}), encode({b})) == ({a} == {b})
    assert equal(sent({a: 1}), encode({b: 1})) == ({a: 1} == {b: 1})


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec=None, categories=["Cs", "Lu", "Cc"]), max_size=5))
def test_any_text_survives_the_wire(text: str) -> None:
    assert to_python(sent(text)) == text


@settings(max_examples=100, deadline=None)
@given(NESTED)
def test_a_value_equals_itself_in_another_order(value: Any) -> None:
    assert equal(sent(value), encode(value))
    if isinstance(value, dict) and not isinstance(value, OrderedDict):
        assert equal(encode(dict(reversed(value.items()))), encode(value))


def test_a_subclass_is_its_base_only_while_equality_is() -> None:
    assert encode(Celsius(1.0))[0] == "f"
    assert encode(Yes(1)) == OPAQUE
    assert equal(encode(Swapped(a=1)), encode({"a": 1}))


def test_a_part_may_be_opaque() -> None:
    assert encode([1, object()]) == ["l", [["i", "0x1"], OPAQUE]]
    assert not equal(encode([object()]), encode([object()]))


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (nested(values.MAX_DEPTH - 1), nested(values.MAX_DEPTH + 1)),
        ([0] * (values.MAX_NODES - 1), [0] * values.MAX_NODES),
        ("a" * values.MAX_TEXT, "a" * (values.MAX_TEXT + 1)),
        (1 << (4 * values.MAX_TEXT - 20), 1 << (4 * values.MAX_TEXT + 20)),
        (b"a" * (values.MAX_TEXT // 2), b"a" * (values.MAX_TEXT // 2 + 1)),
        (Fraction(1, 1 << (4 * values.MAX_FRACTION_DIGITS - 2)), Fraction(1, 1 << (4 * values.MAX_FRACTION_DIGITS))),
        (Decimal("1" * values.MAX_DECIMAL_DIGITS), Decimal("1" * (values.MAX_DECIMAL_DIGITS + 1))),
    ],
    ids=["depth", "nodes", "text", "int", "bytes", "fraction", "decimal"],
)
def test_caps(inside: Any, outside: Any) -> None:
    assert encode(inside) != OPAQUE
    assert well_formed(encode(inside))
    assert encode(outside) == OPAQUE


def test_a_cycle_is_opaque() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert encode(cycle) == OPAQUE


@pytest.mark.parametrize(
    "forged",
    [
        None,
        {},
        [],
        "i",
        ["i"],
        ["i", 1],
        ["i", "0xZZ"],
        ["i", "0x1", "0x2"],
        ["b", True],
        ["b", 2],
        ["b", []],
        ["f", "0x1p99999"],
        ["q", "0x1", "0x0"],
        ["q", "0x1"],
        ["q", "0x" + "f" * 5000, "0x3"],
        ["d", "one"],
        ["d", "1" * 100_001],
        ["r", "0x0", "0x1", "0x0"],
        ["y", "abc"],
        ["s", ["a"]],
        ["n", 1],
        ["l", "ab"],
        ["l", [["i"]]],
        ["D", [[["n"]]]],
        ["D", [["n", "n"]]],
        ["Z", []],
        [["l"], []],
        [1],
        ["l", [["n"]] * values.MAX_NODES],
    ],
    ids=lambda forged: repr(forged)[:30],
)
def test_forged_encodings_are_refused(forged: Any) -> None:
    assert not well_formed(forged)


def test_forged_depth_is_refused() -> None:
    value: list[Any] = ["n"]
    for _ in range(500):
        value = ["l", [value]]
    assert not well_formed(value)


HEAVY = {
    "a decimal of a trillion digits": (["d", "1E+999999999999999"], encode(7)),
    "a decimal against a fraction": (["d", "1E+999999999999999"], encode(Fraction(1, 3))),
    "a long int against a decimal": (["i", "0x" + "f" * 2_000_000], encode(Decimal("1.5"))),
    "a long int against a float": (["i", "0x" + "f" * 2_000_000], encode(0.5)),
    "decimals as keys": (["S", [["d", "1E-999999"]] * 2], encode({Decimal(1), Decimal(2)})),
    "many decimals in one key": (["S", [["t", [["d", "1E+9999"]] * 100_000]]], encode({(1, 2)})),
    "colliding keys": (["S", [["i", hex(n * (2**61 - 1))] for n in range(50_000)]],) * 2,
    "colliding ranges": (["S", [["r", "0x0", hex(n), "0x1"] for n in range(50_000)]],) * 2,
}


@pytest.mark.parametrize("name", HEAVY)
def test_no_comparison_takes_long(name: str) -> None:
    """What the candidate's process may send is compared in about linear time. A generous bound, not a measure."""
    a, b = HEAVY[name]
    assert well_formed(a)
    started = time.process_time()
    assert not equal(a, b)
    assert time.process_time() - started < 10


def test_fractions_changed_by_their_owner_are_opaque() -> None:
    fraction = fractions.Fraction(1, 3)
    fraction._denominator = 0  # type: ignore[attr-defined]
    assert encode(fraction) == OPAQUE
    fraction._denominator = "3"  # type: ignore[attr-defined]
    assert encode(fraction) == OPAQUE


def test_a_literal_is_short_and_plain() -> None:
    for value in (None, True, -7, 1.5, "a'\n\x00", [1, (2, "x")], b"\xff", range(3)):
        assert values.literal(encode(value), 60) == repr(value)
    assert values.literal(encode("x" * 58), 60) == repr("x" * 58)
    for value in ("x" * 59, {1}, {1: 2}, [object()], 10**5000, object()):
        assert values.literal(encode(value), 60) is None
