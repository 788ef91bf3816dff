// `coppice bench draft`: tokens per step, KV bytes and speed with and without speculative decoding, on a text that repeats itself
// and on one that does not (Bifurcated Attention, appendix G). Layer: cli.
#pragma once

#include "cli/command.h"

namespace coppice::cli {

Command AddBenchDraftCommand(CLI::App& bench);

}  // namespace coppice::cli
