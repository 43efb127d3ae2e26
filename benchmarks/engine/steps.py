"""An RL step as `glyph rl` takes it, but for the lines and traces that it writes: its seconds, by what they are for."""

import statistics
import time
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

from benchmarks.engine.setting import GROUP, Engine, Setting
from benchmarks.engine.timing import alternate, ratio, significant, synchronise
from glyph.local.rollouts.collector import Played
from glyph.local.training.packing import plant
from glyph.protocol import Arm

Step = dict[str, float]


def rl_step(engine: Engine, numbers: "count[int]", rollouts: int, group: int) -> tuple[Step, tuple[Played, ...]]:
    """Play, credit, train, push the weights. Seconds by part, and tokens; every rollout with credit trains."""
    device = engine.config.device
    started = time.perf_counter()
    step = next(numbers)
    generated = engine.player(group).training(step, engine.tasks_of(step, rollouts // group))
    samples = engine.samples(generated.played, group)
    trees = [tree for each in samples for tree in plant(each)]
    synchronise(device)
    training = time.perf_counter()
    result = engine.bench.trainer.step(trees, engine.config.sampling.temperature)
    synchronise(device)
    training = time.perf_counter() - training
    push = time.perf_counter()
    engine.generator.load_weights_from(engine.bench.model)
    synchronise(device)
    ended = time.perf_counter()
    total = ended - started
    parts = {"generation": generated.generation_seconds, "environment": generated.environment_seconds}
    parts |= {"training": training, "other": total - sum(parts.values()) - training, "total": total}
    parts |= {"weights_push": ended - push}  # part of the others
    tokens = {"generated_tokens": generated.tokens, "input_tokens": result.input_tokens, "trained": len(samples)}
    return parts | tokens, generated.played


def medians(steps: list[Step]) -> Step:
    return {name: significant(statistics.median(step[name] for step in steps)) for name in steps[0]}


def measure_step(setting: Setting, engines: Mapping[Arm, Engine]) -> tuple[dict[str, Any], dict[Arm, Any]]:
    """The split of a step of each arm, the arms by turns; and the rollouts of each arm's last step."""
    sizes, played = setting.sizes, {}
    firsts: dict[Arm, float] = {}

    def step(arm: Arm, numbers: "count[int]") -> Step:
        group = min(engines[arm].config.rl.group_size, sizes.rollouts)
        parts, played[arm] = rl_step(engines[arm], numbers, sizes.rollouts, group)
        firsts.setdefault(arm, parts["total"])
        return parts

    ways = {arm.value: partial(step, arm, count(1)) for arm in engines}
    steps = alternate(ways, sizes.step_rounds, sizes.limit_seconds)
    of = [[each["total"] for each in steps[arm.value]] for arm in (Arm.PREDICTIVE, Arm.REACTIVE)]
    figures: dict[str, Any] = {
        "rollouts": sizes.rollouts,
        "rounds": len(of[0]),
        "total_b_over_a": significant(ratio(*of)),
    }
    for arm in engines:
        group = {"group_size": min(engines[arm].config.rl.group_size, sizes.rollouts)}
        figures[arm.value] = group | medians(steps[arm.value]) | {"first_total": significant(firsts[arm])}
    return figures, played


def measure_rollouts_per_step(setting: Setting, engine: Engine) -> dict[str, Any]:
    """Steps of Arm B with more and more rollouts, in groups of `GROUP`."""
    sizes, numbers = setting.sizes, count(1000)
    ways = {str(n): partial(rl_step, engine, numbers, n, min(GROUP, n)) for n in sizes.rollouts_per_step}
    results = alternate(ways, sizes.step_rounds, sizes.limit_seconds, warm_up=False)  # `measure_step` did
    by_count = {n: medians([step for step, _ in each]) for n, each in results.items()}
    return {"arm": engine.config.arm.value, "rounds": len(next(iter(results.values()))), "steps": by_count}
