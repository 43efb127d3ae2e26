"""Choosing the isolation level, once a process, and the interpreter that candidates run on."""

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glyph.executor.sandbox import Zygote

LEVELS = ("namespaces", "user", "process")
_chosen: dict[int, str] = {}


@lru_cache(maxsize=1)
def python_executable() -> str:
    """The real interpreter behind virtual environments and shims (a shim costs 100 ms and more a start)."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(base)


def choose_level(wanted: str, attempt: "Callable[[str], Zygote]") -> "tuple[str, Zygote | None]":
    """The level to use and, when it had to be tried, the zygote that proved it.

    "auto" is the best level that `attempt` does not refuse; it is remembered for the life of this process.

    Raises:
        ValueError: there is no such level.
        ExecutorError: the named level does not work here, or none does.
    """
    if wanted != "auto":
        if wanted not in LEVELS:
            raise ValueError(f"isolation level {wanted!r}: expected auto or one of {', '.join(LEVELS)}")
        return wanted, attempt(wanted)
    user = os.geteuid()
    if user in _chosen:
        return _chosen[user], None
    _chosen[user], zygote = _best(attempt)
    return _chosen[user], zygote


def _best(attempt: "Callable[[str], Zygote]") -> "tuple[str, Zygote]":
    from glyph.executor.sandbox import ExecutorError

    reasons = []
    for level in LEVELS:
        try:
            zygote = attempt(level)
        except ExecutorError as error:
            reasons.append(f"{level}: {error}")
            continue
        _announce(level, reasons)
        return level, zygote
    raise ExecutorError(f"no isolation level works here, see docs/sandbox.md: {'; '.join(reasons)}")


def _announce(level: str, reasons: list[str]) -> None:
    import logging  # only here: it is not needed for a start

    logger = logging.getLogger("glyph.executor")
    for reason in reasons:
        logger.warning("isolation level not available: %s", reason)
    logger.info("candidates run at isolation level %s", level)
    if level == "process" and os.geteuid() == 0:
        logger.warning(
            "CANDIDATES RUN AS ROOT WITHOUT ISOLATION: they can read and change every file. "
            "Allow user namespaces, or run as an ordinary user; see docs/sandbox.md"
        )
