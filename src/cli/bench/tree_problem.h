// A uniform prefix tree written on the command line, and the attention problem it poses: forest, page rows, KV pool.
// For `coppice inspect plan` and `coppice bench attention`; the engine's forests come from the cache.
// Layer: cli.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "attention/owned_forest.h"
#include "attention/plan_io.h"
#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "core/buffer.h"

namespace coppice::cli {

using attention::TreeLevel;

// "2048,256x4,64x8": a root of 2,048 tokens, below it 4 nodes of 256 tokens, below each of them 8 requests with 64 own tokens. The
// last level are the requests.
Result<std::vector<TreeLevel>> ParseTree(std::string_view text);

// The forest of `levels`, where the last `queries` tokens of each request are its queries of the step. In `none` every request has
// pages of its own and the tree has no shared node. Spec and options are left as they are; capacity fits exactly.
// INVALID_ARGUMENT if a request has fewer own tokens than queries, or for more tokens or pages than a plan could name.
Status MakeTree(const std::vector<TreeLevel>& levels, int32_t page_size, int32_t queries, SharingMode sharing,
                attention::PlanDump& problem);

// Memory that running a problem takes: its KV pool, and queries of `row` elements each, as many bytes for the output.
struct ProblemSizes {
  attention::KvPoolShape pool;
  int64_t row = 0;
  size_t query_bytes = 0;
};
// RESOURCE_EXHAUSTED if the host's memory does not hold them.
Result<ProblemSizes> SizesOf(const attention::PlanDump& problem);
// Values of about unit size, the same for every dtype up to rounding.
void FillPseudoRandom(Buffer& buffer, DType dtype);

// A plan for a problem together with all that Run needs: KV pool and queries with pseudo-random values, room for the output.
class RunnablePlan {
 public:
  // The problem's arrays are read through and outlive the plan; so does the context.
  static Result<std::unique_ptr<RunnablePlan>> Create(attention::Context& context, const attention::PlanDump& problem);

  attention::AttentionPlan& plan() { return *plan_; }
  Status Run();

 private:
  RunnablePlan() = default;
  Buffer kv_, q_, out_;
  std::unique_ptr<attention::AttentionPlan> plan_;
  std::unique_ptr<attention::BoundKv> bound_;
  attention::RunArgs args_;
};

}  // namespace coppice::cli
