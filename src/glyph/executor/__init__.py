"""Verdicts on candidates that cannot be forged. Stdlib only: the sandbox ships it as it is.

    with Executor() as executor:
        verdict = executor.run("def f(x): return x + 1", "assert f(1) == 2")

Expected values stay in this process; the candidate's process answers questions with encoded values.
`docs/sandbox.md` has the design, the isolation levels and what each one does not cover.

The data's path: `assertions` (tests → steps) → `pool` (a zygote for the test) → `judging` (questions and answers) →
`rules` (the label). The other side: `zygote` (one fork a test), `worlds` (what shuts it in) → `child` (answers).
Exports are lazy, so that the zygote, which every candidate is a fork of, loads nothing of the parent's side.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glyph.executor.assertions import TestCodeError
    from glyph.executor.levels import LEVELS
    from glyph.executor.pool import Executor
    from glyph.executor.sandbox import ExecutorError, Limits

__all__ = ["LEVELS", "Executor", "ExecutorError", "Limits", "TestCodeError"]

_HOMES = {
    "Executor": "pool",
    "ExecutorError": "sandbox",
    "LEVELS": "levels",
    "Limits": "sandbox",
    "TestCodeError": "assertions",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"glyph.executor.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'glyph.executor' has no attribute {name!r}")
