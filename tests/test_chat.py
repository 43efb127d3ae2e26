"""Chat template, renderer and incremental path: the same ids, and a readable diff when they are not."""

import pytest
from renderers import DefaultRendererConfig, create_renderer
from transformers import AutoTokenizer

from glyph.chat import (
    ParityError,
    TokenizerError,
    bridge,
    canonical_completion,
    chat_template,
    check_parity,
    completion_text,
    describe_difference,
    prepare_tokenizer,
    render,
)
from glyph.protocol import (
    Call,
    Decision,
    Label,
    Prediction,
    Tool,
    render_call,
    render_final,
    render_prediction,
    render_result,
    render_test_result,
)
from tests.tiny_model import save_tiny_model, tiny_tokenizer


def patch(number: int, body: str) -> Call:
    arguments = {"file_path": "solution.py", "find": "pass", "replace": body}
    return Call(Tool.APPLY_PATCH, str(number), arguments)


def run_test(number: int) -> Call:
    return Call(Tool.PYTHON_TEST, str(number), {"project_path": "."})


def two_recoveries() -> list[dict[str, str]]:
    """Arm B's longest shape: two honest mistakes, each tested and mended; 16 messages."""
    keep = [render_prediction(Prediction(Label.PASS, Decision.KEEP, run_test(number))) for number in (2, 4, 6)]
    turns = [
        (render_call(patch(1, "def f(x):\n    return x - 1\n")), render_result("1", True, stdout="patch applied")),
        (keep[0], render_test_result("2", Label.ASSERTION_FAILURE)),
        (
            render_call(patch(3, "def f(x):\n    return x / 0  # ünïcödé → 世界\n")),
            render_result("3", True, "patch applied"),
        ),
        (keep[1], render_test_result("4", Label.RUNTIME_ERROR)),
        (render_call(patch(5, "def f(x):\n    return x + 1\n")), render_result("5", True, stdout="patch applied")),
        (keep[2], render_test_result("6", Label.PASS)),
    ]
    messages = [
        {"role": "system", "content": "You are a coding agent.\n"},
        {"role": "user", "content": "Write f.\n\nassert f(1) == 2\n  "},
    ]
    for said, result in turns:
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": result}]
    return [*messages, {"role": "assistant", "content": render_final("done")}]


def test_a_message_renders_as_specified() -> None:
    tokenizer = tiny_tokenizer()
    messages = [{"role": "user", "content": " a \n\n"}, {"role": "assistant", "content": None}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\n a\n<|im_end|>\n\n<|im_start|>assistant\n\n<|im_end|>\n\n<|im_start|>assistant\n"
    )


