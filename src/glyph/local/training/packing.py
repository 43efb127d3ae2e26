"""From training samples to micro-batches: rows of trees, their positions, their attention mask, what is trained.

    the samples of a rollout → `plant`: trees → `plan`: rows, grouped into micro-batches → `lay_out`: tensors

A *tree* is a branch sample (the trunk) with the label samples that continue it (the leaves, of which only the tokens
after the `shared` ones are computed). It has the gradient of its samples one by one, since a leaf sees its own tokens
and the shared ones at the positions that it would have alone, and the trunk sees no leaf:

    trunk   p0 p1 s2 s3 s4 s5     position 0 1 2 3 4 5
    leaf          └─ v3 v4        position     3 4       shared = 3: sees p0 p1 s2, and itself

Only what a trained token depends on is computed: a path ends before its last trained token, which is a target and not
an input, and a trunk reaches at least to where its last leaf begins. Nothing is ever truncated beyond that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glyph.credit import TrainingSample
from glyph.local.training.losses import Streams

IntArray = NDArray[np.int64]


class SampleError(ValueError):
    """A sample that cannot be trained as it is: it says which and why."""


@dataclass(frozen=True, eq=False)
class Path:
    """The part of a sample that is computed: inputs from position `start` on, and its trained tokens.

    `trained` are positions in the sample, `targets` the ids there. `streams` is [4, trained]: the sampler's log-prob,
    advantage, policy weight and ce weight. The token at position t is predicted by the input at t − 1.
    """

    start: int
    tokens: IntArray
    trained: IntArray
    targets: IntArray
    streams: NDArray[np.float64]

    def cut(self, end: int) -> "Path":
        """The same path without the inputs from position `end` on."""
        return Path(self.start, self.tokens[: max(end - self.start, 0)], self.trained, self.targets, self.streams)

    @property
    def last(self) -> int:
        """The position of the last trained token: no input from there on matters to this path. 0 if there is none."""
        return int(self.trained[-1]) if len(self.trained) else 0


@dataclass(frozen=True, eq=False)
class Tree:
    """A trunk and its leaves, cut to what is needed; made by `plant`."""

    trunk: Path
    leaves: tuple[Path, ...] = ()
    trunk_tokens: int = field(init=False)
    leaf_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trunk_tokens", len(self.trunk.tokens))
        object.__setattr__(self, "leaf_tokens", sum(len(leaf.tokens) for leaf in self.leaves))

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.trunk, *self.leaves)

    @property
    def policy_tokens(self) -> int:
        return sum(int(np.count_nonzero(path.streams[2])) for path in self.paths)

    @property
    def ce_tokens(self) -> int:
        return sum(int(np.count_nonzero(path.streams[3])) for path in self.paths)


def plant(samples: Iterable[TrainingSample], shared: bool = True) -> list[Tree]:
    """The trees of one rollout's samples, or of one conversation's; those that train nothing are left out.

    With `shared` false, or where its branch is not among the samples, a label sample is a tree of its own: the
    reference, which computes its prefix again.

    Raises:
        SampleError: two samples of one branch, a label sample that does not begin as its branch does, a trained first
            token, a number that is not finite.
    """
    samples = list(samples)
    trunks = {sample.branch: sample for sample in samples if sample.label is None}
    if len(trunks) != sum(sample.label is None for sample in samples):
        raise SampleError("two samples of one branch: `plant` takes the samples of one rollout at a time")
    leaves: dict[int, list[Path]] = {branch: [] for branch in trunks}
    alone: list[Path] = []
    for sample in samples:
        if sample.label is not None and shared and sample.branch in trunks:
            leaves[sample.branch].append(_leaf(sample, trunks[sample.branch]))
        elif sample.label is not None:
            alone.append(_path(sample, 0))
    trees = [_grow(_path(trunk, 0), leaves[branch]) for branch, trunk in trunks.items()]
    return [tree for tree in (*trees, *(_grow(path, []) for path in alone)) if tree.trunk_tokens]


def _path(sample: TrainingSample, start: int) -> Path:
    """A sample from position `start` on, up to its last trained token."""
    name = f"branch {sample.branch}" + (f", label {sample.label.value}" if sample.label else "")
    mask, rl, ce = (np.asarray(each) for each in (sample.mask, sample.rl_weights, sample.ce_weights))
    if not len(sample.token_ids) == len(mask) == len(rl) == len(ce) == len(sample.logprobs):
        raise SampleError(f"{name}: the streams and the {len(sample.token_ids)} tokens must align")
    policy = np.where(mask, rl, 0.0)
    trained = np.flatnonzero((policy != 0) | (ce != 0))
    if len(trained) and trained[0] < max(start, 1):
        what = "the first token is trained, but nothing predicts it" if not start else "a shared token is trained"
        raise SampleError(f"{name}: {what}")
    ids = np.asarray(sample.token_ids, np.int64)
    sampler = np.asarray(sample.logprobs, np.float64)[trained]
    streams = np.stack([sampler, np.full(len(trained), sample.advantage), policy[trained], ce[trained]])
    if not np.isfinite(streams).all():
        raise SampleError(f"{name}: a log-prob, an advantage or a weight of a trained token is not finite")
    return Path(start, ids[start:], trained, ids[trained], streams)


def _leaf(sample: TrainingSample, trunk: TrainingSample) -> Path:
    at = sample.shared
    if at < 1 or sample.token_ids[:at] != trunk.token_ids[:at]:
        raise SampleError(f"branch {trunk.branch}: its label sample does not begin with the branch's {at} tokens")
    return _path(sample, at)


def _grow(trunk: Path, leaves: Sequence[Path]) -> Tree:
    kept = tuple(leaf.cut(leaf.last) for leaf in leaves if len(leaf.trained))
    return Tree(trunk.cut(max([trunk.last, *(leaf.start for leaf in kept)])), kept)


Row = tuple[Tree, ...]


def plan(trees: Sequence[Tree], tokens_per_micro_batch: int, fill_rows: bool = False) -> list[list[Row]]:
    """Rows, longest first, grouped so that a micro-batch has at most `tokens_per_micro_batch` tokens with padding.

    A tree that is longer than that makes a micro-batch of its own. One tree a row, whose trunk needs no mask, or with
    `fill_rows` as many as fit into the length of the longest. The order depends on the lengths and on the order given.
    """
    ordered = sorted(trees, key=lambda tree: (-tree.trunk_tokens, -tree.leaf_tokens))
    rows = _fill(ordered) if fill_rows else [(tree,) for tree in ordered]
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: -_shape([row])[0]):
        joined = [*batches[-1], row] if batches else []
        if joined and len(joined) * sum(_shape(joined)) <= tokens_per_micro_batch:
            batches[-1] = joined
        else:
            batches.append([row])
    return batches


def _fill(ordered: Sequence[Tree]) -> list[Row]:
    """First fit, longest first."""
    capacity = max((tree.trunk_tokens + tree.leaf_tokens for tree in ordered), default=0)
    rows: list[list[Tree]] = []
    room: list[int] = []
    for tree in ordered:
        size = tree.trunk_tokens + tree.leaf_tokens
        fits = next((i for i, free in enumerate(room) if free >= size), None)
        if fits is None:
            rows.append([tree])
            room.append(capacity - size)
        else:
            rows[fits].append(tree)
            room[fits] -= size
    return [tuple(row) for row in rows]


def _shape(rows: Sequence[Row]) -> tuple[int, int]:
    """The columns that the trunks need, and after them those of the leaves."""
    return (
        max(sum(tree.trunk_tokens for tree in row) for row in rows),
        max(sum(tree.leaf_tokens for tree in row) for row in rows),
    )


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The tensors of one forward pass: the trunks of a row end to end, padding, then its leaves, padding.

    The trained tokens stand in the order of rows, in a row of trees, in a tree the trunk first.
    """

    token_ids: Tensor  # [rows, length]
    position_ids: Tensor  # [rows, length]
    mask: Tensor | None  # bool [rows, 1, queries, length] of the last `queries` columns; those before, or all: causal
    predictors: Tensor  # [trained] indices into rows × length: the input that predicts the trained token
    targets: Tensor  # [trained] ids
    streams: Streams  # of [trained]
    input_tokens: int  # without padding

    @property
    def padded_tokens(self) -> int:
        return self.token_ids.numel()


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a path stands in its row. `leaf` is 0 for a trunk, else counts the leaves of the row."""

    row: int
    path: Path
    column: int
    trunk_column: int
    tree: int
    leaf: int

    def predictors(self) -> IntArray:
        """The columns that predict the trained tokens; before a leaf's own tokens, the trunk's."""
        before = self.path.trained - 1
        own = before - self.path.start
        return np.where(own >= 0, self.column + own, self.trunk_column + before)


def _places(rows: Sequence[Row], leaves_from: int) -> list[_Place]:
    places = []
    for number, row in enumerate(rows):
        column, leaf_column, leaf = 0, leaves_from, 0
        for tree_number, tree in enumerate(row, start=1):
            places.append(_Place(number, tree.trunk, column, column, tree_number, 0))
            for path in tree.leaves:
                leaf += 1
                places.append(_Place(number, path, leaf_column, column, tree_number, leaf))
                leaf_column += len(path.tokens)
            column += tree.trunk_tokens
    return places


def lay_out(rows: Sequence[Row], device: torch.device | str = "cpu") -> MicroBatch:
    """The tensors of a micro-batch on a device."""
    trunks, leaves = _shape(rows)
    length = trunks + leaves
    places = _places(rows, trunks)
    token_ids, tree, leaf = (np.zeros((len(rows), length), np.int64) for _ in range(3))
    positions = np.tile(np.arange(length), (len(rows), 1))  # padding goes on counting: transformers reads a jump
    limit = np.zeros((len(rows), length), np.int64)  # as the next packed sequence
    for place in places:
        at = (place.row, slice(place.column, place.column + len(place.path.tokens)))
        token_ids[at], tree[at], leaf[at] = place.path.tokens, place.tree, place.leaf
        positions[at] = place.path.start + np.arange(len(place.path.tokens))
        limit[at] = place.path.start if place.leaf else positions[at] + 1
    queries = length if any(len(row) > 1 for row in rows) else leaves
    tensors = [torch.from_numpy(each).to(device) for each in (token_ids, positions, tree, leaf, limit)]
    streams = torch.from_numpy(np.concatenate([place.path.streams for place in places], axis=1))
    return MicroBatch(
        token_ids=tensors[0],
        position_ids=tensors[1],
        mask=_mask(tensors[1], tensors[2], tensors[3], tensors[4], queries) if queries else None,
        predictors=_gathered([place.row * length + place.predictors() for place in places], device),
        targets=_gathered([place.path.targets for place in places], device),
        streams=Streams(*streams.to(device, torch.float32)),
        input_tokens=sum(len(place.path.tokens) for place in places),
    )


def _gathered(parts: list[IntArray], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _mask(position: Tensor, tree: Tensor, leaf: Tensor, limit: Tensor, queries: int) -> Tensor:
    """What the last `queries` columns see; all of [rows, length] → bool [rows, 1, queries, length].

    The trunk of one's own tree below one's limit (the own position + 1, or what a leaf shares), the own leaf up to
    oneself, and oneself always, so that padding sees something.
    """
    column = torch.arange(tree.shape[1], device=tree.device)
    mine = [each[:, -queries:, None] for each in (tree, leaf, limit)]
    upto = column[None, None, :] <= column[None, -queries:, None]
    on_trunk = (tree[:, None] == mine[0]) & (leaf[:, None] == 0) & (position[:, None] < mine[2])
    on_leaf = (leaf[:, None] == mine[1]) & (mine[1] != 0) & upto
    itself = column[None, None, :] == column[None, -queries:, None]
    return (on_trunk | on_leaf | itself)[:, None]
