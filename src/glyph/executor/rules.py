"""From what happened to a label: ours, and the one that the published study's rule would have given."""

import signal
from dataclasses import replace
from typing import Any

from glyph.protocol import Label
from glyph.records import Verdict


def classify_exception(report: dict[str, Any]) -> tuple[Label, str | None]:
    """The label of an exception that the candidate's process reported, and a sub-reason."""
    if report["phase"] == "compile":
        return Label.SYNTAX_ERROR, None
    if report["assertion"]:
        return Label.ASSERTION_FAILURE, None
    if report["exit"]:
        return Label.OTHER, "SystemExit"
    return Label.RUNTIME_ERROR, None


def classify_ending(verdict: Verdict, ending: dict[str, Any], hung_up: bool, cpu_seconds: int) -> Verdict:
    """Correct a verdict by how the candidate's process ended: exit code, signal and CPU time, as the kernel says.

    A candidate that has used up its CPU time is a time-out whatever it said: it may catch the kernel's signal.
    """
    code, used = ending["exit_code"], ending["cpu_seconds"]
    killed_by_limit = hung_up and code in (-signal.SIGXCPU, -signal.SIGKILL) and used > 0.8 * cpu_seconds
    if used >= cpu_seconds or killed_by_limit:
        return replace(verdict, label=Label.TIMEOUT, published_label=Label.TIMEOUT, reason="cpu limit")
    if not hung_up or not ending["natural"]:
        return verdict  # it was still there: it had answered, the wall clock ran out, or it closed its socket
    return replace(verdict, reason=f"signal {-code}" if code < 0 else f"exit code {code}")


def published_rule(traceback: str) -> Label:
    """The study's label: words in the formatted traceback, in this order. Kept for comparison only.

    Source: the published study's description of its executor; candidates' own output, which it also searched, is
    not seen here.
    """
    if "AssertionError" in traceback:
        return Label.ASSERTION_FAILURE
    if any(name in traceback for name in ("SyntaxError", "IndentationError", "TabError")):
        return Label.SYNTAX_ERROR
    if "Traceback" in traceback or "Error" in traceback:
        return Label.RUNTIME_ERROR
    return Label.OTHER
