#!/usr/bin/env bash
# Evaluate a model on held-out tasks through Verifiers: greedy, 512 completion tokens a turn, 4096 in all.
#   bash scripts/evaluate.sh [--scale paper] [--serve] a|b MODEL validation|test [eval arguments]
#   bash scripts/evaluate.sh --resume RUN_FOLDER
# MODEL is a model folder (served here, on the CPU or one GPU, and stopped afterwards) or a model's name at an
# OpenAI-compatible endpoint: BASE_URL (default http://127.0.0.1:8000/v1), its key in the variable named by
# API_KEY_VAR. With --serve vLLM serves the folder, from the environment of scripts/setup.sh --prime-rl. DATA (default
# data; validated first), OUTPUT, CONCURRENCY (default 16) and READY_SECONDS (how long a server may take to start; 1800)
# are variables too. A checkpoint that was trained with another wording is asked in it by --taskset.prompts FILE (the
# form of configs/prompts.toml; an absolute path), with the same data.
#   bash scripts/evaluate.sh --scale mini|small a|b MODEL validation|test [key=value or glyph evaluate options]
# In one process and greedy, with the settings of the scale, or of MODEL where that is a run folder of the engine.
set -euo pipefail
usage() { sed -n '2,/^set /p' "$0" | sed '$d' | sed 's/^# \{0,1\}//'; }
refuse() { [ -z "${1:-}" ] || echo "evaluate: $1" >&2; usage >&2; exit 2; }

source "$(dirname "${BASH_SOURCE[0]}")/paper.sh"
SCALE="" SERVE=glyph
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --scale)
    case "${2:-}" in mini | small) SCALE="$2" ;; paper) ;; *) refuse "--scale must be mini, small or paper" ;; esac
    shift 2
    ;;
esac
if [ "${1:-}" = "--serve" ]; then SERVE=vllm; shift; fi
case " $* " in *" --scale "* | *" --serve "*) refuse "--scale comes first, then --serve" ;; esac
[ $# -ge 2 ] || refuse
if [ -n "$SCALE" ] && [ "$1" = "--resume" ]; then refuse "at the scales mini and small there is nothing to resume"; fi
if [ "$SERVE" = vllm ]; then
  [ -z "$SCALE" ] || refuse "--serve is of the paper scale: mini and small evaluate in one process"
  [ "$1" != "--resume" ] || refuse "--resume serves again what was served: leave --serve out"
  [ -f "$2/config.json" ] || refuse "--serve takes a model folder, and $2 is none (no config.json)"
  [ -x "$PRIME_RL_BIN/inference" ] ||
    refuse "PRIME-RL is not here ($PRIME_RL_BIN/inference); first: bash scripts/setup.sh --prime-rl"
fi
if [ "$1" != "--resume" ]; then
  [ $# -ge 3 ] || refuse
  case "$1" in a | b) ;; *) refuse "the arm must be a or b, got '$1'" ;; esac
  case "$3" in validation | test) ;; *) refuse "the split must be validation or test, got '$3'" ;; esac
  case "$SCALE $2" in mini* | *" /"* | *" ./"* | *" ../"*) [ -d "$2" ] || refuse "$2: no such model folder" ;; esac
  [ ! -d "$2" ] || set -- "$1" "$(realpath "$2")" "${@:3}"
  [ -n "$SCALE" ] || require_arm "$2" "$1"
else
  set -- --resume "$(realpath -m "$2")"
fi
READY_SECONDS="${READY_SECONDS:-1800}" # how long a server may take to load a model
case "$READY_SECONDS" in *[!0-9]*) refuse "READY_SECONDS must be a number, got '$READY_SECONDS'" ;; esac
DATA="${DATA:+$(realpath -m "$DATA")}" OUTPUT="${OUTPUT:+$(realpath -m "$OUTPUT")}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

evaluate_here() { # ARM MODEL SPLIT and what glyph evaluate takes beyond them
  local options=(--arm "$1" --scale "$SCALE" --split "$3")
  source scripts/data.sh
  if [ ! -f "$2/config.toml" ]; then prepare_data "$SCALE"; fi # a run knows its own
  OUTPUT="${OUTPUT:-outputs/$(basename "$2")-arm_$1-$3-$(date +%Y%m%d-%H%M%S)}"
  export TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1
  glyph evaluate "$2" "${options[@]}" ${DATA:+--data "$DATA"} --output "$OUTPUT" "${@:4}"
}

if [ -n "$SCALE" ]; then
  evaluate_here "$@"
  exec glyph report "$OUTPUT" --output "$OUTPUT"
