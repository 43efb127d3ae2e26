#!/usr/bin/env bash
# Fine-tune a model on the SFT traces of an arm, with the embedded engine.
#   bash scripts/train_sft.sh a|b [--scale mini|small] [--output RUN] [--seed N] [--model DIR|HUB_ID] [--data DIR]
#                             [--config OVERLAY.toml] [--device cpu|cuda] [key=value ...]
#   bash scripts/train_sft.sh --resume RUN
# Keys are those of docs/configuration.md, for example optimiser.learning_rate=1e-4. At the scale of the paper, with
# PRIME-RL on one GPU (bash scripts/setup.sh --prime-rl), from the folder that glyph make-base made:
#   bash scripts/train_sft.sh a|b --scale paper --model DIR [--output RUN] [--seed N] [--data DIR]
#                             [--config OVERLAY.toml] [--print]
#                             [-- options of PRIME-RL, as --max-steps 2 --scheduler.decay-steps 0]
# --seed is that of the shuffling (42). --print says what would run; RUN/given is made when it does.
set -euo pipefail
STAGE=sft
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"
