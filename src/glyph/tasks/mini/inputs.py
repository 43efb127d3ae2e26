"""Inputs for the assertions: random values of each type near the program's parameters, and the choice among them.

Three inputs are chosen so that they tell the program from its neighbours: the same operations with another
parameter, or with a step left out.
"""

from dataclasses import dataclass
from random import Random

from glyph.tasks.mini.operations import Operation, Type, Value
from glyph.tasks.mini.programs import BY_INPUT, Program, Step

ASSERTIONS = 3
_POOL = 18
_ROUNDS = 3
_NEIGHBOURS = 2
_LONGEST_RESULT = 44  # characters of a literal, so that an assertion stays a short line

_SIBLINGS = 2

WORDS = tuple(
    "apple river stone Lemon small green Tree mouse silent Orange train letter a to in of the moon "  # noqa: SIM905
    "Winter salt early rain ocean tin tomato Paris iron little roses under noon error Anna sister".split()
)


def random_input(takes: Operation, hints: list[int | str], rng: Random) -> Value:
    """A value that the operation may accept, drawn near the hints (parameters of the program)."""
    if takes.takes is Type.LIST:
        return _random_list([hint for hint in hints if isinstance(hint, int)], rng)
    if takes.takes is Type.STRING:
        return _random_string([hint for hint in hints if isinstance(hint, str)], rng)
    return _random_integer(takes, [hint for hint in hints if isinstance(hint, int)], rng)


def _random_list(hints: list[int], rng: Random) -> list[int]:
    numbers = [rng.randint(-9, 20) for _ in range(rng.randint(3, 6))]
    for hint in hints:
        numbers += [hint * rng.randint(1, 3) if rng.random() < 0.4 else hint + rng.randint(-1, 1)]
    if rng.random() < 0.3:
        numbers.append(rng.choice(numbers))
    rng.shuffle(numbers)
    return numbers[:8]


def _random_integer(takes: Operation, hints: list[int], rng: Random) -> int:
    smallest, largest = max(takes.smallest, -20), min(takes.largest, 999)
    if hints and rng.random() < 0.5:
        hint = rng.choice(hints)
        near = hint * rng.randint(1, 12) if rng.random() < 0.5 else hint + rng.randint(-3, 3)
        return min(max(near, smallest), largest)
    return rng.randint(smallest, min(largest, rng.choice((12, 40, 120, 999))))


def _random_string(hints: list[str], rng: Random) -> str:
    words = []
    for _ in range(rng.randint(1, 4)):
        fitting = [word for word in WORDS if any(hint in word for hint in hints)]
        words.append(rng.choice(fitting if fitting and rng.random() < 0.6 else WORDS))
    if rng.random() < 0.35:
        words.insert(rng.randint(0, len(words)), str(rng.randint(0, 250)))
    return " ".join(words)


@dataclass(frozen=True)
class Example:
    given: Value
    expected: Value

    @property
    def is_empty(self) -> bool:
        return self.expected in ([], "", 0)

    def interest(self, others: list[Value]) -> tuple[bool, bool, int]:
        """How much the example shows beside others with these results: new, changed, and not too short."""
        return self.expected not in others, self.expected != self.given, min(len(repr(self.expected)), 10)


def choose_examples(program: Program, withheld: int | None, rng: Random) -> list[Example] | None:
    """Three examples that hold the program apart from its neighbours; None where none were found.

    Every other value of a withheld parameter is refuted by at least one of them.
    """
    must, may = _neighbours(program, withheld)
    pool: list[Example] = []
    for _ in range(_ROUNDS):
        pool += _more_examples(program, pool, rng)
        chosen = _greedy(pool, must, may)
        if chosen:
            return chosen
    return None


def _neighbours(program: Program, withheld: int | None) -> tuple[list[Program], list[Program]]:
    """The programs that must be refuted, and those that should be."""
    must, may = [], []
    for place, step in enumerate(program.steps):
        others: list[Step] = list(step.alternatives())
        if place == withheld:
            must += [program.replaced(place, other) for other in others]
        else:
            may += [program.replaced(place, other) for other in others[:_NEIGHBOURS]]
        may += [program.replaced(place, other) for other in _siblings(step)]
        shorter = program.without(place)
        may += [shorter] if shorter else []
    return must, may


def _siblings(step: Step) -> list[Step]:
    """Steps of the next operations in the table that take and give the same types."""
    mine = step.operation
    table = [op for op in BY_INPUT[mine.takes] if op.gives is mine.gives]
    place = table.index(mine)
    others = (table[place + 1 :] + table[:place])[:_SIBLINGS]
    return [Step(op, tuple((name, values[0]) for name, values in op.choices)) for op in others]


def _more_examples(program: Program, known: list[Example], rng: Random) -> list[Example]:
    hints = [value for step in program.steps for _, value in step.parameters]
    found: list[Example] = []
    for _ in range(_POOL):
        given = random_input(program.steps[0].operation, hints, rng)
        expected = program.run(given)
        if expected is None or len(repr(expected)) > _LONGEST_RESULT:
            continue
        if all(given != other.given for other in known + found):
            found.append(Example(given, expected))
    return found


def _greedy(pool: list[Example], must: list[Program], may: list[Program]) -> list[Example] | None:
    """Pick the example that refutes most, three times; None when a program of `must` survives or the three are dull."""
    refuted = [{i for i, other in enumerate(must + may) if other.run(e.given) != e.expected} for e in pool]
    chosen: list[int] = []
    covered: set[int] = set()
    while len(chosen) < ASSERTIONS:
        left = [i for i in range(len(pool)) if i not in chosen and _adds_variety(pool, chosen, i)]
        if not left:
            return None
        results = [pool[i].expected for i in chosen]
        best = max(left, key=lambda i: (len(refuted[i] - covered), pool[i].interest(results), -i))
        chosen.append(best)
        covered |= refuted[best]
    return [pool[i] for i in chosen] if covered >= set(range(len(must))) else None


def _adds_variety(pool: list[Example], chosen: list[int], i: int) -> bool:
    """At most one of the three is empty or returns its input, and no result stands three times."""
    new = pool[i]
    if new.is_empty and any(pool[j].is_empty for j in chosen):
        return False
    if new.given == new.expected and any(pool[j].given == pool[j].expected for j in chosen):
        return False
    return sum(pool[j].expected == new.expected for j in chosen) < ASSERTIONS - 1
