"""The tables of the pages in docs/ from their figures: `python -m benchmarks.document [NAME …]` writes them anew.

    docs/figures/NAME.json → its `render` → the part of the page between `<!-- NAME -->` and `<!-- end -->`

A name without a file has an empty part. The prose around the tables is written by hand.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import environment, one_gpu, published
from benchmarks.engine import tables
from glyph.commands.console import fail, say

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "performance.md": {"environment": environment.render, "engine_cpu": tables.render, "engine_gpu": tables.render},
    "reproduction.md": {"published": published.render, "prime_rl_one_gpu": one_gpu.render},
}
"""The parts of each page in docs/, and what renders them."""
PART = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def tables_of(name: str) -> str:
    """The tables that the page should show; empty where nothing was measured. Raises: KeyError for an unknown name."""
    renders = {part: render for parts in PAGES.values() for part, render in parts.items()}
    render, file = renders[name], DOCS / "figures" / f"{name}.json"
    return render(json.loads(file.read_text("utf-8"))).strip() if file.is_file() else ""


def shown(page: str) -> dict[str, str]:
    """The tables that a page shows, by name."""
    return {name: part.strip() for name, part in PART.findall(page)}


def fill(page: str, table_of: Callable[[str], str | None]) -> str:
    """The page with each part's table as `table_of` its name says; None leaves a part as it is."""

    def part(found: re.Match[str]) -> str:
        table = table_of(found[1])
        if table is None:
            return found[0]
        return "\n".join([f"<!-- {found[1]} -->", *([table] if table else []), "<!-- end -->"])

    return PART.sub(part, page)


def with_tables(page: str, names: list[str]) -> str:
    """The page with the tables of these names as they should be."""
    return fill(page, lambda name: tables_of(name) if name in names else None)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="which; all without any")] = None,
    check: Annotated[bool, typer.Option("--check", help="write nothing; exit 1 where a page differs")] = False,
) -> None:
    """Write the tables of docs/performance.md and docs/reproduction.md from docs/figures."""
    stale = []
    for page, parts in ((DOCS / file, parts) for file, parts in PAGES.items()):
        chosen = [name for name in parts if name in (names or parts)]
        if chosen:
            old = page.read_text("utf-8")
            new = with_tables(old, chosen)
            if check:
                stale += [str(page)] if new != old else []
                continue
            page.write_text(new, "utf-8")
            say(f"wrote {page}")
    if stale:
        fail(f"{', '.join(stale)}: the tables are not those of docs/figures; run python -m benchmarks.document", 1)


if __name__ == "__main__":
    typer.run(main)
