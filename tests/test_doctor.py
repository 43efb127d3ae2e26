"""`glyph doctor`: each check against a machine that has what it asks for, and against those that lack something."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import glyph.doctor
from glyph.cli import build_app
from glyph.doctor import PAPER, Machine, environment, examine, hardware, installation, trial
from glyph.doctor.machine import Missing
from glyph.versions import versions
from tests.prime_rl_configs import resolve
from tests.repositories import git, repository
from tests.tiny_model import save_tiny_model, tiny_model, tiny_tokenizer

RL = (
    'max_steps = 100\n[ckpt]\ninterval = 25\n[weight_broadcast]\ntype = "filesystem"\n[orchestrator]\nbatch_size = 64\n'
)
INSTALLED = (
    "cat .vendor/prime-rl/uv.lock .vendor/prime-rl/pyproject.toml pyproject.toml constraints.txt | cksum"
    " > .vendor/prime-rl/.venv/.glyph-installed"
)
SETUP_SCRIPTS = [f"scripts/{name}.sh" for name in ("setup", "prime_rl_checkout", "prime_rl_environment")]
SFT = "max_steps = 60\n[ckpt]\n"
PATCH = "diff --git a/registry.py b/registry.py\n--- a/registry.py\n+++ b/registry.py\n@@ -1 +1 @@\n-grpo\n+predict\n"


@pytest.fixture
def machine(tmp_path: Path, tiny_data: Path) -> Machine:
    """A repository with the configs of both stages, without PRIME-RL."""
    root = tmp_path / "root"
    (root / "configs").mkdir(parents=True)
    (root / "patches" / "prime_rl").mkdir(parents=True)
    (root / "configs" / "sft.toml").write_text(SFT)
    (root / "configs" / "rl.toml").write_text(RL)
    for name in ("configs/versions.toml", "configs/paper/one_gpu.toml", "configs/paper/arm_a_sft.toml", *SETUP_SCRIPTS):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(glyph.doctor.machine.ROOT / name, root / name)
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).touch()
    (root / "patches" / "prime_rl" / "0001-registry.patch").write_text(PATCH)
    return Machine((root / "configs" / "sft.toml", root / "configs" / "rl.toml"), None, tiny_data, root)


def with_config(machine: Machine, text: str) -> Machine:
    machine.configs[1].write_text(text)
    return machine


def test_each_environment_of_the_configs_must_find_its_tasks(machine: Machine) -> None:
    env = '[[orchestrator.train.env]]\ntaskset = { id = "glyph", arm = "b", split = "%s" }\n'
    assert environment.tasks(with_config(machine, env % "train")) == "2 of arm b's train"
    with pytest.raises(Missing, match=r"rl\.toml, split rl: "):
        environment.tasks(with_config(machine, env % "rl"))
    assert environment.tasks(with_config(machine, RL)).startswith("no environment")


def with_model(machine: Machine, folder: Path) -> Machine:
    return Machine(machine.configs, folder, machine.data, machine.root)


def missing(check: Callable[[Machine], str], machine: Machine) -> Missing:
    with pytest.raises(Missing) as raised:
        check(machine)
    assert raised.value.mend
    return raised.value


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def vendored(machine: Machine) -> Path:
    """A checkout of PRIME-RL, made by scripts/setup.sh at a pin of its own, with an environment."""
    upstream = repository(machine.root / "upstream", {"registry.py": "grpo\n", "uv.lock": "", "pyproject.toml": ""})
    for name in ("verifiers", "renderers", "pydantic-config"):
        part = repository(machine.root / "parts" / name, {"part.py": name})
        git(upstream, "submodule", "--quiet", "add", str(part), f"deps/{name}")
    git(upstream, "commit", "--quiet", "-m", "submodules")
    pinned = machine.root / "configs" / "versions.toml"
    pin = f'prime_rl = "{git(upstream, "rev-parse", "HEAD").strip()}"'
    lines = pinned.read_text().splitlines()
    pinned.write_text("\n".join(pin if line.startswith("prime_rl = ") else line for line in lines))
    command = ["bash", "scripts/setup.sh", "--prime-rl", "--no-environment"]
    subprocess.run(command, cwd=machine.root, env={**os.environ, "PRIME_RL_SOURCE": str(upstream)}, check=True)
    (machine.prime_rl / ".venv").mkdir()
    subprocess.run(INSTALLED, shell=True, cwd=machine.root, check=True)
    return machine.prime_rl


def test_one_check_that_fails_stops_no_other(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Machine) -> str:
        raise RuntimeError("no answer")

    def fine(_: Machine) -> str:
        return "there"

    def lacking(_: Machine) -> str:
        raise Missing("nothing", "get it", ("a line",))

    monkeypatch.setattr(glyph.doctor, "CHECKS", (broken, lacking, fine))
    first, second, third = examine(machine)
    assert (first.ok, first.found) == (False, "could not be looked at: RuntimeError: no answer")
    assert (second.ok, second.found, second.mend, second.details) == (False, "nothing", "get it", ("a line",))
    assert (third.ok, third.name, third.found) == (True, "fine", "there")


H200 = "NVIDIA H200, 143771, 575.57.08"
H100 = "NVIDIA H100, 81559, 575.57.08"
SMALL = "NVIDIA L4, 23034, 575.57.08"


def with_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *gpus: str, status: int = 0) -> None:
    lines = "\n".join(f"{index}, GPU-{index}ab-cd, {gpu}" for index, gpu in enumerate(gpus))
    program(tmp_path / "bin" / "nvidia-smi", f"cat <<'E'\n{lines}\nE\nexit {status}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_two_gpus_are_enough(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, tmp_path, H200, H200)
    assert hardware.gpus(machine) == ", ".join(["NVIDIA H200 151 GB, driver 575.57.08"] * 2)


def test_one_gpu_is_enough_for_sft_and_where_it_is_named_twice(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(monkeypatch, tmp_path, H200)
    assert "1 of 2 GPUs" in missing(hardware.gpus, machine).found
    assert hardware.gpus(Machine(machine.configs[:1], root=machine.root)).startswith("NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    assert hardware.gpus(machine).count("H200") == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "0 of 2 GPUs: none visible" in missing(hardware.gpus, machine).found


def test_what_shares_a_gpu_adds_up(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.02e9 parameters × (16 + 2) bytes and 8 GiB: 81.0 GB, of which the first has 79.7 and the second 85.5."""
    with_gpus(monkeypatch, tmp_path, H100.replace("81559", "76000"), H100)
    assert hardware.gpus(machine).count("H100") == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    assert missing(hardware.gpus, machine).found.endswith(
        "the trainer takes 4.02e+09 parameters × 16 bytes, vLLM × 2 bytes and 8.6 GB of cache, on the same GPU = 81 GB"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    assert hardware.gpus(machine).count("H100") == 2


def test_gpus_are_found_by_their_uuids(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, tmp_path, SMALL, H200, H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1ab-cd, GPU-2")
    assert hardware.gpus(machine).startswith("NVIDIA H200 151 GB, driver 575.57.08, NVIDIA H100 86 GB")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7")
    assert missing(hardware.gpus, machine).found == "CUDA_VISIBLE_DEVICES names 7; nvidia-smi lists 0, 1, 2"


def test_gpus_are_refused_for_what_they_lack(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, tmp_path, SMALL, H200)
    assert "4.02e+09 parameters × 16 bytes = 64 GB" in missing(hardware.gpus, machine).found
    with_gpus(monkeypatch, tmp_path, H200, H200.replace("575", "570"))
    assert "CUDA 12.9 needs driver 575 or newer" in missing(hardware.gpus, machine).found
    with_gpus(monkeypatch, tmp_path, "the driver does not answer", status=9)
    assert "the driver does not answer" in missing(hardware.gpus, machine).found
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no nvidia-smi" in missing(hardware.gpus, machine).found


NEEDS = {
    "four checkpoints, seven broadcasts": (RL, 4 * (2 + 12) + 7 * 2),
    "weights alone": (RL.replace("interval = 25", "interval = 25\nweights_only = true"), 4 * 2 + 7 * 2),
    "the newest alone": (RL.replace("interval = 25", "interval = 25\nkeep_last = 1"), 14 + 4 * 2),
    "NCCL": (RL.replace("filesystem", "nccl"), 4 * 14),
    "one at the end": (SFT, 14),
    "none": ("max_steps = 60\n", 0),
    "an interval that does not divide": (SFT.replace("[ckpt]", "[ckpt]\ninterval = 25"), 3 * 14),
}


@pytest.mark.parametrize(("config", "bytes_each"), NEEDS.values(), ids=NEEDS)
def test_the_disk_of_a_run_is_counted(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, bytes_each: int
) -> None:
    """Per parameter: 2 bytes of weights and 12 of state a checkpoint, 2 a broadcast."""
    with_config(machine, config)
    alone = Machine(machine.configs[1:], save_tiny_model(tmp_path / "model"), machine.data, machine.root)
    need = bytes_each * sum(parameter.numel() for parameter in tiny_model().parameters())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=need))
    assert "0.0 GB free" in hardware.disk(alone)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=need - 1))
    if need:
        assert "GB: " in missing(hardware.disk, alone).found


