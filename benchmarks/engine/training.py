"""Trainer steps on rollouts that were played before: what the label samples add, TRL beside it, a checkpoint's time.

A rollout's samples are its branch and one label sample a prediction. `shared`: the label samples continue the
branch's forward pass as leaves; `separate`: each computes its prefix again, as published; `without`: the same step
without cross-entropy. All rewards alternate between 1 and 0, so that every rollout trains.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.setting import Engine, Setting
from benchmarks.engine.timing import ratio, significant, timed
from benchmarks.engine.trl_trainer import TrlTrainer, trl_versions
from glyph.credit import TrainingSample
from glyph.local.rollouts.collector import Played
from glyph.local.runs.checkpoints import save_checkpoint
from glyph.local.training.packing import Tree, lay_out, plant
from glyph.local.training.trainer import StepResult, score

Samples = Sequence[tuple[TrainingSample, ...]]


def trees_of(samples: Samples, shared: bool = True, labels: bool = True) -> list[Tree]:
    kept = [tuple(each for each in one if labels or each.label is None) for one in samples]
    return [tree for one in kept for tree in plant(one, shared)]


def measure_labels(
    setting: Setting, engine: Engine, played: Sequence[Played], reactive: Sequence[Played]
) -> dict[str, Any]:
    """Steps of one trainer on Arm B's rollouts, label samples in three ways, and on Arm A's rollouts.

    The step with shared labels and the one without, which differ by little, are measured as pairs of their own.
    """
    sizes, samples, others = setting.sizes, engine.samples(played, 1), engine.samples(reactive, 1)
    ways = {
        "shared": trees_of(samples),
        "separate": trees_of(samples, shared=False),
        "without": trees_of(samples, labels=False),
        "arm_a": trees_of(others),
    }
    counts: dict[str, StepResult] = {}

    def step(name: str) -> None:
        counts[name] = engine.bench.trainer.step(ways[name], engine.config.sampling.temperature)

    steps = {name: partial(step, name) for name in ways}
    pairs = timed({n: steps[n] for n in ("shared", "without")}, sizes.pairs, sizes.pair_seconds, setting.device)
    seconds = timed(steps, sizes.rounds, sizes.limit_seconds, setting.device)
    figures: dict[str, Any] = {"rollouts": len(samples), "rollouts_a": len(others), "rounds": len(seconds["shared"])}
    figures |= {"pairs": len(pairs["shared"])}
    figures["labels"] = sum(each.label is not None for one in samples for each in one)
    for name, each in seconds.items():
        figures[name] = {
            "input_tokens": counts[name].input_tokens,
            "padded_tokens": counts[name].padded_tokens,
            "micro_batches": counts[name].micro_batches,
            "seconds": significant(statistics.median(each)),
            "seconds_over_without": significant(ratio(each, seconds["without"])),
            "seconds_over_arm_a": significant(ratio(each, seconds["arm_a"])),
        }
    figures["shared"]["seconds_over_without"] = significant(ratio(pairs["shared"], pairs["without"]))
    return figures


def measure_trainer(setting: Setting, engine: Engine, played: Sequence[Played]) -> dict[str, Any]:
    """Tokens a second of a step on Arm A's rollouts, by our trainer and by TRL's; `trl` is None without TRL.

    Tokens are those of the rollouts, prompts included, padding not, the same number for both. The sampler's log-probs
    are replaced by the trainer's own, as at the first step after sampling without top-k: then both losses are one.
    """
    sizes, trainer = setting.sizes, engine.bench.trainer
    samples = [with_own_logprobs(engine, one[0]) for one in engine.samples(played, 1)]
    trees, temperature = [plant([sample])[0] for sample in samples], engine.config.sampling.temperature
    tokens = sum(len(sample.token_ids) for sample in samples)
    results: list[StepResult] = []
    ways: dict[str, Any] = {"engine": lambda: results.append(trainer.step(trees, temperature))}
    versions = trl_versions()
    other = TrlTrainer(setting, engine, samples) if versions else None
    if other:
        ways["trl"] = other.step
    seconds = timed(ways, sizes.rounds, sizes.limit_seconds, setting.device)
    middle = {name: significant(tokens / statistics.median(each)) for name, each in seconds.items()}
    figures: dict[str, Any] = {
        "rollouts": len(samples),
        "tokens": tokens,
        "trained_tokens": results[0].policy_tokens,
        "rounds": len(seconds["engine"]),
        "engine_tokens_per_second": middle["engine"],
        "trl": None,
    }
    if other:
        figures["trl"] = {
            **versions,
            **other.facts(),
            "tokens_per_second": middle["trl"],
            "engine_tokens_per_second": middle["engine"],
            "ratio": significant(ratio(seconds["trl"], seconds["engine"])),
            "grad_norm": significant(other.grad_norm),
            "engine_grad_norm": significant(results[-1].grad_norm),
        }
    return figures


@torch.no_grad()
def with_own_logprobs(engine: Engine, sample: TrainingSample) -> TrainingSample:
    """The sample as if the policy that is trained had sampled it: every importance ratio is 1, up to rounding."""
    memory, model = engine.bench.trainer.memory, engine.bench.model
    tree = plant([sample])[0]
    with torch.autocast(model.device.type, torch.bfloat16, enabled=memory.bfloat16):
        batch = lay_out([(tree,)], model.device)
        scores, _ = score(model, batch, engine.config.sampling.temperature, memory.logits_chunk)
    logprobs = list(sample.logprobs)
    for position, value in zip(tree.trunk.trained, scores.tolist(), strict=True):
        logprobs[position] = value
    return replace(sample, logprobs=tuple(logprobs))


def measure_checkpoint(setting: Setting, engine: Engine) -> dict[str, Any]:
    """Wall-clock seconds of a checkpoint's save, moments of the optimiser included, each under another step."""
    bench = engine.bench
    with tempfile.TemporaryDirectory(prefix="glyph-benchmark-") as folder:

        def save(step: int) -> float:
            state, started = {"trainer": bench.trainer.state_dict()}, time.perf_counter()
            save_checkpoint(Path(folder), step, bench.model, bench.tokenizer, state, {}, keep_last=1)
            return time.perf_counter() - started

        seconds = [save(step) for step in range(setting.sizes.checkpoints)]
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {"n": len(seconds), "seconds": significant(statistics.median(seconds)), "mib": significant(size / 2**20)}
