"""What a study consists of: commands that each fill one folder, what each needs first, and whether it is done.

    WORK/
      study.json            what was asked for
      data-VARIANT/         task data whose SFT traces have another grammar
      runs/NAME/            run folders, and evaluations
      logs/NAME.log

In: a `Plan`. Out: `Piece`s. Nothing is run here.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from glyph.local.runs.checkpoint_folders import checkpoint_folder, checkpoint_step, checkpoints
from study.matrix import BASE, Matrix, Run, Sft, load_matrix, quarters

STANDARD = "standard"
COMPARED = 2  # the last step, and the one before, which a run that was cut short has too
TRACES, PLAIN, SUMMARY = "traces.jsonl.gz", "plain.jsonl", "summary.json"


class Kind(str, Enum):
    DATA = "data"
    SFT = "sft"
    RL = "rl"
    PLAIN = "plain"  # the base model on a plain prompt
    BASE = "base"  # the base model under the protocol
    AFTER_SFT = "after_sft"
    AFTER_RL = "after_rl"


TRAINING = (Kind.SFT, Kind.RL)


@dataclass(frozen=True)
class Plan:
    """What was asked for. `sft` and `rl` are further settings of every run; 0 test tasks are all.

    Runs end after the quarter `until` of their `steps`; 0 is the last.
    `untrained` names the models before RL that play the test tasks: `base`, SFT runs; None is all. Checkpoints of runs
    do so every `evaluate_every` steps, a number of quarters; 0 is every quarter.
    """

    work: Path
    scale: str
    model: str
    data: Path
    runs: tuple[str, ...]
    steps: int
    sft: tuple[str, ...] = ()
    rl: tuple[str, ...] = ()
    num_tasks: int = 0
    untrained: tuple[str, ...] | None = None
    evaluate_every: int = 0
    until: int = 0

    def chosen(self, matrix: Matrix) -> list[Run]:
        return matrix.select(self.runs)

    def data_of(self, sft: Sft) -> Path:
        return self.data if sft.variant == STANDARD else self.work / f"data-{sft.variant}"

    @property
    def runs_folder(self) -> Path:
        return self.work / "runs"

    def checkpoints(self, run: Run) -> Path:
        return self.runs_folder / run.folder / "checkpoints"

    def checkpoint(self, run: Run, step: int) -> Path:
        return checkpoint_folder(self.checkpoints(run), step)

    @property
    def quarter(self) -> int:
        """Steps between checkpoints."""
        return quarters(self.steps)[0]

    @property
    def kept_every(self) -> int:
        """Steps between checkpoints that play the test tasks."""
        return self.evaluate_every or self.quarter

    @property
    def last_step(self) -> int:
        return self.until or self.steps

    @property
    def evaluated(self) -> list[int]:
        """The steps whose checkpoints play the test tasks."""
        made = [step for step in quarters(self.steps) if step <= self.last_step]
        return [step for step in made if step % self.kept_every == 0 or step == self.last_step]

    def sfts(self, matrix: Matrix) -> list[Sft]:
        """What is fine-tuned: what runs start from, and what plays the test tasks by name."""
        starts = {run.sft.name for run in self.chosen(matrix)} | set(self.untrained or ())
        return [sft for sft in matrix.sft if sft.name in starts]

    def plays(self, name: str) -> bool:
        """Whether a model before RL plays the test tasks."""
        return self.untrained is None or name in self.untrained


@dataclass(frozen=True)
class Piece:
    """One command that fills `folder`. `arguments` are those of `python -m MODULE`. `needs` are folders that must be
    there, `after` pieces that must be done. A smaller `rank` goes first. `facts` say what the result is of.

    `deleted_by` names the piece of training that deletes what this one needs when it goes on.
    """

    name: str
    kind: Kind
    folder: Path
    module: str
    arguments: tuple[str, ...]
    after: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()
    rank: tuple[int, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)
    deleted_by: str = ""

    @property
    def is_training(self) -> bool:
        return self.kind in TRAINING

    def status(self) -> str | None:
        """Of a run: what its manifest says; None without one."""
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads((self.folder / "manifest.json").read_text())["status"])
        return None

    def done(self) -> bool:
        if self.is_training:
            return self.status() == "finished"
        last = "manifest.json" if self.kind in (Kind.DATA, Kind.PLAIN) else TRACES  # what is written last
        return (self.folder / last).is_file()

    def command(self) -> list[str]:
        """What begins it, or goes on with it."""
        if self.is_training and self.status() is not None:
            return [self.module, "resume", str(self.folder)]
        return [self.module, *self.arguments, "--output", str(self.folder)]


def pieces(plan: Plan, matrix: Matrix | None = None) -> list[Piece]:
    """All pieces as things stand now: of each run the evaluations of its quarters, and of where it was stopped."""
    matrix = matrix or load_matrix()
    runs = plan.chosen(matrix)
    sfts = plan.sfts(matrix)
    found = [*_data(plan, sfts), *(_sft(plan, matrix, sft) for sft in sfts)]
    found += [_rl(plan, matrix, place, run) for place, run in enumerate(runs)]
    found += [piece for run in runs for piece in _after_rl(plan, matrix, run)]
    found += [_after_sft(plan, matrix, sft) for sft in sfts if plan.plays(sft.name)]
    if plan.plays(BASE):
        found += _base(plan, matrix, {sft.arm for sft in sfts if sft.variant == STANDARD})
    return sorted(found, key=lambda piece: piece.rank)


def _data(plan: Plan, sfts: list[Sft]) -> Iterator[Piece]:
    """The plan's own data are there already: the script sees to them."""
    task_set = json.loads((plan.data / "manifest.json").read_text()).get("task_set", "mbpp")
    for sft in sfts:
        if sft.variant != STANDARD:
            folder = plan.data_of(sft)
            arguments = ("prepare", "--tasks", task_set, "--variant", sft.variant)
            yield Piece(folder.name, Kind.DATA, folder, "glyph", arguments, rank=(0,))


