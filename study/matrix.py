"""The runs of the study as data: matrix.toml read and checked.

Owns which runs there are, what they start from, what is compared with what. What a run's settings mean is
`glyph.config`'s; how runs are made is runner.py's.
"""

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from glyph.variants import parse_variant

FILE = Path(__file__).with_name("matrix.toml")
QUARTERS = 4
BASE = "base"
Arm = Literal["a", "b"]


class MatrixError(ValueError):
    """The matrix, or what was asked of it, does not hold together; the message says where."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Scale(_Table):
    """`steps` is the length of every run of RL; `sft` and `rl` are settings that all have, `test` those of all
    evaluations on the test tasks, over those of `rl`."""

    steps: Annotated[int, Field(ge=1)]
    sft: tuple[str, ...] = ()
    rl: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


class Sft(_Table):
    """An SFT run, shared by all seeds. `variant` is the grammar that its data show."""

    name: str
    arm: Arm
    variant: str = "standard"


class Spec(_Table):
    """A run without its seed. `replays` are variants that its checkpoints are evaluated under once more."""

    name: str
    sft: str
    settings: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()


class Visit(_Table):
    """`untrained` names the models before RL that play the test tasks in it, and are trained for it where no run starts
    from them: `base`, SFT runs. `until` is the quarter after which its runs end; 0 is the last."""

    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    untrained: tuple[str, ...] = ()
    until: Annotated[int, Field(ge=0)] = 0


class Question(_Table):
    name: str
    title: str
    pairs: tuple[tuple[str, str], ...]


class Run(_Table):
    """A run of RL: one spec with one seed."""

    spec: Spec
    seed: int
    sft: Sft

    @property
    def name(self) -> str:
        return f"{self.spec.name}-seed{self.seed}"

    @property
    def folder(self) -> str:
        return f"rl-{self.name}"


class Matrix(_Table):
    seeds: tuple[int, ...]
    scale: dict[str, Scale]
    sft: tuple[Sft, ...]
    run: tuple[Spec, ...]
    visit: tuple[Visit, ...]
    question: tuple[Question, ...]

    @model_validator(mode="after")
    def _names_are_known(self) -> "Matrix":
        specs, sfts = [spec.name for spec in self.run], [sft.name for sft in self.sft]
        for several in (specs, sfts):
            if twice := {name for name in several if several.count(name) > 1}:
                raise ValueError(f"named twice: {', '.join(sorted(twice))}")
        replays = [f"{spec.name}:{variant}" for spec in self.run for variant in spec.replays]
        used = {
            "sft": ({spec.sft for spec in self.run}, sfts),
            "visit": ({name for visit in self.visit for name in visit.runs}, specs),
            "visit, untrained": ({name for visit in self.visit for name in visit.untrained}, [BASE, *sfts]),
            "question": ({n for q in self.question for pair in q.pairs for n in pair}, [*specs, *sfts, *replays]),
        }
        for what, (names, known) in used.items():
            if unknown := sorted(set(names) - set(known)):
                raise ValueError(f"{what}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
        return self

    def sft_of(self, spec: Spec) -> Sft:
        return next(sft for sft in self.sft if sft.name == spec.sft)

    def runs(self) -> list[Run]:
        """Every run, in the order of priority: all seeds of a spec one after another."""
        return [Run(spec=spec, seed=seed, sft=self.sft_of(spec)) for spec in self.run for seed in self.seeds]

    def visit_of(self, number: int) -> Visit:
        """The visit of this number, from 1. Raises: MatrixError: there is none."""
        if not 1 <= number <= len(self.visit):
            raise MatrixError(f"visit {number}: expected 1 to {len(self.visit)}")
        return self.visit[number - 1]

    def select(self, names: Sequence[str] = (), visit: int | None = None) -> list[Run]:
        """The runs of these names (`b` is all its seeds, `b-seed42` is one) or of a visit; all without either.

        Raises:
            MatrixError: a name or a visit that there is not.
        """
        if visit is not None:
            of = self.visit_of(visit)
            names = [*names, *(f"{name}-seed{seed}" for name in of.runs for seed in of.seeds)]
        runs = self.runs()
        known = {name for run in runs for name in (run.name, run.spec.name)}
        if unknown := [name for name in names if name not in known]:
            raise MatrixError(
                f"run {unknown[0]!r}: expected one of {', '.join(spec.name for spec in self.run)}, with -seedN for one"
            )
        return [run for run in runs if not names or run.name in names or run.spec.name in names]


@lru_cache
def load_matrix(path: Path = FILE) -> Matrix:
    """Raises: MatrixError: the file is no matrix; says which entry is at fault."""
    try:
        matrix = Matrix.model_validate(tomllib.loads(path.read_text("utf-8")))
        for spec in matrix.run:
            for variant in spec.replays:
                parse_variant(variant)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise MatrixError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    except (OSError, ValueError) as error:
        raise MatrixError(f"{path}: {error}") from error
    return matrix


def quarters(steps: int) -> list[int]:
    """The steps at which checkpoints are made and evaluated.

    Raises:
        MatrixError: the steps have no quarters.
    """
    if steps < QUARTERS or steps % QUARTERS:
        raise MatrixError(f"steps must be a multiple of {QUARTERS}, for checkpoints at quarters: got {steps}")
    return [steps * part // QUARTERS for part in range(1, QUARTERS + 1)]
