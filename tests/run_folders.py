"""Run folders as the engine writes them, made up from seeded numbers: for the tests of the report."""

import gzip
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glyph.evaluation.metrics import compute_all
from glyph.evaluation.traces import Message, Trace, trace_to_dict, write_traces
from glyph.protocol import Decision, Label, StopReason
from glyph.records import CallRecord, CandidateRecord, PredictionTarget
from glyph.report.data import rollouts_of
from tests.builders import candidate, patch, target, trace, visible_test

FAULTS = (Label.ASSERTION_FAILURE, Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR, Label.SYNTAX_ERROR)
PIECES = re.compile(r"</?[A-Z]+>|[A-Z]+(?:_[A-Z]+)+|\w+|\s|[^\w\s]")


def made_up_trace(task_id: str, arm: str, skill: float, chance: random.Random) -> Trace:
    """A rollout of up to three candidates; `skill` is the probability that a candidate is right."""
    calls: list[CallRecord] = []
    candidates: list[CandidateRecord] = []
    targets: list[PredictionTarget] = []
    passed = False
    while not passed and len(candidates) < 3:
        label = Label.PASS if chance.random() < skill else chance.choice(FAULTS)
        calls.append(patch(f"c{len(calls) + 1}", 2 * len(calls) + 2))
        said = label if chance.random() < 0.4 + skill / 2 else Label.PASS
        revises = arm == "b" and said is not Label.PASS
        if arm == "b":
            targets.append(target(said, label, Decision.REVISE if revises else Decision.KEEP, shadow=revises))
        candidates.append(candidate(f"c{len(calls)}", label, f"# {len(candidates)}", tested=not revises))
        if not revises:
            calls.append(visible_test(f"c{len(calls) + 1}", label, 2 * len(calls) + 2))
            passed = label is Label.PASS
    stop = StopReason.FINAL if passed else chance.choice([StopReason.FINAL, StopReason.BUDGET, StopReason.LENGTH])
    made = trace(
        task_id, passed, arm=arm, calls=tuple(calls), candidates=tuple(candidates), targets=tuple(targets),
        stop_reason=stop, final_verdict=candidates[-1].verdict, wall_seconds=round(chance.random(), 4),
    )  # fmt: skip
    turn = made.messages[4].content.rsplit("\n", 1)[1]
    if targets and targets[0].label:
        turn = f"<PREDICTION>{targets[0].label.value}</PREDICTION>\n<DECISION>KEEP</DECISION>\n{turn}"
    messages = (*made.messages[:4], Message("assistant", turn), *made.messages[5:])
    return replace(made, messages=messages, split="validation", model="tiny")


def annotated(made: Trace, advantage: float | None, prompt: str = "") -> dict[str, Any]:
    """The line of a training step: the local form with `tokens`, `targets` and `advantage`."""
    tokens: list[tuple[str, str]] = [(piece, "context") for piece in PIECES.findall(prompt)]
    targets: list[dict[str, Any]] = []
    for message in made.messages:
        tokens += [("<|im_start|>", "context"), (f"{message.role}\n", "context")]
        sampled = message.role == "assistant"
        within = False
        for piece in PIECES.findall(message.content):
            masked = sampled and within and piece.replace("_", "").isalpha()
            if masked:
                truth = made.record.targets[0].verified_label.value if made.record else "PASS"
                branch = [[truth[:4], "ce"], *([[truth[4:], "ce"]] if truth[4:] else []), ["</PREDICTION>", "shared"]]
                targets.append({"at": len(tokens), "label": truth, "tokens": branch})
            role = "masked" if masked else "untrained" if sampled and not advantage else "rl" if sampled else "context"
            tokens.append((piece, role))
            within = piece == "<PREDICTION>" or (within and masked)
        tokens.append(("<|im_end|>", "rl" if sampled and advantage else "context"))
    return {**trace_to_dict(made), "advantage": advantage, "tokens": tokens, "targets": targets}


