#!/usr/bin/env bash
# Fine-tune a model on the SFT traces of an arm, with the embedded engine.
#   bash scripts/train_sft.sh a|b [--scale mini|small] [--output RUN] [--seed N] [--model DIR|HUB_ID] [--data DIR]
#                             [--config OVERLAY.toml] [--device cpu|cuda] [key=value ...]
#   bash scripts/train_sft.sh --resume RUN
# Keys are those of docs/configuration.md, for example optimiser.learning_rate=1e-4.
set -euo pipefail
STAGE=sft
source "$(dirname "${BASH_SOURCE[0]}")/train.sh"
