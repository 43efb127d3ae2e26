"""What a metric asks of one rollout: predicates and counts, each written once.

In: a `Rollout` (a record, and the test code where it is known). Out: a bool, or the numerator and denominator that
the rollout adds to a metric. `definitions.py` names them; the report and the taskset both come here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from glyph.evaluation.hardcoded import check_hardcoded
from glyph.protocol import Arm, Decision, Label, Tool
from glyph.records import CallRecord, PredictionTarget, RolloutRecord


@dataclass(frozen=True)
class Rollout:
    """What a metric may look at: the record, and the task's test code where it is known."""

    record: RolloutRecord
    test_code: str | None = None


Counts = tuple[float, float]
"""Numerator and denominator of one rollout; (0, 0) where the rollout has no part in the metric."""

OUT: Counts = (0.0, 0.0)


def is_solved(record: RolloutRecord) -> bool:
    return record.reward == 1.0


def visible_tests(record: RolloutRecord) -> list[CallRecord]:
    """The visible tests that ran: a `python_test` that was refused (no budget, bad path) has no label."""
    return [call for call in record.calls if call.tool is Tool.PYTHON_TEST and call.label is not None]


def failed_visible_test(record: RolloutRecord) -> bool:
    return any(call.label is not Label.PASS for call in visible_tests(record))


def calls_spent(record: RolloutRecord) -> int:
    """What the calls took from the budget; equals their number unless a variant makes tests dear."""
    return sum(call.cost for call in record.calls)


def hit_cap(record: RolloutRecord) -> bool:
    return calls_spent(record) >= record.budget


def has_gate(record: RolloutRecord) -> bool:
    """Whether the policy was asked for decisions at all: Arm B in a grammar with a DECISION line."""
    return record.arm == Arm.PREDICTIVE.value and "ungated" not in record.variant.split("+")


def has_revised(record: RolloutRecord) -> bool:
    """Whether the policy chose REVISE at least once, as sampled: also where a variant overrode it."""
    return any(target.decision is Decision.REVISE for target in record.targets)


def call_failed(call: CallRecord) -> bool:
    """Whether a call did nothing: it was refused or its `find` did not fit. A test that ran did its work."""
    return not call.success and call.label is None


def is_hardcoded(rollout: Rollout) -> bool | None:
    """Whether the last candidate is flagged; None without a candidate or without the test code."""
    if not rollout.record.candidates or rollout.test_code is None:
        return None
    return check_hardcoded(rollout.record.candidates[-1].source, rollout.test_code).flagged


def share(numerator: bool, denominator: bool) -> Counts:
    return (float(numerator), 1.0) if denominator else OUT


def mean(value: float | None, included: bool = True) -> Counts:
    return (float(value), 1.0) if value is not None and included else OUT


def first_patch(rollout: Rollout) -> Counts:
    candidates = rollout.record.candidates
    verdict = candidates[0].verdict if candidates else None
    return share(verdict is not None and verdict.label is Label.PASS, verdict is not None)


def completion_tokens(record: RolloutRecord) -> int | None:
    counts = [turn.completion_tokens for turn in record.usage]
    return sum(count for count in counts if count is not None) if counts and None not in counts else None


def last_prompt_tokens(record: RolloutRecord) -> int | None:
    return record.usage[-1].prompt_tokens if record.usage else None


def patches(record: RolloutRecord) -> list[CallRecord]:
    return [call for call in record.calls if call.tool is Tool.APPLY_PATCH]


def over_targets(
    numerator: Callable[[PredictionTarget], bool], denominator: Callable[[PredictionTarget], bool] = lambda t: True
) -> Callable[[Rollout], Counts]:
    """Counts over the prediction targets of a rollout."""

    def count(rollout: Rollout) -> Counts:
        targets = [target for target in rollout.record.targets if denominator(target)]
        return float(sum(numerator(target) for target in targets)), float(len(targets))

    return count


def rejected(target: PredictionTarget) -> bool:
    return target.decision is Decision.REVISE


def is_bad(target: PredictionTarget) -> bool:
    return target.decision is not None and target.verified_label is not Label.PASS


def is_good(target: PredictionTarget) -> bool:
    return target.decision is not None and target.verified_label is Label.PASS


def hardcoded(rollout: Rollout, among: bool = True) -> Counts:
    flagged = is_hardcoded(rollout)
    return share(bool(flagged), flagged is not None and among)
