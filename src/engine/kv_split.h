// An engine's choice of how ranks that have the same KV heads divide KV. KV stays where it was written, so it is made once, before
// there is any. Layer: engine.
#pragma once

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "coppice/engine/engine.h"
#include "model/config.h"
#include "model/kv_split.h"

namespace coppice {

struct KvSplitProblem {
  const ModelConfig& config;
  const EngineOptions& options;  // complete
  int ranks = 1;
  DType q_dtype = DType::kBF16, kv_dtype = DType::kBF16;
};

// `context`: of a rank; makes plans of it, and no launch. INVALID_ARGUMENT: options ask for what cannot be.
Result<KvSplitChoice> ChooseKvSplit(const KvSplitProblem& problem, attention::Context& context);

}  // namespace coppice
