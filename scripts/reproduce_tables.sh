#!/usr/bin/env bash
# Make every table and figure of docs/results.md, docs/results_mini.md, docs/performance.md and the reports again, from
# the files that are published in RESULTS_PUBLISHED and docs/figures; no model, no GPU.
#   bash scripts/reproduce_tables.sh [--check] [--python COMMAND]
# --check writes nothing: exit code 1 where a table of a page is not what the files say; reports are not compared.
# --python (or PYTHON) names an interpreter that has everything: then no virtual environment is made.
set -euo pipefail
usage() { sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; }
refuse() { echo "reproduce_tables: $1" >&2; usage >&2; exit 2; }

GIVEN_PYTHON="${PYTHON:-}" CHECK=""
while [ $# -gt 0 ]; do
  case "$1" in
    --check) CHECK=1; shift ;;
    --python) [ $# -ge 2 ] || refuse "--python needs a value"; GIVEN_PYTHON="$2"; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown argument $1" ;;
  esac
done
source "$(dirname "${BASH_SOURCE[0]}")/interpreter.sh"

if [ -n "$CHECK" ]; then
  "${COMMAND[@]}" -m benchmarks.document --check
  exec "${COMMAND[@]}" -m study.document --check
fi
report() { # FOLDER TITLE
  "${COMMAND[@]}" -m glyph report "$1" --output "$1/report" --title "$2" > /dev/null
  echo "wrote $1/report"
}
report RESULTS_PUBLISHED/mini "Mini scale, three seeds"
for folder in RESULTS_PUBLISHED/small/*/; do
  compgen -G "$folder*/summary.json" > /dev/null || continue # loose files are no runs
  report "${folder%/}" "Small scale, $(basename "$folder"): weights are a 4-bit quantisation, dequantised"
done
"${COMMAND[@]}" -m benchmarks.document
exec "${COMMAND[@]}" -m study.document
