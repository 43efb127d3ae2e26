# Sourced by setup.sh, in the repository's root: `make_checkout` makes or updates .vendor/prime-rl, whole or not at all;
# `check_checkout` ends the script where it is not as it should be, and changes nothing.
# The patched tree is made in git's object store first; the files follow in one step that git refuses where it would
# overwrite what somebody has written there.

CHECKOUT=.vendor/prime-rl
UPSTREAM_URL="https://github.com/PrimeIntellect-ai/prime-rl"
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
    require_submodules
    apply_patches "$CHECKOUT"
  else
    clone
  fi
}

check_checkout() {
  local recorded
  [ -e "$CHECKOUT" ] || stop "no checkout in $CHECKOUT" "bash scripts/setup.sh --prime-rl"
  require_ours
  require_submodules
  mapfile -t recorded < "$CHECKOUT/$RECORD"
  [ "${recorded[1]}" = "$(patches_sum)" ] ||
    stop "$CHECKOUT has not the patches of patches/prime_rl as they are now" "bash scripts/setup.sh --prime-rl"
}

patches_sum() {
  for patch in patches/prime_rl/*.patch; do [ ! -e "$patch" ] || cksum "$patch"; done | cksum
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
    step "fetching PRIME-RL $PIN from $UPSTREAM_URL" \
      "without the network give a checkout on this machine: PRIME_RL_SOURCE=DIR bash scripts/setup.sh --prime-rl" \
      fetch_commit "$partial"
  fi
  git -C "$partial" remote set-url origin "$UPSTREAM_URL" # the submodules' addresses may be relative to it
  step "checking out $PIN" "see git's message above" git -C "$partial" checkout --quiet --detach "$PIN"
  printf '%s\n%s\n%s\n' "$PIN" none "$(git -C "$partial" write-tree)" > "$partial/$RECORD"
  apply_patches "$partial"
  fetch_submodules "$partial"
  mv "$partial" "$CHECKOUT"
  trap - EXIT
}

fetch_commit() {
  git init --quiet "$1" && git -C "$1" remote add origin "$UPSTREAM_URL" &&
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
  wanted="$(patches_sum)"
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

fetch_submodules() { # CHECKOUT
  if [ -n "$SOURCE" ]; then
    submodules_from_source "$1"
    return
  fi
  step "fetching the submodules ${SUBMODULES[*]}" \
    "check the network, or give a checkout that holds them: PRIME_RL_SOURCE=DIR; then run this again" \
    git -C "$1" -c url.https://github.com/.insteadOf=git@github.com: submodule --quiet update --init -- "${SUBMODULES[@]}"
}

submodules_from_source() { # CHECKOUT
  local path name absent=()
  for path in "${SUBMODULES[@]}"; do
    if [ ! -e "$SOURCE/$path/.git" ]; then
      absent+=("$path")
      continue
    fi
    name="$(git -C "$1" config --file .gitmodules --get-regexp '^submodule\..*\.path$' |
      sed -n "s|^submodule\.\(.*\)\.path $path\$|\1|p")"
    git -C "$1" config "submodule.$name.url" "$SOURCE/$path"
    step "cloning $path from $SOURCE" "git -C $SOURCE submodule update --init -- $path, then run this again" \
      git -C "$1" -c protocol.file.allow=always submodule --quiet update --init -- "$path"
  done
  [ ${#absent[@]} -gt 0 ] || return 0
  [ -z "$ENVIRONMENT" ] || stop "$SOURCE lacks the submodules ${absent[*]}, which the environment needs" \
    "git -C $SOURCE submodule update --init -- ${absent[*]}; then run this again"
  echo "== left out, as $SOURCE lacks them: the submodules ${absent[*]}"
}

require_submodules() { # each at the commit that the pin names; without an environment one may have been left out
  local path wanted
  for path in "${SUBMODULES[@]}"; do
    wanted="$(git -C "$CHECKOUT" rev-parse "$PIN:$path")"
    if [ ! -e "$CHECKOUT/$path/.git" ]; then
      [ -z "$ENVIRONMENT" ] || stop "$CHECKOUT lacks the submodule $path, which the environment needs" \
        "mv $CHECKOUT $CHECKOUT.old; then run this again, with a PRIME_RL_SOURCE that has it"
    elif [ "$(git -C "$CHECKOUT/$path" rev-parse HEAD)" != "$wanted" ]; then
      stop "$CHECKOUT/$path is not at the commit that the pin names" "git -C $CHECKOUT/$path checkout $wanted"
    fi
  done
}
