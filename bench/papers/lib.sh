# Shared by the scripts of this folder, each of which measures the end-to-end figures of one paper: which program runs on which card,
# where rows go, and the kinds of measurement. Sourced by bash scripts that have `set -euo pipefail` and have set `paper`.
#
# COPPICE   the program (build/cuda/coppice)       DEVICE  cuda (default), cpu, ...
# RESULTS   the file of rows (bench/results/paper_NAME/DATE_CARD.jsonl): cases that it has are not measured again
# TOKENS    tokens of each sample in place of the paper's: a step's time is known after some 16 of them
# SMOKE=1   a tiny model and tiny lists on the CPU: whether the scripts run, no figure
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

COPPICE=${COPPICE:-build/cuda/coppice}
DEVICE=${DEVICE:-cuda}
if [[ -n ${SMOKE:-} ]]; then DEVICE=cpu TOKENS=3; fi

# The card's short name, h100 for "NVIDIA H100 80GB HBM3"; cpu without one.
card() {
  local name
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) || true
  [[ $DEVICE == cpu || -z $name ]] && echo cpu && return
  tr '[:upper:]' '[:lower:]' <<<"$name" | grep -oE '[a-z]+[0-9]+[a-z0-9]*' | head -n 1
}

RESULTS=${RESULTS:-bench/results/paper_${paper:?}/$(date +%F)_$(card).jsonl}

# The first line of a file of results: what was run, on what.
begin_results() {
  [[ -e $RESULTS ]] && return
  mkdir -p "$(dirname "$RESULTS")"
  python3 - "$(git rev-parse --short HEAD 2>/dev/null || echo "${COMMIT:-unknown}")" "$0 $*" "$(card)" \
    "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)" >"$RESULTS" <<'PYTHON'
import json, sys
print(json.dumps(dict(zip(("commit", "command", "card", "driver"), sys.argv[1:]))))
PYTHON
}

# smoke_list LIST TINY: TINY where SMOKE is set, else LIST.
smoke_list() { if [[ -n ${SMOKE:-} ]]; then echo "$2"; else echo "$1"; fi; }

# decode MODEL MODES SAMPLES PROMPTS TOKENS MAX_CONTEXT ARGUMENT...: decoding of one prompt with n samples, lists with commas. Medians
# of three runs on one engine, the first of which captures graphs.
decode() {
  local model=$1 modes=$2 samples prompts tokens=$5 context=$6
  samples=$(smoke_list "$3" 1,2) prompts=$(smoke_list "$4" 20,40)
  [[ $3 != max ]] || samples=max
  shift 6
  "$COPPICE" bench decode --device "$DEVICE" --weights random --config "bench/models/$(smoke_list "$model" tiny)/config.json" \
    --modes "$modes" -n "$samples" --prompt-tokens "$prompts" --max-tokens "${TOKENS:-$tokens}" --repeats 3 \
    --max-batch-tokens "$(smoke_list 4096 64)" --max-context "$(smoke_list "$context" 128)" --append "$RESULTS" "$@"
}

# largest MODEL MODES PROMPTS TOKENS MAX_CONTEXT: the same with as many samples as fit, and how many these are.
largest() { decode "$1" "$2" max "$3" "$4" "$5" --max-running "$(smoke_list 8192 3)"; }

# jobs_at_once MODEL MODES ARGUMENT...: a workload whose requests all come at once. jobs_in_time: as --rate says. One run a case.
jobs_at_once() { load throughput "$@"; }
jobs_in_time() { load serve "$@"; }
load() {
  local command=$1 model=$2 modes=$3
  shift 3
  "$COPPICE" bench "$command" --device "$DEVICE" --weights random --config "bench/models/$(smoke_list "$model" tiny)/config.json" \
    --modes "$modes" --repeats 1 --append "$RESULTS" "$@"
}

# run_figures DEFAULT... -- GIVEN...: the functions of the figures that are given, or the default ones.
run_figures() {
  local defaults=() figure
  while [[ $1 != -- ]]; do
    defaults+=("$1")
    shift
  done
  shift
  (($#)) || set -- "${defaults[@]}"
  for figure in "$@"; do
    declare -F "$figure" >/dev/null || {
      echo "${0##*/}: there is no $figure; expected some of ${defaults[*]}" >&2
      exit 2
    }
  done
  begin_results "$@"
  for figure in "$@"; do
    echo "== $figure" >&2
    "$figure"
  done
}
