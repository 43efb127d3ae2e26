"""The data folder: what it is made of, that it comes out the same twice, and that every planted fault is found."""

import collections
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glyph.executor import Executor
from glyph.protocol import Arm, Label
from glyph.tasks.demonstrations import Family, State, plan_demonstrations
from glyph.tasks.preparation import (
    EXPECTED_DIGESTS,
    Prepared,
    check_expected,
    plan,
    record_digests,
    write_data,
)
from glyph.tasks.prompts import load_wording
from glyph.tasks.splits import Splits
from glyph.tasks.task_sets import load_task_set
from glyph.tasks.validation import Check, DataFolder, check_tokens, read_folder, validate
from glyph.variants import parse_variant
from tests.scripts import judge
from tests.tiny_tasks import DEMONSTRATIONS, DOUBLE, LARGEST

ROOT = Path(__file__).parents[1]
A, B = Arm.REACTIVE, Arm.PREDICTIVE
COMPOSITION = {"direct": 142, "shadow": 25, "visible": 25, "deep_shadow": 10, "deep_visible": 10}
MINI = {"direct": 90, "shadow": 43, "visible": 47, "deep_shadow": 14, "deep_visible": 18}
MINI_SLIPS = {"shadow": 8, "visible": 12, "deep_shadow": 4, "deep_visible": 8}


