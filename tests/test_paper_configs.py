"""The settings of the paper scale: as published, the same in both arms, and accepted by the pinned PRIME-RL."""

import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glyph.taskset import GlyphTaskset, GlyphTasksetConfig
from glyph.versions import CONFIGS
from tests.prime_rl_checkout import ROOT
from tests.prime_rl_configs import resolve

PAPER = CONFIGS / "paper"
FILES = sorted(PAPER.glob("*.toml"))
OVERLAYS = ("one_gpu", "multi_node")
PUBLISHED: dict[str, dict[str, Any]] = {
    "sft": {
        "max_steps": 60,
        "model.seq_len": 1280,
        "data.seq_len": 1280,
        "data.batch_size": 32,
        "data.pack_function": "stack",
        "data.seed": 42,
        "data.loss_mask.assistant": True,
        "data.loss_mask.system": False,
        "data.loss_mask.user": False,
        "data.loss_mask.tool": False,
        "optim.type": "adamw",
        "optim.lr": 2e-5,
        "optim.weight_decay": 0.01,
        "scheduler.type": "linear",
        "scheduler.warmup_steps": 2,
    },
    "rl": {
        "max_steps": 100,
        "seq_len": 4096,
        "ckpt.interval": 25,
        "weight_broadcast.type": "filesystem",
        "trainer.loss.type": "default",
        "trainer.loss.kl_tau": 0.0,
        "trainer.optim.type": "adamw",
        "trainer.optim.lr": 1e-6,
        "trainer.optim.weight_decay": 0.01,
        "inference.seed": 42,
        "orchestrator.batch_size": 64,
        "orchestrator.group_size": 16,
        "orchestrator.post_batch_filters.2.type": "zero_advantage",
        "orchestrator.post_batch_filters.2.enforce": True,
        "orchestrator.renderer.name": "default",
        "orchestrator.train.sampling.temperature": 0.8,
        "orchestrator.train.sampling.max_completion_tokens": 512,
        "orchestrator.train.sampling.extra_body.top_k": 20,
        "orchestrator.train.env.0.taskset.split": "train",
        "orchestrator.train.env.0.taskset.cut": "error",
        "orchestrator.eval.interval": 25,
        "orchestrator.eval.sampling.temperature": 0.0,
        "orchestrator.eval.sampling.max_completion_tokens": 512,
        "orchestrator.eval.env.0.taskset.split": "validation",
        "orchestrator.eval.env.0.taskset.cut": "score",
    },
}
PREDICT = {
    "type": "predict",
    "alpha": 0.1,
    "max_aux_tokens": 4096,
    "normalisation": "token",
    "label_tokens": "choice",
    "label_credit": "masked",
    "uniform_groups": "drop",
}
MAY_DIFFER = {
    "sft": {"output_dir", "data.name"},
    "rl": {
        "output_dir",
        "model.name",
        "orchestrator.train.env.0.taskset.arm",
        "orchestrator.eval.env.0.taskset.arm",
        *(f"orchestrator.algo.{name}" for name in PREDICT),
    },
}
RUNS = list(itertools.product(("a", "b"), ("sft", "rl")))


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf by its dotted key; the places of a list are numbers."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield prefix, value
    else:
        for key, below in items:
            yield from flat(below, f"{prefix}.{key}" if prefix else str(key))


def settings(name: str) -> dict[str, Any]:
    return dict(flat(tomllib.loads((PAPER / f"{name}.toml").read_text("utf-8"))))


def test_nothing_else_is_there() -> None:
    expected = {f"arm_{arm}_{stage}" for arm, stage in RUNS} | {*OVERLAYS, "serve"}
    assert {path.stem for path in FILES} == expected


@pytest.mark.parametrize(("arm", "stage"), RUNS)
def test_the_settings_are_the_published_ones(arm: str, stage: str) -> None:
    got = settings(f"arm_{arm}_{stage}")
    assert {name: got.get(name) for name in PUBLISHED[stage]} == PUBLISHED[stage]


@pytest.mark.parametrize("arm", ["a", "b"])
def test_the_environments_find_their_tasks(arm: str, tiny_data: Path) -> None:
    orchestrator = tomllib.loads((PAPER / f"arm_{arm}_rl.toml").read_text("utf-8"))["orchestrator"]
    for env in (*orchestrator["train"]["env"], *orchestrator["eval"]["env"]):
        assert env["taskset"].pop("id") == env["harness"]["id"] == "glyph"
        config = GlyphTasksetConfig(**{**env["taskset"], "data": tiny_data, "id": "glyph"})
        assert GlyphTaskset(config).load()


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_the_arms_differ_only_where_they_should(stage: str) -> None:
    a, b = settings(f"arm_a_{stage}"), settings(f"arm_b_{stage}")
    assert {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)} <= MAY_DIFFER[stage]
    if stage == "rl":
        assert {name: b[f"orchestrator.algo.{name}"] for name in PREDICT} == PREDICT
        assert {name: value for name, value in a.items() if ".algo." in name} == {"orchestrator.algo.type": "grpo"}
        for arm, got in (("a", a), ("b", b)):
            assert {got[f"orchestrator.{mode}.env.0.taskset.arm"] for mode in ("train", "eval")} == {arm}
            assert got["model.name"] == f"{settings(f'arm_{arm}_sft')['output_dir']}/weights/step_60"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_changes_nothing_that_was_published(overlay: str) -> None:
    changed = set(settings(overlay))
    assert changed
    assert changed & (PUBLISHED["rl"].keys() - {"weight_broadcast.type"}) == set()


