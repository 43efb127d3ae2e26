"""The SFT traces: which task shows what, its faulty states (executed), and the conversation of each arm.

A demonstration is a list of states of the solution, faulty ones first, the gold code last. The arms match: both
show the same states of the same task, and the same slips. The conversation is what the real environment answers to
the demonstration's assistant turns, so that no rule of the protocol is written twice.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from glyph.episode import Episode, ModelTurn, Rules, drive
from glyph.executor import Limits
from glyph.protocol import (
    Arm,
    Call,
    Decision,
    Label,
    Prediction,
    Tool,
    render_call,
    render_detail,
    render_final,
    render_prediction,
)
from glyph.records import RolloutRecord, Verdict
from glyph.tasks.mutations import SEMANTIC_KINDS, Mutation, line_edit, mutations
from glyph.tasks.prompts import Wording, load_wording, opening
from glyph.tasks.slips import Slip, SlipKind, failing_edits
from glyph.tasks.splits import SEED
from glyph.tasks.task import CodeTask
from glyph.variants import STANDARD, Variant
from glyph.workspace import PLACEHOLDER, PROJECT_PATH, SOLUTION_PATH, Workspace

Run = Callable[[str, str], Verdict]
"""(source, tests) → verdict."""


class Family(str, Enum):
    """What a demonstration shows. Arm A shows the same states; shadow and visible are Arm B's two ways through."""

    DIRECT = "direct"
    SHADOW = "shadow"  # the failure is predicted, the patch revised untested
    VISIBLE = "visible"  # PASS is predicted, the test fails, the patch is mended
    DEEP_SHADOW = "deep_shadow"
    DEEP_VISIBLE = "deep_visible"


@dataclass(frozen=True)
class Composition:
    """How many traces an arm has of each family, and how many of those hold a slip."""

    families: dict[Family, int]
    slips: dict[Family, int] = field(default_factory=dict)


