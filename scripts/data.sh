# Sourced, after environment.sh: `prepare_data SCALE` makes the data of a scale where they are missing, validates them
# once, and sets DATA (data/mini or data).

prepare_data() {
  case "$1" in
    mini)
      DATA="${DATA:-data/mini}"
      [ -f "$DATA/manifest.json" ] || python -m data.prepare --tasks mini --output "$DATA" || exit 1
      ;;
    *)
      DATA="${DATA:-data}"
      [ -f "$DATA/manifest.json" ] ||
        python -m data.prepare ${MBPP_SOURCE:+--source "$MBPP_SOURCE"} --output "$DATA" ||
        { echo "no MBPP: give a copy in MBPP_SOURCE, or prepare the data with --source (docs/data.md)" >&2; exit 1; }
      ;;
  esac
  validate_data
}

validate_data() { # again only when a file has changed
  local stamp
  stamp="$VENV/.validated-$(cat "$DATA"/manifest.json "$DATA"/*.jsonl "$DATA"/sft/*/*.jsonl | cksum | tr ' ' -)"
  [ ! -f "$stamp" ] || return 0
  python -m data.validate "$DATA" || exit 1
  touch "$stamp"
}
