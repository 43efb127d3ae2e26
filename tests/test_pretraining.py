"""The text of the mini base model, its tokenizer, its rows and its training loop."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from glyph.chat import check_parity
from glyph.local.inference.loading import load_model, load_tokenizer
from glyph.local.pretraining.corpus import GIVEN, PADDING, Order, build, encode, pack
from glyph.local.pretraining.probe import complete
from glyph.local.pretraining.tokenizer import VOCABULARY, protocol_pieces
from glyph.local.pretraining.training_loop import (
    GIVEN_WEIGHT,
    Pretraining,
    Recipe,
    batches,
    losses,
    new_model,
    save,
    weighted,
)
from glyph.protocol import Arm, Label
from glyph.tasks.demonstrations import sample_conversation
from glyph.tasks.mini import mini_tasks
from glyph.tasks.mini.generate import split_of
from glyph.tasks.mini.operations import Type
from glyph.tasks.mini.pretraining import KINDS, Text, write_chunk
from glyph.tasks.mini.pretraining_edits import conversation
from glyph.tasks.mini.pretraining_faults import Outcome, execute
from glyph.tasks.mini.pretraining_samples import admission, draw_sample
from glyph.tasks.mini.programs import PROBES, fingerprint

MODEL = Path(__file__).parents[1] / "models" / "mini"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(MODEL)


@cache
def chunk() -> tuple[Text, ...]:
    return tuple(write_chunk(0, samples=60))


@cache
def dealt_tasks() -> frozenset[str]:
    splits = mini_tasks()
    return frozenset(
        task.fingerprint for name in ("sft", "train", "validation", "test") for task in getattr(splits, name)
    )


def sources(text: str) -> Iterator[str]:
    """Every function that a document shows, plain or in a JSON string."""
    for string in re.findall(r'"((?:[^"\\]|\\.)*)"', text):
        if string.startswith("def "):
            yield json.loads(f'"{string}"')
    yield from re.findall(r"^def .*\n(?:    .*\n?)+", text, re.MULTILINE)


def behaviours(source: str) -> set[str]:
    name = source[len("def ") : source.index("(")]
    found = set()
    for kind in Type:
        outcomes = execute(source, name, PROBES[kind])
        found.add(fingerprint(kind, tuple(outcome.value if outcome else None for outcome in outcomes)))
    return found


def test_the_text_shows_train_programs_of_no_task() -> None:
    for text in chunk():
        assert split_of(text.fingerprint, 42) == "train"
        assert text.fingerprint not in dealt_tasks()


def test_no_code_in_the_text_does_what_a_task_asks() -> None:
    shown = {source for text in chunk() for source in sources(text.text)}
    assert len(shown) > 200
    assert [source for source in shown if behaviours(source) & dealt_tasks()] == []


def test_that_check_would_find_a_task() -> None:
    found = [bool(behaviours(task.gold) & dealt_tasks()) for task in mini_tasks().validation[:40]]
    assert sum(found) > 30  # the others accept probes that their operations do not


def test_loss_is_measured_on_validation_programs() -> None:
    assert {split_of(text.fingerprint, 42) for text in write_chunk(0, name="evaluation", samples=3)} == {"validation"}


def test_a_chunk_is_a_function_of_seed_name_and_number() -> None:
    first = [text.text for text in write_chunk(3, samples=3)]
    assert first == [text.text for text in write_chunk(3, samples=3)]
    for other in (write_chunk(4, samples=3), write_chunk(3, 7, samples=3), write_chunk(3, name="tokenizer", samples=3)):
        assert first != [text.text for text in other]


def test_every_kind_of_document_occurs() -> None:
    assert {text.kind for text in chunk()} == set(KINDS)


@pytest.mark.parametrize("word", ["CALL", "RESULT", "PREDICTION", "DECISION", "FINAL", "solution.py", "apply_patch"])
def test_the_text_has_no_protocol(word: str) -> None:
    assert not any(word in text.text for text in chunk())


def test_the_asked_edits_of_a_conversation_lead_to_code_that_passes() -> None:
    rng, admits = Random(5), admission()
    checked = repaired = 0
    while checked < 40:
        sample = draw_sample(admits, rng)
        document = conversation(sample, rng)
        if document is None:
            continue
        text = "".join(part.text for part in document)
        current = re.findall(r" now holds:\n(.*)\n", text)[0]
        edits = [part for part in document if re.match(r'\{"(id|n)": "\d+", "(path|edit|file)"', part.text)]
        for part in edits:
            old, new = list(json.loads(part.text.split("\n")[0]).values())[2:]
            assert current.count(old) == 1
            current = current.replace(old, new)
        outcomes = execute(current, sample.name, sample.given)
        assert outcomes == [Outcome(value) for value in sample.expected]
        assert [part.asked for part in edits] == [False] * (len(edits) - 1) + [True]
        checked, repaired = checked + 1, repaired + (len(edits) > 1)
    assert repaired > 10


def test_faults_fail_as_they_are_said_to() -> None:
    rng, admits = Random(6), admission()
    faults = [(sample, sample.fault(rng)) for sample in (draw_sample(admits, rng) for _ in range(40))]
    found = [(sample, fault) for sample, fault in faults if fault]
    assert len(found) > 30
    for sample, fault in found:
        assert tuple(execute(fault.source, sample.name, sample.given)) == fault.outcomes
        assert [outcome.value for outcome in fault.outcomes] != sample.expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return n + 1", Outcome(4)),
        ("return m", Outcome(error="NameError")),
        ("return n +", Outcome(error="SyntaxError")),
        ("while True:\n        n += 1", None),
        ("return len(list(range(n * 10**9)))", None),
        ("return n * 10**9", None),
        ("return n / 2", None),
        ("return open('x')", Outcome(error="NameError")),
    ],
)
def test_execution_is_bounded(body: str, expected: Outcome | None) -> None:
    assert execute(f"def f(n):\n    {body}", "f", [3]) == [expected]


def test_rows_hold_whole_documents() -> None:
    rows = pack([[1, 2, 3], [4, 5, 6, 7], [8], [9, 10]], 5)
    assert rows.tolist() == [[1, 2, 3, 9, 10], [4, 5, 6, 7, 8]]
    assert pack([[1], [2, 3, 4]], 3).tolist() == [[1, PADDING, PADDING], [2, 3, 4]]


def test_the_number_of_workers_does_not_matter(tokenizer: Any) -> None:
    order = Order(tokenizer, 512, 42, "train", samples=4)
    one, two = build(order, 3, workers=1), build(order, 3, workers=2)
    assert np.array_equal(one.rows, two.rows)
    assert one.facts() == two.facts()
    assert one.facts()["chunks"] == 3


def test_parts_are_tokenised_as_the_whole_is(tokenizer: Any) -> None:
    for text, ids in zip(chunk(), encode(tokenizer, chunk()), strict=True):
        whole = tokenizer.encode(text.text, add_special_tokens=False)
        assert [i % GIVEN for i in ids[:-1]] == whole
        assert tokenizer.decode(whole) == text.text


def test_no_piece_of_the_protocol_occurs_in_the_text(tokenizer: Any) -> None:
    pieces = {tokenizer.convert_tokens_to_ids(piece) for piece in protocol_pieces() if len(piece) > 8}
    assert len(pieces) > 40
    assert not pieces & {i % GIVEN for ids in encode(tokenizer, chunk()) for i in ids}


def test_the_tokenizer_cuts_labels_digits_and_line_breaks(tokenizer: Any) -> None:
    def cut(text: str) -> list[str]:
        return [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert len(tokenizer) == VOCABULARY
    assert cut("<PREDICTION>PASS</PREDICTION>") == ["<PREDICTION>", "P", "ASS", "</PREDICTION>"]
    assert cut(Label.ASSERTION_FAILURE.value) == ["ASSERT", "ION", "_FAILURE"]
    assert all(len(cut(label.value)) > 1 for label in Label)
    assert cut("1234") == ["1", "2", "3", "4"]
    code = "def total(xs):\n    kept = []\n    for x in xs:\n        kept.append(x)\n    return kept"
    plain, quoted = cut(code), cut(json.dumps(code))
    assert quoted[0] == '"'
    assert quoted[-1] == '"'
    assert [piece.replace("\\n", "\n") for piece in quoted[1:-1]] == plain


@pytest.mark.parametrize("arm", Arm)
def test_the_tokenizer_carries_the_chat_format(tokenizer: Any, arm: Arm) -> None:
    assert check_parity(tokenizer, sample_conversation(arm)) < 420


def test_the_loss_is_the_weighted_cross_entropy(tokenizer: Any) -> None:
    model = new_model("tiny", tokenizer, 0)
    rows = torch.tensor([[5 + GIVEN, 6 + GIVEN, 7, 8, PADDING], [9, 10, 11 + GIVEN, PADDING, PADDING]])
    sums, counts = losses(model, rows)
    first = functional.log_softmax(model(torch.tensor([[5, 6, 7, 8]])).logits[0].float(), -1)
    second = functional.log_softmax(model(torch.tensor([[9, 10, 11]])).logits[0].float(), -1)
    given = -(first[0, 6] + second[1, 11])
    asked = -(first[1, 7] + first[2, 8] + second[0, 10])
    assert counts.tolist() == [2, 3]
    torch.testing.assert_close(sums, torch.stack([given, asked]))
    expected = (GIVEN_WEIGHT * given + asked) / (2 * GIVEN_WEIGHT + 3)
    torch.testing.assert_close(weighted(sums, counts), expected)


def test_an_epoch_sees_each_row_once() -> None:
    rows = torch.arange(6)[:, None]
    source = batches(rows, 2, seed=1)
    epochs = [[next(source).flatten().tolist() for _ in range(3)] for _ in range(2)]
    assert [sorted(each for part in epoch for each in part) for epoch in epochs] == [list(range(6))] * 2
    assert epochs[0] != epochs[1]


def test_the_learning_rate_rises_and_falls_to_zero(tokenizer: Any) -> None:
    rows = torch.full((4, 10), 5)
    recipe = Recipe(size="tiny", tokens=4_000, batch=4, learning_rate=1.0, warm_up=10)
    run = Pretraining(new_model("tiny", tokenizer, 0), rows, rows, recipe, "cpu")
    rates = []
    for run.step in (0, 9, 50, 99):
        rates.append(round(run.learning_rate(), 4))
    assert run.steps == 100
    assert rates == [0.1, 0.91, 0.5, 0.01]


def test_a_run_learns_and_what_it_saves_loads(tokenizer: Any, tmp_path: Path) -> None:
    corpus = build(Order(tokenizer, 256, 42, "train", samples=8), 1)
    rows = torch.from_numpy(corpus.rows.astype(np.int32))
    recipe = Recipe(size="tiny", tokens=256 * 8 * 20, batch=8, learning_rate=1e-2)
    run = Pretraining(new_model("tiny", tokenizer, 0), rows, rows[:8], recipe, "cpu")
    run.run()
    save(run, tokenizer, tmp_path, corpus.facts(), torch.bfloat16)
    before, after = run.curves.evaluation[0]["asked"], run.curves.evaluation[-1]["asked"]
    assert before == pytest.approx(np.log(VOCABULARY), abs=0.2)
    assert after < before - 1.5
    loaded = load_model(tmp_path, "cpu")
    assert len(complete(loaded, load_tokenizer(tmp_path), ["# a", "# the other"], most_tokens=3)) == 2
    facts = json.loads((tmp_path / "pretraining.json").read_text())
    assert facts["recipe"]["seed"] == 42
    assert facts["corpus"]["documents"] == sum(corpus.documents.values())
    assert json.loads((tmp_path / "curves.json").read_text())["training"][-1]["step"] == 20
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")


def test_a_run_ends_at_its_time(tokenizer: Any) -> None:
    rows = torch.full((4, 10), 5)
    recipe = Recipe(size="tiny", tokens=10**9, batch=4, seconds=3)
    run = Pretraining(new_model("tiny", tokenizer, 0), rows, rows, recipe, "cpu")
    run.run()
    assert 10 <= run.step == run.steps < run.wanted
    assert run.curves.evaluation[-1]["step"] == run.step
