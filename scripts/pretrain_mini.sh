#!/usr/bin/env bash
# Pre-trains the base model of the mini scale, from nothing but a seed; needs no network. On one GPU: minutes a size.
#
#   scripts/pretrain_mini.sh OUT [SIZE...]        writes OUT/SIZE/ (a model folder with its curves)
#
# PYTHON (python3), CHUNKS (800, of about 1,130 documents), TOKENS (600000000 seen a size), MAX_SECONDS (150 a size),
# CORPUS_SECONDS (150), TOKENIZER (a folder; trained anew when empty), BATCH (256 rows), LENGTH (512 tokens a row),
# SAMPLES (200 a chunk), TASKS (200 for the probe), CORPUS (an .npz file that is made where it is missing, and kept),
# PACK (1: write OUT/SIZE.tar in place of the folder).
set -uo pipefail

out=${1:?usage: scripts/pretrain_mini.sh OUT [SIZE...]}
shift
[ $# -gt 0 ] || set -- small
sizes=("$@")
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root/src" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
max_seconds=${MAX_SECONDS:-150}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tokenizer=${TOKENIZER:-}
if [ -z "$tokenizer" ]; then
  tokenizer=$work/tokenizer
  timeout 600 "$python" -m glyph.local.pretraining.tokenizer "$tokenizer" || exit 1
fi
corpus=${CORPUS:-$work/corpus.npz}
[ -f "$corpus" ] || timeout $((${CORPUS_SECONDS:-150} * 2 + 60)) "$python" -m glyph.local.pretraining.corpus "$corpus" \
  --tokenizer "$tokenizer" --chunks "${CHUNKS:-800}" --length "${LENGTH:-512}" --samples "${SAMPLES:-200}" \
  --max-seconds "${CORPUS_SECONDS:-150}" || exit 1

failed=0
for size in "${sizes[@]}"; do
  timeout $((max_seconds + 120)) "$python" -m glyph.local.pretraining.training_loop "$corpus" "$work/$size" \
    --size "$size" --tokenizer "$tokenizer" --tokens "${TOKENS:-600000000}" --batch "${BATCH:-256}" \
    --max-seconds "$max_seconds" || { echo "$size: failed" >&2; failed=1; continue; }
  timeout 90 "$python" -m glyph.local.pretraining.probe "$work/$size" --tasks "${TASKS:-200}" | tee "$work/$size/probe.txt" \
    || echo "$size: no probe" >&2
  if [ -n "${PACK:-}" ]; then
    tar -C "$work" -cf "$out/$size.tar" "$size"
  else
    rm -rf "${out:?}/$size" && cp -r "$work/$size" "$out/$size"
  fi
done
exit $failed
