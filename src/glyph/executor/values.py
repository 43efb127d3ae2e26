"""Values across the trust boundary: a canonical, typed encoding, and equality on encodings.

`encode` runs in the candidate's process, `equal` and the rest in the parent. An encoding is JSON: a list whose
first item is a one-letter tag. Only values whose equality is that of a builtin have one; everything else is
`OPAQUE` and equals nothing, not even itself. Equality follows Python's `==` for builtins (1 == 1.0 == True, a
list is no tuple, dict views equal sets), except that NaN never equals itself. No work here is more than about
linear in what the candidate sent, and no container hashes what it chose.
"""

import decimal
import fractions
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 100
MAX_NODES = 200_000
MAX_TEXT = 2 << 20
MAX_FRACTION_DIGITS = 4_096  # hex digits of either part: a greatest common divisor takes quadratic time
MAX_DECIMAL_DIGITS = 100_000
MAX_MIXED_INT_DIGITS = 20_000  # hex digits above which an int equals ints only: other comparisons convert it
MAX_COLLISIONS = 500  # members with one sort key, of which each may have to meet each
OPAQUE = ["?"]

Encoded = list[Any]

_MRO = type.__dict__["__mro__"].__get__
_NAMESPACE = type.__dict__["__dict__"].__get__
_REAL, _IMAGINARY = complex.__dict__["real"].__get__, complex.__dict__["imag"].__get__
_DICT_KEYS: type = type({}.keys())
_DICT_ITEMS: type = type({}.items())
# The first base in this order whose `__eq__` the type still has decides how a value is encoded.
_BASES: tuple[type, ...] = (
    int,
    str,
    list,
    bool,
    float,
    tuple,
    OrderedDict,
    Counter,
    dict,
    set,
    frozenset,
    complex,
    bytes,
    bytearray,
    deque,
    range,
    fractions.Fraction,
    decimal.Decimal,
    _DICT_KEYS,
    _DICT_ITEMS,
)
_SEQUENCES = {list: "l", tuple: "t", deque: "k", set: "S", frozenset: "S", _DICT_KEYS: "S", _DICT_ITEMS: "S"}
_MAPPINGS = {dict: "D", OrderedDict: "O", Counter: "C"}
_NUMBERS = "bifcqd"


class _TooLarge(Exception):
    """The value passes a cap: depth, nodes, or characters of text."""


def encode(value: Any) -> Encoded:
    """Encode a value; `OPAQUE` when it is no plain builtin or passes a cap (a part of it may be opaque too)."""
    try:
        return _encode(value, 0, [MAX_NODES, MAX_TEXT])
    except _TooLarge:
        return OPAQUE


def _encode(value: Any, depth: int, budget: list[int]) -> Encoded:
    budget[0] -= 1
    if depth > MAX_DEPTH or budget[0] < 0:
        raise _TooLarge
    if value is None:
        return ["n"]
    if value is Ellipsis:
        return ["e"]
    base = _base_of(type(value))
    if base is None:
        return OPAQUE
    if base in _SEQUENCES:
        items: Iterable[Any] = base.__iter__(value)  # type: ignore[attr-defined]
        return [_SEQUENCES[base], [_encode(item, depth + 1, budget) for item in items]]
    if base in _MAPPINGS:
        pairs = dict.items(value)
        return [_MAPPINGS[base], [[_encode(k, depth + 1, budget), _encode(v, depth + 1, budget)] for k, v in pairs]]
    return _encode_scalar(base, value, budget)


def _base_of(kind: type) -> type | None:
    for base in _BASES:
        if kind is base:
            return base
    for base in _BASES:
        for ancestor in _MRO(kind):
            if ancestor is base:
                return base
            if "__eq__" in _NAMESPACE(ancestor):
                break
    return None


