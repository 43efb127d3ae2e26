#!/usr/bin/env bash
# Make the study's runs, or what is missing of them: SFT of an arm, RL, test tasks with every quarter's checkpoint.
#   bash scripts/study.sh --model DIR|HUB_ID --work DIR --results DIR [--scale small|mini] [--visit N | --runs a,b,...]
#                         [--jobs N] [--evaluations N] [--minutes M] [--reserve SECONDS] [--steps N] [--until STEP]
#                         [--evaluate-every STEPS] [--num-tasks N] [--sft "key=value ..."] [--rl "key=value ..."]
#                         [--data DIR] [--commit SHA] [--python COMMAND] [--mps]
#   bash scripts/study.sh --list
# Runs and visits are those of study/matrix.toml. N runs are trained at once on one GPU. When the time is nearly over,
# runs are stopped after a step and evaluated where they stand; the same command goes on with what is missing, whatever
# ended it. Results for publication go to DIR, packed beside it; weights stay in the work folder.
# --python (or PYTHON) names an interpreter that has everything: then no virtual environment is made. --mps has the
# processes share the GPU through NVIDIA's multi-process service, started here and ended with it: without it they take
# turns, and four runs at once take three times as long.
set -euo pipefail
usage() { sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//'; }
refuse() { echo "study: $1" >&2; usage >&2; exit 2; }

MPS="" SCALE=small GIVEN_PYTHON="${PYTHON:-}" GIVEN_DATA="${DATA:-}" OPTIONS=() LIST="" WORK="" RESULTS="" MODEL=""
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --list) LIST=1; shift; continue ;;
    --mps) MPS=1; shift; continue ;;
    --model | --work | --results | --scale | --visit | --runs | --jobs | --evaluations | --minutes | --reserve | --steps | \
      --until | --evaluate-every | --num-tasks | --sft | --rl | --data | --commit | --python)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      ;;
    *) refuse "unknown argument $1" ;;
  esac
  case "$1" in
    --python) GIVEN_PYTHON="$2" ;;
    --data) GIVEN_DATA="$2" ;;
    --model) MODEL="$2" ;;
    --work) WORK="$(realpath -m "$2")" ;;
    --results) RESULTS="$(realpath -m "$2")" ;;
    --scale) SCALE="$2" ;;
    *) OPTIONS+=("$1" "$2") ;;
  esac
  shift 2
done
if [ -z "$LIST" ]; then
  case "$SCALE" in mini | small) ;; *) refuse "--scale must be mini or small, got '$SCALE'" ;; esac
  [ -n "$MODEL" ] || [ "$SCALE" = mini ] || refuse "which model? --model a folder or a hub id"
  [ -n "$WORK" ] && [ -n "$RESULTS" ] || refuse "--work and --results are needed"
  case "$MODEL" in /* | ./* | ../*) [ -d "$MODEL" ] || refuse "--model $MODEL: no such folder" ;; esac
fi
[ -z "$MPS" ] || command -v nvidia-cuda-mps-control > /dev/null || refuse "--mps: there is no nvidia-cuda-mps-control here"
[ ! -d "$MODEL" ] || MODEL="$(realpath "$MODEL")"
DATA="${GIVEN_DATA:+$(realpath -m "$GIVEN_DATA")}"

source "$(dirname "${BASH_SOURCE[0]}")/interpreter.sh"
[ -z "$LIST" ] || exec "${COMMAND[@]}" -m study runs
case "$SCALE" in mini) TASKS=mini DATA="${DATA:-$PWD/data/mini}" ;; *) TASKS=mbpp DATA="${DATA:-$PWD/data}" ;; esac
[ -f "$DATA/manifest.json" ] || "${COMMAND[@]}" -m glyph prepare --tasks "$TASKS" --output "$DATA"
export TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONUNBUFFERED=1
STUDY=("${COMMAND[@]}" -m study run --python "${COMMAND[*]}" --scale "$SCALE" --model "${MODEL:-models/mini}"
  --data "$DATA" --work "$WORK" --results "$RESULTS" "${OPTIONS[@]}")
[ -n "$MPS" ] || exec "${STUDY[@]}"

CUDA_MPS_PIPE_DIRECTORY="$(mktemp -d)" CUDA_MPS_LOG_DIRECTORY="$WORK/logs"
export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
mkdir -p "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
end_mps() { echo quit | nvidia-cuda-mps-control > /dev/null || true; rm -rf "$CUDA_MPS_PIPE_DIRECTORY"; }
trap end_mps EXIT
"${STUDY[@]}" &
trap 'kill -TERM $! 2> /dev/null || true' HUP INT TERM # by which the runs are stopped after a step
while kill -0 $! 2> /dev/null; do wait $! && status=0 || status=$?; done
exit "$status"
