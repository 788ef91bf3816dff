#!/usr/bin/env bash
# Accuracy where the papers have it, with a real model, in the four sharing modes: bench/papers/accuracy.sh TASK...
#
# needle   facts at depths of a long text (Hydragen 4.3)          choice  QUESTIONS, a file of multiple choice (RelayAttention, table 3)
# vote     PROBLEMS, a file of word problems (Hydragen, table 1)  code    PROGRAMS, a file of problems with tests (Bifurcated 5.4)
#
# MODEL    a name or path, as of `coppice run` (default: its default)  EXACT=1   deterministic mode: modes must agree item by item
# OUT      the folder of reports (bench/results/paper_accuracy)        CARD      its machine in a word (cpu)
# questions.py makes QUESTIONS and PROBLEMS; bench/papers/accuracy.md shows the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

COPPICE=${COPPICE:-build/release/coppice}
OUT=${OUT:-bench/results/paper_accuracy}
readonly MODES=tree,one-level,store,none

# evaluate TASK ARGUMENT...: the report, with commit, command and driver as its first member.
evaluate() {
  local name=$1 file options=(--modes "$MODES")
  [[ -z ${MODEL:-} ]] || options+=(--model "$MODEL")
  [[ -z ${EXACT:-} ]] || options+=(--deterministic)
  mkdir -p "$OUT"
  file=$OUT/$(date +%F)_${CARD:-cpu}_${name}_$(basename "${MODEL:-smollm2}" | tr '[:upper:].-' '[:lower:]__')${EXACT:+_exact}.json
  "$COPPICE" eval "$@" "${options[@]}" ${DEVICE:+--device "$DEVICE"} --out "$file.new"
  python3 - "$file" "$(git rev-parse --short=7 HEAD 2>/dev/null || echo unknown)" "coppice eval $* ${options[*]}" <<'PYTHON'
import json, os, subprocess, sys
path, commit, command = sys.argv[1:]
try:
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout.split()[0]
except (OSError, subprocess.CalledProcessError):
    driver = "none: CPU"
with open(path + ".new", encoding="utf-8") as file:
    report = json.load(file)
with open(path, "w", encoding="utf-8") as file:
    measured = json.dumps({"commit": commit, "command": command, "driver": driver})
    file.write(f'{{"measured": {measured},{json.dumps(report, indent=1)[1:]}\n')
os.remove(path + ".new")
PYTHON
}

for task in "${@:-needle}"; do
  case $task in
    needle) evaluate needle --lengths "${LENGTHS:-1024,4096}" --depths "${DEPTHS:-0,0.25,0.5,0.75,1}" --repeats "${REPEATS:-4}" ;;
    choice) evaluate choice "${QUESTIONS:?a file that questions.py made}" ;;
    vote) evaluate vote "${PROBLEMS:?a file that questions.py made}" -n "${SAMPLES:-40}" --max-tokens "${TOKENS:-192}" ;;
    code) evaluate code "${PROGRAMS:?a file of {prompt, tests} lines}" -n "${SAMPLES:-10}" ;;
    *)
      echo "accuracy.sh: there is no $task; expected some of needle choice vote code" >&2
      exit 2
      ;;
  esac
done
