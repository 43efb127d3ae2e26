"""`glyph make-base`: one EOS in tokenizer, model and generation, and what saving a trained model makes of it."""

import __future__

import ast
import json
import os
import shutil
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch
import transformers
from renderers import create_renderer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from typer.testing import CliRunner

from glyph.chat import ParityError, chat_template, check_parity
from glyph.cli import build_app
from glyph.local.base_folder import RECORD, check_saved, eos_faults, make_base
from glyph.protocol import Arm
from glyph.tasks.demonstrations import sample_conversation
from tests.disk import file_size_limit
from tests.tiny_model import tiny_model, tiny_tokenizer

END, BASE_END = 2, 0


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model as they are published: `<|endoftext|>` ends its texts, in all places, and it has no template."""
    folder = tmp_path_factory.mktemp("start")
    model = tiny_model()
    model.config.eos_token_id = model.generation_config.eos_token_id = BASE_END
    model.generation_config.max_new_tokens = 2048
    model.save_pretrained(folder)
    tiny_tokenizer(eos="<|endoftext|>", prepare=False).save_pretrained(folder)
    (folder / "LICENSE").write_text("Apache-2.0")
    (folder / "pytorch_model.bin").write_text("the same again")
    return folder


@pytest.fixture(scope="module")
def base(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "base"
    make_base(start, folder)
    return folder


def copy_of(start: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(start, tmp_path / "copy"))


def test_the_start_model_ends_its_texts_otherwise(start: Path) -> None:
    assert list(eos_faults(start)) == [
        "tokenizer: the EOS is 0, expected 2 (<|im_end|>)",
        "config.json: the EOS is 0, expected 2 (<|im_end|>)",
        "generation_config.json: the EOS is 0, expected 2 (<|im_end|>)",
        "tokenizer: the chat template is not ours",
    ]


def test_transformers_loads_one_eos_everywhere(base: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", END)
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (END, END)
    assert GenerationConfig.from_pretrained(base).eos_token_id == END
    assert tokenizer.chat_template == chat_template()
    assert list(eos_faults(base)) == []


def test_renderers_stop_there_and_all_paths_agree(base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    assert create_renderer(tokenizer, None).get_stop_token_ids() == [END]
    assert check_parity(tokenizer, sample_conversation(Arm.PREDICTIVE)) > 100


def test_nothing_else_is_changed(start: Path, base: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        before, after = (json.loads((folder / name).read_text()) for folder in (start, base))
        assert {**before, "eos_token_id": END} == after
    assert (base / "model.safetensors").read_bytes() == (start / "model.safetensors").read_bytes()
    assert (base / "LICENSE").read_text() == "Apache-2.0"
    assert not (base / "pytorch_model.bin").exists()
    ids = [AutoTokenizer.from_pretrained(folder).encode("def add(a, b):") for folder in (start, base)]
    assert ids[0] == ids[1]


def test_the_record_says_what_was_changed(start: Path, base: Path) -> None:
    record = json.loads((base / RECORD).read_text())
    assert record["made_from"] == str(start)
    assert record["before"]["config.json"] == {"eos_token_id": BASE_END}
    assert record["after"]["generation_config.json"] == {"eos_token_id": END}
    assert record["before"]["tokenizer"]["eos_token"] == "<|endoftext|>"
    assert record["after"]["tokenizer"]["eos_token"] == "<|im_end|>"
    assert set(record["sha256"]) == {path.name for path in base.iterdir()} - {RECORD}


def test_weights_of_another_file_system_are_copied(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    make_base(start, tmp_path / "base")
    assert load_file(tmp_path / "base" / "model.safetensors").keys() == load_file(start / "model.safetensors").keys()
    assert (tmp_path / "base" / "model.safetensors").stat().st_nlink == 1


def test_sharded_weights_come_with_their_index(start: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(start).save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    tiny_tokenizer(eos="<|endoftext|>", prepare=False).save_pretrained(tmp_path / "sharded")
    make_base(tmp_path / "sharded", tmp_path / "base")
    assert len(list((tmp_path / "base").glob("*.safetensors"))) > 1
    whole, made = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (start, tmp_path / "base"))
    assert all(torch.equal(tensor, made[name]) for name, tensor in whole.items())


def without(start: Path, tmp_path: Path, *names: str) -> Path:
    folder = copy_of(start, tmp_path)
    for name in names:
        (folder / name).unlink()
    return folder


def without_turn_end(start: Path, tmp_path: Path) -> Path:
    folder = copy_of(start, tmp_path)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_end|>", "<|other|>"))
    return folder


BAD = {
    "no folder": (lambda start, tmp: tmp / "nothing", "nothing: no such model folder"),
    "no tokenizer": (lambda s, t: without(s, t, "tokenizer.json", "tokenizer_config.json"), "holds no tokenizer"),
    "no weights": (lambda s, t: without(s, t, "model.safetensors"), "holds no *.safetensors"),
    "no config": (lambda s, t: without(s, t, "config.json"), "config.json: No such file"),
    "no such token": (without_turn_end, "<|im_end|> must be one token"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_made_is_refused(start: Path, tmp_path: Path, make: Any, message: str) -> None:
    ran = CliRunner().invoke(build_app(), ["make-base", str(make(start, tmp_path)), str(tmp_path / "base")])
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("base")] == []


def test_an_output_that_exists_is_kept(start: Path, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "mine").touch()
    ran = CliRunner().invoke(build_app(), ["make-base", str(start), str(tmp_path / "base")])
    assert ran.exit_code == 2
    assert "exists already" in ran.stderr
    assert [path.name for path in (tmp_path / "base").iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", MagicMock(side_effect=OSError(18, "Invalid cross-device link")))
    with file_size_limit(60_000), pytest.raises(OSError, match="File too large"):
        make_base(start, tmp_path / "base")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_changed(start: Path, tmp_path: Path) -> None:
    ran = CliRunner().invoke(build_app(), ["make-base", str(start), str(tmp_path / "base")])
    assert ran.exit_code == 0, ran.output
    assert "config.json: EOS 0 → 2" in ran.stdout
    assert f"glyph parity {tmp_path / 'base'} --as-saved" in ran.stdout


def test_parity_as_saved_sets_nothing_in_memory(start: Path, base: Path) -> None:
    """The start model's tokenizer passes when it is prepared, and the folder is of no use to PRIME-RL."""
    assert CliRunner().invoke(build_app(), ["parity", str(start)]).exit_code == 0
    ran = CliRunner().invoke(build_app(), ["parity", str(start), "--as-saved"])
    assert ran.exit_code == 1
    assert "generation_config.json: the EOS is 0, expected 2 (<|im_end|>)" in ran.stdout
    assert f"glyph make-base {start} OUT" in ran.stdout
    ran = CliRunner().invoke(build_app(), ["parity", str(base), "--as-saved"])
    assert ran.exit_code == 0
    assert [line.rpartition(": ")[2] for line in ran.stdout.splitlines()] == ["the same ids on every path"] * 2


