#!/usr/bin/env bash
# A model that was never trained here, on real MBPP: environment, data, validation, rollouts of both arms, report.
#   bash scripts/first_rollouts.sh [--model DIR|HUB_ID] [--source MBPP_FILE] [--tasks N] [--output DIR]
# Without a model or MBPP (no hub, no paths) it says so and plays demonstrations on the project's own tasks.
set -euo pipefail
usage() { sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; }

MODEL="" SOURCE="" TASKS=4 OUTPUT=""
while [ $# -gt 0 ]; do
  case "$1" in
    --model | --source | --tasks | --output)
      [ $# -ge 2 ] || { echo "first_rollouts: $1 needs a value" >&2; usage >&2; exit 2; }
      declare "$(echo "${1#--}" | tr a-z A-Z)=$2"
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    *) echo "first_rollouts: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
case "$TASKS" in '' | *[!0-9]* | 0*) echo "first_rollouts: --tasks must be a positive number, got '$TASKS'" >&2; exit 2 ;; esac
GIVEN="$SOURCE" SOURCE="${SOURCE:-${MBPP_SOURCE:-}}"
if [ -n "$SOURCE" ] && [ ! -e "$SOURCE" ]; then
  echo "first_rollouts: $SOURCE: no such file (--source or MBPP_SOURCE)" >&2
  exit 2
fi
SOURCE="${SOURCE:+$(realpath "$SOURCE")}"
case "$MODEL" in
  /* | ./* | ../*) [ -d "$MODEL" ] || { echo "first_rollouts: --model $MODEL: no such folder" >&2; exit 2; } ;;
esac
[ -d "$MODEL" ] && MODEL="$(realpath "$MODEL")"
OUTPUT="${OUTPUT:+$(realpath -m "$OUTPUT")}"
if [ -n "$OUTPUT" ] && [ -n "$(ls -A "$OUTPUT" 2>/dev/null)" ]; then
  echo "first_rollouts: --output $OUTPUT is not empty" >&2
  exit 2
fi

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
OUTPUT="${OUTPUT:-runs/first_rollouts-$(date +%Y%m%d-%H%M%S)}"
export HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

echo "== 1 of 4: data"
DATA=data
if [ -f data/manifest.json ] && [ -z "$GIVEN" ]; then
  echo "data/ is there already (--source FILE prepares it again)"
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
glyph report "$OUTPUT/arm_a" "$OUTPUT/arm_b" --output "$OUTPUT" --title "First rollouts"
EXAMPLE="$(python -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["id"].split("/")[-2])' "$OUTPUT/arm_b/traces.jsonl")"
WITH_DATA="$([ "$DATA" = data ] || echo "DATA=$DATA ")"
echo
echo "the report is $OUTPUT/report.md"
echo "next: source $VENV/bin/activate"
echo "      glyph show $OUTPUT/arm_b --task $EXAMPLE               a rollout, turn by turn"
echo "      ${WITH_DATA}bash scripts/evaluate.sh b MODEL validation    the validation tasks through Verifiers"
