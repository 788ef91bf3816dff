#include "engine/metrics.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNumPrefixes = 256;  // of EngineMetrics::prefixes
constexpr std::chrono::milliseconds kPrefixesEvery(100);
constexpr std::chrono::milliseconds kPlanEvery(100);

std::vector<CachedPrefix> ToCachedPrefixes(const std::vector<KvCache::PrefixUse>& uses) {
  std::vector<CachedPrefix> prefixes;
  prefixes.reserve(uses.size());
  for (const KvCache::PrefixUse& use : uses) {
    prefixes.push_back({.id = use.node,
                        .parent = use.parent,
                        .begin = use.begin,
                        .end = use.end,
                        .hits = use.hits,
                        .users = use.users,
                        .pinned = use.pinned});
  }
  return prefixes;
}

// Of the nodes of the prefix tree that at least two samples of the planned step read.
std::vector<PlannedRead> PlannedReads(const KvCache& cache, const std::vector<attention::NodeRead>& reads) {
  std::vector<PlannedRead> planned;
  const PrefixTree& tree = cache.tree();
  for (NodeId n = 1; n < tree.node_capacity(); ++n) {
    const PrefixTree::Node& node = tree.node(n);
    if (!node.in_tree || !cache.forest().LeadsToBranches(n)) continue;
    const int32_t of_forest = cache.forest().NodeOf(n);
    const attention::NodeRead& read = reads[of_forest];
    if (read.branches < 2) continue;
    planned.push_back({.node = n,
                       .parent = node.parent,
                       .begin = node.begin,
                       .end = node.end(),
                       .samples = read.branches,
                       .decision = of_forest,
                       .together = read.together,
                       .reason = read.reason,
                       .together_us = read.together_us,
                       .apart_us = read.apart_us});
  }
  std::ranges::sort(planned, {}, [](const PlannedRead& read) { return std::tuple(read.begin, read.node); });  // parents first
  return planned;
}

}  // namespace

MetricsRecorder::MetricsRecorder(Fixed fixed)
    : kv_bytes_per_token_(fixed.kv_bytes_per_token), kv_bytes_per_page_(fixed.kv_bytes_per_token * fixed.page_size) {
  totals_.pages_total = fixed.pages_total;
  totals_.chunk = fixed.chunk;
  totals_.chunk_probe = std::move(fixed.chunk_probe);
  published_ = totals_;
}

void MetricsRecorder::NotePlan(int64_t step, const ScheduledBatch& batch, const Runner& runner, const KvCache& cache) {
  const int32_t decode_rows = batch.num_tokens() - batch.prefill_tokens;
  const Clock::time_point now = Clock::now();
  if (plan_ && plan_->step < step) return;
  plan_.reset();  // its step failed
  if (!IsFullest(decode_rows) && now < plan_due_) return;
  plan_due_ = now + kPlanEvery;
  const std::vector<attention::NodeRead> reads = runner.NodeReads();
  if (reads.empty()) return;
  plan_ = std::make_unique<StepPlan>(StepPlan{
      .step = step, .decode_rows = decode_rows, .prefill_rows = batch.prefill_tokens, .reads = PlannedReads(cache, reads)});
}

void MetricsRecorder::CountPlan() {
  plan_->kv_bytes_read = step_.kv_bytes_read;
  plan_->kv_bytes_read_unshared = step_.kv_bytes_read_unshared;
  totals_.plan = std::move(plan_);
  if (IsFullest(totals_.plan->decode_rows)) totals_.fullest_plan = totals_.plan;
}

void MetricsRecorder::CountStep(const ScheduledBatch& batch, const StepStats& stats, const KvCache::Usage& usage) {
  CountMemory(usage);
  CountRows(batch, stats);
  if (plan_ && plan_->step == step_.step) CountPlan();
}

