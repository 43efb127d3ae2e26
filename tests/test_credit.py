"""Credit on tokenisations worked out by hand, and on a real byte-level tokenizer."""

import random
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from glyph.codec import codec_of
from glyph.credit import (
    CeNormalisation,
    Codec,
    Credited,
    CreditOptions,
    LabelCredit,
    LabelTokens,
    Miss,
    Segment,
    TrainingSample,
    UniformGroups,
    credit_group,
    credit_rollout,
    shaped_reward,
    weigh_labels,
)
from glyph.protocol import Decision, Label, StopReason, find_prediction
from glyph.records import PredictionTarget, RolloutRecord
from tests.tiny_model import tiny_tokenizer

PASS, FAIL, RAISE = Label.PASS, Label.ASSERTION_FAILURE, Label.RUNTIME_ERROR
PIECES = [
    "<PREDICTION>", "</PREDICTION>", "PASS", "P", "A", "S", "ASSERTION", "_FAILURE", "RUNTIME", "_ERROR", "\n",
    "<DECISION>", "KEEP", "REVISE", "</DECISION>", "CALL t {}", "prose ", ">", "<PREDICTION", ">PASS", ">P", "ASS",
    "prompt", "<end>", ">RUNTIME", " 1", " 2", " [", "1", ", 'é'", "]", "2]", "SYNTAX", "TIMEOUT", "OTHER",
]  # fmt: skip
ID = {piece: i for i, piece in enumerate(PIECES)}


def greedy(pieces: list[str]) -> Codec:
    """A tokenizer that takes the longest of these pieces, again and again."""

    def encode(text: str) -> list[int]:
        ids = []
        while text:
            piece = max((p for p in pieces if text.startswith(p)), key=len)
            ids.append(ID[piece])
            text = text[len(piece) :]
        return ids

    return Codec(lambda i: PIECES[i].encode(), encode)


SEPARATE = greedy([p for p in PIECES if not p.startswith(">") and p != "<PREDICTION"])
MERGING = greedy([p for p in PIECES if p != "<PREDICTION>"])  # '>' merges with the label that follows


def ids(*pieces: str) -> tuple[int, ...]:
    return tuple(ID[piece] for piece in pieces)


def turn(index: int, *pieces: str) -> Segment:
    """An assistant message: one token of scaffold, then sampled tokens with log-probs -1, -2, …"""
    sampled = (False, *(True for _ in pieces))
    return Segment(index, (ID["prompt"], *ids(*pieces)), sampled, tuple(-1.0 - i for i in range(len(pieces))))


def given_message(index: int) -> Segment:
    return Segment(index, ids("prompt", "prose "), (False, False))


def target(index: int, label: Label | None, verified: Label, **more: object) -> PredictionTarget:
    base = PredictionTarget("1", index, "sha", verified, verified, label, Decision.KEEP, Decision.KEEP)
    return replace(base, **more)  # type: ignore[arg-type]


def record(*targets: PredictionTarget) -> RolloutRecord:
    return RolloutRecord("task", "b", "standard", StopReason.FINAL, targets=targets)


REST = ("</PREDICTION>", "\n", "<DECISION>", "KEEP", "</DECISION>", "\n", "CALL t {}", "<end>")


def rl_zero(sample: TrainingSample) -> list[str]:
    return [PIECES[i] for i, w in zip(sample.token_ids, sample.rl_weights, strict=True) if w == 0]


def on_ce(sample: TrainingSample) -> list[str]:
    return [PIECES[i] for i, w in zip(sample.token_ids, sample.ce_weights, strict=True) if w]


