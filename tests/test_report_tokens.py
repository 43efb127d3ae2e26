"""What the page's viewer gets: roles as letters, a bounded choice of rollouts, text that is safe to show."""

import json
from pathlib import Path

import pytest

from glyph.report.groups import group_runs
from glyph.report.runs import RunError, read_run
from glyph.report.tokens import ROLLOUTS_PER_STEP, read_annotated, text_exhibit, training_exhibits
from tests.builders import trace
from tests.run_folders import annotated, write_lines, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "b0", "b", 0, steps=20, every=4, tasks=2)


def test_the_first_a_middle_and_the_last_stored_step_are_shown(folder: Path) -> None:
    exhibits = training_exhibits(group_runs([read_run(folder)]))
    assert len(exhibits) == 3 * ROLLOUTS_PER_STEP
    steps = [exhibit.place.rsplit(" ", 1)[1] for exhibit in exhibits]
    assert steps == [step for step in ("1", "9", "17") for _ in range(ROLLOUTS_PER_STEP)]
    advantages = [exhibit.to_dict()["advantage"] for exhibit in exhibits[:2]]
    assert advantages == [0.5, -0.5]


def test_the_second_and_third_rollouts_of_a_step_go_first_where_room_is_short(folder: Path) -> None:
    groups = group_runs([read_run(folder)])
    sizes = [len(json.dumps(exhibit.to_dict())) for exhibit in training_exhibits(groups)]
    few = training_exhibits(groups, limit=sum(sizes[::3]) + 1)
    assert [exhibit.place.rsplit(" ", 1)[1] for exhibit in few] == ["1", "9", "17"]
    assert training_exhibits(groups, limit=10) == []


def test_roles_are_letters_beside_their_tokens(tmp_path: Path) -> None:
    line = annotated(trace("t1"), 0.5)
    line["tokens"] = [["<|im_start|>", "context"], ["\x1b\n", "rl"], ["PASS", "masked"], ["\u202e\ud800", "untrained"]]
    line["targets"] = [{"at": 2, "label": "OTHER", "tokens": [["OTHER", "ce"], ["</", "shared"]]}]
    path = write_lines(tmp_path / "b0/traces/step_000001.jsonl.gz", [line])
    ((made, found),) = read_annotated(path)
    assert made.task_id == "t1"
    folder = write_run(tmp_path / "b1", "b", 0, steps=1, every=4, tasks=2)
    write_lines(folder / "traces/step_000001.jsonl.gz", [line])
    (exhibit,) = training_exhibits(group_runs([read_run(folder)]))
    data = exhibit.to_dict()
    assert data["roles"] == "crmu"
    assert data["tokens"] == ["<|im_start|>", "\\x1b\n", "PASS", "\\u202e\\ud800"]
    assert data["targets"] == [{"at": 2, "label": "OTHER", "tokens": [["OTHER", True], ["</", False]]}]
    assert data["title"] == "task t1 · stop final · reward 1"
    assert found.advantage == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [["x", "learned"]]}, r"step_000001.jsonl.gz:1: tokens.0.1: .*'learned'"),
        ({"targets": [{"at": 10**6, "label": "PASS", "tokens": []}]}, r":1: targets: at 1000000 is beyond"),
        ({"messages": "no"}, r"step_000001.jsonl.gz:1: messages: "),
    ],
)
def test_a_bad_annotation_is_named_with_its_place(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write_lines(tmp_path / "step_000001.jsonl.gz", [{**annotated(trace("t1"), 0.5), **change}])
    with pytest.raises(RunError, match=message):
        list(read_annotated(path))


def test_a_rollout_without_tokens_is_not_shown(tmp_path: Path) -> None:
    line = annotated(trace("t1"), None)
    del line["tokens"]
    assert list(read_annotated(write_lines(tmp_path / "s.jsonl.gz", [line]))) == []
    (tmp_path / "damaged.jsonl.gz").write_bytes((tmp_path / "s.jsonl.gz").read_bytes()[:40])
    with pytest.raises(RunError, match="damaged"):
        list(read_annotated(tmp_path / "damaged.jsonl.gz"))


def test_a_rollout_without_roles_is_shown_as_text() -> None:
    data = text_exhibit("arm_b", trace("t1")).to_dict()
    assert "── 2 assistant" in data["text"]
    assert "roles" not in data