def _encode_scalar(base: type, value: Any, budget: list[int]) -> Encoded:
    if base is int:
        if int.bit_length(value) > 4 * budget[1]:
            raise _TooLarge
        return ["i", _spend(hex(int.__add__(value, 0)), budget)]
    if base is bool:
        return ["b", int(value)]
    if base is float:
        return ["f", float.hex(value)]
    if base is str:
        return ["s", _spend(str.__getitem__(value, slice(None)), budget)]
    if base is complex:
        return ["c", float.hex(_REAL(value)), float.hex(_IMAGINARY(value))]
    if base in (bytes, bytearray):
        if 2 * base.__len__(value) > budget[1]:  # type: ignore[attr-defined]
            raise _TooLarge
        return ["y", _spend(base.hex(value), budget)]  # type: ignore[attr-defined]
    if base is range:
        return ["r", *(_spend(hex(part), budget) for part in (value.start, value.stop, value.step))]
    if base is decimal.Decimal:
        text = decimal.Decimal.__str__(value)
        return ["d", _spend(text, budget)] if len(text) <= MAX_DECIMAL_DIGITS else OPAQUE
    parts = (value._numerator, value._denominator)
    if not type(parts[0]) is int is type(parts[1]) or max(map(int.bit_length, parts)) >= 4 * MAX_FRACTION_DIGITS:
        return OPAQUE
    return ["q", *(_spend(hex(part), budget) for part in parts)] if parts[1] else OPAQUE


def _spend(text: str, budget: list[int]) -> str:
    budget[1] -= len(text)
    if budget[1] < 0:
        raise _TooLarge
    return text


def equal(a: Encoded, b: Encoded) -> bool:
    """Whether two encoded values are equal as Python would say of the builtins they stand for."""
    kinds = a[0] + b[0]
    if a[0] in _NUMBERS and b[0] in _NUMBERS:
        return _numbers_equal(a, b)
    if kinds in ("ss", "yy", "nn", "ee"):
        return a == b
    if kinds in ("ll", "tt", "kk"):
        return _sequences_equal(a[1], b[1])
    if kinds == "SS":
        return _unordered_equal(a[1], b[1], lambda item: item, equal)
    if kinds == "rr":
        return bool(to_python(a) == to_python(b))
    if a[0] in "DOC" and b[0] in "DOC":
        return _mappings_equal(a, b)
    return False


def _numbers_equal(a: Encoded, b: Encoded) -> bool:
    if a[0] != b[0] and any(x[0] == "i" and len(x[1]) > MAX_MIXED_INT_DIGITS for x in (a, b)):
        return False
    try:
        return bool(to_python(a) == to_python(b))
    except decimal.InvalidOperation:  # a signalling NaN equals nothing
        return False


def _sequences_equal(a: list[Encoded], b: list[Encoded]) -> bool:
    return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


def _mappings_equal(a: Encoded, b: Encoded) -> bool:
    kinds, x, y = a[0] + b[0], a[1], b[1]
    if kinds == "OO":
        return _sequences_equal([["t", pair] for pair in x], [["t", pair] for pair in y])
    if kinds == "CC":  # a Counter does not tell a missing element from a count of zero
        x, y = ([pair for pair in pairs if not equal(pair[1], ["i", "0x0"])] for pairs in (x, y))
    return _unordered_equal(x, y, lambda pair: pair[0], _sequences_equal)


def _unordered_equal(
    a: list[Any], b: list[Any], key_of: Callable[[Any], Encoded], same: Callable[[Any, Any], bool]
) -> bool:
    """Whether the items pair off. Equal items have equal sort keys; only among those does each meet each."""
    if len(a) != len(b):
        return False
    left = sorted(((_sort_key(key_of(item)), item) for item in a), key=lambda entry: entry[0])
    right = sorted(((_sort_key(key_of(item)), item) for item in b), key=lambda entry: entry[0])
    if [entry[0] for entry in left] != [entry[0] for entry in right]:
        return False
    for _, run in itertools.groupby(zip(left, right, strict=True), key=lambda entry: entry[0][0]):
        pairs = list(run)
        waiting = [entry[1][1] for entry in pairs]
        if len(pairs) > MAX_COLLISIONS or not all(_take(entry[0][1], waiting, same) for entry in pairs):
            return False
    return True


