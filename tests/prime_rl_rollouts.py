"""Rollouts as PRIME-RL gets them: our environment, Verifiers' own train client, a token endpoint that says given ids.

The tokenizer splits text as Qwen's does, so that `>PASS` is one piece of text and its usual ids cross the bracket.
"""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import verifiers.v1 as vf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from verifiers.v1.clients import TrainClientConfig, resolve_client

from glyph.chat import canonical_completion, prepare_tokenizer
from glyph.local.inference.requests import Completion
from glyph.local.serving.server import Service, create_app, start
from glyph.protocol import Arm
from glyph.tasks.demonstrations import Family, assistant_turns
from glyph.tasks.prompts import load_wording
from tests.tiny_model import CORPUS, SPECIAL_TOKENS
from tests.tiny_tasks import DEMONSTRATIONS

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LOGPROB = -0.5
"""What the endpoint says of each token that it samples."""
Ids = list[int]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator([*CORPUS, *["<PREDICTION>PASS</PREDICTION>\n"] * 20], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    prepare_tokenizer(wrapped)
    return wrapped


@cache
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer()), initializer_range=0.15, **shape, **heads)).eval()


def save_tokenizer(folder: Path) -> Path:
    tokenizer().save_pretrained(folder)
    return folder


def canonical(turn: str) -> Ids:
    """The turn as the template would write it."""
    return canonical_completion(tokenizer(), turn)


def pieces(*texts: str) -> Ids:
    """The turn in these pieces, each tokenised by itself, ended as the template would end it."""
    own = [i for text in texts for i in tokenizer().encode(text, add_special_tokens=False)]
    return [*own, *canonical("")]


def abrupt(turn: str) -> Ids:
    """The turn without the newline before `<|im_end|>`: the next prompt, rendered anew, does not begin with it."""
    return [*tokenizer().encode(turn, add_special_tokens=False), tokenizer().eos_token_id]


TURNS = assistant_turns(DEMONSTRATIONS[Family.VISIBLE], Arm.PREDICTIVE, load_wording())
"""Arm B: patch, PASS and KEEP, which fails; patch, PASS and KEEP, which passes; FINAL."""
SHADOW = assistant_turns(DEMONSTRATIONS[Family.SHADOW], Arm.PREDICTIVE, load_wording())
"""Arm B: patch, its true failure and REVISE with a patch, PASS and KEEP, which passes; FINAL."""
REACTIVE = assistant_turns(DEMONSTRATIONS[Family.VISIBLE], Arm.REACTIVE, load_wording())
SOLVES = [canonical(turn) for turn in TURNS]
REVISES = [canonical(turn) for turn in SHADOW]
GIVES_UP = [*SOLVES[:2], canonical("FINAL: no")]
CUT = [SOLVES[0], canonical("x" * 60)[:-1]]


class Sayer:
    """The endpoint's engine. A turn without `<|im_end|>` is one cut by its length; running out of turns is a fault."""

    max_model_len = 100_000

    def __init__(self, turns: Sequence[Ids]) -> None:
        self._turns = list(turns)

    async def generate(self, token_ids: Ids, sampling: Any, session: str | None = None) -> Completion:
        ids = self._turns.pop(0)
        ended = ids[-1] == tokenizer().eos_token_id
        return Completion(ids, [LOGPROB] * len(ids), "stop" if ended else "length")


@asynccontextmanager
async def train_client(folder: Path, turns: Sequence[Ids]):
    service = Service(Sayer(turns), tokenizer(), (str(folder),))  # type: ignore[arg-type]
    runner, url = await start(create_app(service), "127.0.0.1", 0)
    try:
        yield resolve_client(TrainClientConfig(base_url=f"{url}/v1", renderer={"name": "default"}))
    finally:
        await runner.cleanup()


async def play(data: Path, folder: Path, turns: Sequence[Ids], arm: str = "b", **taskset: Any) -> vf.Trace:
    """One rollout of the task `tiny-2`. Its environment counts a cut rollout as an error, as the paper's does."""
    settings = {"id": "glyph", "data": str(data), "arm": arm, "cut": "error", "max_context_tokens": 100_000}
    env = vf.Environment(vf.EnvConfig(taskset={**settings, **taskset}, harness={"id": "glyph", "isolation": "process"}))
    task = next(task for task in env.taskset.load() if task.data.task_id == "tiny-2")
    async with train_client(folder, turns) as client, env.serving():
        context = vf.ModelContext(client=client, model=str(folder), sampling=vf.SamplingConfig(temperature=0.8))
        [trace] = await env.episode(task, context, n=1).run(None)
    return trace
