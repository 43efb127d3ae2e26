"""Checkpoints: exact, whole at any kill, checked by digest, and never the last good one lost."""

import errno
import json
import logging
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch.optim.lr_scheduler import LambdaLR

from glyph.chat import TURN_END, TokenizerError, chat_template, token_id
from glyph.files import write_atomically
from glyph.local.inference.loading import load_model, load_tokenizer
from glyph.local.runs import checkpoints as module
from glyph.local.runs.checkpoints import (
    CheckpointError,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    model_digest,
    restore_model,
    save_checkpoint,
)
from glyph.local.runs.durable import FileLock
from tests.disk import file_size_limit
from tests.tiny_model import Qwen3, tiny_model, tiny_tokenizer

KILLS = 24
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "training.pt",
    "state.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


def save(root: Path, step: int, keep_last: int = 0, **changes: Any) -> Path:
    """A checkpoint of the tiny model with the step in every part."""
    given: dict[str, Any] = {
        "model": changes.pop("model", None) or tiny_model(),
        "tokenizer": tiny_tokenizer(),
        "training": {"position": torch.tensor(step)},
        "state": {"cursor": step},
    }
    return save_checkpoint(root, step, **{**given, **changes}, keep_last=keep_last)


def damage(path: Path, offset: int = -10) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def hidden(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob(".step_*"))


class Training:
    """Model, optimiser and schedule on random data from torch's generator: the state that a resume must restore."""

    def __init__(self, seed: int) -> None:
        self.model = tiny_model(seed=seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.1)
        self.schedule = LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

    def steps(self, count: int) -> None:
        for _ in range(count):
            ids = torch.randint(0, 400, (2, 12))
            self.optimizer.zero_grad()
            self.model(input_ids=ids, labels=ids).loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def state(self) -> dict[str, Any]:
        schedule = {name: value for name, value in self.schedule.state_dict().items() if name != "lr_lambdas"}
        return {"optimizer": self.optimizer.state_dict(), "schedule": schedule, "torch": torch.get_rng_state()}

    def load(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict({**state["schedule"], "lr_lambdas": [None]})
        torch.set_rng_state(state["torch"])


def moments(training: Training) -> list[torch.Tensor]:
    states = training.optimizer.state_dict()["state"].values()
    return [state[name] for state in states for name in ("step", "exp_avg", "exp_avg_sq")]


def test_a_resumed_training_has_exactly_the_numbers_of_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = Training(seed=1)
    unbroken.steps(2)
    folder = save(tmp_path, 2, model=unbroken.model, training=unbroken.state())
    unbroken.steps(3)

    resumed = Training(seed=2)
    torch.manual_seed(99)
    restore_model(folder, resumed.model)
    resumed.load(load_checkpoint(folder).training)
    resumed.steps(3)

    assert all(map(torch.equal, resumed.model.parameters(), unbroken.model.parameters()))
    assert all(map(torch.equal, moments(resumed), moments(unbroken)))
    assert len(moments(resumed)) == 3 * len(list(resumed.model.parameters()))
    assert resumed.schedule.get_last_lr() == unbroken.schedule.get_last_lr() == [1e-2 * (1 / 6)]


def test_a_checkpoint_is_a_model_folder_that_ends_at_im_end(tmp_path: Path) -> None:
    model = tiny_model()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [0, 2]
    folder = save(tmp_path, 10, model=model)
    assert folder == tmp_path / "step_000010"
    assert {path.name for path in folder.iterdir()} == FILES
    loaded, tokenizer = load_model(folder, "cpu"), load_tokenizer(folder)
    end = token_id(tokenizer, TURN_END)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == end
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert (tokenizer.chat_template, tokenizer.eos_token_id) == (chat_template(), end)
    ids = torch.arange(20)[None]
    assert torch.equal(loaded(ids).logits, load_model(folder, "cpu")(ids).logits)
    assert all(map(torch.equal, loaded.parameters(), model.parameters()))
    assert model.generation_config.eos_token_id == [0, 2], "the caller's model is left alone"


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    config = tiny_model().config
    config.tie_word_embeddings = True
    model, other = Qwen3(config), Qwen3(config)
    folder = save(tmp_path, 1, model=model)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    loaded: Any = load_model(folder, "cpu")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    restore_model(folder, other)
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)


