"""Packing: what is computed, where it stands, what it sees; by hand on small trees, by definition on random ones."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glyph.credit import TrainingSample
from glyph.local.training.packing import MicroBatch, SampleError, Tree, lay_out, plan, plant
from glyph.protocol import Label


def rollout(*token_ids: int, trained: tuple[int, ...] = (), branch: int = 0) -> TrainingSample:
    """Trained by policy at these positions; the sampler's log-prob of position t is −t."""
    length = len(token_ids)
    mask = tuple(t in trained for t in range(length))
    logprobs = tuple(-float(t) if mine else 0.0 for t, mine in enumerate(mask))
    return TrainingSample(token_ids, mask, logprobs, (1.0,) * length, (0.0,) * length, 0.5, branch=branch)


def label(trunk: TrainingSample, shared: int, *tail: int, on: int = 1) -> TrainingSample:
    """The trunk's first tokens, then a tail whose first `on` tokens are trained with weight 0.25, then its closing."""
    ids = (*trunk.token_ids[:shared], *tail)
    zeros = (0.0,) * len(ids)
    ce = (*zeros[:shared], *(0.25,) * on, *zeros[shared + on :])
    mask = (False,) * len(ids)
    return TrainingSample(ids, mask, zeros, zeros, ce, label=Label.PASS, branch=trunk.branch, shared=shared)


TRUNK = rollout(10, 11, 12, 13, 14, 15, trained=(3, 5))


def sees(batch: MicroBatch) -> list[list[str]]:
    """By row, by query that the mask has, `x` where it sees."""
    assert batch.mask is not None
    return [["".join("x" if seen else "." for seen in query) for query in row[0]] for row in batch.mask.tolist()]


def test_a_tree_by_hand() -> None:
    trees = plant([TRUNK, label(TRUNK, 3, 20, 21, 22, on=2), label(TRUNK, 4, 30, 31, 32, on=2)])
    batch = lay_out([tuple(trees)])
    # the last trained token of a path is a target only: trunk 10..14, leaves 20 and 30
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14, 20, 30]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 4]]
    assert sees(batch) == [["xxx..x.", "xxxx..x"]]
    assert batch.targets.tolist() == [13, 15, 20, 21, 30, 31]
    assert batch.predictors.tolist() == [2, 4, 2, 5, 3, 6]
    assert batch.streams.policy_weights.tolist() == [1, 1, 0, 0, 0, 0]
    assert batch.streams.ce_weights.tolist() == [0, 0, 0.25, 0.25, 0.25, 0.25]
    assert batch.streams.sampler_logprobs.tolist() == [-3, -5, 0, 0, 0, 0]
    assert batch.streams.advantages.tolist() == [0.5, 0.5, 0, 0, 0, 0]
    assert (batch.input_tokens, batch.padded_tokens) == (7, 7)


def test_a_label_of_one_token_costs_nothing() -> None:
    (tree,) = plant([TRUNK, label(TRUNK, 3, 20, 21)])
    batch = lay_out([(tree,)])
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14]]
    assert batch.mask is None
    assert (batch.targets.tolist(), batch.predictors.tolist()) == ([13, 15, 20], [2, 4, 2])


def test_rows_are_padded_and_leaves_begin_in_one_column() -> None:
    short = rollout(40, 41, 42, trained=(2,), branch=1)
    long, lone = plant([TRUNK, label(TRUNK, 3, 20, 21, 22, on=3), short])
    batch = lay_out([(long,), (lone,)])
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14, 20, 21], [40, 41, 0, 0, 0, 0, 0]]
    assert sees(batch) == [["xxx..x.", "xxx..xx"], [".....x.", "......x"]]  # padding sees itself, or softmax has no sum
    assert batch.predictors.tolist() == [2, 4, 2, 5, 6, 7 + 1]
    assert (batch.input_tokens, batch.padded_tokens) == (9, 14)


def test_trees_of_one_row_do_not_see_each_other() -> None:
    other = rollout(40, 41, 42, trained=(2,), branch=1)
    trees = plant([TRUNK, label(TRUNK, 3, 20, 21, on=2), other, label(other, 2, 50, 51, on=2)])
    batch = lay_out([tuple(trees)])
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14, 40, 41, 20, 50]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 3, 2]]
    assert sees(batch) == [
        [
            "x........",
            "xx.......",
            "xxx......",
            "xxxx.....",
            "xxxxx....",
            ".....x...",
            ".....xx..",
            "xxx....x.",
            ".....xx.x",
        ]
    ]
    assert batch.predictors.tolist() == [2, 4, 2, 7, 6, 6, 8]


def test_positions_of_plain_rows_go_on_into_the_padding() -> None:
    """transformers takes a position that does not follow on for the beginning of another packed sequence."""
    batch = lay_out([(tree,) for tree in plant([TRUNK, rollout(40, 41, 42, trained=(2,), branch=1)])])
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_what_trains_nothing_is_left_out() -> None:
    idle = rollout(10, 11, 12, 13, 14, 15)
    assert plant([idle]) == []
    assert plant([idle, replace(label(idle, 3, 20, 21), ce_weights=(0.0,) * 5)]) == []
    (tree,) = plant([idle, label(idle, 2, 20, 21), label(idle, 4, 20, 21, 22, on=2)])
    assert tree.trunk.tokens.tolist() == [10, 11, 12, 13]  # up to where the last leaf begins
    assert (tree.policy_tokens, tree.ce_tokens) == (0, 3)


