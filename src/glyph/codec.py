"""A Hugging Face tokenizer as the `Codec` that credit needs: bytes of single ids, for byte-level BPE."""

from functools import cache, lru_cache

from transformers import PreTrainedTokenizerBase

from glyph.credit import Codec


def codec_of(tokenizer: PreTrainedTokenizerBase) -> Codec:
    """The codec of a byte-level BPE tokenizer (Qwen, Llama 3, SmolLM2, our own small ones).

    Raises:
        ValueError: the tokenizer decodes in another way, so that an id has no bytes of its own.
    """
    decoder = tokenizer.backend_tokenizer.decoder
    rule = decoder.__getstate__().decode() if decoder else "none"  # JSON, without the vocabulary
    if '"ByteLevel"' not in rule:
        raise ValueError(f"{tokenizer.name_or_path}: credit needs a byte-level BPE tokenizer, its decoder is {rule}")
    added = {i: token.content.encode() for i, token in tokenizer.added_tokens_decoder.items()}
    alphabet = _byte_of_character()

    @cache
    def token_bytes(token_id: int) -> bytes:
        if token_id in added:
            return added[token_id]
        token = tokenizer.convert_ids_to_tokens(token_id)
        return bytes(alphabet[character] for character in token or "")

    return Codec(token_bytes, lambda text: tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: visible Latin-1 characters as they are, the others from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
