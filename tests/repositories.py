"""Small git repositories, in place of those that are fetched."""

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *who, "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout


def repository(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "made")
    return folder
