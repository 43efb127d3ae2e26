"""`glyph rollouts`: play both arms on prepared tasks with a local model, and store traces and a manifest.

A run folder holds `manifest.json` and `arm_{a,b}/traces.jsonl`. An interrupted run goes on with `--resume`.
"""

import json
import shlex
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from glyph.commands.console import fail, progress, say
from glyph.episode import Rules
from glyph.evaluation.traces import DEMONSTRATIONS, Trace, TraceError, local_trace_line, read_traces, write_traces
from glyph.executor import Executor, ExecutorError
from glyph.files import write_atomically
from glyph.protocol import Arm
from glyph.tasks.prompts import DEFAULT_PROMPTS, Wording, load_wording
from glyph.tasks.task import CodeTask
from glyph.tasks.validation import check_wording, data_facts, first_tasks, read_rows, read_tasks
from glyph.variants import parse_variant
from glyph.versions import manifest


@dataclass(frozen=True)
class RolloutPlan:
    """What `glyph rollouts` was asked for; it goes into the manifest as it is."""

    arms: str
    data: str
    split: str
    num_tasks: int
    samples: int
    shots: int
    model: str
    variant: str
    temperature: float
    top_k: int
    top_p: float
    max_completion_tokens: int
    budget: int
    max_context_tokens: int
    concurrency: int
    seed: int
    device: str


def register(app: typer.Typer) -> None:
    app.command("rollouts")(rollouts)


def rollouts(
    output: Annotated[Path, typer.Argument(help="the run folder to write")],
    model: Annotated[
        str | None, typer.Option(help="a model folder or hub id; without one, demonstrations are played")
    ] = None,
    arm: Annotated[str, typer.Option(help="a, b or both")] = "both",
    data: Annotated[Path, typer.Option(help="a prepared data folder")] = Path("data"),
    split: Annotated[str, typer.Option(help="train, validation or test")] = "validation",
    num_tasks: Annotated[
        int, typer.Option("--num-tasks", "-n", help="the first n tasks of the split; 0 for all", min=0)
    ] = 0,
    samples: Annotated[int, typer.Option(help="rollouts a task", min=1)] = 1,
    shots: Annotated[
        int, typer.Option(help="demonstrations in the prompt, for untrained models; the study has 0", min=0)
    ] = 0,
    variant: Annotated[str, typer.Option(help="e.g. forced_keep, test_budget(n=1,cost=4)")] = "standard",
    temperature: Annotated[float, typer.Option(help="0 is greedy", min=0.0, max=100.0)] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is off", min=0)] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off", min=1e-9, max=1.0)] = 1.0,
    max_completion_tokens: Annotated[int, typer.Option(help="tokens a turn", min=1)] = 512,
    budget: Annotated[int, typer.Option(help="visible tool calls a rollout", min=1)] = Rules.budget,
    max_context_tokens: Annotated[int, typer.Option(help="prompt plus completion", min=1)] = Rules.max_context_tokens,
    concurrency: Annotated[int, typer.Option(help="rollouts at once", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="of sampling")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    prompts: Annotated[Path, typer.Option(help="the wording")] = DEFAULT_PROMPTS,
    resume: Annotated[bool, typer.Option(help="go on with an interrupted run of the same plan")] = False,
) -> None:
    """Generate and score rollouts of one or both arms."""
    plan = RolloutPlan(
        arm, str(data), split, num_tasks, samples, shots, model or DEMONSTRATIONS, variant, temperature, top_k, top_p,
        max_completion_tokens, budget, max_context_tokens, concurrency, seed, device,
    )  # fmt: skip
    try:
        if model == "":
            raise ValueError("--model is empty: give a model folder or hub id, or leave the option out")
        if model is None:
            say("no --model: a script plays demonstrations; the figures will be no model's")
        _run(plan, output, prompts, resume)
    except (ValueError, OSError, ExecutorError) as error:
        fail(f"glyph rollouts: {error}")
    except KeyboardInterrupt:
        fail(f"interrupted: what was finished is in {output}; go on with the same command and --resume", 130)
    say(f"wrote {output}")
    folders = [str(output / f"arm_{each.value}") for each in _arms(arm)]
    say(f"next: {shlex.join(['glyph', 'report', *folders, '--output', str(output)])}")


def _run(plan: RolloutPlan, output: Path, prompts: Path, resume: bool) -> None:
    wording, started = load_wording(prompts), time.monotonic()
    check_wording(Path(plan.data), wording, prompts)
    arms, variant = _arms(plan.arms), parse_variant(plan.variant)
    if plan.model == DEMONSTRATIONS and variant.name != "standard":
        raise ValueError("demonstrations have no turns for a variant: give --model")
    rules = [Rules(arm, variant, plan.budget, plan.max_context_tokens) for arm in arms]
    found = {arm: read_tasks(Path(plan.data), arm, plan.split) for arm in arms}
    tasks = {arm: first_tasks(each, plan.num_tasks, plan.split, say) for arm, each in found.items()}
    _check_claim(output, plan, wording, resume)
    with ExitStack() as stack:
        executor = stack.enter_context(Executor(workers=4))
        engine = _load_engine(plan) if plan.model != DEMONSTRATIONS else None
        if not resume:  # only now: a start that fails leaves nothing behind
            _write_manifest(output, plan, wording, {}, None)
        for each in rules:
            path = output / f"arm_{each.arm.value}" / "traces.jsonl"
            _play_arm(plan, each, tasks[each.arm], wording, executor, engine, path)
        _write_manifest(output, plan, wording, executor.facts(), round(time.monotonic() - started, 1))


