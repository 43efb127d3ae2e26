#!/usr/bin/env bash
# From nothing to a report of both arms: environment, data, validation, rollouts, report.
#   bash scripts/quickstart.sh [--model DIR|HUB_ID] [--source MBPP_FILE] [--tasks N] [--output DIR]
# Without a model or MBPP (no hub, no paths) it says so and plays demonstrations on the project's own tasks.
set -euo pipefail
usage() { sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; }

MODEL="" SOURCE="${MBPP_SOURCE:-}" TASKS=4 OUTPUT=""
while [ $# -gt 0 ]; do
  case "$1" in
    --model | --source | --tasks | --output)
      [ $# -ge 2 ] || { echo "quickstart: $1 needs a value" >&2; usage >&2; exit 2; }
      declare "$(echo "${1#--}" | tr a-z A-Z)=$2"
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
case "$TASKS" in '' | *[!0-9]* | 0) echo "quickstart: --tasks must be a positive number, got '$TASKS'" >&2; exit 2 ;; esac
for path in ${SOURCE:+"$SOURCE"}; do
  [ -e "$path" ] || { echo "quickstart: --source $path: no such file" >&2; exit 2; }
done
SOURCE="${SOURCE:+$(realpath "$SOURCE")}"
[ -d "$MODEL" ] && MODEL="$(realpath "$MODEL")"
OUTPUT="${OUTPUT:+$(realpath -m "$OUTPUT")}"

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
OUTPUT="${OUTPUT:-runs/quickstart-$(date +%Y%m%d-%H%M%S)}"
export HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

echo "== 1 of 4: data"
DATA=data
if [ -f data/manifest.json ]; then
  echo "data/ is there already (rm data/manifest.json to prepare it again)"
else
  code=0
  python -m data.prepare ${SOURCE:+--source "$SOURCE"} || code=$?
  if [ "$code" -eq 3 ]; then
    echo "NO MBPP HERE: using the project's own small task set instead (give --source FILE for MBPP)"
    DATA=data/mini
    [ -f data/mini/manifest.json ] || python -m data.prepare --tasks mini --output data/mini
  elif [ "$code" -ne 0 ]; then
    exit "$code"
  fi
fi

echo "== 2 of 4: validation"
python -m data.validate "$DATA"

echo "== 3 of 4: rollouts of both arms"
if [ -z "$MODEL" ]; then
  MODEL="$(python -m glyph.local.hub)" || MODEL=""
fi
if [ -n "$MODEL" ]; then
  # An untrained model does not know the protocol: two demonstrations in the prompt show it.
  glyph rollouts "$OUTPUT" --data "$DATA" --num-tasks "$TASKS" --model "$MODEL" --shots 2 --max-completion-tokens 192
else
  echo "NO MODEL HERE: a script plays demonstrations instead; the figures below are no model's (give --model DIR)"
  TASKS=$((TASKS < 32 ? 32 : TASKS))
  glyph rollouts "$OUTPUT" --data "$DATA" --num-tasks "$TASKS"
fi

echo "== 4 of 4: report"
glyph report "$OUTPUT/arm_a" "$OUTPUT/arm_b" --output "$OUTPUT" --title "Quickstart"
echo
echo "the report is $OUTPUT/report.md"
echo "next: glyph show $OUTPUT/arm_b --task TASK    a rollout, turn by turn"
echo "      bash scripts/evaluate.sh b MODEL validation    all 40 validation tasks through Verifiers"