def test_text_parts_render_as_their_text() -> None:
    tokenizer = tiny_tokenizer()
    parts = [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b \n"}]}]
    assert render(tokenizer, parts) == render(tokenizer, [{"role": "user", "content": "a b"}])


def test_all_paths_agree_over_a_two_recovery_trace() -> None:
    messages = two_recoveries()
    assert len(messages) == 15
    assert check_parity(tiny_tokenizer(), messages) == len(render(tiny_tokenizer(), messages).token_ids)
    assert check_parity(tiny_tokenizer(), messages, DefaultRendererConfig()) > 300


def test_a_saved_model_folder_gets_the_default_renderer_and_stops_at_im_end(tmp_path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(tmp_path / "model"))
    assert tokenizer.chat_template == chat_template()
    renderer = create_renderer(tokenizer)
    assert type(renderer).__name__ == "DefaultRenderer"
    assert renderer.get_stop_token_ids() == [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    check_parity(tokenizer, two_recoveries())


def test_spans_and_content_mask_tile_the_prompt() -> None:
    tokenizer = tiny_tokenizer()
    messages = two_recoveries()
    rendered = render(tokenizer, messages, add_generation_prompt=True)
    assert [start for start, _ in rendered.message_spans[1:]] == [end for _, end in rendered.message_spans[:-1]]
    assert len(rendered.is_content) == len(rendered.token_ids)
    for message, (start, end) in zip(messages, rendered.message_spans, strict=True):
        body = [rendered.token_ids[i] for i in range(start, end) if rendered.is_content[i]]
        assert tokenizer.decode(body).strip() == message["content"].strip()


def test_a_bridge_keeps_the_completion_as_sampled() -> None:
    tokenizer = tiny_tokenizer()
    prompt_ids = render(tokenizer, two_recoveries()[:2], add_generation_prompt=True).token_ids
    sampled = [tokenizer.encode(letter)[0] for letter in "PASS"] + [tokenizer.eos_token_id]
    tail = [{"role": "tool", "content": "RESULT 1:"}]
    bridged = bridge(tokenizer, prompt_ids, sampled, tail)
    assert bridged.token_ids[: len(prompt_ids) + len(sampled)] == [*prompt_ids, *sampled]
    rest = tokenizer.decode(bridged.token_ids[len(prompt_ids) + len(sampled) :])
    assert rest == "\n\n<|im_start|>tool\nRESULT 1:\n<|im_end|>\n\n<|im_start|>assistant\n"
    start, end = bridged.message_spans[0]
    assert tokenizer.decode(bridged.token_ids[start:end]) == "<|im_start|>tool\nRESULT 1:\n<|im_end|>\n\n"


def test_a_completion_without_the_newline_forks_when_rendered_again() -> None:
    tokenizer = tiny_tokenizer()
    start = two_recoveries()[:2]
    prompt_ids = render(tokenizer, start, add_generation_prompt=True).token_ids
    bare = [*tokenizer.encode("FINAL: done"), tokenizer.eos_token_id]
    again = render(tokenizer, [*start, {"role": "assistant", "content": completion_text(tokenizer, bare)}]).token_ids
    assert again[: len(prompt_ids) + len(bare)] != prompt_ids + bare
    canonical = canonical_completion(tokenizer, "FINAL: done")
    assert again[: len(prompt_ids) + len(canonical)] == prompt_ids + canonical


def test_a_cut_completion_is_closed() -> None:
    tokenizer = tiny_tokenizer()
    bridged = bridge(tokenizer, [5], [6], [])
    assert bridged.token_ids[2] == tokenizer.eos_token_id


def test_parity_failure_shows_where_and_what() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat_template().replace("message.role +", "message.role + (mark or '') +")
    check_parity(tokenizer, two_recoveries())
    with pytest.raises(ParityError) as error:
        check_parity(tokenizer, two_recoveries(), DefaultRendererConfig.model_validate({"mark": "!"}))
    text = str(error.value)
    assert "differ at position" in text
    assert "the template" in text
    assert "DefaultRenderer" in text
    assert "'!'" in text


def test_a_template_that_depends_on_later_messages_is_caught() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat_template().replace(
        "'\\n<|im_end|>\\n\\n'", "'\\n<|im_end|>' + ('' if loop.last else '\\n\\n')"
    )
    with pytest.raises(ParityError, match="message by message"):
        check_parity(tokenizer, two_recoveries())


def test_difference_names_position_ids_and_text() -> None:
    tokenizer = tiny_tokenizer()
    one, other = tokenizer.encode("a1"), tokenizer.encode("a2")
    text = describe_difference(tokenizer, "left", one, "right", other)
    assert text is not None
    assert "position 1" in text
    assert f">{one[1]}:'1'" in text
    assert f">{other[1]}:'2'" in text
    assert describe_difference(tokenizer, "left", one, "right", list(one)) is None
    assert "(ends)" in (describe_difference(tokenizer, "left", one, "right", one[:1]) or "")


def test_prepare_refuses_another_eos_and_says_what_to_do() -> None:
    with pytest.raises(
        TokenizerError, match=r"the EOS must be <\|im_end\|> \(id 2\), got '<\|endoftext\|>' \(id 0\).*set_eos"
    ):
        tiny_tokenizer(eos="<|endoftext|>")
    tokenizer = prepare_tokenizer(tiny_tokenizer(eos="<|endoftext|>", prepare=False), set_eos=True)
    assert tokenizer.eos_token == "<|im_end|>"


def test_prepare_refuses_a_tokenizer_without_the_token() -> None:
    tokenizer = tiny_tokenizer(prepare=False)
    plain = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer.__class__.from_str(_without_special(tokenizer))
    )
    with pytest.raises(TokenizerError, match="must be one token"):
        prepare_tokenizer(plain)


def _without_special(tokenizer) -> str:
    text = tokenizer.backend_tokenizer.to_str()
    return text.replace("<|im_end|>", "<|other|>").replace("<|im_start|>", "<|begin|>")
