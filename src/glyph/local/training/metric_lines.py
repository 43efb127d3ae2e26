"""The lines of metrics.jsonl that RL writes: one a training step, one an evaluation.

Metrics of rollouts are those of `evaluation.metrics`, under their names, with what they are made of.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from glyph.evaluation.metrics import Metric, compute_all
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.traces import Trace
from glyph.local.rollouts.generated import Generated
from glyph.local.training.experience import Experience
from glyph.local.training.trainer import StepResult

GIBIBYTE = 2**30
SHOWN = ("value", "numerator", "denominator", "interval", "tasks")
FROM_STEP = (
    "policy_loss",
    "label_loss",
    "ce_nll",
    "grad_norm",
    "learning_rate",
    "policy_tokens",
    "ce_tokens",
    "input_tokens",
    "padded_tokens",
    "entropy",
    "mismatch_kl",
    "ratio_mean",
    "kept_share",
)


def evaluation_line(step: int, split: str, generated: Generated) -> dict[str, Any]:
    """`n` is the number of scored rollouts; those that a fault ended are `errors`."""
    traces = [each.trace for each in generated.played]
    return {
        "kind": "evaluation",
        "step": step,
        "split": split,
        **_rollout_metrics(traces),
        "generated_tokens": generated.tokens,
        "seconds": {"total": round(generated.seconds, 3)},
    }


def train_line(
    step: int,
    generated: Generated,
    experience: Experience,
    result: StepResult | None,
    skipped: str | None,
    total: float,
) -> dict[str, Any]:
    """`skipped` says why no optimiser step was taken, None where one was."""
    traces = [each.trace for each in generated.played]
    records = [trace.scored for trace in traces if trace.scored is not None]
    numbers = asdict(result) if result else {}
    return {
        "kind": "train",
        "step": step,
        "reward_mean": fmean(record.reward for record in records) if records else None,
        "reward_n": len(records),
        "tool_calls_mean": fmean(len(record.calls) for record in records) if records else None,
        "groups_mixed": experience.mixed_groups,
        "groups_uniform": experience.uniform_groups,
        "left_out": dict(experience.left_out),
        "misses": dict(experience.misses),
        "stop_reasons": dict(Counter(record.stop_reason.value for record in records)),
        **{name: numbers.get(name) for name in FROM_STEP},
        "skipped": skipped,
        **_rollout_metrics(traces),
        "generated_tokens": generated.tokens,
        "tokens_per_second": round(generated.tokens / max(generated.seconds, 1e-9), 1),
        "seconds": {
            "generation": round(generated.generation_seconds, 4),
            "environment": round(generated.environment_seconds, 4),
            "training": round(numbers.get("seconds", 0.0), 4),
            "total": round(total, 4),
        },
        "peak_memory_gib": peak_memory(),
    }


def peak_memory() -> float | None:
    """GiB of the GPU's memory that PyTorch has held at most so far in this process; None where it uses no GPU."""
    return round(torch.cuda.max_memory_reserved() / GIBIBYTE, 2) if torch.cuda.is_initialized() else None


def _rollout_metrics(traces: Sequence[Trace]) -> dict[str, Any]:
    scored = [Rollout(trace.scored, trace.test_code) for trace in traces if trace.scored is not None]
    metrics = {name: _shown(metric) for name, metric in compute_all(scored).items()}
    return {"n": len(scored), "errors": len(traces) - len(scored), "metrics": metrics}


def _shown(metric: Metric) -> dict[str, Any]:
    whole = metric.to_dict()
    return {name: whole[name] for name in SHOWN}
