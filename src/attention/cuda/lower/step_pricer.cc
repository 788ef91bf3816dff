// Prices of steps on GPUs. Layer: attention/cuda.
#include "attention/step_pricer.h"

#include <algorithm>
#include <vector>

#include "attention/cost_model.h"
#include "attention/cuda/lower/plan_image.h"
#include "attention/cuda/lower/predicted_step.h"
#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_cuts.h"
#include "attention/cuda/lower/step_ranges.h"

namespace coppice::attention {
namespace cuda {
namespace {

class CutPricer final : public StepPricer {
 public:
  CutPricer(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, const BackendTraits& traits,
            const MachineModel& machine)
      : spec_(spec),
        num_sms_(traits.workers),
        own_states_(PlanLayout(spec, capacity, sizes, traits.workers).own_states),
        most_states_(sizes.max_states + own_states_),
        cost_(spec, traits, machine),
        costs_(machine.sm, spec, traits),
        cutter_(spec, capacity.page_size, traits.workers, MostRanges(capacity, sizes)),
        prompts_(capacity.max_branches, MostRanges(capacity, sizes)),
        reads_(capacity.max_nodes) {
    const size_t most = MostRanges(capacity, sizes);
    items_.reserve(most);
    ends_.reserve(own_states_ / spec.num_kv_heads);  // a piece has a state at least
    ends_begin_.reserve(most + 1);
    set_rows_.reserve(most);
    states_.reserve(most);
  }

  double StepNs(const StepRanges& step) override {
    Collect(step);
    prompts_.Align(items_);
    reads_.Count(items_, {.parent = step.node_parent, .begin = step.node_begin, .end = step.node_end}, costs_);
    const StepCuts cuts = cutter_.Choose(
        items_, [this] { return merges_ > 0; }, own_states_, costs_);
    Cut(cuts);
    AddStates(step);
    CutStep total(cost_, costs_.stream_rows());
    for (const QueuedItem& item : items_) total.Add(item, EndsOf(item), states_[item.item]);
    total.AddMerges(merges_, state_rows_);
    return total.Ns(cuts.stream.team_piece > 0);
  }

 private:
  // Shared nodes and row tiles.
  static int32_t MostRanges(const PlanCapacity& capacity, const PlanSizes& sizes) {
    return capacity.max_nodes + sizes.max_merge_sets;
  }

  // Items are by their range in the step: QueuedItem::item.
  void Collect(const StepRanges& step) {
    const std::span<const StepRange> ranges = step.ranges;
    states_.assign(ranges.size(), 0), set_rows_.assign(ranges.size(), 0);
    items_.clear();
    merges_ = state_rows_ = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const StepRange& range = ranges[i];
      int32_t depth = 1;
      for (int32_t r = range.above; r >= 0; r = ranges[r].above, ++depth) set_rows_[r] = std::max(set_rows_[r], range.set_rows);
      if (range.num_sets > 0 && depth > 1) {
        merges_ += range.num_sets;
        state_rows_ += int64_t{range.rows} * depth;
      }
      items_.push_back({.item = static_cast<int32_t>(i),
                        .node = range.node,
                        .kv_begin = range.begin,
                        .rows = range.rows,
                        .tokens = std::max(0, range.end - range.begin),
                        .cut_tokens = std::max(0, range.end - range.begin),
                        .most_set_rows = range.set_rows,
                        .prompt = range.prompt});
    }
    for (QueuedItem& item : items_) {
      item.most_set_rows = std::max(item.most_set_rows, set_rows_[item.item]);
      item.blocks = DenseBlocks(item.rows, item.most_set_rows);
    }
    ChooseKinds(items_, spec_.num_kv_heads, num_sms_, costs_);
  }

  void Cut(const StepCuts& cuts) {
    ends_.clear(), ends_begin_.clear();
    int64_t states = 0;
    for (const QueuedItem& item : items_) {
      ends_begin_.push_back(static_cast<int32_t>(ends_.size()));
      const int64_t rows = int64_t{item.rows} * spec_.num_kv_heads;
      CutRange(item, cuts, std::min(kMostPieces, (most_states_ - states) / rows), costs_, ends_);
      if (const int64_t pieces = std::ssize(ends_) - ends_begin_.back() + 1; pieces > 1) states += pieces * rows;
    }
    ends_begin_.push_back(static_cast<int32_t>(ends_.size()));
  }
  std::span<const int32_t> EndsOf(const QueuedItem& item) const {
    return std::span(ends_).subspan(ends_begin_[item.item], ends_begin_[item.item + 1] - ends_begin_[item.item]);
  }

  // Pieces along each row tile's path; of a shared node, those of the first tile below it.
  void AddStates(const StepRanges& step) {
    for (const QueuedItem& item : items_) {
      if (step.ranges[item.item].num_sets == 0) continue;
      int32_t states = 0;
      for (int32_t r = item.item; r >= 0; r = step.ranges[r].above) states += static_cast<int32_t>(EndsOf(items_[r]).size()) + 1;
      for (int32_t r = item.item; r >= 0 && states_[r] == 0; r = step.ranges[r].above) states_[r] = states;
    }
  }

  AttentionSpec spec_;
  int num_sms_;
  int64_t own_states_, most_states_;
  CostModel cost_;
  SmCosts costs_;
  StepCutter cutter_;
  PromptCuts prompts_;
  ReadCounts reads_;
  std::vector<QueuedItem> items_;
  std::vector<int32_t> ends_, ends_begin_;  // of all pieces but each item's last; [item]
  std::vector<int32_t> set_rows_, states_;  // [range] rows of the largest merge set below it; contributions of its first one
  int64_t merges_ = 0, state_rows_ = 0;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<StepPricer> MakeStepPricer(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes,
                                           const BackendTraits& traits, const MachineModel& machine) {
  if (!traits.cuts_kv || spec.deterministic || machine.sm.num_sms == 0) return nullptr;
  return std::make_unique<cuda::CutPricer>(spec, capacity, sizes, traits, machine);
}

}  // namespace coppice::attention
