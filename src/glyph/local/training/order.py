"""The order in which training visits its data: a function of the seed and the step alone, without a cursor."""

import numpy as np


def batch_indices(items: int, batch_size: int, step: int, seed: int) -> list[int]:
    """The indices of step `step` (from 1): a window of the epochs laid end to end, each shuffled anew.

    Raises:
        ValueError: there is nothing to draw from.
    """
    if items < 1:
        raise ValueError("there is nothing to draw a batch from")
    first = (step - 1) * batch_size
    places = range(first, first + batch_size)
    epochs = {epoch: _shuffled(items, epoch, seed) for epoch in {place // items for place in places}}
    return [int(epochs[place // items][place % items]) for place in places]


def _shuffled(items: int, epoch: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(items)