def test_the_label_is_masked_and_the_verified_one_is_trained() -> None:
    branch = [given_message(0), turn(1, "<PREDICTION>", "PASS", *REST)]
    done = credit_rollout([branch], record(target(1, PASS, FAIL)), SEPARATE, CreditOptions(alpha=0.5))
    rollout, label = done.samples
    assert rl_zero(rollout) == ["PASS"]
    assert rollout.mask == (False, False, False, *(True for _ in range(10)))
    assert rollout.logprobs == (0.0, 0.0, 0.0, *(-1.0 - i for i in range(10)))
    assert rollout.ce_weights == (0.0,) * 13
    assert label.token_ids == (
        *ids("prompt", "prose ", "prompt", "<PREDICTION>"),
        *ids("ASSERTION", "_FAILURE", "</PREDICTION>"),
    )
    assert label.ce_weights == (0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0)
    assert (label.rl_weights, label.mask, label.shared, label.label) == ((0.0,) * 7, (False,) * 7, 4, FAIL)
    assert done.misses == {}


def test_a_label_sampled_in_odd_pieces_is_masked_whole() -> None:
    branch = [turn(0, "<PREDICTION>", "P", "A", "S", "S", *REST)]
    done = credit_rollout([branch], record(target(0, PASS, PASS)), SEPARATE, CreditOptions())
    assert rl_zero(done.samples[0]) == ["P", "A", "S", "S"]
    assert on_ce(done.samples[1]) == ["PASS"]


def test_a_token_across_the_bracket_is_masked_and_replaced_whole() -> None:
    branch = [turn(0, "<PREDICTION", ">PASS", *REST)]
    done = credit_rollout([branch], record(target(0, PASS, RAISE)), MERGING, CreditOptions())
    rollout, label = done.samples
    assert rl_zero(rollout) == [">PASS"]
    assert label.token_ids == ids("prompt", "<PREDICTION", ">RUNTIME", "_ERROR", "</PREDICTION>")
    assert on_ce(label) == [">RUNTIME", "_ERROR"]
    assert label.shared == 2


def test_a_boundary_that_only_the_verified_label_merges_goes_back_one_token() -> None:
    branch = [turn(0, "<PREDICTION", ">", "ASSERTION", "_FAILURE", *REST)]
    done = credit_rollout([branch], record(target(0, FAIL, PASS)), MERGING, CreditOptions())
    rollout, label = done.samples
    assert rl_zero(rollout) == [">", "ASSERTION", "_FAILURE"]
    assert label.token_ids == ids("prompt", "<PREDICTION", ">PASS", "</PREDICTION>")


@pytest.mark.parametrize(
    ("label_tokens", "trained"),
    [(LabelTokens.CHOICE, [">", "ASSERTION", "_FAILURE"]), (LabelTokens.OVERLAP, ["ASSERTION", "_FAILURE"])],
)
@pytest.mark.parametrize("sampled", [(">PASS",), (">", "PASS"), (">P", "A", "S", "S")])
def test_the_token_that_chooses_the_label_is_a_part_of_it(
    label_tokens: LabelTokens, trained: list[str], sampled: tuple[str, ...]
) -> None:
    """`>` merges with PASS and RUNTIME here, as in Qwen2.5's tokenizer: without a merge it says that it is neither."""
    branch = [turn(0, "<PREDICTION", *sampled, *REST)]
    options = CreditOptions(label_tokens=label_tokens)
    rollout, label = credit_rollout([branch], record(target(0, PASS, FAIL)), MERGING, options).samples
    by_choice = label_tokens is LabelTokens.CHOICE
    assert rl_zero(rollout) == [piece for piece in sampled if by_choice or piece != ">"]
    assert label.token_ids == ids("prompt", "<PREDICTION", ">", "ASSERTION", "_FAILURE", "</PREDICTION>")
    assert on_ce(label) == trained
    assert label.shared == (3 if sampled[0] == ">" and not by_choice else 2)


@pytest.mark.parametrize("label_tokens", LabelTokens)
def test_a_label_that_no_token_spans_begins_with_its_name(label_tokens: LabelTokens) -> None:
    branch = [turn(0, "<PREDICTION>", "PASS", *REST)]
    options = CreditOptions(label_tokens=label_tokens)
    rollout, label = credit_rollout([branch], record(target(0, PASS, FAIL)), SEPARATE, options).samples
    assert (rl_zero(rollout), on_ce(label)) == (["PASS"], ["ASSERTION", "_FAILURE"])


