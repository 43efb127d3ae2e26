"""Variants of an arm: small, named policies that the state machine asks. There is no second copy of the loop.

A variant is written as text, e.g. `forced_keep`, `random_gate(rate=0.2,seed=1)`, `test_budget(n=1,cost=4)`, or
several joined by `+`. `standard` is the published behaviour.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from enum import Enum

from glyph.protocol import Decision


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
    visible tests allowed, None without a limit, and `test_cost` what each takes from the budget of calls.
    """

    gate: Gate = Gate.SAMPLED
    rate: float = 0.0
    seed: int = 0
    revise_feedback: bool = False
    tests: int | None = None
    test_cost: int = 1

    @property
    def gated(self) -> bool:
        """Whether a prediction turn has a DECISION line."""
        return self.gate is not Gate.UNGATED

    @property
    def name(self) -> str:
        parts = []
        if self.gate is Gate.RANDOM:
            parts.append(f"random_gate(rate={self.rate:g},seed={self.seed})")
        elif self.gate is not Gate.SAMPLED:
            parts.append(self.gate.value)
        if self.revise_feedback:
            parts.append("revise_feedback")
        if self.tests is not None:
            parts.append(f"test_budget(n={self.tests},cost={self.test_cost})")
        return "+".join(parts) or "standard"

    def decide(self, sampled: Decision | None, conversation: str) -> Decision:
        """The decision that is carried out. The coin of `random_gate` is keyed by its seed and the conversation."""
        if self.gate in (Gate.FORCED_KEEP, Gate.UNGATED):
            return Decision.KEEP
        if self.gate is Gate.RANDOM:
            return Decision.REVISE if _coin(self.seed, conversation) < self.rate else Decision.KEEP
        assert sampled is not None  # the gated grammar always has a decision
        return sampled


STANDARD = Variant()
_PART = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?")


def parse_variant(text: str) -> Variant:
    """Read a variant from its text form.

    Raises:
        ValueError: an unknown variant or parameter; says which are known.
    """
    variant = STANDARD
    for part in text.replace(" ", "").split("+"):
        match = _PART.fullmatch(part)
        if not match:
            raise ValueError(f"variant {part!r}: expected name or name(key=value,…)")
        variant = _with_part(variant, match[1], _parameters(match[2] or "", part))
    return variant


def _with_part(variant: Variant, name: str, given: dict[str, float]) -> Variant:
    known = {"random_gate": {"rate", "seed"}, "test_budget": {"n", "cost"}}.get(name, set())
    if set(given) - known:
        raise ValueError(f"variant {name!r}: unknown parameter {sorted(set(given) - known)}, known {sorted(known)}")
    if name == "standard":
        return variant
    if name == "revise_feedback":
        return replace(variant, revise_feedback=True)
    if name == "test_budget":
        tests, cost = int(given.get("n", 1)), int(given.get("cost", 1))
        if tests < 0 or cost < 1:
            raise ValueError(f"variant test_budget: n must be >= 0 and cost >= 1, got n={tests}, cost={cost}")
        return replace(variant, tests=tests, test_cost=cost)
    if name not in ("forced_keep", "ungated", "random_gate"):
        options = "standard, forced_keep, ungated, random_gate, revise_feedback, test_budget"
        raise ValueError(f"variant {name!r}: expected one of {options}")
    if variant.gate is not Gate.SAMPLED:
        raise ValueError(f"variant {name!r}: the gate is already {variant.gate.value!r}")
    if name == "random_gate" and ("rate" not in given or not 0 <= given["rate"] <= 1):
        raise ValueError("variant random_gate: needs rate between 0 and 1, the checkpoint's own REVISE rate")
    return replace(variant, gate=Gate(name), rate=given.get("rate", 0.0), seed=int(given.get("seed", 0)))


def _parameters(text: str, part: str) -> dict[str, float]:
    try:
        return {key: float(value) for key, value in (item.split("=") for item in text.split(",") if item)}
    except ValueError:
        raise ValueError(f"variant {part!r}: parameters are key=number pairs") from None


def _coin(seed: int, conversation: str) -> float:
    """A number in [0, 1) that depends on the seed and the conversation alone."""
    digest = hashlib.sha256(f"{seed}\0{conversation}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
