#!/usr/bin/env bash
# Run the tests in a virtual environment of their own making: bash scripts/test.sh [pytest arguments]
set -euo pipefail
EXTRAS=dev
if [ -n "${PRIME_RL_SOURCE:-}" ]; then # from where the caller stands
  PRIME_RL_SOURCE="$(realpath "$PRIME_RL_SOURCE")"
  export PRIME_RL_SOURCE
fi
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
if [ -z "${MBPP_SOURCE:-}" ] && [ -f ../shared/data/mbpp.jsonl ]; then
  export MBPP_SOURCE="$PWD/../shared/data/mbpp.jsonl"
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
exec python -m pytest -n "${TEST_WORKERS:-auto}" "$@"
