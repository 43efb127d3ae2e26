"""Scripted rollouts for the tests: turns by short names, a judge that knows each candidate, and a player."""

import json
from collections.abc import Iterable

from glyph.episode import Episode, ModelTurn, Rules, drive
from glyph.protocol import Label
from glyph.records import RolloutRecord, Verdict
from glyph.workspace import PLACEHOLDER, Workspace

OPENING = [{"role": "system", "content": "You write Python."}, {"role": "user", "content": "Write double(n)."}]
HERE = PLACEHOLDER.rstrip("\n")
LABELS = {
    "good": Label.PASS,
    "wrong": Label.ASSERTION_FAILURE,
    "raises": Label.RUNTIME_ERROR,
    "broken": Label.SYNTAX_ERROR,
    "loops": Label.TIMEOUT,
    "dies": Label.OTHER,
}
"""What the judge says of a file that holds this word; of every other file it says RUNTIME_ERROR."""


def call(tool: str, call_id: str, **arguments: str) -> str:
    return f"CALL {tool} {json.dumps({'id': call_id, **arguments})}"


def patch(call_id: str, after: str, before: str = HERE) -> str:
    return call("apply_patch", call_id, file_path="solution.py", find=before, replace=after)


def visible(call_id: str) -> str:
    return call("python_test", call_id, project_path=".")


def read(call_id: str) -> str:
    return call("read_file", call_id, file_path="solution.py")


def keep(label: str, call_id: str) -> str:
    return f"<PREDICTION>{label}</PREDICTION>\n<DECISION>KEEP</DECISION>\n{visible(call_id)}"


def revise(label: str, call_id: str, after: str, before: str) -> str:
    return f"<PREDICTION>{label}</PREDICTION>\n<DECISION>REVISE</DECISION>\n{patch(call_id, after, before)}"


def predict(label: str, call_id: str) -> str:
    """The turn of the ungated grammar."""
    return f"<PREDICTION>{label}</PREDICTION>\n{visible(call_id)}"


def judge(source: str) -> Verdict:
    label = next((label for word, label in LABELS.items() if word in source), Label.RUNTIME_ERROR)
    if label is Label.ASSERTION_FAILURE:
        return Verdict(label, label, failed_step=2, failed_assertion=2, observed="[1, 2]")
    return Verdict(label, label, failed_step=None if label is Label.PASS else 0)


def play(rules: Rules, turns: Iterable[str | ModelTurn]) -> tuple[RolloutRecord, list[str], list[str]]:
    """The record, the tool messages and the sources that were tested, in order."""
    script, tested = iter(turns), []

    def ask(_: list[dict[str, str]]) -> ModelTurn:
        turn = next(script)
        return turn if isinstance(turn, ModelTurn) else ModelTurn(turn)

    def run(source: str) -> Verdict:
        tested.append(source)
        return judge(source)

    episode = Episode(rules, "t1", [dict(message) for message in OPENING], Workspace())
    drive(episode, ask, run)
    assert next(script, None) is None, "the rollout ended before the script did"
    return episode.record(), [m["content"] for m in episode.messages if m["role"] == "tool"], tested
