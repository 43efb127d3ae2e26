#!/usr/bin/env bash
# What a fresh machine needs.
#   bash scripts/setup.sh                                our own environment, .venv
#   bash scripts/setup.sh --prime-rl [--check] [--no-environment]
# The second also makes .vendor/prime-rl: PRIME-RL at the commit of configs/versions.toml with its submodules, every
# patch of patches/prime_rl, and its own environment (Python 3.12, made by uv) with this package in it;
# --no-environment stops before that environment, and leaves .venv alone. PRIME_RL_SOURCE=DIR takes PRIME-RL from a
# checkout on this machine, which is left as it is; UV=PROGRAM names uv. Run again, only what has changed is done;
# edits of your own in .vendor/prime-rl are never overwritten. --check makes nothing: it says what is not as it should
# be, with exit status 1.
set -euo pipefail
usage() { sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; }
refuse() { echo "setup: $1" >&2; usage >&2; exit 2; }

PRIME_RL="" ENVIRONMENT=1 CHECK=""
while [ $# -gt 0 ]; do
  case "$1" in
    --prime-rl) PRIME_RL=1 ;;
    --no-environment) ENVIRONMENT="" ;;
    --check) CHECK=1 ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown argument $1" ;;
  esac
  shift
done
[ -n "$PRIME_RL$ENVIRONMENT" ] || refuse "--no-environment goes with --prime-rl"
[ -n "$PRIME_RL" ] || [ -z "$CHECK" ] || refuse "--check goes with --prime-rl"
SOURCE="${PRIME_RL_SOURCE:+$(realpath -m "$PRIME_RL_SOURCE")}"
if [ -n "$PRIME_RL" ] && [ -n "$SOURCE" ] && ! git -C "$SOURCE" rev-parse --git-dir > /dev/null 2>&1; then
  refuse "PRIME_RL_SOURCE=$SOURCE is no git checkout"
fi
if [ -n "$ENVIRONMENT" ] && [ -z "$CHECK" ]; then
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
else
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
fi
if [ -z "$PRIME_RL" ]; then
  echo "$VENV is ready; next: source $VENV/bin/activate, or bash scripts/quickstart.sh"
  exit
fi
source scripts/prime_rl_checkout.sh
if [ -n "$CHECK" ]; then
  check_checkout
  [ -z "$ENVIRONMENT" ] || { source scripts/prime_rl_environment.sh; check_prime_rl_environment; }
  echo "$CHECKOUT is PRIME-RL ${PIN:0:12} with our patches"
  exit
fi
make_checkout
if [ -z "$ENVIRONMENT" ]; then
  echo "$CHECKOUT is ready; next: bash scripts/setup.sh --prime-rl makes its environment"
  exit
fi
source scripts/prime_rl_environment.sh
make_prime_rl_environment
echo "$CHECKOUT is ready; next: source $VENV/bin/activate && glyph doctor"