def test_separate_trees_have_the_same_counts_and_more_tokens() -> None:
    samples = [TRUNK, label(TRUNK, 3, 20, 21, 22, on=2), label(TRUNK, 4, 30, 31, 32, on=2)]
    together, apart = plant(samples), plant(samples, shared=False)
    assert [sum(t.policy_tokens for t in trees) for trees in (together, apart)] == [2, 2]
    assert [sum(t.ce_tokens for t in trees) for trees in (together, apart)] == [4, 4]
    assert [sum(t.trunk_tokens + t.leaf_tokens for t in trees) for trees in (together, apart)] == [7, 5 + 4 + 5]
    orphan = plant(samples[1:2])
    assert [path.tokens.tolist() for tree in orphan for path in tree.paths] == [[10, 11, 12, 20]]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([TRUNK, TRUNK], "two samples of one branch"),
        ([TRUNK, replace(label(TRUNK, 3, 20, 21), token_ids=(10, 99, 12, 20, 21))], "does not begin with"),
        ([TRUNK, replace(label(TRUNK, 3, 20, 21), shared=0)], "does not begin with"),
        ([TRUNK, replace(label(TRUNK, 3, 20, 21), ce_weights=(0.0, 0.1, 0.0, 0.1, 0.0))], "a shared token is trained"),
        ([rollout(10, 11, trained=(0,))], "nothing predicts it"),
        ([replace(TRUNK, logprobs=(0.0, 0.0, 0.0, float("nan"), 0.0, 0.0))], "not finite"),
        ([replace(TRUNK, advantage=float("inf"))], "not finite"),
        ([replace(TRUNK, ce_weights=(0.0,))], "must align"),
    ],
    ids=["twice", "another prefix", "nothing shared", "shared trained", "first trained", "nan", "inf", "lengths"],
)  # fmt: skip
def test_a_sample_that_cannot_be_trained_is_refused(samples: list[TrainingSample], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        plant(samples)


def trees_of(*lengths: int) -> list[Tree]:
    """Trees that compute so many tokens: the last of a path is a target."""
    return [plant([rollout(*range(n + 1), trained=(n,))])[0] for n in lengths]


def lengths(batches: list) -> list[list[list[int]]]:
    return [[[tree.trunk_tokens for tree in row] for row in batch] for batch in batches]


def test_rows_are_sorted_and_fill_a_micro_batch_with_their_padding() -> None:
    # 9 alone is above 8; 4 and 3 are padded to 2 × 4; 2, 2, 2 make 6, another 2 makes 8
    assert lengths(plan(trees_of(2, 9, 4, 2, 3, 2, 2), 8)) == [[[9]], [[4], [3]], [[2], [2], [2], [2]]]


def test_short_trees_share_rows_as_long_as_the_longest() -> None:
    assert lengths(plan(trees_of(2, 9, 4, 2, 3, 2, 2), 18, fill_rows=True)) == [[[9], [4, 3, 2]], [[2, 2, 2]]]
    assert plan([], 8, fill_rows=True) == plan([], 8) == []


@st.composite
def families(draw: st.DrawFn) -> list[list[TrainingSample]]:
    """Rollouts of random length, ids and trained tokens, with up to three labels each."""
    rollouts = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(2, 12))
        trained = tuple(draw(st.sets(st.integers(1, length - 1))))
        trunk = rollout(*(100 * number + t for t in range(length)), trained=trained)
        labels = []
        for at in draw(st.lists(st.integers(1, length), max_size=3)):
            tail = draw(st.integers(1, 4))
            on = draw(st.integers(0, tail))
            labels.append(label(trunk, at, *(1000 + 10 * len(labels) + k for k in range(tail)), on=on))
        rollouts.append([trunk, *labels])
    return rollouts


@given(families(), st.integers(4, 60), st.booleans())
def test_every_trained_token_sees_its_own_path_and_nothing_else(
    rollouts: list[list[TrainingSample]], budget: int, fill_rows: bool
) -> None:
    """What predicts a token sees, in order of position, just the ids before it in its sample, and so does each seen."""
    expected = sorted(
        (sample.token_ids[: t + 1], policy, sample.ce_weights[t])
        for samples in rollouts
        for sample in samples
        for t, mine in enumerate(sample.mask)
        if (policy := float(mine)) or sample.ce_weights[t]
    )
    found = []
    for rows in plan([tree for samples in rollouts for tree in plant(samples)], budget, fill_rows):
        batch = lay_out(rows)
        n, length = batch.token_ids.shape
        assert n == 1 or batch.padded_tokens <= budget
        mask = torch.ones(length, length, dtype=torch.bool).tril().expand(n, 1, -1, -1).clone()
        if batch.mask is not None:
            mask[:, :, -batch.mask.shape[2] :] = batch.mask
        for i, predictor in enumerate(batch.predictors.tolist()):
            row, column = divmod(predictor, length)
            seen = mask[row, 0, column].nonzero()[:, 0]
            seen = seen[batch.position_ids[row, seen].argsort()]
            assert batch.position_ids[row, seen].tolist() == list(range(len(seen)))
            views = mask[row, 0, seen][:, seen]
            assert torch.equal(views, torch.ones_like(views).tril())
            assert torch.equal(mask[row, 0, seen].sum(1), views.sum(1))
            ids = (*batch.token_ids[row, seen].tolist(), int(batch.targets[i]))
            found.append((ids, float(batch.streams.policy_weights[i]), float(batch.streams.ce_weights[i])))
    assert sorted(found) == expected
