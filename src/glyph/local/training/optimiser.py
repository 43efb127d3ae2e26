"""AdamW, its learning-rate schedule and gradient clipping, as the pinned trainer has them.

Source: PRIME-RL v0.7.0, trainer/optim.py and trainer/scheduler.py. Weight decay is on every parameter, norms and
embeddings too, as there. A schedule is a function of the step alone, so a resumed run needs its number and no more.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn


class Schedule(str, Enum):
    """What the learning rate does after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True)
class OptimiserOptions:
    """`max_grad_norm` None: no clipping. `decay_steps`: how long LINEAR falls at the end; None: all of the time.

    Raises:
        ValueError: a schedule that falls without `total_steps`, or phases that do not fit into them.
    """

    learning_rate: float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0
    total_steps: int | None = None
    decay_steps: int | None = None

    def __post_init__(self) -> None:
        if self.schedule is Schedule.CONSTANT:
            return
        if self.total_steps is None:
            raise ValueError(f"optimiser: the schedule {self.schedule.value} needs total_steps")
        if self.warmup_steps + (self.decay_steps or 0) > self.total_steps:
            raise ValueError(
                f"optimiser: {self.warmup_steps} warm-up and {self.decay_steps or 0} decay steps "
                f"do not fit into {self.total_steps}"
            )

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, the first of which is 0. With W warm-up steps, N in all, D of decay:

        step < W:  rate · step / W, so the very first has 0
        CONSTANT:  rate
        LINEAR:    rate, then from step N − D on: rate · (1 − k / (D − 1)), k = 0 … D − 1: the last has 0
        COSINE:    rate · (1 + cos(π · (step − W) / (N − W))) / 2
        Beyond N it stays where it ended.
        """
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.schedule is Schedule.CONSTANT or self.total_steps is None:
            return self.learning_rate
        after = self.total_steps - self.warmup_steps
        if self.schedule is Schedule.COSINE:
            done = min(1.0, (step - self.warmup_steps) / max(after, 1))
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        decay = after if self.decay_steps is None else self.decay_steps
        falling = step - (self.total_steps - decay)
        if falling <= 0 or decay == 0:
            return self.learning_rate
        return self.learning_rate * max(0.0, 1 - falling / max(decay - 1, 1))


def make_optimiser(parameters: Iterable[nn.Parameter], options: OptimiserOptions) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [parameter for parameter in parameters if parameter.requires_grad],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.epsilon,
        weight_decay=options.weight_decay,
        fused=True,
    )


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The Euclidean norm over all gradients."""
    return nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