def test_the_disk_for_the_study_is_shown_with_its_arithmetic(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100e9))
    found = missing(hardware.disk, machine).found
    assert found == (
        "100.0 GB free; a run of rl.toml writes 281.6 GB: "
        "4.02e+09 parameters × (4 checkpoints × (2 + 12) + 7 broadcasts × 2) bytes"
    )


def test_a_port_in_use_is_named(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with_config(machine, f"{RL}[inference.server]\nport = {port}\n")
        assert f"port {port}: Address already in use" in missing(hardware.port, machine).found
    assert hardware.port(machine) == f"{port} free"


def test_data_must_be_those_of_their_manifest(machine: Machine, tmp_path: Path) -> None:
    assert environment.data(machine).startswith("mini: ")
    folder = Path(shutil.copytree(machine.data, tmp_path / "data"))
    changed = Machine(machine.configs, None, folder, machine.root)
    path = folder / "arm_b_train.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    assert "is not the file that manifest.json names" in missing(environment.data, changed).found
    path.unlink()
    lack = missing(environment.data, changed)
    assert "arm_b_train.jsonl: No such file" in lack.found
    assert lack.mend == f"python -m data.prepare --output {folder}"


def test_the_model_must_end_its_turns(machine: Machine, tmp_path: Path) -> None:
    assert "no model given" in missing(environment.model, machine).found
    made = with_model(machine, save_tiny_model(tmp_path / "made"))
    assert "one EOS" in environment.model(made)
    tiny_tokenizer(eos="<|endoftext|>", prepare=False).save_pretrained(tmp_path / "made")
    lack = missing(environment.model, made)
    assert "tokenizer: the EOS is 0, expected 2 (<|im_end|>)" in lack.found
    assert "glyph make-base" in lack.mend
    shutil.rmtree(tmp_path / "made")
    assert "no such model folder" in missing(environment.model, made).found


def test_parameters_are_those_of_the_weights(machine: Machine, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert hardware.parameters_of(with_model(machine, folder)) == loaded.num_parameters()
    (folder / "model.safetensors").unlink()
    assert "holds no *.safetensors" in missing(hardware.parameters_of, with_model(machine, folder)).found


def test_resource_limits_alone_are_no_isolation(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.executor(machine).startswith("isolation level ")
    monkeypatch.setattr("glyph.executor.pool.choose_level", lambda *_: ("process", None))
    assert "resource limits alone" in missing(environment.executor, machine).found


def test_a_rollout_of_each_arm_is_played(machine: Machine) -> None:
    assert "both arms solved a task" in environment.episodes(machine)


def test_an_eval_that_fails_shows_its_last_lines(machine: Machine) -> None:
    program(machine.program("eval"), "echo no such taskset; exit 3")
    lack = missing(environment.episodes, machine)
    assert lack.details == ("no such taskset",)
    assert "arm a: " in lack.found


def test_prime_rl_must_be_as_setup_makes_it(machine: Machine) -> None:
    lack = missing(installation.prime_rl, machine)
    assert (lack.found, lack.mend) == ("no checkout in .vendor/prime-rl", "bash scripts/setup.sh --prime-rl")
    folder = vendored(machine)
    assert installation.prime_rl(machine).endswith(" with our patches")
    (folder / "registry.py").write_text("grpo\n")
    lack = missing(installation.prime_rl, machine)
    assert lack.found.endswith("has been edited, and edits are not overwritten: registry.py ")
    assert lack.mend.startswith("save them (git -C .vendor/prime-rl diff ")
    (folder / "registry.py").write_text("predict\n")
    git(folder / "deps" / "verifiers", "commit", "--quiet", "--allow-empty", "-m", "newer")
    assert "deps/verifiers is not at the commit that the pin names" in missing(installation.prime_rl, machine).found
    git(folder, "submodule", "deinit", "--force", "deps/verifiers")
    assert "lacks the submodule deps/verifiers" in missing(installation.prime_rl, machine).found


def test_prime_rl_must_have_its_environment(machine: Machine) -> None:
    folder = vendored(machine)
    (machine.root / "constraints.txt").write_text("typer==0.17\n")
    assert "has no environment, or one that is not of its" in missing(installation.prime_rl, machine).found
    (folder / ".venv" / ".glyph-installed").unlink()
    assert "has no environment" in missing(installation.prime_rl, machine).found
    shutil.rmtree(machine.root / "scripts")
    lack = missing(installation.prime_rl, machine)
    assert "scripts/setup.sh: No such file" in lack.found
    assert lack.mend == "bash scripts/setup.sh --prime-rl"


def test_packages_must_be_the_pinned_ones(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = versions() | machine.pins["packages"]
    monkeypatch.setattr(installation, "versions", lambda: pinned)
    assert installation.pins(machine) == "as in configs/versions.toml in our environment"
    monkeypatch.setattr(installation, "versions", lambda: pinned | {"renderers": "0.1.7"})
    assert missing(installation.pins, machine).found == "our environment has renderers 0.1.7, expected 0.1.10"


def test_packages_of_prime_rl_are_looked_at_too(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = versions() | machine.pins["packages"]
    monkeypatch.setattr(installation, "versions", lambda: pinned)
    there = {**pinned, "torch": "2.11.0+cu128", "renderers": "0.1.11.dev3"}
    program(machine.program("python"), f"echo '{json.dumps(there)}'")
    assert installation.pins(machine) == "as in configs/versions.toml in both environments"
    program(machine.program("python"), f"echo '{json.dumps(there | {'torch': '2.9.0', 'transformers': '4.57'})}'")
    found = missing(installation.pins, machine).found
    assert "PRIME-RL's environment has transformers 4.57, expected 5.6.2" in found
    assert "torch 2.9.0, expected 2.13.0 or 2.11" in found
    program(machine.program("python"), "echo no module named glyph >&2; exit 1")
    assert "does not import this package: no module" in missing(installation.pins, machine).found


def test_the_launchers_resolve_every_config(machine: Machine, tmp_path: Path) -> None:
    assert "no " in missing(installation.dry_runs, machine).found
    for name in ("sft", "rl"):
        program(machine.program(name), f'echo {name} "$@" >> {tmp_path}/calls; command -v rl > /dev/null')
    made = with_model(machine, tmp_path)
    assert installation.dry_runs(made) == "sft.toml, rl.toml resolve"
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert [(call[0], call[2]) for call in calls] == [("sft", str(made.configs[0])), ("rl", str(made.configs[1]))]
    assert all(call[-3:] == ["--dry-run", "--model.name", str(tmp_path)] for call in calls)
    assert not any(Path(call[4]).exists() for call in calls)
    program(machine.program("rl"), "echo 'orchestrator.algo.type: unknown tag predict'; exit 1")
    lack = missing(installation.dry_runs, made)
    assert "rl --dry-run refuses rl.toml" in lack.found
    assert lack.details == ("orchestrator.algo.type: unknown tag predict",)


def test_the_command_says_what_is_missing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyph.doctor, "CHECKS", (environment.data, hardware.port, installation.dry_runs))
    monkeypatch.setattr(glyph.doctor, "Machine", lambda *given, **more: Machine(*given, root=machine.root, **more))
    arguments = ["doctor", "--data", str(machine.data), "--config", str(machine.configs[1])]
    ran = CliRunner().invoke(build_app(), arguments)
    assert ran.exit_code == 1
    assert "     ok  data" in ran.stdout
    assert "MISSING  dry runs" in ran.stdout
    assert "mend: bash scripts/setup.sh --prime-rl" in ran.stdout
    ran = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert [(row["name"], row["ok"]) for row in json.loads(ran.stdout)] == [
        ("data", True),
        ("port", True),
        ("dry runs", False),
    ]
    monkeypatch.setattr(glyph.doctor, "CHECKS", (environment.data,))
    ran = CliRunner().invoke(build_app(), arguments)
    assert (ran.exit_code, ran.stdout.splitlines()[-1][:18]) == (0, "nothing is missing")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ran = CliRunner().invoke(build_app(), [*arguments, "--steps", "2"])
    assert (ran.exit_code, ran.stdout.splitlines()[-1]) == (1, "1 of 2 are missing")
    assert "MISSING  sft steps  no " in ran.stdout


SAID = """echo no GPU is used by this one
mkdir -p "$8/logs"
for step in 1 2; do
  printf '\\033[32mSUCCESS Step %s |  3.10s | Loss 1.5%s00 | LR 1e-05\\033[0m\\n' $step $step >> "$8/logs/trainer.log"
done
sleep 600 &
"""


def test_steps_of_sft_are_tried(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, tmp_path, H200)
    asked = Machine(machine.configs, None, machine.data, machine.root, steps=2)
    assert "no model given" in missing(trial.sft_steps, asked).found
    asked = replace(asked, model=tmp_path / "model")
    assert "/sft" in missing(trial.sft_steps, asked).found
    program(asked.program("sft"), SAID)
    found = trial.sft_steps(asked)  # what the program leaves behind is not waited for
    assert found.startswith("2 steps in ")
    assert found.endswith(": Step 2 |  3.10s | Loss 1.5200 | LR 1e-05")
    asked = replace(asked, steps=3)
    lack = missing(trial.sft_steps, asked)
    assert lack.found.startswith("sft ended with 0 after ")
    assert "Step 1 " in lack.details[0]
    program(asked.program("sft"), "echo CUDA out of memory; exit 1")
    lack = missing(trial.sft_steps, asked)
    assert (lack.found[:16], lack.details) == ("sft ended with 1", ("CUDA out of memory",))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no NVIDIA GPU" in missing(trial.sft_steps, asked).found


def test_the_pinned_classes_take_the_steps_of_sft(machine: Machine, patched_prime_rl: Path, tmp_path: Path) -> None:
    asked = replace(machine, model=tmp_path / "model", steps=2)
    (got,) = resolve(patched_prime_rl, [["sft", *trial.sft_command(asked, tmp_path / "out")[1:]]])
    assert (got["max_steps"], got["scheduler"]["decay_steps"], got["ckpt"]) == (2, 0, None)
    assert got["output_dir"] == str(tmp_path / "out")
    assert got["data"]["name"] == f"{machine.data}/sft/arm_a"


def test_a_config_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ran = CliRunner().invoke(build_app(), ["doctor", "--config", str(tmp_path / "no.toml")])
    assert ran.exit_code == 2
    assert "no.toml: no such file" in ran.stderr


def test_the_papers_configs_are_the_default() -> None:
    assert {path.name for path in PAPER} == {f"arm_{arm}_{stage}.toml" for arm in "ab" for stage in ("sft", "rl")}
    assert all(path.is_file() for path in PAPER)
