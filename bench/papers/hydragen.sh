#!/usr/bin/env bash
# End-to-end figures of Hydragen (arXiv 2402.05099) on one GPU, with random weights: bench/papers/hydragen.sh [FIGURE...].
# The paper's baselines are modes of one engine: FlashAttention on a copy for each sample is `none`, vLLM's shared pages without a
# shared read is `store`, the ceiling is `no-attention`. bench/papers/hydragen.md shows the results beside the paper's.
set -euo pipefail
paper=hydragen
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly MODES=tree,one-level,store,none,no-attention
readonly PREFIXES=1024,2048,4096,8192,16256

# Tables 2 and 3, 4 and 5, 6 and 7: CodeLlama 7B, 13B, 34B, 128 and 256 tokens a sample. `none` has room for few cases.
table2() { decode codellama-7b $MODES 32,64,128,256,512,1024,2048 $PREFIXES 128 16640; }
table3() { decode codellama-7b $MODES 32,64,128,256,512,1024 1024,2048,4096,8192,16128 256 16640; }
table4() { decode codellama-13b $MODES 32,64,128,256,512,1024 $PREFIXES 128 16640; }
table5() { decode codellama-13b $MODES 32,64,128,256,512 1024,2048,4096,8192,16128 256 16640; }
table6() { decode codellama-34b $MODES 32,64,128,256,512,1024,2048 $PREFIXES 128 16640; }
table7() { decode codellama-34b $MODES 32,64,128,256,512,1024 1024,2048,4096,8192,16128 256 16640; }
# Their corners, with TOKENS=16 at 1,024 samples, too.
corners7b() { decode codellama-7b $MODES 32,256,1024 1024,16256 128 16640; }
corners13b() { decode codellama-13b $MODES 32,256,512 1024,16256 128 16640; }
corners34b() { decode codellama-34b $MODES 32,256,1024 1024,16256 128 16640; }

# Figure 3: batch sizes over a prefix of 2,048 tokens. Figure 4: prefixes under the largest batch that fits one card.
figure3() { decode codellama-13b $MODES 32,64,128,256,512 2048 128 16640; }
figure4() { decode codellama-13b tree,store,no-attention 512 $PREFIXES 128 16640; }

# The batches that the baselines of figures 3 and 4 end at: as many samples as one card holds.
most() { largest codellama-13b tree,none 2048,16256 128 16640; }

# Figure 7: 128 programs of each APPS problem behind two examples; batches of so many programs at once. Single-level: a program has
# its problem for itself. Fewer problems than the paper's 120.
figure7() {
  apps tree,one-level,store 256
  apps tree 256 --single-level
  apps tree 1024
}
# apps MODES RUNNING ARGUMENT...
apps() {
  local modes=$1 running=$2
  shift 2
  jobs_at_once codellama-7b "$modes" --workload few-shot --requests "$(smoke_list 30 2)" -n "$(smoke_list 128 3)" \
    --shared-tokens "$(smoke_list 2400 32)" --unique-tokens "$(smoke_list 256 16)" --output-tokens "$(smoke_list 512 3)" \
    --max-running "$(smoke_list "$running" $((running / 64)))" --max-batch-tokens "$(smoke_list 4096 64)" \
    --max-context "$(smoke_list 4096 128)" "$@"
}

# Table 1: GSM8K by self-consistency, at the batch sizes of the paper's baseline and of its largest that fit. A fifth of the split.
table1() {
  votes llama2-7b tree,none 180
  votes llama2-7b tree 720
  votes llama2-13b tree,none 240
  votes llama2-13b tree 720
}
# votes MODEL MODES RUNNING
votes() {
  jobs_at_once "$1" "$2" --workload gsm8k --requests "$(smoke_list 264 1)" -n "$(smoke_list 40 3)" --shots "$(smoke_list 8 1)" \
    --max-running "$(smoke_list "$3" $(($3 / 60)))" --max-batch-tokens "$(smoke_list 4096 64)" --max-context "$(smoke_list 4096 1024)"
}

run_figures corners7b corners13b corners34b figure3 figure4 most figure7 table1 table2 table3 table4 table5 table6 table7 -- "$@"
