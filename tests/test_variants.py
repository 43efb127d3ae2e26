"""Variants: their text form, what contradicts, and who decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glyph.episode import Rules
from glyph.protocol import Arm, Decision, Detail
from glyph.variants import STANDARD, Gate, Variant, parse_variant

KEEP, REVISE = Decision.KEEP, Decision.REVISE


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("standard", Variant()),
        ("forced_keep", Variant(Gate.FORCED_KEEP)),
        ("ungated", Variant(Gate.UNGATED)),
        ("random_gate(rate=0.25)", Variant(Gate.RANDOM, 0.25)),
        ("random_gate(rate=0.25,seed=7)", Variant(Gate.RANDOM, 0.25, 7)),
        ("random_gate( rate = 1 , seed = 7 )", Variant(Gate.RANDOM, 1.0, 7)),
        ("revise_feedback", Variant(revise_feedback=True)),
        ("test_budget", Variant(tests=1, test_cost=1)),
        ("test_budget(n=2,cost=4)", Variant(tests=2, test_cost=4)),
        ("test_budget(n=0)", Variant(tests=0)),
        ("detailed_prediction", Variant(detail=Detail.INDEX)),
        ("detailed_prediction(level=index)", Variant(detail=Detail.INDEX)),
        ("ungated+detailed_prediction( level = value )", Variant(Gate.UNGATED, detail=Detail.VALUE)),
        ("forced_keep + test_budget(n=1,cost=4)", Variant(Gate.FORCED_KEEP, tests=1, test_cost=4)),
    ],
)
def test_a_variant_is_written_as_text(text: str, variant: Variant) -> None:
    assert parse_variant(text) == variant
    assert parse_variant(variant.name) == variant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "forced",
        "standard+",
        "forced_keep+ungated",
        "forced_keep+forced_keep",
        "test_budget(n=1)+test_budget(n=2)",
        "forced_keep(x=1)",
        "random_gate",
        "random_gate(rate=1.5)",
        "random_gate(rate=-0.1)",
        "random_gate(rate=nan)",
        "random_gate(rate=0.5,seed=1.5)",
        "random_gate(rate=0.5,seed=inf)",
        "random_gate(rate=0.5,rate=0.6)",
        "random_gate(0.5)",
        "test_budget(n=1.5)",
        "test_budget(n=-1)",
        "test_budget(cost=0)",
        "test_budget(n=1",
        "test_budget(n=inf)",
        "detailed_prediction(level=none)",
        "detailed_prediction(n=1)",
    ],
)
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="variant"):
        parse_variant(text)


@given(st.floats(0, 1), st.integers())
def test_the_name_loses_nothing(rate: float, seed: int) -> None:
    variant = Variant(Gate.RANDOM, rate, seed, revise_feedback=True, tests=3, test_cost=2)
    assert parse_variant(variant.name) == variant


def test_rules_that_contradict_each_other_are_refused() -> None:
    for text in ("forced_keep", "ungated", "random_gate(rate=0.5)", "revise_feedback", "detailed_prediction"):
        with pytest.raises(ValueError, match="Arm A"):
            Rules(Arm.REACTIVE, parse_variant(text))
        Rules(Arm.PREDICTIVE, parse_variant(text))
    with pytest.raises(ValueError, match="REVISE"):
        Rules(Arm.PREDICTIVE, parse_variant("ungated+revise_feedback"))
    with pytest.raises(ValueError, match="whole budget of 8"):
        Rules(Arm.REACTIVE, parse_variant("test_budget(n=1,cost=9)"))
    Rules(Arm.REACTIVE, parse_variant("test_budget(n=0,cost=9)"))
    for limits in ({"budget": 0}, {"max_context_tokens": 0}):
        with pytest.raises(ValueError, match="positive"):
            Rules(Arm.REACTIVE, **limits)


def test_who_decides() -> None:
    for sampled in Decision:
        assert STANDARD.decide(sampled, "") is sampled
        assert parse_variant("forced_keep").decide(sampled, "") is KEEP
        assert parse_variant("random_gate(rate=0)").decide(sampled, "") is KEEP
        assert parse_variant("random_gate(rate=1)").decide(sampled, "") is REVISE
    assert parse_variant("ungated").decide(None, "") is KEEP
    assert [parse_variant(text).gated for text in ("standard", "forced_keep", "ungated")] == [True, True, False]


def test_the_coin_is_seeded_and_has_the_given_rate() -> None:
    def flips(seed: int) -> list[bool]:
        gate = Variant(Gate.RANDOM, 0.2, seed)
        return [gate.decide(KEEP, f"conversation {i}") is REVISE for i in range(5_000)]

    assert flips(1) == flips(1)
    assert flips(1) != flips(2)
    assert 0.17 < sum(flips(1)) / 5_000 < 0.23  # five standard errors of 0.0057
    assert Variant(Gate.RANDOM, 0.5).decide(KEEP, "\ud800") in Decision
