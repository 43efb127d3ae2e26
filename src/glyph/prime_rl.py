"""Arm B's algorithm for the pinned PRIME-RL (v0.7.0): `credit.py` behind its hooks.

    group of rollouts (a Verifiers trace and the trainer's samples each)
      → branches and record → `credit_rollout` → `credit_group` → streams on the samples, label samples after them

A patch (`patches/prime_rl/`) registers `PredictAlgorithm` as the type `predict`. It works on whole groups alone, so
nothing of a rollout is kept between hooks. A rollout that cannot be credited is counted, logged and left out of its
group; it never ends the run, as an exception in a hook would. Only PRIME-RL imports this module.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prime_rl.orchestrator.algo.grpo import GRPOAlgorithm
from prime_rl.orchestrator.trajectories import iter_trainable_branches
from prime_rl.transport import TrainingSample as WireSample

from glyph.chat import check_parity
from glyph.codec import codec_of
from glyph.credit import (
    CREDIT_RULES,
    Branch,
    CeNormalisation,
    Codec,
    Credited,
    CreditOptions,
    LabelCredit,
    LabelTokens,
    Segment,
    TrainingSample,
    UniformGroups,
    apply_rule,
    credit_rollout,
    prediction_bonus,
    trained_labels,
    weigh_labels,
)
from glyph.plugins import load
from glyph.protocol import Arm, Label
from glyph.records import TRACE_KEY, RolloutRecord, record_from_dict

if TYPE_CHECKING:
    from prime_rl.configs.algorithm import PredictAlgoConfig
    from prime_rl.orchestrator.types import Rollout
    from prime_rl.utils.client import InferencePool

logger = logging.getLogger(__name__)

LABEL_WINDOW = 1024
"""Label samples over which the normalisations `label` and `class` count: the pin shows an algorithm one group at a
time, never the step's batch, so these are the newest of the run."""


