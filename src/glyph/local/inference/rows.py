"""A sequence that the engine generates: what was asked, what has been sampled, and how far its cache reaches."""

from dataclasses import dataclass, field

from glyph.local.inference.kv_cache import TokenArray
from glyph.local.inference.requests import FinishReason
from glyph.local.inference.sampling import SamplingParams, UniformStream


@dataclass
class Row:
    """`length` counts the tokens whose keys and values are in the cache."""

    ticket: int
    prompt: TokenArray
    sampling: SamplingParams
    session: str | None
    max_tokens: int
    uniforms: UniformStream
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    length: int = 0
    cached_tokens: int = 0

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.completion[-1] in self.sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.completion) >= self.max_tokens else None

    @property
    def last_token(self) -> int:
        return self.completion[-1] if self.completion else int(self.prompt[-1])

    def next_uniform(self) -> float:
        return self.uniforms.next() if self.sampling.temperature else 0.0
