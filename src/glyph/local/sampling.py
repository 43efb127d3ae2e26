"""How a next token is drawn: the processed distribution, its log-probs, and the keyed random numbers.

Logits go in, one row a sequence; a token and its log-prob come out for each. The order is temperature, top-k,
top-p. Each of the last two is a cut-off: the lowest logit that stays; tokens that tie with it stay too, so the
kept set never depends on how a sort breaks ties.

The log-prob of a sampled token is that of the very distribution it was drawn from, renormalised over the tokens
kept. Greedy decoding (temperature 0) ignores top-k and top-p and reports the log-prob under the plain softmax.

The number that draws token i of a request is the i-th of a Philox stream keyed by the request's seed, and the token
is found by inverting the CDF: neither the arrival of other requests nor the batch takes part in it.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled.

    `temperature` 0 is greedy; `top_k` 0 or -1 and `top_p` 1 are off; `max_tokens` None means up to the context
    limit; a token of `stop_token_ids` ends the completion and belongs to it; `seed` None draws a fresh one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be finite and at least 0, got {self.temperature}")
        if self.top_k < -1:
            raise ValueError(f"top_k must be at least 1, or 0 or -1 for off, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")


class UniformStream:
    """Uniform numbers in [0, 1): the i-th call of `next` gives the i-th number of the seed's Philox stream."""

    def __init__(self, seed: int | None) -> None:
        key = secrets.randbits(64) if seed is None else seed % 2**64
        self._bits = np.random.Philox(key=key)

    def next(self) -> float:
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53


@dataclass(frozen=True)
class SamplingTable:
    """The parameters of n rows as columns, on the device of the logits: each tensor is [n]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    greedy: Tensor
    max_top_k: int
    any_top_p: bool
    all_top_p_have_top_k: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocabulary: int, device: torch.device) -> "SamplingTable":
        greedy = [p.temperature == 0.0 for p in params]
        top_k = [min(p.top_k, vocabulary) if p.top_k > 0 and p.temperature else 0 for p in params]
        top_p = [p.top_p if p.temperature else 1.0 for p in params]
        return cls(
            temperature=torch.tensor([p.temperature or 1.0 for p in params], device=device),
            top_k=torch.tensor(top_k, device=device),
            top_p=torch.tensor(top_p, device=device, dtype=torch.float64),
            greedy=torch.tensor(greedy, device=device),
            max_top_k=max(top_k),
            any_top_p=any(p < 1.0 for p in top_p),
            all_top_p_have_top_k=all(k > 0 for k, p in zip(top_k, top_p, strict=True) if p < 1.0),
        )


def processed_logprobs(logits: Tensor, table: SamplingTable) -> Tensor:
    """Log-probs [n, vocabulary] of the distribution that is sampled from; tokens cut off have -inf."""
    scaled = logits.float() / table.temperature[:, None]
    top = scaled.topk(table.max_top_k).values if table.max_top_k else scaled[:, :0]
    if table.max_top_k:
        kth = top.gather(1, (table.top_k - 1).clamp(min=0)[:, None])
        scaled = scaled.masked_fill((scaled < kth) & (table.top_k > 0)[:, None], -torch.inf)
    if table.any_top_p:
        ranked = top if table.all_top_p_have_top_k else scaled.sort(dim=-1, descending=True).values
        scaled = scaled.masked_fill(scaled < _nucleus_cutoff(scaled, ranked, table.top_p)[:, None], -torch.inf)
    return scaled.log_softmax(dim=-1)


def _nucleus_cutoff(scaled: Tensor, ranked: Tensor, top_p: Tensor) -> Tensor:
    """The lowest logit [n] of the smallest set of most probable tokens whose mass reaches `top_p`.

    `ranked` [n, m] holds a row's largest logits in descending order, at least all that are not cut off yet.
    """
    probabilities = (ranked.double() - scaled.double().logsumexp(dim=-1, keepdim=True)).exp()
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    kept = (mass_before < top_p[:, None]).sum(dim=-1).clamp(min=1)
    cutoff = ranked.gather(1, (kept - 1)[:, None])[:, 0]
    return cutoff.masked_fill(top_p >= 1.0, -torch.inf)


def sample(logits: Tensor, table: SamplingTable, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Draw one token a row from logits [n, vocabulary]; return the tokens and their log-probs.

    A log-prob is not finite only where the logits are not: the caller decides what that means.
    """
    logprobs = processed_logprobs(logits, table)
    draws = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    cdf = logprobs.double().exp().cumsum(dim=-1)
    tokens = torch.searchsorted(cdf, draws * cdf[:, -1:], right=True)[:, 0]
    best = logits.argmax(dim=-1)
    tokens = torch.where(table.greedy | (tokens >= logits.shape[-1]), best, tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()
