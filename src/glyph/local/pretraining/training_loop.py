"""Pre-training of the mini base model: packed rows of token ids in, a Hugging Face folder and loss curves out.

    python -m glyph.local.pretraining.corpus --tokenizer models/mini --chunks 800 --workers 16 corpus.npz
    python -m glyph.local.pretraining.training_loop corpus.npz out/small --size small --tokenizer models/mini

One device; bf16 autocast over fp32 weights on a GPU, fp32 on a CPU. AdamW, warm-up, then a linear decay to zero. The
number of steps is what `tokens` asks for or what fits into `seconds`, whichever is less: with the time limit slack,
the run is a function of seed and corpus (on a GPU up to the order of its sums).
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from glyph.chat import token_id
from glyph.files import write_atomically
from glyph.local.inference.loading import load_tokenizer
from glyph.local.pretraining.corpus import GIVEN, PADDING
from glyph.local.pretraining.curves import curves_svg
from glyph.local.pretraining.tokenizer import CONTEXT, DOCUMENT_END
from glyph.versions import manifest

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 32, "layers": 2, "heads": 2, "key_value_heads": 1, "head_dim": 16, "feed_forward": 64},
    "small": {"hidden": 128, "layers": 5, "heads": 4, "key_value_heads": 2, "head_dim": 32, "feed_forward": 384},
    "medium": {"hidden": 160, "layers": 6, "heads": 5, "key_value_heads": 1, "head_dim": 32, "feed_forward": 448},
    "large": {"hidden": 192, "layers": 6, "heads": 6, "key_value_heads": 2, "head_dim": 32, "feed_forward": 512},
}
GIVEN_WEIGHT = 0.1
"""The weight in the loss of a token that is given, not asked: inputs of assertions are noise to a small model."""
_FIRST_LOG = 10
_LOG_EVERY = 50
_EVALUATE_EVERY = 5  # in logs
_HEADROOM = 0.97  # the share of the time that steps may take


@dataclass(frozen=True)
class Recipe:
    """`batch` is in rows, `tokens` counts positions seen (padding included), `seconds` None is no limit."""

    size: str = "small"
    seed: int = 42
    tokens: int = 600_000_000
    batch: int = 256
    learning_rate: float = 3e-3
    warm_up: int = 150
    weight_decay: float = 0.1
    clip: float = 1.0
    seconds: float | None = None
    compile: bool = True


@dataclass
class Curves:
    """Points of the training loss (means since the point before) and of the loss on held-out programs, in nats."""

    training: list[dict[str, float]] = field(default_factory=list)
    evaluation: list[dict[str, float]] = field(default_factory=list)


def new_model(size: str, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    shape = SIZES[size]
    more: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape["hidden"],
        intermediate_size=shape["feed_forward"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["key_value_heads"],
        head_dim=shape["head_dim"],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=token_id(tokenizer, DOCUMENT_END),
        **more,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    return model


def losses(model: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over a batch: rows (B, T) as packed → (2,) cross-entropy in nats and (2,) tokens, of given then of asked.

    A row's first token has nothing before it and counts as neither; padding does not count.
    """
    present, asked = rows != PADDING, rows < GIVEN
    ids = torch.where(present, rows & (GIVEN - 1), 0).long()
    hidden = model.model(input_ids=ids[:, :-1], attention_mask={"full_attention": None}, use_cache=False)[0]
    logits = functional.linear(hidden, model.lm_head.weight).float().flatten(0, 1)
    entropy = functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    target_asked = asked[:, 1:].flatten()
    kinds = torch.stack([present[:, 1:].flatten() & ~target_asked, target_asked]).float()
    return (kinds * entropy).sum(1), kinds.sum(1)  # no matrix product: autocast would round it to bf16


def weighted(sums: Tensor, counts: Tensor) -> Tensor:
    weights = torch.tensor([GIVEN_WEIGHT, 1.0], device=sums.device)
    return (weights * sums).sum() / (weights * counts).sum().clamp(min=1)


