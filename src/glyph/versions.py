"""The versions of what a result depends on, and the commit: for every manifest.

`python -m glyph.versions` prints them as JSON, for scripts that write a manifest.
"""

import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


if __name__ == "__main__":
    print(json.dumps({"schema_version": 1, "commit": git_commit(), "versions": versions()}, indent=2))
