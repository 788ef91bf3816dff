#include "cli/bench/tree_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/available_memory.h"
#include "core/check.h"
#include "core/math.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

using attention::PlanDump;

constexpr int64_t kMaxRequests = 1 << 16;
constexpr size_t kMaxLevels = 1024;
constexpr int64_t kMaxNodes = 1 << 20, kMaxPageSlots = int64_t{1} << 27, kMaxPathTokens = int64_t{1} << 29;
constexpr int32_t kRoomToGrow = 64;  // tokens: a plan lays leaf growth out ahead (PlannerOptions::lookahead_tokens)

std::optional<int32_t> ParsePositive(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

// A problem may come from a file that numbers its pages as it likes: what memory there is decides, before it is taken.
Status CheckMemory(const attention::KvPoolShape& pool, int64_t query_bytes) {
  const int64_t known = AvailableMemoryBytes(), available = known > 0 ? known : INT64_MAX;
  const auto page_bytes = static_cast<int64_t>(pool.elements_per_page() * SizeOf(pool.dtype));
  if (pool.num_pages <= available / page_bytes && query_bytes <= (available - pool.num_pages * page_bytes) / 2) return OkStatus();
  return ResourceExhausted(
      fmt::format("running the plan takes {} pages of {} bytes for KV and twice {} bytes for queries, but {} bytes of memory are "
                  "available; --no-measure does not run it",
                  pool.num_pages, page_bytes, query_bytes, available));
}

}  // namespace

Result<std::vector<TreeLevel>> ParseTree(std::string_view text) {
  std::vector<TreeLevel> levels;
  int64_t requests = 1, nodes = 0;
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view piece = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const size_t x = piece.find('x');
    const std::optional<int32_t> tokens = ParsePositive(piece.substr(0, x));
    const std::optional<int32_t> fan_out = x == std::string_view::npos ? 1 : ParsePositive(piece.substr(x + 1));
    if (!tokens || !fan_out) {
      return InvalidArgument(
          fmt::format("{} is no level of a tree; expected TOKENS or TOKENSxNODES, as in 2048,256x4,64x8", Quoted(piece)));
    }
    levels.push_back({*tokens, *fan_out});
    requests *= *fan_out;
    nodes += requests;
    if (requests > kMaxRequests)
      return InvalidArgument(fmt::format("the tree has {} requests or more; expected at most {}", requests, kMaxRequests));
    if (levels.size() > kMaxLevels || nodes > kMaxNodes) {
      return InvalidArgument(fmt::format("the tree has {} levels and {} nodes or more; expected at most {} and {}", levels.size(),
                                         nodes, kMaxLevels, kMaxNodes));
    }
  }
  return levels;
}

Status MakeTree(const std::vector<TreeLevel>& levels, int32_t page_size, int32_t queries, SharingMode sharing, PlanDump& problem) {
  if (levels.back().tokens < queries) {
    return InvalidArgument(
        fmt::format("a request has {} own tokens and {} queries; expected at least as many tokens", levels.back().tokens, queries));
  }
  int64_t path = 0, requests = 1;
  for (const TreeLevel& level : levels) path += level.tokens, requests *= level.fan_out;
  const int64_t page_slots = requests * CeilDiv(path + kRoomToGrow, int64_t{page_size});
  if (path > kMaxPathTokens || page_slots > kMaxPageSlots) {
    return InvalidArgument(
        fmt::format("{} requests of {} tokens with their prefix take {} page indices; expected at most {} tokens "
                    "and {} indices",
                    requests, path, page_slots, kMaxPathTokens, kMaxPageSlots));
  }
  attention::AddUniformTree({.levels = levels,
                             .queries = queries,
                             .page_size = page_size,
                             .share = sharing != SharingMode::kNone,
                             .room_to_grow = kRoomToGrow},
                            problem);
  problem.capacity = problem.Capacity();
  return OkStatus();
}

// A cheap generator: pools have hundreds of megabytes.
void FillPseudoRandom(Buffer& buffer, DType dtype) {
  uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes, ranqd1
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  };
  switch (dtype) {
    case DType::kF32: std::ranges::generate(buffer.Span<float>(), next); break;
    case DType::kBF16: std::ranges::generate(buffer.Span<BF16>(), [&] { return BF16::FromFloat(next()); }); break;
    case DType::kF16: std::ranges::generate(buffer.Span<F16>(), [&] { return F16::FromFloat(next()); }); break;
  }
}

Result<ProblemSizes> SizesOf(const PlanDump& problem) {
  const attention::AttentionSpec& spec = problem.spec;
  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim;
  const ProblemSizes sizes{.pool = {.num_pages = static_cast<int32_t>(std::min<int64_t>(problem.num_pages(), INT32_MAX)),
                                    .page_size = problem.page_size,
                                    .num_kv_heads = spec.num_kv_heads,
                                    .head_dim = spec.head_dim,
                                    .dtype = spec.kv_dtype},
                           .row = row,
                           .query_bytes = static_cast<size_t>(problem.num_queries() * row) * SizeOf(spec.q_dtype)};
  COPPICE_RETURN_IF_ERROR(CheckMemory(sizes.pool, static_cast<int64_t>(sizes.query_bytes)));
  return sizes;
}

Result<std::unique_ptr<RunnablePlan>> RunnablePlan::Create(attention::Context& context, const PlanDump& problem) {
  std::unique_ptr<RunnablePlan> runnable(new RunnablePlan());
  const attention::AttentionSpec& spec = problem.spec;
  COPPICE_ASSIGN_OR_RETURN(runnable->plan_, attention::AttentionPlan::Create(context, spec, problem.capacity, problem.options));
  COPPICE_RETURN_IF_ERROR(runnable->plan_->Update(problem.Forest()));
  COPPICE_RETURN_IF_ERROR(runnable->plan_->Upload());

  COPPICE_ASSIGN_OR_RETURN(const ProblemSizes sizes, SizesOf(problem));
  COPPICE_ASSIGN_OR_RETURN(runnable->kv_, Buffer::Allocate(sizes.pool.bytes()));
  COPPICE_ASSIGN_OR_RETURN(runnable->q_, Buffer::Allocate(sizes.query_bytes));
  COPPICE_ASSIGN_OR_RETURN(runnable->out_, Buffer::Allocate(sizes.query_bytes));
  FillPseudoRandom(runnable->kv_, spec.kv_dtype);
  FillPseudoRandom(runnable->q_, spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(runnable->bound_, context.BindKv(spec, sizes.pool.View(runnable->kv_.data())));
  runnable->args_ = {
      .q = runnable->q_.data(), .q_row_stride = sizes.row, .out = runnable->out_.data(), .out_row_stride = sizes.row};
  return runnable;
}

Status RunnablePlan::Run() { return plan_->Run(*bound_, args_); }

}  // namespace coppice::cli
