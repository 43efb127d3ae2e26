"""Arbitrary rollouts: whatever is said, in either arm and any variant, the record keeps its promises.

A turn is drawn for the moment that it answers: of the grammar with plausible arguments most of the time, else mutated
or any text; with any finish reason and usage.
"""

import json

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from glyph.episode import AskModel, Episode, ModelTurn, Rules
from glyph.protocol import (
    Arm,
    Call,
    Decision,
    Label,
    Prediction,
    StopReason,
    Tool,
    render_call,
    render_final,
    render_prediction,
)
from glyph.records import RolloutRecord, record_from_dict
from glyph.variants import Gate, Variant
from glyph.workspace import PROJECT_PATH, SOLUTION_PATH, Workspace
from tests.scripts import LABELS, OPENING, judge

CONTEXT = 4_096
WORDS = [*LABELS, "neither", "good\nwrong", ""]
PATHS = ["./solution.py", "a/../solution.py", "other.py", ".", "..", "/etc/passwd", "", "a\0b"]
PROJECTS = ["./", "a/..", "..", "", "solution.py"]
NOISE = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Cc", "Zl", "Ll"]), max_size=20)
FINISH = ["stop", "stop", "tool_calls", "content_filter", ""]
COUNTS = st.tuples(st.none() | st.integers(0, 2_000), st.none() | st.integers(0, 2_096))
LARGE = st.tuples(st.integers(0, CONTEXT), st.integers(0, CONTEXT))


