#!/usr/bin/env bash
# Figures of Cascade Inference (flashinfer.ai, February 2024) on one GPU: bench/papers/cascade.sh [FIGURE...].
# The baselines are modes: vLLM's kernel, which reads a shared prefix once a request, is `store`, a copy each is `none`.
# bench/papers/cascade.md shows the results.
set -euo pipefail
paper=cascade
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# layer HEADS KV_HEADS PREFIXES SUFFIXES REQUESTS: one attention layer of heads of 128, lists with commas; one query a request.
layer() {
  local prefixes suffixes requests prefix suffix count trees=()
  IFS=, read -ra prefixes <<<"$(smoke_list "$3" 64)"
  IFS=, read -ra suffixes <<<"$(smoke_list "$4" 16)"
  IFS=, read -ra requests <<<"$(smoke_list "$5" 1,4)"
  for prefix in "${prefixes[@]}"; do
    for suffix in "${suffixes[@]}"; do
      for count in "${requests[@]}"; do trees+=(--tree "$prefix,${suffix}x$count"); done
    done
  done
  "$COPPICE" bench attention --device "$DEVICE" --qo-heads "$(smoke_list "$1" 4)" --kv-heads "$(smoke_list "$2" 4)" --head-dim 128 \
    "${trees[@]}" --repeats "$(smoke_list 15 2)" --seconds "$(smoke_list 0.3 0)" --append "$RESULTS"
}

# Figure 4: heads without grouping, prefixes that all requests share, a suffix each.
figure4() { layer 32 32 1024,2048,4096,8192,16384,32768 128,256,512,1024,2048 1,4,16,64,128,256; }

# Many levels, end to end, which the page announces: a system prompt, documents below it, questions below each.
levels() {
  jobs_at_once llama3-8b tree,one-level,store,none --workload tree --tree "$(smoke_list 1024,1024x8,64x16 16,16x2,4x2)" \
    --output-tokens "$(smoke_list 128 3)" --max-running "$(smoke_list 128 4)" --max-batch-tokens "$(smoke_list 4096 64)" \
    --max-context "$(smoke_list 4096 64)"
}

run_figures figure4 levels -- "$@"