def batches(rows: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Batches without end, each epoch in an order of its own; a last part that fills no batch is left out."""
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, len(rows))
    while True:
        order = torch.randperm(len(rows), generator=generator)
        for start in range(0, len(rows) - batch + 1, batch):
            yield rows[order[start : start + batch].to(rows.device)]


class Pretraining:
    """One run. `rows` and `held_out` are (rows, length) tensors as packed, on the device or off it."""

    def __init__(self, model: Qwen3ForCausalLM, rows: Tensor, held_out: Tensor, recipe: Recipe, device: str) -> None:
        self.model, self.recipe, self.device = model, recipe, device
        nn.Module.to(model, device)
        self.rows, self.held_out = rows.to(device), held_out.to(device)
        self.losses = torch.compile(losses) if recipe.compile and device != "cpu" else losses
        self.optimiser = _optimiser(self.model, recipe, fused=device != "cpu")
        self.curves = Curves()
        self.positions = min(recipe.batch, len(rows)) * rows.shape[1]
        self.wanted = self.steps = max(recipe.tokens // self.positions, 1)
        self.step = 0
        self.started = time.monotonic()

    def run(self) -> None:
        source = batches(self.rows, self.recipe.batch, self.recipe.seed)
        totals, marked = torch.zeros(2, 2, device=self.device), (0, time.monotonic())
        self.evaluate()
        while self.step < self.steps:
            totals += self.train_step(next(source))
            self.step += 1
            if self.step == 1:  # the first step compiles: its time says nothing about the others
                totals.zero_()
                self.synchronise()
                marked = (1, time.monotonic())
            elif self.step == _FIRST_LOG or self.step % _LOG_EVERY == 0 or self.step >= self.steps:
                self.log(totals, marked)
                self.fit_to_time()
                if self.step % (_LOG_EVERY * _EVALUATE_EVERY) == 0 or self.step >= self.steps:
                    self.evaluate()
                totals.zero_()
                marked = (self.step, time.monotonic())

    def train_step(self, rows: Tensor) -> Tensor:
        """One update; returns (2, 2): sums and counts, of given and asked."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate()
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device != "cpu"):
            sums, counts = self.losses(self.model, rows)
        weighted(sums, counts).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return torch.stack([sums.detach(), counts])

    def learning_rate(self) -> float:
        warm_up = min(self.recipe.warm_up, self.steps // 10 + 1)
        rise = min(1.0, (self.step + 1) / warm_up)
        return self.recipe.learning_rate * rise * max(self.steps - self.step, 1) / self.steps

    def fit_to_time(self) -> None:
        """Plan as many of the wanted steps as fit into the time."""
        if self.recipe.seconds is None:
            return
        left = self.recipe.seconds - (time.monotonic() - self.started)
        rate = self.curves.training[-1]["tokens_per_second"] / self.positions
        self.steps = min(self.wanted, self.step + int(max(left, 0) * _HEADROOM * rate))

    def synchronise(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    @torch.no_grad()
    def evaluate(self) -> None:
        totals = torch.zeros(2, 2, device=self.device)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device != "cpu"):
            for start in range(0, len(self.held_out), self.recipe.batch):
                totals += torch.stack(losses(self.model, self.held_out[start : start + self.recipe.batch]))
        self.curves.evaluation.append(self.point(totals))
        print(f"  held-out programs: {_in_words(self.curves.evaluation[-1])}", flush=True)

    def log(self, totals: Tensor, marked: tuple[int, float]) -> None:
        """`marked` is (step, clock) at the point before."""
        point = self.point(totals)
        seconds = time.monotonic() - marked[1]
        point["tokens_per_second"] = round((self.step - marked[0]) * self.positions / max(seconds, 1e-9))
        point["learning_rate"] = self.learning_rate()
        self.curves.training.append(point)
        if not np.isfinite(point["asked"]):
            raise FloatingPointError(f"step {self.step}: the loss is {point['asked']}; lower the learning rate")
        print(f"{self.recipe.size} {self.step}/{self.steps}  {_in_words(point)}", flush=True)

    def point(self, totals: Tensor) -> dict[str, float]:
        given, asked = (totals[0] / totals[1].clamp(min=1)).tolist()
        seconds = round(time.monotonic() - self.started, 1)
        return {
            "step": self.step,
            "tokens": self.step * self.positions,
            "asked": asked,
            "given": given,
            "seconds": seconds,
        }


def _optimiser(model: nn.Module, recipe: Recipe, fused: bool) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms and embeddings do not."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=fused)


def _in_words(point: dict[str, float]) -> str:
    rate = f"  {point['tokens_per_second'] / 1e6:.2f}M tokens/s" if "tokens_per_second" in point else ""
    return f"asked {point['asked']:.4f}  given {point['given']:.4f}  {point['seconds']:.0f} s{rate}"


def save(
    run: Pretraining, tokenizer: PreTrainedTokenizerFast, folder: Path, facts: dict[str, Any], dtype: torch.dtype
) -> None:
    """The model folder, `curves.json`, `curves.svg` and `pretraining.json` (recipe, corpus facts, versions)."""
    parameters = sum(p.numel() for p in run.model.parameters())
    nn.Module.to(run.model, dtype)
    run.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    curves = {"size": run.recipe.size, "parameters": parameters, **asdict(run.curves)}
    write_atomically(folder / "curves.json", json.dumps(curves, indent=1) + "\n")
    write_atomically(folder / "curves.svg", curves_svg(curves))
    last = run.curves.evaluation[-1]
    about = manifest(recipe=asdict(run.recipe), parameters=parameters, steps=run.step, last=last, corpus=facts)
    about["device"] = torch.cuda.get_device_name() if run.device != "cpu" else "cpu"
    write_atomically(folder / "pretraining.json", json.dumps(about, indent=1) + "\n")


def main() -> None:
    """Pre-train one size on a packed corpus."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default=Recipe.size)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--tokens", type=int, default=Recipe.tokens)
    parser.add_argument("--batch", type=int, default=Recipe.batch)
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate)
    parser.add_argument("--max-seconds", dest="seconds", type=float, default=None)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the saved weights")
    arguments = vars(parser.parse_args())
    corpus, out, dtype = arguments.pop("corpus"), arguments.pop("out"), getattr(torch, arguments.pop("dtype"))
    tokenizer: Any = load_tokenizer(arguments.pop("tokenizer"))
    recipe = Recipe(**arguments)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.suppress_errors = True  # where nothing compiles, run as it is
    loaded = np.load(corpus)
    rows, held_out = (torch.from_numpy(loaded[name].astype(np.int32)) for name in ("rows", "held_out"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = new_model(recipe.size, tokenizer, recipe.seed)
    run = Pretraining(model, rows, held_out, recipe, device)
    print(f"{recipe.size}: {sum(p.numel() for p in model.parameters())} parameters, {run.steps} steps on {device}")
    run.run()
    save(run, tokenizer, out, json.loads(str(loaded["facts"])), dtype)
    print(f"wrote {out}; next: python -m glyph.local.pretraining.probe {out}")


if __name__ == "__main__":
    main()
