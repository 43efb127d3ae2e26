"""The runs of PRIME-RL on one GPU as tables: docs/figures/prime_rl_one_gpu.json, which was written from their logs."""

from typing import Any

from benchmarks.markdown import table

COLUMNS = {
    "step": "{step}",
    "reward": "{reward:.2f}",
    "rollouts with an advantage": "{trainable}",
    "branch samples": "{branch_samples}",
    "label samples": "{label_samples}",
    "policy tokens": "{policy_tokens:,}",
    "masked label tokens": "{masked_tokens}",
    "CE tokens": "{label_tokens}",
    "loss": "{loss:.4f}",
    "mismatch KL": "{mismatch_kl:.5f}",
    "seconds: step / waiting / training": "{seconds} / {waiting} / {training}",
}


def render(figures: dict[str, Any]) -> str:
    return "\n\n".join(_run(arm, run) for arm, run in sorted(figures["runs"].items(), reverse=True))


def _run(arm: str, run: dict[str, Any]) -> str:
    rows = [[cell.format(**step) for cell in COLUMNS.values()] for step in run["steps"]]
    labels = sum(step["label_samples"] for step in run["steps"])
    slowest = max(step["broadcast"] for step in run["steps"])
    return (
        f"**Arm {arm.upper()}, `{run['algorithm']}`**: {len(rows)} optimiser steps, {labels} label samples, weights "
        f"v{run['weights_in_vllm'][0]} to v{run['weights_in_vllm'][-1]} taken over by vLLM "
        f"(written in at most {slowest:.2f} s), at most {max(step['peak_gib'] for step in run['steps'])} GiB in the "
        f"trainer\n\n{table(list(COLUMNS), rows)}"
    )
