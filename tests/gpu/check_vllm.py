"""Check `VllmGenerator` on one GPU with a real vLLM: python tests/gpu/check_vllm.py FOLDER

FOLDER is a model folder of transformers (Qwen2, Qwen3 or Llama) with its tokenizer; `src` must be importable. It
stands in the setting of a run: a float32 model with its trainer is in the process before vLLM is, and goes on
training beside it. Each check prints its figures; the script fails at the end if one of them did not hold.
"""

import argparse
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from glyph.credit import TrainingSample
from glyph.local.inference.requests import Completion, GenerationRequest, PromptTooLongError
from glyph.local.inference.sampling import SamplingParams, SamplingTable, processed_logprobs
from glyph.local.inference.vllm_backend import VllmGenerator
from glyph.local.inference.weights import WeightsError
from glyph.local.training.optimiser import OptimiserOptions
from glyph.local.training.packing import lay_out, plan, plant
from glyph.local.training.trainer import MemoryOptions, Trainer, score

PROMPTS = [
    "def fibonacci(n):\n",
    "Write a Python function that returns the second largest number of a list.\n\ndef second_largest(numbers):\n",
    "import re\n\ndef is_email(text):\n",
    "# Sort a list of pairs by their second element.\ndef sort_pairs(pairs):\n",
    "class Stack:\n    def __init__(self):\n",
    "assert is_prime(7) == True\nassert is_prime(8) == False\n\ndef is_prime(n):\n",
    "The three laws of robotics are",
    "def word_count(text):\n    '''Count each word.'''\n",
]
MAX_TOKENS = 128
GREEDY_GAP = 0.5
"""How far below the largest logit a greedy token may lie by the float32 model: bfloat16 rounds logits of 16 to 32 to
multiples of 1/8."""
MEAN_LOGPROB_GAP = 0.05
PUSH_SECONDS = 0.05

failures: list[str] = []


def check(name: str, holds: bool, figures: str = "") -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {name}{': ' if figures else ''}{figures}", flush=True)
    if not holds:
        failures.append(name)


def generate(
    generator: VllmGenerator, prompts: Sequence[list[int]], params: Callable[[int], SamplingParams]
) -> list[Completion]:
    """The completions of the prompts, in their order. Raises: GenerationError."""
    tickets = [generator.submit(GenerationRequest(ids, params(i))) for i, ids in enumerate(prompts)]
    results: dict[int, Any] = {}
    while generator.busy:
        results.update(generator.step())
    for result in results.values():
        if not isinstance(result, Completion):
            raise result
    return [results[ticket] for ticket in tickets]


def greedy(_: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)


@torch.inference_mode()
def logits_of(model: PreTrainedModel, prompt: list[int], completion: Completion) -> Tensor:
    """Float32 logits [tokens of the completion, vocabulary] of a model that reads the completion."""
    ids = torch.tensor([prompt + completion.token_ids], device=model.device)
    return model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()


def check_greedy(name: str, generator: VllmGenerator, model: PreTrainedModel, prompts: list[list[int]]) -> list[Any]:
    """Greedy completions against the float32 model's logits and against `generate` in bfloat16."""
    completions = generate(generator, prompts, greedy)
    gap = 0.0
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = logits_of(model, prompt, completion)
        chosen = logits.gather(1, torch.tensor(completion.token_ids, device=model.device)[:, None])[:, 0]
        gap = max(gap, float((logits.max(-1).values - chosen).max()))
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.set_attn_implementation("sdpa")
    plainly: dict[str, Any] = {"max_new_tokens": MAX_TOKENS, "do_sample": False, "repetition_penalty": 1.0}
    same = 0
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt], device=model.device)
        plain = half.generate(ids, attention_mask=torch.ones_like(ids), **plainly)
        length = plain.shape[1] - len(prompt)  # `generate` stops at the folder's EOS
        same += plain[0, len(prompt) :].tolist() == completion.token_ids[:length]
    figures = f"largest gap {gap:.3f}; {same} of {len(prompts)} equal to generate() in bfloat16 to the last token"
    check(f"greedy, {name}", gap <= GREEDY_GAP, figures)
    return completions


def sample_of(prompt: list[int], completion: Completion) -> TrainingSample:
    before, after = len(prompt), len(completion.token_ids)
    weights = (0.0,) * before + (1.0,) * after
    return TrainingSample(
        token_ids=(*prompt, *completion.token_ids),
        mask=(False,) * before + (True,) * after,
        logprobs=(0.0,) * before + tuple(completion.logprobs),
        rl_weights=weights,
        ce_weights=(0.0,) * (before + after),
        advantage=1.0,
    )


