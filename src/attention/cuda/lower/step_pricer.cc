// Prices of steps on GPUs. Layer: attention/cuda.
#include "attention/step_pricer.h"

#include <algorithm>
#include <vector>

#include "attention/cuda/lower/plan_image.h"
#include "attention/cuda/lower/predicted_step.h"
#include "attention/cuda/lower/short_steps.h"
#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_cuts.h"
#include "attention/cuda/lower/step_ranges.h"
#include "attention/deterministic_cuts.h"
#include "attention/range_costs.h"

namespace coppice::attention {
namespace cuda {
namespace {

class CutPricer final : public StepPricer {
 public:
  explicit CutPricer(const PlanProblem& problem)
      : problem_(problem),
        range_costs_(problem),
        own_states_(PlanLayout(problem.spec, problem.capacity, problem.sizes, problem.traits.workers).own_states),
        most_states_(problem.sizes.max_states + own_states_),
        costs_(problem.machine.sm, problem.spec, problem.traits),
        cutter_(problem.spec, problem.capacity.page_size, problem.traits.workers, problem.num_ranges()),
        prompts_(problem.capacity.max_branches, problem.num_ranges()),
        reads_(problem.capacity.max_nodes) {
    const size_t most = problem.num_ranges();
    items_.reserve(problem.spec.deterministic ? std::max<size_t>(most, problem.sizes.max_items) : most);
    ends_.reserve(own_states_ / problem.spec.num_kv_heads);  // a piece has a state at least
    ends_begin_.reserve(most + 1);
    pieces_.reserve(most);
    set_rows_.reserve(most);
    contributions_.reserve(most);
  }

  double StepNs(const StepRanges& step) override {
    if (const ShortLaunch launch = ShortLaunchOf(step)) return ShortStepNs(problem_.machine.short_decode, problem_.spec, launch);
    FindSetRows(step);
    return problem_.spec.deterministic ? DeterministicNs(step) : FastNs(step);
  }

 private:
  // As cuda::ShortLaunchOf says of the plan: a range each of one query. A draft mask, which a range does not know, comes with
  // branches of several.
  ShortLaunch ShortLaunchOf(const StepRanges& step) const {
    if (!problem_.machine.short_decode.known() || std::ssize(step.ranges) > problem_.traits.short_step_queries) return {};
    int32_t longest = 0;
    for (const StepRange& range : step.ranges) {
      if (range.num_sets != 1 || range.above >= 0 || range.rows != problem_.spec.group_size()) return {};
      longest = std::max(longest, range.end - range.begin);
    }
    return cuda::ShortLaunchOf(problem_.traits, problem_.spec, static_cast<int32_t>(step.ranges.size()), longest);
  }

  // Of the largest merge set of each range.
  void FindSetRows(const StepRanges& step) {
    set_rows_.assign(step.ranges.size(), 0);
    for (size_t i = 0; i < step.ranges.size(); ++i) {
      for (auto r = static_cast<int32_t>(i); r >= 0; r = step.ranges[r].above) {
        set_rows_[r] = std::max(set_rows_[r], step.ranges[i].set_rows);
      }
    }
  }

  // Range i, or a piece of it. Items are by their range in the step: QueuedItem::item.
  QueuedItem ItemOf(const StepRange& range, size_t i, int32_t begin, int32_t end) const {
    const int32_t tokens = std::max(0, end - begin);
    return {.item = static_cast<int32_t>(i),
            .node = range.node,
            .kv_begin = begin,
            .rows = range.rows,
            .blocks = DenseBlocks(range.rows, set_rows_[i]),
            .tokens = tokens,
            .cut_tokens = tokens,
            .most_set_rows = set_rows_[i],
            .prompt = range.prompt};
  }

  void ChooseKindsAndCount(const StepRanges& step) {
    ChooseKinds(items_, problem_.spec.num_kv_heads, problem_.traits.workers, costs_);
    if (!problem_.spec.deterministic) prompts_.Align(items_);
    reads_.Count(items_, {.parent = step.node_parent, .begin = step.node_begin, .end = step.node_end}, costs_);
  }

  double FastNs(const StepRanges& step) {
    CutStep total(problem_.cost, costs_.stream_rows());
    int64_t merges = 0;
    items_.clear();
    for (size_t i = 0; i < step.ranges.size(); ++i) {
      const StepRange& range = step.ranges[i];
      items_.push_back(ItemOf(range, i, range.begin, range.end));
      int32_t depth = 1;
      for (int32_t r = range.above; r >= 0; r = step.ranges[r].above) ++depth;
      if (range.num_sets == 0 || depth == 1) continue;
      merges += range.num_sets;
      total.AddMerges(range.num_sets, int64_t{range.rows} * depth);
    }
    ChooseKindsAndCount(step);
    const StepCuts cuts = cutter_.Choose(
        items_, [merges] { return merges > 0; }, own_states_, costs_);
    Cut(cuts);
    CountContributions(step);
    for (const QueuedItem& item : items_) total.Add(item, EndsOf(item), contributions_[item.item]);
    return total.Ns(cuts.stream.cooperative_piece > 0);
  }

