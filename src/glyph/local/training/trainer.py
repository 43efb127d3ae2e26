"""One step of training: trees in, weights moved, numbers out. SFT and RL are the same step.

    trees → micro-batches → log-probs of the trained tokens → loss → gradients, added up → clipped → AdamW

The loss of a step is L_rl/N_rl + L_ce/N_ce with both N over the whole step (`losses.py`), so how it is cut into
micro-batches does not matter. Log-probs are those of softmax(logits / temperature), for cross-entropy too, as in the
pinned trainer. Weights are float32; with `bfloat16` the forward pass is computed in it. A step that fails leaves the
weights, the optimiser and the schedule as they were. What it does not do: choose, sample or save anything.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from glyph.local.inference.loading import require_full_attention
from glyph.local.training.losses import PolicyLossOptions, Streams, inside_trust_region, step_losses
from glyph.local.training.optimiser import OptimiserOptions, gradient_norm, make_optimiser
from glyph.local.training.packing import MicroBatch, Tree, lay_out, plan
from glyph.local.training.tree_attention import use_tree_attention


class TrainingError(Exception):
    """A step that was not taken. The weights are those of before."""


class NonFiniteError(TrainingError):
    """A loss or a gradient is not a finite number; `where` says which."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} is not finite: the step is not taken")
        self.where = where


class EmptyBatchError(TrainingError):
    """The step has no token to train."""


@dataclass(frozen=True)
class MemoryOptions:
    """What a step keeps in memory; none of it changes the gradient, but for `bfloat16` and rounding.

    `tokens_per_micro_batch` with padding: on a CPU 1024 to 2048 are fastest, on a GPU as many as fit.
    `logits_chunk`: tokens whose logits exist at once, in about five copies of 4 bytes × vocabulary each; where there
    are more, those of each chunk are computed again going backward.
    `fill_rows`: several short trees in a row, see `packing.plan`.
    """

    tokens_per_micro_batch: int = 8192
    gradient_checkpointing: bool = False
    logits_chunk: int = 8192
    bfloat16: bool = False
    fill_rows: bool = False


@dataclass(frozen=True)
class StepResult:
    """The numbers of a step. Means are over its policy tokens; None: there is no such token in the step.

    `mismatch_kl` is the mean of ρ − 1 − log ρ, ρ = p_trainer / p_sampler; `kept_share` the share of tokens inside the
    trust region; `ce_nll` the mean −log-prob over the tokens of cross-entropy, without their weights.
    """

    policy_loss: float | None  # L_rl / N_rl
    label_loss: float | None  # L_ce / N_ce
    ce_nll: float | None
    grad_norm: float  # before clipping
    learning_rate: float
    policy_tokens: int  # N_rl
    ce_tokens: int  # N_ce
    input_tokens: int  # computed, without padding
    padded_tokens: int  # computed, with padding
    micro_batches: int
    entropy: float | None
    mismatch_kl: float | None
    ratio_mean: float | None
    kept_share: float | None
    seconds: float