def _sft(plan: Plan, matrix: Matrix, sft: Sft) -> Piece:
    data = plan.data_of(sft)
    arguments = ("sft", sft.arm, "--scale", plan.scale, "--model", plan.model, "--data", str(data))
    settings = (*matrix.scale[plan.scale].sft, *plan.sft, "checkpoints.keep_last=1")
    return Piece(
        sft.name,
        Kind.SFT,
        plan.runs_folder / sft.name,
        "glyph",
        (*arguments, *settings),
        needs=(data / "manifest.json",),
        rank=(1,),
        facts={"run": sft.name, "arm": sft.arm, "seed": None, "step": 0},
    )


def _rl(plan: Plan, matrix: Matrix, place: int, run: Run) -> Piece:
    options = ("--scale", plan.scale, "--seed", str(run.seed), "--data", str(plan.data_of(run.sft)))
    settings = (
        f"rl.steps={plan.last_step}",
        f"checkpoints.every={plan.quarter}",
        f"checkpoints.keep_every={plan.kept_every}",
        "checkpoints.keep_last=1",
        f"evaluation.every={plan.quarter}",
        *_settings(plan, matrix, run),
    )
    return Piece(
        run.folder,
        Kind.RL,
        plan.runs_folder / run.folder,
        "glyph",
        ("rl", run.sft.arm, *options, "--model", str(plan.runs_folder / run.sft.name), *settings),
        after=(run.sft.name,),
        rank=(2, place),
        facts={
            "run": run.spec.name,
            "arm": run.sft.arm,
            "seed": run.seed,
            "step": plan.last_step,
            "steps_planned": plan.steps,
        },
    )


def _settings(plan: Plan, matrix: Matrix, run: Run | None = None) -> tuple[str, ...]:
    return (*matrix.scale[plan.scale].rl, *plan.rl, *(run.spec.settings if run else ()))


