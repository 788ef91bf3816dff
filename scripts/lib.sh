# Shared by the scripts of this folder: messages, Debian packages, configure and build.
# Sourced by bash scripts that have `set -euo pipefail`; changes into the root of the repository.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# The same object serves build folders that differ only by name.
export CCACHE_NOHASHDIR=1

say() { printf '==> %s\n' "$*" >&2; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# missing_packages GROUP...: those of scripts/apt-packages.txt in the groups that are not installed.
missing_packages() {
  local name group _
  while read -r name group _; do
    [[ -z $name || $name == '#'* ]] && continue
    [[ " $* " == *" $group "* ]] || continue
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || printf '%s\n' "$name"
  done <scripts/apt-packages.txt
}

# install_packages GROUP...: installs what is missing, with sudo where not root; touches nothing when all is there.
install_packages() {
  command -v dpkg-query >/dev/null ||
    die "this is not Debian or Ubuntu; install the equivalents of scripts/apt-packages.txt, then build with 'cmake --preset release'"
  local missing as_root=(env)
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  say "Installing ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo here; as root run: apt-get install ${missing[*]}"
    as_root=(sudo env)
  fi
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update &&
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    die "apt-get could not install the packages above"
  fi
  rm -f "$log"
}

# configure_and_build PRESET TARGET [CMAKE_ARG...]: progress goes to stderr, so that a script's stdout is its result.
configure_and_build() {
  local preset=$1 target=$2
  shift 2
  say "Building preset $preset in build/$preset"
  cmake --preset "$preset" --log-level=WARNING "$@" >/dev/null
  cmake --build --preset "$preset" --target "$target" --parallel "$(nproc)" >&2
}
