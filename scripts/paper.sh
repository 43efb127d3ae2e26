# Sourced: the paper scale. PRIME-RL trains and serves there, from .vendor/prime-rl with an environment of its own.
# `paper_train STAGE ARGUMENTS` trains or resumes; `vllm_command MODEL PORT` sets COMMAND to what serves a checkpoint;
# `start_group COMMAND...` and `stop_group` run what must not outlive the script. The caller has refuse().

REPOSITORY="$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")"
PRIME_RL_BIN="$REPOSITORY/.vendor/prime-rl/.venv/bin"
READY_SECONDS="${READY_SECONDS:-1800}" # how long a server may take to load a model
GROUP=""

paper_train() {
  local STAGE="$1" ARM="" MODEL="" OUTPUT="" SEED="" GPUS=two PRINT="" RESUME="" GIVEN CONFIGS=() EXTRA=() COMMAND=()
  shift
  GIVEN=$#
  paper_arguments "$@"
  if [ -n "$RESUME" ]; then
    check_resumed
  else
    check_new
  fi
  [ -x "$PRIME_RL_BIN/$STAGE" ] || [ -n "$PRINT" ] ||
    refuse "PRIME-RL is not here ($PRIME_RL_BIN/$STAGE); first: bash scripts/setup.sh --prime-rl"
  if [ -n "$PRINT" ]; then
    DATA="${DATA:-$REPOSITORY/data}"
    training_command
    printf 'PATH=%q:"$PATH"' "$PRIME_RL_BIN"
    printf ' %q' "${COMMAND[@]}"
    echo
    return
  fi
  source "$REPOSITORY/scripts/environment.sh"
  export TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1
  if [ -n "$RESUME" ]; then
    resumed_command
  else
    source scripts/data.sh
    prepare_data paper
    DATA="$(realpath "$DATA")"
    training_command
    open_run
  fi
  run_training
}

paper_arguments() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --scale | --resume | --output | --seed | --model | --data | --config | --gpus)
        [ $# -ge 2 ] || refuse "$1 needs a value"
        case "$1 $2" in
          "--scale paper") ;;
          "--scale "*) refuse "two scales: paper and $2" ;;
          "--resume "*) RESUME="$2" ;;
          "--output "*) OUTPUT="$2" ;;
          "--model "*) MODEL="$2" ;;
          "--data "*) DATA="$2" ;;
          "--seed " | "--seed "*[!0-9]*) refuse "--seed must be a number, got '$2'" ;;
          "--seed "*) SEED="$2" ;;
          "--config "*) [ -f "$2" ] || refuse "--config $2: no such file"; CONFIGS+=("$(realpath "$2")") ;;
          "--gpus shared" | "--gpus two") [ "$STAGE" = rl ] || refuse "--gpus is of RL: SFT has one GPU"; GPUS="$2" ;;
          *) refuse "--gpus must be two or shared, got '$2'" ;;
        esac
        shift 2
        ;;
      --print) PRINT=1; shift ;;
      a | b) [ -z "$ARM" ] || refuse "two arms: $ARM and $1"; ARM="$1"; shift ;;
      --) shift; EXTRA=("$@"); break ;;
      -*) refuse "unknown option $1; options of PRIME-RL itself follow after --" ;;
      *) refuse "unknown argument $1; options of PRIME-RL itself follow after --" ;;
    esac
  done
  case "${EXTRA[*]}" in *$'\n'*) refuse "an argument after -- holds a line break" ;; esac
}

check_new() {
  [ -n "$ARM" ] || refuse "which arm? a or b"
  [ -n "$MODEL" ] || refuse "which model? --model $([ "$STAGE" = sft ] &&
    echo "the folder that glyph make-base made" || echo "the arm's SFT checkpoint: RUN/weights/step_N")"
  [ -f "$MODEL/config.json" ] || refuse "--model $MODEL: no model folder (no config.json)"
  MODEL="$(realpath "$MODEL")"
  OUTPUT="${OUTPUT:-$REPOSITORY/runs/paper/arm_${ARM}_$STAGE-$(date +%Y%m%d-%H%M%S)}"
  [ ! -e "$OUTPUT" ] || { [ -d "$OUTPUT" ] && [ -z "$(ls -A "$OUTPUT")" ]; } ||
    refuse "--output $OUTPUT is not an empty folder; go on with the run in it with --resume, or give another"
  OUTPUT="$(realpath -m "$OUTPUT")" DATA="${DATA:+$(realpath -m "$DATA")}"
  [ "$GPUS" = two ] || CONFIGS=("$REPOSITORY/configs/paper/one_gpu.toml" "${CONFIGS[@]}")
  CONFIGS=("$REPOSITORY/configs/paper/arm_${ARM}_$STAGE.toml" "${CONFIGS[@]}")
}

check_resumed() {
  [ "$GIVEN" -eq 2 ] || refuse "--resume takes no other argument: the run's own command holds"
  OUTPUT="$(realpath -m "$RESUME")"
  [ -f "$OUTPUT/command" ] || refuse "$RESUME holds no command, so no run to resume"
  [ ! -f "$OUTPUT/finished" ] || refuse "$RESUME is finished; its checkpoints are in $RESUME/weights"
  mapfile -t COMMAND < "$OUTPUT/command"
  STAGE="$(sed -n 's#^.*/bin/\(sft\|rl\)$#\1#p' "$OUTPUT/command")"
  ARM="$(sed -n 's#^.*/given/0-arm_\([ab]\)_.*#\1#p' "$OUTPUT/command")"
}

