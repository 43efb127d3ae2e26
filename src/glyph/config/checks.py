"""Contradictions between the keys of a configuration: cheap to find, so found before any model is loaded."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from glyph.credit import UniformGroups
from glyph.protocol import Arm

if TYPE_CHECKING:
    from glyph.config.schema import Config, RlConfig, SftConfig

MPS = "mps is not supported: it has no float64, which sampling needs; take cpu or cuda"
SLOW = (
    "scale 'small' needs a CUDA GPU, got device {device!r}: its model has half a billion parameters, and on a few cores"
    " one step of 64 rollouts is in the order of an hour; take --scale mini, or a machine with a GPU"
)
VLLM = "generation.backend 'vllm' needs a CUDA GPU, got device {device!r}; take generation.backend=engine"


def check_device(config: "Config", device: str) -> None:
    """Refuse a kind of device (cpu, cuda, mps) that the run cannot use; for what `auto` turned out to be.

    Raises:
        ValueError: the reason, and what to take instead.
    """
    if faults := list(_device_faults(config, device)):
        raise ValueError("\n".join(faults))


def _device_faults(config: "Config", device: str) -> Iterator[str]:
    if config.scale == "small" and device in ("cpu", "mps"):
        yield SLOW.format(device=device)
    elif device == "mps":
        yield MPS
    if config.stage == "rl" and device in ("cpu", "mps") and _backend(config) == "vllm":
        yield VLLM.format(device=device)


def _backend(config: "Config") -> str:
    generation = getattr(config, "generation", None)
    return generation.backend if generation else ""


def sft_contradictions(config: "SftConfig") -> Iterator[str]:
    """One sentence for each."""
    yield from _device_faults(config, config.device)
    yield from _micro_batch(config, "sft.sequence_length", config.sft.sequence_length)
    yield from _schedule(config, "sft.steps", config.sft.steps)


def rl_contradictions(config: "RlConfig") -> Iterator[str]:
    """One sentence for each."""
    yield from _device_faults(config, config.device)
    context = config.environment.max_context_tokens
    yield from _micro_batch(config, "environment.max_context_tokens", context)
    yield from _schedule(config, "rl.steps", config.rl.steps)
    yield from _groups(config)
    if (turn := config.sampling.max_completion_tokens) >= context:
        yield (
            f"sampling.max_completion_tokens must be less than environment.max_context_tokens, which holds the prompt,"
            f" too: got {turn} and {context}"
        )
    try:
        config.rules()
    except ValueError as error:
        yield f"environment.variant: {error}"
    try:
        config.credit_rule()
    except ValueError as error:
        yield f"rl.credit_rule: {error}"


def _groups(config: "RlConfig") -> Iterator[str]:
    rollouts, size = config.rl.rollouts_per_step, config.rl.group_size
    if rollouts % size:
        yield f"rl.rollouts_per_step must be a multiple of rl.group_size: got {rollouts} and {size}"
    labels_train = (
        config.arm is Arm.PREDICTIVE
        and config.credit.alpha > 0
        and config.credit.uniform_groups is UniformGroups.KEEP_CE
    )
    if size == 1 and not labels_train:
        yield (
            "rl.group_size = 1 trains nothing: reward minus group mean is always 0; take 2 or more (Arm B can train on"
            " labels alone with credit.uniform_groups=keep_ce and a positive credit.alpha)"
        )
    if config.sampling.top_k == 1 and not labels_train:
        yield "sampling.top_k = 1 makes the rollouts of a group alike, so nothing trains; take 0 (off), or 2 or more"


def _micro_batch(config: "Config", key: str, length: int) -> Iterator[str]:
    if (tokens := config.memory.tokens_per_micro_batch) < length:
        yield f"memory.tokens_per_micro_batch must hold one whole sequence ({key}): got {tokens}, need {length}"


def _schedule(config: "Config", key: str, steps: int) -> Iterator[str]:
    optimiser = config.optimiser
    if optimiser.schedule != "constant" and optimiser.warmup_steps > steps:
        yield (
            f"optimiser.warmup_steps must be at most {key}, so that the {optimiser.schedule} schedule can fall:"
            f" got {optimiser.warmup_steps} and {steps}"
        )
