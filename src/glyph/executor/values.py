"""Values across the trust boundary: a canonical, typed encoding, and equality on encodings.

`encode` runs in the candidate's process, `equal` and the rest in the parent. An encoding is JSON: a list whose
first item is a one-letter tag. Only values whose equality is that of a builtin have one; everything else is
`OPAQUE` and equals nothing, not even itself. Equality follows Python's `==` for builtins (1 == 1.0 == True, a
list is no tuple, dict views equal sets) and hashes nothing that the candidate chose.
"""

import collections
import decimal
import fractions
import math
from typing import Any

MAX_DEPTH = 100
MAX_NODES = 200_000
MAX_BYTES = 8 << 20
OPAQUE = ["?"]

Encoded = list[Any]

_MRO = type.__dict__["__mro__"].__get__
_NAMESPACE = type.__dict__["__dict__"].__get__
_DICT_KEYS: type = type({}.keys())
_DICT_ITEMS: type = type({}.items())
# The first base in this order whose `__eq__` the type still has decides how a value is encoded.
_BASES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    list,
    tuple,
    set,
    frozenset,
    collections.OrderedDict,
    collections.Counter,
    dict,
    collections.deque,
    range,
    fractions.Fraction,
    decimal.Decimal,
    _DICT_KEYS,
    _DICT_ITEMS,
)


class _TooLarge(Exception):
    """The value passes a cap: depth, nodes or bytes."""


def encode(value: Any) -> Encoded:
    """Encode a value; `OPAQUE` when it (or a part of it) is no plain builtin or passes a cap."""
    budget = [MAX_NODES, MAX_BYTES]
    try:
        return _encode(value, 0, budget)
    except _TooLarge:
        return OPAQUE


def _base_of(kind: type) -> type | None:
    for base in _BASES:
        for ancestor in _MRO(kind):
            if ancestor is base:
                return base
            if "__eq__" in _NAMESPACE(ancestor):
                break
    return None


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
    return _encode_scalar(base, value, budget) or _encode_container(base, value, depth, budget)


def _encode_scalar(base: type, value: Any, budget: list[int]) -> Encoded | None:
    if base is bool:
        return ["b", int(value)]
    if base is int:
        if int.bit_length(value) > 4 * budget[1]:
            raise _TooLarge
        return ["i", _spend(hex(int.__add__(value, 0)), budget)]
    if base is float:
        return ["f", float.hex(value)]
    if base is complex:
        return [
            "c",
            float.hex(complex.__dict__["real"].__get__(value)),
            float.hex(complex.__dict__["imag"].__get__(value)),
        ]
    if base is str:
        return ["s", _spend(str.__getitem__(value, slice(None)), budget)]
    if base in (bytes, bytearray):
        return ["y", _spend(bytes(value).hex(), budget)]
    if base is fractions.Fraction:
        parts = (value._numerator, value._denominator)
        return ["q", hex(parts[0]), hex(parts[1])] if type(parts[0]) is int is type(parts[1]) and parts[1] else OPAQUE
    if base is decimal.Decimal:
        return ["d", _spend(decimal.Decimal.__str__(value), budget)]
    if base is range:
        return ["r", hex(value.start), hex(value.stop), hex(value.step)]
    return None


def _encode_container(base: type, value: Any, depth: int, budget: list[int]) -> Encoded:
    def many(items: Any) -> list[Encoded]:
        return [_encode(item, depth + 1, budget) for item in items]

    if base is list:
        return ["l", many(list.__iter__(value))]
    if base is tuple:
        return ["t", many(tuple.__iter__(value))]
    if base is collections.deque:
        return ["k", many(collections.deque.__iter__(value))]
    if base in (set, frozenset):
        return ["S", many(base.__iter__(value))]  # type: ignore[attr-defined]
    if base in (_DICT_KEYS, _DICT_ITEMS):
        return ["S", many(base.__iter__(value))]  # type: ignore[attr-defined]
    tag = "O" if base is collections.OrderedDict else "C" if base is collections.Counter else "D"
    return [tag, [many(pair) for pair in list(dict.items(value))]]


def _spend(text: str, budget: list[int]) -> str:
    budget[1] -= len(text)
    if budget[1] < 0:
        raise _TooLarge
    return text


