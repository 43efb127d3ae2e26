"""The dotted names of all keys of a configuration, and how a key's type and bounds read."""

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from glyph.config.schema import Config, Section

_BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}", "min_length": "of length ≥ {}"}
_NAMES = {int: "int", float: "float", bool: "bool", str: "string", Path: "path"}


def sections(root: type[Config]) -> dict[str, type[Section]]:
    """The tables of a configuration by name, in order."""
    found = {name: field.annotation for name, field in root.model_fields.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, Section)}


def leaves(root: type[Config]) -> dict[str, FieldInfo]:
    """The keys that hold a value, by dotted name: those of no table first, then table by table."""
    tables = sections(root)
    found = {name: field for name, field in root.model_fields.items() if name not in tables}
    for table, kind in tables.items():
        found |= {f"{table}.{name}": field for name, field in kind.model_fields.items()}
    return found


def is_text(field: FieldInfo) -> bool:
    """Whether any text is a value of the key's type, so that an override needs no quotes."""
    return bool({str, Path} & {field.annotation, *get_args(field.annotation)})


def type_text(field: FieldInfo) -> str:
    """`int ≥ 1`, `"a" or "b"`, `[float, float]`: the type with its bounds, as TOML writes it."""
    return _bounded(field.annotation, field.metadata)


def _bounded(annotation: Any, metadata: Iterable[Any]) -> str:
    """`metadata` holds the bounds, of pydantic's `Field` or already taken apart."""
    apart = [part for each in metadata for part in getattr(each, "metadata", (each,))]
    values = ((text, getattr(each, name, None)) for each in apart for name, text in _BOUNDS.items())
    bounds = " and ".join(text.format(value) for text, value in values if value is not None)
    return f"{_annotation_text(annotation)} {bounds}".rstrip()


def _annotation_text(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return _choice(f'"{value}"' for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice(f'"{member.value}"' for member in annotation)
    if annotation in _NAMES:
        return _NAMES[annotation]
    return _parts_text(annotation)


def _choice(texts: Iterable[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last


def _parts_text(annotation: Any) -> str:
    inner = [part for part in get_args(annotation) if part is not NoneType]
    parts = [_bounded(getattr(part, "__origin__", part), getattr(part, "__metadata__", ())) for part in inner]
    return f"[{', '.join(parts)}]" if get_origin(annotation) is tuple else _choice(parts)


def flatten(tree: dict[str, Any], tables: dict[str, type[Section]]) -> Iterator[tuple[str, Any]]:
    """The dotted keys and values of a TOML tree; only what stands under a known table is descended into."""
    for name, value in tree.items():
        if name in tables and isinstance(value, dict):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            yield name, value