def test_a_label_word_earlier_and_a_repeated_label_are_left_alone() -> None:
    branch = [
        turn(0, "prose ", "PASS", "<end>"),
        turn(1, "<PREDICTION>", "PASS", *REST[:-2], "PASS", "<end>"),
    ]
    done = credit_rollout([branch], record(target(1, PASS, PASS)), SEPARATE, CreditOptions())
    assert [i for i, w in enumerate(done.samples[0].rl_weights) if w == 0] == [6]


def test_a_rollout_with_two_predictions_makes_two_label_samples() -> None:
    branch = [turn(0, "<PREDICTION>", "PASS", *REST), turn(1, "<PREDICTION>", "PASS", *REST)]
    done = credit_rollout([branch], record(target(0, PASS, FAIL), target(1, PASS, PASS)), SEPARATE, CreditOptions())
    assert [sample.shared for sample in done.samples[1:]] == [2, 13]
    assert rl_zero(done.samples[0]) == ["PASS", "PASS"]


def test_a_fork_is_continued_where_the_turn_was_sampled() -> None:
    sampled = turn(1, "<PREDICTION>", "PASS", *REST)
    rendered = Segment(1, sampled.token_ids, (False,) * len(sampled.token_ids))
    branches = [[given_message(0), rendered, turn(2, "prose ")], [given_message(0), sampled]]
    done = credit_rollout(branches, record(target(1, PASS, FAIL)), SEPARATE, CreditOptions())
    first, second, label = done.samples
    assert (rl_zero(first), rl_zero(second), label.branch) == ([], ["PASS"], 1)


@pytest.mark.parametrize(
    ("branches", "said", "miss"),
    [
        ([[given_message(0)]], PASS, Miss.NO_TOKENS),
        ([[turn(0, "prose ", "PASS")]], None, Miss.NO_SAMPLED_LABEL),
        ([[turn(0, "<PREDICTION>", "RUNTIME", "_ERROR", *REST)]], PASS, Miss.NOT_FOUND),
        ([[turn(0, "prose ")]], PASS, Miss.NOT_FOUND),
        ([], PASS, Miss.NO_TOKENS),
    ],
    ids=["not sampled", "no label", "another label", "no tag", "no branch"],
)
def test_what_cannot_be_found_is_counted(branches: list, said: Label | None, miss: Miss) -> None:
    done = credit_rollout(branches, record(target(0, said, FAIL)), SEPARATE, CreditOptions())
    assert done.misses == {miss: 1}
    assert not [sample for sample in done.samples if sample.label]


def test_a_label_sample_that_is_too_long_is_counted() -> None:
    branch = [turn(0, "<PREDICTION>", "PASS", *REST)]
    done = credit_rollout([branch], record(target(0, PASS, FAIL)), SEPARATE, CreditOptions(max_label_tokens=4))
    assert (len(done.samples), done.misses) == (1, {Miss.TOO_LONG: 1})


def test_alpha_zero_masks_and_makes_no_label_sample() -> None:
    branch = [turn(0, "<PREDICTION>", "PASS", *REST)]
    done = credit_rollout([branch], record(target(0, PASS, FAIL)), SEPARATE, CreditOptions(alpha=0))
    assert [rl_zero(sample) for sample in done.samples] == [["PASS"]]


def test_label_credit_rl_leaves_the_label_trained() -> None:
    branch = [turn(0, "<PREDICTION>", "PASS", *REST)]
    options = CreditOptions(label_credit=LabelCredit.RL)
    assert rl_zero(credit_rollout([branch], record(target(0, PASS, FAIL)), SEPARATE, options).samples[0]) == []


