"""`PredictAlgorithm` in the pinned PRIME-RL: real rollouts through its sink, filters, packer and loss.

Expected numbers are worked out here by hand, or by the embedded engine. Skipped without PRIME_RL_SOURCE.
"""

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import torch
import verifiers.v1 as vf

from glyph.chat import ParityError
from glyph.codec import codec_of
from glyph.credit import CREDIT_RULES, CreditOptions, UniformGroups
from glyph.local.rollouts.collector import Assignment, Played
from glyph.local.training.experience import plant_experience
from glyph.local.training.optimiser import OptimiserOptions
from glyph.local.training.trainer import Trainer
from glyph.records import record_from_dict
from glyph.workspace import PLACEHOLDER
from tests import prime_rl_rollouts as rollouts
from tests.prime_rl_rollouts import CUT, GIVES_UP, LOGPROB, REACTIVE, REVISES, SOLVES, TURNS, abrupt, canonical, pieces
from tests.tiny_tasks import LARGEST

pytestmark = pytest.mark.usefixtures("prime_rl")
ALPHA = 0.1
SEQ_LEN = 8192
TOKENIZER = rollouts.tokenizer()
Ids = list[int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rollouts.save_tokenizer(tmp_path_factory.mktemp("policy"))


class Bench:
    """The sink of one train environment, its algorithm set up, and what a step of it ships."""

    def __init__(self, data: Path, folder: Path, group_size: int, **orchestrator: Any) -> None:
        from prime_rl.orchestrator.envs import TrainEnvs
        from prime_rl.orchestrator.filters import setup_filters
        from prime_rl.orchestrator.train_sink import TrainSink

        self.data, self.folder = data, folder
        self.config = orchestrator_config(folder, group_size, **orchestrator)
        self.envs = TrainEnvs(self.config.train.env, policy_pool=SimpleNamespace(model_name=str(folder)))
        filters = [
            setup_filters(getattr(self.config, slot), len(TOKENIZER), kind=slot)
            for slot in ("pre_batch_filters", "post_batch_filters")
        ]
        self.sink = TrainSink(
            self.config,
            tokenizer=TOKENIZER,
            train_envs=self.envs,
            mm_token_type_ids_mapping=None,
            batch_size=self.config.batch_size,
            token_batch_size=None,
            pre_filters=filters[0],
            post_filters=filters[1],
        )
        self.rollouts: list[Any] = []

    async def group(self, *scripts: Sequence[Ids], arm: str = "b") -> Any:
        """Play one rollout a script, hand them to the sink as one group; the batch, or None before it is full."""
        await self.envs.get("study").algorithm.setup()
        return await self.add([await rollouts.play(self.data, self.folder, script, arm) for script in scripts])

    async def add(self, traces: Sequence[Any]) -> Any:
        from prime_rl.orchestrator.envs import ROLLOUT_TYPE

        shipped, group_id = None, uuid4()
        for trace in traces:
            wire = vf.Trace[vf.WireTaskData].model_validate(trace.model_dump())
            rollout = ROLLOUT_TYPE.model_construct(**dict(wire))
            rollout.env_name, rollout.group_id = "study", group_id
            self.rollouts.append(rollout)
            shipped = await self.sink.add(rollout)
        return shipped


def orchestrator_config(folder: Path, group_size: int, algo: dict[str, Any] | None = None, **fields: Any) -> Any:
    from prime_rl.configs.orchestrator import OrchestratorConfig

    taskset = {"id": "glyph", "arm": "b", "cut": "error", **fields.pop("taskset", {})}
    env = {"name": fields.pop("name", "study"), "taskset": taskset}
    sampling = {"temperature": 0.8}
    settings = {"model": {"name": str(folder)}, "renderer": {"name": "default"}, "seq_len": SEQ_LEN}
    settings |= {"batch_size": group_size, "group_size": group_size, "train": {"env": [env], "sampling": sampling}}
    return OrchestratorConfig(**{**settings, "algo": {"type": "predict"} | (algo or {}), **fields})


def labels_of(sample: Any) -> str:
    """The text under the cross-entropy of a wire sample."""
    return TOKENIZER.decode([i for i, w in zip(sample.token_ids, sample.ce_weights or [], strict=True) if w])


def masked_of(sample: Any) -> str:
    """The text of the sampled tokens of a wire sample that earn no RL credit."""
    weights = sample.rl_weights or [1.0] * len(sample.token_ids)
    return TOKENIZER.decode([i for i, m, w in zip(sample.token_ids, sample.mask, weights, strict=True) if m and not w])


def is_label(sample: Any) -> bool:
    return not any(sample.mask)


def trained(sample: Any) -> int:
    """Tokens of a wire sample that count in N_rl."""
    weights = sample.rl_weights or [1.0] * len(sample.token_ids)
    return sum(m and w != 0 for m, w in zip(sample.mask, weights, strict=True))


def micro_batches(samples: Sequence[Any]) -> list[Any]:
    from prime_rl.trainer.batch import prepare_batch

    [worker] = prepare_batch(list(samples), SEQ_LEN, 1, [0] * len(samples), 1, bin_cost=sum)
    return worker


def pinned_loss(batches: Sequence[Any], logprobs_of: Any) -> float:
    """The pin's loss of a step: counts over all micro-batches, then `compute_loss` of each, as its train loop does."""
    from prime_rl.configs.trainer import DefaultLossConfig
    from prime_rl.trainer.rl.loss import compute_loss, setup_rl_loss_fn

    def weights(batch: Any, name: str, absent: float) -> torch.Tensor:
        stream = getattr(batch, name)
        return torch.full((len(batch.input_ids),), absent) if stream is None else torch.tensor(stream)

    n_rl = sum(int((torch.tensor(b.loss_mask) & (weights(b, "rl_weights", 1.0) != 0)).sum()) for b in batches)
    n_ce = sum(int((weights(b, "ce_weights", 0.0) != 0).sum()) for b in batches)
    total = 0.0
    for batch in batches:
        parts = batch.sequence_lengths
        split = lambda values: list(torch.as_tensor(values).split(parts))  # noqa: B023, E731
        loss, _ = compute_loss(
            split(logprobs_of(batch)),
            split(torch.tensor(batch.inference_logprobs)),
            None,
            split(torch.tensor(batch.advantages)),
            split(torch.tensor(batch.loss_mask)),
            split(weights(batch, "rl_weights", 1.0)),
            split(weights(batch, "ce_weights", 0.0)),
            None,
            setup_rl_loss_fn(DefaultLossConfig(kl_tau=0.0)),
            max(n_rl, 1),
            max(n_ce, 1),
            1,
        )
        total += float(loss)
    return total


def model_logprobs(batch: Any, temperature: float = 0.8) -> torch.Tensor:
    """The tiny model's log-probs of each packed sequence by itself; 0 at a first token, which nothing predicts."""
    found = []
    for ids in torch.tensor(batch.input_ids).split(batch.sequence_lengths):
        with torch.no_grad():
            logits = rollouts.model()(ids[None]).logits[0, :-1] / temperature
        found += [torch.zeros(1), logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]]
    return torch.cat(found)


