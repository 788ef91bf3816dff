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

# missing_packages GROUP...: those of scripts/apt-packages.txt in the groups that are not installed. Of names a|b one is enough; the
# first that apt knows is named.
missing_packages() {
  local name group _
  while read -r name group _; do
    [[ -z $name || $name == '#'* ]] && continue
    [[ " $* " == *" $group "* ]] || continue
    local choices choice known=
    IFS='|' read -ra choices <<<"$name"
    for choice in "${choices[@]}"; do
      [[ $(dpkg-query -W -f='${db:Status-Status}' "$choice" 2>/dev/null) == installed ]] && continue 2
      [[ -n $known ]] || [[ -z $(apt-cache show "$choice" 2>/dev/null) ]] || known=$choice
    done
    printf '%s\n' "${known:-${choices[-1]}}"
  done <scripts/apt-packages.txt
}

# install_packages GROUP...: installs what is missing, with sudo where not root; touches nothing when all is there.
install_packages() {
  command -v dpkg-query >/dev/null ||
    die "this is not Debian or Ubuntu; install the equivalents of scripts/apt-packages.txt, then build with 'cmake --preset release'"
  local missing as_root=(env)
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo here; as root run: apt-get install ${missing[*]}"
    as_root=(sudo env)
  fi
  local log
  log=$(mktemp)
  "${as_root[@]}" apt-get update >"$log" 2>&1 || { cat "$log" >&2 && die "apt-get could not read the package lists"; }
  mapfile -t missing < <(missing_packages "$@")  # now that apt knows which names there are
  say "Installing ${missing[*]}"
  if ! { "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    die "apt-get could not install the packages above"
  fi
  rm -f "$log"
}

# A python3 of pyenv or conda may come without pip; Debian's own has it (scripts/apt-packages.txt).
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && printf '%s\n' "$python" && return
  done
  die "python3 has no pip; install python3-pip"
}

# configure_and_build PRESET TARGET [CMAKE_ARG...]: progress goes to stderr, so that a script's stdout is its result.
configure_and_build() {
  local preset=$1 target=$2
  shift 2
  say "Building preset $preset in build/$preset"
  cmake --preset "$preset" --log-level=WARNING "$@" >/dev/null
  cmake --build --preset "$preset" --target "$target" --parallel "$(nproc)" >&2
}

# cuda_cmake_args: what makes CMake build for the GPU of this machine, a word a line; nothing, and why on stderr, where there is no GPU
# that Coppice runs on or no nvcc to build with.
cuda_cmake_args() {
  local gpus capability nvcc release
  gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null) && [[ -n $gpus ]] || return 0
  gpus=${gpus%%$'\n'*}
  capability=${gpus##*, }
  if ((${capability%%.*} < 8)); then
    say "Building for the CPU: ${gpus%%, *} has compute capability $capability, Coppice needs 8.0"
    return
  fi
  nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc") || {
    say "Building for the CPU: there is a GPU (${gpus%%, *}), but no nvcc; install the CUDA toolkit (12.4 or newer) to use it"
    return
  }
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  if [[ $(printf '%s\n' 12.4 "$release" | sort -V | head -n 1) != 12.4 ]]; then
    say "Building for the CPU: $nvcc is of CUDA $release, Coppice needs 12.4"
    return
  fi
  printf '%s\n' -DCOPPICE_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc"
}

# python_with_xllamacpp FOLDER: a python3 that finds the package xllamacpp, in FOLDER or installed; fails where none does.
python_with_xllamacpp() {
  local python
  for python in python3 /usr/bin/python3; do
    PYTHONPATH=$1 "$python" -c 'import xllamacpp' 2>/dev/null && printf '%s\n' "$python" && return
  done
  return 1
}

# install_python_packages FILE: what the requirements in FILE name goes into build/python-packages, where tests look for it.
install_python_packages() {
  local folder=build/python-packages python
  cmp --quiet "$1" "$folder/.requirements" && return
  python=$(python_with_pip)
  say "Installing the Python packages of $1 into $folder"
  rm -rf "$folder"
  "$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --target "$folder" --requirement "$1" >&2 ||
    die "pip could not install them; check the network"
  cp "$1" "$folder/.requirements"
}

# bare_chroot SUITE FOLDER: Debian's SUITE in FOLDER, the least that apt works in; from the mirror of this machine. For root.
bare_chroot() {
  ((EUID == 0)) || die "chroots need root"
  local mirror log
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' || true)
  mirror=${mirror%%[[:space:]]*}
  log=$(mktemp)
  debootstrap --variant=minbase "$1" "$2" ${mirror:+"$mirror"} >"$log" 2>&1 || { cat "$log" >&2 && die "debootstrap could not make $1"; }
  rm -f "$log"
  mount --bind /proc "$2/proc"
}