def test_an_overridden_decision_and_its_call_earn_nothing() -> None:
    branch = [turn(0, "<PREDICTION>", "PASS", "</PREDICTION>", "\n", "<DECISION>", "REVISE", *REST[4:])]
    overridden = target(0, PASS, FAIL, decision=Decision.REVISE, overridden=True)
    done = credit_rollout([branch], record(overridden), SEPARATE, CreditOptions())
    assert rl_zero(done.samples[0]) == ["PASS", "<DECISION>", "REVISE", "</DECISION>", "\n", "CALL t {}", "<end>"]


SAID = ("<PREDICTION>", "ASSERTION", "_FAILURE", " 2")


def test_a_detail_is_masked_with_its_label_and_the_verified_one_is_trained() -> None:
    branch = [turn(0, *SAID, " [", "1", "]", *REST)]
    said = target(0, FAIL, FAIL, detail="2 [1]", verified_detail="1 [1, 'é']")
    rollout, label = credit_rollout([branch], record(said), SEPARATE, CreditOptions(alpha=0.5)).samples
    assert rl_zero(rollout) == ["ASSERTION", "_FAILURE", " 2", " [", "1", "]"]
    trained = ("ASSERTION", "_FAILURE", " 1", " [", "1", ", 'é'", "]")
    assert label.token_ids == (*ids("prompt", "<PREDICTION>"), *ids(*trained), *ids("</PREDICTION>"))
    assert label.ce_weights == (0.0, 0.0, *(0.5 for _ in trained), 0.0)
    assert (label.shared, label.label) == (2, FAIL)


def test_a_verified_pass_takes_the_place_of_label_and_detail() -> None:
    branch = [turn(0, *SAID, *REST)]
    _, label = credit_rollout([branch], record(target(0, FAIL, PASS, detail="2")), SEPARATE, CreditOptions()).samples
    assert label.token_ids == ids("prompt", "<PREDICTION>", "PASS", "</PREDICTION>")


def test_a_detail_that_is_not_the_recorded_one_is_counted() -> None:
    branch = [turn(0, *SAID, *REST)]
    for detail in (None, "1", "2 [1]"):
        done = credit_rollout([branch], record(target(0, FAIL, FAIL, detail=detail)), SEPARATE, CreditOptions())
        assert done.misses == {Miss.NOT_FOUND: 1}


def test_classes_are_labels_whatever_their_details_say() -> None:
    branches = [[turn(0, "<PREDICTION>", "PASS", *REST)] for _ in range(3)]
    verified = [target(0, PASS, FAIL, verified_detail="1"), target(0, PASS, FAIL, verified_detail="2 [1]")]
    records = [record(each) for each in (*verified, target(0, PASS, PASS))]
    options = CreditOptions(alpha=0.1, normalisation=CeNormalisation.CLASS)
    labels = [
        credit_rollout([branch], each, SEPARATE, options).samples[1]
        for branch, each in zip(branches, records, strict=True)
    ]
    # 3 + 6 + 1 = 10 tokens, so 1.0 to share: FAIL 0.5 on two labels of 3 and 6 tokens, PASS 0.5 on one token
    weights = [max(each.ce_weights) for each in weigh_labels(labels, options)]
    assert weights == pytest.approx([0.25 / 3, 0.25 / 6, 0.5])


def sample(label: Label | None, tokens: int = 1, weight: float = 0.1) -> TrainingSample:
    length = tokens + 1
    ce = (0.0, *(weight for _ in range(tokens))) if label else (0.0,) * length
    return TrainingSample((0,) * length, (True,) * length, (0.0,) * length, (1.0,) * length, ce, label=label)


def test_advantages_are_reward_minus_group_mean_and_labels_get_none() -> None:
    group = [Credited((sample(None), sample(FAIL))), Credited((sample(None),)), Credited((sample(None),))]
    done = credit_group(group, [1.0, 0.0, 0.5], CreditOptions())
    assert [[s.advantage for s in each] for each in done] == [[0.5, 0.0], [-0.5], [0.0]]


