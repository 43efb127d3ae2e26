"""From the rollouts of a step to what trains: who leaves a group, what is counted, and what the viewer is told."""

import json
import math
from dataclasses import replace

import pytest

from glyph.codec import codec_of
from glyph.credit import CreditOptions, Segment, UniformGroups
from glyph.episode import Rules
from glyph.executor import Executor
from glyph.local.inference.requests import GenerationError
from glyph.local.inference.sampling import SamplingParams
from glyph.local.rollouts.collector import Assignment, Collector, Played
from glyph.local.rollouts.generated import Generated, generated_from_dict
from glyph.local.rollouts.policy import EnginePolicy
from glyph.local.training.annotation import annotate
from glyph.local.training.experience import Experience, make_experience, plant_experience
from glyph.local.training.packing import Tree, plant
from glyph.protocol import Arm
from glyph.tasks.demonstrations import Family, assistant_turns
from glyph.tasks.prompts import load_wording
from tests.scripted_generator import ScriptedGenerator
from tests.tiny_model import tiny_tokenizer
from tests.tiny_tasks import DEMONSTRATIONS, LARGEST

TOKENIZER = tiny_tokenizer()
CODEC = codec_of(TOKENIZER)
TURNS = assistant_turns(DEMONSTRATIONS[Family.VISIBLE], Arm.PREDICTIVE, load_wording())
GIVES_UP = [*TURNS[:2], "FINAL: The tests pass."]  # the first patch is wrong, and so is its prediction


@pytest.fixture(scope="module")
def played(executor: Executor) -> list[Played]:
    """Four rollouts: solved, given up, failed by its environment, given up."""

    def say(session: str, turn: int) -> str | Exception:
        if session.endswith("/2") and turn == 1:
            return GenerationError("gone")
        return (TURNS if session.endswith("/0") else GIVES_UP)[turn]

    policy = EnginePolicy(ScriptedGenerator(TOKENIZER, say), TOKENIZER, SamplingParams())
    rules = Rules(Arm.PREDICTIVE, max_context_tokens=100_000)
    collector = Collector(policy, executor, rules, load_wording(), "scripted")
    ended = collector.collect([Assignment(LARGEST, "train", sample) for sample in range(4)])
    return sorted(ended, key=lambda each: each.assignment.sample)


def trees_of(experience: Experience, shared: bool) -> list[Tree]:
    return [tree for samples in experience.samples for tree in plant(samples, shared)]


def test_a_fault_leaves_its_group_before_the_mean(played: list[Played]) -> None:
    experience = make_experience(played, 4, CODEC, CreditOptions())
    assert experience.left_out == {"fault": 1}
    assert (experience.mixed_groups, experience.uniform_groups) == (1, 0)
    advantages = [samples[0].advantage if samples else None for samples in experience.samples]
    assert advantages == pytest.approx([2 / 3, -1 / 3, None, -1 / 3])
    labels = [[s.label.value for s in samples if s.label] for samples in experience.samples]
    assert labels == [["ASSERTION_FAILURE", "PASS"], ["ASSERTION_FAILURE"], [], ["ASSERTION_FAILURE"]]


def test_a_rollout_that_cannot_be_trained_leaves_its_group_too(
    played: list[Played], caplog: pytest.LogCaptureFixture
) -> None:
    bad = replace(played[3], branches=tuple(tuple(map(poisoned, branch)) for branch in played[3].branches))
    experience, trees = plant_experience([*played[:3], bad], 4, CODEC, CreditOptions())
    assert experience.left_out == {"fault": 1, "bad_sample": 1}
    assert [samples[0].advantage if samples else None for samples in experience.samples] == [0.5, -0.5, None, None]
    assert len(trees) == 2
    assert f"rollout {bad.trace.id} is left out: branch 0: a log-prob, an advantage or a weight" in caplog.text
    sound, trees = plant_experience(played, 4, CODEC, CreditOptions(), shared=False)
    assert sound == make_experience(played, 4, CODEC, CreditOptions())
    assert len(trees) == 7  # three branches, and a label sample for each of four predictions


