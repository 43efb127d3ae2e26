"""Choosing the isolation level, once a process, and the interpreter that candidates run on."""

import logging
import os
import sys
from collections.abc import Callable
from functools import lru_cache

logger = logging.getLogger("glyph.executor")

LEVELS = ("namespaces", "user", "process")
_chosen: dict[int, str] = {}


@lru_cache(maxsize=1)
def python_executable() -> str:
    """The real interpreter behind virtual environments and shims (a shim costs 100 ms and more a start)."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(base)


def choose_level(wanted: str, probe: Callable[[str], str | None]) -> str:
    """The level to use: the named one, or with "auto" the best whose probe succeeds.

    Raises:
        ValueError: no such level, or the named one does not work here (with the reason).
    """
    if wanted != "auto":
        if wanted not in LEVELS:
            raise ValueError(f"isolation level {wanted!r}: expected auto or one of {', '.join(LEVELS)}")
        if wanted == "user":  # it may start and still leave a candidate without its standard library
            why_not = "it needs root" if os.geteuid() != 0 else probe(wanted)
            if why_not is not None:
                raise ValueError(f"isolation level {wanted!r} does not work here: {why_not}; use auto")
        return wanted
    key = os.geteuid()
    if key not in _chosen:
        _chosen[key] = _best(probe)
    return _chosen[key]


def _best(probe: Callable[[str], str | None]) -> str:
    for level in LEVELS:
        if level == "user" and os.geteuid() != 0:
            continue
        why_not = probe(level)
        if why_not is None:
            _announce(level)
            return level
        logger.warning("isolation level %s is not available: %s", level, why_not)
    raise RuntimeError("no isolation level works here, not even 'process'; see docs/sandbox.md")


def _announce(level: str) -> None:
    logger.info("candidates run at isolation level %s", level)
    if level == "process" and os.geteuid() == 0:
        logger.warning(
            "CANDIDATES RUN AS ROOT WITHOUT ISOLATION: they can read and change every file. "
            "Allow user namespaces, or run as an ordinary user; see docs/sandbox.md"
        )
