"""The policy that samples: the tokens of a rollout by message, as credit takes them, and what its seeds depend on."""

from itertools import chain

import pytest

from glyph.chat import completion_text, render
from glyph.codec import codec_of
from glyph.credit import CreditOptions, credit_rollout
from glyph.episode import Rules
from glyph.executor import Executor
from glyph.local.inference.requests import GenerationError
from glyph.local.inference.sampling import SamplingParams
from glyph.local.rollouts.collector import Assignment, Collector, Played
from glyph.local.rollouts.policy import EnginePolicy
from glyph.protocol import Arm, Label, StopReason
from glyph.tasks.demonstrations import Family, assistant_turns
from glyph.tasks.prompts import load_wording
from tests.scripted_generator import Say, ScriptedGenerator
from tests.tiny_model import tiny_tokenizer
from tests.tiny_tasks import DEMONSTRATIONS, LARGEST

TOKENIZER = tiny_tokenizer()
RULES = Rules(Arm.PREDICTIVE, max_context_tokens=100_000)
TURNS = assistant_turns(DEMONSTRATIONS[Family.DEEP_SHADOW], Arm.PREDICTIVE, load_wording())


def play(executor: Executor, say: Say, samples: int = 1, delay: int = 2, limit: int = 100_000) -> list[Played]:
    generator = ScriptedGenerator(TOKENIZER, say, limit)
    policy = EnginePolicy(generator, TOKENIZER, SamplingParams(), seed=3)
    collector = Collector(policy, executor, RULES, load_wording(), "scripted", concurrency=4, test_delay=delay)
    return list(collector.collect([Assignment(LARGEST, "train", sample) for sample in range(samples)]))


def test_a_rollout_comes_with_the_tokens_of_its_messages(executor: Executor) -> None:
    (played,) = play(executor, lambda _, turn: TURNS[turn])
    (branch,) = played.branches
    record = played.trace.scored
    assert record is not None
    assert record.reward == 1.0
    said = [segment for segment in branch if any(segment.sampled)]
    assert [completion_text(TOKENIZER, s.token_ids).rstrip() for s in said] == TURNS
    for segment in said:
        assert all(segment.sampled)
        assert len(segment.logprobs) == len(segment.token_ids)
        assert played.trace.messages[segment.message_index].role == "assistant"
    whole = render(TOKENIZER, [{"role": m.role, "content": m.content} for m in played.trace.messages]).token_ids
    joined = list(chain.from_iterable(segment.token_ids for segment in branch))
    assert joined == whole[: len(joined)]  # canonical turns: the very ids of the rendered conversation
    assert len(joined) == len(whole) - len(TOKENIZER.encode("\n\n"))


def test_credit_finds_every_label_in_these_tokens(executor: Executor) -> None:
    (played,) = play(executor, lambda _, turn: TURNS[turn])
    assert played.trace.record is not None
    credited = credit_rollout(played.branches, played.trace.record, codec_of(TOKENIZER), CreditOptions())
    assert not credited.misses
    labels = [sample.label for sample in credited.samples[1:]]
    assert labels == [Label.ASSERTION_FAILURE, Label.ASSERTION_FAILURE, Label.PASS]
    trunk = credited.samples[0]
    masked = [
        i for i, (mine, weight) in enumerate(zip(trunk.mask, trunk.rl_weights, strict=True)) if mine and not weight
    ]
    text = b"".join(codec_of(TOKENIZER).token_bytes(trunk.token_ids[i]) for i in masked).decode()
    assert text == "ASSERTION_FAILUREASSERTION_FAILUREPASS"


def test_seeds_depend_on_the_rollout_and_the_turn_alone(executor: Executor) -> None:
    def seeds(order: list[int]) -> dict[tuple[str, int], int | None]:
        generator = ScriptedGenerator(TOKENIZER, lambda _, turn: TURNS[turn])
        policy = EnginePolicy(generator, TOKENIZER, SamplingParams(), seed=3)
        collector = Collector(policy, executor, RULES, load_wording(), "scripted", concurrency=2)
        list(collector.collect([Assignment(LARGEST, "train", sample) for sample in order]))
        found: dict[tuple[str, int], int | None] = {}
        for request in generator.requests:
            session = request.session or ""
            found[session, sum(key[0] == session for key in found)] = request.sampling.seed
        return found

    forward, backward = seeds([0, 1, 2]), seeds([2, 0, 1])
    assert forward == backward
    assert len(set(forward.values())) == 3 * len(TURNS)


@pytest.mark.parametrize("delay", [0, 1, 7, 10_000])
def test_the_delay_of_tests_changes_no_rollout(executor: Executor, delay: int) -> None:
    played = play(executor, lambda _, turn: TURNS[turn], samples=5, delay=delay)
    assert sorted(each.assignment.sample for each in played) == [0, 1, 2, 3, 4]
    assert {each.trace.messages for each in played} == {played[0].trace.messages}


def test_what_ends_when_is_the_same_each_time(executor: Executor) -> None:
    def say(session: str, turn: int) -> str:
        return TURNS[turn] if session[-1] in "13" or turn < 2 else "FINAL: " + "no " * int(session[-1])

    orders = [[each.assignment.sample for each in play(executor, say, samples=6)] for _ in range(3)]
    assert orders[0] == orders[1] == orders[2]


def test_a_poisoned_rollout_is_an_error_and_has_no_tokens(executor: Executor) -> None:
    def say(session: str, turn: int) -> str | Exception:
        return GenerationError("logits are not finite") if session.endswith("/1") and turn == 1 else TURNS[turn]

    played = sorted(play(executor, say, samples=3), key=lambda each: each.assignment.sample)
    assert [each.trace.error for each in played] == [None, "GenerationError: logits are not finite", None]
    assert [len(each.branches) for each in played] == [1, 0, 1]


def test_a_prompt_that_is_too_long_ends_the_rollout_by_context(executor: Executor) -> None:
    opening = len(render(TOKENIZER, [], add_generation_prompt=True).token_ids)
    (whole,) = play(executor, lambda _, turn: TURNS[turn])
    first = len(whole.branches[0][0].token_ids)
    (played,) = play(executor, lambda _, turn: TURNS[turn], limit=first + opening)
    assert played.trace.scored is not None
    assert played.trace.scored.stop_reason is StopReason.CONTEXT
    assert [any(s.sampled) for s in played.branches[0]][:2] == [False, True]
