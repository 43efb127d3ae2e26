"""Verdicts on candidates that cannot be forged. Stdlib only: the sandbox ships it as it is.

    with Executor() as executor:
        verdict = executor.run("def f(x): return x + 1", "assert f(1) == 2")

Expected values stay in this process; the candidate's process answers questions with encoded values.
`docs/sandbox.md` has the design, the isolation levels and what each one does not cover.
"""

from glyph.executor.assertions import TestCodeError
from glyph.executor.levels import LEVELS
from glyph.executor.pool import Executor, ExecutorError, Limits

__all__ = ["LEVELS", "Executor", "ExecutorError", "Limits", "TestCodeError"]
