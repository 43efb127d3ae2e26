"""Every key of a run's configuration: its type, bounds, default and meaning.

A default is the published value where the study has one. The descriptions are the text of docs/configuration.md.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from glyph.config.checks import MPS, rl_contradictions, sft_contradictions
from glyph.credit import (
    CREDIT_RULES,
    CeNormalisation,
    CreditOptions,
    CreditRule,
    LabelCredit,
    LabelTokens,
    UniformGroups,
)
from glyph.episode_state import Rules
from glyph.executor import Limits
from glyph.plugins import load
from glyph.protocol import Arm
from glyph.variants import parse_variant

Stage: TypeAlias = Literal["sft", "rl"]
STAGE = "supervised fine-tuning or reinforcement learning; chosen by the command"
LearningRate = Annotated[float, Field(gt=0, description="peak learning rate of AdamW")]
Schedule = Annotated[
    Literal["constant", "linear", "cosine"],
    Field(
        description="after the warm-up the learning rate stays, or falls to 0 at the last step, straight or as a cosine"
    ),
]
WarmupSteps = Annotated[
    int, Field(ge=0, description="steps over which the learning rate rises in a straight line from 0, the first step's")
]


class Section(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OptimiserConfig(Section):
    """AdamW and its learning rate."""

    learning_rate: LearningRate = 2e-5
    weight_decay: float = Field(
        default=0.01, ge=0, description="decoupled weight decay, times the learning rate, each step"
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="decay of the first and of the second moment, a step"
    )
    epsilon: float = Field(default=1e-8, gt=0, description="added to the root of the second moment")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="gradients are scaled down to this L2 norm over all weights"
    )
    schedule: Schedule = "linear"
    warmup_steps: WarmupSteps = 2


class RlOptimiserConfig(OptimiserConfig):
    """AdamW and its learning rate."""

    learning_rate: LearningRate = 1e-6
    schedule: Schedule = "constant"
    warmup_steps: WarmupSteps = 0


class MemoryConfig(Section):
    """What a step needs of memory; none of it changes the gradient but by rounding."""

    tokens_per_micro_batch: int = Field(
        default=4096,
        ge=1,
        description="padded tokens of one forward pass; a sample that is longer by itself goes alone",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute each layer in the backward pass: slower, smaller"
    )
    logits_chunk: int = Field(default=1024, ge=1, description="trained tokens whose logits exist at once")


class SftSection(Section):
    """Supervised fine-tuning on the arm's traces; the loss is on assistant turns only."""

    steps: int = Field(default=60, ge=1, description="optimiser steps")
    batch_size: int = Field(default=32, ge=1, description="conversations a step")
    faulty_patches: Literal["trained", "masked"] = Field(
        default="trained",
        description="whether the patches of a trace that fail to apply, or fail the tests, are in the loss, as in the"
        " study; masked, the model sees them but does not learn to make them",
    )
    sequence_length: int = Field(default=1280, ge=1, description="tokens; a longer conversation is refused, never cut")
    repeatable: bool = Field(
        default=True,
        description="only kernels that add in one order, so that the same SFT gives the same weights on a GPU, too",
    )


class RlSection(Section):
    """Group-relative policy optimisation."""

    steps: int = Field(default=100, ge=1, description="optimiser steps")
    rollouts_per_step: int = Field(default=64, ge=1, description="rollouts a step, a multiple of `group_size`")
    group_size: int = Field(default=16, ge=1, description="rollouts of one task, whose mean reward is the baseline")
    off_policy_steps: int = Field(
        default=0, ge=0, le=1, description="steps that the sampling weights are behind: 0 on-policy, 1 one step behind"
    )
    credit_rule: str = Field(
        default="group_mean",
        description="how the rewards of a group become advantages: reward minus group mean, or `module:function`, [one"
        " of your own](extending.md#a-credit-rule)",
    )
    label_branches: Literal["shared", "separate"] = Field(
        default="shared",
        description="label samples share their rollout's forward pass, or replay its prefix each as in the study;"
        " the gradient is the same",
    )