def test_the_dtype_can_be_given(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, dtype=torch.bfloat16)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_what_the_loop_gives_comes_back(tmp_path: Path) -> None:
    state = {"cursor": [3, 1, 2], "best": 0.1 + 0.2, "none": None, "text": "é"}
    training: dict[str, Any] = {
        "a": (1, 2.5, [True, None]),
        "t": torch.tensor([1.0, -0.0, float("nan")], dtype=torch.bfloat16),
    }
    loaded = load_checkpoint(save(tmp_path, 7, state=state, training=training))
    assert (loaded.step, loaded.state, loaded.training["a"]) == (7, state, training["a"])
    assert torch.equal(loaded.training["t"].view(torch.int16), training["t"].view(torch.int16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"random": {"numpy": numpy.zeros(2)}}}, r"training\['random'\]\['numpy'\]: .* got ndarray"),
        ({"training": {"steps": [1, numpy.float64(2)]}}, r"training\['steps'\]\[1\]: .* got float64"),
        ({"training": {"call": len}}, r"training\['call'\]: .* got builtin_function"),
        ({"state": {"pair": (1, 2)}}, "state: a tuple"),
        ({"state": {"by_step": {1: 2}}}, "state: a tuple or a key"),
        ({"state": {"loss": float("nan")}}, "state: no JSON"),
    ],
)
def test_what_could_not_be_restored_is_refused_at_once(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path / "new", 1, **changes)
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_that_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="EOS"):
        save(tmp_path, 1, tokenizer=tiny_tokenizer(eos="<|endoftext|>", prepare=False))


