"""Every metric on hand-made rollouts with numbers counted by hand, and the docs held to the code."""

import re
from pathlib import Path

import pytest

from glyph.evaluation.compare import UnpairedError, compare
from glyph.evaluation.definitions import DEFINITIONS, Definition
from glyph.evaluation.metrics import (
    DERIVED,
    Metric,
    compute,
    compute_all,
    confusion,
    gate_discrimination,
    macro_f1,
    pass_at_k_metric,
    rollout_metrics,
)
from glyph.evaluation.predicates import Rollout
from glyph.protocol import BreachKind, Decision, Label, StopReason, Tool
from glyph.records import CallRecord, RolloutRecord, TurnUsage
from tests.builders import (
    TEST_CODE,
    breach,
    candidate,
    patch,
    record,
    rollout,
    solved_samples,
    target,
    visible_test,
)

PASS, WRONG, RAISED = Label.PASS, Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR
KEEP, REVISE = Decision.KEEP, Decision.REVISE


def counted(metric: Metric) -> tuple[float | None, float]:
    return metric.numerator, metric.denominator


def with_targets(*targets: object, task_id: str = "t1", **fields: object) -> Rollout:
    return rollout(task_id, targets=targets, **fields)


def test_no_rollouts_leave_every_metric_undefined() -> None:
    for metric in compute_all([]).values():
        assert (metric.value, metric.interval, metric.denominator, metric.tasks) == (None, None, 0, 0), metric.name


def test_pass_at_1_of_one_sample_a_task_has_wilson() -> None:
    metric = compute("pass_at_1", [rollout(f"t{i}", solved=i < 2) for i in range(4)])
    assert (metric.numerator, metric.denominator, metric.value) == (2, 4, 0.5)
    assert metric.interval is not None
    assert metric.interval.method == "wilson"
    assert metric.interval.low == pytest.approx(0.15004, abs=1e-5)


def test_pass_at_1_averages_within_a_task_first() -> None:
    """Three samples of an easy task do not outweigh one of a hard task: (1 + 0) / 2, not 3 / 4."""
    samples = solved_samples("easy", [1, 1, 1]) + solved_samples("hard", [0])
    metric = compute("pass_at_1", samples)
    assert (metric.numerator, metric.denominator, metric.value, metric.tasks) == (1, 2, 0.5, 2)
    assert metric.interval is not None
    assert metric.interval.method == "cluster-bootstrap"


def test_pass_at_k_by_hand() -> None:
    # 2 of 4 solved, k = 2: 1 - C(2,2)/C(4,2) = 5/6; 0 of 4: 0; a task with one sample is left out
    samples = solved_samples("a", [1, 1, 0, 0]) + solved_samples("b", [0, 0, 0, 0]) + solved_samples("c", [1])
    metric = pass_at_k_metric(samples, 2)
    assert metric.value == pytest.approx(5 / 12)
    assert (metric.name, metric.denominator, metric.tasks) == ("pass_at_2", 2, 2)
    assert pass_at_k_metric(samples, 5).value is None
    first = pass_at_k_metric(samples, 1)
    assert first.value == compute("pass_at_1", samples).value == pytest.approx((0.5 + 0 + 1) / 3)


def test_a_share_of_nothing_or_all_over_clusters_counts_tasks_as_trials() -> None:
    metric = compute("pass_at_1", solved_samples("a", [0] * 5) + solved_samples("b", [0] * 5))
    assert metric.interval is not None
    assert metric.interval.method == "wilson-over-tasks"
    assert metric.interval.high == pytest.approx(3.841459 / 5.841459, abs=1e-6)


def test_first_patch() -> None:
    rollouts = [
        rollout("a", candidates=(candidate("c1", PASS), candidate("c2", WRONG))),
        rollout("b", candidates=(candidate("c1", WRONG), candidate("c2", PASS))),
        rollout("c", candidates=()),
    ]
    assert counted(compute("first_patch", rollouts)) == (1, 2)


def test_recovery_needs_an_executed_failure() -> None:
    recovered = (patch("c1"), visible_test("c2", WRONG), patch("c3"), visible_test("c4", PASS))
    refused = (patch("c1"), CallRecord("c2", Tool.PYTHON_TEST, 4, success=False), visible_test("c3", PASS))
    rollouts = [
        rollout("a", calls=recovered),
        rollout("b", solved=False),
        rollout("c"),
        rollout("d", calls=refused),  # a refused test is no failed test
    ]
    assert counted(compute("recovery", rollouts)) == (1, 2)


