"""How a next token is drawn: the processed distribution, its log-probs, and the keyed random numbers.

Logits go in, one row a sequence; a token and its log-prob come out for each. The order is temperature, top-k,
top-p. Each of the last two is a cut-off: the lowest logit that stays; tokens that tie with it stay too, so the
kept set never depends on how a sort breaks ties.

The log-prob of a sampled token is that of the very distribution it was drawn from, renormalised over the tokens
kept. Greedy decoding (temperature 0) ignores top-k and top-p and reports the log-prob under the plain softmax.

The number that draws token i of a request is the i-th of a Philox stream keyed by the request's seed, and the token
is found by inverting the CDF in the vocabulary's order: neither the arrival of other requests nor the batch takes
part in it. Where every row has a top-k, the work is done on a shortlist of its largest logits, which leaves nothing
out: if more tokens tie with the last one kept than the shortlist has room for, the whole vocabulary is taken.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SPARE_CANDIDATES = {"cpu": 4, "cuda": 32}
"""How many tokens a shortlist holds beyond the largest top-k, for those that tie: with bfloat16 logits many do."""
LONGEST_SHORTLIST = 512


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

    BLOCK = 32

    def __init__(self, seed: int | None) -> None:
        key = secrets.randbits(64) if seed is None else seed % 2**64
        self._bits = np.random.Philox(key=key)
        self._drawn: list[float] = []

    def next(self) -> float:
        if not self._drawn:
            self._drawn = ((self._bits.random_raw(self.BLOCK) >> 11) * 2.0**-53)[::-1].tolist()
        return self._drawn.pop()


@dataclass(frozen=True)
class SamplingTable:
    """The parameters of n rows as columns, on the device of the logits: each tensor is [n].

    `shortlist` is the number of largest logits that a draw looks at first, 0 if it must look at all.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    greedy: Tensor
    max_top_k: int
    any_top_p: bool
    any_greedy: bool
    all_top_p_have_top_k: bool
    shortlist: int

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocabulary: int, device: torch.device) -> "SamplingTable":
        greedy = [p.temperature == 0.0 for p in params]
        top_k = [min(p.top_k, vocabulary) if p.top_k > 0 and p.temperature else 0 for p in params]
        top_p = [p.top_p if p.temperature else 1.0 for p in params]
        wanted = max(top_k) + SPARE_CANDIDATES.get(device.type, 32)
        bounded = all(k > 0 or is_greedy for k, is_greedy in zip(top_k, greedy, strict=True))
        return cls(
            temperature=torch.tensor([p.temperature or 1.0 for p in params], device=device),
            top_k=torch.tensor(top_k, device=device),
            top_p=torch.tensor(top_p, device=device, dtype=torch.float64),
            greedy=torch.tensor(greedy, device=device),
            max_top_k=max(top_k),
            any_top_p=any(p < 1.0 for p in top_p),
            any_greedy=any(greedy),
            all_top_p_have_top_k=all(k > 0 for k, p in zip(top_k, top_p, strict=True) if p < 1.0),
            shortlist=wanted if bounded and wanted < min(vocabulary, LONGEST_SHORTLIST) else 0,
        )


def processed_logprobs(logits: Tensor, table: SamplingTable) -> Tensor:
    """Log-probs [n, vocabulary] of the distribution that is sampled from; tokens cut off have -inf."""
    return _processed_logits(logits, table).log_softmax(dim=-1)


def _processed_logits(logits: Tensor, table: SamplingTable) -> Tensor:
    scaled = logits.float() / table.temperature[:, None]
    top = scaled.topk(table.max_top_k).values if table.max_top_k else scaled[:, :0]
    if table.max_top_k:
        kth = top.gather(1, (table.top_k - 1).clamp(min=0)[:, None])[:, 0].masked_fill(table.top_k == 0, -torch.inf)
        scaled.masked_fill_(scaled < kth[:, None], -torch.inf)
    if table.any_top_p:
        ranked = top if table.all_top_p_have_top_k else scaled.sort(dim=-1, descending=True).values
        scaled.masked_fill_(scaled < _nucleus_cutoff(scaled, ranked, table.top_p)[:, None], -torch.inf)
    return scaled


def _nucleus_cutoff(scaled: Tensor, ranked: Tensor, top_p: Tensor) -> Tensor:
    """The lowest logit [n] of the smallest set of most probable tokens whose mass reaches `top_p`.

    `ranked` [n, m] holds a row's largest logits in descending order, at least all that are not cut off yet.
    """
    probabilities = (ranked.double() - scaled.double().logsumexp(dim=-1, keepdim=True)).exp()
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    kept = (mass_before < top_p[:, None]).sum(dim=-1).clamp(min=1)
    cutoff = ranked.gather(1, (kept - 1)[:, None])[:, 0]
    return cutoff.masked_fill(top_p >= 1.0, -torch.inf)


def sample(logits: Tensor, table: SamplingTable, uniforms: Sequence[float] | Tensor) -> tuple[list[int], list[float]]:
    """Draw one token a row from logits [n, vocabulary]; return the tokens and their log-probs.

    One copy from the device, unless a shortlist was too short. A log-prob is not finite only where the logits are
    not: the caller decides what that means.
    """
    numbers = torch.as_tensor(uniforms, dtype=torch.float64, device=logits.device)
    drawn, spilled = _draw_from_shortlist(logits, table, numbers) if table.shortlist else (None, None)
    if drawn is not None and spilled is not None:
        tokens, logprobs, over = torch.stack([*drawn, spilled.double()]).tolist()
    if drawn is None or any(over):
        tokens, logprobs = torch.stack(_draw(logits, table, numbers)).tolist()
    return [int(token) for token in tokens], logprobs


def _draw(logits: Tensor, table: SamplingTable, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and log-probs [n] as float64, by inverting the CDF over the columns of `logits`."""
    scaled = _processed_logits(logits, table)
    largest = scaled.amax(dim=-1, keepdim=True)
    cdf = (scaled - largest).exp_().cumsum(dim=-1, dtype=torch.float64)
    total = cdf[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))  # else a rounded product could lie behind the last
    tokens = torch.searchsorted(cdf, torch.minimum(uniforms[:, None] * total, below_total), right=True)
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)  # NaN
    if table.any_greedy:
        tokens = torch.where(table.greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
    logprobs = (scaled.gather(1, tokens) - largest).double() - total.log()
    return tokens[:, 0].double(), logprobs[:, 0]


def _draw_from_shortlist(
    logits: Tensor, table: SamplingTable, uniforms: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """What `_draw` gives, from each row's largest logits, and a flag [n] for rows where that is not sure."""
    ranked, ids = logits.topk(table.shortlist)
    last_kept = ranked.gather(1, (table.top_k - 1).clamp(min=0)[:, None])[:, 0].float() / table.temperature
    spilled = (ranked[:, -1].float() / table.temperature >= last_kept) & ~table.greedy  # more may tie
    ids, order = ids.sort(dim=-1)
    columns, logprobs = _draw(ranked.gather(1, order), table, uniforms)
    tokens = ids.gather(1, columns.long()[:, None])[:, 0].double()
    if table.any_greedy:
        best, normaliser = logits.max(dim=-1).values, logits.float().logsumexp(dim=-1)
        logprobs = torch.where(table.greedy, (best - normaliser).double(), logprobs)
    return (tokens, logprobs), spilled
