"""A random causal model of a few thousand parameters and a small byte-level BPE with the ChatML tokens.

Everything is made on the fly and is the same in every run: no hub, no files in the repository.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config
from transformers import Qwen3ForCausalLM as Qwen3

from glyph.chat import prepare_tokenizer
from glyph.protocol import TEST_LINES, Label

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 400
CONTEXT = 512

CORPUS = [
    *(label.value for label in Label),
    *TEST_LINES.values(),
    "<PREDICTION>PASS</PREDICTION>\n<DECISION>KEEP</DECISION>\n<DECISION>REVISE</DECISION>\n",
    'CALL apply_patch {"id": "1", "file_path": "solution.py", "find": "x", "replace": "y"}\n',
    'CALL python_test {"id": "2", "project_path": "."}\nCALL read_file {"id": "3", "file_path": "solution.py"}\n',
    "RESULT 1:\nstatus: success\nstdout:\npatch applied\nRESULT 2:\nstatus: failed\nstderr:\n",
    "FINAL: done\nsystem user assistant tool\n",
    "def add(a, b):\n    return a + b\n\nassert add(1, 2) == 3\n",
]


@cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(eos: str = "<|im_end|>", prepare: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json()), eos_token=eos, pad_token="<|endoftext|>"
    )
    if prepare:
        prepare_tokenizer(tokenizer)
    return tokenizer


def tiny_model(architecture: str = "qwen3", seed: int = 0) -> PreTrainedModel:
    """Two layers, grouped heads, weights wide enough that the next-token distributions are far from flat."""
    tokenizer = tiny_tokenizer()
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.15,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    torch.manual_seed(seed)
    if architecture == "qwen3":
        return Qwen3(Qwen3Config(head_dim=12, **shape)).eval()
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()


def save_tiny_model(folder: Path, architecture: str = "qwen3") -> Path:
    """A model folder as `glyph serve` and the train client load it, chat template baked in."""
    tiny_model(architecture).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
