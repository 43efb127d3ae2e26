"""Messages to token ids: the one chat template, its incremental form, and the proof that both agree.

A message renders as `<|im_start|>ROLE\\nCONTENT\\n<|im_end|>\\n\\n` with CONTENT right-stripped; the generation
prompt is `<|im_start|>assistant\\n`; `<|im_end|>` ends a turn and is the tokenizer's EOS. No message changes how
another one renders, and the special tokens cut the text, so a conversation's ids are the concatenation of its
messages' ids.

What is an exact prefix of what, for prompt P (with generation prompt) and sampled completion C:
- P is always a prefix of the next prompt, rendered from messages or bridged.
- P + C is a prefix of the next *bridged* prompt (`bridge`): C stays as sampled, `\\n\\n` closes it, the new messages
  follow. This is what the in-process client does, so its traces never fork.
- P + C is a prefix of the next *re-rendered* prompt (which the Verifiers train client builds, because renderers'
  DefaultRenderer cannot bridge) only if C is canonical: the tokenizer's own ids for the right-stripped text, one
  newline, `<|im_end|>`. Otherwise the trace forks at the first differing token: the policy ends its turn without
  the newline (`CALL …<|im_end|>`), with trailing spaces, with a non-canonical split (`P|A|S|S`), or writes the
  characters of a special token with ordinary ones. A template-trained policy does the first of these rarely.

Text is tokenised with special tokens recognised, as `apply_chat_template` does: a message that contains the
characters `<|im_end|>` closes its turn. Nothing here knows the wording of any message or loads a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
TURN_CLOSE = "\n\n"
"""The scaffold between a sampled `<|im_end|>` and the next message."""

Role = Literal["system", "user", "assistant", "tool"]
Message = Mapping[str, Any]
"""A chat message: `role`, and `content` as a string, a list of text parts, or None. Other keys are ignored."""

_DIFF_CONTEXT = 4


class TokenizerError(ValueError):
    """The tokenizer cannot carry the chat format."""


class ParityError(ValueError):
    """Two ways to the same conversation gave different ids; the message shows where."""


@dataclass(frozen=True)
class Rendered:
    """Token ids of a prompt, and what each belongs to.

    `message_spans[i]` is the half-open span in `token_ids` of the i-th rendered message, scaffold included;
    `is_content[j]` says whether token j carries characters of a message's content.
    """

    token_ids: list[int]
    message_spans: list[tuple[int, int]]
    is_content: list[bool]


@cache
def chat_template() -> str:
    """The Jinja source of the template, the same text that is baked into every tokenizer we save."""
    return files("glyph").joinpath("chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")


def prepare_tokenizer(tokenizer: PreTrainedTokenizerBase, set_eos: bool = False) -> PreTrainedTokenizerBase:
    """Bake the chat template into a tokenizer and check that `<|im_end|>` can end its turns.

    `set_eos` makes `<|im_end|>` the EOS of a base model's tokenizer; without it another EOS is refused, because
    every client takes its stop ids from the saved tokenizer's EOS.

    Raises: TokenizerError.
    """
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    for token in (TURN_START, TURN_END):
        ids = tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise TokenizerError(f"{name}: {token} must be one token, got the ids {ids}; add it as a special token")
    end_id = token_id(tokenizer, TURN_END)
    if set_eos:
        tokenizer.eos_token = TURN_END
    if tokenizer.eos_token_id != end_id:
        raise TokenizerError(
            f"{name}: the EOS must be {TURN_END} (id {end_id}), got {tokenizer.eos_token!r} "
            f"(id {tokenizer.eos_token_id}); use prepare_tokenizer(tokenizer, set_eos=True) and save it"
        )
    tokenizer.chat_template = chat_template()
    return tokenizer


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    return tokenizer.encode(token, add_special_tokens=False)[0]


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], add_generation_prompt: bool = False
) -> Rendered:
    """Render a whole conversation, message by message, with the tokenizer's (prepared) template."""
    token_ids: list[int] = []
    spans: list[tuple[int, int]] = []
    is_content: list[bool] = []
    for message in messages:
        ids, content = _render_message(tokenizer, message)
        spans.append((len(token_ids), len(token_ids) + len(ids)))
        token_ids += ids
        is_content += content
    if add_generation_prompt:
        token_ids += _generation_prompt(tokenizer)
        is_content += [False] * (len(token_ids) - len(is_content))
    return Rendered(token_ids, spans, is_content)


def bridge(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int], completion_ids: list[int], tail: Sequence[Message]
) -> Rendered:
    """The next prompt: what the policy saw and said, kept as it is, then the new messages and a generation prompt.

    `message_spans` covers `tail` only. The closing scaffold counts to no message. A completion that was cut
    before its `<|im_end|>` gets one, which the policy did not sample.
    """
    end_id = token_id(tokenizer, TURN_END)
    cut = not completion_ids or completion_ids[-1] != end_id
    scaffold = ([end_id] if cut else []) + _encode(tokenizer, TURN_CLOSE)
    before = [*prompt_ids, *completion_ids, *scaffold]
    new = render(tokenizer, tail, add_generation_prompt=True)
    spans = [(start + len(before), end + len(before)) for start, end in new.message_spans]
    return Rendered(before + new.token_ids, spans, [False] * len(before) + new.is_content)