def test_a_uniform_group_is_dropped_or_keeps_its_labels() -> None:
    group = [Credited((sample(None), sample(FAIL))), Credited((sample(None),))]
    assert credit_group(group, [1.0, 1.0], CreditOptions()) == [(), ()]
    kept = credit_group(group, [1.0, 1.0], CreditOptions(uniform_groups=UniformGroups.KEEP_CE))
    assert [[s.rl_weights for s in each] for each in kept] == [[(0.0, 0.0)] * 2, [(0.0, 0.0)]]
    assert kept[0][1].ce_weights == (0.0, 0.1)


def test_a_group_needs_a_reward_for_each_rollout() -> None:
    with pytest.raises(ValueError, match="2 rollouts and 1 rewards"):
        credit_group([Credited(()), Credited(())], [1.0], CreditOptions())


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [
        (CeNormalisation.TOKEN, [0.1, 0.1, 0.1, 0.1]),
        # 10 tokens, 4 labels: each label has 0.25, whatever its length
        (CeNormalisation.LABEL, [0.25, 0.25, 0.25, 0.25 / 7]),
        # 2 classes: 0.5 each; PASS shares it among three labels of one token, FAIL has seven tokens
        (CeNormalisation.CLASS, [0.5 / 3, 0.5 / 3, 0.5 / 3, 0.5 / 7]),
    ],
)
def test_the_weight_of_a_batch_is_shared_as_asked(normalisation: CeNormalisation, expected: list[float]) -> None:
    batch = [sample(PASS), sample(PASS), sample(PASS), sample(FAIL, 7), sample(None)]
    done = weigh_labels(batch, CreditOptions(normalisation=normalisation))
    assert [max(s.ce_weights) for s in done] == pytest.approx([*expected, 0.0])
    assert sum(w for s in done for w in s.ce_weights) == pytest.approx(1.0)  # alpha × 10 tokens


def test_the_prediction_term_counts_what_was_said() -> None:
    said = record(target(0, PASS, PASS), target(1, PASS, FAIL), target(2, None, FAIL))
    assert shaped_reward(said, CreditOptions()) == 0.0
    assert shaped_reward(said, CreditOptions(prediction_reward=0.2)) == pytest.approx(0.1)
    assert shaped_reward(record(), CreditOptions(prediction_reward=0.2)) == 0.0


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(ValueError, match="alpha must be at least 0"):
        CreditOptions(alpha=-0.1)


def test_the_spans_of_a_turn() -> None:
    text = " \n<PREDICTION>PASS</PREDICTION>\n<DECISION>KEEP</DECISION>\nCALL t {}\n"
    spans = find_prediction(text)
    assert spans is not None
    assert spans.decision is not None
    assert spans.call is not None
    parts = [text[slice(*span)] for span in (spans.label, spans.decision, spans.call)]
    assert parts == ["PASS", "<DECISION>KEEP</DECISION>", "CALL t {}"]
    detailed = "<PREDICTION>ASSERTION_FAILURE 2 '</PREDICTION>'</PREDICTION>\nCALL t {}"
    spans = find_prediction(detailed)
    assert spans is not None
    assert detailed[slice(*spans.label)] == "ASSERTION_FAILURE 2 '</PREDICTION>'"
    for other in ("", "PASS", "<PREDICTION>pass</PREDICTION>", "x <PREDICTION>PASS</PREDICTION>"):
        assert find_prediction(other) is None


TOKENIZER = tiny_tokenizer()
CODEC = codec_of(TOKENIZER)


def test_a_tokenizer_whose_ids_have_no_bytes_of_their_own_is_refused() -> None:
    other = tiny_tokenizer()
    for decoder, named in ((decoders.Metaspace(), "Metaspace"), (None, "none")):
        other.backend_tokenizer.decoder = decoder
        with pytest.raises(ValueError, match=f"credit needs a byte-level BPE tokenizer, its decoder is .*{named}"):
            codec_of(other)


