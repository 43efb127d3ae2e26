# Sourced by setup.sh, in the repository's root: `make_checkout` makes or updates .vendor/prime-rl, whole or not at all.
# The patched tree is made in git's object store first; the files follow in one step that git refuses where it would
# overwrite what somebody has written there.

CHECKOUT=.vendor/prime-rl
REPOSITORY="https://github.com/PrimeIntellect-ai/prime-rl"
PIN="$(sed -n 's/^prime_rl = "\([0-9a-f]\{40\}\)".*/\1/p' configs/versions.toml)"
RECORD=.git/glyph-checkout # in the checkout, three lines: the pin, the patches' checksum, the id of the patched tree
SUBMODULES=(deps/verifiers deps/renderers deps/pydantic-config) # research-environments holds tasks that are not ours

stop() { # WHAT FAILED, HOW TO MEND IT
  printf 'setup: %s\n       %s\n' "$1" "$2" >&2
  exit 1
}

step() { # TITLE HOW-TO-MEND COMMAND...
  local title="$1" mend="$2"
  shift 2
  echo "== $title"
  "$@" || stop "failed: $title (command: $*)" "$mend"
}

make_checkout() {
  [ -n "$PIN" ] || stop "configs/versions.toml names no commit: [upstream] prime_rl = \"40 hex digits\"" "put it back"
  command -v git > /dev/null || stop "git is needed, and is not here" "install it: apt-get install git"
  mkdir -p .vendor
  exec 9> .vendor/.lock
  flock -n 9 || stop "another setup.sh is at work on .vendor" "wait until it has ended"
  if [ -e "$CHECKOUT" ]; then
    require_ours
    apply_patches "$CHECKOUT"
  else
    clone
  fi
  fetch_submodules
}

clone() {
  local partial="$CHECKOUT.partial"
  rm -rf "$partial" # left by a setup.sh that was killed
  trap 'rm -rf "$CHECKOUT.partial"' EXIT
  if [ -n "$SOURCE" ]; then
    git -C "$SOURCE" cat-file -e "$PIN^{commit}" 2> /dev/null ||
      stop "PRIME_RL_SOURCE=$SOURCE does not hold the pinned commit $PIN" "git -C $SOURCE fetch origin $PIN"
    step "cloning PRIME-RL from $SOURCE" "see git's message above" \
      git clone --quiet --no-checkout "$SOURCE" "$partial"
  else
    step "fetching PRIME-RL $PIN from $REPOSITORY" \
      "without the network give a checkout on this machine: PRIME_RL_SOURCE=DIR bash scripts/setup.sh --prime-rl" \
      fetch_commit "$partial"
  fi
  git -C "$partial" remote set-url origin "$REPOSITORY" # the submodules' addresses may be relative to it
  step "checking out $PIN" "see git's message above" git -C "$partial" checkout --quiet --detach "$PIN"
  printf '%s\n%s\n%s\n' "$PIN" none "$(git -C "$partial" write-tree)" > "$partial/$RECORD"
  apply_patches "$partial"
  mv "$partial" "$CHECKOUT"
  trap - EXIT
}

fetch_commit() {
  git init --quiet "$1" && git -C "$1" remote add origin "$REPOSITORY" &&
    git -C "$1" fetch --quiet --depth 1 origin "$PIN"
}

require_ours() { # the checkout is one of ours, at the pin, and nobody has edited it
  local edited recorded keep="to keep what is there: mv $CHECKOUT $CHECKOUT.mine; then run this again"
  [ -f "$CHECKOUT/$RECORD" ] || stop "$CHECKOUT was not made by this script" "$keep"
  mapfile -t recorded < "$CHECKOUT/$RECORD"
  [ "${recorded[0]}" = "$PIN" ] || stop "$CHECKOUT is at ${recorded[0]}, configs/versions.toml pins $PIN" "$keep"
  edited="$(git -C "$CHECKOUT" diff --name-only --ignore-submodules=all "${recorded[2]}" | tr '\n' ' ')"
  [ "$(git -C "$CHECKOUT" rev-parse HEAD)" = "$PIN" ] || edited+="(HEAD is another commit)"
  [ -z "$edited" ] || stop "$CHECKOUT has been edited, and edits are not overwritten: $edited" \
    "save them (git -C $CHECKOUT diff ${recorded[2]}) and undo them; or $keep"
}