class PredictAlgorithm(GRPOAlgorithm):
    """GRPO on actions, no RL credit for sampled labels, cross-entropy on verified ones.

    Options are those of `CreditOptions`; `max_aux_tokens` is its `max_label_tokens`. Each rollout of a group gets the
    metrics `label_samples` (those that its group ships), `label_misses` (targets for which none could be made) and
    `left_out` (1.0 where the rollout could not be credited).
    """

    def __init__(self, config: "PredictAlgoConfig", policy_pool: "InferencePool") -> None:
        super().__init__(config, policy_pool)
        self.options = credit_options(config)
        self.rule = load(config.credit_rule, CREDIT_RULES, "credit rule")
        self.codec: Codec | None = None
        self._recent: deque[tuple[Label, int]] = deque(maxlen=LABEL_WINDOW)

    async def setup(self) -> None:
        """Load the policy's tokenizer and prove that every path gives the ids that it was trained on.

        Raises:
            ParityError: template, renderer and incremental prompts differ, or another token than `<|im_end|>` stops.
            ValueError: a tokenizer whose ids have no bytes of their own.
        """
        from renderers import DefaultRendererConfig
        from renderers.base import load_tokenizer

        from glyph.tasks.demonstrations import sample_conversation

        tokenizer = await asyncio.to_thread(load_tokenizer, self.policy_pool.model_name)
        check_parity(tokenizer, sample_conversation(Arm.PREDICTIVE), DefaultRendererConfig())
        self.codec = codec_of(tokenizer)

    async def score_group(self, group: "list[Rollout]") -> None:
        """Write samples, streams and advantages of a complete group.

        Raises:
            ValueError: the credit rule gave what no trainer can use (a fault of the rule, not of a rollout).
        """
        credited = await asyncio.to_thread(lambda: [self._credit(rollout) for rollout in group])
        kept = [(rollout, *each) for rollout, each in zip(group, credited, strict=True) if each]
        shipped = apply_rule(self.rule, [each for _, each, _ in kept], [reward for *_, reward in kept], self.options)
        weighed = iter(self._weigh([sample for samples in shipped for sample in samples]))
        final = {
            rollout.id: [next(weighed) for _ in samples] for (rollout, *_), samples in zip(kept, shipped, strict=True)
        }
        for rollout in group:
            samples = [sample for sample in final.get(rollout.id, []) if trains(sample)]
            write_samples(rollout, samples)
            rollout.record_metrics({"label_samples": sum(sample.label is not None for sample in samples)})

    def _credit(self, rollout: "Rollout") -> tuple[Credited, float] | None:
        """The rollout's samples and its reward; None where it cannot be credited."""
        assert self.codec is not None, "setup() has not run"
        done = None
        try:
            record = record_of(rollout)
            credited = credit_rollout(branches_of(rollout), record, self.codec, self.options)
            done = credited, rollout.reward + prediction_bonus(record, self.options)
        except Exception:  # whatever a rollout holds, it must not end the run
            logger.exception("rollout %s of %s is left out of its group", rollout.id, rollout.env_name)
        misses = done[0].misses if done else {}
        if misses:
            reasons = ", ".join(f"{miss.value} {n}" for miss, n in misses.items())
            logger.warning("rollout %s: targets without a label sample: %s", rollout.id, reasons)
        rollout.record_metrics({"label_misses": sum(misses.values()), "left_out": done is None})
        return done

    def _weigh(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        self._recent.extend(trained_labels(samples))
        return weigh_labels(samples, self.options, list(self._recent))


def credit_options(config: "PredictAlgoConfig") -> CreditOptions:
    return CreditOptions(
        alpha=config.alpha,
        normalisation=CeNormalisation(config.normalisation),
        label_tokens=LabelTokens(config.label_tokens),
        label_credit=LabelCredit(config.label_credit),
        uniform_groups=UniformGroups(config.uniform_groups),
        prediction_reward=config.prediction_reward,
        max_label_tokens=config.max_aux_tokens,
    )


def record_of(rollout: "Rollout") -> RolloutRecord:
    """Raises: KeyError, ValueError: the taskset `glyph` did not make this rollout."""
    return record_from_dict(rollout.info[TRACE_KEY])


def branches_of(rollout: "Rollout") -> list[Branch]:
    """The branches that the pin makes samples of, in its order; a message sampled in several counts in the first."""
    branches: list[Branch] = []
    for branch, mask in iter_trainable_branches(rollout):
        own, segments = iter(mask), []
        for index, node in enumerate(branch.nodes):
            sampled = tuple(next(own) for _ in node.token_ids)
            logprobs = tuple(node.logprobs) if any(sampled) else ()
            segments.append(Segment(index, tuple(node.token_ids), sampled, logprobs))
        branches.append(segments)
    return branches


def trains(sample: TrainingSample) -> bool:
    """Whether any of its tokens counts in a loss; the pin would pay a forward pass for it all the same."""
    return any(sample.ce_weights) or any(mine and w for mine, w in zip(sample.mask, sample.rl_weights, strict=True))


def write_samples(rollout: "Rollout", shipped: Sequence[TrainingSample]) -> None:
    """Make the rollout's wire samples and advantages those of `shipped`; of an empty one nothing is shipped.

    Weights that are what the pin takes an absent stream for (1 for RL, 0 for cross-entropy) are left absent.
    """
    originals = rollout.samples
    rollout.samples = [_wire(sample, originals, rollout.env_name) for sample in shipped]
    rollout.assign_advantages([sample.advantage if mine else 0.0 for sample in shipped for mine in sample.mask])


def _wire(sample: TrainingSample, originals: Sequence[WireSample], env_name: str) -> WireSample:
    if sample.label is None:
        wire = originals[sample.branch]
    else:
        wire = WireSample(
            token_ids=list(sample.token_ids),
            mask=list(sample.mask),
            logprobs=list(sample.logprobs),
            temperatures=[],  # the pin fills them in after this hook
            env_name=env_name,
        )
    wire.rl_weights = list(sample.rl_weights) if any(weight != 1.0 for weight in sample.rl_weights) else None
    wire.ce_weights = list(sample.ce_weights) if any(sample.ce_weights) else None
    return wire