async def test_masks_weights_counts_and_loss_worked_out_by_hand(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2)
    batch = await bench.group(REVISES, GIVES_UP)
    solved, first_label, second_label, failed, third_label = batch.samples
    assert [is_label(sample) for sample in batch.samples] == [False, True, True, False, True]
    # The label is masked from the token that chooses it: `>PASS` is one, and a bare `>` says that it is another label.
    assert (masked_of(solved), masked_of(failed)) == (">ASSERTION_FAILURE>PASS", ">PASS")
    # Both predictions of the first were right; the second said PASS, and the environment found otherwise.
    labels = [labels_of(sample) for sample in (first_label, second_label, third_label)]
    assert labels == [">ASSERTION_FAILURE", ">PASS", ">ASSERTION_FAILURE"]
    for sample in (first_label, second_label, third_label):
        assert {w for w in sample.ce_weights if w} == {ALPHA}
        assert not any(sample.rl_weights)
        assert TOKENIZER.decode(sample.token_ids).endswith("</PREDICTION>")
    assert solved.ce_weights is None
    assert {a for a, m in zip(solved.advantages, solved.mask, strict=True) if m} == {0.5}
    assert {a for a, m in zip(failed.advantages, failed.mask, strict=True) if m} == {-0.5}
    said = {name: sum(len(turn) for turn in turns) for name, turns in (("solved", REVISES), ("failed", GIVES_UP))}
    long = len(TOKENIZER.encode(">ASSERTION_FAILURE"))
    n_rl = {"solved": said["solved"] - long - 1, "failed": said["failed"] - 1}
    assert (trained(solved), trained(failed)) == (n_rl["solved"], n_rl["failed"])
    assert sum(w != 0 for s in batch.samples for w in s.ce_weights or []) == 2 * long + 1
    # On policy the ratio is 1: the loss is −Σ advantage / N_rl, and alpha × the mean of −log p on label tokens.
    batches = micro_batches(batch.samples)
    given = pinned_loss(batches, lambda b: torch.tensor([LOGPROB if m else -2.0 for m in b.loss_mask]))
    by_rl = -0.5 * (n_rl["solved"] - n_rl["failed"]) / (n_rl["solved"] + n_rl["failed"])
    assert given == pytest.approx(by_rl + ALPHA * 2.0, abs=1e-6)