def command(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def prepared(mbpp_data: Path) -> DataFolder:
    return read_folder(mbpp_data)


def test_a_second_preparation_is_the_same_byte_for_byte(mbpp_data: Path, mbpp_source: Path, tmp_path: Path) -> None:
    done = command("data.prepare", "--source", str(mbpp_source), "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "all 8 files equal the committed digests" in done.stdout
    files = sorted(path.relative_to(mbpp_data) for path in mbpp_data.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 9
    for name in files:
        assert (tmp_path / name).read_bytes() == (mbpp_data / name).read_bytes(), name


def test_the_manifest_counts_what_the_study_counts(prepared: DataFolder) -> None:
    manifest = prepared.manifest
    assert manifest["counts"] == {"sft": 212, "train": 212, "validation": 40, "test": 500}
    assert manifest["families"] == COMPOSITION
    assert manifest["slips"] == {}
    assert not any("slip" in row for rows in prepared.traces.values() for row in rows)
    assert (manifest["seed"], manifest["schema_version"], manifest["task_set"]) == (42, 1, "mbpp")
    assert manifest["wording_digest"] == load_wording().digest
    labels = manifest["arm_b_label_histogram"]
    assert sum(labels.values()) == 302  # 142 direct, 25·2 shadow, 25·2 visible, 10·3 deep shadow, 10·3 deep visible
    assert labels["PASS"] == 257  # every final state, and the honest mistakes: 212 + 25 + 2·10
    committed = json.loads(EXPECTED_DIGESTS.read_text())[manifest["wording_digest"]]["mbpp"]
    assert prepared.digests == manifest["files"] == committed


def test_traces_are_what_their_family_shows(prepared: DataFolder) -> None:
    for arm, rows in prepared.traces.items():
        assert dict(collections.Counter(row["family"] for row in rows)) == COMPOSITION
        for row in rows:
            turns = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
            faulty = len(row["states"]) - 1
            foreseen = "shadow" in row["family"]
            tests = 1 if arm is B and foreseen else 1 + faulty
            assert sum("python_test" in turn for turn in turns) == tests
            assert sum("apply_patch" in turn for turn in turns) == 1 + faulty
            assert [state["label"] for state in row["states"]].count("PASS") == 1
            assert turns[-1].startswith("FINAL:")


def test_the_command_finds_no_fault(mbpp_data: Path) -> None:
    done = command("data.validate", str(mbpp_data), "--json")
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check["checked"] for check in json.loads(done.stdout)}
    assert checks["gold solutions pass"] == 964
    assert checks["traces replay through the environment"] == 424
    assert not any(check["faults"] for check in json.loads(done.stdout))


def quietly(items: Iterable[Any], what: str, total: int) -> Iterable[Any]:
    return items


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    folder = tmp_path_factory.mktemp("mini")
    done = command("data.prepare", "--tasks", "mini", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    assert "all 8 files equal the committed digests" in done.stdout
    return read_folder(folder)


def check(data: DataFolder, name: str, executor: Executor) -> Check:
    return next(each for each in validate(data, load_wording(), executor.run, quietly, 2) if each.name == name)


def few(data: DataFolder) -> DataFolder:
    """One trace of every family and two tasks a split, so that what is executed stays small."""
    chosen = {row["family"]: row["task_id"] for row in data.traces[A]}
    traces = {arm: [row for row in rows if row["task_id"] in chosen.values()] for arm, rows in data.traces.items()}
    return deepcopy(replace(data, tasks={key: rows[:2] for key, rows in data.tasks.items()}, traces=traces))


def trace(data: DataFolder, arm: Arm, family: Family) -> dict[str, Any]:
    return next(row for row in data.traces[arm] if row["family"] == family.value)


def turn(data: DataFolder, arm: Arm, family: Family, number: int) -> dict[str, str]:
    """The number-th assistant message of the trace."""
    return [m for m in trace(data, arm, family)["messages"] if m["role"] == "assistant"][number]


def edit(message: dict[str, str], before: str, after: str) -> None:
    assert before in message["content"]
    message["content"] = message["content"].replace(before, after)


def state(data: DataFolder, family: Family, number: int) -> dict[str, str]:
    return trace(data, B, family)["states"][number]


REPLAY, DISJOINT = "traces replay through the environment", "splits are disjoint"
TESTS_INSIDE, PLACES = "no test text in the workspace", "rows stand in their files"
FAULTS: dict[str, tuple[str, str, Callable[[DataFolder], Any]]] = {
    "a changed file": (
        "files equal the manifest",
        "differs from the manifest",
        lambda d: d.digests.update({"arm_a_test.jsonl": "0" * 64}),
    ),
    "another wording": (
        "files equal the manifest",
        "the wording is another one",
        lambda d: d.manifest.update(wording_digest="0"),
    ),
    "a family too many": (
        "composition of the SFT traces",
        "arm a: {",
        lambda d: trace(d, A, Family.SHADOW).update(family="direct"),
    ),
    "no FINAL": (
        "composition of the SFT traces",
        "does not end with FINAL",
        lambda d: trace(d, A, Family.DIRECT)["messages"].pop(),
    ),
    "a task in two splits": (
        DISJOINT,
        "stands in ['test', 'train']",
        lambda d: d.tasks[A, "test"][0].update(task_id=d.tasks[A, "train"][0]["task_id"]),
    ),
    "a task twice": (DISJOINT, "a task stands twice", lambda d: d.tasks[A, "test"].append(d.tasks[A, "test"][0])),
    "a trace twice": (DISJOINT, "arm b sft: a task stands twice", lambda d: d.traces[B].append(d.traces[B][0])),
    "another order": (DISJOINT, "the same tasks in the same order", lambda d: d.tasks[B, "train"].reverse()),
    "the wrong file": (PLACES, "says arm 'b', split 'test'", lambda d: d.tasks[A, "test"][0].update(arm="b")),
    "the wrong split": (PLACES, "split 'train'", lambda d: d.traces[B][0].update(split="train")),
    "arms differ": (
        "arms match on task, code and outcome",
        "differ in states",
        lambda d: trace(d, A, Family.VISIBLE)["states"][0].update(label="TIMEOUT"),
    ),
    "a test in the workspace": (
        TESTS_INSIDE,
        "test text in the workspace",
        lambda d: state(d, Family.DIRECT, 0).update(source="x = 1\n" + trace(d, B, Family.DIRECT)["test_code"]),
    ),
    "a wrong gold": (
        "gold solutions pass",
        "RUNTIME_ERROR",
        lambda d: d.tasks[A, "validation"][0].update(gold="def nothing(): pass"),
    ),
    "a wrong test": (
        "gold solutions pass",
        "ASSERTION_FAILURE",
        lambda d: d.traces[A][0].update(test_code="assert 1 == 2\n"),
    ),
    "another answer": (
        REPLAY,
        "the environment answers differently",
        lambda d: edit(trace(d, A, Family.VISIBLE)["messages"][5], "failed", "passed"),
    ),
    "another prompt": (
        REPLAY,
        "the environment answers differently",
        lambda d: edit(trace(d, B, Family.DIRECT)["messages"][1], "function", "method"),
    ),
    "a wrong state": (REPLAY, "states are", lambda d: state(d, Family.SHADOW, 0).update(source="x = 1\n")),
    "a wrong outcome": (REPLAY, "states are", lambda d: state(d, Family.SHADOW, 0).update(label="TIMEOUT")),
    "a faulty state that passes": (
        REPLAY,
        "faulty states must fail",
        lambda d: state(d, Family.SHADOW, 0).update(label="PASS"),
    ),
    "a state too few": (
        REPLAY,
        "1 states, a shadow trace has 2",
        lambda d: trace(d, B, Family.SHADOW)["states"].pop(0),
    ),
    "a false prediction": (
        REPLAY,
        "predicts TIMEOUT, REVISE where a shadow trace says",
        lambda d: edit(turn(d, B, Family.SHADOW, 1), state(d, Family.SHADOW, 0)["label"] + "<", "TIMEOUT<"),
    ),
    "no honest mistake": (
        REPLAY,
        "where a visible trace says PASS, KEEP",
        lambda d: edit(turn(d, B, Family.VISIBLE, 1), "PASS<", "OTHER<"),
    ),
    "a breach": (
        REPLAY,
        "earns no reward (protocol_error)",
        lambda d: edit(turn(d, A, Family.DIRECT, 1), "CALL", "Call"),
    ),
    "cut short": (
        REPLAY,
        "the trace ends before the rollout does",
        lambda d: trace(d, B, Family.DIRECT).update(messages=trace(d, B, Family.DIRECT)["messages"][:-1]),
    ),
    "turns after the end": (
        REPLAY,
        "the environment answers differently",
        lambda d: trace(d, A, Family.DIRECT)["messages"].append({"role": "assistant", "content": "FINAL: again"}),
    ),
}


def test_a_small_part_has_no_fault_of_its_own(prepared: DataFolder, executor: Executor) -> None:
    for name in (REPLAY, DISJOINT, TESTS_INSIDE, PLACES, "gold solutions pass", "files equal the manifest"):
        assert check(few(prepared), name, executor).faults == (), name


@pytest.mark.parametrize("planted", FAULTS)
def test_a_planted_fault_is_found(prepared: DataFolder, executor: Executor, planted: str) -> None:
    name, message, plant = FAULTS[planted]
    data = few(prepared)
    plant(data)
    faults = check(data, name, executor).faults
    assert any(message in fault for fault in faults), faults


def test_the_token_limit_is_checked(prepared: DataFolder) -> None:
    found = check_tokens(prepared, lambda messages: 1280 if messages[1]["role"] == "user" else 0)
    assert (found.checked, found.faults) == (424, ())
    assert len(check_tokens(prepared, lambda messages: 1281).faults) == 424


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("manifest.json", "{", "manifest.json: no JSON"),
        ("arm_b_test.jsonl", None, "arm_b_test.jsonl: No such file or directory; run python -m data.prepare"),
        ("arm_b_test.jsonl", "[1]\n", "arm_b_test.jsonl:1: no task_id"),
        ("arm_b_test.jsonl", "7\n", "arm_b_test.jsonl:1: no JSON object"),
        ("sft/arm_a/train.jsonl", '{"schema_version": 1}\n', "train.jsonl:1: no task_id"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tiny_data: Path, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    for path in tiny_data.rglob("*.json*"):
        copy = tmp_path / path.relative_to(tiny_data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_folder(tmp_path)
    done = command("data.validate", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("field", "value"), [("messages", []), ("messages", [{}]), ("states", 3), ("family", None)])
def test_a_trace_of_another_form_is_named(tiny_data: Path, tmp_path: Path, field: str, value: Any) -> None:
    for path in tiny_data.rglob("*.json*"):
        copy = tmp_path / path.relative_to(tiny_data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    row = json.loads((tmp_path / "sft/arm_b/train.jsonl").read_text().splitlines()[0])
    (tmp_path / "sft/arm_b/train.jsonl").write_text(json.dumps({**row, field: value}) + "\n")
    with pytest.raises(ValueError, match=rf"train.jsonl:1: {field} not of the form"):
        read_folder(tmp_path)


def test_the_mini_set_prepares_too(mini: DataFolder, executor: Executor) -> None:
    assert (mini.manifest["families"], mini.manifest["slips"]) == (MINI, MINI_SLIPS)
    assert mini.manifest["counts"] == {"sft": 212, "train": 2000, "validation": 200, "test": 500}
    # a label for each final state and honest mistake: 212 + 47 + 2·18; for each foreseen one: 43 + 2·14, slips 8 + 4
    labels = mini.manifest["arm_b_label_histogram"]
    assert (labels["PASS"], sum(labels.values())) == (295, 378)
    for name in ("files equal the manifest", "composition of the SFT traces", DISJOINT, PLACES, TESTS_INSIDE):
        assert check(mini, name, executor).faults == (), name
    assert check(few(mini), REPLAY, executor).faults == ()


def test_the_mini_traces_show_failed_patches_and_every_call_id(mini: DataFolder) -> None:
    for rows in mini.traces.values():
        texts = [[m["content"] for m in row["messages"]] for row in rows]
        refused = [sum("\npatch failed: find " in text for text in each) for each in texts]
        assert refused == ["slip" in row for row in rows]
        assert sum("CALL read_file" in text for each in texts for text in each[2:]) == 10  # (12 + 8) / 2
        for n in range(1, 9):
            assert any(f'"id": "{n}"' in text for each in texts for text in each[2:]), n
    assert [row.get("slip") for row in mini.traces[A]] == [row.get("slip") for row in mini.traces[B]]


def slipping(data: DataFolder) -> DataFolder:
    """The trace with a slip of a shadow and of a visible family, in both arms; nothing else is executed."""
    chosen = {row["family"]: row["task_id"] for row in data.traces[A] if "slip" in row}
    kept = (chosen["shadow"], chosen["visible"])
    traces = {arm: [row for row in rows if row["task_id"] in kept] for arm, rows in data.traces.items()}
    return deepcopy(replace(data, traces=traces))


SLIP_FAULTS: dict[str, tuple[str, str, Callable[[DataFolder], Any]]] = {
    "a slip of one arm alone": (
        "arms match on task, code and outcome",
        "the arms differ in slip",
        lambda d: trace(d, A, Family.VISIBLE)["slip"].update(step=1),
    ),
    "another slip than stated": (
        REPLAY,
        "patches that fail: [{'step': 0, 'find': ",
        lambda d: trace(d, B, Family.SHADOW)["slip"].update(find="x"),
    ),
    "a slip that is not stated": (REPLAY, "the trace states []", lambda d: trace(d, B, Family.SHADOW).pop("slip")),
    "a look that is not there": (
        REPLAY,
        "0 looks at the file, the trace states 1",
        lambda d: trace(d, A, Family.SHADOW)["slip"].update(read=True),
    ),
    "a slip too few": (
        "composition of the SFT traces",
        "with a slip, expected {'shadow': 8",
        lambda d: trace(d, A, Family.VISIBLE).pop("slip"),
    ),
    "an unknown task set": (
        "composition of the SFT traces",
        "task set 'apps', expected one of mbpp, mini",
        lambda d: d.manifest.update(task_set="apps"),
    ),
}


@pytest.mark.parametrize("planted", SLIP_FAULTS)
def test_a_planted_fault_of_a_slip_is_found(mini: DataFolder, executor: Executor, planted: str) -> None:
    name, message, plant = SLIP_FAULTS[planted]
    data = slipping(mini)
    if name == REPLAY:
        assert check(data, name, executor).faults == ()
    plant(data)
    faults = check(data, name, executor).faults
    assert any(message in fault for fault in faults), faults


@pytest.mark.parametrize("slip", [None, {}, {"step": "0", "find": "a", "replace": "b", "read": False}])
def test_a_slip_of_another_form_is_named(tiny_data: Path, tmp_path: Path, slip: Any) -> None:
    for path in tiny_data.rglob("*.json*"):
        copy = tmp_path / path.relative_to(tiny_data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    row = json.loads((tmp_path / "sft/arm_b/train.jsonl").read_text().splitlines()[0])
    (tmp_path / "sft/arm_b/train.jsonl").write_text(json.dumps({**row, "slip": slip}) + "\n")
    with pytest.raises(ValueError, match=r"train.jsonl:1: slip not of the form"):
        read_folder(tmp_path)


def detailed(folder: Path, executor: Executor) -> DataFolder:
    """The hand-written tasks with Arm B's traces in the grammar of values."""
    tasks = (DOUBLE, LARGEST)
    state = State(DEMONSTRATIONS[Family.SHADOW].states[0].source, Label.ASSERTION_FAILURE, 1, "1")
    shadow = replace(DEMONSTRATIONS[Family.SHADOW], states=(state, DEMONSTRATIONS[Family.SHADOW].states[1]))
    shown = [DEMONSTRATIONS[Family.DIRECT], shadow]
    splits = Splits(tasks, tasks, tasks, tasks)
    prepared = Prepared("mini", {}, splits, shown, 0, parse_variant("detailed_prediction(level=value)"))
    write_data(prepared, folder, load_wording(), executor.run)
    return read_folder(folder)


def test_traces_can_show_details(tmp_path: Path, tiny_data: Path, executor: Executor) -> None:
    data, plain = detailed(tmp_path, executor), read_folder(tiny_data)
    assert data.manifest["variant"] == "detailed_prediction(level=value)"
    assert data.traces[A] == plain.traces[A]
    assert data.tasks[A, "test"] == plain.tasks[A, "test"]
    first = turn(data, B, Family.SHADOW, 1)["content"]
    assert first.startswith("<PREDICTION>ASSERTION_FAILURE 1 1</PREDICTION>\n<DECISION>REVISE</DECISION>\n")
    system = load_wording().system(B, parse_variant("detailed_prediction(level=value)"), 8)
    assert data.tasks[B, "test"][0]["system"] == data.traces[B][0]["messages"][0]["content"] == system
    assert check(data, REPLAY, executor).faults == ()
    edit(turn(data, B, Family.SHADOW, 1), "FAILURE 1 1<", "FAILURE 1 2<")
    assert any(
        "predicts ASSERTION_FAILURE 1 2, REVISE where a shadow trace says ASSERTION_FAILURE 1 1" in fault
        for fault in check(data, REPLAY, executor).faults
    )


def test_without_a_gate_a_foreseen_failure_is_tested_all_the_same(tmp_path: Path, executor: Executor) -> None:
    splits = Splits((DOUBLE, LARGEST), (DOUBLE, LARGEST), (DOUBLE, LARGEST), (DOUBLE, LARGEST))
    shown = [DEMONSTRATIONS[Family.DIRECT], DEMONSTRATIONS[Family.DEEP_SHADOW]]
    write_data(Prepared("mini", {}, splits, shown, 0, parse_variant("ungated")), tmp_path, load_wording(), executor.run)
    data = read_folder(tmp_path)
    said = [turn(data, B, Family.DEEP_SHADOW, place)["content"].split("\n")[0] for place in range(6)]
    failed = "<PREDICTION>ASSERTION_FAILURE</PREDICTION>"
    assert [line.split(" {")[0] for line in said] == [
        "CALL apply_patch", failed, "CALL apply_patch", failed, "CALL apply_patch", "<PREDICTION>PASS</PREDICTION>",
    ]  # fmt: skip
    assert "DECISION" not in data.traces[B][1]["messages"][0]["content"]
    assert check(data, REPLAY, executor).faults == ()
    edit(turn(data, B, Family.DEEP_SHADOW, 1), "ASSERTION_FAILURE", "PASS")
    assert any("predicts PASS, None where a deep_shadow" in fault for fault in check(data, REPLAY, executor).faults)


def test_other_variants_have_no_traces() -> None:
    with pytest.raises(ValueError, match="demonstrations are of standard, ungated or detailed_prediction"):
        plan("mini", None, lambda source, tests: judge("good"), variant=parse_variant("forced_keep"))


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="expected mbpp or mini"):
        load_task_set("apps", None)
    counts = dict.fromkeys(Family, 0)
    with pytest.raises(ValueError, match="0 wanted for 1 tasks"):
        list(plan_demonstrations([DOUBLE], lambda source, tests: judge("good"), counts))
    with pytest.raises(ValueError, match="the gold code gets ASSERTION_FAILURE"):
        list(plan_demonstrations([DOUBLE], lambda source, tests: judge("wrong"), {**counts, Family.DIRECT: 1}))
    with pytest.raises(ValueError, match=r"no faulty states could be built for \{1: 1\}"):
        list(plan_demonstrations([DOUBLE], lambda source, tests: judge("good"), {**counts, Family.SHADOW: 1}))


def test_digests_are_kept_by_wording_and_task_set(tmp_path: Path) -> None:
    path = tmp_path / "digests.json"
    manifest = {"wording_digest": "w", "task_set": "mini", "files": {"x.jsonl": "1"}}
    path.write_text("{}")
    assert "no committed digests" in check_expected(manifest, path)
    record_digests(manifest, path)
    record_digests({**manifest, "task_set": "mbpp", "variant": "standard"}, path)
    record_digests({**manifest, "variant": "detailed_prediction(level=index)"}, path)
    assert set(json.loads(path.read_text())["w"]) == {"mini", "mbpp", "mini, detailed_prediction(level=index)"}
    assert check_expected(manifest, path) == "all 1 files equal the committed digests"
    with pytest.raises(ValueError, match=r"x.jsonl: not the committed content"):
        check_expected({**manifest, "files": {"x.jsonl": "2"}}, path)
