#!/usr/bin/env bash
# Train an arm by reinforcement learning from its SFT model, with the embedded engine.
#   bash scripts/train_rl.sh a|b --model SFT_RUN [--scale mini|small] [--output RUN] [--seed N] [--data DIR]
#                            [--config OVERLAY.toml] [--device cpu|cuda] [key=value ...]
#   bash scripts/train_rl.sh --resume RUN
# SFT_RUN is the run folder of train_sft.sh, or a model folder. Keys are those of docs/configuration.md, for example
# credit.alpha=0. At the scale of the paper, with PRIME-RL (bash scripts/setup.sh --prime-rl):
#   bash scripts/train_rl.sh a|b --scale paper --model SFT_RUN/weights/step_60 [--output RUN] [--seed N] [--data DIR]
#                            [--gpus two|shared] [--config OVERLAY.toml] [--print]
#                            [-- options of PRIME-RL, as --orchestrator.algo.alpha 0]
# --seed is that of the inference (42; the published seeds are 42 and 43). GPUs: one for vLLM and one for the trainer,
# or both on one (configs/paper/one_gpu.toml). --print says what would run; RUN/given is made when it does.
set -euo pipefail
STAGE=rl
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"