@pytest.mark.parametrize("uniform_groups", ["drop", "keep_ce"])
async def test_the_loss_is_that_of_the_embedded_engine(tiny_data: Path, folder: Path, uniform_groups: str) -> None:
    filters = [{"type": "zero_advantage", "enforce": uniform_groups == "drop"}]
    bench = Bench(
        tiny_data,
        folder,
        group_size=2,
        algo={"uniform_groups": uniform_groups},
        batch_size=4,
        pre_batch_filters=[],
        post_batch_filters=filters,
    )
    forking = [abrupt(turn) for turn in TURNS]
    await bench.group(REVISES, [*forking[:2], canonical("FINAL: no")])
    batch = await bench.group(SOLVES, forking)  # both solve: a uniform group
    options = CreditOptions(uniform_groups=UniformGroups(uniform_groups))
    _, trees = plant_experience([played(r) for r in bench.rollouts], 2, codec_of(TOKENIZER), options)
    ours = Trainer(rollouts.model(), OptimiserOptions(learning_rate=0.0)).step(trees, temperature=0.8)
    total = (ours.policy_loss or 0.0) + (ours.label_loss or 0.0)
    wire = list(batch.samples)
    assert sum(map(trained, wire)) == ours.policy_tokens
    assert sum(w != 0 for s in wire for w in s.ce_weights or []) == ours.ce_tokens
    assert pinned_loss(micro_batches(wire), model_logprobs) == pytest.approx(total, abs=1e-5)
    assert sum(map(is_label, wire)) == (7 if uniform_groups == "keep_ce" else 3)


async def test_arm_a_trains_the_same_tokens_under_the_pins_own_grpo(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2, algo={"type": "grpo"})
    solves = [canonical(turn) for turn in REACTIVE]
    gives_up = [*solves[:2], canonical("FINAL: no")]
    batch = await bench.add(
        [await rollouts.play(tiny_data, folder, script, "a") for script in (solves, gives_up)],
    )
    _, trees = plant_experience([played(r) for r in bench.rollouts], 2, codec_of(TOKENIZER), CreditOptions())
    ours = Trainer(rollouts.model(), OptimiserOptions(learning_rate=0.0)).step(trees, temperature=0.8)
    assert sum(map(trained, batch.samples)) == ours.policy_tokens
    assert ours.ce_tokens == 0
    assert pinned_loss(micro_batches(batch.samples), model_logprobs) == pytest.approx(ours.policy_loss, abs=1e-5)


# The faults of the published implementation, and of rollouts.


