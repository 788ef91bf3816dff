#!/usr/bin/env bash
# End-to-end figures of Bifurcated Attention (arXiv 2403.08845) on one GPU, with random weights: bench/papers/bifurcated.sh [FIGURE...].
# The paper's baselines are modes of one engine: Flash2 and SDPA on a copy for each sample are `none`, "NC", whose prompt is stored once
# and read by each sample, is `store`. bench/papers/bifurcated.md shows the results beside the paper's, which are of one H100 too.
set -euo pipefail
paper=bifurcated
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly CONTEXTS=8192,16384,32640

# Tables 1 and 6: multi-head attention. Table 7: 8 KV heads.
table6() {
  decode llama2-7b tree 1,2,4,8,16,32,64,128,256,512,1024 $CONTEXTS 32 33024
  decode llama2-7b store 1,4,16,64 $CONTEXTS 32 33024
  decode llama2-7b none 1,2,4,8,16 $CONTEXTS 32 33024
}
table7() {
  decode llama2-7b-gqa tree 1,2,4,8,16,32,64,128,256,512,1024 $CONTEXTS 32 33024
  decode llama2-7b-gqa store 1,4,16,64,256 $CONTEXTS 32 33024
  decode llama2-7b-gqa none 1,4,16,64 $CONTEXTS 32 33024
}

run_figures table6 table7 -- "$@"
