"""Writing a file whole or not at all, on this machine. The sandbox has its own rules for that (`program.py`)."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Replace a file in one step, making its folder if need be; text is UTF-8 with its line ends as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(partial, path)
    return path