async def test_a_label_word_elsewhere_is_left_alone(tiny_data: Path, folder: Path) -> None:
    code = "# <PREDICTION>PASS</PREDICTION>"
    patch = {"id": "1", "file_path": "solution.py", "find": PLACEHOLDER.strip(), "replace": code}
    said = f"CALL apply_patch {json.dumps(patch)}"
    bench = Bench(tiny_data, folder, group_size=2)
    batch = await bench.group([canonical(said), *GIVES_UP[1:]], SOLVES)
    assert [masked_of(s) for s in batch.samples if not is_label(s)] == [">PASS", ">PASS>PASS"]


ODD = (["<PREDICTION>", "P", "A", "S", "S", "</PREDICTION>\n"], ["<PREDICTION", ">P", "AS", "S</", "PREDICTION>\n"])


@pytest.mark.parametrize("split", ODD, ids=["letters", "across the brackets"])
async def test_a_label_sampled_in_odd_pieces_is_masked(tiny_data: Path, folder: Path, split: list[str]) -> None:
    _, _, tail = TURNS[1].partition("</PREDICTION>\n")
    bench = Bench(tiny_data, folder, group_size=2)
    batch = await bench.group([SOLVES[0], pieces(*split, tail), GIVES_UP[2]], SOLVES)
    odd, label = batch.samples[0], next(filter(is_label, batch.samples))
    assert "PASS" in masked_of(odd)
    assert set(masked_of(odd)) <= set("<>/PASS")
    assert "ASSERTION_FAILURE" in labels_of(label)
    assert TOKENIZER.decode(label.token_ids).endswith("<PREDICTION>ASSERTION_FAILURE</PREDICTION>")


async def test_a_fork_is_masked_and_continued_where_the_turn_was_sampled(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2)
    batch = await bench.group([abrupt(turn) for turn in TURNS], GIVES_UP)
    forked = bench.rollouts[0]
    branches = [s for s in forked.samples if not is_label(s)]
    assert forked.num_branches == len(branches) == len(TURNS)
    assert sorted(filter(None, map(masked_of, branches))) == [">PASS", ">PASS"]
    assert sum(map(trained, branches)) == sum(len(abrupt(turn)) for turn in TURNS) - 2
    texts = [TOKENIZER.decode(s.token_ids) for s in forked.samples if is_label(s)]
    shown = TOKENIZER.decode(branches[0].token_ids).count("<PREDICTION>")  # the prompt's examples, and no turn of ours
    assert [text.count("<PREDICTION>") - shown for text in texts] == [1, 2]
    assert len(batch.samples) == len(branches) + 2 + 2


async def test_a_label_sample_that_is_too_long_is_counted_and_not_shipped(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2, algo={"max_aux_tokens": 600})
    batch = await bench.group(SOLVES, GIVES_UP)
    longest = max(len(s.token_ids) for s in batch.samples if not is_label(s))
    assert longest > 600
    assert not any(map(is_label, batch.samples))
    assert [r.metrics["label_misses"] for r in bench.rollouts] == [2.0, 1.0]
    assert [r.metrics["label_samples"] for r in bench.rollouts] == [0.0, 0.0]


async def test_a_rollout_that_errs_leaves_its_group_and_ends_nothing(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=4)
    fault = [SOLVES[0]]  # the endpoint fails in the second turn
    assert await bench.group(SOLVES, CUT, fault, GIVES_UP) is None  # the batch waits for four rollouts
    errors = [r.error.type if r.has_error else None for r in bench.rollouts]
    assert errors == [None, "CutRolloutError", "ProviderError", None]
    assert [r.samples for r in bench.rollouts[1:3]] == [[], []]
    assert [r.scalar_advantage() for r in (bench.rollouts[0], bench.rollouts[3])] == pytest.approx([0.5, -0.5])
    batch = await bench.group(SOLVES, GIVES_UP, CUT, CUT)
    assert len([s for s in batch.samples if not is_label(s)]) == 4


