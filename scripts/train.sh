# Sourced by train_sft.sh and train_rl.sh, with STAGE=sft or rl: checks the arguments, prepares the data if they are
# missing, and starts or resumes a run of the embedded engine; at the paper scale paper.sh does, with PRIME-RL. The log
# is in the run's folder.
usage() { sed -n '2,/^set /p' "$0" | sed -n 's/^# \{0,1\}//p'; }
refuse() { echo "$(basename "$0" .sh): $1" >&2; usage >&2; exit 2; }

case "${1:-}" in -h | --help) usage; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/paper.sh"
case " $* " in *" --scale paper "*) paper_train "$@"; exit ;; esac
if [ "${1:-}" = "--resume" ] && [ -f "${2:-}/command" ]; then paper_train "$@"; exit; fi
ARM="" SCALE=mini RESUME="" MODEL="" OPTIONS=() GIVEN=$#
while [ $# -gt 0 ]; do
  case "$1" in
    --scale | --resume | --output | --seed | --model | --data | --config | --device)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      case "$1 $2" in
        "--scale "*) SCALE="$2" ;;
        "--resume "*) RESUME="$2" ;;
        "--data "*) DATA="$2" ;;
        "--model "*) MODEL="$2" ;;
        "--output "*)
          [ ! -e "$2" ] || { [ -d "$2" ] && [ -z "$(ls -A "$2")" ]; } ||
            refuse "--output $2 is not an empty folder; go on with the run in it with --resume, or give another"
          OPTIONS+=(--output "$(realpath -m "$2")")
          ;;
        "--config "*) [ -f "$2" ] || refuse "--config $2: no such file"; OPTIONS+=(--config "$(realpath "$2")") ;;
        "--seed " | "--seed "*[!0-9]*) refuse "--seed must be a number, got '$2'" ;;
        "--seed "* | "--device auto" | "--device cpu" | "--device cuda") OPTIONS+=("$1" "$2") ;;
        *) refuse "--device must be auto, cpu or cuda, got '$2'" ;;
      esac
      shift 2
      ;;
    a | b) [ -z "$ARM" ] || refuse "two arms: $ARM and $1"; ARM="$1"; shift ;;
    -*) refuse "unknown option $1" ;;
    *=*) OPTIONS+=("$1"); shift ;;
    *) refuse "unknown argument $1" ;;
  esac
done
case "$SCALE" in
  mini | small) ;;
  *) refuse "--scale must be mini, small or paper, got '$SCALE'" ;;
esac
if [ -n "$RESUME" ]; then
  [ "$GIVEN" -eq 2 ] || refuse "--resume takes no other argument: the run's own configuration holds"
  [ -f "$RESUME/manifest.json" ] || refuse "$RESUME holds no manifest.json, so no run to resume"
  RESUME="$(realpath "$RESUME")"
else
  [ -n "$ARM" ] || refuse "which arm? a or b"
  [ -n "$MODEL" ] || [ "$STAGE" = sft ] || refuse "which model? --model the arm's SFT run"
  if [ -d "$MODEL" ]; then
    MODEL="$(realpath "$MODEL")"
  else
    case "$SCALE $MODEL" in "mini "?* | *" /"* | *" ./"* | *" ../"*) refuse "--model $MODEL: no such folder" ;; esac
  fi
  OPTIONS+=(${MODEL:+--model "$MODEL"})
  DATA="${DATA:+$(realpath -m "$DATA")}"
fi

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1
if [ -n "$RESUME" ]; then
  exec glyph resume "$RESUME"
fi
python scripts/settings.py "$STAGE" "$ARM" --scale "$SCALE" "${OPTIONS[@]}"
source scripts/data.sh
prepare_data "$SCALE"
exec glyph "$STAGE" "$ARM" --scale "$SCALE" --data "$DATA" "${OPTIONS[@]}"