def check_logprobs(name: str, generator: VllmGenerator, model: PreTrainedModel, prompts: list[list[int]]) -> None:
    """At temperature 1 without cuts against the trainer's forward pass, in bfloat16 as it trains."""
    completions = generate(generator, prompts, lambda i: SamplingParams(max_tokens=MAX_TOKENS, seed=i))
    trees = [
        tree
        for prompt, completion in zip(prompts, completions, strict=True)
        for tree in plant([sample_of(prompt, completion)])
    ]
    ours, theirs = [], []
    with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16):
        for rows in plan(trees, 8192):
            batch = lay_out(rows, model.device)
            ours.append(score(model, batch, 1.0, 8192)[0])
            theirs.append(batch.streams.sampler_logprobs)
    difference = torch.cat(ours) - torch.cat(theirs)
    mean, largest = float(difference.abs().mean()), float(difference.abs().max())
    kl = float((difference.exp() - 1 - difference).mean())
    figures = f"mean {mean:.4f}, largest {largest:.3f}, mismatch KL {kl:.5f}, {difference.numel()} tokens"
    check(f"log-probs, {name}", mean <= MEAN_LOGPROB_GAP, figures)


def check_processed(generator: VllmGenerator, model: PreTrainedModel, prompts: list[list[int]]) -> None:
    """With temperature, top-k and top-p: log-probs of the processed distribution."""
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.95, max_tokens=MAX_TOKENS, seed=1)
    differences, cut = [], 0
    for prompt, completion in zip(prompts, generate(generator, prompts, lambda _: params), strict=True):
        logits = logits_of(model, prompt, completion)
        table = SamplingTable.of([params] * len(logits), logits.shape[1], logits.device)
        ids = torch.tensor(completion.token_ids, device=logits.device)
        wanted = processed_logprobs(logits, table).gather(1, ids[:, None])[:, 0].cpu()
        inside = wanted.isfinite()  # a token at the edge of the cut may lie outside by the float32 model
        cut += int((~inside).sum())
        differences.append((wanted - torch.tensor(completion.logprobs))[inside])
    mean = float(torch.cat(differences).abs().mean())
    check("log-probs of temperature, top-k, top-p", mean <= 0.05, f"mean {mean:.4f}, {cut} tokens at the edge")


def check_protocol(generator: VllmGenerator, prompts: list[list[int]]) -> None:
    def seeded(i: int) -> SamplingParams:
        return SamplingParams(max_tokens=32, seed=2**64 - 1 - i % 4)

    first, second, third, fourth = (each.token_ids for each in generate(generator, [prompts[0]] * 4, seeded))
    again = [each.token_ids for each in generate(generator, [prompts[0]] * 4, seeded)]
    same = sum(one == other for one, other in zip((first, second, third, fourth), again, strict=True))
    check("seeds", same >= 3 and len({tuple(each) for each in again}) == 4, f"{same} of 4 repeated to the token")
    free = generate(generator, prompts[:1], greedy)[0].token_ids
    stop = free[5]
    stopped = generate(
        generator, prompts[:1], lambda _: SamplingParams(temperature=0.0, max_tokens=99, stop_token_ids=(stop,))
    )[0]
    check("stop token", stopped.finish_reason == "stop" and stopped.token_ids == free[: free.index(stop) + 1])
    cached = generate(generator, [prompts[0] + free], greedy)[0].cached_tokens
    check("prefix cache", cached > 0, f"{cached} of {len(prompts[0]) + len(free)} tokens")
    try:
        generator.submit(GenerationRequest([1] * generator.max_model_len, SamplingParams()))
        check("too long a prompt", False)
    except PromptTooLongError:
        check("too long a prompt", not generator.busy)


def check_speed(generator: VllmGenerator, prompts: list[list[int]], rows: int, seeds: bool) -> None:
    """Without seeds is not how rollouts are sampled: it tells what their random streams of their own cost."""
    work = [[*(prompts[i % len(prompts)] * 60)[:200], i % 100] for i in range(rows)]

    def params(i: int) -> SamplingParams:
        return SamplingParams(temperature=0.8, top_k=20, max_tokens=512, seed=i if seeds else None)

    generate(generator, work, lambda i: SamplingParams(temperature=0.8, top_k=20, max_tokens=16, seed=i))
    started = time.perf_counter()
    tokens = sum(len(each.token_ids) for each in generate(generator, work, params))
    rate = tokens / (time.perf_counter() - started)
    name = f"speed of {rows} rows {'with' if seeds else 'without'} seeds"
    check(name, tokens == 512 * rows, f"{rate:.0f} tokens/s, {1000 * rows / rate:.2f} ms a step")


