"""Supervised fine-tuning: the SFT traces of an arm, cross-entropy on what the assistant says.

    data/sft/arm_X/train.jsonl → `conversation_sample` of each → shuffled epochs → `Trainer.step`

A turn's loss covers its content, the newline and `<|im_end|>`: what a policy samples. (The published template also
trains on the two newlines that follow, which no policy ever samples.)

The same SFT gives the same weights, to the bit, on one kind of machine: runs of RL that are made apart start alike.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from glyph.chat import TURN_END, Message, render, token_id
from glyph.codec import codec_of
from glyph.config import SftConfig
from glyph.credit import TrainingSample
from glyph.local.runs.run_folder import RunFolder
from glyph.local.training.order import batch_indices
from glyph.local.training.packing import Tree, plant
from glyph.local.training.trainer import TrainingError
from glyph.local.training.workbench import RunStopped, StopRequest, Watch, Workbench, due, load_workbench
from glyph.protocol import Label, Tool
from glyph.tasks.validation import read_rows


def conversation_sample(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], cuts: Mapping[int, int] | None = None
) -> TrainingSample:
    """A conversation as a sample whose cross-entropy stands on the assistant's turns, weight 1.0 a token.

    `cuts` gives turns, by message index, that train only up to a byte of their content.
    """
    rendered = render(tokenizer, messages)
    ids, end = rendered.token_ids, token_id(tokenizer, TURN_END)
    token_bytes = codec_of(tokenizer).token_bytes
    weights = [0.0] * len(ids)
    for index, (message, (start, stop)) in enumerate(zip(messages, rendered.message_spans, strict=True)):
        if message["role"] == "assistant":
            first = start + len(render(tokenizer, [], add_generation_prompt=True).token_ids)
            last = stop - ids[start:stop][::-1].index(end)
            if cuts and index in cuts:
                ends = accumulate(len(token_bytes(i)) for i in ids[first:last])
                last = first + sum(position <= cuts[index] for position in ends)
            weights[first:last] = [1.0] * (last - first)
    nothing = (0.0,) * len(ids)
    return TrainingSample(tuple(ids), (False,) * len(ids), nothing, nothing, tuple(weights))


def faulty_patches(row: Mapping[str, Any]) -> dict[int, int]:
    """Where the calls of an SFT trace begin, by message index and byte, whose patch fails to apply or is a fault."""
    messages, states = row["messages"], iter(row["states"])
    found = {}
    for index, message in enumerate(messages):
        at = f"\n{message['content']}".find(f"\nCALL {Tool.APPLY_PATCH.value} ")  # JSON escapes every other line break
        if message["role"] == "assistant" and at >= 0:
            applied = messages[index + 1]["content"].split("\n")[1] == "status: success"
            if not applied or next(states)["label"] != Label.PASS.value:
                found[index] = len(message["content"][:at].encode())
    return found


def load_samples(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> list[TrainingSample]:
    """The arm's SFT traces as samples, in file order.

    Raises:
        ValueError: no prepared data, or a conversation longer than `sft.sequence_length`.
    """
    name = f"sft/arm_{config.arm.value}/train.jsonl"
    samples = []
    for number, row in enumerate(read_rows(config.data, name, ("messages", "states")), start=1):
        cuts = faulty_patches(row) if config.sft.faulty_patches == "masked" else None
        sample = conversation_sample(tokenizer, row["messages"], cuts)
        if len(sample.token_ids) > config.sft.sequence_length:
            raise ValueError(
                f"{config.data / name}:{number}: {len(sample.token_ids)} tokens, sft.sequence_length is "
                f"{config.sft.sequence_length}: raise it, nothing is cut"
            )
        samples.append(sample)
    return samples


@contextmanager
def repeatable_kernels(wanted: bool = True) -> Iterator[None]:
    """Only kernels whose sums do not depend on which thread comes first, if wanted.

    A GPU's own choice for the gradient of attention is one that does:
    https://docs.pytorch.org/docs/stable/notes/randomness.html. cuBLAS reads its variable once, so it stays set.

    Raises:
        TrainingError: an operation that has no such kernel.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        operation = str(error).partition(". ")[0]
        raise TrainingError(f"SFT: {operation}; sft.repeatable=false takes the kernels that there are") from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def train_sft(config: SftConfig, folder: RunFolder, watch: Watch, stop: StopRequest) -> None:
    """Run SFT from wherever the folder stands to the last step, with a checkpoint there.

    Raises:
        RunStopped: it was asked to stop, and saved.
        ValueError, CheckpointError, TrainingError: what the run cannot do without; earlier checkpoints stand.
    """
    with repeatable_kernels(config.sft.repeatable):
        _train(config, folder, watch, stop)


def _train(config: SftConfig, folder: RunFolder, watch: Watch, stop: StopRequest) -> None:
    with watch.waiting("loading the model"):
        bench = load_workbench(config, config.sft.steps)
    samples = load_samples(config, bench.tokenizer)
    trees = [plant([sample])[0] for sample in samples]
    checkpoint = bench.restore(folder)
    done = checkpoint.step if checkpoint else 0
    for step in range(done + 1, config.sft.steps + 1):
        with watch.waiting(f"step {step}"):
            line = _step(config, bench, trees, step)
        folder.log_metrics(line)
        watch.update(line)
        if stop.requested or due(step, config.checkpoints.every, config.sft.steps):
            bench.save(folder, step)
        if stop.requested and step < config.sft.steps:
            raise RunStopped(f"stopped after step {step}")


def _step(config: SftConfig, bench: Workbench, trees: Sequence[Tree], step: int) -> dict[str, Any]:
    started = time.perf_counter()
    chosen = batch_indices(len(trees), config.sft.batch_size, step, config.seed)
    result = bench.trainer.step([trees[i] for i in chosen])
    return {
        "kind": "train",
        "step": step,
        "epoch": round(step * config.sft.batch_size / len(trees), 3),
        "loss": result.label_loss,
        "learning_rate": result.learning_rate,
        "grad_norm": result.grad_norm,
        "trained_tokens": result.ce_tokens,
        "input_tokens": result.input_tokens,
        "tokens_per_second": round(result.input_tokens / result.seconds, 1),
        "seconds": {"training": round(result.seconds, 4), "total": round(time.perf_counter() - started, 4)},
    }