def test_the_digest_is_of_the_weights(tmp_path: Path) -> None:
    one, same, other = save(tmp_path, 1), save(tmp_path, 2), save(tmp_path, 3, model=tiny_model(seed=5))
    assert model_digest(one) == model_digest(same) != model_digest(other)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        model_digest(tmp_path)


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "left"),
    [
        (0, 0, [1, 2, 3, 4]), (1, 0, [4]), (2, 0, [3, 4]), (9, 0, [1, 2, 3, 4]),
        (0, 2, [1, 2, 3, 4]), (1, 2, [2, 4]), (1, 3, [3, 4]), (1, 1, [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_older_ones_go_when_a_newer_one_stands(
    tmp_path: Path, keep_last: int, keep_every: int, left: list[int]
) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    save(tmp_path, 4, keep_last=keep_last, keep_every=keep_every)
    assert checkpoints(tmp_path) == [tmp_path / f"step_{step:06d}" for step in left]
    assert hidden(tmp_path) == []


def test_steps_sort_as_numbers_and_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("step_1000000", "step_999999", "step_000002", "step_000003.old", "step_4", "best"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step_000002", "step_999999", "step_1000000"]
    assert checkpoints(tmp_path / "absent") == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model()
    first, second = save(tmp_path, 1, model=model), save(tmp_path, 2, model=model)
    assert latest_checkpoint(tmp_path) == second
    damage(second / name)
    with caplog.at_level(logging.WARNING):
        assert latest_checkpoint(tmp_path) == first
    assert str(second / name) in caplog.text
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(second)
    (second / name).unlink()
    assert latest_checkpoint(tmp_path) == first


def test_a_changed_cursor_is_damage_too(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, state={"cursor": 41})
    path = folder / "state.json"
    path.write_text(path.read_text().replace("41", "42"))
    with pytest.raises(CheckpointError, match="own digest"):
        load_checkpoint(folder)


def test_without_an_intact_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    (save(tmp_path, 1) / "state.json").write_text("[]")
    assert latest_checkpoint(tmp_path) is None


def test_pruning_never_counts_on_a_later_damaged_one(tmp_path: Path) -> None:
    save(tmp_path, 10)
    damage(save(tmp_path, 20) / "training.pt")
    good = save(tmp_path, 15, keep_last=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step_000015", "step_000020"]
    assert latest_checkpoint(tmp_path) == good


def test_the_same_again_changes_nothing_other_content_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    before = (folder / "state.json").stat().st_ino
    assert save(tmp_path, 3) == folder
    assert (folder / "state.json").stat().st_ino == before
    for changes in ({"state": {"cursor": 0}}, {"model": tiny_model(seed=8)}, {"training": {}}):
        with pytest.raises(CheckpointError, match="other content"):
            save(tmp_path, 3, **changes)
    assert load_checkpoint(folder).state == {"cursor": 3}
    assert hidden(tmp_path) == []


def test_a_damaged_one_gives_way_to_the_same_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(save(tmp_path, 3) / "model.safetensors")
    folder = save(tmp_path, 3, state={"cursor": 0})
    assert load_checkpoint(folder).state == {"cursor": 0}
    assert "replaced" in caplog.text


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("part", ["model.safetensors", "training.pt"])
def test_a_full_disk_is_named_and_the_one_before_stands(tmp_path: Path, part: str) -> None:
    model = tiny_model()
    first = save(tmp_path, 1, model=model)
    weights = (first / "model.safetensors").stat().st_size
    before = bytes_of(tmp_path)
    training = {"moments": torch.zeros(weights)}  # four times as many bytes
    limit = weights // 2 if part == "model.safetensors" else 2 * weights
    with file_size_limit(limit), pytest.raises(CheckpointError) as caught:
        save(tmp_path, 2, keep_last=1, model=model, training=training)
    message = str(caught.value)
    assert str(tmp_path / "step_000002") in message
    assert f"{first} stands as it was" in message
    needed = int(message.partition("bytes needed: about ")[2].partition(", free: ")[0].replace(",", ""))
    texts = sum((first / name).stat().st_size for name in FILES - {"model.safetensors", "training.pt", "state.json"})
    assert needed == 4 * sum(each.numel() for each in model.parameters()) + 4 * weights + texts
    assert bytes_of(tmp_path) == before
    assert hidden(tmp_path) == []
    assert latest_checkpoint(tmp_path) == first


@pytest.mark.parametrize("failing", [0, 3, 8, 9])
def test_a_disk_that_fails_while_syncing_leaves_the_one_before(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, count, real = save(tmp_path, 1), 0, os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(CheckpointError, match=r"No space left on device.*step_000001 stands"):
            save(tmp_path, 2, keep_last=1)
    assert first in checkpoints(tmp_path)
    load_checkpoint(first)
    assert hidden(tmp_path) == []


def test_only_the_leftovers_of_the_dead_are_removed(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    for name in (".step_000002.77.partial", ".step_000000.77.deleted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "training.pt").write_bytes(b"half")
    saver = FileLock(tmp_path / ".lock")
    assert saver.acquire()
    assert latest_checkpoint(tmp_path) == folder
    assert len(hidden(tmp_path)) == 2, "another process is saving: they may be its own"
    saver.release()
    assert latest_checkpoint(tmp_path) == folder
    assert hidden(tmp_path) == []


def test_a_second_saver_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    save(tmp_path, 1)
    saver = FileLock(tmp_path / ".lock")
    assert saver.acquire()
    with pytest.raises(CheckpointError, match=f"process {os.getpid()} on .* has been saving"):
        save(tmp_path, 2)
    saver.release()
    save(tmp_path, 2)


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, model=tiny_model(seed=1))
    config = tiny_model().config
    config.num_hidden_layers = 1
    config.layer_types = config.layer_types[:1]
    shallow = Qwen3(config)
    config.num_hidden_layers, config.intermediate_size, config.layer_types = 2, 32, config.layer_types * 2
    narrow = Qwen3(config)
    half: Any = tiny_model().bfloat16()
    faults = [(shallow, "unknown to the model"), (narrow, r"got \(64, 48\), the model has \(32, 48\)")]
    for model, message in [*faults, (half, "float32 does not fit into the model's torch.bfloat16")]:
        before = [each.clone() for each in model.parameters()]
        with pytest.raises(CheckpointError, match=message):
            restore_model(folder, model)
        assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(CheckpointError, match="lacks"):
        restore_model(save(tmp_path, 2, model=shallow), tiny_model())
    with pytest.raises(CheckpointError, match="no readable weights"):
        restore_model(tmp_path, tiny_model())


def save_for_ever(root: Path, record: Path) -> None:
    """Go on from the newest checkpoint; `record` says which step stands, before the next one is begun."""
    latest = latest_checkpoint(root)
    step = load_checkpoint(latest).step if latest else 0
    model, tokenizer = tiny_model(), tiny_tokenizer()
    while True:
        write_atomically(record, str(step))
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        training = {"position": torch.full((20_000,), step)}
        save_checkpoint(root, step, model, tokenizer, training, {"cursor": step}, keep_last=2)


def require_step(folder: Path, step: int) -> None:
    """All parts of a checkpoint are of one step."""
    loaded, weights = load_checkpoint(folder), load_file(folder / "model.safetensors")
    assert (loaded.step, loaded.state) == (step, {"cursor": step})
    assert all(bool((tensor == step).all()) for tensor in [loaded.training["position"], *weights.values()])


def test_a_kill_at_any_moment_leaves_the_last_step_or_the_one_before(tmp_path: Path) -> None:
    root, record = tmp_path / "checkpoints", tmp_path / "record"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.test_checkpoints"])
    dice, interrupted, last = random.Random(0), 0, 0
    save(tmp_path / "other", 1)
    began = time.monotonic()
    save(tmp_path / "other", 2, keep_last=1)
    longest_wait = 2 * (time.monotonic() - began)
    for _ in range(KILLS):
        record.unlink(missing_ok=True)
        saver = context.Process(target=save_for_ever, args=(root, record))
        saver.start()
        deadline = time.monotonic() + 60
        while not record.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, longest_wait))
        saver.kill()
        saver.join()
        stood = int(record.read_text())
        interrupted += bool(hidden(root))
        latest = latest_checkpoint(root)
        assert hidden(root) == []
        found = load_checkpoint(latest).step if latest else 0
        assert found in (stood, stood + 1)
        assert stood >= last
        for folder in checkpoints(root):
            require_step(folder, int(folder.name.removeprefix("step_")))
        last = found
    assert interrupted > KILLS // 4, "the kills were to come in the middle of saving"
    assert last > 2