def proportional(traces: int) -> Composition:
    """As published, for another number of traces: each recovery's share is rounded down, the rest is direct."""
    published = COMPOSITIONS["mbpp"].families
    total = sum(published.values())
    families = {family: traces * count // total for family, count in published.items()}
    return Composition({**families, Family.DIRECT: families[Family.DIRECT] + traces - sum(families.values())})


COMPOSITIONS = {
    "mbpp": Composition(  # as published
        {
            Family.DIRECT: 142,
            Family.SHADOW: 25,
            Family.VISIBLE: 25,
            Family.DEEP_SHADOW: 10,
            Family.DEEP_VISIBLE: 10,
        },
    ),
    "mini": Composition(  # a small model copies badly: more to mend, and patches that fail to apply
        {
            Family.DIRECT: 90,
            Family.SHADOW: 43,
            Family.VISIBLE: 47,
            Family.DEEP_SHADOW: 14,
            Family.DEEP_VISIBLE: 18,
        },
        slips={Family.SHADOW: 8, Family.VISIBLE: 12, Family.DEEP_SHADOW: 4, Family.DEEP_VISIBLE: 8},
    ),
}
"""By task set."""
FORESEEN = (Family.SHADOW, Family.DEEP_SHADOW)
"""The families in which Arm B foresees every failure."""
FAULT_LIMITS = Limits(wall_seconds=8, cpu_seconds=1)
"""For trying mutations: one that loops is no demonstration and not worth waiting for."""
_FAILING = (Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR, Label.SYNTAX_ERROR)  # time-outs would cost seconds each


@dataclass(frozen=True)
class State:
    """A source and its outcome; of a failed assertion also its number and the value that the candidate gave."""

    source: str
    label: Label
    failed_assertion: int | None = None
    observed: str | None = None


@dataclass(frozen=True)
class Demonstration:
    """`states` ends with the gold code. Sources end with a newline, as they stand in the file after the patch."""

    task: CodeTask
    family: Family
    states: tuple[State, ...]
    slip: Slip | None = None


def plan_demonstrations(
    tasks: Sequence[CodeTask],
    run: Run,
    counts: dict[Family, int],
    seed: int = SEED,
    slips: dict[Family, int] | None = None,
) -> Iterator[Demonstration]:
    """Choose families and faulty states; every state is executed. Yields one a task, in no particular order.

    Tasks are visited in an order of their own (a hash of seed and id); the first that two faults can be built for
    are two-step, the next that one can be built for one-step, the rest direct. The first of a family that a slip can
    be built for hold one.

    Raises:
        ValueError: the set cannot be constructed; says what is short.
    """
    if sum(counts.values()) != len(tasks):
        raise ValueError(f"demonstrations: {sum(counts.values())} wanted for {len(tasks)} tasks")
    wanted = {
        2: _alternate(Family.DEEP_SHADOW, Family.DEEP_VISIBLE, counts),
        1: _alternate(Family.SHADOW, Family.VISIBLE, counts),
    }
    given = _Slips(slips or {}, seed)
    for task in sorted(tasks, key=lambda task: _hash(seed, "family", task.task_id)):
        yield given.add_to(_demonstration(task, wanted, run, seed))
    short = {steps: len(families) for steps, families in wanted.items() if families}
    if short:
        raise ValueError(f"demonstrations: no faulty states could be built for {short} (by number of faults)")
    if given.wanted.total():
        missing = {family.value: n for family, n in given.wanted.items() if n}
        raise ValueError(f"demonstrations: no failing patch could be built for {missing}")


class _Slips:
    """Gives slips out: of the kinds that a demonstration offers the one that its family has least of, then by hash.

    In the second half of a family's slips the agent reads the file, where Arm B can: not with a candidate pending.
    """

    def __init__(self, wanted: dict[Family, int], seed: int) -> None:
        self.wanted, self._seed = Counter(wanted), seed
        self._reading = {family: 0 if family in FORESEEN else n // 2 for family, n in wanted.items()}
        self._given: Counter[tuple[Family, SlipKind]] = Counter()

    def add_to(self, demonstration: Demonstration) -> Demonstration:
        family, task_id = demonstration.family, demonstration.task.task_id
        edits = list(failing_edits([state.source for state in demonstration.states])) if self.wanted[family] else []
        if not edits:
            return demonstration
        offered = [kind for kind in SlipKind if any(kind is each for each, _ in edits)]
        kind = min(offered, key=lambda kind: self._given[family, kind])
        own = [slip for each, slip in edits if each is kind]
        slip = min(own, key=lambda slip: (slip.step, _hash(self._seed, "slip", task_id, slip.find)))
        self._given[family, kind] += 1
        self.wanted[family] -= 1
        return replace(demonstration, slip=replace(slip, read=self.wanted[family] < self._reading[family]))


def _alternate(first: Family, second: Family, counts: dict[Family, int]) -> list[Family]:
    """The families still to be given out, popped from the end: in turn while both are wanted."""
    rounds = range(max(counts[first], counts[second]))
    return [family for i in reversed(rounds) for family in (second, first) if i < counts[family]]


def _demonstration(task: CodeTask, wanted: dict[int, list[Family]], run: Run, seed: int) -> Demonstration:
    gold = _state(task.gold + "\n", run(task.gold + "\n", task.test_code))
    if gold.label is not Label.PASS:
        raise ValueError(f"task {task.task_id}: the gold code gets {gold.label.value}")
    for steps in (2, 1):
        if wanted[steps]:
            faulty = (_two_faults if steps == 2 else _one_fault)(task, run, seed)
            if faulty:
                return Demonstration(task, wanted[steps].pop(), (*faulty, gold))
    return Demonstration(task, Family.DIRECT, (gold,))


def _one_fault(task: CodeTask, run: Run, seed: int) -> tuple[State, ...]:
    return next(((state,) for _, state in _faults(task, run, seed)), ())


def _two_faults(task: CodeTask, run: Run, seed: int) -> tuple[State, ...]:
    """Two mutations on different lines that each fail alone; both together fail too, and differ from each alone."""
    first: tuple[Mutation, State] | None = None
    for mutation, state in _faults(task, run, seed):
        if first is None:
            first = (mutation, state)
        elif mutation.line != first[0].line:
            both = _apply_again(mutation, first[1].source)
            reached = _state(both, run(both, task.test_code)) if both and both != state.source else None
            if reached and reached.label in _FAILING:
                return reached, first[1]
    return ()


def _faults(task: CodeTask, run: Run, seed: int) -> Iterator[tuple[Mutation, State]]:
    """Mutations of the gold code that fail, in a hashed order."""
    found = mutations(task.gold + "\n", SEMANTIC_KINDS)
    for mutation in sorted(found, key=lambda m: _hash(seed, task.task_id, m.source)):
        state = _state(mutation.source, run(mutation.source, task.test_code))
        if state.label in _FAILING:
            yield mutation, state


def _state(source: str, verdict: Verdict) -> State:
    return State(source, verdict.label, verdict.failed_assertion, verdict.observed)


def _apply_again(mutation: Mutation, source: str) -> str | None:
    """The same mutation, made in a source that was mutated elsewhere."""
    same = (mutation.kind, mutation.line, mutation.before, mutation.after)
    for other in mutations(source, [mutation.kind]):
        if (other.kind, other.line, other.before, other.after) == same:
            return other.source
    return None


def assistant_turns(demonstration: Demonstration, arm: Arm, wording: Wording, variant: Variant = STANDARD) -> list[str]:
    """What the demonstrating agent says, turn by turn, in the grammar of a variant: gated or not, with details or not.

    Without a gate a failure that is foreseen is tested all the same, and mended as one that was not foreseen.
    """
    ids = map(wording.call_id, itertools.count(1))
    states = demonstration.states
    foreseen = arm is Arm.PREDICTIVE and demonstration.family in FORESEEN
    turns = [render_call(_patch(next(ids), *_first_edit(states[0].source)))]
    for step, state in enumerate(states):
        last = step == len(states) - 1
        detail = render_detail(variant.detail, state.failed_assertion, state.observed) if foreseen else None
        if not last and foreseen and variant.gated:
            calls = _mending(demonstration, step, ids)
            turns += [render_prediction(Prediction(state.label, Decision.REVISE, call, detail)) for call in calls]
            continue
        test = Call(Tool.PYTHON_TEST, next(ids), {"project_path": PROJECT_PATH})
        label, decision = state.label if foreseen else Label.PASS, Decision.KEEP if variant.gated else None
        honest = render_prediction(Prediction(label, decision, test, detail))
        turns.append(honest if arm is Arm.PREDICTIVE else render_call(test))
        if not last:
            turns += map(render_call, _mending(demonstration, step, ids))
    return [*turns, render_final(wording.texts["demonstration"]["final"])]


def _first_edit(source: str) -> tuple[str, str]:
    return PLACEHOLDER.rstrip("\n"), source.rstrip("\n")


def _mending(demonstration: Demonstration, step: int, ids: Iterator[str]) -> Iterator[Call]:
    """The calls that lead from a state to the next: what fails first, if anything does, and the patch."""
    slip = demonstration.slip
    if slip and slip.step == step:
        yield _patch(next(ids), slip.find, slip.replace)
        if slip.read:
            yield Call(Tool.READ_FILE, next(ids), {"file_path": SOLUTION_PATH})
    before, after = demonstration.states[step : step + 2]
    yield _patch(next(ids), *line_edit(before.source, after.source))


def _patch(call_id: str, find: str, replacement: str) -> Call:
    arguments = {"file_path": SOLUTION_PATH, "find": find, "replace": replacement}
    return Call(Tool.APPLY_PATCH, call_id, arguments)


def play_turns(
    task: CodeTask, arm: Arm, turns: Iterable[str], wording: Wording, run: Run, variant: Variant = STANDARD
) -> tuple[list[dict[str, str]], RolloutRecord]:
    """Play given assistant turns through the environment; returns the conversation and the record."""
    script = iter(turns)
    rules = Rules(arm, variant if arm is Arm.PREDICTIVE else STANDARD)
    episode = Episode(rules, task.task_id, opening(task, arm, rules.variant, wording), Workspace())
    drive(episode, lambda _: ModelTurn(next(script)), lambda source: run(source, task.test_code))
    return episode.messages, episode.record()


def sample_conversation(arm: Arm) -> list[dict[str, str]]:
    """A conversation with two recoveries, of a fixed small task: for checks of tokenizers, which need no executor."""
    gold = "def add(a, b):\n    total = a + b\n    return total\n"
    task = CodeTask("sample", "Write a function to add two numbers.", "assert add(1, 2) == 3\n", gold)
    sources = (gold.replace("+", "-").replace("return total", "return a"), gold.replace("+", "-"), gold)
    labels = (Label.ASSERTION_FAILURE, Label.ASSERTION_FAILURE, Label.PASS)
    states = tuple(State(source, label) for source, label in zip(sources, labels, strict=True))
    outcomes = {state.source: Verdict(state.label, state.label) for state in states}
    turns = assistant_turns(Demonstration(task, Family.DEEP_VISIBLE, states), arm, load_wording())
    return play_turns(task, arm, turns, load_wording(), lambda source, _: outcomes[source])[0]


def _hash(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
