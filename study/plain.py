"""The model before any training, on a plain prompt: `python -m study.plain MODEL --data DIR --output FOLDER`.

    task → one user message (the text and its assertions) → greedy completion → the code in it → the task's tests

One line a task in plain.jsonl: task id, the code, the verdict's label. MBPP's texts are not in it.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers import AutoTokenizer

from glyph.commands.console import progress, say
from glyph.config import RlConfig, load_config
from glyph.executor import Executor
from glyph.files import write_atomically
from glyph.local.inference.backends import load_generator
from glyph.local.inference.requests import Completion, GenerationError, GenerationRequest, SteppedGenerator
from glyph.local.inference.sampling import SamplingParams
from glyph.protocol import Arm, Label
from glyph.tasks.task import CodeTask
from glyph.tasks.validation import data_facts, read_tasks
from glyph.versions import manifest
from study.pieces import PLAIN

PROMPT = "{text}\n\nYour code must pass these tests:\n{tests}\n\nAnswer with one Python code block and nothing else."
FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
ENDS = ("<|im_end|>", "<|endoftext|>")


def code_of(completion: str) -> str:
    """The first fenced block; without one, the whole text."""
    found = FENCE.search(completion)
    return (found[1] if found else completion).strip() + "\n"


def prompt_ids(tokenizer: Any, task: CodeTask) -> list[int]:
    """In the model's own chat template."""
    content = PROMPT.format(text=task.text, tests=task.test_code.strip())
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def complete(
    generator: SteppedGenerator, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[Completion | GenerationError]:
    """What each prompt led to."""
    tickets = [generator.submit(GenerationRequest(ids, sampling)) for ids in prompts]
    ended: dict[int, Completion | GenerationError] = {}

    def steps() -> Iterator[tuple[int, Completion | GenerationError]]:
        while generator.busy:
            yield from generator.step()

    for ticket, result in progress(steps(), "plain completions", len(prompts)):
        ended[ticket] = result
    return [ended[ticket] for ticket in tickets]


def play(config: RlConfig, tasks: Sequence[CodeTask]) -> tuple[list[dict[str, Any]], Any]:
    """One line a task, and what the tests ran in."""
    tokenizer: Any = AutoTokenizer.from_pretrained(config.model)
    generator = load_generator(config, config.model)
    ends = tuple(i for i in tokenizer.convert_tokens_to_ids(list(ENDS)) if i is not None)
    sampling = SamplingParams(0.0, max_tokens=config.sampling.max_completion_tokens, stop_token_ids=ends)
    results = complete(generator, [prompt_ids(tokenizer, task) for task in tasks], sampling)
    lines = []
    with Executor(workers=config.environment.test_workers, limits=config.limits()) as executor:
        for task, result in progress(zip(tasks, results, strict=True), "tests", len(tasks)):
            if not isinstance(result, Completion):
                raise ValueError(f"task {task.task_id}: no completion: {result}")
            code = code_of(tokenizer.decode(result.token_ids, skip_special_tokens=True))
            label = executor.run(code, task.test_code).label
            lines.append({"task_id": task.task_id, "solved": label is Label.PASS, "label": label.value, "code": code})
        return lines, executor.facts()


def main(
    model: Annotated[str, typer.Argument(help="a model folder or hub id")],
    output: Annotated[Path, typer.Option(help="the folder to write")],
    data: Annotated[Path, typer.Option(help="a prepared data folder")] = Path("data"),
    num_tasks: Annotated[int, typer.Option("--num-tasks", "-n", help="the first n tasks; 0 for all", min=0)] = 0,
    scale: Annotated[str, typer.Option(help="whose limits of tokens and time hold")] = "small",
) -> None:
    """Play the test tasks once, greedily."""
    started = time.monotonic()
    config = load_config("rl", scale, "a", model=model, data=str(data))
    tasks = read_tasks(data, Arm.REACTIVE, "test")[: num_tasks or None]
    lines, executor = play(config, tasks)
    body = "".join(json.dumps(line) + "\n" for line in lines)
    write_atomically(output / PLAIN, body)
    facts = manifest(
        model=model,
        split="test",
        data=data_facts(data),
        executor=executor,
        prompt=PROMPT,
        max_completion_tokens=config.sampling.max_completion_tokens,
        seconds=round(time.monotonic() - started, 1),
    )
    write_atomically(output / "manifest.json", json.dumps(facts, indent=2) + "\n")
    solved = sum(line["solved"] for line in lines)
    say(f"solved on a plain prompt: {solved} of {len(lines)}\nwrote {output}")


if __name__ == "__main__":
    typer.run(main)
