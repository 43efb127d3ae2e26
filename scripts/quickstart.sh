#!/usr/bin/env bash
# Both arms from a base model to a report, on a CPU, in minutes: environment, data, SFT, RL, evaluation on held-out
# tasks, report. The model has about a million parameters (models/mini), the tasks are the project's own (data/mini).
#   bash scripts/quickstart.sh [--seeds "42 43 44"] [--output DIR] [--sft "key=value ..."] [--rl "key=value ..."]
#   bash scripts/quickstart.sh --resume DIR
# The arms run at once, a process each; several seeds one after another. Ctrl-C saves, --resume goes on. Keys are those
# of docs/configuration.md, DATA is a variable too. An untrained model of your own on MBPP: scripts/first_rollouts.sh
set -euo pipefail
usage() { sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; }
refuse() { echo "quickstart: $1" >&2; usage >&2; exit 2; }

SEEDS=42 OUTPUT="" RESUME="" SFT="" RL="" GIVEN=$#
while [ $# -gt 0 ]; do
  case "$1" in
    --seeds | --output | --resume | --sft | --rl)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      declare "$(echo "${1#--}" | tr a-z A-Z)=$2"
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown argument $1" ;;
  esac
done
read -ra SEEDS <<< "$SEEDS"; read -ra SFT <<< "$SFT"; read -ra RL <<< "$RL"
[ ${#SEEDS[@]} -gt 0 ] || refuse "--seeds needs a number"
for seed in "${SEEDS[@]}"; do
  case "$seed" in *[!0-9]* | 0?*) refuse "--seeds must be numbers, got '$seed'" ;; esac
done
[ "$(printf '%s\n' "${SEEDS[@]}" | sort | uniq -d)" = "" ] || refuse "--seeds names a seed twice: ${SEEDS[*]}"
for setting in "${SFT[@]}" "${RL[@]}"; do
  case "$setting" in *=*) ;; *) refuse "--sft and --rl take key=value, got '$setting'" ;; esac
done
if [ -n "$RESUME" ]; then
  [ "$GIVEN" -eq 2 ] || refuse "--resume takes no other argument: the quickstart's own hold"
  [ -f "$RESUME/quickstart.json" ] || refuse "$RESUME holds no quickstart.json, so no quickstart to resume"
  OUTPUT="$RESUME"
elif [ -n "$OUTPUT" ] && [ -e "$OUTPUT" ] && { [ ! -d "$OUTPUT" ] || [ -n "$(ls -A "$OUTPUT")" ]; }; then
  refuse "--output $OUTPUT is not an empty folder"
fi
OUTPUT="${OUTPUT:+$(realpath -m "$OUTPUT")}" DATA="${DATA:+$(realpath -m "$DATA")}"

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if [ -n "$RESUME" ]; then
  DATA="$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["data"])' \
    "$OUTPUT/quickstart.json" 2>/dev/null)" || { echo "quickstart: $OUTPUT/quickstart.json cannot be read" >&2; exit 1; }
else
  python scripts/settings.py sft a "${SFT[@]}"
  python scripts/settings.py rl b --model "the SFT run" "${RL[@]}"
fi
OUTPUT="${OUTPUT:-runs/quickstart-$(date +%Y%m%d-%H%M%S)}"

echo "== 1 of 3: data"
source scripts/data.sh
prepare_data mini
if [ -n "$RESUME" ]; then
  exec python scripts/quickstart.py --resume "$OUTPUT"
fi
exec python scripts/quickstart.py "$OUTPUT" --data "$DATA" --seeds "${SEEDS[*]}" --sft "${SFT[*]}" --rl "${RL[*]}"