def write_run(
    folder: Path, arm: str = "b", seed: int = 0, stage: str = "rl", steps: int = 12, every: int = 4, tasks: int = 20,
    **settings: Any,
) -> Path:  # fmt: skip
    """A whole run folder; `settings` go into its config's [credit]."""
    chance = random.Random(f"{arm}/{seed}/{stage}")
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step in range(steps + 1):
        skill = 0.08 + 0.25 * step / max(1, steps) + (0.04 if arm == "b" else 0.0) + 0.02 * seed
        if step:
            lines.append(train_line(step, stage, arm, skill, chance))
        if step % every == 0 or step == steps:
            lines.append(write_evaluation(folder, step, arm, skill, tasks, chance))
        if stage == "rl" and step % every == 1:
            write_step(folder, step, arm, skill, chance)
    write_metrics(folder, lines)
    facts = {
        "schema_version": 1, "commit": "0123456789abcdef0123456789abcdef01234567", "stage": stage, "arm": arm,
        "scale": "mini", "seed": seed, "model": "tiny", "model_digest": "f" * 64, "hardware": "2 CPU cores",
        "started": "2026-12-01T00:00:00Z", "seconds": 120.5 + seed,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(facts))
    credit = "".join(f"{name} = {json.dumps(value)}\n" for name, value in {"alpha": 0.1, **settings}.items())
    text = f'[run]\nname = "{folder.name}"\nseed = {seed}\narm = "{arm}"\n\n[credit]\n{credit}'
    (folder / "config.toml").write_text(text)
    return folder


def train_line(step: int, stage: str, arm: str, skill: float, chance: random.Random) -> dict[str, Any]:
    seconds = {"generation": 1.9 + chance.random(), "environment": 0.4, "training": 0.8 + chance.random() / 4}
    seconds["total"] = sum(seconds.values()) + 0.1
    if stage == "sft":
        loss = 2.0 / step + chance.random() / 10
        return {"kind": "train", "step": step, "loss": loss, "grad_norm": 1.0, "seconds": seconds["training"]}
    return {
        "kind": "train", "step": step, "reward_mean": min(1.0, max(0.0, skill + chance.gauss(0, 0.08))), "reward_n": 64,
        "policy_loss": chance.gauss(0, 0.02), "label_loss": 0.12 * 0.85**step if arm == "b" else None,
        "ce_nll": 1.2 * 0.85**step if arm == "b" else None,
        "grad_norm": 0.5 + chance.random(), "learning_rate": 1e-5, "entropy": 0.9 - 0.03 * step,
        "mismatch_kl": 1e-5 * chance.random(), "groups_mixed": 5, "groups_uniform": 3, "kept_share": 0.98,
        "tokens_per_second": 900 + 100 * chance.random(), "seconds": seconds, "misses": {"no_sampled_label": 1},
    }  # fmt: skip


def write_evaluation(
    folder: Path, step: int, arm: str, skill: float, tasks: int, chance: random.Random
) -> dict[str, Any]:
    made = [made_up_trace(f"mini-{task:05d}", arm, skill, chance) for task in range(tasks)]
    write_traces(folder / f"evaluations/step_{step:06d}/traces.jsonl.gz", made)
    metrics = compute_all(rollouts_of(made))
    return {
        "kind": "evaluation", "step": step, "split": "validation", "n": tasks, "errors": 0,
        "metrics": {name: metric.to_dict() for name, metric in metrics.items()},
    }  # fmt: skip


def write_test(folder: Path, run: Path, arm: str, skill: float, tasks: int = 10, variant: str = "standard") -> Path:
    """The folder of an evaluation of a run's last checkpoint on the test split."""
    chance = random.Random(folder.name)
    made = [made_up_trace(f"test-{task:03d}", arm, skill, chance) for task in range(tasks)]
    varied = [
        replace(each, split="test", record=each.record and replace(each.record, variant=variant)) for each in made
    ]
    write_traces(folder / "traces.jsonl.gz", varied)
    facts = {"schema_version": 1, "model_folder": str(run / "checkpoints/step_000012"), "arm": arm, "split": "test"}
    (folder / "manifest.json").write_text(json.dumps(facts))
    return folder


def write_step(folder: Path, step: int, arm: str, skill: float, chance: random.Random, rollouts: int = 6) -> Path:
    prompt = "You write Python. " * 60
    lines = []
    for place in range(rollouts):
        made = made_up_trace(f"mini-{place:05d}", arm, skill, chance)
        lines.append(annotated(made, [0.5, -0.5, None][place % 3], prompt))
    return write_lines(folder / f"traces/step_{step:06d}.jsonl.gz", lines)


def write_metrics(folder: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode("ascii")))
    return path
