# Sourced: the paper scale. PRIME-RL trains and serves there, from .vendor/prime-rl with an environment of its own.
# `paper_train ARGUMENTS` trains in STAGE (sft or rl) or resumes; `require_model MODEL` and `require_arm MODEL ARM` end the
# script where a folder is no model for PRIME-RL, or the other arm's; `vllm_command MODEL PORT` sets COMMAND to what
# serves one. The caller has refuse().

REPOSITORY="$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")"
PRIME_RL_BIN="$REPOSITORY/.vendor/prime-rl/.venv/bin"
source "$REPOSITORY/scripts/process_group.sh"

paper_train() {
  local ARM="" MODEL="" OUTPUT="" SEED="" GPUS=two PRINT="" RESUME="" GIVEN=$# CONFIGS=() EXTRA=() COMMAND=()
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
    hold_run
    if is_trained; then finish_run; return; fi
    resumed_command
  else
    require_model "$MODEL"
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
        [ -n "${2:-}" ] || refuse "$1 needs a value"
        case "$1 $2" in
          "--scale paper") GIVEN=$((GIVEN - 2)) ;;
          "--scale "*) refuse "two scales: paper and $2" ;;
          "--resume "*) RESUME="$2" ;;
          "--output "*) OUTPUT="$2" ;;
          "--model "*) MODEL="$2" ;;
          "--data "*) DATA="$2" ;;
          "--seed "*[!0-9]*) refuse "--seed must be a number, got '$2'" ;;
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
  case "${EXTRA[*]}" in
    *$'\n'*) refuse "an argument after -- holds a line break" ;;
    *--output-dir* | *--output_dir*) refuse "--output-dir after --: the folder of the run is given by --output RUN" ;;
  esac
}

check_new() {
  [ -n "$ARM" ] || refuse "which arm? a or b"
  [ -n "$MODEL" ] || refuse "which model? --model $([ "$STAGE" = sft ] &&
    echo "the folder that glyph make-base made" || echo "the arm's SFT checkpoint: RUN/weights/step_N")"
  [ -f "$MODEL/config.json" ] || refuse "--model $MODEL: no model folder (no config.json)"
  MODEL="$(realpath "$MODEL")"
  require_arm "$MODEL" "$ARM"
  [ -z "${DATA:-}" ] || [ -f "$DATA/manifest.json" ] ||
    refuse "--data $DATA: no prepared data (no manifest.json); make them: python -m data.prepare --output $DATA"
  OUTPUT="${OUTPUT:-$REPOSITORY/runs/paper/arm_${ARM}_$STAGE-$(date +%Y%m%d-%H%M%S)}"
  [ ! -e "$OUTPUT" ] || { [ -d "$OUTPUT" ] && [ -z "$(ls -A "$OUTPUT")" ]; } ||
    refuse "--output $OUTPUT is not an empty folder; go on with the run in it with --resume, or give another"
  OUTPUT="$(realpath -m "$OUTPUT")" DATA="${DATA:+$(realpath -m "$DATA")}"
  [ "$GPUS" = two ] || CONFIGS=("$REPOSITORY/configs/paper/one_gpu.toml" "${CONFIGS[@]}")
  CONFIGS=("$REPOSITORY/configs/paper/arm_${ARM}_$STAGE.toml" "${CONFIGS[@]}")
}

check_resumed() {
  local line previous="" recorded="" program=0
  [ "$GIVEN" -eq 2 ] || refuse "--resume takes no other argument: the run's own command holds"
  OUTPUT="$(realpath -m "$RESUME")"
  [ -f "$OUTPUT/command" ] || refuse "$RESUME holds no command, so no run to resume"
  { read -r STAGE ARM; mapfile -t COMMAND; } < "$OUTPUT/command"
  [ "${COMMAND[0]:-}" != env ] || program=2
  case "$STAGE $ARM ${COMMAND[$program]:-}" in
    "sft "[ab]" $PRIME_RL_BIN/sft" | "rl "[ab]" $PRIME_RL_BIN/rl") ;;
    *) refuse "$RESUME/command is none of this checkout: expected sft or rl, an arm, and $PRIME_RL_BIN/sft or rl" ;;
  esac
  for line in "${COMMAND[@]}"; do
    [ "$previous" != --output-dir ] || recorded="$line"
    previous="$line"
  done
  [ "$recorded" = "$OUTPUT" ] || refuse "$RESUME was moved: the run was made as $recorded; move it back there"
  [ ! -f "$OUTPUT/finished" ] || refuse "$RESUME is finished; its checkpoints are in $RESUME/weights"
}

require_arm() { # MODEL ARM: a run's folder, two above its weights, knows its arm
  local arm
  [ -f "$1/../../manifest.json" ] || return 0
  arm="$(sed -n '/^ *"arm": "/{s/.*: "\([ab]\)".*/\1/p;q}' "$1/../../manifest.json")"
  [ -z "$arm" ] || [ "$arm" = "$2" ] || refuse "$1 is a model of arm $arm, not of arm $2"
}

