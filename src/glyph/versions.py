"""The versions of what a result depends on, and the commit: for every manifest."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"
"""The configuration files: in a checkout a link to `configs/`, in a wheel the files themselves."""
PACKAGES = ("verifiers", "renderers", "transformers", "torch", "datasets")


def versions() -> dict[str, str]:
    """Python's and the packages' versions; "absent" where one is not installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def git_commit(folder: Path | None = None) -> str:
    """The commit of the checkout that holds `folder` (ours by default), "-dirty" when it has changes, else unknown."""
    where = folder or Path(__file__).parent
    try:
        command = ["git", "-C", str(where), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def manifest(**facts: Any) -> dict[str, Any]:
    """The start of every manifest: schema, commit, versions, machine; `facts` are added."""
    machine = {"platform": platform.platform(), "cpus": os.cpu_count()}
    return {"schema_version": 1, "commit": git_commit(), "versions": versions(), "machine": machine, **facts}
