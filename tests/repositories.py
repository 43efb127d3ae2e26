"""`git` for the tests, and small repositories in place of those that are fetched."""

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *who, "-C", folder, *arguments], capture_output=True, text=True)
    assert not done.returncode, f"git {' '.join(arguments)} in {folder}: {done.stderr}"
    return done.stdout


def repository(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "made")
    return folder