def _take(item: Any, waiting: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Remove the one that is the same as `item`; False when there is none."""
    for i, other in enumerate(waiting):
        if same(item, other):
            del waiting[i]
            return True
    return False


def _sort_key(value: Encoded) -> str:
    """A short text that is the same for values that can be equal as set members or dict keys."""
    tag = value[0]
    if tag in _NUMBERS:
        try:
            return f"#{hash(to_python(value))}"
        except TypeError:  # a signalling NaN
            return "#"
    if tag in "ltk":
        return f"{tag}({','.join(_sort_key(item) for item in value[1])})"
    if tag == "S":
        return f"S({','.join(sorted(_sort_key(item) for item in value[1]))})"
    return tag + value[1] if tag in "sy" else tag


def to_python(value: Encoded) -> Any:
    """The Python value of an encoded number, string, bytes, range, None, or list or tuple of such.

    Raises:
        ValueError: the value is opaque or of another kind (sets and dicts would hash what the candidate chose).
    """
    tag = value[0]
    if tag == "i":
        return int(value[1], 16)
    if tag == "s":
        return value[1]
    if tag == "b":
        return bool(value[1])
    if tag == "f":
        return float.fromhex(value[1])
    if tag == "c":
        return complex(float.fromhex(value[1]), float.fromhex(value[2]))
    if tag == "q":
        return fractions.Fraction(int(value[1], 16), int(value[2], 16))
    if tag == "d":
        return decimal.Decimal(value[1])
    if tag == "r":
        return range(*(int(part, 16) for part in value[1:]))
    if tag in "ne":
        return None if tag == "n" else Ellipsis
    if tag == "y":
        return bytes.fromhex(value[1])
    if tag in "lt":
        items = [to_python(item) for item in value[1]]
        return items if tag == "l" else tuple(items)
    raise ValueError("this value has no plain Python form")


def literal(value: Encoded, limit: int) -> str | None:
    """The value as Python writes it; None where it has no plain form or takes more than `limit` characters."""
    try:
        text = repr(to_python(value))
    except ValueError:  # also an integer of thousands of digits
        return None
    return text if len(text) <= limit else None


def well_formed(value: Any) -> bool:
    """Whether something that came over the wire is an encoding at all (the candidate may have written it)."""
    return _well_formed(value, 0, [MAX_NODES])


def _well_formed(value: Any, depth: int, budget: list[int]) -> bool:
    budget[0] -= 1
    if not isinstance(value, list) or not value or depth > MAX_DEPTH or budget[0] < 0:
        return False
    tag, parts = value[0], value[1:]
    if tag in ("l", "t", "k", "S"):
        items = parts[0] if len(parts) == 1 else None
        return isinstance(items, list) and all(_well_formed(item, depth + 1, budget) for item in items)
    if tag in ("D", "O", "C"):
        pairs = parts[0] if len(parts) == 1 else None
        return isinstance(pairs, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(_well_formed(item, depth + 1, budget) for item in pair)
            for pair in pairs
        )
    if tag in ("n", "e", "?"):
        return not parts
    if tag == "b":
        return len(parts) == 1 and type(parts[0]) is int and parts[0] in (0, 1)
    return _well_formed_scalar(tag, parts)


_SIZES = {"i": 1, "f": 1, "s": 1, "y": 1, "d": 1, "c": 2, "q": 2, "r": 3}
_LONGEST = {"q": MAX_FRACTION_DIGITS + 3, "d": MAX_DECIMAL_DIGITS}


def _well_formed_scalar(tag: Any, parts: list[Any]) -> bool:
    if not isinstance(tag, str) or _SIZES.get(tag) != len(parts):
        return False
    if not all(isinstance(part, str) and len(part) <= _LONGEST.get(tag, MAX_TEXT) for part in parts):
        return False
    try:
        to_python([tag, *parts])
    except (ValueError, ArithmeticError):
        return False
    return True
