"""Credit: which tokens of a rollout train the policy, and how. Pure: ids and records in, samples out; no torch.

    rollout: branches (ids, sampled mask, log-probs by message) + record
      → `credit_rollout`: one sample a branch, rl_weights 0 on sampled labels; one label sample a target
      → `credit_group`:   advantages (reward − group mean); uniform groups dropped or kept for cross-entropy
      → `weigh_labels`:   ce_weights of a batch, summing to alpha × its label tokens
      → any trainer

A label sample is the branch's own ids up to the sampled label, then the label that the environment verified, then
the closing tag. Where the grammar has details, a label is all that stands between the tags. Labels are found in the
bytes of the sampled ids, never by re-tokenising text and searching. A label begins with the token that chooses it: a
tokenizer may join the end of the tag to some labels only (Qwen2.5: `>P` `ASS`, but `>` `ASSERT`), and then that `>` is
a part of the label that it leaves open (`LabelTokens`). What ends a label is no part of it: where the grammar has
details, that none follows is not trained. What cannot be found is counted (`Miss`), never raised, and never trained in
silence.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from itertools import accumulate, takewhile
from math import isfinite
from typing import TypeAlias

from glyph.protocol import Label, find_prediction, render_label
from glyph.records import PredictionTarget, RolloutRecord

CLOSING = "</PREDICTION>"


class CeNormalisation(str, Enum):
    """How the weight of cross-entropy is shared: per label token (published), per label, or class-balanced."""

    TOKEN = "token"
    LABEL = "label"
    CLASS = "class"


class LabelTokens(str, Enum):
    """Where the tokens of a label begin: at the first that depends on which label it is, or that overlaps its name."""

    CHOICE = "choice"
    OVERLAP = "overlap"


class LabelCredit(str, Enum):
    """Whether a sampled label earns RL credit (published: masked)."""

    MASKED = "masked"
    RL = "rl"


class UniformGroups(str, Enum):
    """What becomes of a group whose rollouts all have one reward (published: its label samples are lost too)."""

    DROP = "drop"
    KEEP_CE = "keep_ce"


@dataclass(frozen=True)
class CreditOptions:
    """`alpha` weighs cross-entropy (0: none). A label sample above `max_label_tokens` is not made.

    `prediction_reward` times the share of right predictions is added to a rollout's reward; the study has 0.

    Raises:
        ValueError: a negative alpha.
    """

    alpha: float = 0.1
    normalisation: CeNormalisation = CeNormalisation.TOKEN
    label_tokens: LabelTokens = LabelTokens.CHOICE
    label_credit: LabelCredit = LabelCredit.MASKED
    uniform_groups: UniformGroups = UniformGroups.DROP
    prediction_reward: float = 0.0
    max_label_tokens: int = 4096

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise ValueError(f"credit: alpha must be at least 0, got {self.alpha}")


@dataclass(frozen=True)
class Segment:
    """The tokens that one message adds to a branch. `logprobs` has one entry for each sampled token."""

    message_index: int
    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...] = ()


Branch = Sequence[Segment]


@dataclass(frozen=True)
class Codec:
    """What credit needs of a tokenizer: the bytes of an id, and the ids of a text without special tokens added."""

    token_bytes: Callable[[int], bytes]
    encode: Callable[[str], list[int]]


@dataclass(frozen=True)
class TrainingSample:
    """One sequence for the trainer; every stream has the length of `token_ids`.

    `mask` marks sampled tokens, `logprobs` are the sampler's (0.0 elsewhere). A token trains by RL where
    mask & rl_weights ≠ 0, by cross-entropy where ce_weights ≠ 0. `advantage` is 0.0 until `credit_group`.
    `label` is set on a label sample; its first `shared` tokens are those of its `branch`.
    """

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    rl_weights: tuple[float, ...]
    ce_weights: tuple[float, ...]
    advantage: float = 0.0
    label: Label | None = None
    branch: int = 0
    shared: int = 0


class Miss(str, Enum):
    """Why a target makes no label sample."""

    NO_SAMPLED_LABEL = "no_sampled_label"  # the turn gave none: there is no place for the verified one
    NO_TOKENS = "no_tokens"  # no branch holds the turn as sampled
    NOT_FOUND = "not_found"  # the sampled bytes do not say the label that was recorded: the turn earns no RL credit
    TOO_LONG = "too_long"


@dataclass(frozen=True)
class Credited:
    """The samples of one rollout, branches first, and what was missed."""

    samples: tuple[TrainingSample, ...]
    misses: Counter[Miss] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Turn:
    """A sampled prediction turn: where its tokens begin in the branch, their byte offsets, and its parts in bytes."""

    start: int
    offsets: tuple[int, ...]  # one more than there are tokens
    text: bytes
    label: tuple[int, int]
    choice: int  # where the tokens that make the label begin: at `label` or before
    overridable: tuple[int, int] | None  # from the decision line to the end of the call

    def tokens(self, span: tuple[int, int]) -> range:
        """Indices in the branch of the tokens that overlap a span of bytes."""
        first = bisect_left(self.offsets, span[0] + 1) - 1
        last = bisect_left(self.offsets, span[1])
        return range(self.start + first, self.start + last)


def credit_rollout(branches: Sequence[Branch], record: RolloutRecord, codec: Codec, options: CreditOptions) -> Credited:
    """The samples of a rollout, without advantages: one a branch that has sampled tokens, then one a target.

    A turn that stands in several branches, because the trace forked, is masked in each that holds it as sampled;
    its label sample continues the first of them.
    """
    misses: Counter[Miss] = Counter()
    found = [[_find_turn(branch, target, codec, options) for target in record.targets] for branch in branches]
    samples = [
        _branch_sample(branch, index, turns, record.targets, options)
        for index, (branch, turns) in enumerate(zip(branches, found, strict=True))
        if any(any(segment.sampled) for segment in branch)
    ]
    for number, target in enumerate(record.targets):
        held = [(i, turns[number]) for i, turns in enumerate(found) if isinstance(turns[number], _Turn)]
        if not held:
            misses[_reason([turns[number] for turns in found])] += 1
        elif options.alpha > 0:
            index, turn = held[0]
            assert isinstance(turn, _Turn)
            sample = _label_sample(branches[index], index, turn, target, codec, options.alpha)
            if len(sample.token_ids) > options.max_label_tokens:
                misses[Miss.TOO_LONG] += 1
            else:
                samples.append(sample)
    return Credited(tuple(samples), misses)


def _find_turn(branch: Branch, target: PredictionTarget, codec: Codec, options: CreditOptions) -> _Turn | Miss:
    start = 0
    for segment in branch:
        if segment.message_index == target.message_index and any(segment.sampled):
            break
        start += len(segment.token_ids)
    else:
        return Miss.NO_TOKENS
    pieces = [codec.token_bytes(i) for i, mine in zip(segment.token_ids, segment.sampled, strict=True) if mine]
    raw = b"".join(pieces)
    text = raw.decode("utf-8", "surrogateescape")
    spans = find_prediction(text)
    if spans is None or target.label is None:
        return Miss.NO_SAMPLED_LABEL if target.label is None else Miss.NOT_FOUND
    if text[slice(*spans.label)] != render_label(target.label, target.detail):
        return Miss.NOT_FOUND

    def in_bytes(at: int) -> int:
        return len(text[:at].encode("utf-8", "surrogateescape"))

    action = spans.decision or spans.call
    label = (in_bytes(spans.label[0]), in_bytes(spans.label[1]))
    by_choice = options.label_tokens is LabelTokens.CHOICE
    return _Turn(
        start=start + segment.sampled.index(True),
        offsets=tuple(accumulate(map(len, pieces), initial=0)),
        text=raw,
        label=label,
        choice=min(label[0], _choice_start(text[: spans.label[0]], codec)) if by_choice else label[0],
        overridable=(in_bytes(action[0]), len(raw)) if action else None,
    )


@lru_cache(maxsize=64)  # nearly all turns open alike
def _choice_start(opening: str, codec: Codec) -> int:
    """The byte of a turn up to which its tokens are the same whatever label follows the opening, as it is tokenised."""
    said = [codec.encode(f"{opening}{label.value}{CLOSING}") for label in Label]
    same = takewhile(lambda ids: len(set(ids)) == 1, zip(*said, strict=False))
    return sum(len(codec.token_bytes(ids[0])) for ids in same)


def _reason(found: Iterable[_Turn | Miss]) -> Miss:
    """The most telling of the reasons by branch."""
    reasons = [each for each in found if isinstance(each, Miss)]
    return next((each for each in reasons if each is not Miss.NO_TOKENS), Miss.NO_TOKENS)


def _branch_sample(
    branch: Branch,
    index: int,
    turns: Sequence[_Turn | Miss],
    targets: Sequence[PredictionTarget],
    options: CreditOptions,
) -> TrainingSample:
    token_ids = tuple(i for segment in branch for i in segment.token_ids)
    weights = [1.0] * len(token_ids)
    for turn, target in zip(turns, targets, strict=True):
        if turn is Miss.NOT_FOUND and options.label_credit is LabelCredit.MASKED:
            for position in _sampled_positions(branch, target.message_index):  # the label is somewhere in there
                weights[position] = 0.0
        if not isinstance(turn, _Turn):
            continue
        spans = [(turn.choice, turn.label[1])] if options.label_credit is LabelCredit.MASKED else []
        spans += [turn.overridable] if target.overridden and turn.overridable else []
        for position in (position for span in spans for position in turn.tokens(span)):
            weights[position] = 0.0
    logprobs: list[float] = []
    for segment in branch:
        own = iter(segment.logprobs)
        logprobs += [next(own, 0.0) if mine else 0.0 for mine in segment.sampled]
    return TrainingSample(
        token_ids=token_ids,
        mask=tuple(mine for segment in branch for mine in segment.sampled),
        logprobs=tuple(logprobs),
        rl_weights=tuple(weights),
        ce_weights=(0.0,) * len(token_ids),
        branch=index,
    )


def _sampled_positions(branch: Branch, message_index: int) -> list[int]:
    """Where the sampled tokens of a message stand in a branch."""
    starts = accumulate((len(segment.token_ids) for segment in branch), initial=0)
    found = [(start, segment) for start, segment in zip(starts, branch, strict=False)]
    return [
        start + i
        for start, segment in found
        if segment.message_index == message_index
        for i, mine in enumerate(segment.sampled)
        if mine
    ]


def _label_sample(
    branch: Branch, index: int, turn: _Turn, target: PredictionTarget, codec: Codec, alpha: float
) -> TrainingSample:
    """The branch's ids up to the label, then the verified label as it is tokenised there, then the closing tag.

    The ids of the whole text, canonically tokenised, are joined to the branch's at the last token boundary before
    the label's tokens that both have: a token that spans the tag's end and the label's beginning is replaced whole.
    """
    opening = turn.text[: turn.label[0]].decode("utf-8", "surrogateescape")
    verified = render_label(target.verified_label, target.verified_detail)
    canonical = codec.encode(f"{opening}{verified}{CLOSING}")
    ends = list(accumulate((len(codec.token_bytes(i)) for i in canonical), initial=0))
    kept = max(i for i, offset in enumerate(turn.offsets) if offset <= turn.choice and offset in ends)
    tail_start = ends.index(turn.offsets[kept])
    tail = canonical[tail_start:]
    before = [i for segment in branch for i in segment.token_ids][: turn.start + kept]
    label = (turn.choice, ends[-1] - len(CLOSING))
    on_label = [ends[i] < label[1] and ends[i + 1] > label[0] for i in range(tail_start, tail_start + len(tail))]
    length = len(before) + len(tail)
    return TrainingSample(
        token_ids=(*before, *tail),
        mask=(False,) * length,
        logprobs=(0.0,) * length,
        rl_weights=(0.0,) * length,
        ce_weights=(*(0.0 for _ in before), *(alpha if hit else 0.0 for hit in on_label)),
        label=target.verified_label,
        branch=index,
        shared=len(before),
    )


def prediction_bonus(record: RolloutRecord, options: CreditOptions) -> float:
    """What right predictions add to a rollout's reward; nothing in the study."""
    said = [target for target in record.targets if target.label is not None]
    if not said or not options.prediction_reward:
        return 0.0
    right = sum(target.label is target.verified_label for target in said)
    return options.prediction_reward * right / len(said)


