"""The pages' tables and figures, from the published results: `python -m study.document [--results DIR] [--check]`.

    RESULTS_PUBLISHED → `parts` → what stands between `<!-- NAME -->` and `<!-- end -->` in docs/results.md, README.md
                      → `figures` → docs/figures/study_NAME.svg

A part without results is empty. The prose around the tables is written by hand.
"""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.document import fill, shown
from glyph.commands.console import fail, say
from study import behaviour, figures, tables
from study.matrix import Matrix, load_matrix
from study.results import MINI, Results, read_results

PAGES = tuple(tables.ROOT / name for name in ("docs/results.md", "docs/results_mini.md", "README.md"))


def parts(results: Path = tables.SMALL, mini: Path = tables.MINI_STUDY) -> dict[str, str]:
    """Every table by the name of its part; those of the study at the mini scale are `mini_NAME`."""
    found, matrix = read_results(results), load_matrix()
    return {
        "mini": tables.mini(),
        **{f"mini_{name}": table for name, table in _of_scale(read_results(mini, MINI), matrix).items()},
        **_of_scale(found, matrix),
        "decisions": behaviour.decisions(found, matrix),
        "development": behaviour.development(found, matrix),
    }


def _of_scale(found: Results, matrix: Matrix) -> dict[str, str]:
    """The tables that both scales show."""
    return {
        "runs": tables.runs(found),
        "passes": tables.passes(found, matrix),
        **{of.name: tables.question(found, of) for of in matrix.question},
        "predictions": behaviour.predictions(found, matrix),
        "costs": behaviour.costs(found, matrix),
        "training": behaviour.training(found, matrix),
    }


def figure_files(results: Path = tables.SMALL) -> dict[Path, str]:
    """Every figure by the file that it belongs in."""
    return {figures.FOLDER / f"{name}.svg": svg for name, svg in figures.figures(read_results(results)).items()}


def with_parts(page: str, wanted: dict[str, str]) -> str:
    """The page with its tables as they should be. Raises: KeyError: a part that there is not."""
    return fill(page, wanted.__getitem__)


def main(
    results: Annotated[Path, typer.Option(help="the folder of the small scale's results")] = tables.SMALL,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where a page differs")] = False,
    output: Annotated[
        Path | None, typer.Option(help="write all tables to this file, and leave the pages alone")
    ] = None,
) -> None:
    """Write the tables of the pages anew, and the figures."""
    wanted = parts(results)
    if output is not None:
        output.write_text("".join(f"## {name}\n\n{table}\n\n" for name, table in wanted.items() if table))
        say(f"wrote {output}")
        return
    seen: set[str] = set()
    for page in PAGES:
        old = page.read_text("utf-8")
        try:
            new = with_parts(old, wanted)
        except KeyError as error:
            fail(f"{page}: <!-- {error.args[0]} -->: there is no such table; known are {', '.join(wanted)}")
        seen |= shown(old).keys()
        if old != new and check:
            fail(f"{page}: the tables are not those of the results; run bash scripts/reproduce_tables.sh", 1)
        if old != new:
            page.write_text(new)
        say(f"{page.name}: {'unchanged' if old == new else 'written'}")
    for file, text in figure_files(results).items():
        changed = not file.is_file() or file.read_text("utf-8") != text
        if changed and check:
            fail(f"{file}: not the figure of the results; run bash scripts/reproduce_tables.sh", 1)
        if changed:
            file.write_text(text)
        say(f"{file.name}: {'written' if changed else 'unchanged'}")
    if missing := [name for name, table in wanted.items() if table and name not in seen]:
        say(f"shown on no page: {', '.join(missing)} (put <!-- NAME --> and <!-- end --> where the table belongs)")


if __name__ == "__main__":
    typer.run(main)