@pytest.mark.parametrize(
    "spoil",
    [lambda trace: trace.info.clear(), lambda trace: trace.info["glyph"].pop("stop_reason"),
     lambda trace: trace.info["glyph"]["targets"][0].update(message_index="x")],
    ids=["no record", "half a record", "a bad record"],
)  # fmt: skip
async def test_a_rollout_that_cannot_be_credited_is_counted_and_left_out(
    tiny_data: Path, folder: Path, spoil: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tiny_data, folder, group_size=3)
    await bench.envs.get("study").algorithm.setup()
    traces = [await rollouts.play(tiny_data, folder, script) for script in (SOLVES, SOLVES, GIVES_UP)]
    spoil(traces[1])
    batch = await bench.add(traces)
    assert [r.metrics["left_out"] for r in bench.rollouts] == [0.0, 1.0, 0.0]
    assert bench.rollouts[1].samples == []
    assert [r.scalar_advantage() for r in bench.rollouts[::2]] == pytest.approx([0.5, -0.5])
    assert [s for s in batch.samples if not is_label(s)] == [bench.rollouts[i].samples[0] for i in (0, 2)]
    assert "left out of its group" in caplog.text


async def test_a_uniform_group_is_dropped_as_published(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2)
    batch = await bench.group(SOLVES, REVISES)
    assert batch.samples == []
    assert all(r.filter_results["zero_advantage"] for r in bench.rollouts)
    assert [r.metrics["label_samples"] for r in bench.rollouts] == [0.0, 0.0]


async def test_a_uniform_group_that_keeps_its_labels_has_no_place_in_the_policy_loss(
    tiny_data: Path, folder: Path
) -> None:
    off = [{"type": "zero_advantage", "enforce": False}]
    bench = Bench(
        tiny_data, folder, 2, algo={"uniform_groups": "keep_ce"}, pre_batch_filters=off, post_batch_filters=off
    )
    batch = await bench.group(SOLVES, REVISES)
    assert [is_label(sample) for sample in batch.samples] == [True] * 4
    loss = pinned_loss(micro_batches(batch.samples), lambda b: torch.full((len(b.input_ids),), -2.0))
    assert loss == pytest.approx(ALPHA * 2.0, abs=1e-6)


async def test_alpha_zero_masks_labels_and_ships_none(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2, algo={"alpha": 0.0})
    batch = await bench.group(SOLVES, GIVES_UP)
    assert [masked_of(sample) for sample in batch.samples] == [">PASS>PASS", ">PASS"]


async def test_classes_are_balanced_over_the_newest_labels_of_the_run(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2, algo={"normalisation": "class"})
    await bench.group(REVISES, GIVES_UP)  # PASS once, ASSERTION_FAILURE twice
    await bench.group(REVISES, GIVES_UP)  # by now 2 and 4
    long = len(TOKENIZER.encode(">ASSERTION_FAILURE"))
    total = 2 + 4 * long
    for sample in (s for r in bench.rollouts[2:] for s in r.samples if is_label(s)):
        count, tokens = (2, 1) if labels_of(sample) == ">PASS" else (4, long)
        assert max(sample.ce_weights) == pytest.approx(ALPHA * total / (2 * count * tokens))


async def test_a_prediction_that_is_right_can_be_rewarded(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2, algo={"prediction_reward": 0.2})
    await bench.group(REVISES, SOLVES)  # both solve; all of the first's predictions are right, half of the second's
    assert [r.scalar_advantage() for r in bench.rollouts] == pytest.approx([0.05, -0.05])


async def test_a_reward_of_the_users_own_counts_as_it_does_for_arm_a(tiny_data: Path, folder: Path) -> None:
    bench = Bench(tiny_data, folder, group_size=2)
    await bench.envs.get("study").algorithm.setup()
    traces = [await rollouts.play(tiny_data, folder, script) for script in (SOLVES, GIVES_UP)]
    traces[0].record_reward("style", -0.5)
    await bench.add(traces)
    assert [r.scalar_advantage() for r in bench.rollouts] == pytest.approx([0.25, -0.25])


