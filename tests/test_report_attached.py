"""Evaluations made after training: given back to their runs, compared across stages, and told apart from strangers."""

import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from glyph.commands.analysis import register
from glyph.evaluation.metrics import compute
from glyph.evaluation.traces import read_traces
from glyph.report.attached import attach_evaluations
from glyph.report.data import rollouts_of
from glyph.report.figures import build_figures
from glyph.report.page import render_page
from glyph.report.runs import read_run
from glyph.report.training import Content, build_content
from tests.run_folders import write_run, write_test

app = typer.Typer()
register(app)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SFT and RL of both arms, each tested afterwards, as the quickstart leaves them."""
    folder = tmp_path_factory.mktemp("attached") / "runs"
    for arm in "ab":
        for stage, skill in (("sft", 0.2), ("rl", 0.5)):
            run = write_run(folder / f"{stage}-{arm}", arm, 0, stage, steps=4, every=4, tasks=4)
            write_test(folder / f"test-{stage}-{arm}", run, arm, skill)
    return folder


def content_of(folder: Path) -> Content:
    runs = [read_run(path) for path in sorted(folder.glob("[rs]*-*"))]
    files = [read_traces(path) for path in sorted(folder.glob("test-*"))]
    return build_content(*attach_evaluations(runs, files), "Runs", {})


def test_an_evaluation_belongs_to_the_run_of_its_model(folder: Path) -> None:
    file = read_traces(folder / "test-rl-b")
    (other, run), rest = attach_evaluations([read_run(folder / "rl-a"), read_run(folder / "rl-b")], [file])
    assert rest == []
    assert other.splits == ("validation",)
    (line,) = run.of_split("test")
    assert (line.step, line.n, line.errors) == (12, 10, 0)
    assert line.metrics["pass_at_1"].value == compute("pass_at_1", rollouts_of(file.traces)).value
    assert run.trace_file(line) == folder / "test-rl-b/traces.jsonl.gz"


def test_sft_and_rl_of_an_arm_are_compared_on_the_tested_tasks(folder: Path) -> None:
    content = content_of(folder)
    assert content.files == ()
    assert content.report.notes == ()
    pairs = {(c.first, c.second): c for c in content.report.comparisons}
    for arm in "AB":
        assert pairs[f"Arm {arm}, SFT, step 12, test", f"Arm {arm}, RL, step 12, test"].mcnemar is not None
    assert ("Arm A, RL, step 12, test", "Arm B, RL, step 12, test") in pairs
    assert ("Arm A, SFT, step 12, test", "Arm B, RL, step 12, test") not in pairs
    assert {column.name.split(", ", 1)[1] for column in content.shown} == {"RL, step 12, test", "SFT, step 12, test"}
    names = [figure.name for figure in build_figures(content)]
    assert "evaluation_pass_at_1_rl_validation" in names
    assert not [name for name in names if name.endswith("_test")]  # a single point is no curve
    page = render_page(content)
    assert "(SFT step 12)" in page
    assert "(RL step 12)" in page


def test_the_command_reads_what_lies_beside_the_runs(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "Arm B, SFT, step 12, test vs Arm B, RL, step 12, test" in result.stdout


def test_runs_that_were_moved_are_found_by_name_next_to_their_evaluations(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    for path in (tmp_path / "moved").glob("test-*/manifest.json"):
        path.write_text(path.read_text().replace(str(folder), "runs/somewhere"))
    assert content_of(tmp_path / "moved").files == ()


@pytest.mark.parametrize("how", ["another variant", "another arm", "no manifest", "another place", "twice"])
def test_what_does_not_belong_stays_a_file_of_its_own(folder: Path, tmp_path: Path, how: str) -> None:
    run = read_run(folder / "rl-b")
    arm, variant = "a" if how == "another arm" else "b", "forced_keep" if how == "another variant" else "standard"
    model = tmp_path / "rl-b" if how == "another place" else folder / "rl-b"
    file = read_traces(write_test(tmp_path / "test", model, arm, 0.5, variant=variant))
    if how == "no manifest":
        (tmp_path / "test/manifest.json").unlink()
    if how == "another place":
        (tmp_path / "rl-b/checkpoints/step_000012").mkdir(parents=True)
    files = [read_traces(folder / "test-rl-b"), file] if how == "twice" else [file]
    (found,), rest = attach_evaluations([run], files)
    assert rest == [file]
    assert len(found.of_split("test")) == (how == "twice")
