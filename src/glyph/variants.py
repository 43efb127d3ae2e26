"""Variants of an arm: small, named policies that the state machine asks. There is no second copy of the loop.

A variant is written as text, or several joined by `+`. All but `test_budget` are of Arm B. A `module:attribute` is a
variant of the user's own, an instance of `Variant` or of a subclass (docs/extending.md), and stands alone.

- `standard`: the published behaviour.
- `forced_keep`: a sampled REVISE is carried out as KEEP: its patch is discarded, python_test runs under its id.
- `ungated`: prediction turns have no DECISION line: predict, then always test.
- `random_gate(rate=0.2,seed=1)`: a seeded coin decides, REVISE with probability `rate`. REVISE → KEEP is done as above.
  For KEEP → REVISE the test is withheld, at no cost, and a *continuation turn* is due: exactly one apply_patch CALL,
  without a prediction; anything else breaks the protocol. The id of the withheld test is used up.
- `revise_feedback`: the result of a revising patch that applied also tells the outcome of the rejected candidate.
- `test_budget(n=1,cost=4)`: at most n visible tests, each of which costs that many calls; a test beyond them is refused
  for one call.
- `detailed_prediction(level=index)`: a prediction may say which assertion fails first (`ASSERTION_FAILURE 2`); with
  `level=value` also what the candidate gives there (`ASSERTION_FAILURE 2 [1, 2]`). The verified label says it too.
"""

import hashlib
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

from glyph.plugins import is_reference, load
from glyph.protocol import Arm, Decision, Detail


class Gate(str, Enum):
    """Who decides between KEEP and REVISE."""

    SAMPLED = "sampled"
    FORCED_KEEP = "forced_keep"
    UNGATED = "ungated"
    RANDOM = "random_gate"


@dataclass(frozen=True)
class Variant:
    """How a rollout departs from the published environment.

    `rate` is the probability of REVISE under `random_gate` (the checkpoint's own rate). `tests` is the number of
    visible tests allowed, None without a limit, and `test_cost` what each takes from the budget of calls. `detail`
    is what a prediction says besides a failed assertion's label, None for nothing. `reference` is the name of a variant
    of the user's own, set where it is loaded.
    """

    gate: Gate = Gate.SAMPLED
    rate: float = 0.0
    seed: int = 0
    revise_feedback: bool = False
    tests: int | None = None
    test_cost: int = 1
    detail: Detail | None = None
    reference: str = field(default="", kw_only=True)

    @property
    def gated(self) -> bool:
        """Whether a prediction turn has a DECISION line."""
        return self.gate is not Gate.UNGATED

    @property
    def name(self) -> str:
        """The text that `parse_variant` reads as this variant."""
        if self.reference:
            return self.reference
        parts = []
        if self.gate is Gate.RANDOM:
            parts.append(f"random_gate(rate={self.rate!r},seed={self.seed})")
        elif self.gate is not Gate.SAMPLED:
            parts.append(self.gate.value)
        if self.revise_feedback:
            parts.append("revise_feedback")
        if self.tests is not None:
            parts.append(f"test_budget(n={self.tests},cost={self.test_cost})")
        if self.detail is not None:
            parts.append(f"detailed_prediction(level={self.detail.value})")
        return "+".join(parts) or "standard"

    def check(self, arm: Arm, budget: int) -> None:
        """Refuse what contradicts the arm or the budget.

        Raises:
            ValueError: a variant of predictions in Arm A, feedback without REVISE, or a test that no budget can pay.
        """
        decides = self.gate is not Gate.SAMPLED or type(self).decide is not Variant.decide
        if arm is Arm.REACTIVE and (decides or self.revise_feedback or self.detail):
            raise ValueError(f"variant {self.name!r} is about Arm B's predictions; Arm A knows test_budget only")
        if self.gate is Gate.UNGATED and self.revise_feedback:
            raise ValueError("variant revise_feedback needs a grammar with REVISE, ungated has none")
        if self.tests != 0 and self.test_cost > budget:
            raise ValueError(f"variant {self.name!r}: a test costs more than the whole budget of {budget}")

    def decide(self, sampled: Decision | None, conversation: str) -> Decision:
        """The decision that is carried out. The coin of `random_gate` is keyed by its seed and the conversation.

        `conversation` holds the contents of all messages, this turn's the last, joined by NUL. Sampled KEEP and another
        decided: the test is withheld and a patch is due. Sampled REVISE and KEEP decided: the test runs instead.
        """
        if self.gate in (Gate.FORCED_KEEP, Gate.UNGATED):
            return Decision.KEEP
        if self.gate is Gate.RANDOM:
            return Decision.REVISE if _coin(self.seed, conversation) < self.rate else Decision.KEEP
        assert sampled is not None  # the gated grammar always has a decision
        return sampled


