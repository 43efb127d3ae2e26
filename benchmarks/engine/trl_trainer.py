"""One optimiser step by TRL's GRPO trainer on given rollouts: its loss, its backward pass, its optimiser.

TRL is an extra of this benchmark (`pip install -e .[bench]`) and of nothing else. What it is given is what its own
generation would hand to its loss: prompts padded on the left, the rest of a rollout padded on the right, a mask of
what the policy sampled, the sampler's log-probs and the advantages. Without KL, with the token-level normalisation
(`dapo`, its default) and with all ratios 1, its loss is ours: the norms of both gradients stand in the figures.
"""

import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.engine.setting import Engine, Setting
from benchmarks.engine.timing import seconds_of
from glyph.credit import TrainingSample
from glyph.local.inference.weights import copy_weights
from glyph.local.training.workbench import model_folder

PACKAGES = ("trl", "transformers", "torch")


def trl_versions() -> dict[str, dict[str, str]]:
    """The versions of what is compared; empty where TRL is not installed."""
    try:
        return {"versions": {name: version(name) for name in PACKAGES}}
    except PackageNotFoundError:
        return {}


class TrlTrainer:
    """TRL's trainer over a model of its own with the weights of ours, and the rollouts cut into micro-batches.

    TRL wants micro-batches of one size, all padded to the longest rollout. The powers of two from half the rows that
    fit our token budget up to four times as many are tried, and the fastest is kept.
    """

    def __init__(self, setting: Setting, engine: Engine, samples: Sequence[TrainingSample]) -> None:
        self._trainer = _make_trainer(setting, engine)
        self._model = self._trainer.model
        copy_weights(engine.bench.model, self._model)
        self._optimiser = self._trainer.create_optimizer()
        self._batch = _tensors(samples, setting.device)
        self._count = len(samples)
        length = self._batch["prompt_ids"].shape[1] + self._batch["completion_ids"].shape[1]
        budget = max(1, engine.bench.trainer.memory.tokens_per_micro_batch // length)
        powers = [2**n for n in range(12)]
        sizes = [n for n in powers if budget / 2 <= n <= 4 * budget and n <= self._count] or [self._count]
        self._rows, self.grad_norm = sizes[0], 0.0
        self.step()
        tried = {}
        for self._rows in sizes:
            tried[self._rows] = seconds_of(self.step, setting.device)
        self._rows = min(tried, key=tried.__getitem__)

    def facts(self) -> dict[str, Any]:
        return {"rows_per_micro_batch": self._rows, "loss_type": self._trainer.loss_type}

    def step(self) -> None:
        """One optimiser step on all rollouts; `grad_norm` is that before clipping."""
        trainer, model = self._trainer, self._model
        model.train()
        starts = range(0, self._count, self._rows)
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = len(starts)
        for start in starts:
            part = {k: v[start : start + self._rows] if v.dim() else v for k, v in self._batch.items()}
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, part)
            trainer.accelerator.backward(loss)
        norm = trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self.grad_norm = float(norm)


def _make_trainer(setting: Setting, engine: Engine) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    of, memory = engine.bench.trainer.options, engine.bench.trainer.memory
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_folder(engine.config.model), dtype=torch.float32, attn_implementation="sdpa"
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="glyph-benchmark-"),
        per_device_train_batch_size=2,
        num_generations=2,
        learning_rate=of.learning_rate,
        weight_decay=of.weight_decay,
        max_grad_norm=of.max_grad_norm,
        temperature=engine.config.sampling.temperature,
        beta=0.0,
        bf16=memory.bfloat16,
        gradient_checkpointing=memory.gradient_checkpointing,
        use_cpu=setting.device == "cpu",
        report_to=[],
    )
    if memory.gradient_checkpointing:  # transformers' Trainer does so in `train`
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return GRPOTrainer(
        model=model.to(setting.device),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * 2),
        processing_class=engine.bench.tokenizer,
    )


def _tensors(samples: Sequence[TrainingSample], device: str) -> dict[str, Tensor]:
    """The inputs of TRL's loss: [rollouts, longest prompt] and [rollouts, longest rest]."""
    starts = [sample.mask.index(True) for sample in samples]
    before, rest = max(starts), max(len(s.token_ids) - at for s, at in zip(samples, starts, strict=True))
    shapes = {"prompt_ids": before, "prompt_mask": before, "completion_ids": rest, "completion_mask": rest}
    batch = {name: torch.zeros(len(samples), width, dtype=torch.long) for name, width in shapes.items()}
    batch["tool_mask"] = torch.zeros_like(batch["completion_mask"])
    batch["old_per_token_logps"] = torch.zeros(len(samples), rest)
    for row, (sample, at) in enumerate(zip(samples, starts, strict=True)):
        own = len(sample.token_ids) - at
        batch["prompt_ids"][row, before - at :] = torch.tensor(sample.token_ids[:at])
        batch["prompt_mask"][row, before - at :] = 1
        batch["completion_ids"][row, :own] = torch.tensor(sample.token_ids[at:])
        batch["completion_mask"][row, :own] = 1
        batch["tool_mask"][row, :own] = torch.tensor(sample.mask[at:]).long()
        batch["old_per_token_logps"][row, :own] = torch.tensor(sample.logprobs[at:])
    batch["advantages"] = torch.tensor([sample.advantage for sample in samples])
    batch["num_items_in_batch"] = batch["tool_mask"].sum()
    return {name: each.to(device) for name, each in batch.items()}
