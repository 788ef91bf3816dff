#!/usr/bin/env bash
# End-to-end figures of POD-Attention (arXiv 2410.18038) on one GPU, with random weights: bench/papers/pod.sh [FIGURE...].
# The paper's baselines are options of one engine: Sarathi, hybrid steps whose attention is a kernel for the chunk and then one for what
# decodes, is `--kinds two-launches`; vLLM (original), prompts alone while samples wait, is `--schedule prefill-first`.
# bench/papers/pod.md shows the results.
set -euo pipefail
paper=pod
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# hybrid MODEL REQUESTS TOTAL RATIOS CHUNK MODES KINDS: requests of TOTAL tokens, prompts in chunks beside what decodes.
hybrid() {
  local total=$3
  jobs_at_once "$1" "$6" --kinds "$7" --workload ratio --requests "$(smoke_list "$2" 2)" --total-tokens "$(smoke_list "$total" 48)" \
    --ratios "$(smoke_list "$4" 3)" --chunk "$(smoke_list "$5" 16)" --max-batch-tokens "$(smoke_list $(($5 + 128)) 32)" \
    --max-running "$(smoke_list 128 4)" --max-context "$(smoke_list $((total + 16)) 64)"
}
# prefill_first MODEL REQUESTS TOTAL RATIOS: the same, a whole prompt a step, alone.
prefill_first() {
  local total=$3
  jobs_at_once "$1" tree --schedule prefill-first --workload ratio --requests "$(smoke_list "$2" 2)" \
    --total-tokens "$(smoke_list "$total" 48)" --ratios "$(smoke_list "$4" 3)" --max-batch-tokens "$(smoke_list "$total" 64)" \
    --max-running "$(smoke_list 128 4)" --max-context "$(smoke_list $((total + 16)) 64)"
}

readonly KINDS=auto,two-launches,serial

# Figure 12: 16K tokens a request, P:D as in the paper. Fewer requests than its 1K and 2K.
figure12() {
  hybrid llama3-8b 40 16384 15 1024 tree $KINDS
  hybrid llama2-7b 24 16384 63 1024 tree $KINDS
  hybrid yi-6b 64 16384 7 512 tree $KINDS
  prefill_first llama3-8b 40 16384 15
  prefill_first llama2-7b 24 16384 63
  prefill_first yi-6b 64 16384 7
}

# Figure 4: what of a hybrid step is attention, by the same steps without it.
figure4() { hybrid llama3-8b 40 16384 15 1024 tree,no-attention auto; }

# Figure 15: P:D ratios of 16.5K tokens.
figure15() { hybrid llama3-8b 32 16500 8,16,24 1024 tree auto,two-launches; }

# served WORKLOAD RATES CHUNKS BATCH_TOKENS KINDS ARGUMENT...: requests of 4K to 32K tokens as they come, tables 4 to 6.
served() {
  local workload=(--workload "$1" --requests 200) rates=$2 chunks=$3 batch=$4 kinds=$5
  [[ -z ${SMOKE:-} ]] || workload=(--workload mixture --requests 3 --shared-tokens 16 --unique-tokens 8 --output-tokens 3)
  shift 5
  jobs_in_time llama3-8b tree --kinds "$kinds" "${workload[@]}" --rate "$(smoke_list "$rates" 100)" --chunk "$chunks" \
    --max-batch-tokens "$batch" --max-running "$(smoke_list 128 4)" --max-context "$(smoke_list 32784 64)" "$@"
}
# Tables 4 and 5: two workloads near the capacity. Whole prompts alone, as vLLM (original), beside hybrid steps.
readonly WHOLE=32784
table4() {
  served pod-internal 1.1,1.2 1536 1664 auto,two-launches
  served pod-internal 1.1,1.2 0 $WHOLE auto --schedule prefill-first
}
table5() {
  served pod-arxiv 0.85,0.95 1024 1152 auto,two-launches
  served pod-arxiv 0.85,0.95 0 $WHOLE auto --schedule prefill-first
}
# Table 6: chunks. And chunks that are chosen by a target in place of a number, which the paper leaves to its readers.
table6() {
  served pod-internal 1.1 512,1024,1536,2048 2176 auto
  served pod-internal 1.1 0 2176 auto --target-tbt 0.1
}

run_figures figure12 figure4 figure15 table4 table5 table6 -- "$@"
