// Translates a plan and the forest's live arrays into the form that the kernel reads (plan_device.h): items cut into pieces and
// blocks of at most kDenseRows rows, tasks laid out so that blocks which read the same KV run side by side, states and tickets
// resolved per member. What is joined, divided and cut is decided in queued_items, sm_division and kv_cuts. Host memory only;
// plan_executor.cc copies what changed. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "attention/cuda/lower/changed_blocks.h"
#include "attention/cuda/lower/plan_image.h"
#include "attention/cuda/lower/plan_places.h"
#include "attention/cuda/lower/queued_items.h"
#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_cuts.h"
#include "attention/cuda/plan_device.h"
#include "attention/machine_model.h"
#include "attention/plan_units.h"
#include "attention/work_list.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Writes the images of a plan: of the first one all, of another what differs, since the device has the rest. A device has one image
// or several (PlanCapacity::device_images), written in turn: each gets what changed since it was written. Allocates in its
// constructor only. Live items keep their open end in the last piece.
class PlanTranslator {
 public:
  // rates: of the machine's card, whatever part of it num_sms is. kv_tile: tokens of a dense step of the kernel.
  PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, const SmRates& rates, int num_sms,
                 int kv_tile, int32_t deterministic_unit = kDeterministicUnit);

  const PlanLayout& layout() const { return layout_; }
  // REQUIRES: the plan is within the sizes given at creation, as a Planner's always are.
  void TranslatePlan(const PlanView& plan, const PrefixForestView& forest);
  // For tests: plans translated from now on are cut and ordered at random, and SMs divided so, in place of what is fastest.
  // Whatever is drawn is a plan that a kernel must run right.
  void LowerAtRandom(uint64_t seed) { random_.emplace(seed); }
  // Writes what device image `number` lacks of the plan last translated to `image`, any block of memory of the layout's size, and
  // lists it.
  void WriteImage(std::byte* image, int number = 0);
  // What WriteImage wrote.
  std::span<const ByteRange> changes() const { return changes_; }
  // The device image may lack what was written: the next time all of it is.
  void Forget(int number) { images_[number].known = false; }
  // Header, branches and draft masks of the plan last translated, to whatever image; page rows are copied by the caller.
  void TranslateLengths(const PrefixForestView& forest, std::byte* image) const;

  // Of the plan last translated.
  const PlanHeader& header() const { return header_; }
  const QueuedItems& queued() const { return queued_; }
  int num_sms() const { return num_sms_; }
  const AttentionSpec& spec() const { return spec_; }
  bool team() const { return team_; }
  bool side() const { return side_; }
  // Where the pieces of a queued item but the last one end, from where it begins.
  std::span<const int32_t> PieceEnds(int32_t item) const {
    const ItemPieces& pieces = queued_.pieces(item);
    return std::span(piece_ends_).subspan(pieces.ends_begin, pieces.count - 1);
  }
  // Contributions of a merge set, pieces counted one by one.
  int32_t SetStates(int32_t set) const { return set_contributions_[set].count; }
  int64_t num_items() const { return num_items_; }
  int64_t num_members() const { return num_members_; }
  int64_t num_contributions() const { return num_contributions_; }
  int64_t num_dense_tasks() const { return num_dense_; }
  int64_t num_stream_tasks() const { return num_stream_; }

 private:
  // Of a merge set, an item's pieces in place of the item.
  struct SetContributions {
    int32_t begin, count;
  };
  // Of a member in the first piece of its item.
  struct MemberPlace {
    int64_t index;        // in the image
    int32_t rows_before;  // in the piece
    int32_t row_begin;    // in its block
  };
  // An item in task order. Those that begin with the same KV follow each other, and their tasks too: a run.
  struct PlacedItem {
    Task task;  // under the first kv heads
    int32_t dense_begin, stream_begin, run_end;
  };
  // What a device image lacks of what was translated.
  struct DeviceImage {
    explicit DeviceImage(const PlanLayout& layout)
        : dense_tasks(layout.max_tasks),
          stream_tasks(layout.max_tasks),
          members(layout.max_members),
          contributions(layout.max_contributions) {}
    bool known = false;  // it has the rest
    ChangedBlocks<Task> dense_tasks, stream_tasks;
    ChangedBlocks<DeviceMember> members;
    ChangedBlocks<DeviceContribution> contributions;
  };
  void CutItems(const PlanView& plan);
  // Appends the ends of a range's pieces.
  void CutAtRandom(const QueuedItem& item, int64_t most);
  void DivideAtRandom();
  void PlaceContributions(const PlanView& plan);
  void CountArrivals(const PlanView& plan);
  void EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item);
  void EmitMember(const PlanView& plan, int32_t item, int32_t set, MemberPlace place);
  void OrderItems(const PrefixForestView& forest);
  void PlaceTasks();
  void WriteTasks(DeviceImage& lacks, std::byte* image);
  // Tasks of a run of items, from `begin` on.
  void WriteRun(int64_t begin, Task* dense, Task* stream) const;

  AttentionSpec spec_;
  PlanSizes sizes_;
  PlanLayout layout_;
  int num_sms_;
  int32_t superblock_;  // of deterministic mode
  SmCosts costs_;
  QueuedItems queued_;
  PlanPlaces places_;
  StepCutter cutter_;
  std::optional<std::mt19937_64> random_;  // see LowerAtRandom
  int32_t dense_ctas_ = 0;                 // CTAs that take dense tasks
  bool team_ = false;                      // the stream warps of a CTA read each task together
  bool side_ = false;                      // CTAs take stream tasks beside their dense ones
  PlanHeader header_{};                    // but for what changes with every step
  int64_t num_items_ = 0, num_members_ = 0, num_contributions_ = 0, num_dense_ = 0, num_stream_ = 0;
  std::vector<DeviceItem> items_;                    // pieces and blocks, in queue order
  std::vector<uint64_t> order_;                      // of items_: longest first, and as they stand
  std::vector<SetContributions> set_contributions_;  // [merge set]
  std::vector<int32_t> arrivals_;                    // [merge set]
  std::vector<int32_t> piece_ends_;                  // of all items, see ItemPieces
  KeptArray<DeviceMember> members_;
  KeptArray<DeviceContribution> contributions_;
  std::vector<PlacedItem> placed_, placed_before_;  // in task order; of the plan before
  ChangedBlocks<Task> dense_changed_, stream_changed_;
  std::vector<DeviceImage> images_;
  std::vector<ByteRange> changes_;
};

}  // namespace coppice::attention::cuda