def test_costs() -> None:
    dear = (
        patch("c1"),
        visible_test("c2", WRONG, cost=4),
        patch("c3", success=False),
        visible_test("c4", PASS, cost=2),
    )
    rollouts = [rollout("a", calls=dear), rollout("b", solved=False), rollout("c", calls=())]
    metrics = compute_all(rollouts)
    assert counted(metrics["tool_calls"]) == (6, 3)
    assert counted(metrics["hit_cap"]) == (1, 3)  # 1 + 4 + 1 + 2 = 8
    assert counted(metrics["visible_tests"]) == (3, 3)
    assert counted(metrics["visible_tests_per_solved"]) == (2, 1)  # without a passed test "c" is not solved
    assert counted(metrics["failed_calls"]) == (1, 6)
    assert counted(metrics["failed_patches"]) == (1, 3)
    assert metrics["failed_patches"].value == pytest.approx(1 / 3)


def test_tokens_leave_out_what_was_not_reported() -> None:
    rollouts = [
        rollout("a"),  # turns of 10 and 5 completion tokens, the last prompt 120
        rollout("b", usage=(TurnUsage(50, 7), TurnUsage(None, None))),
        rollout("c", usage=(TurnUsage(None, None), TurnUsage(80, 9))),
        rollout("d", usage=()),
    ]
    assert counted(compute("completion_tokens", rollouts)) == (15, 1)
    assert counted(compute("last_prompt_tokens", rollouts)) == (200, 2)


def test_stop_reasons_and_breaches() -> None:
    rollouts = [
        rollout("a"),
        rollout("b", stop_reason=StopReason.BUDGET),
        rollout("c", stop_reason=StopReason.PROTOCOL, protocol_error=breach(BreachKind.BAD_JSON)),
    ]
    metrics = compute_all(rollouts)
    assert [counted(metrics[f"stop_{reason.value}"])[0] for reason in StopReason] == [1, 1, 0, 0, 1]
    assert counted(metrics["protocol_bad_json"]) == (1, 3)
    assert counted(metrics["protocol_bad_path"]) == (0, 3)
    assert counted(metrics["pass_at_1"]) == (1, 3)


PREDICTIONS = [
    with_targets(target(PASS, PASS), target(PASS, WRONG, published=Label.OTHER)),
    with_targets(target(RAISED, RAISED, REVISE), target(RAISED, WRONG, REVISE), task_id="t2"),
    with_targets(target(None, WRONG, None), target(PASS, PASS, REVISE, shadow=True), task_id="t3"),
]
"""Six targets: verified PASS 2, WRONG 3, RAISED 1; predicted PASS 3, RAISED 2, none 1."""


def test_details_are_right_with_their_label_only() -> None:
    details = [
        with_targets(
            target(WRONG, WRONG, detail="2", verified_detail="2"),
            target(WRONG, WRONG, detail="1", verified_detail="2"),
            target(WRONG, WRONG, verified_detail="2"),
        ),
        with_targets(
            target(PASS, WRONG, verified_detail="1"),
            target(None, WRONG, None, verified_detail="1"),
            target(WRONG, PASS, detail="1"),  # nothing failed: there was no detail to say
            task_id="t2",
        ),
    ]
    metrics = compute_all(details)
    assert counted(metrics["prediction_detail_accuracy"]) == (1, 5)
    assert counted(metrics["prediction_accuracy"]) == (3, 6)
    assert metrics["prediction_detail_accuracy"].value == 0.2
    assert compute("prediction_detail_accuracy", PREDICTIONS).value is None


def test_prediction_accuracy_counts_malformed_targets_as_wrong() -> None:
    metrics = compute_all(PREDICTIONS)
    assert counted(metrics["prediction_accuracy"]) == (3, 6)
    assert counted(metrics["prediction_accuracy_published"]) == (3, 6)
    assert counted(metrics["malformed_predictions"]) == (1, 6)
    assert metrics["prediction_accuracy"].tasks == 3
    assert metrics["prediction_accuracy"].interval is None  # one of two in every task: the bootstrap has no spread
    uneven = compute("prediction_accuracy", [*PREDICTIONS, with_targets(target(PASS, PASS), task_id="t4")])
    assert uneven.interval is not None
    assert uneven.interval.method == "cluster-bootstrap"


def test_class_scores() -> None:
    metrics = compute_all(PREDICTIONS)
    assert counted(metrics["precision_PASS"]) == (2, 3)
    assert counted(metrics["recall_PASS"]) == (2, 2)
    assert metrics["f1_PASS"].value == pytest.approx(4 / 5)
    assert counted(metrics["recall_ASSERTION_FAILURE"]) == (0, 3)
    assert metrics["precision_ASSERTION_FAILURE"].value is None
    assert metrics["f1_ASSERTION_FAILURE"].value == 0
    assert counted(metrics["precision_RUNTIME_ERROR"]) == (1, 2)
    assert metrics["f1_RUNTIME_ERROR"].value == pytest.approx(2 / 3)
    assert counted(metrics["base_rate_ASSERTION_FAILURE"]) == (3, 6)
    assert metrics["f1_TIMEOUT"].value is None


