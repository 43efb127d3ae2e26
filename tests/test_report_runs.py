"""Reading run folders, grouping them, and what their curves and first and last evaluations are made of."""

import gzip
import json
from pathlib import Path

import pytest

from glyph.report.curves import evaluation_series, smoothed, training_series
from glyph.report.groups import group_runs
from glyph.report.runs import RunError, TrainLine, find_runs, is_run_folder, read_run
from glyph.report.training import build_content
from tests.run_folders import write_metrics, write_run

MANIFEST = {"stage": "rl", "arm": "a", "scale": "mini", "seed": 0}


def write_lines(folder: Path, *lines: dict, seed: int = 0, arm: str = "a", stage: str = "rl") -> Path:  # type: ignore[type-arg]
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "seed": seed, "arm": arm, "stage": stage}))
    write_metrics(folder, lines)
    return folder


def train(step: int, reward: float | None) -> dict:  # type: ignore[type-arg]
    return {"kind": "train", "step": step, "reward_mean": reward, "not_known": [1]}


def evaluation(step: int, value: float | None, split: str = "validation") -> dict:  # type: ignore[type-arg]
    interval = {"low": 0.1, "high": 0.9, "method": "wilson"}
    metric = {"value": value, "numerator": None, "denominator": 10, "interval": interval, "tasks": 10}
    return {"kind": "evaluation", "step": step, "split": split, "n": 10, "metrics": {"pass_at_1": metric}}


def test_a_run_is_read_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", "b", 3, steps=4, every=2, tasks=3))
    assert (run.manifest.arm, run.manifest.seed, run.manifest.commit[:4]) == ("b", 3, "0123")
    assert [line.step for line in run.training] == [1, 2, 3, 4]
    assert [line.step for line in run.evaluations] == [0, 2, 4]
    assert run.config is not None
    assert run.config["credit"] == {"alpha": 0.1}
    assert [step for step, _ in run.step_files()] == [1, 3]
    files = [run.trace_file(line) for line in run.evaluations]
    assert files[2] == tmp_path / "r/evaluations/step_000004/traces.jsonl.gz"
    assert run.notes == ()


def test_compressed_metrics_are_read_alike(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", "b", 3, steps=4, every=2, tasks=3)
    plain, packed = folder / "metrics.jsonl", folder / "metrics.jsonl.gz"
    before = read_run(folder)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert is_run_folder(folder)
    assert read_run(folder) == before
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(RunError, match=r"metrics\.jsonl\.gz: damaged or cut short"):
        read_run(folder)


def test_of_a_repeated_step_the_later_line_counts_and_a_torn_end_is_left_out(tmp_path: Path) -> None:
    folder = write_lines(tmp_path / "r", train(2, 0.9), train(1, 0.1), train(2, 0.2))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    run = read_run(folder)
    assert [(line.step, line.reward_mean) for line in run.training] == [(1, 0.1), (2, 0.2)]
    assert "1 repeated steps" in run.notes[1]
    assert "unfinished" in run.notes[0]


def test_numbers_that_are_none_are_undefined(tmp_path: Path) -> None:
    folder = write_lines(tmp_path / "r", train(1, float("nan")), {"kind": "train", "step": 2, "seconds": 1.5})
    first, second = read_run(folder).training
    assert first.reward_mean is None
    assert second.seconds == {"training": 1.5, "total": 1.5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"kind": "train"\n{}\n', r"metrics.jsonl:1: not JSON"),
        ("metrics.jsonl", "[]\n", r"metrics.jsonl:1: expected a JSON object, got list"),
        ("metrics.jsonl", '{"kind": "train", "step": "x"}\n', r"metrics.jsonl:1: step: .*'x'"),
        ("metrics.jsonl", '{"kind": "evaluation", "step": 1, "n": 3}\n', r"metrics.jsonl:1: metrics: Field required"),
        ("manifest.json", "{", r"manifest.json: not JSON"),
        ("manifest.json", '{"stage": "rl", "arm": "a"}', r"manifest.json: seed: Field required"),
        ("config.toml", "[", r"config.toml: not TOML"),
    ],
)
def test_a_bad_file_is_named_with_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = write_lines(tmp_path / "r", train(1, 0.5))
    (folder / name).write_text(content)
    with pytest.raises(RunError, match=message):
        read_run(folder)


def test_a_folder_of_runs_stands_for_them(tmp_path: Path) -> None:
    folders = [write_lines(tmp_path / name, train(1, 0.5)) for name in ("b", "a")]
    (tmp_path / "report").mkdir()
    assert find_runs(tmp_path) == sorted(folders)
    assert find_runs(folders[0]) == [folders[0]]
    assert find_runs(tmp_path / "report") == []
    assert find_runs(tmp_path / "absent") == []


def test_groups_are_seeds_of_one_arm_stage_and_configuration(tmp_path: Path) -> None:
    made = [
        write_run(tmp_path / name, arm, seed, stage, steps=1, tasks=2, **settings)
        for name, arm, seed, stage, settings in (
            ("s", "a", 0, "sft", {}),
            ("b1", "b", 1, "rl", {"alpha": 0.0}),
            ("b0", "b", 0, "rl", {"alpha": 0.0}),
            ("b2", "b", 0, "rl", {"alpha": 0.5}),
            ("a", "a", 0, "rl", {}),
        )
    ]
    groups = group_runs([read_run(folder) for folder in made])
    assert [(group.name, group.seeds) for group in groups] == [
        ("Arm A, RL", (0,)),
        ("Arm B, RL, credit.alpha=0.0", (0, 1)),
        ("Arm B, RL, credit.alpha=0.5", (0,)),
        ("Arm A, SFT", (0,)),
    ]
    with pytest.raises(RunError, match="given twice"):
        group_runs([read_run(made[0]), read_run(tmp_path / "." / "s")])


