#include "cli/tree_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/check.h"

namespace coppice::cli {
namespace {

using attention::kLive;
using attention::kNoParent;
using attention::PlanDump;

constexpr int32_t kMaxRequests = 1 << 16;
constexpr int32_t kRoomToGrow = 64;  // tokens: a plan lays leaf growth out ahead (PlannerOptions::lookahead_tokens)

std::optional<int32_t> ParsePositive(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

// Builds a forest depth first; pages are handed out in the order of first use.
class TreeBuilder {
 public:
  TreeBuilder(const std::vector<TreeLevel>& levels, int32_t queries, bool share, PlanDump& problem)
      : levels_(levels), queries_(queries), share_(share), problem_(problem) {}

  // The nodes of `level` below `parent`, which ends at kv index `begin` and whose path holds `pages`.
  void AddLevel(size_t level, int32_t parent, int32_t begin, const std::vector<int32_t>& pages) {
    const TreeLevel& shape = levels_[level];
    const int32_t end = begin + shape.tokens;
    const bool is_request = level + 1 == levels_.size();
    for (int32_t i = 0; i < shape.fan_out; ++i) {
      if (is_request) {
        AddRequest(share_ ? parent : kNoParent, share_ ? begin : 0, end, share_ ? pages : std::vector<int32_t>());
        continue;
      }
      const int32_t node = share_ ? AddNode(parent, begin, end) : kNoParent;
      std::vector<int32_t> path = pages;
      // A page belongs to the node of its last token; those below hold copies of earlier tokens (copy-on-write copies whole pages).
      while (share_ && static_cast<int32_t>(path.size() + 1) * problem_.page_size <= end) path.push_back(next_page_++);
      AddLevel(level + 1, node, end, path);
    }
  }

 private:
  int32_t AddNode(int32_t parent, int32_t begin, int32_t end) {
    problem_.node_parent.push_back(parent);
    problem_.node_begin.push_back(begin);
    problem_.node_end.push_back(end);
    return static_cast<int32_t>(problem_.node_parent.size()) - 1;
  }

  void AddRequest(int32_t parent, int32_t begin, int32_t kv_len, std::vector<int32_t> pages) {
    const int32_t branch = static_cast<int32_t>(problem_.branch_node.size());
    problem_.branch_node.push_back(AddNode(parent, begin, kLive));
    problem_.branch_query_begin.push_back(branch * queries_);
    problem_.branch_query_count.push_back(queries_);
    problem_.branch_kv_len.push_back(kv_len);
    while (static_cast<int32_t>(pages.size()) * problem_.page_size < kv_len + kRoomToGrow) pages.push_back(next_page_++);
    problem_.branch_page_begin.push_back(static_cast<int32_t>(problem_.page_indices.size()));
    problem_.branch_page_capacity.push_back(static_cast<int32_t>(pages.size()));
    problem_.page_indices.insert(problem_.page_indices.end(), pages.begin(), pages.end());
  }

  const std::vector<TreeLevel>& levels_;
  const int32_t queries_;
  const bool share_;
  PlanDump& problem_;
  int32_t next_page_ = 0;
};

// Values of about unit size, the same for every dtype up to rounding. A cheap generator: pools have hundreds of megabytes.
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

}  // namespace

Result<std::vector<TreeLevel>> ParseTree(std::string_view text) {
  std::vector<TreeLevel> levels;
  int64_t requests = 1;
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
          fmt::format("'{}' is no level of a tree; expected TOKENS or TOKENSxNODES, as in 2048,256x4,64x8", piece));
    }
    levels.push_back({*tokens, *fan_out});
    requests *= *fan_out;
    if (requests > kMaxRequests)
      return InvalidArgument(fmt::format("the tree has {} requests or more; expected at most {}", requests, kMaxRequests));
  }
  return levels;
}

Status MakeTree(const std::vector<TreeLevel>& levels, int32_t page_size, int32_t queries, SharingMode sharing, PlanDump& problem) {
  if (levels.back().tokens < queries) {
    return InvalidArgument(
        fmt::format("a request has {} own tokens and {} queries; expected at least as many tokens", levels.back().tokens, queries));
  }
  problem.page_size = page_size;
  TreeBuilder(levels, queries, sharing != SharingMode::kNone, problem).AddLevel(0, kNoParent, 0, {});
  const int32_t branches = static_cast<int32_t>(problem.branch_node.size());
  problem.capacity = {.max_branches = branches,
                      .max_queries = branches * queries,
                      .max_nodes = std::max(2 * branches, static_cast<int32_t>(problem.node_parent.size())),
                      .max_page_slots = static_cast<int32_t>(problem.page_indices.size()),
                      .page_size = page_size};
  return OkStatus();
}

Result<std::unique_ptr<RunnablePlan>> RunnablePlan::Create(attention::Context& context, const PlanDump& problem) {
  std::unique_ptr<RunnablePlan> runnable(new RunnablePlan());
  const attention::AttentionSpec& spec = problem.spec;
  COPPICE_ASSIGN_OR_RETURN(runnable->plan_, attention::AttentionPlan::Create(context, spec, problem.capacity, problem.options));
  COPPICE_RETURN_IF_ERROR(runnable->plan_->Update(problem.Forest()));
  COPPICE_RETURN_IF_ERROR(runnable->plan_->Upload());

  const attention::KvPoolShape pool{.num_pages = *std::ranges::max_element(problem.page_indices) + 1,
                                    .page_size = problem.page_size,
                                    .num_kv_heads = spec.num_kv_heads,
                                    .head_dim = spec.head_dim,
                                    .dtype = spec.kv_dtype};
  int64_t queries = 0;
  for (size_t b = 0; b < problem.branch_node.size(); ++b) {
    queries = std::max<int64_t>(queries, problem.branch_query_begin[b] + problem.branch_query_count[b]);
  }
  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim;
  COPPICE_ASSIGN_OR_RETURN(runnable->kv_, Buffer::Allocate(pool.bytes()));
  COPPICE_ASSIGN_OR_RETURN(runnable->q_, Buffer::Allocate(static_cast<size_t>(queries * row) * SizeOf(spec.q_dtype)));
  COPPICE_ASSIGN_OR_RETURN(runnable->out_, Buffer::Allocate(runnable->q_.size()));
  FillPseudoRandom(runnable->kv_, spec.kv_dtype);
  FillPseudoRandom(runnable->q_, spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(runnable->bound_, context.BindKv(spec, pool.View(runnable->kv_.data())));
  runnable->args_ = {.q = runnable->q_.data(), .q_row_stride = row, .out = runnable->out_.data(), .out_row_stride = row};
  return runnable;
}

Status RunnablePlan::Run() { return plan_->Run(*bound_, args_); }

}  // namespace coppice::cli