require_model() { # MODEL
  glyph parity "$1" --as-saved || exit
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

open_run() { # the folder, with the configuration as it was given, the manifest and the command
  local i
  mkdir -p "$OUTPUT/given"
  hold_run
  name_data "${CONFIGS[0]}" > "$OUTPUT/given/0-$(basename "${CONFIGS[0]}")"
  for ((i = 1; i < ${#CONFIGS[@]}; i++)); do cp "${CONFIGS[$i]}" "$OUTPUT/given/$i-$(basename "${CONFIGS[$i]}")"; done
  python -m glyph.commands.manifest scale=paper stage="$STAGE" arm="$ARM" model="$MODEL" data="$DATA" \
    gpus="$GPUS" command="${COMMAND[*]}" > "$OUTPUT/manifest.json"
  printf '%s\n' "$STAGE $ARM" "${COMMAND[@]}" > "$OUTPUT/command"
}

hold_run() { # as long as this script or anything that it started lives
  exec 8> "$OUTPUT/.lock"
  flock -n 8 || refuse "$OUTPUT is being trained by another process"
}

name_data() { # CONFIG: with DATA in place of data/; PRIME-RL takes no option for one environment of a list
  DATA="$DATA" python - "$1" <<'NAME'
import json, os, re, sys
text = open(sys.argv[1], encoding="utf-8").read()
there = re.compile(r'(?m)^((?:data|name) = )"data(/[^"]*)?"')
print(there.sub(lambda found: found[1] + json.dumps(os.environ["DATA"] + (found[2] or "")), text), end="")
NAME
}

resumed_command() { # the newest checkpoint that is whole; PRIME-RL's own resume_step=-1 would take a half-written one
  local step
  step="$(whole_checkpoints | sort -n | tail -1)"
  if [ -n "$step" ]; then
    echo "resuming after step $step"
    COMMAND+=(--ckpt.resume-step "$step")
  else
    echo "$OUTPUT has no whole checkpoint to go on from: starting over"
    put_aside
  fi
}

last_step() { # max_steps as PRIME-RL resolved it, at the top of the file that its launcher wrote; nothing without one
  local file
  for file in "$OUTPUT"/configs/{sft,trainer,rl}.toml; do
    [ ! -f "$file" ] || { sed -n '/^\[/q; s/^max_steps = \([0-9]*\)$/\1/p' "$file"; return; }
  done
}

is_trained() { # PRIME-RL writes a checkpoint, then the weights, then their STABLE
  [ -f "$OUTPUT/weights/step_$(last_step)/STABLE" ]
}

put_aside() { # checkpoints that are half-written: PRIME-RL starts in no folder that holds any
  local folder aside
  aside="$OUTPUT/half_written-$(date +%Y%m%d-%H%M%S)"
  for folder in checkpoints run_default/checkpoints; do
    [ -n "$(ls -A "$OUTPUT/$folder" 2> /dev/null)" ] || continue
    mkdir -p "$(dirname "$aside/$folder")"
    mv "$OUTPUT/$folder" "$aside/$folder"
    echo "what is half-written is now $aside/$folder, of no use to a run"
  done
}

whole_checkpoints() {
  local folder step
  for folder in "$OUTPUT"/checkpoints/step_*; do
    step="${folder##*_}"
    # PRIME-RL never ends a run that goes on after its last step
    [ -f "$folder/trainer/.metadata" ] && [ -f "$OUTPUT/weights/step_$step/STABLE" ] && [ "$step" != "$(last_step)" ] ||
      continue
    [ "$STAGE" = sft ] || [ -f "$OUTPUT/run_default/checkpoints/step_$step/orchestrator/progress.pt" ] || continue
    echo "$step"
  done
}

run_training() {
  local log status=0 waiting=1
  echo "the run is $OUTPUT (log: $OUTPUT/log)"
  exec 3> >(trap '' HUP; exec tee -ai "$OUTPUT/log")
  log=$!
  trap stop_group EXIT
  # as Ctrl-C in a terminal does: at that, PRIME-RL ends its own processes
  trap 'waiting=1; kill -INT -- "-$GROUP" 2> /dev/null || true' INT TERM HUP
  start_group env "PATH=$PRIME_RL_BIN:$PATH" "${COMMAND[@]}" >&3 2>&1 3>&-
  exec 3>&-
  while [ -n "$waiting" ]; do # a signal ends a wait too, with a status of its own
    waiting=""
    wait "$GROUP" && status=0 || status=$?
  done
  stop_group # whatever the launcher left behind, which would hold the log open
  wait "$log" || true
  trap - INT TERM HUP
  if [ "$status" -ne 0 ]; then
    echo "$STAGE ended with exit status $status; go on: bash scripts/train_$STAGE.sh --resume $(printf %q "$OUTPUT")" >&2
    exit "$status"
  fi
  if is_trained; then
    finish_run
  else
    echo "PRIME-RL's own files are in $OUTPUT; there is no model yet: this was a dry run, or a job that was submitted"
  fi
}

finish_run() {
  local weights
  weights="$OUTPUT/weights/step_$(last_step)"
  touch "$OUTPUT/finished"
  echo "the model is $weights"
  printf -v weights %q "$weights"
  case "$STAGE" in
    sft) echo "next: bash scripts/train_rl.sh $ARM --scale paper --model $weights" ;;
    rl) echo "next: bash scripts/evaluate.sh --scale paper --serve $ARM $weights test" ;;
  esac
}

vllm_command() { # MODEL PORT
  COMMAND=(env "PATH=$PRIME_RL_BIN:$PATH" "$PRIME_RL_BIN/inference" @ "$REPOSITORY/configs/paper/serve.toml"
    --model.name "$1" --server.host 127.0.0.1 --server.port "$2")
}
