"""The training step: its gradient against plain forward passes, its numbers by hand, and what it refuses."""

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from glyph.credit import TrainingSample
from glyph.local.inference.attention import use_grouped_attention
from glyph.local.training.losses import PolicyLossOptions, step_loss, streams_of
from glyph.local.training.optimiser import OptimiserOptions, Schedule
from glyph.local.training.packing import Tree, lay_out, plan, plant
from glyph.local.training.trainer import EmptyBatchError, MemoryOptions, NonFiniteError, StepResult, Trainer, score
from glyph.local.training.tree_attention import use_tree_attention
from glyph.protocol import Label
from tests.tiny_model import tiny_model

TEMPERATURE = 0.8
LOSS = PolicyLossOptions(kl_tau=0.05)
STILL = OptimiserOptions(learning_rate=0.0, max_grad_norm=None)
"""Steps with it measure the gradient's norm and leave the weights."""


def model_of(architecture: str = "qwen3", dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """In float64 truly: transformers' norms compute in float32 whatever they are given."""
    model = use_tree_attention(tiny_model(architecture).to(dtype))
    for name, module in list(model.named_modules()):
        if hasattr(module, "variance_epsilon"):
            exact = nn.RMSNorm(module.weight.shape, module.variance_epsilon, dtype=dtype)
            exact.weight = module.weight
            model.set_submodule(name, exact)
    return model


def rollouts(seed: int = 0, count: int = 5) -> list[list[TrainingSample]]:
    """Rollouts of 8 to 40 tokens with up to four labels, two of which leave at one place, and a very short one."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        length = rng.randint(8, 40)
        ids = tuple(rng.randrange(3, 300) for _ in range(length))
        mask = tuple(t > length // 3 and rng.random() < 0.7 for t in range(length))
        weights = tuple(float(rng.random() < 0.9) for _ in ids)
        sampler = tuple(-8 * rng.random() if mine else 0.0 for mine in mask)
        trunk = TrainingSample(ids, mask, sampler, weights, (0.0,) * length, rng.choice([-0.75, 0.25, 0.5]))
        places = [] if number == 1 else [length // 2, length // 2, length - 1, length][: rng.randint(2, 4)]
        made.append([trunk, *(_label(rng, ids, at) for at in places)])
    tiny = TrainingSample((4, 5), (False, True), (0.0, -1.0), (0.0, 1.0), (0.0, 0.0), 0.5)
    return [*made, [tiny, _label(rng, tiny.token_ids, 1)]]  # its trunk has one input


def _label(rng: random.Random, ids: tuple[int, ...], at: int) -> TrainingSample:
    on = rng.randint(1, 5)
    tail = tuple(rng.randrange(3, 300) for _ in range(on + 1))
    zeros = (0.0,) * (at + on + 1)
    ce = (*zeros[:at], *(0.1,) * on, 0.0)
    return TrainingSample((*ids[:at], *tail), (False,) * len(zeros), zeros, zeros, ce, label=Label.PASS, shared=at)


def forest(rollouts: Sequence[Sequence[TrainingSample]], shared: bool = True) -> list[Tree]:
    return [tree for samples in rollouts for tree in plant(samples, shared)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


def plain_gradient(model: PreTrainedModel, samples: Sequence[TrainingSample]) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient with each whole sample in a forward pass of its own, as anyone would call the model."""
    every = streams_of(samples)
    total = 0.0
    for sample in samples:
        ids = torch.tensor([sample.token_ids])
        predicted = (model(input_ids=ids).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
        logprobs = torch.cat([torch.zeros(1, dtype=predicted.dtype), predicted.gather(-1, ids[0, 1:, None])[:, 0]])
        loss = step_loss(logprobs, streams_of([sample]), every.policy_tokens, every.ce_tokens, LOSS)
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def packed_gradient(model: PreTrainedModel, trees: Sequence[Tree], **memory: int | bool) -> tuple[StepResult, dict]:
    """The result of a step that moves nothing, and the gradient that it computed."""
    trainer = Trainer(model, STILL, LOSS, MemoryOptions(**memory))  # type: ignore[arg-type]
    found: dict[str, Tensor] = {}
    trainer.optimiser.register_step_pre_hook(
        lambda *_: found.update(
            {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        )
    )
    return trainer.step(trees, TEMPERATURE), found


PACKINGS = {
    "shared": (True, {}),
    "separate": (False, {}),
    "many micro-batches": (True, {"tokens_per_micro_batch": 60}),
    "one tree each": (True, {"tokens_per_micro_batch": 1}),
    "filled rows": (True, {"fill_rows": True}),
    "separate, filled": (False, {"fill_rows": True, "tokens_per_micro_batch": 200}),
    "logits in chunks": (True, {"logits_chunk": 7}),
    "checkpointed": (True, {"gradient_checkpointing": True, "logits_chunk": 20}),
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_the_gradient_is_that_of_the_samples_one_by_one(architecture: str, packing: str) -> None:
    shared, memory = PACKINGS[packing]
    made, model = rollouts(), model_of(architecture)
    loss, expected = plain_gradient(model, [sample for samples in made for sample in samples])
    result, found = packed_gradient(model, forest(made, shared), **memory)
    assert result.policy_loss is not None
    assert result.label_loss is not None
    assert result.policy_loss + result.label_loss == pytest.approx(loss, rel=1e-10)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-9 * gradient.norm(), name
    assert result.grad_norm == pytest.approx(math.sqrt(sum(g.square().sum().item() for g in expected.values())))


def test_the_gradient_in_float32_too() -> None:
    made, model = rollouts(), model_of(dtype=torch.float32)
    _, expected = plain_gradient(model, [sample for samples in made for sample in samples])
    for shared in (True, False):
        _, found = packed_gradient(model, forest(made, shared))
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def logprobs_of(model: PreTrainedModel, trees: Sequence[Tree], **options: bool) -> list[list[float]]:
    """By tree, in the order given, the log-probs of its trained tokens."""
    by_tree = {}
    for rows in plan(trees, 10_000, **options):
        logprobs, _ = score(model, lay_out(rows), TEMPERATURE, 10_000)
        each = iter(logprobs.tolist())
        for tree in (tree for row in rows for tree in row):
            by_tree[id(tree)] = [next(each) for path in tree.paths for _ in path.trained]
    return [by_tree[id(tree)] for tree in trees]


def test_the_log_probs_are_those_of_the_samples_one_by_one() -> None:
    made, model = rollouts(), model_of()
    trees = forest(made)
    expected = []
    for samples in made:
        expected.append([])
        for sample in samples:
            predicted = (model(input_ids=torch.tensor([sample.token_ids])).logits[0] / TEMPERATURE).log_softmax(-1)
            for t, weight in enumerate(sample.ce_weights):
                if weight or (sample.mask[t] and sample.rl_weights[t]):
                    expected[-1].append(predicted[t - 1, sample.token_ids[t]].item())
    for fill_rows in (False, True):
        for found, alone in zip(logprobs_of(model, trees, fill_rows=fill_rows), expected, strict=True):
            assert found == pytest.approx(alone, abs=1e-10)


@pytest.mark.parametrize("fill_rows", [False, True])
def test_nothing_leaks_from_one_tree_into_another(fill_rows: bool) -> None:
    made, model = rollouts(), model_of()
    longest = max(range(len(made)), key=lambda number: len(made[number][0].token_ids))
    before = logprobs_of(model, forest(made), fill_rows=fill_rows)
    other = [replace(s, token_ids=tuple(300 + i % 50 for i in s.token_ids)) for s in made[longest]]
    after = logprobs_of(model, forest([*made[:longest], other, *made[longest + 1 :]]), fill_rows=fill_rows)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if number != longest:
            assert new == pytest.approx(old, abs=1e-12)
    assert after[longest] != pytest.approx(before[longest], abs=1e-3)


def test_several_trees_do_share_a_row_in_these_tests() -> None:
    assert any(len(row) > 1 for rows in plan(forest(rollouts()), 10_000, fill_rows=True) for row in rows)


def pair(policy: int, ce: float, sampler: float = 0.0, advantage: float = 0.0) -> TrainingSample:
    """Token 5, then token 7, which is trained."""
    sampled = bool(policy)
    return TrainingSample((5, 7), (False, sampled), (0.0, sampler), (0.0, float(policy)), (0.0, ce), advantage)


def flat_model() -> PreTrainedModel:
    """A model whose every next-token distribution is uniform over its vocabulary of 400."""
    model = tiny_model()
    nn.init.zeros_(model.get_output_embeddings().weight)
    return model


def test_the_loss_of_a_toy_by_hand() -> None:
    # p = 1/400 everywhere; the policy token was sampled at p/2: ρ = 2, loss −0.5 · 2; cross-entropy 0.1 · log 400
    size = flat_model().config.vocab_size
    trees = plant([pair(1, 0.0, -math.log(2 * size), 0.5)]) + plant([pair(0, 0.1)])
    done = Trainer(flat_model(), STILL).step(trees)
    assert done.policy_loss == pytest.approx(-1.0, rel=1e-5)
    assert done.label_loss == pytest.approx(0.1 * math.log(size), rel=1e-6)
    assert done.ce_nll == pytest.approx(math.log(size), rel=1e-6)
    assert (done.policy_tokens, done.ce_tokens, done.input_tokens, done.padded_tokens) == (1, 1, 2, 2)
    assert done.entropy == pytest.approx(math.log(size), rel=1e-6)
    assert done.ratio_mean == pytest.approx(2.0, rel=1e-5)
    assert done.mismatch_kl == pytest.approx(1 - math.log(2), rel=1e-4)
    assert done.kept_share == 1.0


def test_each_loss_has_its_own_normaliser_over_the_step() -> None:
    # three label tokens in three micro-batches: each weighs a third; the policy token is alone
    trees = [*plant([pair(1, 0.0, -math.log(400), 0.5)]), *(plant([pair(0, 0.3)])[0] for _ in range(3))]
    done = Trainer(flat_model(), STILL, memory=MemoryOptions(tokens_per_micro_batch=1)).step(trees)
    assert done.micro_batches == 4
    assert done.policy_loss == pytest.approx(-0.5 * 400 / flat_model().config.vocab_size, rel=1e-5)
    assert done.label_loss == pytest.approx(0.3 * math.log(flat_model().config.vocab_size), rel=1e-6)


def test_without_policy_tokens_their_numbers_are_none() -> None:
    done = Trainer(flat_model(), STILL).step(plant([pair(0, 1.0)]))
    assert (done.policy_loss, done.entropy, done.mismatch_kl, done.ratio_mean, done.kept_share) == (None,) * 5
    done = Trainer(flat_model(), STILL).step(plant([pair(1, 0.0, -1.0, 0.5)]))
    assert (done.label_loss, done.ce_nll) == (None, None)


def test_a_step_makes_the_trained_token_more_likely_and_clips() -> None:
    trainer = Trainer(tiny_model(), OptimiserOptions(1e-3, max_grad_norm=0.01))
    trees = plant([pair(0, 1.0)])
    losses = [trainer.step(trees).ce_nll for _ in range(5)]
    assert losses == sorted(losses, reverse=True)  # type: ignore[type-var]
    moments = trainer.optimiser.state_dict()["state"].values()
    # the first moment is a mean of clipped gradients, each of norm 0.01
    assert math.sqrt(sum(each["exp_avg"].square().sum().item() for each in moments)) <= 0.01


def weights(model: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def test_a_loss_that_is_no_number_is_named_and_moves_nothing() -> None:
    trainer = Trainer(tiny_model(), OptimiserOptions(1e-3))
    good, bad = plant([pair(0, 1.0)]), plant([pair(1, 0.0, -1e6, 0.5)])  # ρ = exp(10⁶)
    trainer.step(good)
    before, state = weights(trainer.model), copy.deepcopy(trainer.state_dict())
    with pytest.raises(NonFiniteError, match="the policy loss of micro-batch 1 of 1 is not finite"):
        trainer.step([*good, *bad])
    assert all(map(torch.equal, weights(trainer.model), before))
    again = trainer.state_dict()
    assert again["steps"] == state["steps"] == 1
    assert all(torch.equal(again["moments"][i]["exp_avg"], state["moments"][i]["exp_avg"]) for i in state["moments"])
    assert all(each.grad is None for each in trainer.model.parameters())
    assert trainer.step(good).ce_tokens == 1


def test_a_gradient_that_is_no_number_is_named() -> None:
    trainer = Trainer(tiny_model(), OptimiserOptions(1e-3))
    name, parameter = next(iter(trainer.model.named_parameters()))
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    before = weights(trainer.model)
    with pytest.raises(NonFiniteError) as error:
        trainer.step(plant([pair(0, 1.0)]))
    assert error.value.where == f"the gradient of {name}"
    assert all(map(torch.equal, weights(trainer.model), before))


def test_what_cannot_be_trained_is_refused() -> None:
    trainer = Trainer(tiny_model(), OptimiserOptions(1e-3))
    with pytest.raises(EmptyBatchError, match="no token to train in the 0 trees"):
        trainer.step([])
    with pytest.raises(ValueError, match="token ids from 5 to 9999, the model has 0 to"):
        trainer.step(plant([replace(pair(0, 1.0), token_ids=(5, 9999))]))
    with pytest.raises(ValueError, match=r"torch.bfloat16, expected float32"):
        Trainer(tiny_model().to(torch.bfloat16), OptimiserOptions(1e-3))


def test_a_restored_trainer_takes_the_same_step_to_the_bit() -> None:
    options = OptimiserOptions(1e-3, schedule=Schedule.COSINE, warmup_steps=1, total_steps=6)
    steps = [forest(rollouts(seed)) for seed in range(4)]
    unbroken = Trainer(tiny_model(), options)
    for trees in steps[:2]:
        unbroken.step(trees, TEMPERATURE)
    saved, state = copy.deepcopy(unbroken.model.state_dict()), copy.deepcopy(unbroken.state_dict())
    resumed = Trainer(tiny_model(seed=1), options)
    resumed.model.load_state_dict(saved)
    resumed.load_state_dict(state)
    for trees in steps[2:]:
        results = [replace(each.step(trees, TEMPERATURE), seconds=0.0) for each in (unbroken, resumed)]
        assert results[0] == results[1]
    assert all(map(torch.equal, weights(unbroken.model), weights(resumed.model)))


def test_bfloat16_computes_nearly_the_same() -> None:
    trees = forest(rollouts())
    exact, rough = (Trainer(tiny_model(), STILL, LOSS, MemoryOptions(bfloat16=b)).step(trees) for b in (False, True))
    assert rough.label_loss == pytest.approx(exact.label_loss, rel=0.05)
    assert rough.label_loss != exact.label_loss


def test_other_forward_passes_are_those_of_the_generation_engine() -> None:
    """The engine may sample from the very model that is trained: with a cache, with and without padding."""
    ids = torch.arange(3, 23).view(2, 10)
    padding = torch.ones_like(ids)
    padding[0, :4] = 0
    outputs = []
    for use in (use_grouped_attention, use_tree_attention):
        model = use(tiny_model())
        first = model(input_ids=ids[:, :8], attention_mask=padding[:, :8], use_cache=True)
        rest = model(input_ids=ids[:, 8:9], attention_mask=padding[:, :9], past_key_values=first.past_key_values)
        outputs.append([first.logits, rest.logits, model(input_ids=ids).logits])
    assert all(map(torch.equal, *outputs))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_gpu_has_the_gradient_of_the_cpu(checkpointed: bool) -> None:
    trees = forest(rollouts())
    expected = packed_gradient(model_of(dtype=torch.float32), trees)[1]
    memory = {"gradient_checkpointing": checkpointed, "logits_chunk": 50 if checkpointed else 10_000}
    exact = packed_gradient(model_of(dtype=torch.float32).to("cuda"), trees, **memory)[1]
    rough = packed_gradient(model_of(dtype=torch.float32).to("cuda"), trees, **memory, bfloat16=True)[1]
    for name, gradient in expected.items():
        assert (exact[name].cpu() - gradient).norm() <= 1e-4 * gradient.norm(), name
        assert (rough[name].cpu() - gradient).norm() <= 0.1 * gradient.norm(), name


def rates(count: int, **options: object) -> list[float]:
    made = OptimiserOptions(learning_rate=8.0, **options)  # type: ignore[arg-type]
    return [made.learning_rate_at(step) for step in range(count)]


def test_the_schedules_by_hand() -> None:
    assert rates(3) == [8, 8, 8]
    assert rates(4, warmup_steps=2) == [0, 4, 8, 8]
    linear = {"schedule": Schedule.LINEAR, "warmup_steps": 2}
    # six steps, the last three of which fall
    assert rates(8, **linear, total_steps=6, decay_steps=3) == [0, 4, 8, 8, 4, 0, 0, 0]
    assert rates(7, **linear, total_steps=7) == [0, 4, 8, 6, 4, 2, 0]
    cosine = rates(6, schedule=Schedule.COSINE, warmup_steps=1, total_steps=5)
    root = math.sqrt(0.5)
    assert cosine == pytest.approx([0, 8, 4 * (1 + root), 4, 4 * (1 - root), 0])


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="linear needs total_steps"):
        OptimiserOptions(1e-3, schedule=Schedule.LINEAR)
    with pytest.raises(ValueError, match="3 warm-up and 4 decay steps do not fit into 6"):
        OptimiserOptions(1e-3, schedule=Schedule.LINEAR, warmup_steps=3, decay_steps=4, total_steps=6)


def test_the_learning_rate_of_a_step_is_reported_and_used() -> None:
    trainer = Trainer(tiny_model(), OptimiserOptions(1e-3, warmup_steps=1))
    before = weights(trainer.model)
    assert trainer.step(plant([pair(0, 1.0)])).learning_rate == 0.0
    assert all(map(torch.equal, weights(trainer.model), before))
    assert trainer.step(plant([pair(0, 1.0)])).learning_rate == 1e-3
    assert not all(map(torch.equal, weights(trainer.model), before))
