"""Check the settings of a run before anything is made for it: `python scripts/settings.py sft|rl ARM [options]`.

The options are those of `glyph sft` and `glyph rl`. Nothing is written; with exit code 2 it says what is wrong.
"""

import argparse
import sys
from pathlib import Path

from glyph.config import load_config


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("stage", choices=("sft", "rl"))
    parser.add_argument("arm", choices=("a", "b"))
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--scale", default="mini")
    parser.add_argument("--config", type=Path, action="append", default=[])
    parser.add_argument("--output")
    for name in ("--model", "--data", "--device"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int)
    return parser.parse_intermixed_args()


def check(given: argparse.Namespace) -> None:
    """Raises: ValueError, OSError: what `load_config` refuses, or a device that is not here."""
    fields = {name: getattr(given, name) for name in ("model", "data", "device", "seed")}
    config = load_config(given.stage, given.scale, given.arm, given.config, given.overrides, **fields)
    if given.scale == "small":  # torch takes seconds, and the mini scale has nothing to ask of it
        from glyph.local.inference.backends import device_of

        device_of(config)


def main() -> int:
    given = parse_arguments()
    try:
        check(given)
    except (ValueError, OSError) as error:
        print(f"{given.stage} of arm {given.arm}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