class Trainer:
    """Trains one model in place.

    Raises:
        ValueError: weights that are not float32 (float64 will do), attention that is not full, or dropout.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimiser: OptimiserOptions,
        loss: PolicyLossOptions | None = None,
        memory: MemoryOptions | None = None,
    ) -> None:
        if model.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"trainer: the weights are {model.dtype}, expected float32; load the model in float32")
        require_full_attention(model)
        if dropout := [name for name, value in model.config.to_dict().items() if name.endswith(DROPOUT) and value]:
            raise ValueError(f"trainer: {', '.join(dropout)} must be 0, for a step is a function of its batch")
        self.model = use_tree_attention(model)
        self.options = optimiser
        self.loss = loss or PolicyLossOptions()
        self.memory = memory or MemoryOptions()
        self.steps = 0
        self.optimiser = make_optimiser(model.parameters(), optimiser)
        if self.memory.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})

    def step(self, trees: Sequence[Tree], temperature: float = 1.0) -> StepResult:
        """Take one optimiser step on trees; `temperature` is that of sampling.

        Raises:
            EmptyBatchError: no tree trains a token.
            NonFiniteError: a loss or the gradient is not finite.
            ValueError: a token id that the model does not have.
        """
        started = time.perf_counter()
        counts = self._counts(trees)
        batches = plan(trees, self.memory.tokens_per_micro_batch, self.memory.fill_rows)
        rate = self.options.learning_rate_at(self.steps)
        input_tokens = padded_tokens = 0
        sums: list[Tensor] = []
        try:
            with _mode(self.model, training=self.memory.gradient_checkpointing):
                for rows in batches:
                    batch = lay_out(rows, self.model.device)
                    input_tokens, padded_tokens = input_tokens + batch.input_tokens, padded_tokens + batch.padded_tokens
                    sums.append(self._accumulate(batch, counts, temperature))
            total = _finite_total(sums)
            grad_norm = self._update(rate)
        finally:
            self.optimiser.zero_grad(set_to_none=True)
        self.steps += 1
        return StepResult(
            **_losses_and_means(total, *counts),
            grad_norm=grad_norm,
            learning_rate=rate,
            policy_tokens=counts[0],
            ce_tokens=counts[1],
            input_tokens=input_tokens,
            padded_tokens=padded_tokens,
            micro_batches=len(batches),
            seconds=time.perf_counter() - started,
        )

    def _counts(self, trees: Sequence[Tree]) -> tuple[int, int]:
        """N_rl and N_ce of the step."""
        counts = sum(tree.policy_tokens for tree in trees), sum(tree.ce_tokens for tree in trees)
        if not any(counts):
            raise EmptyBatchError(f"no token to train in the {len(trees)} trees of the step")
        known = self.model.config.get_text_config().vocab_size
        ids = [ids for tree in trees for path in tree.paths for ids in (path.tokens, path.targets) if len(ids)]
        lowest, highest = min(int(each.min()) for each in ids), max(int(each.max()) for each in ids)
        if lowest < 0 or highest >= known:
            raise ValueError(f"trainer: token ids from {lowest} to {highest}, the model has 0 to {known - 1}")
        return counts

    def _accumulate(self, batch: MicroBatch, counts: tuple[int, int], temperature: float) -> Tensor:
        """Add a micro-batch's share of the gradient; its share of each of `SUMS`."""
        with self._precision():
            logprobs, entropies = score(self.model, batch, temperature, self.memory.logits_chunk)
        policy, label = step_losses(logprobs, batch.streams, *counts, self.loss)
        (policy + label).backward()
        statistics = _statistics(logprobs.detach(), entropies, batch.streams, self.loss)
        return torch.stack([policy.detach(), label.detach(), *statistics]).double()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.model.device.type, torch.bfloat16) if self.memory.bfloat16 else nullcontext()

    def _update(self, rate: float) -> float:
        """Clip and step; the norm before clipping."""
        norm = gradient_norm(self.model.parameters())
        if not norm.isfinite():
            raise NonFiniteError(self._where_gradient())
        if self.options.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.options.max_grad_norm, norm)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        return float(norm)

    def _where_gradient(self) -> str:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return f"the gradient of {name}"
        return "the norm of the gradient"

    def state_dict(self) -> dict[str, Any]:
        """The steps taken and the optimiser's moments, live: save or copy them before the next step.

        The weights are the model's own to save.
        """
        return {"steps": self.steps, "moments": self.optimiser.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken: with the same weights, the next step is the same to the bit.

        Learning rate, decay and betas are those of this trainer's options.
        """
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state["moments"], "param_groups": groups})
        self.steps = state["steps"]


DROPOUT = ("dropout", "pdrop")
SUMS = ("policy_loss", "label_loss", "ce_nll", "entropy", "mismatch_kl", "ratio_mean", "kept_share")


def _statistics(logprobs: Tensor, entropies: Tensor, streams: Streams, options: PolicyLossOptions) -> list[Tensor]:
    """Sums over tokens of what SUMS names from `ce_nll` on."""
    policy, ce = streams.policy_weights != 0, streams.ce_weights != 0
    log_ratio = (logprobs - streams.sampler_logprobs)[policy]
    kept = inside_trust_region(logprobs, streams, options)[policy]
    return [
        -logprobs[ce].sum(),
        entropies[policy].sum(),
        (log_ratio.exp() - 1 - log_ratio).sum(),
        log_ratio.exp().sum(),
        kept.sum(),
    ]


def _finite_total(sums: Sequence[Tensor]) -> list[float]:
    """The micro-batches' sums, added up. Raises: NonFiniteError."""
    table = torch.stack(list(sums)).cpu()
    for number, row in enumerate(table[:, :2].isfinite().tolist(), start=1):
        if not all(row):
            what = "policy loss" if not row[0] else "label loss"
            raise NonFiniteError(f"the {what} of micro-batch {number} of {len(table)}")
    return table.sum(0).tolist()


def _losses_and_means(total: Sequence[float], policy_tokens: int, ce_tokens: int) -> dict[str, float | None]:
    """SUMS as losses and means; None where no token stands behind one."""
    counted = {"policy_loss": 1, "label_loss": 1, "ce_nll": ce_tokens}  # the losses are divided already
    by_label = ("label_loss", "ce_nll")
    return {
        name: value / counted.get(name, policy_tokens) if (ce_tokens if name in by_label else policy_tokens) else None
        for name, value in zip(SUMS, total, strict=True)
    }


@contextmanager
def _mode(model: PreTrainedModel, training: bool) -> Iterator[None]:
    """transformers checkpoints gradients in training mode alone; nothing else here depends on the mode."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


def score(model: PreTrainedModel, batch: MicroBatch, temperature: float, logits_chunk: int) -> tuple[Tensor, Tensor]:
    """Log-probs of the trained tokens, with gradient, and the entropies of their distributions, without: [trained].

    Both of softmax(logits / temperature), in float32 or what is wider.
    """
    hidden = model.base_model(
        input_ids=batch.token_ids, attention_mask=batch.mask, position_ids=batch.position_ids, use_cache=False
    ).last_hidden_state
    head = model.get_output_embeddings()

    def score_chunk(chunk: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return _score_logits(head(chunk), targets, temperature)

    chosen = hidden.flatten(0, 1)[batch.predictors]
    if len(chosen) <= logits_chunk:
        return score_chunk(chosen, batch.targets)
    parts = [
        checkpoint(score_chunk, *each, use_reentrant=False, preserve_rng_state=False)
        for each in zip(chosen.split(logits_chunk), batch.targets.split(logits_chunk), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _score_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Logits [tokens, vocabulary] → log-probs of the targets and entropies, [tokens]."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    normaliser = scaled.logsumexp(-1)
    logprobs = scaled.gather(-1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        entropies = normaliser - ((scaled - normaliser[:, None]).exp() * scaled).sum(-1)
    return logprobs, entropies
