"""The SFT traces: which task shows what, its faulty states (executed), and the conversation of each arm.

A demonstration is a list of states of the solution, faulty ones first, the gold code last. The arms match: both
show the same states of the same task. The conversation is what the real environment answers to the demonstration's
assistant turns, so that no rule of the protocol is written twice.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from glyph.episode import Episode, ModelTurn, Rules, drive
from glyph.executor import Limits
from glyph.protocol import Arm, Call, Decision, Label, Prediction, Tool, render_call, render_final, render_prediction
from glyph.records import RolloutRecord, Verdict
from glyph.tasks.mutations import SEMANTIC_KINDS, Mutation, line_edit, mutations
from glyph.tasks.prompts import Wording, load_wording, opening
from glyph.tasks.splits import SEED
from glyph.tasks.task import CodeTask
from glyph.variants import STANDARD
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


PUBLISHED_COUNTS = {
    Family.DIRECT: 142,
    Family.SHADOW: 25,
    Family.VISIBLE: 25,
    Family.DEEP_SHADOW: 10,
    Family.DEEP_VISIBLE: 10,
}
FAULT_LIMITS = Limits(wall_seconds=8, cpu_seconds=1)
"""For trying mutations: one that loops is no demonstration and not worth waiting for."""
_FAILING = (Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR, Label.SYNTAX_ERROR)  # time-outs would cost seconds each


@dataclass(frozen=True)
class State:
    source: str
    label: Label


@dataclass(frozen=True)
class Demonstration:
    """`states` ends with the gold code. Sources end with a newline, as they stand in the file after the patch."""

    task: CodeTask
    family: Family
    states: tuple[State, ...]


def plan_demonstrations(
    tasks: Sequence[CodeTask], run: Run, counts: dict[Family, int] | None = None, seed: int = SEED
) -> Iterator[Demonstration]:
    """Choose families and faulty states; every state is executed. Yields one a task, in no particular order.

    Tasks are visited in an order of their own (a hash of seed and id); the first that two faults can be built for
    are two-step, the next that one can be built for one-step, the rest direct.

    Raises:
        ValueError: the set cannot be constructed; says what is short.
    """
    counts = counts or PUBLISHED_COUNTS
    if sum(counts.values()) != len(tasks):
        raise ValueError(f"demonstrations: {sum(counts.values())} wanted for {len(tasks)} tasks")
    wanted = {
        2: _alternate(Family.DEEP_SHADOW, Family.DEEP_VISIBLE, counts),
        1: _alternate(Family.SHADOW, Family.VISIBLE, counts),
    }
    for task in sorted(tasks, key=lambda task: _hash(seed, "family", task.task_id)):
        yield _demonstration(task, wanted, run, seed)
    short = {steps: len(families) for steps, families in wanted.items() if families}
    if short:
        raise ValueError(f"demonstrations: no faulty states could be built for {short} (by number of faults)")


def _alternate(first: Family, second: Family, counts: dict[Family, int]) -> list[Family]:
    """The families still to be given out, popped from the end: in turn while both are wanted."""
    rounds = range(max(counts[first], counts[second]))
    return [family for i in reversed(rounds) for family in (second, first) if i < counts[family]]


def _demonstration(task: CodeTask, wanted: dict[int, list[Family]], run: Run, seed: int) -> Demonstration:
    gold = State(task.gold + "\n", run(task.gold + "\n", task.test_code).label)
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
            label = run(both, task.test_code).label if both else Label.PASS
            if both and label in _FAILING and both != state.source:
                return State(both, label), first[1]
    return ()


def _faults(task: CodeTask, run: Run, seed: int) -> Iterator[tuple[Mutation, State]]:
    """Mutations of the gold code that fail, in a hashed order."""
    found = mutations(task.gold + "\n", SEMANTIC_KINDS)
    for mutation in sorted(found, key=lambda m: _hash(seed, task.task_id, m.source)):
        label = run(mutation.source, task.test_code).label
        if label in _FAILING:
            yield mutation, State(mutation.source, label)


def _apply_again(mutation: Mutation, source: str) -> str | None:
    """The same mutation, made in a source that was mutated elsewhere."""
    same = (mutation.kind, mutation.line, mutation.before, mutation.after)
    for other in mutations(source, [mutation.kind]):
        if (other.kind, other.line, other.before, other.after) == same:
            return other.source
    return None


def assistant_turns(demonstration: Demonstration, arm: Arm, wording: Wording) -> list[str]:
    """What the demonstrating agent says, turn by turn."""
    ids = iter(range(1, 100))

    def patch(before: str, after: str) -> Call:
        find, replace = (
            (PLACEHOLDER.rstrip("\n"), after.rstrip("\n")) if before == PLACEHOLDER else line_edit(before, after)
        )
        arguments = {"file_path": SOLUTION_PATH, "find": find, "replace": replace}
        return Call(Tool.APPLY_PATCH, wording.call_id(next(ids)), arguments)

    def test() -> Call:
        return Call(Tool.PYTHON_TEST, wording.call_id(next(ids)), {"project_path": PROJECT_PATH})

    states = demonstration.states
    foreseen = demonstration.family in (Family.SHADOW, Family.DEEP_SHADOW)
    turns = [render_call(patch(PLACEHOLDER, states[0].source))]
    for i, state in enumerate(states):
        following = states[i + 1] if i + 1 < len(states) else None
        if arm is Arm.PREDICTIVE and following and foreseen:
            call = patch(state.source, following.source)
            turns.append(render_prediction(Prediction(state.label, Decision.REVISE, call)))
            continue
        turns.append(
            render_call(test())
            if arm is Arm.REACTIVE
            else render_prediction(Prediction(Label.PASS, Decision.KEEP, test()))
        )
        if following:
            turns.append(render_call(patch(state.source, following.source)))
    return [*turns, render_final(wording.texts["demonstration"]["final"])]


def play_turns(
    task: CodeTask, arm: Arm, turns: Iterable[str], wording: Wording, run: Run
) -> tuple[list[dict[str, str]], RolloutRecord]:
    """Play given assistant turns through the environment; returns the conversation and the record."""
    script = iter(turns)
    episode = Episode(Rules(arm), task.task_id, opening(task, arm, STANDARD, wording), Workspace())
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