def poisoned(segment: Segment) -> Segment:
    return replace(segment, logprobs=tuple(math.nan for _ in segment.logprobs))


def test_a_uniform_group_trains_nothing_or_its_labels_alone(played: list[Played]) -> None:
    alike = [played[1], played[3]]
    dropped = make_experience(alike, 2, CODEC, CreditOptions())
    assert (dropped.mixed_groups, dropped.uniform_groups, trees_of(dropped, True)) == (0, 1, [])
    kept = make_experience(alike, 2, CODEC, CreditOptions(uniform_groups=UniformGroups.KEEP_CE))
    assert [tree.policy_tokens for tree in trees_of(kept, True)] == [0, 0]
    assert all(tree.ce_tokens > 0 for tree in trees_of(kept, True))


def test_shared_and_separate_trees_count_the_same(played: list[Played]) -> None:
    experience = make_experience(played, 4, CODEC, CreditOptions())
    shared, separate = trees_of(experience, True), trees_of(experience, False)
    assert len(separate) == len(shared) + 4
    for name in ("policy_tokens", "ce_tokens"):
        assert sum(getattr(t, name) for t in shared) == sum(getattr(t, name) for t in separate)
    assert sum(t.trunk_tokens + t.leaf_tokens for t in shared) < sum(t.trunk_tokens for t in separate)


def test_rollouts_that_are_no_whole_groups_are_refused(played: list[Played]) -> None:
    with pytest.raises(ValueError, match="4 rollouts are no whole groups of 3"):
        make_experience(played, 3, CODEC, CreditOptions())


def test_the_viewer_sees_each_token_with_its_role(played: list[Played]) -> None:
    experience = make_experience(played, 4, CODEC, CreditOptions())
    shown = [
        annotate(*each, CODEC) for each in zip(experience.played, experience.credited, experience.samples, strict=True)
    ]
    assert [each["advantage"] for each in shown] == pytest.approx([2 / 3, -1 / 3, None, -1 / 3])
    text, roles = zip(*shown[0]["tokens"], strict=True)
    assert "".join(text).startswith("<|im_start|>system\n")
    assert set(roles) == {"context", "rl", "masked"}
    assert "".join(t for t, role in shown[0]["tokens"] if role == "masked") == "PASSPASS"
    first = shown[0]["targets"][0]
    assert "".join(t for t, role in first["tokens"] if role == "ce") == "ASSERTION_FAILURE"
    assert "".join(t for t, _ in first["tokens"]).endswith("</PREDICTION>")
    assert text[first["at"] :][0] in ("PASS", ">", "<PREDICTION>") or "".join(text[first["at"] :]).startswith("PASS")
    assert {role for _, role in shown[2]["tokens"]} <= {"context", "untrained"}
    assert shown[2]["targets"] == []


def test_a_dropped_group_is_shown_as_untrained(played: list[Played]) -> None:
    experience = make_experience([played[1], played[3]], 2, CODEC, CreditOptions())
    shown = annotate(experience.played[0], experience.credited[0], experience.samples[0], CODEC)
    assert {role for _, role in shown["tokens"]} == {"context", "untrained", "masked"}
    assert (shown["advantage"], shown["targets"]) == (None, [])


def test_rollouts_under_way_come_back_from_json_as_they_were(played: list[Played]) -> None:
    generated = Generated(3, tuple(played), tokens=120, generation_seconds=1.5, environment_seconds=0.5, seconds=2.5)
    data = json.loads(json.dumps(generated.to_dict(), allow_nan=False))
    assert generated_from_dict(data, {LARGEST.task_id: LARGEST}) == generated
    with pytest.raises(ValueError, match="tiny-2, which the data does not hold"):
        generated_from_dict(data, {})