apply_patches() { # CHECKOUT
  local wanted recorded tree
  wanted="$(for patch in patches/prime_rl/*.patch; do [ ! -e "$patch" ] || cksum "$patch"; done | cksum)"
  mapfile -t recorded < "$1/$RECORD"
  if [ "${recorded[1]}" = "$wanted" ]; then
    echo "== $1: pin and patches are as they should be"
    return
  fi
  tree="$(patched_tree "$1")" || exit 1
  step "updating the files" "move the files that git names above out of the way, and run this again" \
    git -C "$1" read-tree -m -u "${recorded[2]}" "$tree"
  printf '%s\n%s\n%s\n' "$PIN" "$wanted" "$tree" > "$1/$RECORD"
}

patched_tree() { # CHECKOUT: prints the id of the pin's tree with every patch applied, in the order of their names
  local index patch
  index="$(mktemp -u "$PWD/$1/.git/glyph-index.XXXXXX")"
  GIT_INDEX_FILE="$index" git -C "$1" read-tree "$PIN" || exit 1
  for patch in patches/prime_rl/*.patch; do
    [ -e "$patch" ] || continue
    echo "== applying $(basename "$patch")" >&2
    if ! GIT_INDEX_FILE="$index" git -C "$1" apply --cached "$PWD/$patch"; then
      rm -f "$index"
      stop "failed: $patch does not apply to $PIN; nothing was changed" "mend the patch (patches/README.md)"
    fi
  done
  GIT_INDEX_FILE="$index" git -C "$1" write-tree
  rm -f "$index"
}

fetch_submodules() { # those that are not there yet, or whose cloning did not come to its end
  local path missing=()
  for path in "${SUBMODULES[@]}"; do
    [ "$(submodule_head "$path")" = "$(git -C "$CHECKOUT" rev-parse "$PIN:$path")" ] && continue
    [ ! -e "$(submodule_mark "$path")" ] || stop "$CHECKOUT/$path is not at the commit that the pin names" \
      "git -C $CHECKOUT/$path checkout $(git -C "$CHECKOUT" rev-parse "$PIN:$path")"
    git -C "$CHECKOUT" submodule --quiet deinit --force -- "$path"
    rm -rf "$CHECKOUT/.git/modules/$(submodule_name "$path")"
    missing+=("$path")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ -n "$SOURCE" ]; then
    submodules_from_source "${missing[@]}"
    return
  fi
  step "fetching the submodules ${missing[*]}" \
    "check the network, or give a checkout that holds them: PRIME_RL_SOURCE=DIR; then run this again" \
    git -C "$CHECKOUT" -c url.https://github.com/.insteadOf=git@github.com: submodule --quiet update --init -- "${missing[@]}"
  for path in "${missing[@]}"; do touch "$(submodule_mark "$path")"; done
}

submodule_head() { # PATH: the commit that it is at; nothing where it is not there
  [ ! -e "$CHECKOUT/$1/.git" ] || git -C "$CHECKOUT/$1" rev-parse --quiet --verify HEAD || true
}

submodule_mark() { # PATH: the file that says that it has been there whole; what is at another commit since was moved
  echo "$CHECKOUT/.git/glyph-had-$(basename "$1")"
}

submodules_from_source() {
  local path absent=()
  for path in "$@"; do
    if [ ! -e "$SOURCE/$path/.git" ]; then
      absent+=("$path")
      continue
    fi
    git -C "$CHECKOUT" config "submodule.$(submodule_name "$path").url" "$SOURCE/$path"
    step "cloning $path from $SOURCE" "git -C $SOURCE submodule update --init -- $path, then run this again" \
      git -C "$CHECKOUT" -c protocol.file.allow=always submodule --quiet update --init -- "$path"
    touch "$(submodule_mark "$path")"
  done
  [ ${#absent[@]} -gt 0 ] || return 0
  [ -z "$ENVIRONMENT" ] || stop "$SOURCE lacks the submodules ${absent[*]}, which the environment needs" \
    "git -C $SOURCE submodule update --init -- ${absent[*]}; then run this again"
  echo "== left out, as $SOURCE lacks them: the submodules ${absent[*]}"
}

submodule_name() { # PATH: its name in .gitmodules
  git -C "$CHECKOUT" config --file .gitmodules --get-regexp '^submodule\..*\.path$' |
    sed -n "s|^submodule\.\(.*\)\.path $1\$|\1|p"
}
