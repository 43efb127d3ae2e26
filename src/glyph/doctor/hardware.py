"""The machine itself: GPUs, disk, and vLLM's port."""

import json
import math
import os
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from typing import Any

from glyph.doctor.machine import Machine, Missing, is_rl, read_toml

GIGABYTE = 1e9
PAPER_PARAMETERS = 4_022_468_096  # Qwen3-4B-Base, embeddings counted once
WEIGHT_BYTES, STATE_BYTES, TRAINING_BYTES = 2, 12, 16
"""Bytes of a parameter: as saved (bfloat16); in a trainer checkpoint (float32 weight, two moments); in training, where
its gradient comes on top."""
VLLM_PORT = 8000
LOWEST_DRIVER = 575  # that of CUDA 12.9, for which the vLLM in PRIME-RL's lock file is built


@dataclass(frozen=True)
class _Gpu:
    index: str
    uuid: str
    name: str
    gigabytes: float
    driver: str

    @property
    def major_driver(self) -> int:
        return int(self.driver.partition(".")[0])

    def is_named(self, entry: str) -> bool:
        """By its index, or by its UUID, of which the beginning is enough."""
        return entry == self.index or (entry.startswith("GPU-") and self.uuid.startswith(entry))


def gpus(machine: Machine) -> str:
    """Enough GPUs for the configs, each with room for what it is named for, and a driver for CUDA 12.9."""
    visible = visible_gpus()
    found = ", ".join(f"{gpu.name} {gpu.gigabytes:.0f} GB, driver {gpu.driver}" for gpu in visible) or "none visible"
    needed = max(map(_gpus_of, machine.settings.values()))
    if len(visible) < needed:
        shared = "or both parts on one: bash scripts/train_rl.sh ARM --scale paper --gpus shared"
        raise Missing(f"{len(visible)} of {needed} GPUs: {found}", f"a machine with more GPUs, {shared}")
    used = visible[:needed]
    for gpu in used:
        least, arithmetic = _memory_of(machine, shared=used.count(gpu) > 1)
        if gpu.gigabytes < least:
            raise Missing(f"{found}; {arithmetic} = {least:.0f} GB", "larger GPUs, or a smaller model: --model")
    if any(gpu.major_driver < LOWEST_DRIVER for gpu in visible):
        raise Missing(f"{found}; CUDA 12.9 needs driver {LOWEST_DRIVER} or newer", "install a newer driver")
    return found


def _memory_of(machine: Machine, shared: bool) -> tuple[float, str]:
    """Gigabytes that one GPU needs, and how they come about: those of the trainer, with vLLM's where they share it."""
    parameters = parameters_of(machine)
    trainer = f"the trainer takes {parameters:.3g} parameters × {TRAINING_BYTES} bytes"
    if not shared:
        return parameters * TRAINING_BYTES / GIGABYTE, trainer
    overlay = read_toml(machine.root / "configs" / "paper" / "one_gpu.toml")
    cache = overlay["inference"]["vllm_extra"]["kv_cache_memory_bytes"]
    vllm = f"vLLM × {WEIGHT_BYTES} bytes and {cache / GIGABYTE:.1f} GB of cache, on the same GPU"
    return (parameters * (TRAINING_BYTES + WEIGHT_BYTES) + cache) / GIGABYTE, f"{trainer}, {vllm}"