void MetricsRecorder::CountRows(const ScheduledBatch& batch, const StepStats& stats) {
  step_.step = ++totals_.steps;
  step_.prefill_rows = batch.prefill_tokens;
  step_.decode_rows = batch.num_tokens() - batch.prefill_tokens;
  step_.grouped_rows = stats.grouped_rows;
  step_.kv_bytes_read = stats.kv_bytes_read;
  step_.kv_bytes_read_unshared = stats.kv_bytes_read_unshared;
  step_.plan_seconds = stats.plan_seconds;
  step_.forward_seconds = stats.edit_seconds + stats.forward_seconds;
  edit_seconds_ = stats.edit_seconds;
  step_.sample_seconds = stats.sample_seconds;
  step_.ran_as_graph = stats.ran_as_graph;
  step_.new_shape = stats.new_shape;
  totals_.graph_steps += step_.ran_as_graph;
  if (!std::exchange(was_idle_, false)) totals_.device_idle_seconds += stats.device_idle_seconds;
  totals_.prefilled_tokens += step_.prefill_rows;
  totals_.rows += batch.num_tokens();
  totals_.grouped_rows += step_.grouped_rows;
  totals_.kv_bytes_read += step_.kv_bytes_read;
  totals_.kv_bytes_read_unshared += step_.kv_bytes_read_unshared;
  totals_.kv_bytes_distinct += stats.kv_bytes_distinct;
  if (step_.prefill_rows > 0) return;
  ++totals_.decode_steps;
  totals_.decode_graph_steps += step_.ran_as_graph;
  totals_.decode_kv_bytes_read += step_.kv_bytes_read;
  totals_.decode_kv_bytes_read_unshared += step_.kv_bytes_read_unshared;
  totals_.decode_kv_bytes_distinct += stats.kv_bytes_distinct;
}

void MetricsRecorder::CountMemory(const KvCache::Usage& usage) {
  step_.kv_bytes_stored = usage.pages_in_use * kv_bytes_per_page_;
  step_.kv_bytes_stored_unshared = usage.pages_unshared * kv_bytes_per_page_;
  step_.kv_page_rounding_bytes = step_.kv_bytes_stored - usage.tokens_in_use * kv_bytes_per_token_;
  if (usage.pages_in_use < totals_.peak_pages_used) return;  // the last moment at the peak: its pages are fullest
  totals_.peak_pages_used = usage.pages_in_use;
  totals_.kv_bytes_stored = step_.kv_bytes_stored;
  totals_.kv_bytes_stored_unshared = step_.kv_bytes_stored_unshared;
  totals_.kv_page_rounding_bytes = step_.kv_page_rounding_bytes;
}

void MetricsRecorder::CountTime(double seconds) {
  step_.seconds = seconds;
  // Page copies belong to the prompt whose samples begin, though they are made with the samples' first step: with
  // SharingMode::kNone that is the whole prompt for each.
  const double prefill = step_.prefill_rows > 0 ? seconds : edit_seconds_;
  totals_.prefill_seconds += prefill;
  totals_.decode_seconds += seconds - prefill;
  if (step_.prefill_rows > 0 && step_.decode_rows > 0) ++totals_.hybrid_steps, totals_.hybrid_seconds += seconds;
  totals_.plan_seconds += step_.plan_seconds;
  totals_.forward_seconds += step_.forward_seconds;
  totals_.sample_seconds += step_.sample_seconds;
  totals_.host_seconds += step_.host_seconds;
  totals_.last_step = step_;
}

void MetricsRecorder::Publish(const Now& now) {
  was_idle_ |= now.idle;
  totals_.last_step.detokenize_seconds = now.detokenize_seconds - totals_.detokenize_seconds;
  totals_.detokenize_seconds = now.detokenize_seconds;
  // With the last request's end too: its caller may ask at once what the tree holds.
  const bool nothing_left = now.idle || (now.running == 0 && now.waiting == 0);
  if (const Clock::time_point time = Clock::now(); nothing_left || time >= prefixes_due_) {
    prefixes_due_ = time + kPrefixesEvery;
    const KvCache::PrefixUses uses = now.cache->TopPrefixes(kNumPrefixes);
    totals_.prefixes = ToCachedPrefixes(uses.all);
    std::map<std::string, std::vector<CachedPrefix>> of_tenants;
    for (const auto& [tenant, own] : uses.of_tenants) of_tenants[tenant] = ToCachedPrefixes(own);
    totals_.tenant_prefixes = of_tenants.empty() ? nullptr : std::make_shared<const decltype(of_tenants)>(std::move(of_tenants));
    totals_.tree_nodes = now.cache->tree().num_nodes();
  }
  totals_.waiting = now.waiting;
  totals_.running = now.running;
  const KvCache::Usage usage = now.cache->usage();
  totals_.pages_used = usage.pages_owned;
  totals_.cached_tokens = usage.hit_tokens;
  totals_.merged_pages = usage.merged_pages;
  totals_.preemptions = now.preemptions;
  totals_.draft_trees_cut = now.draft_trees_cut;
  totals_.draft_kv_bytes_read = now.draft_kv_bytes_read;
  const std::lock_guard lock(mutex_);
  published_ = totals_;
}

EngineMetrics MetricsRecorder::Snapshot() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

int32_t MetricsRecorder::running() const {
  const std::lock_guard lock(mutex_);
  return published_.running;
}

}  // namespace coppice
