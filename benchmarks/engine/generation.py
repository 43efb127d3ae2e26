"""Tokens a second of the generate core beside transformers' `model.generate`: the same prompts, lengths and sampling.

Both get all rows at once and draw exactly `new_tokens` for each, no token ends a row, and the seconds include the
prompts. `model.generate` gets the prompts padded on the left and its dynamic cache, its default.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from benchmarks.engine.setting import GROUP, Engine, Setting
from benchmarks.engine.timing import ratio, significant, timed
from glyph.chat import render
from glyph.local.inference.engine import EngineCore
from glyph.local.inference.requests import Completion, GenerationRequest
from glyph.local.inference.sampling import SamplingParams
from glyph.tasks.prompts import opening

Prompts = Sequence[Sequence[int]]


def plain_model(folder: str, device: str) -> PreTrainedModel:
    """The model as transformers loads it, in the type that the engine generates in."""
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    return model.to(device).eval()


def opening_prompts(engine: Engine, count: int) -> list[list[int]]:
    rules = engine.config.rules()
    return [
        render(
            engine.bench.tokenizer,
            opening(task, rules.arm, rules.variant, engine.bench.wording, rules.budget, ()),
            add_generation_prompt=True,
        ).token_ids
        for task in engine.tasks_of(1, count)
    ]


def generate(core: EngineCore, prompts: Prompts, new_tokens: int, temperature: float, top_k: int) -> None:
    """Raises: RuntimeError where a row has not exactly `new_tokens`."""
    with core.updating():
        pass  # no prefix of an earlier round takes part
    for seed, prompt in enumerate(prompts):
        core.submit(GenerationRequest(prompt, SamplingParams(temperature, top_k, max_tokens=new_tokens, seed=seed)))
    tokens = 0
    while core.busy:
        ended = [result for _, result in core.step()]
        tokens += sum(len(each.token_ids) for each in ended if isinstance(each, Completion))
    if tokens != len(prompts) * new_tokens:
        raise RuntimeError(f"{tokens} tokens were generated, expected {len(prompts)} times {new_tokens}")


def plain_generate(model: PreTrainedModel, prompts: Prompts) -> Callable[[], None]:
    """A call of `model.generate`, whose `generation_config` says the rest."""
    width, pad = max(map(len, prompts)), 0
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    wanted = width + int(model.generation_config.max_new_tokens)  # type: ignore[union-attr]

    @torch.no_grad()
    def run() -> None:
        output: Any = model.generate(input_ids=ids, attention_mask=mask)  # type: ignore[operator]
        if output.shape != (len(prompts), wanted):
            raise RuntimeError(f"generate gave {tuple(output.shape)}, expected {(len(prompts), wanted)}")

    return run


def measure_generation(setting: Setting, engine: Engine, core: EngineCore) -> dict[str, Any]:
    sizes, of = setting.sizes, engine.config.sampling
    plain = plain_model(setting.model, setting.device)
    plain.generation_config = GenerationConfig(
        do_sample=True, temperature=of.temperature, top_k=of.top_k, max_new_tokens=sizes.new_tokens, pad_token_id=0
    )
    group = min(GROUP, sizes.rows)
    alone = opening_prompts(engine, sizes.rows)
    batches = {f"groups of {group}": [alone[i // group] for i in range(sizes.rows)], "all different": alone}
    facts = {"rows": sizes.rows, "new_tokens": sizes.new_tokens, "temperature": of.temperature, "top_k": of.top_k}
    return facts | {"prompts": {name: _compare(setting, core, plain, each) for name, each in batches.items()}}


def _compare(setting: Setting, core: EngineCore, plain: PreTrainedModel, prompts: Prompts) -> dict[str, Any]:
    sizes, of = setting.sizes, plain.generation_config
    assert of is not None
    ways: dict[str, Callable[[], None]] = {
        "engine": lambda: generate(core, prompts, sizes.new_tokens, of.temperature, of.top_k),
        "generate": plain_generate(plain, prompts),
    }
    seconds = timed(ways, sizes.rounds, sizes.limit_seconds, setting.device)
    tokens, middle = len(prompts) * sizes.new_tokens, sum(map(len, prompts)) / len(prompts)
    rates = {name: significant(tokens / statistics.median(each)) for name, each in seconds.items()}
    return {
        "prompt_tokens_mean": significant(middle),
        "rounds": len(seconds["engine"]),
        "engine_tokens_per_second": rates["engine"],
        "generate_tokens_per_second": rates["generate"],
        "ratio": significant(ratio(seconds["generate"], seconds["engine"])),
    }
