"""SFT: which tokens of a conversation train, what is refused, and that the loss falls on real traces."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from glyph.chat import render
from glyph.config import load_config
from glyph.local.training import sft
from glyph.local.training.sft import conversation_sample, faulty_patches, load_samples, repeatable_kernels
from glyph.local.training.trainer import TrainingError
from tests.tiny_model import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
MESSAGES = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "Write double(n)."},
    {"role": "assistant", "content": 'CALL python_test {"id": "1", "project_path": "."}'},
    {"role": "tool", "content": "RESULT 1:\nstatus: failed"},
    {"role": "assistant", "content": "FINAL: done"},
]


def trained_text(messages: list[dict[str, str]]) -> str:
    sample = conversation_sample(TOKENIZER, messages)
    return TOKENIZER.decode([i for i, w in zip(sample.token_ids, sample.ce_weights, strict=True) if w])


def test_what_the_assistant_samples_is_trained_and_nothing_else() -> None:
    assert trained_text(MESSAGES) == (
        'CALL python_test {"id": "1", "project_path": "."}\n<|im_end|>FINAL: done\n<|im_end|>'
    )
    sample = conversation_sample(TOKENIZER, MESSAGES)
    assert list(sample.token_ids) == render(TOKENIZER, MESSAGES).token_ids
    assert set(sample.ce_weights) == {0.0, 1.0}
    assert not any(sample.mask)
    assert not any(sample.rl_weights)


def test_a_special_token_in_what_the_assistant_says_does_not_move_the_end() -> None:
    odd = [*MESSAGES[:2], {"role": "assistant", "content": "say <|im_end|> twice"}]
    assert trained_text(odd) == "say <|im_end|> twice\n<|im_end|>"


def test_a_conversation_without_the_assistant_trains_nothing() -> None:
    assert not any(conversation_sample(TOKENIZER, MESSAGES[:2]).ce_weights)


def test_a_trace_that_is_too_long_is_refused_with_its_place(tiny_data: Path) -> None:
    config = load_config("sft", "mini", "b", [], ["sft.sequence_length=64"], data=str(tiny_data), model="m")
    with pytest.raises(ValueError, match=r"sft/arm_b/train.jsonl:1: \d+ tokens, sft.sequence_length is 64"):
        load_samples(config, TOKENIZER)


def test_data_that_are_not_there_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    config = load_config("sft", "mini", "a", data=str(tmp_path), model="m")
    with pytest.raises(ValueError, match=r"train.jsonl: No such file or directory; run python -m data.prepare"):
        load_samples(config, TOKENIZER)


def test_every_trace_of_the_data_is_a_sample(tiny_data: Path) -> None:
    long = ["sft.sequence_length=4096", "memory.tokens_per_micro_batch=4096"]
    config = load_config("sft", "mini", "b", [], long, data=str(tiny_data), model="m")
    samples = load_samples(config, TOKENIZER)
    rows = (tiny_data / "sft" / "arm_b" / "train.jsonl").read_text().splitlines()
    assert len(samples) == len(rows) == 2
    for sample, row in zip(samples, rows, strict=True):
        said = [m["content"] for m in json.loads(row)["messages"] if m["role"] == "assistant"]
        trained = [i for i, w in zip(sample.token_ids, sample.ce_weights, strict=True) if w]
        assert TOKENIZER.decode(trained) == "".join(f"{text}\n<|im_end|>" for text in said)


def test_faulty_patches_are_found_and_can_be_masked(tiny_data: Path) -> None:
    row = json.loads((tiny_data / "sft" / "arm_b" / "train.jsonl").read_text().splitlines()[1])
    assert [state["label"] for state in row["states"]] == ["ASSERTION_FAILURE", "PASS"]
    cuts = faulty_patches(row)
    assert cuts == {2: 0}  # the first patch of the shadow trace is faulty, its revision is right
    whole, cut = (conversation_sample(TOKENIZER, row["messages"], each) for each in (None, cuts))
    lost = [i for i, w, v in zip(whole.token_ids, whole.ce_weights, cut.ce_weights, strict=True) if w and not v]
    assert TOKENIZER.decode(lost) == row["messages"][2]["content"] + "\n<|im_end|>"


def test_a_turn_is_cut_within_at_a_token(tiny_data: Path) -> None:
    row = json.loads((tiny_data / "sft" / "arm_b" / "train.jsonl").read_text().splitlines()[1])
    revision = row["messages"][4]["content"]
    at = revision.index("CALL")
    sample = conversation_sample(TOKENIZER, row["messages"][:5], {4: at})
    said = [i for i, w in zip(sample.token_ids, sample.ce_weights, strict=True) if w]
    assert TOKENIZER.decode(said) == row["messages"][2]["content"] + "\n<|im_end|>" + revision[:at]


@repeatable_kernels()
def without_a_repeatable_kernel() -> None:
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    torch.zeros(3).put_(torch.tensor([1]), torch.tensor([1.0]))


def test_only_repeatable_kernels_are_taken_and_an_operation_without_one_is_named() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.raises(TrainingError, match=r"SFT: put_ does not have .*; sft\.repeatable=false takes the kernels"):
            without_a_repeatable_kernel()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        with pytest.raises(RuntimeError, match="another"), repeatable_kernels():
            raise RuntimeError("another")
    finally:
        torch.use_deterministic_algorithms(False)
    with repeatable_kernels(wanted=False):
        assert not torch.are_deterministic_algorithms_enabled()


def test_sft_trains_with_repeatable_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(sft, "load_workbench", lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()))
    for repeatable in (True, False):
        config = SimpleNamespace(sft=SimpleNamespace(repeatable=repeatable, steps=1))
        with pytest.raises(AttributeError):  # there is no workbench to go on with
            sft.train_sft(config, None, SimpleNamespace(waiting=lambda _: nullcontext()), None)  # type: ignore[arg-type]
    assert seen == [True, False]