def test_every_part_must_end_its_turns_as_saved(base: Path, tmp_path: Path) -> None:
    folder = copy_of(base, tmp_path)
    assert check_saved(folder).keys() == set(Arm)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    with pytest.raises(ParityError, match=r"generation_config.json: the EOS is \[2, 0\], expected 2"):
        check_saved(folder)


def test_code_of_the_model_is_not_taken_over(start: Path, tmp_path: Path) -> None:
    folder = copy_of(start, tmp_path)
    (folder / "modeling.py").touch()
    make_base(folder, tmp_path / "base")
    assert not (tmp_path / "base" / "modeling.py").exists()


# PRIME-RL's own code, as far as it decides about the EOS: loading the tokenizer, loading the model, saving both.
# Its modules import what only a GPU machine has, so these three functions are taken out of their sources and run.


@pytest.fixture(scope="module")
def pinned(patched_prime_rl: Path) -> SimpleNamespace:
    trainer = patched_prime_rl / "src" / "prime_rl" / "trainer"
    used = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "GenerationConfig", "PretrainedConfig")
    names: dict[str, Any] = {name: getattr(transformers, name) for name in used}
    names |= {"Path": Path, "cast": cast, "time": time, "torch": torch, "warnings": warnings}
    names |= dict.fromkeys(("is_vlm_architecture", "supports_custom_impl"), lambda _: False)
    names |= {"get_logger": MagicMock(), "save_state_dict": save_weights}
    found = {}
    for file, name in (("model.py", "get_model"), ("model.py", "setup_tokenizer"), ("ckpt.py", "save_to_path")):
        tree = ast.parse((trainer / file).read_text())
        function = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name][-1]
        code = compile(ast.Module([function], []), str(trainer / file), "exec", __future__.annotations.compiler_flag)
        exec(code, names)
        found[name] = names[name]
    return SimpleNamespace(**found)


def save_weights(state: dict[str, torch.Tensor], folder: Path, *_: object, **__: object) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")


def trained(pinned: SimpleNamespace, folder: Path, output: Path, device: str) -> Path:
    """What a run that starts at `folder` saves: PRIME-RL loads to the meta device first, then the weights."""
    quiet = {"vlm": None, "index_cache": None, "debug": SimpleNamespace(num_layers=None)}
    settings = {"attn": "sdpa", "impl": "hf", "trust_remote_code": False, "moe_use_grouped_mm": True, "fp8": False}
    config = SimpleNamespace(name=str(folder), chat_template=None, **settings, **quiet)
    model = pinned.get_model(config, torch.device(device), torch.float32)
    tokenizer = pinned.setup_tokenizer(config)
    manager = MagicMock(world=SimpleNamespace(is_master=True))
    weights = load_file(folder / "model.safetensors")
    pinned.save_to_path(manager, output, weights, None, model, tokenizer)
    return output


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_checkpoint_of_prime_rl_keeps_eos_and_template(
    pinned: SimpleNamespace, base: Path, tmp_path: Path, device: str
) -> None:
    sft = trained(pinned, base, tmp_path / "sft", device)
    rl = trained(pinned, sft, tmp_path / "rl", device)
    for folder in (sft, rl):
        assert list(eos_faults(folder)) == []
        assert create_renderer(AutoTokenizer.from_pretrained(folder), None).get_stop_token_ids() == [END]


def test_without_make_base_a_checkpoint_of_prime_rl_keeps_the_wrong_eos(
    pinned: SimpleNamespace, start: Path, tmp_path: Path
) -> None:
    saved = trained(pinned, start, tmp_path / "sft", "meta")
    assert len(list(eos_faults(saved))) == 4
