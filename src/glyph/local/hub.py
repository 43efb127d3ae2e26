"""Fetch the quickstart's model from the hub: `python -m glyph.local.hub [HUB_ID]` prints its folder.

Exit code 1, with one line on stderr, where the hub cannot be reached.
"""

import sys
import tomllib

from glyph.versions import CONFIGS

VERSIONS = CONFIGS / "versions.toml"


def fetch(name: str) -> str:
    """The folder of a hub model, fetched if need be. Raises: ConnectionError: it cannot be."""
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "LICENSE*"])
    except Exception as error:  # the hub's client raises many unrelated types when there is no network
        raise ConnectionError(f"{name}: cannot be fetched from the hub ({type(error).__name__})") from error


def main() -> int:
    default = tomllib.loads(VERSIONS.read_text())["models"]["quickstart"]
    name = sys.argv[1] if len(sys.argv) > 1 else default
    try:
        print(fetch(name))
    except ConnectionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
