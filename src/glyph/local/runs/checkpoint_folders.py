"""The folders of checkpoints, for who reads no tensors of them: their names, which there are, what was recorded.

`checkpoints.py` writes them; its docstring shows one. No torch.
"""

import json
import re
from pathlib import Path

WEIGHTS, TRAINING, STATE = "model.safetensors", "training.pt", "state.json"
_NAME = re.compile(r"step_(\d{6,})")


def checkpoint_folder(root: Path, step: int) -> Path:
    return root / f"step_{step:06d}"


def checkpoint_step(folder: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    return int(folder.name.removeprefix("step_"))


def checkpoints(root: Path) -> list[Path]:
    """The checkpoint folders by step, intact or not; empty where there is no such folder."""
    found = [path for path in root.glob("step_*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=checkpoint_step)


def recorded_sha256(folder: Path) -> str:
    """The digest of a checkpoint's weights, as it was recorded when they were written."""
    return str(json.loads((folder / STATE).read_text(encoding="utf-8"))["digests"][WEIGHTS])
