"""The taskset: which tasks it loads, what it refuses, and what it makes of a program's record."""

import json
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from pydantic import ValidationError

from glyph import GlyphHarness, GlyphTaskset
from glyph.executor import LEVELS
from glyph.harness import GlyphHarnessConfig
from glyph.protocol import Arm, Label
from glyph.records import record_from_dict
from glyph.tasks.prompts import DEFAULT_PROMPTS
from glyph.taskset import GlyphTask, GlyphTasksetConfig
from glyph.workspace import PLACEHOLDER
from tests.builders import record
from tests.tiny_tasks import DOUBLE, LARGEST


def taskset(data: Path, **config: Any) -> GlyphTaskset:
    return GlyphTaskset(GlyphTasksetConfig(id="glyph", data=data, **config))


class MemoryRuntime:
    """The two file operations of a runtime, on a dictionary."""

    def __init__(self, **files: bytes) -> None:
        self.files = dict(files)

    async def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data


def new_trace(task: GlyphTask) -> vf.Trace:
    return vf.Trace(task=vf.TraceTask(type="GlyphTask", data=task.data))


def test_verifiers_finds_one_taskset_and_one_harness_by_the_id_glyph() -> None:
    assert isinstance(vf.load_taskset(vf.taskset_config_type("glyph")(id="glyph")), GlyphTaskset)
    assert isinstance(vf.load_harness(vf.harness_config_type("glyph")(id="glyph")), GlyphHarness)


def test_a_task_shows_its_assertions_and_holds_its_rules(tiny_data: Path) -> None:
    one, two = taskset(tiny_data, arm="b").load()
    assert (one.data.idx, one.data.name, one.data.task_id, one.data.arm) == (0, "tiny-1", "tiny-1", "b")
    assert (two.data.idx, two.data.test_code) == (1, LARGEST.test_code)
    assert all(line in str(one.data.prompt) for line in DOUBLE.test_code.splitlines())
    assert "PREDICTION" in (one.data.system_prompt or "")
    assert (one.data.variant, one.data.budget, one.data.max_context_tokens) == ("standard", 8, 4096)
    assert DOUBLE.gold not in one.data.model_dump_json()  # the gold code never travels


def test_a_variant_and_a_budget_change_the_prompt(tiny_data: Path) -> None:
    def system(**config: Any) -> str:
        return taskset(tiny_data, **config).load()[0].data.system_prompt or ""

    assert "8 calls" in system(arm="a")
    assert "5 calls" in system(arm="a", budget=5)
    assert "DECISION" not in system(arm="b", variant="ungated")
    assert "each test costs 4 calls" in system(arm="b", variant="test_budget(n=2, cost=4)")
    assert system(arm="b", variant="forced_keep") == system(arm="b")
    assert taskset(tiny_data, arm="b", variant="test_budget( n = 2 )").config.variant == "test_budget(n=2,cost=1)"


def test_another_wording_is_another_file(tiny_data: Path, tmp_path: Path) -> None:
    other = tmp_path / "prompts.toml"
    wording = DEFAULT_PROMPTS.read_text()
    other.write_text(wording.replace("You are a coding agent.", "You are a careful coding agent."))
    assert other.read_text() != wording
    for config in ({"arm": "a"}, {"arm": "b"}, {"arm": "b", "variant": "ungated"}):
        (ours, _), (theirs, _) = (taskset(tiny_data, prompts=p, **config).load() for p in (DEFAULT_PROMPTS, other))
        assert (ours.data.system_prompt or "").startswith("You are a coding agent.")
        assert theirs.data.system_prompt == (ours.data.system_prompt or "").replace("a coding", "a careful coding", 1)
        assert theirs.data.prompt == ours.data.prompt


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"arm": "c"}, "arm"),
        ({"variant": "nothing"}, "expected one of"),
        ({"arm": "a", "variant": "forced_keep"}, "Arm A knows test_budget only"),
        ({"arm": "a", "variant": "test_budget(n=1,cost=9)"}, "whole budget"),
        ({"budget": 0}, "positive"),
        ({"tests": 3}, "tests"),
    ],
)
def test_contradictions_are_refused_before_anything_loads(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GlyphTasksetConfig(id="glyph", **config)


def test_an_unknown_isolation_level_is_refused_before_anything_starts() -> None:
    for level in ("auto", *LEVELS):
        GlyphHarnessConfig(id="glyph", isolation=level)
    with pytest.raises(ValidationError, match="expected auto or one of"):
        GlyphHarnessConfig(id="glyph", isolation="fortress")


def test_a_missing_file_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"arm_a_validation.jsonl: .*run python -m data.prepare"):
        taskset(tmp_path).load()


def test_a_bad_row_is_named(tmp_path: Path, tiny_data: Path) -> None:
    lines = (tiny_data / "arm_a_validation.jsonl").read_text().splitlines()
    for bad, message in [
        ("{", "no JSON"),
        ("[]", "no task_id"),
        (json.dumps({**json.loads(lines[1]), "schema_version": 2}), "schema_version 2"),
        (json.dumps({**json.loads(lines[1]), "prompt": None}), "prompt not of the form"),
    ]:
        (tmp_path / "arm_a_validation.jsonl").write_text(f"{lines[0]}\n{bad}\n")
        with pytest.raises(ValueError, match=rf"arm_a_validation.jsonl:2: {message}"):
            taskset(tmp_path).load()


async def test_the_workspace_holds_one_line_and_no_test(tiny_data: Path) -> None:
    task, runtime = taskset(tiny_data).load()[0], MemoryRuntime()
    await task.setup(new_trace(task), runtime)
    assert runtime.files == {"project/solution.py": PLACEHOLDER.encode()}


async def test_the_record_becomes_info_reward_and_metrics(tiny_data: Path) -> None:
    task = taskset(tiny_data, arm="b").load()[0]
    stored = record("tiny-1", "b")
    trace = new_trace(task)
    await task.finalize(trace, MemoryRuntime(**{".glyph/record.json": json.dumps(stored.to_dict()).encode()}))
    assert record_from_dict(trace.info["glyph"]) == stored
    assert await task.solved(trace) == 1.0
    metrics = await task.glyph(trace)
    assert metrics["solved"] == 1.0
    assert all(isinstance(value, float) for value in metrics.values())
    assert Label.PASS.value in json.dumps(trace.info)


NO_RECORD = {"none": {}, "half": {".glyph/record.json": b"{"}, "empty": {".glyph/record.json": b"{}"}}


@pytest.mark.parametrize("files", NO_RECORD.values(), ids=NO_RECORD)
async def test_no_record_is_an_error_and_no_reward(tiny_data: Path, files: dict[str, bytes]) -> None:
    task = taskset(tiny_data).load()[0]
    trace = new_trace(task)
    trace.stop("harness_timeout")
    with pytest.raises((RuntimeError, ValueError)) as caught:
        await task.finalize(trace, MemoryRuntime(**files))
    assert "glyph" not in trace.info
    assert files or "harness_timeout" in str(caught.value)


def test_defaults_are_the_study() -> None:
    config = GlyphTasksetConfig(id="glyph")
    assert (config.arm, config.split, config.variant) == (Arm.REACTIVE, "validation", "standard")
    assert (config.budget, config.max_context_tokens, config.prompts) == (8, 4096, DEFAULT_PROMPTS)
