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


def classify_death(verdict: Verdict, ending: dict[str, Any], cpu_seconds: int) -> Verdict:
    """The verdict on a candidate whose process hung up: by signal, exit code and CPU time used."""
    code = ending["exit_code"]
    if not ending["natural"]:
        return verdict  # it closed its channel and lived on
    killed_for_cpu = code == -signal.SIGXCPU or (code == -signal.SIGKILL and ending["cpu_seconds"] >= cpu_seconds)
    if killed_for_cpu:
        return replace(verdict, label=Label.TIMEOUT, published_label=Label.TIMEOUT, reason="cpu limit")
    if code is not None and code < 0:
        return replace(verdict, reason=f"signal {-code}", published_label=Label.OTHER)
    return replace(verdict, reason=f"exit code {code}")


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
