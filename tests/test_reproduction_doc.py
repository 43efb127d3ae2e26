"""docs/reproduction.md: the published figures are those of the file, marked as theirs; its commands are ours."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.document import DOCS, PAGES, shown, tables_of

ROOT = Path(__file__).parents[1]
PAGE = (DOCS / "reproduction.md").read_text("utf-8")
FIGURES = json.loads((DOCS / "figures" / "published.json").read_text("utf-8"))
NOT_IN_THE_TABLES = {"unit", "source"}
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_published_tables_are_rendered_from_the_file() -> None:
    tables = {name: tables_of(name) for name in PAGES["reproduction.md"]}
    assert shown(PAGE) == tables  # if not: python -m benchmarks.document


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield str(value)


@pytest.mark.parametrize("key", sorted(set(FIGURES) - NOT_IN_THE_TABLES))
def test_each_published_figure_is_on_the_page(key: str) -> None:
    table = tables_of("published")
    missing = [
        figure for figure in leaves(FIGURES[key]) if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]?\d)", table)
    ]
    assert missing == []


def test_every_table_says_whose_figures_it_shows() -> None:
    table = tables_of("published")
    assert table.count("**Theirs: ") == table.count("|---|") == 8


def test_the_figures_quoted_as_theirs_elsewhere_agree() -> None:
    rates = FIGURES["test_pass_at_1_greedy_n500"]
    quoted = (DOCS / "deviations.md").read_text("utf-8")
    for arm in "AB":
        after = " / ".join(str(rates[arm][seed]["100"]) for seed in ("42", "43"))
        assert f"Arm {arm} SFT {rates[arm]['sft']}, after 100 RL steps {after}" in quoted


def test_no_page_waits_to_be_filled() -> None:
    assert [page.name for page in sorted(DOCS.rglob("*.md")) if "TO FILL" in page.read_text("utf-8")] == []


def commands(prefix: str) -> list[list[str]]:
    """The page's commands that begin so, as words; lines joined, loop variables with their first value."""
    lines = "".join(BLOCKS).replace("\\\n", " ").splitlines()
    found = [line.strip().removesuffix("&&") for line in lines if line.strip().startswith(prefix)]
    values = {"$arm": "a", "${arm}": "a", "$seed": "42"}
    return [shlex.split(re.sub(r"\$\{?\w+\}?", lambda each: values[each[0]], line)) for line in found]


@pytest.mark.parametrize("words", [*commands("bash scripts/train_")], ids=" ".join)
def test_the_scripts_take_the_training_commands(words: list[str], tmp_path: Path) -> None:
    """Each says what it would run, with the arm's configuration and what the command gives."""
    (tmp_path / "config.json").write_text("{}")
    given = words.index("--model") + 1
    output = str(tmp_path / "out")
    words = [*words[:given], str(tmp_path), *words[given + 1 : words.index("--output")], "--output", output, "--print"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert not done.returncode, done.stderr
    stage = "sft" if "train_sft" in words[1] else "rl"
    assert f"arm_{words[2]}_{stage}.toml" in done.stdout
    assert f"--model.name {tmp_path} --output-dir {output}" in done.stdout
    assert ("--inference.seed 42" in done.stdout) == (stage == "rl")


def test_what_the_page_runs_exists() -> None:
    text = "".join(BLOCKS)
    assert {name for name in re.findall(r"scripts/\w+\.sh", text) if not (ROOT / name).is_file()} == set()
    listed = subprocess.run(["bash", "-n", "-c", text.replace("CHECKPOINT", "x")], capture_output=True, text=True)
    assert not listed.returncode, listed.stderr
    assert len(commands("bash scripts/train_")) == 3