def test_macro_f1_under_both_conventions() -> None:
    over_truth, over_union = macro_f1(PREDICTIONS)
    assert over_truth.value == over_union.value == pytest.approx((4 / 5 + 0 + 2 / 3) / 3)
    only_predicted = [with_targets(target(Label.TIMEOUT, PASS), target(PASS, PASS))]
    over_truth, over_union = macro_f1(only_predicted)
    assert over_truth.value == pytest.approx(2 / 3)  # PASS: 2·1 / (1 + 2)
    assert over_union.value == pytest.approx(1 / 3)  # and TIMEOUT, which never occurs: 0
    assert (over_truth.denominator, over_truth.interval) == (2, None)


def test_confusion_matrices() -> None:
    ours, published = confusion(PREDICTIONS), confusion(PREDICTIONS, published=True)
    cell = {
        (row, column): ours.counts[i][j] for i, row in enumerate(ours.rows) for j, column in enumerate(ours.columns)
    }
    assert {key: n for key, n in cell.items() if n} == {
        ("PASS", "PASS"): 2,
        ("ASSERTION_FAILURE", "PASS"): 1,
        ("ASSERTION_FAILURE", "RUNTIME_ERROR"): 1,
        ("ASSERTION_FAILURE", "none"): 1,
        ("RUNTIME_ERROR", "RUNTIME_ERROR"): 1,
    }
    assert ours.total == published.total == 6
    assert published.counts[published.rows.index("OTHER")][0] == 1
    assert sum(published.counts[published.rows.index("ASSERTION_FAILURE")]) == 2


def test_the_gate_counts_only_decisions() -> None:
    metrics = compute_all(PREDICTIONS)
    assert counted(metrics["bad_patch_rejection"]) == (2, 3)
    assert counted(metrics["good_patch_rejection"]) == (1, 2)
    assert counted(metrics["undecided_targets"]) == (1, 6)
    assert counted(metrics["wasted_shadow_tests"]) == (1, 1)
    gate = gate_discrimination(PREDICTIONS)
    assert gate.value == pytest.approx(2 / 3 - 1 / 2)
    assert (gate.denominator, gate.tasks) == (5, 3)


def test_gate_discrimination_has_an_interval_and_needs_both_sides() -> None:
    sharp = [
        with_targets(target(PASS, WRONG, REVISE if i % 4 else KEEP), target(PASS, PASS, KEEP), task_id=f"t{i}")
        for i in range(40)
    ]
    gate = gate_discrimination(sharp)
    assert gate.value == pytest.approx(0.75)
    assert gate.interval is not None
    assert 0.55 < gate.interval.low < 0.75 < gate.interval.high < 0.95
    assert gate_discrimination([with_targets(target(PASS, PASS))]).value is None


def test_an_overridden_decision_counts_as_sampled() -> None:
    forced = with_targets(
        target(WRONG, WRONG, REVISE, effective_decision=KEEP, overridden=True), variant="forced_keep", solved=False
    )
    metrics = compute_all([forced])
    assert counted(metrics["bad_patch_rejection"]) == (1, 1)
    assert counted(metrics["overridden_targets"]) == (1, 1)
    assert counted(metrics["revised_share"]) == (1, 1)


def test_the_split_of_never_revised_and_revised() -> None:
    capped = tuple(patch(f"c{i}") for i in range(8))
    rollouts = [
        with_targets(target(PASS, PASS), task_id="a"),
        rollout("b", solved=False),  # no target at all: it never revised
        with_targets(target(WRONG, WRONG, REVISE), task_id="c", calls=capped, stop_reason=StopReason.BUDGET),
        rollout("d", arm="a"),
        with_targets(target(PASS, PASS, None), task_id="e", variant="ungated+test_budget(n=1,cost=4)"),
    ]
    metrics = compute_all(rollouts)
    values = {name: counted(metrics[name]) for name in metrics if "revised" in name}
    assert values == {
        "never_revised_share": (2, 3),
        "never_revised_pass": (1, 2),
        "never_revised_calls": (4, 2),
        "never_revised_hit_cap": (0, 2),
        "revised_share": (1, 3),
        "revised_pass": (0, 1),
        "revised_calls": (8, 1),
        "revised_hit_cap": (1, 1),
    }


def test_hardcoded_looks_at_the_last_candidate() -> None:
    look_up = candidate("c3", PASS, source="def double(n):\n    return {2: 4, 5: 10, 7: 14}[n]\n")
    rollouts = [
        rollout("a", candidates=(candidate("c1", WRONG), look_up)),
        rollout("b"),
        rollout("c", candidates=(look_up, candidate("c5", WRONG)), solved=False),
        Rollout(record("d", candidates=(look_up,)), None),
        rollout("e", candidates=()),
    ]
    metrics = compute_all(rollouts)
    assert counted(metrics["hardcoded"]) == (1, 3)
    assert counted(metrics["hardcoded_solved"]) == (1, 2)


