// Input: a plan dump. An accepted one replays to a plan that dumps, explains itself and replays to the same again.
#include "attention/plan_io.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice::attention;
using coppice::Result;
using coppice::fuzz::Require;

namespace {

// A plan's memory is allocated for its capacity when it is made; here a small one will do.
bool IsSmall(const PlanDump& dump) {
  constexpr int32_t kMost = 1 << 12;
  const PlanCapacity& capacity = dump.capacity;
  return capacity.max_branches <= kMost && capacity.max_queries <= kMost && capacity.max_nodes <= kMost &&
         dump.spec.num_qo_heads <= kMost && dump.spec.num_kv_heads <= kMost && dump.traits.workers <= kMost;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<PlanDump> dump = ParsePlanDump(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!dump.ok() || !IsSmall(*dump)) return 0;
  const Result<std::unique_ptr<Planner>> planner = ReplayPlan(*dump);
  if (!planner.ok()) return 0;
  (void)(*planner)->Explain();
  const std::string text = DumpPlan(**planner);
  const Result<PlanDump> again = ParsePlanDump(text);
  Require(again.ok(), "a dump that does not parse: " + again.status().message());
  const Result<std::unique_ptr<Planner>> replayed = ReplayPlan(*again);
  Require(replayed.ok() && DumpPlan(**replayed) == text, "a dump that replays to another plan");
  return 0;
}
