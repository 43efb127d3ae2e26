#!/usr/bin/env bash
# Train an arm by reinforcement learning from its SFT model, with the embedded engine.
#   bash scripts/train_rl.sh a|b --model SFT_RUN [--scale mini|small] [--output RUN] [--seed N] [--data DIR]
#                            [--config OVERLAY.toml] [--device cpu|cuda] [key=value ...]
#   bash scripts/train_rl.sh --resume RUN
# SFT_RUN is the run folder of train_sft.sh, or a model folder. Keys are those of docs/configuration.md, for example
# credit.alpha=0.
set -euo pipefail
STAGE=rl
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"
