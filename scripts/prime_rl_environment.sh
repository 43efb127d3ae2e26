# Sourced by setup.sh after prime_rl_checkout.sh: `make_prime_rl_environment` builds .vendor/prime-rl/.venv from the
# pin's own lock file, with our package in it. Its stamp is written last, so that an interrupted build is taken up again.
# `check_prime_rl_environment` ends the script where the environment is not as it should be.

UV_AT_LEAST=0.11.1 # what the pin's pyproject.toml requires
PRIME_RL_VENV="$CHECKOUT/.venv"
PRIME_RL_STAMP="$PRIME_RL_VENV/.glyph-installed"
IMPORTED="prime_rl.configs.rl, glyph.cli, glyph.taskset, glyph.harness, verifiers, renderers, transformers, torch, datasets,\
 pydantic, typer, rich, aiohttp, jinja2, huggingface_hub, pyarrow, numpy"

make_prime_rl_environment() {
  local wanted
  wanted="$(inputs_sum)"
  if is_installed "$wanted"; then
    echo "== $PRIME_RL_VENV: as it should be"
    return
  fi
  require_platform
  find_uv
  rm -f "$PRIME_RL_STAMP"
  # --frozen: the lock file as it is. flash-attn is the one extra that the configs need; it comes as a wheel.
  step "installing PRIME-RL with Python 3.12 (gigabytes; the first time takes many minutes)" \
    "check the network and the disk (about 20 GB), then run this again; to start over: rm -r $PRIME_RL_VENV" \
    env -u VIRTUAL_ENV "$UV" sync --project "$CHECKOUT" --frozen --no-dev --extra flash-attn --python 3.12
  # --no-deps: the lock file holds every requirement of this package too, and decides about the versions
  step "installing this package into it" "see uv's message above" \
    "$UV" pip install --quiet --python "$PRIME_RL_VENV/bin/python" --no-deps --editable .
  step "importing it and its requirements there" "to start over: rm -r $PRIME_RL_VENV; then run this again" \
    "$PRIME_RL_VENV/bin/python" -c "import $IMPORTED"
  echo "$wanted" > "$PRIME_RL_STAMP"
}

check_prime_rl_environment() {
  is_installed "$(inputs_sum)" || stop "$CHECKOUT has no environment, or one that is not of its and our files as they are" \
    "bash scripts/setup.sh --prime-rl"
}

inputs_sum() { cat "$CHECKOUT/uv.lock" "$CHECKOUT/pyproject.toml" pyproject.toml constraints.txt | cksum; }

is_installed() { [ -f "$PRIME_RL_STAMP" ] && [ "$(cat "$PRIME_RL_STAMP")" = "$1" ]; }

require_platform() {
  case "$(uname -s) $(uname -m)" in
    "Linux x86_64") ;;
    "Linux aarch64")
      echo "== aarch64: no wheel of flash-attn; afterwards run $CHECKOUT/scripts/docker-arm64-post-install.sh there"
      ;;
    *) stop "PRIME-RL runs on Linux, x86_64 or aarch64; this is $(uname -s) $(uname -m)" "use the embedded engine: docs/engine.md" ;;
  esac
}

find_uv() { # sets UV
  local candidate
  for candidate in "${UV:-uv}" "$VENV/bin/uv"; do
    if command -v "$candidate" > /dev/null && is_new_enough "$candidate"; then
      UV="$candidate"
      return
    fi
  done
  [ -z "${UV:-}" ] || stop "UV=$UV is no uv of at least $UV_AT_LEAST" "unset UV: it is then installed into $VENV"
  step "installing uv into $VENV" "install uv $UV_AT_LEAST or newer yourself, and name it: UV=PROGRAM" \
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=$UV_AT_LEAST"
  UV="$VENV/bin/uv"
}

is_new_enough() { # PROGRAM
  local version
  version="$("$1" --version 2> /dev/null | sed -n 's/^uv \([0-9.]*\).*/\1/p')"
  [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$UV_AT_LEAST" "$version" | sort -V | head -1)" = "$UV_AT_LEAST" ]
}
