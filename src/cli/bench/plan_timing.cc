#include "cli/bench/plan_timing.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

constexpr int kDeviceRuns = 21;

PlanTiming Summarise(std::vector<double> ns) {
  std::ranges::sort(ns);
  return {.median_ns = ns[ns.size() / 2], .fastest_ns = ns.front(), .slowest_ns = ns.back(), .runs = ns.size()};
}

// Memory of the device, filled with FillPseudoRandom.
Result<std::unique_ptr<attention::BenchMemory>> RandomMemory(attention::BenchDevice& device, size_t bytes, DType dtype) {
  COPPICE_ASSIGN_OR_RETURN(Buffer host, Buffer::Allocate(bytes));
  FillPseudoRandom(host, dtype);
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<attention::BenchMemory> memory, device.Allocate(bytes));
  COPPICE_RETURN_IF_ERROR(memory->CopyFrom({host.data(), bytes}));
  return Result<std::unique_ptr<attention::BenchMemory>>(std::move(memory));
}

}  // namespace

Result<PlanTiming> TimePlan(RunnablePlan& plan) {
  using Clock = std::chrono::steady_clock;
  COPPICE_RETURN_IF_ERROR(plan.Run());
  std::vector<double> ns;
  const Clock::time_point start = Clock::now();
  while (ns.size() < 3 || Clock::now() - start < std::chrono::milliseconds(500)) {
    const Clock::time_point before = Clock::now();
    COPPICE_RETURN_IF_ERROR(plan.Run());
    ns.push_back(std::chrono::duration<double, std::nano>(Clock::now() - before).count());
  }
  return Summarise(std::move(ns));
}

Result<PlanTiming> TimePlan(attention::BenchDevice& device, const attention::PlanDump& problem) {
  const attention::AttentionSpec& spec = problem.spec;
  COPPICE_ASSIGN_OR_RETURN(const ProblemSizes sizes, SizesOf(problem));
  COPPICE_ASSIGN_OR_RETURN(const auto kv, RandomMemory(device, sizes.pool.bytes(), spec.kv_dtype));
  COPPICE_ASSIGN_OR_RETURN(const auto q, RandomMemory(device, sizes.query_bytes, spec.q_dtype));
  COPPICE_ASSIGN_OR_RETURN(const auto out, device.Allocate(sizes.query_bytes));
  COPPICE_ASSIGN_OR_RETURN(const auto plan,
                           attention::AttentionPlan::Create(device.backend(), spec, problem.capacity, problem.options));
  COPPICE_RETURN_IF_ERROR(plan->Update(problem.Forest()));
  COPPICE_RETURN_IF_ERROR(plan->Upload());
  COPPICE_ASSIGN_OR_RETURN(const auto bound, device.backend().BindKv(spec, sizes.pool.View(kv->data())));
  const attention::RunArgs args{.q = q->data(), .q_row_stride = sizes.row, .out = out->data(), .out_row_stride = sizes.row};
  std::vector<double> ns;
  for (int i = 0; i < kDeviceRuns; ++i) {
    COPPICE_ASSIGN_OR_RETURN(const double seconds, device.Time([&](Stream stream) { return plan->Run(*bound, args, stream); }));
    ns.push_back(seconds * 1e9);
  }
  return Summarise(std::move(ns));
}

}  // namespace coppice::cli
