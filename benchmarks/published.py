"""The published study's figures as tables, for docs/reproduction.md: theirs, to compare with, never results of ours.

docs/figures/published.json (its `source` says where they are from) → `render` → markdown
"""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.markdown import table

Figures = dict[str, Any]
SEEDS = ("42", "43")
STEPS = ("25", "50", "75", "100")
TESTS = {
    "A_100_vs_sft": "Arm A, step 100 against SFT, seed {}",
    "B_100_vs_sft": "Arm B, step 100 against SFT, seed {}",
    "A_vs_B_100": "step 100, seeds: {}",
}


def render(figures: Figures) -> str:
    """All tables, each under a line that says what it is and that it is theirs."""
    parts = [_pass_at_1, _revise, _decisions, _recall, _outcomes, _mcnemar, _labels, _efficiency]
    return "\n\n".join(part(figures) for part in parts)


def _titled(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"**Theirs: {title}**\n\n{table(header, rows)}"


def _pass_at_1(figures: Figures) -> str:
    rates = figures["test_pass_at_1_greedy_n500"]
    validation = figures["validation_pass_at_1_sft"]
    rows = [
        [f"Arm {arm}, seed {seed}", f"{rates[arm]['sft']}", *(f"{rates[arm][seed][step]}" for step in STEPS)]
        for arm in "AB"
        for seed in SEEDS
    ]
    after = " and ".join(f"{validation[arm]} (Arm {arm})" for arm in "AB")
    return (
        _titled(
            "pass@1 on the 500 test tasks, greedy, per cent",
            ["", "SFT", *(f"RL step {step}" for step in STEPS)],
            rows,
        )
        + f"\n\nOn the 40 validation tasks after SFT: {after}. The base model with a plain prompt: "
        f"{figures['base_model_plain_mbpp_pass_at_1']}%."
    )


def _revise(figures: Figures) -> str:
    split = figures["revise_split_step100"]
    rows = [
        [f"{name}, seed {seed}", *(f"{split[seed][key][field]}" for field in ("n", "pass", "calls", "hit_cap"))]
        for seed in SEEDS
        for key, name in (("never", "never revised"), ("revised", "revised"))
    ]
    return _titled(
        "Arm B's rollouts at step 100, by whether they revised",
        ["", "rollouts", "pass, %", "calls, mean", "out of calls, %"],
        rows,
    )


def _decisions(figures: Figures) -> str:
    chose, precision = figures["chose_revise"], figures["runtime_error_precision"]
    rows = [
        [seed, f"{chose[seed]['bad_patch']}", f"{chose[seed]['good_patch']}", f"{precision[seed]}"] for seed in SEEDS
    ]
    return (
        _titled(
            "what Arm B did with its foresight, per cent",
            ["seed", "REVISE on a bad patch", "REVISE on a good patch", "precision of RUNTIME_ERROR"],
            rows,
        )
        + f"\n\n{precision['base_rate']}% of outcomes are RUNTIME_ERROR."
    )


def _recall(figures: Figures) -> str:
    rows = [[label, *map(str, values)] for label, values in figures["recall_step100"].items()]
    return _titled("recall of Arm B's predictions at step 100, per cent", ["", *(f"seed {s}" for s in SEEDS)], rows)


def _outcomes(figures: Figures) -> str:
    outcomes = figures["training_outcomes_n15122"]
    rows = [[label, f"{share}", f"{outcomes['predicted'][label]}"] for label, share in outcomes["real"].items()]
    return _titled("15,122 outcomes in training, per cent", ["", "verified", "predicted"], rows)


def _mcnemar(figures: Figures) -> str:
    rows = [
        [title.format(name), f"{p}"] for key, title in TESTS.items() for name, p in figures["mcnemar_p"][key].items()
    ]
    return _titled("McNemar's test on the 500 test tasks", ["", "p"], rows)


def _labels(figures: Figures) -> str:
    rows = [[label, str(n)] for label, n in figures["sft_label_counts_arm_b"].items()]
    return _titled("labels in Arm B's SFT traces", ["", "count"], rows)


def _efficiency(figures: Figures) -> str:
    """The source gives two values for each and does not say of what: shown as they are."""
    rows = [
        [f"Arm {arm}", *(", ".join(map(str, values[key])) for key in ("tool_calls", "visible_tests"))]
        for arm, values in figures["seed42_efficiency"].items()
    ]
    return _titled(
        "calls and visible tests, seed 42: two values as published, unexplained",
        ["", "tool calls", "visible tests"],
        rows,
    )
