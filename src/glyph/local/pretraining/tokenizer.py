"""The mini model's tokenizer: a byte-level BPE of its own, trained on the mini world's text.

Texts go in, a Hugging Face tokenizer comes out, with the ChatML tokens, our chat template and `<|im_end|>` as EOS.

- Digits stand singly. Words take a leading space or underscore; brackets, quotes and operators join into runs; a line
  break takes the indentation with it, in plain code and as the `\\n` of a JSON string, so that the same code has the
  same pieces in both forms but for the line breaks.
- The protocol's fixed strings are added pieces of one token each, and so is an arm's whole system prompt: this keeps
  rollouts short. They occur in no pre-training text, so a base model knows nothing of them. They are read off the
  protocol's own renderers; another wording of the prompts still works, only with more tokens.
- Labels are NOT single tokens. They are cut as Qwen2.5 cuts them (PASS is P|ASS, ASSERTION_FAILURE is
  ASSERT|ION|_FAILURE), so that the cross-entropy on a label weighs as in the published study: with single tokens all
  of it falls on the token that decides.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from glyph.chat import TURN_END, TURN_START, prepare_tokenizer
from glyph.protocol import TEST_LINES, Arm, Call, Decision, Label, Tool, render_call, render_final, render_test_result
from glyph.tasks.mini.generate import DEFAULT_SEED
from glyph.tasks.mini.pretraining import write_chunk
from glyph.tasks.prompts import load_wording
from glyph.variants import STANDARD
from glyph.workspace import PLACEHOLDER, PROJECT_PATH, SOLUTION_PATH

DOCUMENT_END = "<|endoftext|>"
SPECIAL = (DOCUMENT_END, TURN_START, TURN_END)
VOCABULARY = 2_048
"""Of all tokens, special and added ones included: a multiple of 64."""
CONTEXT = 4_096

PIECES = (
    r"\\n *",  # the line break of a JSON string, with what indents the next line
    r"\n+ *",
    r"[ _]?\p{L}+(?:_\p{L}+)*",  # names whole: an operation's name becomes one token
    r"\p{N}",
    r"\\[^n]",
    r"(?: ?[^\s\p{L}\p{N}\\]+)+(?: (?=\p{N}))?",  # `]) == [`, `, -`, ` % ` before a number
    r"\s",
)
"""Where text is cut before the merges, first alternative first."""

LABEL_PIECES = ("ASS", "ASSERT", "ION", "_FAILURE", "RUN", "TIME", "_ERROR", "SYN", "TAX", "OUT", "OTH")
_MARK = "\0"
_BUDGET = 8


def protocol_pieces() -> list[str]:
    """The fixed strings of turns, results and prompts, without duplicates, in a fixed order."""
    pieces = [*_call_pieces(), *_result_pieces(), *_prompt_pieces()]
    pieces += ["<PREDICTION>", "</PREDICTION>", "<DECISION>", "</DECISION>", *(each.value for each in Decision)]
    return list(dict.fromkeys([*pieces, *LABEL_PIECES]))


def _call_pieces() -> Iterator[str]:
    """What stands between the variable parts of a call, but for its last characters."""
    shapes = {
        Tool.APPLY_PATCH: {"file_path": SOLUTION_PATH, "find": _MARK, "replace": _MARK},
        Tool.PYTHON_TEST: {"project_path": PROJECT_PATH},
        Tool.READ_FILE: {"file_path": SOLUTION_PATH},
    }
    for tool, arguments in shapes.items():
        text = render_call(Call(tool, _MARK, arguments)).replace("\\u0000", _MARK)
        yield from (part for part in text.split(_MARK) if len(part) > len('"}'))
    yield PLACEHOLDER.rstrip("\n")
    yield render_final(load_wording().texts["demonstration"]["final"])
    yield render_final("").rstrip()


def _result_pieces() -> Iterator[str]:
    yield "RESULT "
    for label in TEST_LINES:
        yield render_test_result(_MARK, label).split(_MARK)[1]
    failed = render_test_result(_MARK, Label.OTHER).split(_MARK)[1]
    passed = render_test_result(_MARK, Label.PASS).split(_MARK)[1]
    yield failed.removesuffix(TEST_LINES[Label.OTHER])
    yield passed.removesuffix(TEST_LINES[Label.PASS])
    yield from ("patch applied", "patch failed: find ", "does not occur", "occurs more than once")
    yield f" in {SOLUTION_PATH}, it must occur exactly once"


def _prompt_pieces() -> Iterator[str]:
    """Both arms' system prompts, whole and by sentence, and what the user prompt has between its parts."""
    wording = load_wording()
    for arm in Arm:
        yield wording.system(arm, STANDARD, _BUDGET)
        for line in wording.system(arm, STANDARD, _BUDGET).split("\n"):
            if not line.startswith(("CALL", "FINAL", "<")):  # the examples of turns, which real turns may equal
                yield from (sentence for sentence in re.split(r"(?<=\.) (?=[A-Z])", line) if len(sentence) > 12)
    user = wording.texts["task"]["user"].strip().replace("{placeholder}", PLACEHOLDER.strip())
    yield from (part for part in re.split(r"\{\w+\}", user) if part)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Merges from the texts until special, added and learned tokens are `VOCABULARY` together."""
    added = protocol_pieces()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(PIECES)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(added),
        min_frequency=4,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_plain(texts), trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in added])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=DOCUMENT_END, model_max_length=CONTEXT
    )
    prepare_tokenizer(wrapped)
    return wrapped


def _plain(texts: Iterable[str]) -> Iterator[str]:
    """The texts cut at the special tokens, so that no merge is learned from the characters of one."""
    for text in texts:
        yield from (part for part in re.split("|".join(map(re.escape, SPECIAL)), text) if part)


def mini_tokenizer(seed: int = DEFAULT_SEED, samples: int = 4_000) -> PreTrainedTokenizerFast:
    """The tokenizer of the mini scale, trained on a stream of documents of its own."""
    return train_tokenizer(text.text for text in write_chunk(0, seed, "tokenizer", samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    arguments = parser.parse_args()
    mini_tokenizer(arguments.seed).save_pretrained(arguments.folder)
    print(f"wrote {arguments.folder}; next: python -m glyph.local.pretraining.corpus --tokenizer {arguments.folder}")


if __name__ == "__main__":
    main()