def mostly(usual: str, *rare: str, odds: int = 12) -> st.SearchStrategy[str]:
    """`usual`, or one of the others once in about `odds` draws."""
    half = [usual] * (len(rare) * odds // 2)
    return st.sampled_from([*half, *rare, *half])


@st.composite
def variants(draw: st.DrawFn, arm: Arm) -> Variant:
    tests = draw(st.none() | st.integers(0, 3))
    budgeted = {"tests": tests, "test_cost": 1 if tests is None else draw(st.integers(1, 5))}
    if arm is Arm.REACTIVE:
        return Variant(**budgeted)
    gate = draw(st.sampled_from(list(Gate)))
    rate, seed = (draw(st.sampled_from([0.0, 0.5, 1.0])), draw(st.integers(0, 9))) if gate is Gate.RANDOM else (0.0, 0)
    return Variant(gate, rate, seed, draw(st.booleans()) and gate is not Gate.UNGATED, **budgeted)


@st.composite
def rules(draw: st.DrawFn, arm: Arm) -> Rules:
    variant, budget = draw(variants(arm)), draw(st.integers(1, 10))
    assume(variant.tests == 0 or variant.test_cost <= budget)
    return Rules(arm, variant, budget, CONTEXT)


@st.composite
def calls(draw: st.DrawFn, tool: Tool, number: int, solution: str) -> Call:
    call_id = draw(mostly(f"c{number}", "c1", "", "\n", "x" * 65, odds=40))
    if tool is Tool.PYTHON_TEST:
        return Call(tool, call_id, {"project_path": draw(mostly(PROJECT_PATH, *PROJECTS, odds=25))})
    arguments = {"file_path": draw(mostly(SOLUTION_PATH, *PATHS, odds=25))}
    if tool is Tool.APPLY_PATCH:
        arguments["find"] = draw(mostly(solution, *WORDS)) if draw(mostly("whole", "noise")) == "whole" else draw(NOISE)
        arguments["replace"] = draw(st.sampled_from(["good", *WORDS, "good"]) | NOISE)
    return Call(tool, call_id, arguments)


@st.composite
def well_formed(draw: st.DrawFn, episode: Episode, number: int) -> str:
    """A turn of the grammar, of the kind that is due more often than not."""
    arm, gated, said = episode.rules.arm, episode.rules.variant.gated, episode.messages[-1]["content"]
    due = (
        draw(st.sampled_from(["final", "any"])) if "tests passed" in said else "patch" if "withheld" in said else "any"
    )
    if arm is Arm.PREDICTIVE and ("patch applied" in said or "patch failed" in said):
        due = "prediction"
    elif "patch applied" in said:  # Arm A may end untested, which earns nothing
        due = draw(st.sampled_from(["any", "final", "any"]))
    kind = draw(mostly(due, "any", "prediction", "final"))
    if kind == "final":
        return render_final(draw(st.sampled_from(["done", ""])))
    if kind == "prediction":
        decision = draw(st.sampled_from(list(Decision))) if gated else None
        tool = Tool.APPLY_PATCH if decision is Decision.REVISE else Tool.PYTHON_TEST
        call = draw(calls(tool, number, episode.workspace.solution))
        return render_prediction(Prediction(draw(st.sampled_from(list(Label))), decision, call))
    usual = Tool.PYTHON_TEST if "patch applied" in said else Tool.APPLY_PATCH
    tool = usual if kind == "patch" else Tool(draw(mostly(usual.value, *(each.value for each in Tool), odds=3)))
    return render_call(draw(calls(tool, number, episode.workspace.solution)))


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
    lines = text.split("\n")
    return draw(
        st.sampled_from(
            [
                text[:at],
                text[:at] + text[at + length :],
                text[: at + length] + text[at:],
                text[:at] + draw(NOISE) + text[at:],
                text.swapcase(),
                text.replace("KEEP", "REVISE"),
                text.replace("PASS", "PASSED"),
                f"\n {text}\n",
                f"{text}\nFINAL: done",
                f"```\n{text}\n```",
                text.replace("\n", "\r\n"),
                "\n".join(reversed(lines)),
                "\n".join(lines[1:]),
            ]
        )
    )


@st.composite
def model_turns(draw: st.DrawFn, episode: Episode, number: int) -> ModelTurn:
    how = draw(mostly("whole", "refused", "mutated", "mutated", "noise", "length", "long", odds=15))
    if how == "refused":
        return ModelTurn("", overflow=True)
    text = draw(NOISE) if how == "noise" else draw(well_formed(episode, number))
    text = draw(mutated(text)) if how == "mutated" else text
    finish = "length" if how == "length" else draw(st.sampled_from(FINISH))
    return ModelTurn(text, finish, *draw(LARGE if how == "long" else COUNTS))


def played(data: st.DataObject, chosen: Rules) -> tuple[Episode, list[ModelTurn]]:
    episode, turns = Episode(chosen, "t1", [dict(message) for message in OPENING], Workspace()), []
    action = episode.start()
    while action is not None:
        if isinstance(action, AskModel):
            turns.append(data.draw(model_turns(episode, len(turns) + 1)))
            action = episode.send(turns[-1])
        else:
            action = episode.send(judge(action.source))
    return episode, turns


def cut(turn: ModelTurn) -> bool:
    known = turn.prompt_tokens is not None and turn.completion_tokens is not None
    beyond = known and turn.prompt_tokens + turn.completion_tokens > CONTEXT  # type: ignore[operator]
    return turn.overflow or turn.finish_reason == "length" or beyond


def prediction_turns(messages: list[dict[str, str]], record: RolloutRecord) -> list[int]:
    """The assistant messages that had to be prediction turns, from the calls before them and what was said to them."""
    found = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or record.arm != "b":
            continue
        earlier = [c for c in record.calls if c.message_index < i and (c.tool is Tool.PYTHON_TEST or c.success)]
        edits = [c.tool for c in earlier if c.tool is not Tool.READ_FILE]
        owed = messages[i - 1]["content"].endswith("test withheld: answer with one apply_patch call")
        if edits and edits[-1] is Tool.APPLY_PATCH and not owed:
            found.append(i)
    return found


@pytest.mark.parametrize("arm", list(Arm), ids="ab")
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_any_rollout_keeps_the_promises_of_its_record(arm: Arm, data: st.DataObject) -> None:
    chosen = data.draw(rules(arm))
    episode, turns = played(data, chosen)
    record, messages = episode.record(), episode.messages
    event(f"stop {record.stop_reason.value}")
    event(f"reward {record.reward}")
    event(f"targets {min(len(record.targets), 3)}")

    # Messages: as sampled, and every call and target points to one.
    sampled = [turn.text for turn in turns if not turn.overflow]
    assistant = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    assert [messages[i]["content"] for i in assistant] == sampled
    assert len(record.usage) == len(sampled)
    assert {each.message_index for each in (*record.calls, *record.targets)} <= set(assistant)
    asked = [call.message_index for call in record.calls]
    assert asked == sorted(set(asked))  # at most one call a turn
    for call in record.calls:
        assert messages[call.message_index + 1]["content"].startswith(f"RESULT {call.id}:\nstatus: ")
    assert len({call.id for call in record.calls}) == len(record.calls)

    # The budget, and with it an end: no turn is free but the one whose test was withheld.
    assert sum(call.cost for call in record.calls) <= chosen.budget
    assert len(turns) <= 2 * chosen.budget + 1
    visible = [call for call in record.calls if call.label is not None]
    assert chosen.variant.tests is None or len(visible) <= chosen.variant.tests

    # Stops.
    assert [cut(turn) for turn in turns[:-1]] == [False] * (len(turns) - 1)
    assert (record.stop_reason in (StopReason.LENGTH, StopReason.CONTEXT)) == cut(turns[-1])
    assert (record.stop_reason is StopReason.PROTOCOL) == (record.protocol_error is not None)
    assert record.protocol_error is None or record.protocol_error.message_index == assistant[-1]

    # Targets: one a prediction turn that was not cut, each with the outcome of its candidate.
    due = prediction_turns(messages, record)
    whole = [i for i in due if not (cut(turns[-1]) and not turns[-1].overflow and i == assistant[-1])]
    assert [target.message_index for target in record.targets] == whole
    sources = {candidate.sha256: candidate.source for candidate in record.candidates}
    for target in record.targets:
        assert target.verified_label is judge(sources[target.candidate_sha256]).label
        assert target.shadow == (target.message_index not in {call.message_index for call in visible})
        assert not (target.overridden and chosen.variant.gate in (Gate.SAMPLED, Gate.UNGATED))
    for candidate in record.candidates:
        assert candidate.verdict == judge(candidate.source)
        assert candidate.tested or candidate.shadow

    # The reward.
    assert record.final_verdict == judge(episode.workspace.solution)
    earned = record.final_verdict.label is Label.PASS and any(call.label is Label.PASS for call in record.calls)
    assert record.reward == float(record.stop_reason is StopReason.FINAL and earned)
    assert record_from_dict(json.loads(json.dumps(record.to_dict()))) == record
