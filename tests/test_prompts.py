"""The wording: data with a fixed shape, filled in one pass, with the sentences of each variant."""

import hashlib
from pathlib import Path

import pytest

from glyph.protocol import (
    Arm,
    Breach,
    Decision,
    Detail,
    Label,
    Prediction,
    parse_prediction_turn,
    parse_turn,
    read_prediction,
)
from glyph.tasks.prompts import DEFAULT_PROMPTS, Wording, load_wording, opening
from glyph.tasks.task import CodeTask
from glyph.variants import STANDARD, Variant, parse_variant
from glyph.workspace import PLACEHOLDER
from tests.tiny_tasks import DOUBLE

A, B = Arm.REACTIVE, Arm.PREDICTIVE


@pytest.fixture(scope="module")
def wording() -> Wording:
    return load_wording()


def test_the_task_prompt_holds_the_assertions_verbatim(wording: Wording) -> None:
    system, user = opening(DOUBLE, A, STANDARD, wording)
    assert (system["role"], user["role"]) == ("system", "user")
    assert DOUBLE.text in user["content"]
    assert DOUBLE.test_code.strip() in user["content"]
    assert PLACEHOLDER.strip() in user["content"]
    assert DOUBLE.gold not in user["content"]


def test_inserted_text_is_not_searched_for_marks(wording: Wording) -> None:
    odd = CodeTask("1", "Print {tests} and {budget}.", "assert f('{text}') == {'placeholder': 1}\n", "")
    user = wording.user(odd)
    assert "Print {tests} and {budget}." in user
    assert "assert f('{text}') == {'placeholder': 1}" in user


def test_the_examples_in_the_system_prompts_are_of_the_grammar(wording: Wording) -> None:
    for arm in Arm:
        lines = wording.system(arm, STANDARD, 8).splitlines()
        calls = [line for line in lines if line.startswith("CALL ")]
        assert len(calls) == 3
        assert not any(isinstance(parse_turn(line), Breach) for line in calls)
    lines = wording.system(B, STANDARD, 8).splitlines()
    at = lines.index("<PREDICTION>LABEL</PREDICTION>")
    shown = "\n".join(lines[at : at + 3]).replace("LABEL", "PASS")
    turn = parse_prediction_turn(shown)
    assert isinstance(turn, Prediction)
    assert turn.decision is Decision.KEEP


@pytest.mark.parametrize("budget", [1, 8, 13])
def test_the_budget_is_told(wording: Wording, budget: int) -> None:
    for arm in Arm:
        assert f"You have {budget} calls in all." in wording.system(arm, STANDARD, budget)


def test_each_variant_says_what_the_agent_must_know(wording: Wording) -> None:
    def system(variant: str, arm: Arm = B) -> str:
        return wording.system(arm, parse_variant(variant), 8)

    standard = system("standard")
    assert system("forced_keep") == standard  # an intervention that the agent is not told of
    assert "DECISION" in standard
    assert "DECISION" not in system("ungated")
    assert "REVISE" not in system("ungated")
    assert system("random_gate(rate=0.5)").startswith(standard)
    assert "withheld" in system("random_gate(rate=0.5)")
    assert "also says how the tests end" in system("revise_feedback")
    for arm in Arm:
        text = system("test_budget(n=2,cost=3)", arm)
        assert "At most 2 of your calls may be tests, and each test costs 3 calls." in text
    for variant in ("standard", "ungated", "random_gate(rate=0.5)", "revise_feedback", "test_budget(n=2,cost=3)"):
        assert not any(mark in system(variant) for mark in ("{budget}", "{tests}", "{test_cost}", "{n}"))


def test_a_detailed_prediction_is_asked_for_by_an_example_of_its_grammar(wording: Wording) -> None:
    standard = wording.system(B, STANDARD, 8)
    for level, detail in ((Detail.INDEX, "2"), (Detail.VALUE, "2 [1, 2]")):
        text = wording.system(B, Variant(detail=level), 8)
        assert text.startswith(standard)
        line = text[len(standard) :].split(": ")[1].removesuffix(".")
        assert read_prediction(line, level) == (Label.ASSERTION_FAILURE, detail)


def test_the_details_do_not_change_the_wording_and_can_be_replaced(tmp_path: Path, wording: Wording) -> None:
    assert wording.digest == hashlib.sha256(DEFAULT_PROMPTS.read_bytes()).hexdigest()
    other = tmp_path / "mine.toml"
    other.write_text(DEFAULT_PROMPTS.read_text() + '\n[detail]\nindex = "Say which."\nvalue = "Say what."\n')
    assert load_wording(other).system(B, Variant(detail=Detail.VALUE), 8).endswith(" Say what.")
    short = tmp_path / "short.toml"
    short.write_text(DEFAULT_PROMPTS.read_text() + '\n[detail]\nindex = "Say which."\n')
    with pytest.raises(ValueError, match=r"\[detail\] must hold exactly the texts index, value"):
        load_wording(short)


def test_shots_stand_between_system_and_task(wording: Wording) -> None:
    shot = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    messages = opening(DOUBLE, A, STANDARD, wording, shots=[shot, shot])
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    messages[1]["content"] = "changed"
    assert shot[0]["content"] == "u"


def test_another_wording_is_another_file(tmp_path: Path, wording: Wording) -> None:
    text = DEFAULT_PROMPTS.read_text()
    other = tmp_path / "mine.toml"
    other.write_text(text.replace("You are a coding agent.", "You write Python."))
    assert load_wording(other).system(A, STANDARD, 8).startswith("You write Python.")
    assert load_wording(other).digest != wording.digest
    assert len(wording.digest) == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("[task]", "[job]"), r"\[task\] must hold exactly the texts user"),
        (lambda text: text.replace("call_id =", "callid ="), r"\[demonstration\] must hold exactly"),
        (lambda text: text.replace('call_id = "{n}"', "call_id = 3"), r"\[demonstration\]"),
        (lambda text: text + "\nmore = 'x'\n", r"\[demonstration\]"),
        (lambda text: "[", "cannot read the prompts"),
    ],
)
def test_a_malformed_wording_is_refused(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(change(DEFAULT_PROMPTS.read_text()))
    with pytest.raises(ValueError, match=message):
        load_wording(path)


def test_a_missing_wording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the prompts"):
        load_wording(tmp_path / "nowhere.toml")