def shaped_reward(record: RolloutRecord, options: CreditOptions) -> float:
    """The reward that advantages are made of: the record's, and what predictions add to it."""
    return record.reward + prediction_bonus(record, options)


def credit_group(
    group: Sequence[Credited], rewards: Sequence[float], options: CreditOptions
) -> list[tuple[TrainingSample, ...]]:
    """Advantages of a complete group: reward − group mean on its branches, 0.0 on its label samples.

    A group of one reward trains nothing by RL. It is dropped whole (a list of empty tuples), or its branches get
    rl_weights 0, so that they do not count in the RL loss's normaliser, and its label samples stay.

    Raises:
        ValueError: not one reward for each rollout.
    """
    if len(group) != len(rewards):
        raise ValueError(f"credit: {len(group)} rollouts and {len(rewards)} rewards: must be as many")
    if len(set(rewards)) <= 1:
        if options.uniform_groups is UniformGroups.DROP:
            return [() for _ in group]
        return [tuple(replace(s, rl_weights=(0.0,) * len(s.token_ids)) for s in each.samples) for each in group]
    mean = sum(rewards) / len(rewards)
    return [
        tuple(replace(s, advantage=0.0 if s.label else reward - mean) for s in each.samples)
        for each, reward in zip(group, rewards, strict=True)
    ]