def equal(a: Encoded, b: Encoded) -> bool:
    """Whether two encoded values are equal as Python would say of the builtins they stand for."""
    kinds = a[0] + b[0]
    if a[0] in "bifcqd" and b[0] in "bifcqd":
        return _numbers_equal(a, b)
    if kinds in ("ss", "yy", "nn", "ee"):
        return a == b
    if kinds in ("ll", "tt", "kk"):
        return _sequences_equal(a[1], b[1])
    if kinds == "SS":
        return _sets_equal(a[1], b[1])
    if kinds == "rr":
        return to_python(a) == to_python(b)
    if a[0] in "DOC" and b[0] in "DOC":
        return _mappings_equal(a, b)
    return False


def _numbers_equal(a: Encoded, b: Encoded) -> bool:
    try:
        return bool(to_python(a) == to_python(b))
    except decimal.InvalidOperation:  # a signalling NaN equals nothing
        return False


def _sequences_equal(a: list[Encoded], b: list[Encoded]) -> bool:
    return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))


def _sets_equal(a: list[Encoded], b: list[Encoded]) -> bool:
    if len(a) != len(b):
        return False
    left, right = sorted((_key(x), i) for i, x in enumerate(a)), sorted((_key(x), i) for i, x in enumerate(b))
    return all(
        x[0] == y[0] and equal(a[x[1]], b[y[1]]) for x, y in zip(left, right, strict=True)
    )  # the second test rejects NaN and opaque members


def _mappings_equal(a: Encoded, b: Encoded) -> bool:
    kinds, x, y = a[0] + b[0], a[1], b[1]
    if kinds == "OO":
        return _sequences_equal([["t", pair] for pair in x], [["t", pair] for pair in y])
    if kinds == "CC":  # a Counter does not tell a missing element from a count of zero
        x, y = ([pair for pair in pairs if not equal(pair[1], ["i", "0x0"])] for pairs in (x, y))
    if len(x) != len(y):
        return False
    x, y = (sorted(pairs, key=lambda pair: _key(pair[0])) for pairs in (x, y))
    return all(equal(p[0], q[0]) and equal(p[1], q[1]) for p, q in zip(x, y, strict=True))


def _key(value: Encoded) -> str:
    """A text that is the same for values that can be equal as set members or dict keys."""
    tag = value[0]
    if tag in "bifqdc":
        return _number_key(to_python(value))
    if tag in "ltk":
        return f"{tag}({','.join(_key(item) for item in value[1])})"
    if tag == "S":
        return f"S({','.join(sorted(_key(item) for item in value[1]))})"
    return repr(value)


def _number_key(number: Any) -> str:
    if isinstance(number, complex):
        if number.imag:
            return f"c{number!r}"
        number = number.real
    if isinstance(number, float) and not math.isfinite(number):
        return f"n{number!r}"
    if isinstance(number, decimal.Decimal):
        if not number.is_finite() or abs(int(number.as_tuple().exponent)) > 10_000:
            return f"n{str(number).lower()}"
    numerator, denominator = number.as_integer_ratio()
    return f"n{numerator:x}/{denominator:x}"


def to_python(value: Encoded) -> Any:
    """The Python value of an encoded number, string, bytes, range, None, or list or tuple of such.

    Raises:
        ValueError: the value is opaque or of another kind (sets and dicts would hash what the candidate chose).
    """
    tag = value[0]
    if tag == "b":
        return bool(value[1])
    if tag == "i":
        return int(value[1], 16)
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
    if tag == "s":
        return value[1]
    if tag == "y":
        return bytes.fromhex(value[1])
    if tag in "lt":
        items = [to_python(item) for item in value[1]]
        return items if tag == "l" else tuple(items)
    raise ValueError("this value has no plain Python form")


def well_formed(value: Any, depth: int = 0) -> bool:
    """Whether something that came over the pipe is an encoding at all (the candidate may have written it)."""
    if not isinstance(value, list) or not value or depth > MAX_DEPTH + 2:
        return False
    tag, parts = value[0], value[1:]
    if tag in ("n", "e", "?"):
        return not parts
    if tag in ("l", "t", "k", "S"):
        return len(parts) == 1 and isinstance(parts[0], list) and all(well_formed(item, depth + 1) for item in parts[0])
    if tag in ("D", "O", "C"):
        pairs = parts[0] if len(parts) == 1 else None
        return isinstance(pairs, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(well_formed(item, depth + 1) for item in pair)
            for pair in pairs
        )
    if tag == "b":
        return len(parts) == 1 and parts[0] in (0, 1)
    if tag not in ("i", "f", "c", "q", "d", "r", "s", "y") or not all(isinstance(part, str) for part in parts):
        return False
    try:
        to_python(value)
    except (ValueError, TypeError, IndexError, ArithmeticError):
        return False
    return True