training_command() { # the configuration files are those that open_run puts into the run's folder
  local i first="${CUDA_VISIBLE_DEVICES:-0}"
  COMMAND=("$PRIME_RL_BIN/$STAGE")
  [ "$GPUS" = two ] || COMMAND=(env "CUDA_VISIBLE_DEVICES=${first%%,*},${first%%,*}" "${COMMAND[@]}") # one GPU, twice
  for i in "${!CONFIGS[@]}"; do COMMAND+=(@ "$OUTPUT/given/$i-$(basename "${CONFIGS[$i]}")"); done
  COMMAND+=(--model.name "$MODEL" --output-dir "$OUTPUT")
  case "$STAGE $SEED" in
    "sft "?*) COMMAND+=(--data.seed "$SEED") ;;
    "rl "?*) COMMAND+=(--inference.seed "$SEED") ;;
  esac
  COMMAND+=("${EXTRA[@]}")
}

open_run() { # the folder, with the configuration as it was given, the command and the manifest
  local i
  mkdir -p "$OUTPUT/given"
  for i in "${!CONFIGS[@]}"; do # PRIME-RL takes no option for one environment of a list, so the file names the data
    DATA="$DATA" python - "${CONFIGS[$i]}" > "$OUTPUT/given/$i-$(basename "${CONFIGS[$i]}")" <<'GIVEN'
import json, os, re, sys
text = open(sys.argv[1], encoding="utf-8").read()
print(re.sub(r'"data(/[^"]*)?"', lambda found: json.dumps(os.environ["DATA"] + (found[1] or "")), text), end="")
GIVEN
  done
  python -m glyph.commands.manifest scale=paper stage="$STAGE" arm="$ARM" model="$MODEL" data="$DATA" \
    gpus="$GPUS" command="${COMMAND[*]}" > "$OUTPUT/manifest.json"
  printf '%s\n' "${COMMAND[@]}" > "$OUTPUT/command"
}

resumed_command() { # the newest checkpoint that is whole; PRIME-RL's own resume_step=-1 would take a half-written one
  local step
  step="$(whole_checkpoints | sort -n | tail -1)"
  if [ -n "$step" ]; then
    echo "resuming after step $step"
    COMMAND+=(--ckpt.resume-step "$step")
  else
    echo "$OUTPUT has no whole checkpoint yet: starting over"
  fi
}

whole_checkpoints() {
  local folder step
  for folder in "$OUTPUT"/checkpoints/step_*; do
    step="${folder##*_}"
    [ -f "$folder/trainer/.metadata" ] || continue
    [ "$STAGE" = sft ] || [ -f "$OUTPUT/run_default/checkpoints/step_$step/orchestrator/progress.pt" ] || continue
    echo "$step"
  done
}

run_training() {
  local weights log status=0 waiting=1
  echo "the run is $OUTPUT (log: $OUTPUT/log)"
  exec 3> >(exec tee -ai "$OUTPUT/log")
  log=$!
  # as Ctrl-C in a terminal does: at that, PRIME-RL ends its own processes
  trap 'waiting=1; kill -INT -- "-$GROUP" 2> /dev/null || true' INT TERM
  start_group env "PATH=$PRIME_RL_BIN:$PATH" "${COMMAND[@]}" >&3 2>&1 3>&-
  exec 3>&-
  while [ -n "$waiting" ]; do # a signal ends a wait too, with a status of its own
    waiting=""
    wait "$GROUP" && status=0 || status=$?
  done
  stop_group # whatever the launcher left behind, which would hold the log open
  wait "$log" || true
  trap - INT TERM
  if [ "$status" -ne 0 ]; then
    echo "$STAGE ended with exit status $status; go on: bash scripts/train_$STAGE.sh --resume $OUTPUT" >&2
    exit "$status"
  fi
  weights="$(ls -dv "$OUTPUT"/weights/step_* 2> /dev/null | tail -1 || true)"
  [ -n "$weights" ] || { echo "PRIME-RL's own files are in $OUTPUT"; return; } # a dry run, or a job that was submitted
  touch "$OUTPUT/finished"
  echo "the model is $weights"
  case "$STAGE" in
    sft) echo "next: bash scripts/train_rl.sh $ARM --scale paper --model $weights" ;;
    rl) echo "next: bash scripts/evaluate.sh --scale paper --serve $ARM $weights test" ;;
  esac
}

vllm_command() { # MODEL PORT
  COMMAND=(env "PATH=$PRIME_RL_BIN:$PATH" "$PRIME_RL_BIN/inference" @ "$REPOSITORY/configs/paper/serve.toml"
    --model.name "$1" --server.host 127.0.0.1 --server.port "$2")
}

start_group() { # COMMAND...: in a process group of its own, GROUP, that answers to signals as in a terminal
  set -m
  "$@" < /dev/null &
  GROUP=$!
  set +m
}

stop_group() { # all of the group, at the latest after 20 seconds
  local i
  [ -n "$GROUP" ] || return 0
  kill -TERM -- "-$GROUP" 2> /dev/null || true
  for ((i = 0; i < 200; i++)); do
    kill -0 -- "-$GROUP" 2> /dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$GROUP" 2> /dev/null || true
  wait "$GROUP" 2> /dev/null || true
  GROUP=""
}
