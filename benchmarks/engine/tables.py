"""The figures of one run of the benchmark as markdown, which `benchmarks.document` puts into docs/performance.md."""

from typing import Any

from benchmarks.markdown import table

Figures = dict[str, Any]
ARMS = ("a", "b")
LABELS = {
    "shared": "B, label samples share the forward pass",
    "separate": "B, label samples separate, as published",
    "without": "B, without cross-entropy",
    "arm_a": "A",
}


def render(figures: Figures) -> str:
    parts = [_machine, _step, _rollouts, _generation, _trainer, _labels, _context, _others]
    return "\n\n".join(part(figures) for part in parts)


def _n(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}"


def _s(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}"


def _x(ratio: float) -> str:
    return f"{ratio:.2f}×"


def _machine(figures: Figures) -> str:
    model, machine, versions = figures["model"], figures["machine"], figures["versions"]
    threads = f", {machine['threads']} thread{'s' * (machine['threads'] > 1)} of torch" if not machine["gpu"] else ""
    load = " → ".join(f"{each:.1f}" for each in figures["load_average"])
    return (
        f"### {machine['gpu'] or 'One CPU'}: {model['parameters'] / 1e6:,.1f} M parameters\n\n"
        f"Model {model['name']}, {model['forward']} forward passes, scale {figures['scale']}; {machine['cpus']} cores"
        f"{threads}; Python {versions['python']}, torch {versions['torch']}, transformers {versions['transformers']}; "
        f"load average {load}; {figures['seconds']:.0f} s in all."
    )


def _step(figures: Figures) -> str:
    step = figures["step"]

    def part(row: Figures, name: str) -> str:
        return f"{_s(row[name])} ({row[name] / row['total']:.0%})"

    rows = [
        [
            f"Arm {arm.upper()}",
            *(part(step[arm], name) for name in ("generation", "environment", "training", "other")),
            _s(step[arm]["total"]),
            _n(step[arm]["generated_tokens"]),
            _n(step[arm]["input_tokens"]),
        ]
        for arm in ARMS
    ]
    header = [f"a step of {step['rollouts']} rollouts, s (share)", "generation", "environment", "training", "other"]
    return table(
        [*header, "all, s", "tokens generated", "tokens trained on"],
        [*rows, ["B / A", "", "", "", "", _x(step["total_b_over_a"]), "", ""]],
    )


def _rollouts(figures: Figures) -> str:
    of = figures["rollouts_per_step"]
    names = ("generation", "environment", "training", "total")
    rows = [
        [n, *(_s(step[name]) for name in names), _n(step["total"] / int(n) * 1e3), _n(step["generated_tokens"])]
        for n, step in of["steps"].items()
    ]
    header = [f"rollouts a step, Arm {of['arm'].upper()}", "generation, s", "environment, s", "training, s", "all, s"]
    return table([*header, "ms a rollout", "tokens generated"], rows)


def _generation(figures: Figures) -> str:
    of = figures["generation"]
    header = [f"{of['rows']} rows × {of['new_tokens']} new tokens, T {of['temperature']}, top-k {of['top_k']}"]
    rows = [
        [
            f"prompts {name}, {each['prompt_tokens_mean']:.0f} tokens on average",
            _n(each["engine_tokens_per_second"]),
            _n(each["generate_tokens_per_second"]),
            _x(each["ratio"]),
        ]
        for name, each in of["prompts"].items()
    ]
    return table([*header, "engine, tokens/s", "`model.generate`, tokens/s", "ratio"], rows)


def _trainer(figures: Figures) -> str:
    of, trl = figures["trainer"], figures["trainer"]["trl"]
    header = [f"a training step on {of['rollouts']} rollouts of Arm A, {_n(of['tokens'])} tokens", "tokens/s", "ratio"]
    rows = [["engine", _n(of["engine_tokens_per_second"]), ""]]
    if trl is None:
        return table(header, [*rows, ["TRL's GRPO trainer", "not installed", ""]])
    packages = trl["versions"]
    name = f"TRL {packages['trl']}, torch {packages['torch']}, transformers {packages['transformers']}"
    rows = [["engine", _n(trl["engine_tokens_per_second"]), _x(trl["ratio"])]]
    return table(header, [*rows, [name, _n(trl["tokens_per_second"]), "1"]])


def _labels(figures: Figures) -> str:
    of = figures["labels"]
    without = of["without"]["input_tokens"]
    rows = [
        [
            name,
            _n(of[key]["input_tokens"]),
            f"{of[key]['input_tokens'] / without:.3f}×",
            _n(of[key]["padded_tokens"]),
            _s(of[key]["seconds"]),
            f"{of[key]['seconds_over_without']:.3f}×",
            f"{of[key]['seconds_over_arm_a']:.3f}×",
        ]
        for key, name in LABELS.items()
    ]
    header = [
        f"a training step on the rollouts of an arm (B: {of['rollouts']}, {of['labels']} labels; A: {of['rollouts_a']})"
    ]
    return table([*header, "tokens", "over without", "with padding", "s", "over without", "over Arm A"], rows)


def _context(figures: Figures) -> str:
    of = figures["context"]
    rows = [
        [
            length,
            _s(each["generation"]),
            _n(each["generated_tokens_per_second"]),
            _s(each["training"]),
            _n(each["trainer_tokens_per_second"]),
        ]
        for length, each in of["lengths"].items()
    ]
    header = [f"tokens a rollout, {of['rollouts']} rollouts", "generation, s", "tokens/s", "training, s", "tokens/s"]
    return table(header, rows)


def _others(figures: Figures) -> str:
    of, step = figures["checkpoint"], figures["step"]
    rows = [
        [f"a checkpoint with the optimiser, {_n(of['mib'])} MiB", f"{_s(of['seconds'])} s"],
        ["the weights pushed to the generator", f"{step['a']['weights_push'] * 1e3:.1f} ms"],
        ["the first step of Arm A, with what is allocated and captured once", f"{_s(step['a']['first_total'])} s"],
    ]
    if memory := figures["machine"].get("peak_memory_gib"):
        rows.append(["memory of the GPU at its peak, everything of this benchmark loaded", f"{memory:.0f} GiB"])
    return table(["beside these", ""], rows)