@given(st.text())
def test_the_bytes_of_a_real_tokenizer_add_up(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    normal = TOKENIZER.backend_tokenizer.normalizer
    expected = normal.normalize_str(text) if normal else text
    assert b"".join(map(CODEC.token_bytes, CODEC.encode(text))) == expected.encode()


@given(
    sampled=st.sampled_from(list(Label)),
    verified=st.sampled_from(list(Label)),
    before=st.text(alphabet="aé✓ \n", max_size=5),
    seed=st.integers(0, 10**6),
)
def test_on_any_tokenisation_the_label_is_masked_and_the_verified_text_comes_out(
    sampled: Label, verified: Label, before: str, seed: int
) -> None:
    """The turn is cut at random into pieces that are tokenised one by one: any sampling of the same text."""
    lead = "\n" if before.count("\n") % 2 else ""
    text = f"{lead}<PREDICTION>{sampled.value}</PREDICTION>\n<DECISION>KEEP</DECISION>\nCALL é✓"
    rng, pieces, at = random.Random(seed), [], 0
    while at < len(text):
        size = rng.randint(1, 9)
        pieces += CODEC.encode(text[at : at + size])
        at += size
    prompt = tuple(CODEC.encode(f"<|im_start|>user\n{before}<|im_end|>"))
    branch = [
        Segment(0, prompt, (False,) * len(prompt)),
        Segment(1, tuple(pieces), (True,) * len(pieces), tuple(-0.5 for _ in pieces)),
    ]
    rollout, label = credit_rollout([branch], record(target(1, sampled, verified)), CODEC, CreditOptions()).samples
    masked = b"".join(
        CODEC.token_bytes(i) for i, w in zip(rollout.token_ids, rollout.rl_weights, strict=True) if w == 0
    )
    assert sampled.value.encode() in masked
    said = b"".join(map(CODEC.token_bytes, label.token_ids[len(prompt) :]))
    assert said == f"{lead}<PREDICTION>{verified.value}</PREDICTION>".encode()
    assert label.token_ids[: label.shared] == rollout.token_ids[: label.shared]
    trained = b"".join(CODEC.token_bytes(i) for i, w in zip(label.token_ids, label.ce_weights, strict=True) if w)
    assert verified.value.encode() in trained
    assert len(trained) <= len(verified.value) + 14  # the label, and at most what one token at each end spans


def test_a_detail_that_the_tokenizer_normalises_ends_before_the_closing_tag() -> None:
    composed = replace(CODEC, encode=lambda text: CODEC.encode(unicodedata.normalize("NFC", text)))
    ids = composed.encode("<PREDICTION>PASS</PREDICTION>\n<DECISION>KEEP</DECISION>\nCALL")
    branch = [Segment(0, tuple(ids), (True,) * len(ids), (-0.5,) * len(ids))]
    verified = target(0, PASS, FAIL, verified_detail="2 'e\u0301e\u0301e\u0301e\u0301'")
    _, label = credit_rollout([branch], record(verified), composed, CreditOptions()).samples
    trained = [CODEC.token_bytes(i) for i, w in zip(label.token_ids, label.ce_weights, strict=True) if w]
    assert b"".join(trained).decode().lstrip(">") == "ASSERTION_FAILURE 2 'éééé'"


def test_a_turn_whose_label_is_not_found_earns_no_credit() -> None:
    branch = (given_message(0), turn(1, "<PREDICTION>", "RUNTIME", "_ERROR", "</PREDICTION>", "\n", "prose "))
    credited = credit_rollout([branch], record(target(1, PASS, FAIL)), SEPARATE, CreditOptions())
    assert credited.misses == {Miss.NOT_FOUND: 1}
    assert not any(w for w, m in zip(credited.samples[0].rl_weights, credited.samples[0].mask, strict=True) if m)


def test_a_label_sample_without_weight_is_left_as_it_is() -> None:
    sample = TrainingSample((1, 2), (False,) * 2, (0.0,) * 2, (0.0,) * 2, (0.0,) * 2, label=PASS)
    for normalisation in CeNormalisation:
        assert weigh_labels([sample], CreditOptions(normalisation=normalisation)) == [sample]