CreditRule: TypeAlias = Callable[[Sequence[Credited], Sequence[float], CreditOptions], list[tuple[TrainingSample, ...]]]
"""A complete group and its rewards → the samples of each rollout that train, with their advantages."""
CREDIT_RULES: Mapping[str, CreditRule] = {"group_mean": credit_group}


def apply_rule(
    rule: CreditRule, group: Sequence[Credited], rewards: Sequence[float], options: CreditOptions
) -> list[tuple[TrainingSample, ...]]:
    """What a rule makes of a group; nothing of an empty one, which no rule sees.

    Raises: ValueError, naming the rule, for what no trainer could use.
    """
    samples = rule(group, rewards, options) if group else []
    name = f"{rule.__module__}:{getattr(rule, '__qualname__', rule)}"
    if len(samples) != len(group):
        raise ValueError(f"credit rule {name}: samples of {len(samples)} rollouts for a group of {len(group)}")
    for sample in (sample for shipped in samples for sample in shipped):
        streams = (sample.mask, sample.rl_weights, sample.ce_weights, sample.logprobs)
        if any(len(stream) != len(sample.token_ids) for stream in streams):
            raise ValueError(
                f"credit rule {name}: a sample's streams do not align with its {len(sample.token_ids)} tokens"
            )
        if not all(map(isfinite, (sample.advantage, *sample.rl_weights, *sample.ce_weights))):
            raise ValueError(f"credit rule {name}: an advantage or a weight is not a finite number")
    return samples