  void Cut(const StepCuts& cuts) {
    ends_.clear(), ends_begin_.clear(), pieces_.clear();
    int64_t states = 0;
    for (const QueuedItem& item : items_) {
      ends_begin_.push_back(static_cast<int32_t>(ends_.size()));
      const int64_t rows = int64_t{item.rows} * problem_.spec.num_kv_heads;
      CutRange(item, cuts, std::min(kMostPieces, (most_states_ - states) / rows), costs_, ends_);
      pieces_.push_back(static_cast<int32_t>(ends_.size()) - ends_begin_.back() + 1);
      if (pieces_.back() > 1) states += pieces_.back() * rows;
    }
    ends_begin_.push_back(static_cast<int32_t>(ends_.size()));
  }
  std::span<const int32_t> EndsOf(const QueuedItem& item) const {
    return std::span(ends_).subspan(ends_begin_[item.item], ends_begin_[item.item + 1] - ends_begin_[item.item]);
  }

  // As ItemLowering cuts it where all of it fits: each piece is an item, which the translation leaves whole.
  double DeterministicNs(const StepRanges& step) {
    const std::span<const StepRange> ranges = step.ranges;
    const auto whole = [](const StepRange& range) -> ShareRange {
      return {.begin = range.begin, .rows = range.rows, .planned_end = range.planned_end, .cached_end = range.cached_end};
    };
    int64_t ranges_ps = 0;
    for (const StepRange& range : ranges) ranges_ps += Picoseconds(range_costs_.Whole(whole(range)).RooflineNs());
    const double target_task_ns = TargetTaskNs(problem_.cost, ranges_ps);
    CutStep total(problem_.cost, costs_.stream_rows());
    const int32_t unit = problem_.share_unit;
    items_.clear(), pieces_.clear();
    for (size_t i = 0; i < ranges.size(); ++i) {
      const StepRange& range = ranges[i];
      int32_t above = 0;
      for (int32_t r = range.above; r >= 0; r = ranges[r].above) above += pieces_[r];
      const KvCuts cuts = CutDeterministically(
          {.begin = range.begin, .end = range.laid_out_end, .contributions_above = above, .is_tile = range.num_sets > 0},
          range_costs_.PiecesToLower(range.rows, whole(range).planned_tokens(), target_task_ns), unit, /*lowered=*/true);
      // So many more that each later range has an item.
      const auto room = static_cast<int32_t>(items_.capacity() - items_.size() - (ranges.size() - i));
      const int32_t pieces = std::min(cuts.pieces, 1 + room);
      pieces_.push_back(pieces);
      for (int32_t piece = 0; piece < pieces; ++piece) {
        const int32_t end = piece + 1 < pieces ? std::min(cuts.PieceBegin(range.begin, unit, piece + 1), range.end) : range.end;
        items_.push_back(ItemOf(range, i, cuts.PieceBegin(range.begin, unit, piece), end));
      }
      if (range.num_sets > 0 && above + pieces > 1) total.AddMerges(range.num_sets, int64_t{range.rows} * (above + pieces));
    }
    CountContributions(step);
    ChooseKindsAndCount(step);
    for (const QueuedItem& item : items_) total.Add(item, {}, contributions_[item.item]);
    return total.Ns(/*cooperative=*/false);
  }

  // Of each range's first merge set: pieces along each row tile's path; of a shared node, those of the first tile below it.
  void CountContributions(const StepRanges& step) {
    contributions_.assign(step.ranges.size(), 0);
    for (size_t i = 0; i < step.ranges.size(); ++i) {
      if (step.ranges[i].num_sets == 0) continue;
      int32_t count = 0;
      for (auto r = static_cast<int32_t>(i); r >= 0; r = step.ranges[r].above) count += pieces_[r];
      for (auto r = static_cast<int32_t>(i); r >= 0 && contributions_[r] == 0; r = step.ranges[r].above) contributions_[r] = count;
    }
  }

  const PlanProblem& problem_;
  RangeCosts range_costs_;
  int64_t own_states_, most_states_;
  SmCosts costs_;
  StepCutter cutter_;
  PromptCuts prompts_;
  ReadCounts reads_;
  std::vector<QueuedItem> items_;
  std::vector<int32_t> ends_, ends_begin_;                  // of all pieces but each item's last; [item]
  std::vector<int32_t> pieces_, set_rows_, contributions_;  // [range] rows of the largest merge set below it; of its first one
};

}  // namespace
}  // namespace cuda

std::unique_ptr<StepPricer> MakeStepPricer(const PlanProblem& problem) {
  if (!problem.traits.cuts_kv || problem.machine.sm.num_sms == 0) return nullptr;
  return std::make_unique<cuda::CutPricer>(problem);
}

}  // namespace coppice::attention
