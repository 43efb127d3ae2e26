"""What a researcher adds without editing the package: a name is one of ours, or `module:attribute` of theirs.

A module is imported as Python does it, or from the working folder, which comes last: it hides nothing. Nothing is
registered and nothing is searched for. What its code raises at import, other than that it cannot be imported, is
left as it is: a fault of the programmer, with its traceback. Stdlib only, for the program in the sandbox loads
variants by it.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import TypeVar, cast

T = TypeVar("T")


def is_reference(name: str) -> bool:
    """Whether a name is meant as one of the user's own."""
    return ":" in name


def load(reference: str, known: Mapping[str, T], what: str, kind: type | None = None) -> T:
    """One of ours by its name, or what `module:attribute` names.

    Args:
        what: what is looked for, in words: the messages begin with it.
        kind: the type that a loaded object must have; None for anything that can be called.

    Raises:
        ValueError: an unknown name, a module that cannot be imported, no such attribute, an object of another kind.
    """
    if reference in known:
        return known[reference]
    module, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        ours = f"{' or '.join(known)}, or " if known else ""
        raise ValueError(f"{what} {reference!r}: expected {ours}module:attribute for one of your own")
    found = _attribute(module, attribute, f"{what} {reference!r}")
    if not (callable(found) if kind is None else isinstance(found, kind)):
        wanted = "a function" if kind is None else f"an object of type {kind.__name__}"
        got = f"the class {found.__name__}" if isinstance(found, type) else f"an object of type {type(found).__name__}"
        raise ValueError(f"{what} {reference!r}: expected {wanted}, got {got}")
    return cast("T", found)


def _attribute(module: str, attribute: str, named: str) -> object:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        importlib.invalidate_caches()  # the file may be newer than the last look into its folder
        imported = importlib.import_module(module)
    except (ImportError, SyntaxError) as error:
        raise ValueError(
            f"{named}: cannot import {module!r}: {error}; it must be a file in {here}, where this process runs, "
            "or a module that this Python finds"
        ) from error
    try:
        return getattr(imported, attribute)
    except AttributeError:
        origin = getattr(imported, "__file__", None) or "it has no file"
        raise ValueError(f"{named}: {module!r} ({origin}) has no {attribute!r}") from None