class SamplingConfig(Section):
    """How training rollouts are sampled."""

    temperature: float = Field(
        default=0.8, gt=0, description="divides the logits, in sampling and in the trainer's loss"
    )
    top_k: int = Field(default=20, ge=0, description="most probable tokens kept; 0 keeps all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="probability mass kept; 1 keeps all")
    max_completion_tokens: int = Field(
        default=512, ge=1, description="tokens of one turn; a longer turn ends the rollout"
    )


class EnvironmentConfig(Section):
    """The rules that a rollout is played by, and how its tests run."""

    variant: str = Field(
        default="standard",
        description="departure from the published environment, [by name](architecture.md#variants), or"
        " `module:attribute`, [one of your own](extending.md#an-arm-variant)",
    )
    budget: int = Field(default=Rules.budget, ge=1, description="visible tool calls a rollout")
    max_context_tokens: int = Field(
        default=Rules.max_context_tokens, ge=1, description="prompt plus completion, in tokens"
    )
    test_workers: int = Field(default=4, ge=1, description="tests that run at once, each a process")
    test_cpu_seconds: int = Field(default=Limits.cpu_seconds, ge=1, description="CPU time of one test, in seconds")
    test_wall_seconds: float = Field(default=Limits.wall_seconds, gt=0, description="time of one test, in seconds")
    test_delay: int = Field(
        default=4,
        ge=0,
        description="decode steps from the start of a test to the use of its verdict. Steps, not seconds: so a run is"
        " a function of its seed, however long a test takes",
    )


class CreditConfig(Section):
    """Which tokens of a rollout train, and how. Whatever is about labels is without effect in Arm A."""

    alpha: float = Field(
        default=CreditOptions.alpha, ge=0, description="weight of cross-entropy on verified labels; 0 is none"
    )
    normalisation: CeNormalisation = Field(
        default=CreditOptions.normalisation,
        description="the same weight for each label token, for each label, or for each class that occurs",
    )
    label_tokens: LabelTokens = Field(
        default=CreditOptions.label_tokens,
        description="the tokens of a label: from the one that chooses it, or those that overlap its name",
    )
    label_credit: LabelCredit = Field(
        default=CreditOptions.label_credit, description="whether sampled labels are masked from the policy gradient"
    )
    uniform_groups: UniformGroups = Field(
        default=CreditOptions.uniform_groups,
        description="a group of one reward is dropped whole, or keeps the cross-entropy of its labels",
    )
    prediction_reward: float = Field(
        default=CreditOptions.prediction_reward,
        ge=0,
        description="added to a rollout's reward, times its share of right predictions",
    )
    max_label_tokens: int = Field(
        default=CreditOptions.max_label_tokens,
        ge=1,
        description="tokens of a label sample with its prefix; longer ones are missed",
    )

    def options(self) -> CreditOptions:
        return CreditOptions(**dict(self))


class LossConfig(Section):
    """The policy loss: the fields of `PolicyLossOptions`."""

    mask_low: float = Field(
        default=0.2,
        ge=0,
        description="a token without positive advantage counts until its probability fell by more than this",
    )
    mask_high: float = Field(
        default=0.2,
        ge=0,
        description="a token of positive advantage counts until its probability rose by more than this",
    )
    adv_tau: float = Field(default=1.0, ge=0, description="factor of the advantages")
    kl_tau: float = Field(default=0.0, ge=0, description="weight of the squared log-ratio to the sampling policy")


class GenerationConfig(Section):
    """Where rollouts are generated."""

    backend: Literal["engine", "vllm"] = Field(
        default="engine", description="our own engine, or vLLM in this process (GPU)"
    )
    max_rows: int = Field(default=64, ge=1, description="sequences generated at once")
    prefill_tokens: int = Field(default=8192, ge=1, description="prompt tokens of one prefill pass, padded")
    cuda_graphs: bool = Field(default=True, description="decode by CUDA graphs; without effect on a CPU and with vLLM")
    vllm_memory_share: float = Field(default=0.4, gt=0, lt=1, description="share of the GPU's memory that vLLM takes")


class EvaluationConfig(Section):
    """Evaluations during the run. Top-k, top-p and the limit of a turn are those of `[sampling]`; greedy has no cut."""

    every: int = Field(default=25, ge=0, description="training steps between evaluations; 0 is only at the end")
    at_start: bool = Field(default=True, description="also evaluate before the first step: the SFT model")
    split: Literal["train", "validation", "test"] = Field(default="validation", description="task set")
    num_tasks: int = Field(default=0, ge=0, description="the first n tasks of the split; 0 is all")
    samples: int = Field(default=1, ge=1, description="rollouts a task")
    temperature: float = Field(default=0.0, ge=0, description="0 is greedy")


class CheckpointsConfig(Section):
    """Checkpoints of weights, optimiser, random state and position. The last step always makes one."""

    every: int = Field(default=25, ge=0, description="training steps between checkpoints; 0 is only at the end")
    keep_last: int = Field(default=0, ge=0, description="older ones beyond this number are deleted; 0 keeps all")
    keep_every: int = Field(default=0, ge=0, description="one whose step is a multiple is never deleted; 0 is none")


class TracesConfig(Section):
    """Stored training rollouts, for the report's trace viewer."""

    every: int = Field(default=10, ge=0, description="training steps between stored ones; 0 stores none")


class TrackingConfig(Section):
    """Trackers besides metrics.jsonl, each an extra of the package."""

    wandb: bool = Field(default=False, description="log to Weights & Biases")
    tensorboard: bool = Field(default=False, description="log to TensorBoard, in the run's folder")
    project: str = Field(default="glyph", min_length=1, description="project name at Weights & Biases")


class Config(Section):
    """What both stages have."""

    stage: Stage = Field(description=STAGE)
    scale: str = Field(description="the folder of `configs/` that the values start from; chosen by `--scale`")
    arm: Arm = Field(description="reactive (a) or predictive (b); chosen by the command")
    seed: int = Field(default=42, ge=0, lt=2**32, description="of the order of the data and of all sampling")
    model: str = Field(
        min_length=1, description="model folder or hub id to start from; for RL the arm's SFT checkpoint, always given"
    )
    data: Path = Field(default=Path("data"), description="prepared data folder")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="`auto` takes a CUDA device if there is one"
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="CPU threads of torch; 0 is torch's choice. Exact numbers hold for one thread count",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="bfloat16", description="autocast type of the forward passes; weights and optimiser stay float32"
    )
    prompts: Path | None = Field(
        default=None, description="wording other than `configs/prompts.toml`; an empty string is none"
    )
    optimiser: OptimiserConfig = OptimiserConfig()
    memory: MemoryConfig = MemoryConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("prompts", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @field_validator("device", mode="before")
    @classmethod
    def _no_mps(cls, value: Any) -> Any:
        if value == "mps":
            raise ValueError(MPS)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if faults := self._contradictions():
            raise ValueError("\n".join(faults))
        return self

    def _contradictions(self) -> list[str]:
        return []


class SftConfig(Config):
    """A run of supervised fine-tuning."""

    stage: Literal["sft"] = Field(default="sft", description=STAGE)
    sft: SftSection = SftSection()

    def _contradictions(self) -> list[str]:
        return list(sft_contradictions(self))


class RlConfig(Config):
    """A run of reinforcement learning."""

    stage: Literal["rl"] = Field(default="rl", description=STAGE)
    optimiser: RlOptimiserConfig = RlOptimiserConfig()
    rl: RlSection = RlSection()
    sampling: SamplingConfig = SamplingConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    credit: CreditConfig = CreditConfig()
    loss: LossConfig = LossConfig()
    generation: GenerationConfig = GenerationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    traces: TracesConfig = TracesConfig()

    def limits(self) -> Limits:
        """What one test may use."""
        of = self.environment
        return Limits(wall_seconds=of.test_wall_seconds, cpu_seconds=of.test_cpu_seconds)

    def rules(self) -> Rules:
        """What each rollout is played by.

        Raises:
            ValueError: the variant is unknown, or contradicts the arm or the budget.
        """
        of = self.environment
        return Rules(self.arm, parse_variant(of.variant), of.budget, of.max_context_tokens)

    def credit_rule(self) -> CreditRule:
        """How the rewards of a group become advantages.

        Raises:
            ValueError: it is none of ours and cannot be loaded.
        """
        return load(self.rl.credit_rule, CREDIT_RULES, "credit rule")

    def _contradictions(self) -> list[str]:
        return list(rl_contradictions(self))
