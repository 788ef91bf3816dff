#include "attention/split_plan.h"

#include <algorithm>
#include <utility>

#include "attention/launch_key.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

PlanStats Sum(PlanStats sum, const PlanStats& other) {
  sum.kv_tokens_read += other.kv_tokens_read;
  sum.kv_tokens_read_unshared += other.kv_tokens_read_unshared;
  sum.kv_bytes_read += other.kv_bytes_read;
  sum.kv_bytes_read_unshared += other.kv_bytes_read_unshared;
  sum.kv_bytes_distinct += other.kv_bytes_distinct;
  sum.flops += other.flops;
  sum.state_bytes += other.state_bytes;
  sum.num_items += other.num_items;
  sum.num_merge_sets += other.num_merge_sets;
  sum.num_contributions += other.num_contributions;
  sum.shared_nodes += other.shared_nodes;
  sum.unshared_nodes += other.unshared_nodes;
  sum.predicted_ns += other.predicted_ns;
  sum.nodes_replanned += other.nodes_replanned;
  sum.merge_sets_replanned += other.merge_sets_replanned;
  sum.updates_skipped += other.updates_skipped;
  sum.updates_replanned += other.updates_replanned;
  return sum;
}

}  // namespace

SplitPlan::SplitPlan(std::unique_ptr<InspectablePlan> several, std::unique_ptr<InspectablePlan> single, int32_t max_branches)
    : parts_{Part{std::move(several), {}}, Part{std::move(single), {}}} {
  for (Part& part : parts_) part.query_count.reserve(static_cast<size_t>(max_branches));
}

Status SplitPlan::Update(const PrefixForestView& forest) {
  for (Part& part : parts_) {
    const bool several = &part == &parts_.front();
    part.query_count.assign(forest.branch_query_count.begin(), forest.branch_query_count.end());
    for (int32_t& count : part.query_count) {
      if (count >= 0 && (count > 1) != several) count = 0;  // a negative one is the plan's to refuse
    }
    PrefixForestView own = forest;
    own.branch_query_count = part.query_count;
    COPPICE_RETURN_IF_ERROR(part.plan->Update(own));
  }
  forest_ = forest;
  return OkStatus();
}

Status SplitPlan::Upload(Stream stream) {
  for (Part& part : parts_) COPPICE_RETURN_IF_ERROR(part.plan->Upload(stream));
  return OkStatus();
}

LaunchKey SplitPlan::launch_key() const { return LaunchKeyOfTwo(parts_[0].plan->launch_key(), parts_[1].plan->launch_key()); }

Status SplitPlan::Run(const BoundKv& kv, const RunArgs& args, Stream stream) {
  for (Part& part : parts_) COPPICE_RETURN_IF_ERROR(part.plan->Run(kv, args, stream));
  return OkStatus();
}

PlanView SplitPlan::View() const {
  PlanView view = parts_[0].plan->View();
  const PlanView second = parts_[1].plan->View();
  if (const int64_t replanned = PlannedStats().updates_replanned; std::exchange(lists_.replanned, replanned) != replanned) {
    const auto join = [](auto* joined, const auto& first, const auto& then) {
      joined->assign(first.begin(), first.end());
      joined->insert(joined->end(), then.begin(), then.end());
    };
    join(&lists_.items, view.items, second.items);
    join(&lists_.members, view.members, second.members);
    join(&lists_.merge_sets, view.merge_sets, second.merge_sets);
    join(&lists_.contributions, view.contributions, second.contributions);
    join(&lists_.compute_queue, view.compute_queue, second.compute_queue);
    join(&lists_.bandwidth_queue, view.bandwidth_queue, second.bandwidth_queue);
    // Indices into the second part's lists become indices into the joined lists.
    const auto rest = [](auto& list, size_t first) { return std::span(list).subspan(first); };
    const auto shift = [](int32_t& index, size_t by) { index += index >= 0 ? static_cast<int32_t>(by) : 0; };
    for (WorkItem& item : rest(lists_.items, view.items.size())) {
      shift(item.member_begin, view.members.size());
      shift(item.state_begin, static_cast<size_t>(view.num_states));
    }
    for (int32_t& set : rest(lists_.members, view.members.size())) shift(set, view.merge_sets.size());
    for (MergeSet& set : rest(lists_.merge_sets, view.merge_sets.size())) shift(set.contribution_begin, view.contributions.size());
    for (Contribution& contribution : rest(lists_.contributions, view.contributions.size())) {
      shift(contribution.state_begin, static_cast<size_t>(view.num_states));
      shift(contribution.item, view.items.size());
    }
    for (int32_t& item : rest(lists_.compute_queue, view.compute_queue.size())) shift(item, view.items.size());
    for (int32_t& item : rest(lists_.bandwidth_queue, view.bandwidth_queue.size())) shift(item, view.items.size());
  }
  view.items = lists_.items, view.members = lists_.members, view.merge_sets = lists_.merge_sets;
  view.contributions = lists_.contributions;
  view.compute_queue = lists_.compute_queue, view.bandwidth_queue = lists_.bandwidth_queue;
  view.num_states += second.num_states;
  view.revision = view.changed_since = 0;
  view.changed_items = view.changed_sets = {};
  return view;
}

PlanStats SplitPlan::PlannedStats() const { return Sum(parts_[0].plan->PlannedStats(), parts_[1].plan->PlannedStats()); }
PlanStats SplitPlan::Stats() const { return Sum(parts_[0].plan->Stats(), parts_[1].plan->Stats()); }
PlanReads SplitPlan::Reads() { return shared_reads_.Count(*this, forest_); }

std::vector<NodeRead> SplitPlan::NodeReads() const {
  std::vector<NodeRead> reads = parts_[0].plan->NodeReads();
  const std::vector<NodeRead> second = parts_[1].plan->NodeReads();
  for (size_t n = 0; n < reads.size(); ++n) {
    if (second[n].branches > reads[n].branches) reads[n] = second[n];
  }
  return reads;
}

std::string SplitPlan::Explain() const {
  return "first launch, branches with several queries:\n" + parts_[0].plan->Explain() +
         "second launch, branches with one query:\n" + parts_[1].plan->Explain();
}
std::string SplitPlan::Dump() const { return parts_[1].plan->Dump(); }

}  // namespace coppice::attention