def disturb(model: PreTrainedModel, share: float) -> None:
    """Add noise of this share of each parameter's deviation."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std().nan_to_num(0.0) * share)


def check_push(generator: VllmGenerator, model: PreTrainedModel, prompts: list[list[int]]) -> None:
    before = [each.token_ids for each in generate(generator, prompts, greedy)]
    disturb(model, 0.1)
    seconds = []
    for _ in range(7):
        torch.cuda.synchronize()
        started = time.perf_counter()
        generator.load_weights_from(model)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    check("time of a push", median <= PUSH_SECONDS, f"first {seconds[0]:.3f} s, median {median:.3f} s")
    after = [each.token_ids for each in check_greedy("after a push", generator, model, prompts)]
    check("a push changes what is sampled", before != after)
    check_logprobs("after a push", generator, model, prompts)
    load, target = generator._model.load_weights, generator._model
    target.load_weights = lambda weights: load((n, w) for n, w in weights if not n.endswith("1.mlp.up_proj.weight"))
    disturb(model, 0.01)
    try:
        generator.load_weights_from(model)
        check("a lost weight is named", False)
    except WeightsError as error:
        check("a lost weight is named", "1.mlp.up_proj.weight" in str(error), str(error))
    finally:
        del target.load_weights
    generator.load_weights_from(model)


def train(trainer: Trainer, prompts: list[list[int]]) -> float:
    """Seconds of a step on 64 rows of 512 tokens."""
    rows = [(prompts[i % len(prompts)] * 60)[:512] for i in range(64)]
    completions = [Completion(row[64:], [-1.0] * 448, "length") for row in rows]
    pairs = zip(rows, completions, strict=True)
    trees = [tree for row, completion in pairs for tree in plant([sample_of(row[:64], completion)])]
    torch.cuda.synchronize()
    result = trainer.step(trees)
    torch.cuda.synchronize()
    return result.seconds


def process_state() -> tuple[Any, ...]:
    return (
        random.getstate(),
        torch.get_rng_state().tolist(),
        torch.cuda.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.cuda.current_stream().cuda_stream,
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
    )


def build(folder: str, share: float, rows: int) -> VllmGenerator:
    torch.cuda.empty_cache()
    before, started = process_state(), time.perf_counter()
    free = torch.cuda.mem_get_info()[0]
    generator = VllmGenerator(folder, max_model_len=4096, max_rows=rows, memory_share=share, seed=0)
    used = (free - torch.cuda.mem_get_info()[0]) / 2**30
    wanted = share * torch.cuda.mem_get_info()[1] / 2**30
    worker = generator._engine.model_executor.driver_worker.worker
    runner = type(worker.model_runner)
    figures = f"{time.perf_counter() - started:.0f} s, {used:.1f} GiB of {wanted:.1f}, {runner.__module__}"
    check("built beside a trainer", used <= wanted * 1.1, figures)
    scheduler = generator._engine.vllm_config.scheduler_config
    print(
        f"     asynchronous scheduling {scheduler.async_scheduling}, {scheduler.max_num_batched_tokens} tokens a step"
    )
    check("process state kept", process_state() == before)
    return generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--memory-share", type=float, default=0.3)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).cuda()
    memory = MemoryOptions(tokens_per_micro_batch=8192, bfloat16=True)
    trainer = Trainer(model, OptimiserOptions(learning_rate=1e-6), memory=memory)
    alone = min(train(trainer, prompts) for _ in range(3))
    generator = build(options.folder, options.memory_share, max(options.rows))
    generator.load_weights_from(model)
    check_greedy("at first", generator, model, prompts)
    check_logprobs("at first", generator, model, prompts)
    check_processed(generator, model, prompts)
    check_protocol(generator, prompts)
    for rows in options.rows:
        check_speed(generator, prompts, rows, seeds=True)
        check_speed(generator, prompts, rows, seeds=False)
    check_push(generator, model, prompts)
    beside = min(train(trainer, prompts) for _ in range(3))
    check("training beside vLLM", beside < 1.2 * alone, f"{beside:.2f} s a step, {alone:.2f} s before vLLM")
    generator.load_weights_from(model)
    check_greedy("after training", generator, model, prompts)
    generator.close()
    sys.exit(f"{len(failures)} checks failed: {failures}" if failures else 0)


if __name__ == "__main__":
    main()