def _test(plan: Plan, matrix: Matrix, model: str | Path, arm: str, settings: tuple[str, ...]) -> tuple[str, ...]:
    """How a model plays the test tasks: greedy, by the rules of the run that it comes from."""
    rules = tuple(text for text in settings if not text.startswith("evaluation.")) + matrix.scale[plan.scale].test
    options = ("--split", "test", "--num-tasks", str(plan.num_tasks), "--arm", arm, "--scale", plan.scale)
    return ("evaluate", str(model), *options, *rules)


def _after_rl(plan: Plan, matrix: Matrix, run: Run) -> Iterator[Piece]:
    """In the order of `evaluated_steps`; replays after every run's last one, others when all else is done."""
    for place, step in enumerate(evaluated_steps(plan, run)):
        for number, variant in enumerate(("", *run.spec.replays)):
            settings = _settings(plan, matrix, run) + ((f"environment.variant={variant}",) if variant else ())
            name = f"{variant or 'test'}-{run.folder}-step{step}"
            is_stop = step not in plan.evaluated
            is_last = step == plan.last_step or is_stop
            model = plan.checkpoint(run, step)
            arguments = _test(plan, matrix, model, run.sft.arm, settings)
            yield Piece(
                name,
                Kind.AFTER_RL,
                plan.runs_folder / name,
                "glyph",
                (*arguments, "--data", str(plan.data_of(run.sft))),
                needs=(model,),
                rank=(3 if is_last or not variant else 5, place, number),
                facts={
                    "run": run.spec.name + (f":{variant}" if variant else ""),
                    "arm": run.sft.arm,
                    "seed": run.seed,
                    "step": step,
                },
                deleted_by=run.folder if is_stop else "",
            )


def evaluated_steps(plan: Plan, run: Run) -> list[int]:
    """Later ones first, by which runs are compared; where a run was stopped, which is another step in each, third."""
    last = [checkpoint_step(path) for path in checkpoints(plan.checkpoints(run))[-1:]]
    steps = plan.evaluated[::-1]
    return [*steps[:COMPARED], *(step for step in last if step not in steps), *steps[COMPARED:]]


def _after_sft(plan: Plan, matrix: Matrix, sft: Sft) -> Piece:
    name = f"test-{sft.name}"
    grammar = () if sft.variant == STANDARD else (f"environment.variant={sft.variant}",)
    run = plan.runs_folder / sft.name
    return Piece(
        name,
        Kind.AFTER_SFT,
        plan.runs_folder / name,
        "glyph",
        (*_test(plan, matrix, run, sft.arm, _settings(plan, matrix) + grammar), "--data", str(plan.data_of(sft))),
        after=(sft.name,),
        rank=(4, -1),
        facts={"run": sft.name, "arm": sft.arm, "seed": None, "step": 0},
    )


def _base(plan: Plan, matrix: Matrix, arms: set[str]) -> Iterator[Piece]:
    """The model before any training: on a plain prompt, and under each arm's protocol."""
    facts = {"seed": None, "step": 0}
    for arm in sorted(arms):
        name = f"test-base-{arm}"
        arguments = (*_test(plan, matrix, plan.model, arm, _settings(plan, matrix)), "--data", str(plan.data))
        yield Piece(
            name,
            Kind.BASE,
            plan.runs_folder / name,
            "glyph",
            arguments,
            rank=(4, 1),
            facts={"run": f"base-{arm}", "arm": arm, **facts},
        )
    options = ("--data", str(plan.data), "--num-tasks", str(plan.num_tasks), "--scale", plan.scale)
    yield Piece(
        "base-plain",
        Kind.PLAIN,
        plan.runs_folder / "base-plain",
        "study.plain",
        (plan.model, *options),
        rank=(4, 0),
        facts={"run": "base-plain", "arm": None, **facts},
    )