fi
DATA="${DATA:-data}" BASE_URL="${BASE_URL:-http://127.0.0.1:8000/v1}"
trap stop_group EXIT

probe() { # whether anything answers, with whatever status
  python - "$1" 2>/dev/null <<'PROBE'
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=10)
except urllib.error.HTTPError:
    pass
PROBE
}

free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

serve_folder() { # MODEL PORT glyph|vllm; remembered in the run folder, for --resume
  local log="$OUTPUT/serve.log" COMMAND=(glyph serve "$1" --port "$2" --name "$(basename "$1")") end
  printf '%s\n' "$@" > "$OUTPUT/served"
  if [ "$3" = vllm ]; then vllm_command "$1" "$2"; fi
  start_group "${COMMAND[@]}" >> "$log" 2>&1
  BASE_URL="http://127.0.0.1:$2/v1"
  echo "serving $1 with $3 (log: $log)"
  end=$((SECONDS + READY_SECONDS))
  while [ "$SECONDS" -lt "$end" ]; do
    ! probe "${BASE_URL%/v1}/health" || return 0
    kill -0 "$GROUP" 2>/dev/null || break
    sleep 1
  done
  echo "evaluate: the server did not start$(kill -0 "$GROUP" 2>/dev/null && echo " in $READY_SECONDS s"):" >&2
  tail -5 "$log" >&2
  exit 1
}

if [ "$1" = "--resume" ]; then
  OUTPUT="$2"
  [ -f "$OUTPUT/config.toml" ] || refuse "$OUTPUT holds no config.toml, so no run to resume"
  if [ -f "$OUTPUT/served" ]; then
    mapfile -t SERVED < "$OUTPUT/served"
    serve_folder "${SERVED[@]}"
  fi
  "$VENV/bin/eval" --resume "$OUTPUT" > "$OUTPUT/eval.out" 2>&1 || { tail -3 "$OUTPUT/eval.out" >&2; exit 1; }
else
  ARM="$1" MODEL="$2" SPLIT="$3"
  shift 3
  [ -f "$DATA/arm_${ARM}_$SPLIT.jsonl" ] || refuse "no prepared data in $DATA; run python -m data.prepare --output $DATA"
  NAME="$(basename "$MODEL")"
  OUTPUT="${OUTPUT:-outputs/$NAME-arm_$ARM-$SPLIT-$(date +%Y%m%d-%H%M%S)}"
  [ ! -e "$OUTPUT/traces.jsonl" ] || refuse "$OUTPUT holds a run already; choose another OUTPUT or --resume it"
  [ "$SERVE" = glyph ] || require_model "$MODEL"
  source scripts/data.sh
  prepare_data paper
  mkdir -p "$OUTPUT"
  python -m glyph.commands.manifest model="$MODEL" arm="$ARM" split="$SPLIT" data="$DATA" temperature=0 \
    max_completion_tokens=512 eval_arguments="$*" > "$OUTPUT/manifest.json"
  if [ "$SERVE" = vllm ] || [ ! -d "$MODEL" ]; then NAME="$MODEL"; fi # what the model is called at the endpoint
  if [ -d "$MODEL" ]; then serve_folder "$MODEL" "$(free_port)" "$SERVE"; fi
  probe "$BASE_URL/models" ||
    { echo "evaluate: nothing answers at $BASE_URL; serve a model there, set BASE_URL, or give a model folder" >&2; exit 1; }
  QUIET=(); [ -t 1 ] || QUIET=(--no-rich)
  COMMAND=("$VENV/bin/eval" glyph --harness.id glyph -m "$NAME"
    --client.base-url "$BASE_URL" --client.api-key-var "${API_KEY_VAR:-GLYPH_ENDPOINT_KEY}"
    --taskset.arm "$ARM" --taskset.split "$SPLIT" --taskset.data "$DATA"
    --sampling.temperature 0 --sampling.max-tokens 512
    --retries.rollout.max-retries 2 -c "${CONCURRENCY:-16}" --no-push -o "$OUTPUT" "${QUIET[@]}" "$@")
  if [ -t 1 ]; then "${COMMAND[@]}"; else "${COMMAND[@]}" > "$OUTPUT/eval.out" 2>&1; fi ||
    {
      echo "evaluate: eval failed:" >&2
      tail -5 "$OUTPUT/eval.out" >&2 2>/dev/null || true
      echo "see $OUTPUT" >&2
      exit 1
    }
fi
glyph report "$OUTPUT" --output "$OUTPUT"
