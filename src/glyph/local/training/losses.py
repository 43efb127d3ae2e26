"""The training losses in torch: PRIME-RL's `default` policy loss and the cross-entropy on verified labels.

Log-probs and per-token streams go in, scalars come out; a token's streams come from `credit.py`. Every shape is
[tokens], over one sample or over a whole packed batch alike, since nothing is averaged within a sample: the policy
loss is divided by the number of policy tokens of the step, the cross-entropy by the number of its label tokens.
Source: PRIME-RL v0.7.0, trainer/rl/loss.py; `tests/test_losses.py` holds the two equal.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from glyph.credit import TrainingSample


@dataclass(frozen=True)
class PolicyLossOptions:
    """The trust region in probability, and the weights of advantage and drift. The study has `kl_tau` 0."""

    mask_low: float = 0.2
    mask_high: float = 0.2
    adv_tau: float = 1.0
    kl_tau: float = 0.0


@dataclass(frozen=True)
class Streams:
    """Per-token inputs of the losses, aligned with `token_ids`; position 0 of a sample has no log-prob, no weight."""

    sampler_logprobs: Tensor
    advantages: Tensor
    policy_weights: Tensor  # rl_weights on sampled tokens, 0 elsewhere
    ce_weights: Tensor

    @property
    def policy_tokens(self) -> int:
        """N_rl: tokens with a policy weight, those with advantage 0 included."""
        return int((self.policy_weights != 0).sum())

    @property
    def ce_tokens(self) -> int:
        """N_ce: label tokens, sampled or not."""
        return int((self.ce_weights != 0).sum())


def streams_of(samples: Iterable[TrainingSample], device: torch.device | str = "cpu") -> Streams:
    """The streams of samples laid end to end.

    Raises:
        ValueError: the first token of a sample would be trained: it has no log-prob.
    """
    sampler: list[float] = []
    advantages: list[float] = []
    policy: list[float] = []
    ce: list[float] = []
    for sample in samples:
        weights = [w if mine else 0.0 for w, mine in zip(sample.rl_weights, sample.mask, strict=True)]
        if weights[0] or sample.ce_weights[0]:
            raise ValueError("streams: the first token of a sample is trained, but nothing predicts it")
        sampler += sample.logprobs
        advantages += [sample.advantage] * len(weights)
        policy += weights
        ce += sample.ce_weights
    return Streams(*(torch.tensor(values, device=device) for values in (sampler, advantages, policy, ce)))


def inside_trust_region(logprobs: Tensor, streams: Streams, options: PolicyLossOptions) -> Tensor:
    """Whether a token keeps its gain: bool [tokens].

    It is dropped where its probability rose by more than `mask_high` under a positive advantage, or fell by more
    than `mask_low` under one that is not positive.
    """
    moved = logprobs.exp() - streams.sampler_logprobs.exp()
    return ~torch.where(streams.advantages > 0, moved > options.mask_high, moved < -options.mask_low)


def policy_loss(logprobs: Tensor, streams: Streams, options: PolicyLossOptions) -> Tensor:
    """Σ w · (−keep · adv_tau · A · ρ + kl_tau · (log ρ)²), with ρ the importance ratio, not clipped, not detached."""
    log_ratio = logprobs - streams.sampler_logprobs
    keep = inside_trust_region(logprobs, streams, options)
    gain = keep * options.adv_tau * streams.advantages * log_ratio.exp()
    per_token = -gain + options.kl_tau * log_ratio**2
    chosen = streams.policy_weights != 0
    return (streams.policy_weights * per_token)[chosen].sum()


def label_loss(logprobs: Tensor, streams: Streams) -> Tensor:
    """−Σ ce_weights · log-prob, over the label tokens."""
    chosen = streams.ce_weights != 0
    return -(streams.ce_weights * logprobs)[chosen].sum()


def step_losses(
    logprobs: Tensor, streams: Streams, policy_tokens: int, ce_tokens: int, options: PolicyLossOptions
) -> tuple[Tensor, Tensor]:
    """L_rl / N_rl and L_ce / N_ce of one micro-batch of a step with these counts in all its micro-batches."""
    policy = policy_loss(logprobs, streams, options) / max(policy_tokens, 1)
    return policy, label_loss(logprobs, streams) / max(ce_tokens, 1)


def step_loss(
    logprobs: Tensor, streams: Streams, policy_tokens: int, ce_tokens: int, options: PolicyLossOptions
) -> Tensor:
    """The sum of `step_losses`: what a micro-batch adds to the loss of its step."""
    policy, label = step_losses(logprobs, streams, policy_tokens, ce_tokens, options)
    return policy + label
