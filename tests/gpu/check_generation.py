"""Check the engine's CUDA graphs on a GPU against the eager engine and transformers, and measure their speed.

    PYTHONPATH=src python tests/gpu/check_generation.py MODEL_FOLDER [--rows 16 64 256] [--new-tokens 256]

In float32 nine in ten greedy completions must be equal (near ties may fall either way). In bfloat16 the log-probs of
what was sampled must be those of a full forward pass to bfloat16's accuracy. Ends with a table of tokens/s.
"""

import argparse
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from glyph.local.inference.engine import EngineCore
from glyph.local.inference.requests import Completion, GenerationRequest
from glyph.local.inference.sampling import SamplingParams, SamplingTable, sample

PROMPT = 300


def load(folder: str, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").cuda().eval()


def requests(count: int, **options) -> list[GenerationRequest]:
    """Groups of eight that share a prompt of random ids."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1000, 20_000, (-(-count // 8), PROMPT), generator=generator).tolist()
    return [GenerationRequest(prompts[i // 8], SamplingParams(seed=i, **options), f"{i}") for i in range(count)]


def run(core: EngineCore, asked: list[GenerationRequest]) -> tuple[list[Completion], float]:
    """Completions, and the seconds of the steps that decode after the first."""
    ended: dict[int, Completion] = {}
    tickets = [core.submit(request) for request in asked]
    ended.update(core.step())  # type: ignore[arg-type]
    torch.cuda.synchronize()
    started = time.perf_counter()
    while core.busy:
        ended.update(core.step())  # type: ignore[arg-type]
    return [ended[ticket] for ticket in tickets], time.perf_counter() - started


@torch.no_grad()
def full_logprobs(model: PreTrainedModel, request: GenerationRequest, completion: Completion) -> torch.Tensor:
    ids = torch.tensor([[*request.token_ids, *completion.token_ids]], device="cuda")
    logprobs = model(ids).logits[0, PROMPT - 1 : -1].float().log_softmax(-1)
    return logprobs.gather(1, ids[0, PROMPT:, None])[:, 0].cpu()


def check_float32(folder: str) -> None:
    asked = requests(24, temperature=0.0, max_tokens=48)
    plain = load(folder, torch.float32)
    ids = torch.tensor([request.token_ids for request in asked], device="cuda")
    plain.generation_config = GenerationConfig(pad_token_id=0)  # no penalty, and no token that ends
    with torch.no_grad():
        generated = plain.generate(ids, do_sample=False, max_new_tokens=48)
    expected = generated[:, PROMPT:].tolist()
    for graphs in (False, True):
        core = EngineCore(load(folder, torch.float32), max_rows=16, cuda_graphs=graphs)
        got = [completion.token_ids for completion in run(core, asked)[0]]
        equal = sum(one == other for one, other in zip(got, expected, strict=True))
        print(f"float32 greedy, {'graphs' if graphs else 'eager'} = transformers: {equal} of {len(asked)}")
        assert equal >= 0.9 * len(asked)


def check_logprobs(core: EngineCore, plain: PreTrainedModel) -> None:
    asked = requests(8, temperature=1.0, max_tokens=64)
    differences = torch.cat(
        [
            full_logprobs(plain, request, completion) - torch.tensor(completion.logprobs)
            for request, completion in zip(asked, run(core, asked)[0], strict=True)
        ]
    ).abs()
    print(f"bfloat16 log-probs: mean difference {differences.mean():.4f}, largest {differences.max():.4f}")
    assert differences.mean() < 0.03


def check_weights(core: EngineCore, plain: PreTrainedModel) -> None:
    """A push of other weights and of the old ones again."""
    asked = requests(4, temperature=0.0, max_tokens=16)
    with core.updating():
        pass  # no prefix of an earlier run takes part
    before, _ = run(core, asked)
    with torch.no_grad():
        plain.model.norm.weight.mul_(-1)
        core.load_weights_from(plain)
        changed, _ = run(core, asked)
        plain.model.norm.weight.mul_(-1)
        torch.cuda.synchronize()
        started = time.perf_counter()
        core.load_weights_from(plain)
        torch.cuda.synchronize()
    print(f"push of weights: {1e3 * (time.perf_counter() - started):.1f} ms")
    assert [c.token_ids for c in changed] != [c.token_ids for c in before]
    assert [c.token_ids for c in run(core, asked)[0]] == [c.token_ids for c in before]


def sampling_milliseconds(rows: int, vocabulary: int) -> float:
    logits = torch.randn(rows, vocabulary, device="cuda", dtype=torch.bfloat16) * 4
    table = SamplingTable.of([SamplingParams(temperature=0.8, top_k=20)] * rows, vocabulary, logits.device)
    draws = torch.rand(rows, dtype=torch.float64, device="cuda")
    sample(logits, table, draws)
    started = time.perf_counter()
    for _ in range(20):
        sample(logits, table, draws)
    return 1e3 * (time.perf_counter() - started) / 20


def measure(core: EngineCore, rows: int, new_tokens: int) -> tuple[float, float, float]:
    """Tokens/s, milliseconds a step, and the seconds that the first run took longer (captures, warm-up)."""
    asked = requests(rows, temperature=0.8, top_k=20, max_tokens=new_tokens)
    _, first = run(core, asked)
    with core.updating():
        pass
    _, seconds = run(core, asked)
    return rows * (new_tokens - 1) / seconds, 1e3 * seconds / (new_tokens - 1), first - seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--new-tokens", type=int, default=256)
    options = parser.parse_args()
    check_float32(options.folder)
    most = max(options.rows)
    plain = load(options.folder, torch.bfloat16)
    cores = {
        name: EngineCore(
            load(options.folder, torch.bfloat16), max_rows=most, prefill_tokens=8192, cuda_graphs=name == "graphs"
        )
        for name in ("eager", "graphs")
    }
    for core in cores.values():
        check_logprobs(core, plain)
    check_weights(cores["graphs"], plain)
    print(f"\n{'rows':>5} {'engine':>7} {'tokens/s':>9} {'ms/step':>8} {'first run +s':>12} {'sampling ms':>11}")
    for rows in options.rows:
        sampling = sampling_milliseconds(rows, cores["eager"].vocabulary)
        for name, core in cores.items():
            speed, step, extra = measure(core, rows, options.new_tokens)
            print(f"{rows:>5} {name:>7} {speed:>9.0f} {step:>8.2f} {extra:>12.2f} {sampling:>11.2f}")
    print(f"graphs: {cores['graphs'].graphs.captured}, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")


if __name__ == "__main__":
    main()