async def test_a_credit_rule_of_the_users_own(
    tiny_data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_rule.py").write_text(
        "from dataclasses import replace\nfrom glyph.credit import credit_group\n"
        "def twice(group, rewards, options):\n"
        "    done = credit_group(group, rewards, options)\n"
        "    return [tuple(replace(s, advantage=2 * s.advantage) for s in samples) for samples in done]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    bench = Bench(tiny_data, folder, group_size=2, algo={"credit_rule": "twice_rule:twice"})
    await bench.group(SOLVES, GIVES_UP)
    assert [r.scalar_advantage() for r in bench.rollouts] == [1.0, -1.0]


# What is refused at start-up.


async def test_setup_refuses_a_tokenizer_whose_turns_end_in_another_way(tiny_data: Path, tmp_path: Path) -> None:
    other = copy.deepcopy(TOKENIZER)
    other.eos_token = "<|endoftext|>"
    other.save_pretrained(tmp_path)
    with pytest.raises(ParityError, match="stops at"):
        await Bench(tiny_data, tmp_path, 2).envs.get("study").algorithm.setup()
    other = copy.deepcopy(TOKENIZER)
    other.chat_template = other.chat_template.replace("<|im_end|>", "<|im_end|> ")
    other.save_pretrained(tmp_path)
    with pytest.raises(ParityError, match="token ids differ"):
        await Bench(tiny_data, tmp_path, 2).envs.get("study").algorithm.setup()


ENFORCED = [{"type": "zero_advantage", "enforce": True}]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "label samples that would be cut": ({"seq_len": 2048}, "max_aux_tokens = 4096 exceeds seq_len = 2048"),
    "rollouts that would be cut": (
        {"algo": {"max_aux_tokens": 1024}, "seq_len": 2048},
        "a rollout can be longer than seq_len = 2048",
    ),
    "rollouts that cross the limit": ({"taskset": {"cut": "score"}}, "taskset.cut to 'error'"),
    "the reserved name": ({"name": "all"}, "'all' is reserved"),
    "labels kept by nobody": ({"algo": {"uniform_groups": "keep_ce"}}, "uniform_groups = 'keep_ce' has no effect"),
    "the filter before the batch": (
        {"algo": {"uniform_groups": "keep_ce"}, "pre_batch_filters": ENFORCED, "post_batch_filters": []},
        "uniform_groups = 'keep_ce' has no effect",
    ),
    "another renderer": ({"renderer": {"name": "qwen3"}}, "renderer.name = 'qwen3'"),
    "another tokenizer": ({"tokenizer": {"name": "other"}}, "tokenizer 'other' is not the model's"),
    "a length penalty": ({"algo": {"length_penalty": {"type": "linear"}}}, "remove length_penalty"),
    "a negative alpha": ({"algo": {"alpha": -1}}, "greater than or equal to 0"),
    "an unknown option": ({"algo": {"alhpa": 1}}, "alhpa"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_a_configuration_that_would_lose_labels_is_refused(folder: Path, fields: dict[str, Any], message: str) -> None:
    assert orchestrator_config(folder, 2).algo.type == "predict"
    with pytest.raises(ValueError, match=re.escape(message)):
        orchestrator_config(folder, 2, **fields)


def test_the_options_and_their_defaults_are_the_engines() -> None:
    from prime_rl.configs.algorithm import GRPOAlgoConfig, PredictAlgoConfig

    from glyph.prime_rl import credit_options

    own = set(PredictAlgoConfig.model_fields) - set(GRPOAlgoConfig.model_fields)
    names = {field.name for field in fields(CreditOptions)}
    assert own == (names - {"max_label_tokens"}) | {"max_aux_tokens", "credit_rule"}
    assert credit_options(PredictAlgoConfig()) == CreditOptions()
    assert PredictAlgoConfig().credit_rule in CREDIT_RULES


def played(rollout: Any) -> Played:
    """The rollout as the embedded engine's collector would hand it over."""
    from glyph.evaluation.traces import Trace
    from glyph.prime_rl import branches_of

    record = record_from_dict(rollout.info["glyph"])
    trace = Trace(id=rollout.id, task_id="tiny-2", arm="b", split="train", messages=(), record=record, test_code="")
    return Played(Assignment(LARGEST, "train"), trace, tuple(branches_of(rollout)))
