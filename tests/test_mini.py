"""The mini set: what each promise of its modules comes down to."""

import builtins
import hashlib
import os
import subprocess
import sys
from random import Random

import pytest

from glyph.protocol import Label
from glyph.tasks.mini import MiniSizes, MiniSplits, MiniTask, mini_tasks, split_of
from glyph.tasks.mini.gold import ARGUMENTS, Style, render_gold
from glyph.tasks.mini.inputs import random_input
from glyph.tasks.mini.operations import Operation
from glyph.tasks.mini.programs import OPERATIONS, PROBES, Program, Step
from glyph.tasks.mini.wording import render_text
from glyph.tasks.mutations import RUNTIME_KINDS, SEMANTIC_KINDS, SYNTAX_KINDS, TIMEOUT_KINDS, mutations

SPLITS = ("sft", "train", "validation", "test")
DIGEST = "05fd793ccf6ef979989c7f177a1b72a2e4601ada00431d78475b36e65a9e290b"


@pytest.fixture(scope="module")
def splits() -> MiniSplits:
    return mini_tasks()


def every_task(splits: MiniSplits) -> list[MiniTask]:
    return [task for name in SPLITS for task in getattr(splits, name)]


def program(*steps: tuple[str, dict]) -> Program:
    return Program(tuple(Step(OPERATIONS[name], tuple(parameters.items())) for name, parameters in steps))


def executed(source: str, name: str, value: object) -> object:
    namespace: dict = {}
    exec(source, namespace)
    return namespace[name](value)


def first_step(operation: Operation) -> Step:
    return Step(operation, tuple((name, values[0]) for name, values in operation.choices))


def test_a_program_by_hand() -> None:
    keep_total = program(("keep_greater", {"k": 3}), ("total", {}))
    assert keep_total.key == "keep_greater(k=3) | total()"
    assert keep_total.run([1, 3, 4, 10]) == 14
    assert program(("largest", {})).run([]) is None
    assert program(("multiply", {"k": 9}), ("square", {})).run(999) is None


def test_gold_in_each_style_by_hand() -> None:
    keep_total = program(("keep_greater", {"k": 3}), ("total", {}))
    head = "def keep_greater_total(xs):\n    "
    assert render_gold(keep_total, "xs", Style.NESTED) == head + "return sum([x for x in xs if x > 3])"
    assert render_gold(keep_total, "xs", Style.STEPS) == head + "kept = [x for x in xs if x > 3]\n    return sum(kept)"
    assert render_gold(keep_total, "xs", Style.REASSIGN) == head + "xs = [x for x in xs if x > 3]\n    return sum(xs)"
    assert render_gold(keep_total, "xs", Style.LOOP) == head + (
        "kept = []\n    for x in xs:\n        if x > 3:\n            kept.append(x)\n"
        "    total = 0\n    for x in kept:\n        total += x\n    return total"
    )


def test_nested_gold_keeps_the_precedence() -> None:
    sum_times = program(("add", {"k": 2}), ("multiply", {"k": 3}))
    assert render_gold(sum_times, "n", Style.NESTED) == "def add_multiply(n):\n    return (n + 2) * 3"


def test_wording_tells_or_withholds_the_parameter() -> None:
    keep_total = program(("keep_greater", {"k": 7}), ("total", {}))
    told = {render_text(keep_total, None, Random(i)) for i in range(40)}
    withheld = {render_text(keep_total, 0, Random(i)) for i in range(40)}
    assert all("7" in text for text in told)
    assert not any("7" in text for text in withheld)
    assert len(told) > 30
    assert "Write a function to find the sum of a list." in {
        render_text(program(("total", {})), None, Random(i)) for i in range(400)
    }


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_an_operation_is_consistent(operation: Operation) -> None:
    step = first_step(operation)
    assert not hasattr(builtins, operation.name)
    assert all(phrase.count("{it}") == 1 for phrase in operation.phrases + operation.vague)
    assert not operation.vague or len(operation.choices) == 1
    for name, _ in operation.choices:
        assert all(f"{{{name}}}" in phrase for phrase in operation.phrases)
        assert not any(f"{{{name}}}" in phrase for phrase in operation.vague)
    single = Program((step,))
    sources = {render_gold(single, ARGUMENTS[operation.takes][0], style) for style in Style}
    rng = Random(operation.name)
    inputs = [*PROBES[operation.takes], *(random_input(operation, [3, "e"], rng) for _ in range(60))]
    tried = [value for value in inputs if single.run(value) is not None]
    assert len(tried) >= 10
    for source in sources:
        for value in tried:
            assert executed(source, operation.name, value) == single.run(value)


def test_sizes_keys_and_ids(splits: MiniSplits) -> None:
    assert [len(getattr(splits, name)) for name in SPLITS] == [212, 2000, 200, 500]
    tasks = every_task(splits)
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert len({task.key for task in tasks}) == len(tasks)
    assert len({task.fingerprint for task in tasks}) == len(tasks)
    assert all(split_of(task.fingerprint, 42) == name for name in SPLITS for task in getattr(splits, name))
    assert len({step.split("(")[0] for task in tasks for step in task.key.split(" | ")}) >= 180


