"""The JSON that the server and the in-process client take: validated request types, turned into sampling parameters.

Fields that would change what is sampled and are not implemented are refused unless they hold their neutral value;
other unknown fields are ignored, as OpenAI-compatible servers do.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from pydantic import model_validator as validates_model

from glyph.chat import Role
from glyph.local.inference.sampling import SamplingParams
from glyph.protocol import is_text

NEUTRAL_VALUES: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "stream": False,
    "min_tokens": 0,
    "min_p": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "length_penalty": 1,
    "ignore_eos": False,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": None,
    "prompt_logprobs": None,
    "tools": [],
    "functions": [],
    "echo": False,
}
"""Fields of the OpenAI and vLLM interfaces that are accepted with these values (or null) only."""


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if not is_text(value):
        raise ValueError("holds a lone surrogate, which is no text")
    return value


def _stop_strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(_text)]
Stop = Annotated[list[Annotated[Text, Field(min_length=1)]] | None, BeforeValidator(_stop_strings)]


class SamplingFields(BaseModel):
    """Sampling fields as they stand in a request; None means the default."""

    model_config = ConfigDict(extra="allow")

    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    seed: StrictInt | None = None
    stop_token_ids: list[StrictInt] | None = None
    stop: Stop = None

    @validates_model(mode="after")
    def _refuse_unimplemented(self) -> "SamplingFields":
        for name, value in (self.model_extra or {}).items():
            if name in NEUTRAL_VALUES and value is not None and value != NEUTRAL_VALUES[name]:
                raise ValueError(f"'{name}' is not supported, only {NEUTRAL_VALUES[name]!r} is accepted")
        return self

    def to_params(self, eos_token_id: int) -> SamplingParams:
        """Sampling parameters; generation stops at the EOS and at the request's own stop ids.

        Raises: ValueError, with the field that is out of its range.
        """
        given = [self.max_completion_tokens, self.max_tokens]
        max_tokens = next((value for value in given if value is not None), None)
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            max_tokens=max_tokens,
            stop_token_ids=tuple({eos_token_id, *(self.stop_token_ids or [])}),
            seed=self.seed,
        )


class TextPart(BaseModel):
    type: Annotated[str, Field(pattern="^text$")]
    text: Text


class ChatMessage(BaseModel):
    role: Role
    content: Text | list[TextPart] | None = None


class ChatRequest(SamplingFields):
    model: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    logprobs: StrictBool | None = None


class GenerateRequest(BaseModel):
    """The token endpoint's request."""

    model: Text | None = None
    token_ids: Annotated[list[StrictInt], Field(min_length=1)]
    sampling_params: SamplingFields = Field(default_factory=SamplingFields)
    stream: StrictBool | None = None

    @validates_model(mode="after")
    def _refuse_unimplemented(self) -> "GenerateRequest":
        if self.stream:
            raise ValueError("'stream' is not supported, only False is accepted")
        if self.sampling_params.stop:
            raise ValueError("'stop' is not supported on the token endpoint, use stop_token_ids")
        return self


def describe_validation_error(error: ValidationError) -> str:
    """The first problem of a request in one line: where, what was expected, what came."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    got = repr(first.get("input"))
    what = f"{first['msg']}" if len(got) > 80 or not where else f"{first['msg']}, got {got}"
    return f"{where}: {what}" if where else what