def test_rollout_metrics_are_the_same_counts() -> None:
    """Values average, counts add up: both give the report's numbers."""
    rollouts = [*PREDICTIONS, rollout("x", solved=False), rollout("y", calls=(patch("c1", success=False),))]
    each = [rollout_metrics(r.record, r.test_code) for r in rollouts]
    report = compute_all(rollouts)
    for name, definition in DEFINITIONS.items():
        key = definition.rollout_key or name
        if values := [metrics[key] for metrics in each if key in metrics]:
            assert sum(values) / len(values) == pytest.approx(report[name].value), name
        elif totals := [m[f"{name}_denominator"] for m in each if f"{name}_denominator" in m]:
            numerators = [m.get(f"{name}_numerator", 0) for m in each]
            assert counted(report[name]) == (sum(numerators), sum(totals)), name
    assert each[0]["solved"] == 1
    assert "recovery" not in each[0]
    assert "prediction_accuracy_denominator" not in each[3]


def test_no_value_is_exposed_that_must_not_be_averaged() -> None:
    many = record(
        targets=(target(PASS, PASS),) * 3, calls=(patch("c1", success=False), *(patch(f"d{i}") for i in range(7)))
    )
    for name, value in rollout_metrics(many, TEST_CODE).items():
        definition = DEFINITIONS.get(name)
        if definition:
            assert definition.count(Rollout(many, TEST_CODE))[1] <= 1, name
        assert isinstance(value, float), name


def test_comparison_by_hand() -> None:
    first = [rollout(f"t{i}", solved=i in (0, 1, 2)) for i in range(10)] + [rollout("only-first")]
    second = [rollout(f"t{i}", solved=i in (2, 3, 4, 5, 6)) for i in range(10)]
    result = compare(first, second)
    assert result.mcnemar is not None
    assert (result.mcnemar.both, result.mcnemar.only_first, result.mcnemar.only_second, result.mcnemar.neither) == (
        1, 2, 4, 3,
    )  # fmt: skip
    assert result.mcnemar.p_exact == pytest.approx(2 * (1 + 6 + 15) / 64)
    assert result.difference == pytest.approx(0.2)
    assert (result.tasks, result.only_in_first, result.only_in_second) == (10, ("only-first",), ())
    assert (result.first_pass.value, result.second_pass.value) == (0.3, 0.5)
    assert result.interval is not None


def test_comparison_of_several_samples_refuses_mcnemar() -> None:
    result = compare(
        solved_samples("a", [1, 0]) + solved_samples("b", [0]), solved_samples("a", [1]) + solved_samples("b", [1])
    )
    assert result.mcnemar is None
    assert result.no_mcnemar == "1 of 2 tasks have several samples"
    assert result.difference == pytest.approx((0.5 + 1) / 2)


def test_comparison_needs_a_common_task() -> None:
    with pytest.raises(UnpairedError, match="no task is in both: A has t1 …, B has t2 …"):
        compare([rollout("t1")], [rollout("t2")])


DOCS = (Path(__file__).parents[1] / "docs/metrics.md").read_text("utf-8")


def documented(definition: Definition) -> str:
    """The row that the docs must have; families are written once, with their label, reason or kind as a word."""
    row = f"| `{definition.name}` | {definition.unit} | {definition.numerator} | {definition.denominator} |"
    if definition.section == "Prediction by class":
        return re.sub("|".join(Label), "LABEL", row)
    word = {"Stop reasons": "REASON", "Protocol errors": "KIND"}.get(definition.section)
    return row.replace(definition.name.split("_", 1)[1], word) if word else row


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS.keys())
def test_the_docs_have_every_definition_word_for_word(definition: Definition) -> None:
    assert documented(definition) in DOCS
    assert f"## {definition.section}\n" in DOCS


@pytest.mark.parametrize("name", [*DERIVED, "pass_at_K", *Label, *(reason.value for reason in StopReason), *BreachKind])
def test_the_docs_name_derived_metrics_and_family_members(name: str) -> None:
    assert f"`{getattr(name, 'value', name)}`" in DOCS


def test_every_computed_metric_is_defined_or_derived() -> None:
    assert set(compute_all(PREDICTIONS)) == {*DEFINITIONS, *DERIVED}


def test_records_of_the_builders_are_valid() -> None:
    assert isinstance(record(), RolloutRecord)
    assert record().reward == 1.0
    assert record(solved=False).reward == 0.0