def test_the_moving_mean_by_hand() -> None:
    line = ((1, 1.0), (2, 2.0), (3, None), (4, 4.0), (9, 9.0))
    assert smoothed(line, 3) == ((1, 1.5), (2, 1.5), (3, None), (4, 6.5), (9, 6.5))
    assert smoothed(line, 1) == line
    assert smoothed(()) == ()


def test_curves_of_seeds_have_means_where_all_have_steps(tmp_path: Path) -> None:
    folders = [
        write_lines(tmp_path / "0", evaluation(0, 0.2), evaluation(10, 0.4), evaluation(20, 0.9), seed=0),
        write_lines(tmp_path / "1", evaluation(0, 0.3), evaluation(10, None), seed=1),
    ]
    (group,) = group_runs([read_run(folder) for folder in folders])
    series = evaluation_series(group, "validation", "pass_at_1")
    assert series.steps == (0, 10)
    assert [mean.mean for mean in series.means] == [pytest.approx(0.25), 0.4]
    assert [mean.n for mean in series.means] == [2, 1]
    assert series.means[0].interval is not None
    assert series.means[0].interval.method == "t-over-seeds"
    assert series.by_seed[0] == ((0, 0.2), (10, 0.4), (20, 0.9))
    assert series.to_dict()["by_seed"][1] == {0: 0.3, 10: None}


def test_one_seed_keeps_the_interval_over_tasks(tmp_path: Path) -> None:
    (group,) = group_runs([read_run(write_lines(tmp_path / "0", evaluation(0, 0.2), evaluation(5, 0.3)))])
    series = evaluation_series(group, "validation", "pass_at_1")
    assert [mean.interval and mean.interval.low for mean in series.means] == [0.1, 0.1]
    assert not evaluation_series(group, "validation", "recovery").defined


def test_training_curves_keep_what_they_smooth(tmp_path: Path) -> None:
    (group,) = group_runs([read_run(write_lines(tmp_path / "0", *(train(i, float(i)) for i in range(1, 6))))])
    series = training_series(group, lambda line: line.reward_mean, "share")
    assert series.raw[0] == tuple((i, float(i)) for i in range(1, 6))
    assert [value for _, value in series.by_seed[0]] == [2.0, 2.5, 3.0, 3.5, 4.0]
    assert not training_series(group, lambda line: line.loss, "nats").defined


def test_first_and_last_evaluations_are_pooled_and_compared_seed_by_seed(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{arm}{seed}", arm, seed, steps=4, every=2, tasks=6) for arm in "ab" for seed in (0, 1)
    ]
    content = build_content([read_run(folder) for folder in folders], [], "Runs", {})
    assert [column.name for column in content.report.columns] == [
        "Arm A, step 0", "Arm A, step 4", "Arm B, step 0", "Arm B, step 4",
    ]  # fmt: skip
    assert [column.name for column in content.shown] == ["Arm A, step 4", "Arm B, step 4"]
    pooled = content.report.columns[1]
    assert (pooled.tasks, len(pooled.rollouts), len(pooled.more_sources)) == (6, 12, 1)
    pairs = [(c.first, c.second, c.mcnemar is None) for c in content.report.comparisons]
    assert pairs == [
        ("Arm A, step 0", "Arm A, step 4", True),
        ("Arm A, step 0, seed 0", "Arm A, step 4, seed 0", False),
        ("Arm A, step 0, seed 1", "Arm A, step 4, seed 1", False),
        ("Arm B, step 0", "Arm B, step 4", True),
        ("Arm B, step 0, seed 0", "Arm B, step 4, seed 0", False),
        ("Arm B, step 0, seed 1", "Arm B, step 4, seed 1", False),
        ("Arm A, step 4", "Arm B, step 4", True),
        ("Arm A, step 4, seed 0", "Arm B, step 4, seed 0", False),
        ("Arm A, step 4, seed 1", "Arm B, step 4, seed 1", False),
    ]
    assert len(content.report.holm_p) == 6
    assert content.report.notes == ()
    assert content.colours()["Arm B, step 4"] == content.colours()["Arm B"] == 1
    json.dumps(content.report.to_dict())


def test_numbers_that_contradict_the_stored_rollouts_are_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a0", "a", 0, steps=2, every=2, tasks=4)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[0]["metrics"]["pass_at_1"]["value"] = 0.123
    write_metrics(folder, lines)
    (note,) = build_content([read_run(folder)], [], "Runs", {}).report.notes
    assert "pass@1 of step 0 is 0.123 in metrics.jsonl" in note


def test_a_run_without_evaluations_has_curves_and_no_columns(tmp_path: Path) -> None:
    content = build_content([read_run(write_lines(tmp_path / "r", train(1, 0.5)))], [], "Runs", {})
    assert content.report.columns == ()
    assert list(content.curves) == ["rl/train/reward_mean"]
    assert isinstance(content.groups[0].runs[0].training[0], TrainLine)
    lost = write_lines(tmp_path / "lost", evaluation(0, 0.5))
    (note,) = build_content([read_run(lost)], [], "Runs", {}).report.notes
    assert "no evaluation on validation whose rollouts all its runs have stored" in note
