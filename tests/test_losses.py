"""The losses against numbers worked out by hand, and against the pinned PRIME-RL where its checkout is given."""

import importlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glyph.credit import TrainingSample
from glyph.local.training.losses import PolicyLossOptions, Streams, label_loss, policy_loss, step_loss, streams_of
from glyph.protocol import Label

STUDY = PolicyLossOptions()


def streams(sampler: list[float], advantages: list[float], policy: list[float], ce: list[float]) -> Streams:
    return Streams(*(torch.tensor(values) for values in (sampler, advantages, policy, ce)))


def test_on_policy_the_loss_is_minus_the_advantage() -> None:
    given = streams([-1.0, -2.0, -3.0], [0.5, 0.5, 0.5], [0.0, 1.0, 1.0], [0.0] * 3)
    assert policy_loss(torch.tensor([-1.0, -2.0, -3.0]), given, STUDY).item() == pytest.approx(-1.0)


def test_the_ratio_weighs_and_is_not_clipped() -> None:
    # p goes from 0.01 to 0.15: a rise of 0.14 is inside the region, the ratio is 15
    given = streams([math.log(0.01)], [2.0], [1.0], [0.0])
    assert policy_loss(torch.tensor([math.log(0.15)]), given, STUDY).item() == pytest.approx(-30.0, rel=1e-5)


@pytest.mark.parametrize(
    ("before", "after", "advantage", "kept"),
    [(0.5, 0.71, 1.0, False), (0.5, 0.69, 1.0, True), (0.5, 0.1, 1.0, True), (0.5, 0.29, -1.0, False),
     (0.5, 0.31, -1.0, True), (0.5, 0.9, -1.0, True)],
    ids=["rose too far", "rose", "fell though good", "fell too far", "fell", "rose though bad"],
)  # fmt: skip
def test_the_trust_region_drops_what_has_moved_too_far(
    before: float, after: float, advantage: float, kept: bool
) -> None:
    given = streams([math.log(before)], [advantage], [1.0], [0.0])
    expected = -advantage * after / before if kept else 0.0
    assert policy_loss(torch.tensor([math.log(after)]), given, STUDY).item() == pytest.approx(expected, rel=1e-5)


def test_drift_costs_even_where_the_gain_is_dropped() -> None:
    given = streams([math.log(0.5)], [1.0], [1.0], [0.0])
    loss = policy_loss(torch.tensor([math.log(0.9)]), given, replace(STUDY, kl_tau=0.1))
    assert loss.item() == pytest.approx(0.1 * math.log(1.8) ** 2, rel=1e-5)


def test_cross_entropy_counts_label_tokens_alone() -> None:
    given = streams([0.0] * 3, [9.0] * 3, [0.0] * 3, [0.0, 0.1, 0.1])
    logprobs = torch.tensor([-7.0, -1.0, -3.0])
    assert label_loss(logprobs, given).item() == pytest.approx(0.4)
    assert step_loss(logprobs, given, given.policy_tokens, given.ce_tokens, STUDY).item() == pytest.approx(0.2)


def test_a_masked_label_has_no_gradient_and_no_place_in_the_normaliser() -> None:
    given = streams([-1.0, -1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0])
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss = step_loss(logprobs, given, given.policy_tokens, given.ce_tokens, STUDY)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert given.policy_tokens == 1
    assert gradient.tolist() == [0.0, -1.0]


def test_a_batch_with_nothing_to_train_is_zero_and_can_be_differentiated() -> None:
    given = streams([0.0], [0.0], [0.0], [0.0])
    logprobs = torch.tensor([-1.0], requires_grad=True)
    loss = step_loss(logprobs, given, 0, 0, STUDY)
    loss.backward()
    assert (loss.item(), logprobs.grad.tolist()) == (0.0, [0.0])  # type: ignore[union-attr]


def test_streams_lay_samples_end_to_end() -> None:
    rollout = TrainingSample((1, 2, 3), (False, True, True), (0.0, -1.0, -2.0), (1.0, 0.0, 1.0), (0.0,) * 3, 0.5)
    label = TrainingSample((1, 9), (False,) * 2, (0.0,) * 2, (0.0,) * 2, (0.0, 0.1), label=Label.PASS)
    done = streams_of([rollout, label])
    assert done.policy_weights.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert done.ce_weights.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.1])
    assert done.advantages.tolist() == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert (done.policy_tokens, done.ce_tokens) == (1, 1)
    with pytest.raises(ValueError, match="first token"):
        streams_of([replace(label, ce_weights=(0.1, 0.1))])


@pytest.mark.parametrize("seed", range(20))
def test_equal_to_the_pinned_trainer(prime_rl: Path, seed: int) -> None:
    pinned = importlib.import_module("prime_rl.trainer.rl.loss")
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    lengths = [5, 9, 3]
    total = sum(lengths)
    sampler, logprobs = -3 * uniform(total), (-3 * uniform(total)).requires_grad_()
    advantages = (uniform(3) - 0.5).repeat_interleave(torch.tensor(lengths))
    mask = uniform(total) < 0.7
    rl = (uniform(total) < 0.8).double() * (0.5 + uniform(total))
    ce = (uniform(total) < 0.3).double() * 0.1
    config = importlib.import_module("prime_rl.configs.trainer").DefaultLossConfig(kl_tau=0.03)
    n_rl, n_ce = int((mask & (rl != 0)).sum()), int((ce != 0).sum())
    theirs, _ = pinned.compute_loss(
        *(list(each.split(lengths)) for each in (logprobs, sampler)),
        None,
        *(list(each.split(lengths)) for each in (advantages, mask, rl, ce)),
        None,
        pinned.setup_rl_loss_fn(config),
        max(n_rl, 1),
        max(n_ce, 1),
        1,
    )
    given = Streams(sampler, advantages, torch.where(mask, rl, 0.0), ce)
    ours = step_loss(logprobs, given, given.policy_tokens, given.ce_tokens, PolicyLossOptions(kl_tau=0.03))
    assert (given.policy_tokens, given.ce_tokens) == (n_rl, n_ce)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    gradients = [torch.autograd.grad(loss, logprobs, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=0)