def _arms(name: str) -> list[Arm]:
    if name == "both":
        return list(Arm)
    try:
        return [Arm(name)]
    except ValueError:
        raise ValueError(f"arm {name!r}: expected a, b or both") from None


def _check_claim(output: Path, plan: RolloutPlan, wording: Wording, resume: bool) -> None:
    """Nothing is overwritten, and a resumed run has the plan that it began with."""
    if not resume:
        if output.is_file() or (output.exists() and any(output.iterdir())):
            raise ValueError(f"{output}: not an empty folder: give --resume to go on with a run, or another folder")
        return
    try:
        begun = json.loads((output / "manifest.json").read_text())
        now = {**asdict(plan), "wording_digest": wording.digest}
        before = {**begun["plan"], "wording_digest": begun["wording_digest"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{output}: there is no run to resume") from None
    changed = [f"{name} {before.get(name)!r}, now {now[name]!r}" for name in now if before.get(name) != now[name]]
    if changed:
        raise ValueError(f"{output}: the run began with another plan: {'; '.join(changed)}")


def _load_engine(plan: RolloutPlan) -> tuple[Any, Any]:
    """The generate core and the prepared tokenizer."""
    from glyph.local.inference.engine import EngineCore
    from glyph.local.inference.loading import load_model, load_tokenizer, require_device

    require_device(plan.device)
    tokenizer = load_tokenizer(plan.model)
    say(f"loading {plan.model}")
    limits: dict[str, Any] = {"max_model_len": plan.max_context_tokens, "max_rows": plan.concurrency}
    return EngineCore(load_model(plan.model, plan.device), **limits), tokenizer


def _play_arm(
    plan: RolloutPlan,
    rules: Rules,
    tasks: list[CodeTask],
    wording: Wording,
    executor: Executor,
    engine: tuple[Any, Any] | None,
    path: Path,
) -> None:
    from glyph.local.rollouts.collector import Assignment, Collector

    done = {trace.id for trace in _finished(path)}
    assignments = [Assignment(task, plan.split, i) for task in tasks for i in range(plan.samples)]
    left = [each for each in assignments if each.session(rules) not in done]
    policy = _engine_policy(plan, *engine) if engine else _demonstration_policy(tasks, rules.arm, wording, executor)
    shots = _shots(Path(plan.data), rules.arm, plan.shots)
    collector = Collector(policy, executor, rules, wording, plan.model, plan.concurrency, shots)
    path.parent.mkdir(parents=True, exist_ok=True)

    with path.open("a", encoding="utf-8") as file:
        for played in progress(collector.collect(left), f"arm {rules.arm.value} rollouts", len(left)):
            file.write(local_trace_line(played.trace))
            file.flush()


def _shots(data: Path, arm: Arm, count: int) -> list[list[dict[str, str]]]:
    """The shortest SFT traces of recovery and direct families in turn, without their system message."""
    if count == 0:
        return []
    rows = read_rows(data, f"sft/arm_{arm.value}/train.jsonl", ("messages", "family"))
    rows.sort(key=lambda row: (sum(len(message["content"]) for message in row["messages"]), row["task_id"]))
    turns = [[row for row in rows if row["family"] == name] for name in ("visible", "shadow", "direct")]
    most = 3 * min(map(len, turns))
    if count > most:
        raise ValueError(f"--shots {count}: at most {most} demonstrations are to be had")
    return [turns[i % 3][i // 3]["messages"][1:] for i in range(count)]


def _finished(path: Path) -> Iterable[Trace]:
    """The rollouts that an interrupted run had stored; a half-written last line and errors are played again."""
    if not path.exists() or not path.stat().st_size:
        return []
    try:
        found = read_traces(path, lenient=True)
        kept = [trace for trace in found.traces if trace.error is None]
        for bad in found.skipped:
            say(f"{path}:{bad.line}: dropped and played again: {bad.reason}")
    except TraceError:
        kept = []  # nothing but a half-written line
    write_traces(path, kept, overwrite=True)
    return kept


def _engine_policy(plan: RolloutPlan, engine: Any, tokenizer: Any) -> Any:
    from glyph.local.inference.sampling import SamplingParams
    from glyph.local.rollouts.policy import EnginePolicy

    sampling = SamplingParams(plan.temperature, plan.top_k, plan.top_p, plan.max_completion_tokens)
    return EnginePolicy(engine, tokenizer, sampling, plan.seed)


def _demonstration_policy(tasks: list[CodeTask], arm: Arm, wording: Wording, executor: Executor) -> Any:
    """Demonstrations of every family, in the proportions of the SFT traces as far as so few tasks allow."""
    from glyph.local.rollouts.policy import DemonstrationPolicy
    from glyph.tasks.demonstrations import FAULT_LIMITS, Family, plan_demonstrations

    few = len(tasks) // 8
    recoveries = {Family.SHADOW: few, Family.VISIBLE: few, Family.DEEP_SHADOW: few // 2, Family.DEEP_VISIBLE: few // 2}
    counts = {Family.DIRECT: len(tasks) - sum(recoveries.values()), **recoveries}
    planned = plan_demonstrations(tasks, lambda code, tests: executor.run(code, tests, FAULT_LIMITS), counts)
    return DemonstrationPolicy(list(planned), arm, wording)


def _write_manifest(
    output: Path, plan: RolloutPlan, wording: Wording, executor: dict[str, str], seconds: float | None
) -> None:
    content = manifest(
        plan=asdict(plan),
        finished=seconds is not None,
        seconds=seconds,
        wording_digest=wording.digest,
        data=data_facts(Path(plan.data)),
        executor=executor,
    )
    write_atomically(output / "manifest.json", json.dumps(content, indent=2) + "\n")
