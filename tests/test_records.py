"""The record: its JSON form, what is refused on reading, and the reward."""

import json
from dataclasses import replace
from typing import Any

import pytest

from glyph.protocol import BreachKind, Decision, Label, StopReason, Tool
from glyph.records import SCHEMA_VERSION, CallRecord, RolloutRecord, TurnUsage, Verdict, record_from_dict
from tests.builders import breach, patch, record, target, visible_test

FULL = replace(
    record(
        targets=(
            target(Label.PASS, Label.TIMEOUT, Decision.REVISE, effective_decision=Decision.KEEP, overridden=True),
        ),
        usage=(TurnUsage(100, None),),
        protocol_error=breach(BreachKind.DUPLICATE_ID),
        final_text="\u2028 NUL \0 é",
        environment={"isolation": "process"},
    ),
    calls=(CallRecord("c1", Tool.PYTHON_TEST, 4, False, 4, Label.TIMEOUT, True, True),),
)


def test_a_record_survives_json() -> None:
    for each in (FULL, record(), RolloutRecord("t", "a", "standard", StopReason.CONTEXT)):
        assert record_from_dict(json.loads(json.dumps(each.to_dict()))) == each


def test_a_record_from_before_the_details_reads() -> None:
    data = FULL.to_dict()
    for target_data in data["targets"]:
        assert (target_data.pop("detail"), target_data.pop("verified_detail")) == (None, None)
    for verdict in (data["final_verdict"], *(candidate["verdict"] for candidate in data["candidates"])):
        assert (verdict.pop("failed_assertion"), verdict.pop("observed")) == (None, None)
    assert record_from_dict(data) == FULL


def test_a_record_names_its_schema() -> None:
    data = record().to_dict()
    assert data["schema_version"] == SCHEMA_VERSION == 1
    for version in (0, 2, "1", None):
        with pytest.raises(ValueError, match="schema_version"):
            record_from_dict({**data, "schema_version": version})
    for nothing in (None, [], "x", {}):
        with pytest.raises(ValueError, match="schema_version"):
            record_from_dict(nothing)


def planted(path: str, value: Any) -> dict[str, Any]:
    """The full record as JSON with one value exchanged; `path` names it with dots."""
    data = json.loads(json.dumps(FULL.to_dict()))
    at: Any = data
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        at = at[step]
    at[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("stop_reason", "bored", "record.stop_reason: expected one of"),
        ("stop_reason", [], "record.stop_reason"),
        ("stop_reason", None, "record.stop_reason"),
        ("calls", {}, "record.calls: expected a list"),
        ("calls.0.tool", "rm", r"record.calls\[0\].tool"),
        ("calls.0.cost", True, r"record.calls\[0\].cost: expected int"),
        ("calls.0.cost", "1", r"record.calls\[0\].cost"),
        ("calls.0", 7, r"record.calls\[0\]: expected an object"),
        ("usage.0.prompt_tokens", 1.5, r"record.usage\[0\].prompt_tokens"),
        ("environment", [], "record.environment: expected an object"),
        ("environment.isolation", 3, "record.environment.isolation: expected str"),
        ("wall_seconds", "1", "record.wall_seconds: expected float"),
        ("wall_seconds", 10**400, "record.wall_seconds"),
        ("surprise", 1, "only known fields"),
        ("targets.0.verified_label", None, r"record.targets\[0\].verified_label"),
    ],
)
def test_what_does_not_fit_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record_from_dict(planted(path, value))


def test_a_missing_field_is_named() -> None:
    data = record().to_dict()
    del data["arm"]
    with pytest.raises(ValueError, match=r"missing \['arm'\]"):
        record_from_dict(data)


def test_whole_numbers_may_stand_for_seconds() -> None:
    assert record_from_dict(planted("wall_seconds", 3)).wall_seconds == 3.0


FAILED = Verdict(Label.TIMEOUT, Label.TIMEOUT)


@pytest.mark.parametrize(
    "change",
    [
        {"stop_reason": StopReason.BUDGET},
        {"stop_reason": StopReason.LENGTH},
        {"stop_reason": StopReason.CONTEXT},
        {"stop_reason": StopReason.PROTOCOL, "protocol_error": breach(BreachKind.NOT_A_TURN)},
        {"protocol_error": breach(BreachKind.NOT_A_TURN)},
        {"final_verdict": FAILED},
        {"final_verdict": None},
        {"calls": (patch("c1"),)},
        {"calls": (patch("c1"), visible_test("c2", Label.ASSERTION_FAILURE))},
        {"calls": (patch("c1"), visible_test("c2", None))},
    ],
)
def test_each_condition_of_the_reward_is_needed(change: dict[str, Any]) -> None:
    solved = record()
    assert solved.reward == 1.0
    assert replace(solved, **change).reward == 0.0


def test_a_pass_before_the_last_patch_counts_with_the_final_check() -> None:
    calls = (patch("c1"), visible_test("c2", Label.PASS), patch("c3"))
    assert replace(record(), calls=calls).reward == 1.0
