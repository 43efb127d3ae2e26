"""The kinds of documents of the pre-training text that ask for code, values or words; edits are beside.

A document is a list of parts; a part is *given* (what a reader is handed: a task, assertions, faulty code) or *asked*
(what can be worked out from what stands before it: the code, the verdict, the value). The trainer weighs the two
differently. A boundary between parts never splits what the tokenizer joins: it stands at a line end.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from glyph.chat import TURN_CLOSE, TURN_END, TURN_START
from glyph.tasks.mini.gold import Style
from glyph.tasks.mini.operations import Value
from glyph.tasks.mini.pretraining_faults import Outcome, wrong_places
from glyph.tasks.mini.pretraining_samples import Sample
from glyph.tasks.mini.wording import render_text


@dataclass(frozen=True)
class Part:
    text: str
    asked: bool


Document = tuple[Part, ...]
Write = Callable[[Sample, Random], Document | None]
"""A kind of document: None when this sample does not lend itself to it."""

SYSTEMS = (
    "You write short Python functions.",
    "You are a careful programmer.",
    "You answer questions about Python code.",
    "You help with Python.",
)
TEST_HEADS = ("It must pass these tests:", "These must hold:", "Tests:", "The code must pass:")
FILES = ("main.py", "code.py", "answer.py", "task.py")
EMPTY = ("# nothing here yet", "# to do", "# your code", "# to be written")
EDIT_KEYS = (
    ("id", "path", "old", "new"),
    ("id", "edit", "before", "after"),
    ("id", "file", "from", "to"),
    ("n", "path", "was", "now"),
)


def chat(*messages: tuple[str, str, bool]) -> Document:
    """(role, content, asked) as ChatML; of an asked message, the content and the end of the turn are asked."""
    parts: list[Part] = []
    for role, content, asked in messages:
        parts.append(Part(f"{TURN_START}{role}\n", False))
        parts.append(Part(f"{content.rstrip()}\n{TURN_END}", asked))
        parts.append(Part(TURN_CLOSE, False))
    return tuple(parts)


def opening(rng: Random, user: str) -> list[tuple[str, str, bool]]:
    system = [("system", rng.choice(SYSTEMS), False)] if rng.random() < 0.4 else []
    return [*system, ("user", user, False)]


def statement(sample: Sample, rng: Random, *more: str) -> str:
    """The task's wording, its assertions, and further paragraphs."""
    return "\n\n".join([sample.text, f"{rng.choice(TEST_HEADS)}\n{sample.tests}", *more])


def edit(number: int, path: str, old: str, new: str, keys: Sequence[str] = EDIT_KEYS[0]) -> str:
    return json.dumps(dict(zip(keys, (str(number), path, old, new), strict=True)), ensure_ascii=False)


def plain_file(sample: Sample, rng: Random) -> Document:
    """A comment, the assertions and the code that makes them hold, as one file."""
    return Part(f"# {sample.text}\n{sample.tests}\n\n", False), Part(sample.code + "\n", True)


def documented(sample: Sample, rng: Random) -> Document:
    """The code with its wording as the docstring, and the calls after it, answers asked."""
    head, body = sample.code.split("\n", 1)
    calls = "\n".join(f"{sample.name}({given!r}) -> {wanted!r}" for given, wanted in _pairs(sample))
    return Part(f'{head}\n    """{sample.text}"""', False), Part(f"\n{body}\n\n{calls}\n", True)


def question(sample: Sample, rng: Random) -> Document:
    return chat(*opening(rng, statement(sample, rng)), ("assistant", sample.code, True))


def record(sample: Sample, rng: Random) -> Document:
    """The code as a JSON record that replaces a file's only line."""
    path, empty = rng.choice(FILES), rng.choice(EMPTY)
    user = statement(sample, rng, f"{path} now holds:\n{empty}")
    number = rng.randint(1, 9) if rng.random() < 0.3 else 1
    return chat(*opening(rng, user), ("assistant", edit(number, path, empty, sample.code, rng.choice(EDIT_KEYS)), True))


def json_line(sample: Sample, rng: Random) -> Document:
    """Task, tests and code as the fields of one JSON object."""
    given = json.dumps({"task": sample.text, "tests": sample.tests}, ensure_ascii=False)
    return Part(f"{given}\n", False), Part(json.dumps({"code": sample.code}, ensure_ascii=False) + "\n", True)


