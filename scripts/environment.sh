# Sourced by the other scripts: the virtual environment, made with plain venv and pip, and reused while nothing changed.
# Usage: EXTRAS=dev source scripts/environment.sh    (EXTRAS is optional)

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
VENV="${VENV:-.venv}"

find_python() {
  local name
  for name in "${PYTHON:-python3}" python3.11 python3.12; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "Python 3.11 or 3.12 is needed: none of ${PYTHON:-python3}, python3.11, python3.12 is one (set PYTHON=...)" >&2
  return 1
}

make_environment() {
  local extras="${EXTRAS:-}" python stamp wanted
  wanted="$(cat pyproject.toml constraints.txt | cksum)"
  stamp="$VENV/.installed${extras:+-$extras}"
  for stamp_file in "$stamp" "$VENV/.installed-dev"; do # the tests' environment serves everything
    if [ -f "$stamp_file" ] && [ "$(cat "$stamp_file")" = "$wanted" ]; then
      return
    fi
  done
  python="$(find_python)" || return 1
  if ! "$VENV/bin/python" -c '' 2>/dev/null; then
    echo "making the virtual environment $VENV with $("$python" --version)"
    "$python" -m venv "$VENV" || return 1
  fi
  echo "installing (the first time takes minutes)"
  if ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}"; then
    echo "the installation failed; see pip's message above. To start over: rm -r $VENV" >&2
    return 1
  fi
  echo "$wanted" > "$stamp"
}

make_environment || exit 1
export PATH="$PWD/$VENV/bin:$PATH"
