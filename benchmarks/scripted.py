"""The scripted endpoint of the benchmarks: four turns a rollout (read, patch with the gold code, test, FINAL).

`python -m benchmarks.scripted DATA` serves it in a process of its own and prints the base URL.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glyph.local.serving.scripted import scripted_server
from glyph.protocol import Arm, Call, Decision, Label, Prediction, Tool, render_call, render_final, render_prediction
from glyph.tasks.validation import read_rows
from glyph.workspace import PLACEHOLDER, PROJECT_PATH, SOLUTION_PATH


def gold_policy(data: Path, split: str) -> Callable[[Sequence[Any]], str]:
    """The policy that solves every task of a split at once, in either arm."""
    turns: dict[str, list[str]] = {}
    for arm in Arm:
        for row in read_rows(data, f"arm_{arm.value}_{split}.jsonl", ("system", "prompt")):
            turns[row["system"] + row["prompt"]] = _turns(arm, row["gold"])
    return lambda messages: turns[messages[0]["content"] + messages[1]["content"]][
        sum(message["role"] == "assistant" for message in messages)
    ]


def _turns(arm: Arm, gold: str) -> list[str]:
    read = Call(Tool.READ_FILE, "1", {"file_path": SOLUTION_PATH})
    patch = Call(Tool.APPLY_PATCH, "2", {"file_path": SOLUTION_PATH, "find": PLACEHOLDER.strip(), "replace": gold})
    test = Call(Tool.PYTHON_TEST, "3", {"project_path": PROJECT_PATH})
    tested = (
        render_call(test) if arm is Arm.REACTIVE else render_prediction(Prediction(Label.PASS, Decision.KEEP, test))
    )
    return [render_call(read), render_call(patch), tested, render_final("The tests pass.")]


async def main() -> None:
    async with scripted_server(gold_policy(Path(sys.argv[1]), sys.argv[2])) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