def completion_text(tokenizer: PreTrainedTokenizerBase, completion_ids: Sequence[int]) -> str:
    """What the policy said, without special tokens; a final newline stays, as sampled."""
    text = tokenizer.decode(list(completion_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text if isinstance(text, str) else "".join(text)


def canonical_completion(tokenizer: PreTrainedTokenizerBase, content: str) -> list[int]:
    """The ids by which a policy says `content` and ends its turn just as the template would write it."""
    return _encode(tokenizer, f"{content.rstrip()}\n{TURN_END}")


def check_parity(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], renderer_config: Any = None) -> int:
    """Prove that template, renderer and incremental path give the same ids over a whole conversation.

    Compared: the template over all messages; `render`; a rollout in which each assistant message is sampled
    canonically and bridged to the next prompt; and what the Verifiers train client would send, from
    `renderers.create_renderer(tokenizer, renderer_config)` (None: its automatic choice by name), which must also
    stop at `<|im_end|>` alone. Returns the number of tokens compared.

    Raises: ParityError, with the first differing position and both sides.
    """
    from renderers import create_renderer

    whole = _template_ids(tokenizer, messages, add_generation_prompt=False)
    _require_equal(tokenizer, "the template", whole, "message by message", render(tokenizer, messages).token_ids)
    renderer: Any = create_renderer(tokenizer, renderer_config)
    renderer_name = type(renderer).__name__
    stops, end_id = renderer.get_stop_token_ids(), token_id(tokenizer, TURN_END)
    if stops != [end_id]:
        raise ParityError(f"{renderer_name} stops at {stops}, expected [{end_id}] ({TURN_END})")
    _require_equal(tokenizer, "the template", whole, renderer_name, list(renderer.render_ids(list(messages))))
    for prompt, bridged, completion in _canonical_rollout(tokenizer, messages):
        rendered = _template_ids(tokenizer, prompt, add_generation_prompt=True)
        where = f" before message {len(prompt)}"
        _require_equal(tokenizer, "the template" + where, rendered, "the incremental path", bridged)
        other = renderer.render(list(prompt), add_generation_prompt=True).token_ids
        _require_equal(tokenizer, "the template" + where, rendered, renderer_name, list(other))
        said = [*bridged, *completion, *_encode(tokenizer, TURN_CLOSE)]
        _require_equal(
            tokenizer, "the template", whole[: len(said)], f"the turn sampled as message {len(prompt)}", said
        )
    return len(whole)


def _canonical_rollout(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> list[tuple[Sequence[Message], list[int], list[int]]]:
    """For each assistant message: the messages before it, its bridged prompt ids, its canonical completion ids."""
    turns: list[tuple[Sequence[Message], list[int], list[int]]] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if not turns:
            prompt_ids = render(tokenizer, messages[:index], add_generation_prompt=True).token_ids
        else:
            previous, ids, completion = turns[-1]
            prompt_ids = bridge(tokenizer, ids, completion, messages[len(previous) + 1 : index]).token_ids
        turns.append((messages[:index], prompt_ids, canonical_completion(tokenizer, content_text(message))))
    return turns


def content_text(message: Message) -> str:
    """A message's content as one string; an absent content is empty."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def describe_difference(
    tokenizer: PreTrainedTokenizerBase, left_name: str, left: list[int], right_name: str, right: list[int]
) -> str | None:
    """Where two id sequences part, with a few tokens around it on both sides; None when they are equal."""
    pairs = enumerate(zip_longest(left, right))
    position = next((index for index, (one, other) in pairs if one != other), None)
    if position is None:
        return None
    width = max(len(left_name), len(right_name))
    lines = [f"token ids differ at position {position} ({left_name}: {len(left)} ids, {right_name}: {len(right)} ids)"]
    for name, ids in ((left_name, left), (right_name, right)):
        start = max(0, position - _DIFF_CONTEXT)
        shown = ids[start : position + _DIFF_CONTEXT]
        marked = ["" if start + offset != position else ">" for offset in range(len(shown))]
        tokens = " ".join(f"{mark}{i}:{tokenizer.decode([i])!r}" for mark, i in zip(marked, shown, strict=True))
        lines.append(
            f"  {name:<{width}}  from {start}: {tokens or '(ends)'}{' (ends)' if position >= len(ids) else ''}"
        )
    return "\n".join(lines)


def _require_equal(
    tokenizer: PreTrainedTokenizerBase, left_name: str, left: list[int], right_name: str, right: list[int]
) -> None:
    difference = describe_difference(tokenizer, left_name, left, right_name, right)
    if difference:
        raise ParityError(difference)


def _render_message(tokenizer: PreTrainedTokenizerBase, message: Message) -> tuple[list[int], list[bool]]:
    """Ids of one message, and for each whether it overlaps the content's characters."""
    text = tokenizer.apply_chat_template([dict(message)], tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    start = len(f"{TURN_START}{message['role']}\n")
    end = len(text) - len(f"\n{TURN_END}{TURN_CLOSE}")
    return encoded["input_ids"], [first < end and last > start for first, last in encoded["offset_mapping"]]


def _generation_prompt(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return _encode(tokenizer, f"{TURN_START}assistant\n")


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _template_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], add_generation_prompt: bool
) -> list[int]:
    wire = [dict(message) for message in messages]
    ids = tokenizer.apply_chat_template(wire, add_generation_prompt=add_generation_prompt, return_dict=False)
    return list(ids)  # type: ignore[arg-type]
