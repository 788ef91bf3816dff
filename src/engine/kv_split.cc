#include "engine/kv_split.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/check.h"
#include "core/math.h"
#include "model/shard.h"

namespace coppice {
namespace {

constexpr int32_t kLargestPage = 256;  // that plans take

std::string WhyNot(const EngineOptions& options, int sharers) {
  if (options.experiment.draft_branches > 1) return "what is accepted of a draft tree moves from slot to slot of KV";
  if (const int page = sharers * options.page_size; page > kLargestPage)
    return fmt::format("pages would have {} tokens, {} on each of {} ranks, and {} is the most", page, options.page_size, sharers,
                       kLargestPage);
  return "";
}

TypicalStep StepOf(const KvSplitProblem& problem) {
  const EngineOptions& options = problem.options;
  const int64_t token_bytes = 2 * int64_t{problem.config.head_dim} * problem.config.num_layers * problem.ranks *
                              static_cast<int64_t>(SizeOf(problem.kv_dtype));
  return TypicalStepOf(options.max_running, options.max_context,
                       options.kv_cache_bytes == 0 ? INT64_MAX : options.kv_cache_bytes / token_bytes);
}

// A layer of a step whose samples each have so many tokens on the rank.
Result<double> PredictSeconds(attention::Context& context, const attention::AttentionSpec& spec, const EngineOptions& options,
                              const TypicalStep& step) {
  const int32_t pages = CeilDiv(step.tokens, options.page_size), samples = step.samples;
  COPPICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<attention::AttentionPlan> plan,
      attention::AttentionPlan::Create(
          context, spec,
          {.max_branches = samples, .max_queries = samples, .max_page_slots = samples * pages, .page_size = options.page_size},
          {.machine_model_path = options.machine_model_path}));
  std::vector<int32_t> slots(samples), page_begin(samples);
  for (int32_t i = 0; i < samples; ++i) slots[i] = i, page_begin[i] = i * pages;
  const std::vector<int32_t> no_parent(samples, attention::kNoParent), zeros(samples, 0), live(samples, attention::kLive),
      one(samples, 1), lengths(samples, step.tokens), capacity(samples, pages), page_indices(int64_t{samples} * pages, 0);
  COPPICE_RETURN_IF_ERROR(plan->Update({.page_size = options.page_size,
                                        .version = 1,
                                        .node_parent = no_parent,
                                        .node_begin = zeros,
                                        .node_end = live,
                                        .branch_node = slots,
                                        .branch_query_begin = slots,
                                        .branch_query_count = one,
                                        .branch_kv_len = lengths,
                                        .branch_page_begin = page_begin,
                                        .branch_page_capacity = capacity,
                                        .page_indices = page_indices}));
  return 1e-9 * plan->Stats().predicted_ns;
}

}  // namespace

Result<KvSplitChoice> ChooseKvSplit(const KvSplitProblem& problem, attention::Context& context) {
  const ModelConfig& config = problem.config;
  const EngineOptions& options = problem.options;
  const TypicalStep step = StepOf(problem);
  const auto predict = [&](int sharers) -> Result<KvSplitTimes> {
    const auto heads = static_cast<int32_t>(Shard{0, problem.ranks}.QoHeads(config).padded);
    attention::AttentionSpec spec = {.num_qo_heads = heads,
                                     .num_kv_heads = 1,
                                     .head_dim = config.head_dim,
                                     .q_dtype = problem.q_dtype,
                                     .kv_dtype = problem.kv_dtype,
                                     .sm_scale = config.sm_scale,
                                     .soft_cap = config.soft_cap,
                                     .deterministic = options.deterministic};
    KvSplitTimes times;
    COPPICE_ASSIGN_OR_RETURN(times.heads_s, PredictSeconds(context, spec, options, step));
    spec.num_qo_heads = heads * sharers;
    const TypicalStep part = {.samples = step.samples, .tokens = CeilDiv(step.tokens, sharers)};
    COPPICE_ASSIGN_OR_RETURN(times.tokens_s, PredictSeconds(context, spec, options, part));
    times.tokens_s += KvExchangeOf(config, problem.ranks, problem.q_dtype, context.device()).Seconds(step.samples);
    return times;
  };
  const std::string why_not = WhyNot(options, Shard::KvSharers(config, problem.ranks));
  return ChooseKvSplit(config, problem.ranks, options.kv_split, why_not, step, predict);
}

}  // namespace coppice