def outcome_text(outcome: Outcome) -> str:
    return f"raises {outcome.error}" if outcome.error else repr(outcome.value)


def verdict(sample: Sample, outcomes: Sequence[Outcome]) -> str:
    """How a run of the assertions ends: the first that does not hold decides."""
    wrong = list(wrong_places(outcomes, sample.expected))
    if not wrong:
        return "all hold"
    error = outcomes[wrong[0]].error
    if error == "SyntaxError":
        return "does not parse"
    return f"raises {error}" if error else f"wrong in test {wrong[0] + 1}"


def candidate(sample: Sample, rng: Random) -> tuple[str, list[Outcome]]:
    """The gold code or, as often, a faulty one, with what it gives."""
    fault = sample.fault(rng) if rng.random() < 0.55 else None
    if fault:
        return fault.source, list(fault.outcomes)
    return sample.code, [Outcome(value=value) for value in sample.expected]


def check(sample: Sample, rng: Random) -> Document:
    """Does a candidate pass: in one line, or value by value."""
    code, outcomes = candidate(sample, rng)
    user = statement(sample, rng, code)
    if rng.random() < 0.5:
        return chat(*opening(rng, f"{user}\n\nDoes it pass?"), ("assistant", verdict(sample, outcomes), True))
    wrong = set(wrong_places(outcomes, sample.expected))
    lines = [f"{outcome_text(each)} {'wrong' if i in wrong else 'right'}" for i, each in enumerate(outcomes)]
    answer = "\n".join([*lines, verdict(sample, outcomes)])
    return chat(*opening(rng, f"{user}\n\nWhat does each call give?"), ("assistant", answer, True))


def session(sample: Sample, rng: Random) -> Document:
    """An interpreter session that takes one or two inputs through the steps of the program."""
    parts: list[Part] = []
    for example in sample.examples[: rng.randint(1, 2)]:
        parts += _steps(sample, example.given)
    return tuple(parts)


def _steps(sample: Sample, value: Value) -> Iterable[Part]:
    name = sample.argument
    yield Part(f">>> {name} = {value!r}\n", False)
    for place, step in enumerate(sample.program.steps):
        value = step.function(value)
        expression = step.fill(step.operation.expression, v=name)
        name = "abc"[place]
        yield Part(f">>> {name} = {expression}; {name}\n", False)
        yield Part(f"{value!r}\n", True)


def evaluation(sample: Sample, rng: Random) -> Document:
    """A function, right or faulty, and what it gives for each input."""
    code, outcomes = candidate(sample, rng)
    parts = [Part(f"{code}\n\n", False)]
    for given, outcome in zip(sample.given, outcomes, strict=True):
        parts += [Part(f">>> {sample.name}({given!r})\n", False), Part(f"{outcome_text(outcome)}\n", True)]
    return tuple(parts)


def disclosure(sample: Sample, rng: Random) -> Document | None:
    """The parameter that the wording withholds, read off the assertions, then the wording in full."""
    if sample.withheld is None:
        return None
    values = ", ".join(repr(value) for _, value in sample.program.steps[sample.withheld].parameters)
    answer = f"{values}: {render_text(sample.program, None, rng)}"
    return chat(*opening(rng, f"{statement(sample, rng)}\n\nWhat is left open?"), ("assistant", answer, True))


def description(sample: Sample, rng: Random) -> Document:
    """What does a code do: the wording in full."""
    user = f"{sample.code}\n\nWhat does it do?"
    return chat(*opening(rng, user), ("assistant", render_text(sample.program, None, rng), True))


def escaped(sample: Sample, rng: Random) -> Document:
    """A code as a JSON string, or back."""
    plain, quoted = sample.code, json.dumps(sample.code, ensure_ascii=False)
    if rng.random() < 0.7:
        return Part(f"{plain}\n\n", False), Part(f"{quoted}\n", True)
    return Part(f"{quoted}\n\n", False), Part(f"{plain}\n", True)


def restyled(sample: Sample, rng: Random) -> Document | None:
    """The same function in another style."""
    other = sample.reworded(rng, rng.choice([style for style in Style if style is not sample.style]))
    if other.code == sample.code:
        return None
    user = f"{sample.code}\n\nWrite it in another way."
    return chat(*opening(rng, user), ("assistant", other.code, True))


def _pairs(sample: Sample) -> Iterable[tuple[Value, Value]]:
    return zip(sample.given, sample.expected, strict=True)
