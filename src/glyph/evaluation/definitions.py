"""The table of metrics: name, unit, numerator and denominator of each.

Owns the meaning of every metric. A definition maps one rollout to its numerator and denominator; everything else
(pooling, intervals, tables, the taskset's metrics) is made from those two numbers elsewhere.
`docs/metrics.md` explains the conventions, and its tables are held equal to this one by a test.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from glyph.evaluation.predicates import (
    Counts,
    Rollout,
    call_failed,
    completion_tokens,
    failed_visible_test,
    first_patch,
    hardcoded,
    has_gate,
    has_revised,
    hit_cap,
    is_bad,
    is_good,
    is_solved,
    last_prompt_tokens,
    mean,
    over_targets,
    patches,
    rejected,
    share,
    visible_tests,
)
from glyph.protocol import BreachKind, Label, StopReason
from glyph.records import RolloutRecord


class Exposure(Enum):
    """How `rollout_metrics` shows a metric: its value, its two counts, or not at all."""

    VALUE = "value"
    COUNTS = "counts"
    NONE = "none"


@dataclass(frozen=True)
class Definition:
    """A metric: the sum of the rollouts' numerators over the sum of their denominators.

    `unit` is `share` (a proportion of the things that the denominator counts), `score` (F1), or what a mean is in
    (calls, tests, tokens). `numerator` and `denominator` say in words what `count` returns. `per_task` metrics
    average within a task first. `rollout_key` is the name in `rollout_metrics` where it is another one. A metric
    whose denominator can exceed 1 in a rollout is never exposed as a value: a mean of ratios is another metric.
    """

    name: str
    title: str
    section: str
    unit: str
    numerator: str
    denominator: str
    count: Callable[[Rollout], Counts]
    per_task: bool = False
    exposure: Exposure = Exposure.VALUE
    rollout_key: str | None = None


def _outcome() -> list[Definition]:
    section = "Outcome"
    return [
        Definition(
            "pass_at_1", "pass@1", section, "share", "the task's share of solved samples, summed over tasks",
            "tasks with a scored rollout", lambda r: share(is_solved(r.record), True),
            per_task=True, rollout_key="solved",
        ),
        Definition(
            "first_patch", "first patch correct", section, "share", "rollouts whose first candidate is verified PASS",
            "rollouts with a verified first candidate", first_patch,
        ),
        Definition(
            "recovery", "recovery after a failed test", section, "share", "of those, solved ones",
            "rollouts with at least one failed visible test",
            lambda r: share(is_solved(r.record), failed_visible_test(r.record)),
        ),
        Definition(
            "hardcoded", "hard-coded solutions", section, "share", "rollouts whose last candidate is flagged",
            "rollouts with a candidate and known test code", hardcoded,
        ),
        Definition(
            "hardcoded_solved", "hard-coded among solved", section, "share",
            "solved rollouts whose last candidate is flagged", "solved rollouts with known test code",
            lambda r: hardcoded(r, is_solved(r.record)),
        ),
    ]  # fmt: skip


def _cost() -> list[Definition]:
    section = "Cost"
    return [
        Definition(
            "tool_calls", "tool calls a rollout", section, "calls", "visible tool calls", "rollouts",
            lambda r: mean(len(r.record.calls)),
        ),
        Definition(
            "hit_cap", "at the budget cap", section, "share", "rollouts whose calls cost the whole budget", "rollouts",
            lambda r: share(hit_cap(r.record), True),
        ),
        Definition(
            "visible_tests", "visible tests a rollout", section, "tests", "visible tests that ran", "rollouts",
            lambda r: mean(len(visible_tests(r.record))),
        ),
        Definition(
            "visible_tests_per_solved", "visible tests a solved task", section, "tests",
            "visible tests that ran in solved rollouts", "solved rollouts",
            lambda r: mean(len(visible_tests(r.record)), is_solved(r.record)),
        ),
        Definition(
            "failed_calls", "failed tool calls", section, "share", "calls that were refused or did not apply",
            "visible tool calls",
            lambda r: (float(sum(map(call_failed, r.record.calls))), float(len(r.record.calls))),
            exposure=Exposure.COUNTS,
        ),
        Definition(
            "failed_patches", "failed patches (find)", section, "share", "apply_patch calls that did not apply",
            "apply_patch calls",
            lambda r: (float(sum(map(call_failed, patches(r.record)))), float(len(patches(r.record)))),
            exposure=Exposure.COUNTS,
        ),
        Definition(
            "completion_tokens", "completion tokens a rollout", section, "tokens", "completion tokens of all turns",
            "rollouts whose endpoint reported every turn", lambda r: mean(completion_tokens(r.record)),
        ),
        Definition(
            "last_prompt_tokens", "prompt tokens of the last turn", section, "tokens", "prompt tokens of the last turn",
            "rollouts whose endpoint reported it", lambda r: mean(last_prompt_tokens(r.record)),
        ),
        Definition(
            "shadow_tests", "shadow tests a rollout", section, "tests", "shadow tests", "rollouts",
            lambda r: mean(r.record.shadow_tests),
        ),
    ]  # fmt: skip


def _stops() -> list[Definition]:
    return [
        Definition(
            f"stop_{reason.value}", f"stop: {reason.value}", "Stop reasons", "share",
            f"rollouts that stopped with `{reason.value}`", "rollouts",
            lambda r, reason=reason: share(r.record.stop_reason is reason, True),  # type: ignore[misc]
        )
        for reason in StopReason
    ]  # fmt: skip


def _breaches() -> list[Definition]:
    def broke(rollout: Rollout, kind: BreachKind) -> bool:
        return rollout.record.protocol_error is not None and rollout.record.protocol_error.kind is kind

    return [
        Definition(
            f"protocol_{kind.value}", f"protocol error: {kind.value}", "Protocol errors", "share",
            f"rollouts ended by a `{kind.value}` breach", "rollouts",
            lambda r, kind=kind: share(broke(r, kind), True), exposure=Exposure.NONE,  # type: ignore[misc]
        )
        for kind in BreachKind
    ]  # fmt: skip


def _prediction() -> list[Definition]:
    section = "Prediction"
    return [
        Definition(
            "prediction_accuracy", "prediction accuracy", section, "share",
            "targets whose sampled label is the verified label", "prediction targets",
            over_targets(lambda t: t.label is t.verified_label), exposure=Exposure.COUNTS,
        ),
        Definition(
            "prediction_accuracy_published", "accuracy, published_label", section, "share",
            "targets whose sampled label is the study's label", "prediction targets",
            over_targets(lambda t: t.label is t.published_label), exposure=Exposure.COUNTS,
        ),
        Definition(
            "prediction_detail_accuracy", "accuracy of details", section, "share",
            "of those, label and detail were said as verified", "targets with a verified detail",
            over_targets(
                lambda t: t.label is t.verified_label and t.detail == t.verified_detail,
                lambda t: t.verified_detail is not None,
            ),
            exposure=Exposure.COUNTS,
        ),
        Definition(
            "malformed_predictions", "targets without a label", section, "share", "targets with no readable label",
            "prediction targets", over_targets(lambda t: t.label is None), exposure=Exposure.COUNTS,
        ),
    ]  # fmt: skip


def _classes() -> list[Definition]:
    return [definition for label in Label for definition in _class(label)]


def _class(label: Label) -> list[Definition]:
    name, section = label.value, "Prediction by class"
    predicted, true = f"targets predicted {name}", f"targets verified {name}"

    def f1(rollout: Rollout) -> Counts:
        both, said = over_targets(lambda t: t.verified_label is label, lambda t: t.label is label)(rollout)
        _, support = over_targets(lambda t: True, lambda t: t.verified_label is label)(rollout)
        return 2 * both, said + support

    return [
        Definition(
            f"base_rate_{name}", f"base rate {name}", section, "share", f"{true} (the support)", "prediction targets",
            over_targets(lambda t: t.verified_label is label), exposure=Exposure.NONE,
        ),
        Definition(
            f"precision_{name}", f"precision {name}", section, "share", "of those, verified so", predicted,
            over_targets(lambda t: t.verified_label is label, lambda t: t.label is label), exposure=Exposure.NONE,
        ),
        Definition(
            f"recall_{name}", f"recall {name}", section, "share", "of those, predicted so", true,
            over_targets(lambda t: t.label is label, lambda t: t.verified_label is label), exposure=Exposure.NONE,
        ),
        Definition(
            f"f1_{name}", f"F1 {name}", section, "score", "twice the targets both predicted and verified so",
            f"{predicted} + {true}", f1, exposure=Exposure.NONE,
        ),
    ]  # fmt: skip


def _gate() -> list[Definition]:
    section = "Gate"
    return [
        Definition(
            "bad_patch_rejection", "bad patches rejected", section, "share", "of those, REVISE was chosen",
            "targets with a decision, verified other than PASS", over_targets(rejected, is_bad),
            exposure=Exposure.COUNTS,
        ),
        Definition(
            "good_patch_rejection", "good patches rejected", section, "share", "of those, REVISE was chosen",
            "targets with a decision, verified PASS", over_targets(rejected, is_good), exposure=Exposure.COUNTS,
        ),
        Definition(
            "undecided_targets", "targets without a decision", section, "share", "targets with no readable decision",
            "prediction targets", over_targets(lambda t: t.decision is None), exposure=Exposure.COUNTS,
        ),
        Definition(
            "overridden_targets", "decisions overridden", section, "share",
            "targets whose decision a variant overrode", "prediction targets",
            over_targets(lambda t: t.overridden), exposure=Exposure.COUNTS,
        ),
        Definition(
            "wasted_shadow_tests", "wasted shadow tests", section, "share", "of those, verified PASS",
            "targets verified by a shadow test",
            over_targets(lambda t: t.verified_label is Label.PASS, lambda t: t.shadow), exposure=Exposure.COUNTS,
        ),
        *_split("never_revised", "never revised", lambda record: has_gate(record) and not has_revised(record)),
        *_split("revised", "revised", lambda record: has_gate(record) and has_revised(record)),
    ]  # fmt: skip


def _split(name: str, title: str, within: Callable[[RolloutRecord], bool]) -> list[Definition]:
    """One side of the never-revised/revised split: its share of the rollouts, pass rate, calls, share at the cap."""
    section, group = "Never revised / revised", f"{title} rollouts"
    return [
        Definition(
            f"{name}_share", f"{title}: share", section, "share", group, "rollouts of a gated arm",
            lambda r: share(within(r.record), has_gate(r.record)), exposure=Exposure.NONE,
        ),
        Definition(
            f"{name}_pass", f"{title}: solved", section, "share", f"solved {group}", group,
            lambda r: share(is_solved(r.record), within(r.record)), exposure=Exposure.NONE,
        ),
        Definition(
            f"{name}_calls", f"{title}: tool calls", section, "calls", f"visible tool calls of {group}", group,
            lambda r: mean(len(r.record.calls), within(r.record)), exposure=Exposure.NONE,
        ),
        Definition(
            f"{name}_hit_cap", f"{title}: at the cap", section, "share",
            f"{group} whose calls cost the whole budget", group,
            lambda r: share(hit_cap(r.record), within(r.record)), exposure=Exposure.NONE,
        ),
    ]  # fmt: skip


DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for family in (_outcome, _cost, _stops, _breaches, _prediction, _classes, _gate)
    for definition in family()
}
"""Every metric that is a ratio of counts, in the order of the report."""