def test_shares(splits: MiniSplits) -> None:
    tasks = every_task(splits)
    lengths = [task.key.count(" | ") + 1 for task in tasks]
    for size, share in ((1, 0.3), (2, 0.5), (3, 0.2)):
        assert abs(lengths.count(size) / len(tasks) - share) < 0.03
    for name in SPLITS:
        own = getattr(splits, name)
        assert 0.3 < sum(task.withheld is not None for task in own) / len(own) < 0.5
    assert abs(sum(task.withheld is not None for task in tasks) / len(tasks) - 0.4) < 0.03


def test_every_gold_passes_and_assertions_are_not_dull(splits: MiniSplits) -> None:
    for task in every_task(splits):
        namespace: dict = {}
        exec(task.gold, namespace)
        exec(task.test_code, namespace)
        lines = task.test_code.splitlines()
        expected = [line.split(" == ")[1] for line in lines]
        assert len(lines) == 3
        assert len(set(expected)) >= 2
        assert sum(value in ("[]", "''", "0") for value in expected) <= 1


def test_the_assertions_pin_down_the_withheld_parameter(splits: MiniSplits) -> None:
    for task in [task for task in splits.validation if task.withheld][:40]:
        keys = task.key.split(" | ")
        place = keys.index(task.withheld)
        name, value = task.withheld[:-1].split("(k=")
        for other in OPERATIONS[name].choices[0][1]:
            if repr(other) == value:
                continue
            changed = Program(tuple(_parse(key) for key in keys)).replaced(
                place, Step(OPERATIONS[name], (("k", other),))
            )
            namespace: dict = {}
            exec(render_gold(changed, "given", Style.NESTED), namespace)
            with pytest.raises(Exception):  # noqa: B017, PT011
                exec(task.test_code, namespace)


def _parse(key: str) -> Step:
    name, parameters = key[:-1].split("(", 1)
    values = eval(f"dict({parameters})")
    return Step(OPERATIONS[name], tuple(values.items()))


def test_a_task_keeps_its_id_when_the_sizes_change(splits: MiniSplits) -> None:
    small = mini_tasks(sizes=MiniSizes(sft=5, train=20, validation=3, test=4))
    for name in SPLITS:
        assert getattr(small, name) == getattr(splits, name)[: len(getattr(small, name))]


def test_the_set_is_the_one_that_was_published(splits: MiniSplits) -> None:
    """A change of the world is a change of every result on it: it must be deliberate. Holds on Python 3.11 and 3.12."""
    assert hashlib.sha256(repr(splits).encode()).hexdigest() == DIGEST


def test_another_seed_gives_other_tasks() -> None:
    sizes = MiniSizes(sft=5, train=20, validation=3, test=4)
    assert mini_tasks(seed=43, sizes=sizes) != mini_tasks(sizes=sizes)


def test_the_tasks_do_not_depend_on_the_hash_seed() -> None:
    sizes = "MiniSizes(sft=20, train=150, validation=15, test=30)"
    command = f"from glyph.tasks.mini import MiniSizes, mini_tasks\nprint(repr(mini_tasks(sizes={sizes})))"
    digests = {
        hashlib.sha256(
            subprocess.run(
                [sys.executable, "-c", command],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                check=True,
            ).stdout
        ).hexdigest()
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_mutations_reach_every_outcome(splits: MiniSplits) -> None:
    """A semantic mutation mostly fails an assertion; the other kinds give the other classes."""
    from glyph.executor import Executor, Limits

    outcomes: dict[str, list[Label]] = {"semantic": [], "runtime": [], "syntax": [], "timeout": []}
    groups = zip(outcomes, (SEMANTIC_KINDS, RUNTIME_KINDS, SYNTAX_KINDS, TIMEOUT_KINDS), strict=True)
    with Executor(limits=Limits(wall_seconds=5, cpu_seconds=1)) as executor:
        for group, kinds in groups:
            for task in splits.sft[: 2 if group == "timeout" else 40]:
                found = sorted(mutations(task.gold, kinds), key=lambda m: hashlib.sha256(m.source.encode()).digest())
                if found:
                    outcomes[group].append(executor.run(found[0].source, task.test_code).label)
    assert outcomes["semantic"].count(Label.ASSERTION_FAILURE) > 0.6 * len(outcomes["semantic"])
    assert outcomes["runtime"].count(Label.RUNTIME_ERROR) > 0.8 * len(outcomes["runtime"])
    assert set(outcomes["syntax"]) == {Label.SYNTAX_ERROR}
    assert set(outcomes["timeout"]) == {Label.TIMEOUT}
    assert {label for labels in outcomes.values() for label in labels} >= set(Label) - {Label.OTHER}