def trained_labels(samples: Iterable[TrainingSample]) -> list[tuple[Label, int]]:
    """The labels that samples train by cross-entropy, each with its number of tokens."""
    return [(sample.label, tokens) for sample in samples if sample.label and (tokens := _label_tokens(sample))]


def weigh_labels(
    samples: Sequence[TrainingSample], options: CreditOptions, among: Sequence[tuple[Label, int]] | None = None
) -> list[TrainingSample]:
    """The ce_weights of a batch under the chosen normalisation; their sum is alpha × label tokens in each case.

    TOKEN: alpha a token. LABEL: each label the same, however many tokens it has. CLASS: each class that occurs the
    same, however often it occurs. What occurs is counted in the batch, or in `among` (`trained_labels` of more
    samples, those of the batch with them) where a trainer sees its batch only in parts.
    """
    labelled = trained_labels(samples) if among is None else among
    counts: Counter[Label | None] = Counter(label for label, _ in labelled)
    total = sum(tokens for _, tokens in labelled)

    def weight(sample: TrainingSample) -> float:
        if options.normalisation is CeNormalisation.TOKEN:
            return options.alpha
        sharers = len(labelled)
        if options.normalisation is CeNormalisation.CLASS:
            sharers = len(counts) * counts[sample.label]
        return options.alpha * total / (sharers * _label_tokens(sample))

    def weighed(sample: TrainingSample) -> TrainingSample:
        each = weight(sample)
        return replace(sample, ce_weights=tuple(each if w else 0.0 for w in sample.ce_weights))

    return [weighed(sample) if sample.label and _label_tokens(sample) else sample for sample in samples]


def _label_tokens(sample: TrainingSample) -> int:
    return sum(weight != 0 for weight in sample.ce_weights)