def visible_gpus() -> list[_Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, one named twice twice; all of them without it. Raises: Missing."""
    program = shutil.which("nvidia-smi")
    if not program:
        raise Missing("no nvidia-smi, so no NVIDIA GPU", "a machine with GPUs; docs/engine.md needs none")
    query = [program, "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    ran = subprocess.run(query, capture_output=True, text=True, timeout=60)
    if ran.returncode:
        raise Missing(f"nvidia-smi: {(ran.stderr or ran.stdout).strip()}", "install the driver, or restart the machine")
    there = []
    for line in ran.stdout.splitlines():
        index, uuid, name, mebibytes, driver = (cell.strip() for cell in line.split(","))
        there.append(_Gpu(index, uuid, name, int(mebibytes) * 2**20 / GIGABYTE, driver))
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if named is None else [_named(entry.strip(), there) for entry in named.split(",") if entry.strip()]


def _named(entry: str, there: list[_Gpu]) -> _Gpu:
    found = next((gpu for gpu in there if gpu.is_named(entry)), None)
    if found is None:
        names = ", ".join(gpu.index for gpu in there) or "none"
        raise Missing(
            f"CUDA_VISIBLE_DEVICES names {entry}; nvidia-smi lists {names}", "export CUDA_VISIBLE_DEVICES=0,1"
        )
    return found


def _gpus_of(config: dict[str, Any]) -> int:
    """How many GPUs of this machine a config takes; by PRIME-RL's defaults one trains and one serves."""
    deployment = config.get("deployment", {})
    if not is_rl(config):
        return int(deployment.get("num_gpus", 1))
    return int(deployment.get("num_train_gpus", 1)) + int(deployment.get("num_infer_gpus", 1))


def disk(machine: Machine) -> str:
    """Room for the largest of the configs' runs, on the disk of this repository."""
    parameters, free = parameters_of(machine), shutil.disk_usage(machine.root).free
    needs = {name: _disk_of(config, parameters) for name, config in machine.settings.items()}
    name, (need, arithmetic) = max(needs.items(), key=lambda item: item[1][0])
    found = f"{free / GIGABYTE:.1f} GB free; a run of {name} writes {need / GIGABYTE:.1f} GB: {arithmetic}"
    if free < need:
        raise Missing(found, "another disk (--output), or weights alone: train_rl.sh … -- --ckpt.weights-only")
    return found


def _disk_of(config: dict[str, Any], parameters: int) -> tuple[float, str]:
    """Bytes of a run's checkpoints and weight broadcasts, and how they come about.

    Of the broadcasts PRIME-RL keeps those at the checkpoints' steps, that of step 0, and two that are in use.
    """
    checkpoint, steps = config.get("ckpt"), config.get("max_steps", 0)
    kept = 0 if checkpoint is None else max(1, math.ceil(steps / checkpoint.get("interval", max(steps, 1))))
    if checkpoint and checkpoint.get("keep_last") and not checkpoint.get("keep_interval"):
        kept = min(kept, checkpoint["keep_last"])
    state = 0 if checkpoint and checkpoint.get("weights_only") else STATE_BYTES
    broadcasts = kept + 3 if config.get("weight_broadcast", {}).get("type") == "filesystem" else 0
    need = parameters * (kept * (WEIGHT_BYTES + state) + broadcasts * WEIGHT_BYTES)
    arithmetic = f"{parameters:.3g} parameters × ({kept} checkpoints × ({WEIGHT_BYTES} + {state})"
    return need, f"{arithmetic}{f' + {broadcasts} broadcasts × {WEIGHT_BYTES}' if broadcasts else ''}) bytes"


def parameters_of(machine: Machine) -> int:
    """The parameters of the model, from the headers of its weight files; without a model those of the study's."""
    if machine.model is None:
        return PAPER_PARAMETERS
    total = 0
    for path in machine.model.glob("*.safetensors"):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    if not total:
        raise Missing(f"{machine.model} holds no *.safetensors", "glyph make-base MODEL OUT; glyph doctor --model OUT")
    return total


def port(machine: Machine) -> str:
    """The port that vLLM will listen on is free."""
    servers = [config.get("inference", {}).get("server", {}) for config in machine.settings.values() if is_rl(config)]
    ports = sorted({server.get("port", VLLM_PORT) for server in servers})
    for number in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", number))
            except OSError as error:
                raise Missing(f"port {number}: {error.strerror}", "stop what listens there: ss -ltnp") from error
    return f"{', '.join(map(str, ports))} free" if ports else "no config serves a model"
