"""How well a base model writes code: greedy completions of held-out tasks in the forms of the pre-training text.

    python -m glyph.local.pretraining.probe models/mini --tasks 200

A task (wording and assertions) goes in as a plain file, as a question, and as a request for a JSON record; the
executor judges the code that comes back. No protocol: this measures what the text taught, not the agent.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glyph.chat import TURN_END, TURN_START
from glyph.executor import Executor
from glyph.local.inference.loading import load_model, load_tokenizer
from glyph.local.pretraining.tokenizer import DOCUMENT_END
from glyph.protocol import Label
from glyph.tasks.mini import mini_tasks
from glyph.tasks.mini.pretraining_documents import EMPTY, FILES, TEST_HEADS
from glyph.tasks.task import CodeTask

MOST_TOKENS = 200


@dataclass(frozen=True)
class Form:
    """`prompt` of (wording, assertions); `code` reads the source off what came back ("" where there is none)."""

    name: str
    prompt: Callable[[str, str], str]
    code: Callable[[str], str]


def _turn(user: str) -> str:
    return f"{TURN_START}user\n{user}\n{TURN_END}\n\n{TURN_START}assistant\n"


def _record_code(said: str) -> str:
    try:
        return str(list(json.loads(said).values())[-1])
    except (ValueError, AttributeError, IndexError):
        return ""


FORMS = (
    Form("plain_file", lambda text, tests: f"# {text}\n{tests}\n\n", str),
    Form("question", lambda text, tests: _turn(f"{text}\n\n{TEST_HEADS[0]}\n{tests}"), str),
    Form(
        "record",
        lambda text, tests: _turn(f"{text}\n\n{TEST_HEADS[0]}\n{tests}\n\n{FILES[0]} now holds:\n{EMPTY[0]}"),
        _record_code,
    ),
)


@torch.no_grad()
def complete(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], most_tokens: int = MOST_TOKENS
) -> list[str]:
    """Greedy completions up to the end of the turn or of the document, without it."""
    ends = [tokenizer.convert_tokens_to_ids(token) for token in (TURN_END, DOCUMENT_END)]
    ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    width = max(map(len, ids))
    padded = torch.tensor([[ends[1]] * (width - len(each)) + each for each in ids], device=model.device)
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in ids], device=model.device)
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1]}
    made: Any = model.generate(padded, attention_mask=mask, max_new_tokens=most_tokens, **settings)  # type: ignore[operator]
    said = [str(tokenizer.decode(row[width:], skip_special_tokens=False)) for row in made]
    return [text.split(TURN_END)[0].split(DOCUMENT_END)[0].strip("\n") for text in said]


def probe(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[CodeTask],
    run: Callable[[str, str], Any],
    batch: int = 100,
) -> dict[str, dict[str, int]]:
    """For each form how many of the tasks end in which label; `run` is the executor's."""
    counts: dict[str, dict[str, int]] = {}
    for form in FORMS:
        prompts = [form.prompt(task.text, task.test_code.strip()) for task in tasks]
        said = [
            text for i in range(0, len(tasks), batch) for text in complete(model, tokenizer, prompts[i : i + batch])
        ]
        labels = [run(form.code(text) + "\n", task.test_code).label for text, task in zip(said, tasks, strict=True)]
        counts[form.name] = {label.value: labels.count(label) for label in Label if label in labels}
    return counts


def main() -> None:
    """Probe a base model on validation tasks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    tokenizer, model = load_tokenizer(arguments.model), load_model(arguments.model, arguments.device)
    with Executor() as executor:
        tasks = mini_tasks().validation[: arguments.tasks]
        counts = probe(model, tokenizer, tasks, executor.run)
    for name, labels in counts.items():
        passed = labels.get(Label.PASS.value, 0)
        print(f"{name:<12} passed {passed}/{len(tasks)} = {passed / len(tasks):.3f}  {labels}")


if __name__ == "__main__":
    main()
