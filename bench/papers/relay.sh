#!/usr/bin/env bash
# End-to-end figures of RelayAttention (arXiv 2402.14808) on one GPU, with random weights: bench/papers/relay.sh [FIGURE...].
# The paper's baselines are modes of one engine: vLLM, a copy of the system prompt for each request, is `none`; vLLM-PS, which stores it
# once and reads it for each request, is `store`. bench/papers/relay.md shows the results.
set -euo pipefail
paper=relay
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

LIMITS=(--max-running "$(smoke_list 256 4)" --max-batch-tokens "$(smoke_list 4096 64)" --max-context "$(smoke_list 4096 1024)")

# Figure 7: ShareGPTv3's single turns, all at once, over system prompts of several lengths.
figure7() {
  jobs_at_once llama2-7b tree,store,none --workload "$(smoke_list sharegpt relay)" --requests "$(smoke_list 200 1)" \
    --prefixes "$(smoke_list 64,512,2048 8)" "${LIMITS[@]}"
}

# Table 3: MMLU with one, three and five examples; every fourth subject of the paper's 57.
table3() {
  local shots
  for shots in 1 3 5; do
    jobs_at_once llama2-7b tree,store,none --workload mmlu --shots $shots --groups "$(smoke_list 14 1)" \
      --requests "$(smoke_list 1534 2)" --output-tokens "$(smoke_list 32 3)" "${LIMITS[@]}"
  done
}

# Figure 8: the requests of figure 7 as they come, at several rates, behind 2,048 tokens.
figure8() {
  jobs_in_time llama2-7b tree,store,none --workload "$(smoke_list sharegpt mixture)" --requests "$(smoke_list 100 2)" \
    --shared-tokens "$(smoke_list 2048 16)" --rate "$(smoke_list 4,8,16 100)" "${LIMITS[@]}"
}

# Figure 10: requests of 64, 128 and 256 tokens, answers of 128, 256 and 512, over system prompts of several lengths.
figure10() {
  jobs_at_once llama2-7b tree,store,none --workload relay --requests "$(smoke_list 128 2)" --prefixes "$(smoke_list 64,512,2048 8)" "${LIMITS[@]}"
}

run_figures figure7 table3 figure8 figure10 -- "$@"
