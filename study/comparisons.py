"""Who is compared with whom, and at which step: the rows of a question, before they are a table.

In: the series of two runs. Out: `Row`s. A pair is compared at the last step that all its seeds in a visit have, and
beside it, outside the family of tests, each seed at its own last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from glyph.evaluation.compare import Comparison, compare
from glyph.evaluation.predicates import Rollout
from glyph.evaluation.seeds import seed_mean
from glyph.evaluation.statistics import Interval
from study.matrix import Question
from study.results import Results, Series

LEAST_SEEDS = 3
Sides = tuple[Series, Series]


@dataclass(frozen=True)
class Row:
    """A comparison of two models at a step of each (0: a model without RL), of as many seeds as there are `sides`.

    `in_family` says whether its p value is one of the question's; not where it repeats a pair at another step.
    `over_seeds` is the t interval of the mean difference of at least three seeds: of two it would say nothing.
    `apart` says whether the two are of different visits, and not from the same SFT weights.
    """

    sides: tuple[Sides, ...]
    steps: tuple[int, int]
    comparison: Comparison
    in_family: bool = True
    over_seeds: Interval | None = None

    @property
    def pair(self) -> tuple[str, str]:
        first, second = self.sides[0]
        return first.run, second.run

    @property
    def seed(self) -> int | None:
        return seed_of(self.sides[0]) if len(self.sides) == 1 else None

    @property
    def visits(self) -> str:
        """Of the sides that several visits made, where that tells rows apart."""
        several = {side.visit.name for both in self.sides for side in both if side.several}
        return "/".join(sorted(several))

    @property
    def apart(self) -> bool:
        return not all(map(is_close, self.sides))


def compared(results: Results, of: Question) -> Iterable[Row]:
    """Of each pair, for every visit of the second: a row a seed, one of all seeds, and those at other last steps."""
    for first, second in of.pairs:
        found = [(sides, _common_steps(sides)) for sides in paired(results.series(first), results.series(second))]
        for visit in sorted({sides[1].visit for sides, _ in found}):
            yield from _of_visit([(sides, steps) for sides, steps in found if steps and sides[1].visit == visit])


def _of_visit(found: Sequence[tuple[Sides, set[int]]]) -> Iterable[Row]:
    shared = set.intersection(*(steps for _, steps in found)) if found else set()
    rows = [_row([sides], max(shared or steps)) for sides, steps in found]
    yield from rows
    if shared and len(rows) > 1:
        spread = seed_mean([row.comparison.difference for row in rows]).interval if len(rows) >= LEAST_SEEDS else None
        yield replace(_row([sides for sides, _ in found], max(shared)), over_seeds=spread)
    for row in rows:
        last = _row(row.sides)
        if last.steps != row.steps:
            yield replace(last, in_family=False)


def paired(first: Sequence[Series], second: Sequence[Series]) -> list[Sides]:
    """Each of the second with the closest of the first that has its seed (what has none goes with any).

    Closest is what comes from the same SFT weights, of that what the same visit made, else what the same visit made. Of
    a seed that has such a pair, others are left out. A replay goes with its own run in its own visit alone.
    """
    pairs: list[Sides] = []
    for y in second:
        matching = [x for x in first if (x.seed == y.seed or None in (x.seed, y.seed)) and _may_pair(x, y)]
        if matching:
            pairs.append((max(matching, key=partial(_closeness, y)), y))
    close = {seed_of(sides) for sides in pairs if is_close(sides)}
    return [sides for sides in pairs if is_close(sides) or seed_of(sides) not in close]


def _may_pair(first: Series, second: Series) -> bool:
    return first.visit == second.visit or not is_replay(first.run, second.run)


def is_replay(first: str, second: str) -> bool:
    """Whether the second is the first's weights under a variant."""
    return second.startswith(f"{first}:")


def _closeness(one: Series, other: Series) -> tuple[bool, bool]:
    """Whether two series come from the same SFT weights, and whether one visit made them."""
    return one.start is not None and one.start == other.start, one.visit == other.visit


def is_close(sides: Sides) -> bool:
    return any(_closeness(*sides))


def seed_of(sides: Sides) -> int | None:
    first, second = sides
    return second.seed if first.seed is None else first.seed


def _common_steps(sides: Sides) -> set[int]:
    """The steps that both sides were evaluated at; a model without RL, at step 0 alone, goes with any."""
    first, second = (set(each.steps) for each in sides)
    if {0} in (first, second):
        return second if first == {0} else first
    return first & second


def _row(sides: Sequence[Sides], step: int | None = None) -> Row:
    """The pairs at a step, where a model without RL is at 0, or each model at its own last."""
    rollouts: tuple[list[Rollout], list[Rollout]] = [], []
    steps = [0, 0]
    for both in sides:
        for place, series in enumerate(both):
            steps[place] = max(series.steps) if step is None else step if step in series.steps else 0
            rollouts[place].extend(series.steps[steps[place]].rollouts)
    return Row(tuple(sides), (steps[0], steps[1]), compare(*rollouts))
