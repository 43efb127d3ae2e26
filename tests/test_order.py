"""The order of training data: each epoch a permutation, the same for the same seed, whatever step is asked for."""

import pytest

from glyph.local.training.order import batch_indices


def test_epochs_are_permutations_laid_end_to_end() -> None:
    visited = [i for step in range(1, 8) for i in batch_indices(7, 3, step, seed=5)]
    assert sorted(visited[:7]) == sorted(visited[7:14]) == sorted(visited[14:21]) == list(range(7))
    assert visited[:7] != visited[7:14]


def test_a_step_needs_no_step_before_it() -> None:
    assert batch_indices(7, 3, 4, seed=5) == [i for step in range(1, 5) for i in batch_indices(7, 3, step, seed=5)][9:]
    assert batch_indices(7, 3, 4, seed=5) != batch_indices(7, 3, 4, seed=6)


def test_a_batch_larger_than_an_epoch_visits_all_before_any_twice() -> None:
    batch = batch_indices(3, 8, 1, seed=0)
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]
    assert len(set(batch[6:])) == 2


def test_nothing_to_draw_from_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        batch_indices(0, 3, 1, seed=0)