STANDARD = Variant()
_PART = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?")
_Parameter: TypeAlias = int | float | Detail
_PARAMETERS: dict[str, dict[str, type[_Parameter]]] = {
    "standard": {},
    "forced_keep": {},
    "ungated": {},
    "random_gate": {"rate": float, "seed": int},
    "revise_feedback": {},
    "test_budget": {"n": int, "cost": int},
    "detailed_prediction": {"level": Detail},
}
_EXPECTED = {int: "an integer", float: "a number", Detail: " or ".join(Detail)}


def parse_variant(text: str) -> Variant:
    """Read a variant from its text form.

    Raises:
        ValueError: an unknown variant or parameter, or parts that contradict each other; says what is expected.
    """
    if is_reference(text):
        return _own(text)
    variant, seen = STANDARD, set()
    for part in text.replace(" ", "").split("+"):
        match = _PART.fullmatch(part)
        if not match:
            raise ValueError(f"variant {part!r}: expected name or name(key=value,…)")
        if match[1] not in _PARAMETERS:
            raise ValueError(f"variant {match[1]!r}: expected one of {', '.join(_PARAMETERS)}, or module:attribute")
        if match[1] in seen:
            raise ValueError(f"variant {match[1]!r} stands twice in {text!r}")
        seen.add(match[1])
        variant = _with_part(variant, match[1], _parameters(match[1], match[2] or ""))
    return variant


def _own(reference: str) -> Variant:
    """A variant of the user's own, which from here on has its reference as its name."""
    variant: Variant = load(reference, {}, "variant", Variant)
    if not variant.gated:  # metrics know a rollout without decisions by the name of its variant
        raise ValueError(f"variant {reference!r}: one of your own must keep the DECISION line; without it is `ungated`")
    return replace(variant, reference=reference)


def _with_part(variant: Variant, name: str, given: dict[str, Any]) -> Variant:
    if name == "standard":
        return variant
    if name == "revise_feedback":
        return replace(variant, revise_feedback=True)
    if name == "detailed_prediction":
        return replace(variant, detail=given.get("level", Detail.INDEX))
    if name == "test_budget":
        tests, cost = int(given.get("n", 1)), int(given.get("cost", 1))
        if tests < 0 or cost < 1:
            raise ValueError(f"variant test_budget: n must be >= 0 and cost >= 1, got n={tests}, cost={cost}")
        return replace(variant, tests=tests, test_cost=cost)
    if variant.gate is not Gate.SAMPLED:
        raise ValueError(f"variant {name!r}: the gate is already {variant.gate.value!r}")
    if name == "random_gate" and ("rate" not in given or not 0 <= given["rate"] <= 1):
        raise ValueError("variant random_gate: needs rate between 0 and 1, the checkpoint's own REVISE rate")
    return replace(variant, gate=Gate(name), rate=given.get("rate", 0.0), seed=int(given.get("seed", 0)))


def _parameters(name: str, text: str) -> dict[str, _Parameter]:
    known, given = _PARAMETERS[name], {}
    for item in text.split(",") if text else ():
        key, _, value = item.partition("=")
        if key not in known or key in given:
            raise ValueError(f"variant {name!r}: parameter {key!r} is unknown or given twice, known are {list(known)}")
        try:
            given[key] = known[key](value)
        except ValueError:
            raise ValueError(f"variant {name!r}: {key} must be {_EXPECTED[known[key]]}, got {value!r}") from None
    return given


def _coin(seed: int, conversation: str) -> float:
    """A number in [0, 1) that depends on the seed and the conversation alone."""
    digest = hashlib.sha256(f"{seed}\0{conversation}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
