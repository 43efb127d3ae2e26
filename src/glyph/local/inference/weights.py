"""Weights from one model into another of the same shape, in place."""

import torch
from torch import nn


class WeightsError(ValueError):
    """The two models do not hold the same parameters."""


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer, cast to the target's dtype; nothing to do if both are the same module.

    The target's memory stays where it is, so that CUDA graphs and views of it see the new values.

    Raises: WeightsError where names or shapes differ; nothing is copied then.
    """
    if source is target:
        return
    given, wanted = source.state_dict(), target.state_dict()
    if given.keys() != wanted.keys():
        missing, unknown = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
        raise WeightsError(f"weights must align: missing {missing[:5]}, unknown {unknown[:5]}")
    for name, value in wanted.items():
        if given[name].shape != value.shape:
            got, expected = tuple(given[name].shape), tuple(value.shape)
            raise WeightsError(f"weights must align: {name} has shape {got}, expected {expected}")
    for name, value in wanted.items():
        value.copy_(given[name])