def test_serving_an_evaluation_is_serving_as_in_rl() -> None:
    serve, rl = settings("serve"), settings("arm_a_rl")
    shared = [name for name in serve if name.startswith("model.")]
    assert {name: serve[name] for name in shared} == {name: rl[f"inference.{name}"] for name in shared}


def file(name: str) -> list[str]:
    return ["@", str(PAPER / f"{name}.toml")]


def test_the_pinned_classes_resolve_every_file_to_what_was_published(patched_prime_rl: Path) -> None:
    commands = [[stage, *file(f"arm_{arm}_{stage}")] for arm, stage in RUNS]
    layered = [["rl", *file(f"arm_{arm}_rl"), *file(overlay)] for arm in "ab" for overlay in OVERLAYS]
    for command, got in zip(commands + layered, resolve(patched_prime_rl, commands + layered), strict=True):
        assert "refused" not in got, (command, got)
        resolved = dict(flat(got))
        assert {name: resolved[name] for name in PUBLISHED[command[0]]} == PUBLISHED[command[0]], command
        if command[0] == "rl":
            assert_rl(resolved, command[2])
    (got,) = resolve(patched_prime_rl, [["inference", *file("serve"), "--model.name", "m", "--server.port", "8123"]])
    assert (got["server"]["port"], got["model"]["tool_call_parser"]) == (8123, None)


def assert_rl(resolved: dict[str, Any], first_file: str) -> None:
    """What the pin derives, and what no file of ours states."""
    algo = {name.rpartition(".")[2]: value for name, value in resolved.items() if ".env.0.algo." in name}
    assert PREDICT.items() <= algo.items() if "arm_b" in first_file else algo["type"] == "grpo"
    assert resolved["trainer.model.seq_len"] == resolved["orchestrator.seq_len"] == 4096
    assert resolved["trainer.model.lora"] is None
    assert resolved["trainer.ckpt.weights_only"] is False  # else no run could be resumed
    assert resolved["orchestrator.train.env.0.group_size"] == 16
    assert resolved["orchestrator.train.env.0.retries.rollout.max_retries"] == 0
    assert resolved["orchestrator.train.env.0.sampling.extra_body.top_k"] == 20
    assert resolved["orchestrator.eval.env.0.interval"] == 25
    assert resolved["orchestrator.eval.env.0.num_examples"] == -1
    assert resolved["orchestrator.max_off_policy_steps"] == 8


def test_the_overlays_do_what_they_say(patched_prime_rl: Path) -> None:
    shared, nodes = resolve(patched_prime_rl, [["rl", *file("arm_b_rl"), *file(overlay)] for overlay in OVERLAYS])
    model = shared["trainer"]["model"]
    assert (model["impl"], model["attn"], model["compile"]) == ("hf", "sdpa", None)
    assert shared["inference"]["model"]["enforce_eager"] is True
    assert shared["inference"]["vllm_extra"] == {"kv_cache_memory_bytes": 8 << 30}
    assert (shared["deployment"]["num_train_gpus"], shared["deployment"]["num_infer_gpus"]) == (1, 1)
    assert nodes["deployment"]["type"] == "multi_node"
    assert nodes["deployment"]["num_infer_nodes"] == 1
    assert nodes["inference"]["parallel"]["dp"] == 8
    assert Path(nodes["slurm"]["project_dir"]) == ROOT / ".vendor" / "prime-rl"


def test_the_job_of_several_nodes_is_rendered(prime_rl: Path, tmp_path: Path) -> None:
    """The job's own `uv sync` removes this package from the environment, and what follows puts it back."""
    pytest.importorskip(
        "pydantic_config", reason="pip install prime-pydantic-config, which parses PRIME-RL's arguments"
    )
    from prime_rl.configs.rl import RLConfig
    from prime_rl.entrypoints.rl import write_slurm_script
    from prime_rl.utils.config import cli

    arguments = [*file("arm_b_rl"), *file("multi_node"), "--output-dir", str(tmp_path), "--slurm.partition", "gpu"]
    write_slurm_script(cli(RLConfig, args=arguments), tmp_path / "configs", tmp_path / "rl.sbatch")
    job = (tmp_path / "rl.sbatch").read_text()
    assert "#SBATCH --nodes=2\n" in job
    assert f"export PROJECT_DIR={ROOT / '.vendor' / 'prime-rl'}\n" in job
    synced = job.index("\nuv sync --all-extras --all-packages\n")
    assert synced < job.index("\nuv pip install --no-deps --editable ../..\n") < job.index("srun ")


def test_the_pinned_classes_refuse_what_they_do_not_know(patched_prime_rl: Path) -> None:
    wrong = ["--orchestrator.algo.alhpa", "1"], ["--seq-len", "2048"], ["--orchestrator.algo.uniform-groups", "keep_ce"]
    unknown, short, kept = resolve(patched_prime_rl, [["rl", *file("arm_b_rl"), *arguments] for arguments in wrong])
    assert "alhpa" in unknown["refused"]
    assert "max_aux_tokens = 4096 exceeds seq_len = 2048" in short["refused"]
    assert "zero_advantage" in kept["refused"]
