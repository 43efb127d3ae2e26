"""`python -m glyph.commands.manifest key=value …`: a manifest with those facts as its plan, for scripts."""

import json
import sys
from pathlib import Path

from glyph.tasks.validation import data_facts
from glyph.versions import manifest


def main() -> None:
    plan = dict(pair.split("=", 1) for pair in sys.argv[1:])
    print(json.dumps(manifest(plan=plan, data=data_facts(Path(plan.get("data", "data")))), indent=2))


if __name__ == "__main__":
    main()
