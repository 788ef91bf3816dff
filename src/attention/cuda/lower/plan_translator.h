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
#include "attention/cuda/lower/set_totals.h"
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
  // rates: of the machine's card, whatever part of it traits.workers are. traits: of the kernel (TraitsOf).
  PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, const SmRates& rates,
                 const BackendTraits& traits);

  const PlanLayout& layout() const { return layout_; }
  // Goes by what the plan says of its changes since the one translated before: items are emitted again where they, their pieces or
  // the places of a set changed. REQUIRES: revisions of one plan; within the sizes given at creation, as a Planner's always are.
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
  int32_t SetStates(int32_t set) const { return sets_[set].count; }
  int64_t num_items() const { return num_items_; }
  int64_t num_members() const { return num_members_; }
  int64_t num_contributions() const { return sets_.num_contributions(); }
  // Items of the plan last translated whose members were emitted again.
  int64_t num_emitted() const { return num_emitted_; }
  int64_t num_dense_tasks() const { return num_dense_; }
  int64_t num_stream_tasks() const { return num_stream_; }

 private:
  // A plan item as it was emitted last: what its members and the shape of its blocks depend on beside itself and its sets.
  struct Emitted {
    int32_t pieces = 0, state_begin = 0, block_rows = 0, members = 0;
    bool operator==(const Emitted&) const = default;
  };
  // Its blocks, under the first piece.
  struct Blocks {
    int32_t begin = 0, count = 0;  // of items_
  };
  // Of a member in the first piece of its item.
  struct MemberPlace {
    int64_t index;        // in the image
    int32_t rows_before;  // in the piece
    int32_t row_begin;    // in its block
  };
  // An item in task order. Those that begin with the same KV follow each other, and their tasks too: a run.
  struct PlacedItem {
    int32_t item;  // of items_
    int32_t dense_begin, stream_begin, run_end;
  };
  struct OrderedItem {
    uint32_t place;  // the first one first
    int32_t item;    // of items_
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
  void TakeChanges(const PlanView& plan, bool all);
  void CutItems(const PlanView& plan);
  // Appends the ends of a range's pieces.
  void CutAtRandom(const QueuedItem& item, int64_t most);
  void DivideAtRandom();
  // Marks the items that are emitted again. all: of whatever was before nothing is known.
  void FindChanges(const PlanView& plan, bool all);
  void PutParts(const PlanView& plan, int32_t item);
  void EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item);
  void EmitBlocks(const PlanView& plan, int32_t item);
  // Whether the member of any piece is another than before.
  bool EmitMember(const PlanView& plan, int32_t item, int32_t set, MemberPlace place);
  void OrderItems(const PrefixForestView& forest);
  void SortByPlace();
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
  bool prompts_cut_ = false;               // tiles of one prompt have several pieces
  PlanHeader header_{};                    // but for what changes with every step
  uint64_t revision_ = 0;                  // of the plan translated last; 0: unknown
  int64_t num_items_ = 0, num_members_ = 0, num_emitted_ = 0, num_dense_ = 0, num_stream_ = 0;
  std::vector<DeviceItem> items_, items_before_;  // pieces and blocks, in queue order; of the plan before
  std::vector<int32_t> same_as_;              // [items_] the one of items_before_ that it may equal, whose first member it has; -1
  std::vector<OrderedItem> order_, sorting_;  // of items_: longest first, and as they stand
  SetTotals sets_;
  std::vector<Emitted> emitted_;        // [plan item]
  std::vector<Blocks> blocks_;          // [plan item]
  std::vector<int32_t> changed_items_;  // of the plan, as it says
  std::vector<uint8_t> changed_;        // [plan item] to be emitted again
  std::vector<int32_t> piece_ends_;     // of all items, see ItemPieces
  KeptArray<DeviceMember> members_;
  KeptArray<DeviceContribution> contributions_;
  std::vector<PlacedItem> placed_, placed_before_;  // in task order; of the plan before
  ChangedBlocks<Task> dense_changed_, stream_changed_;
  std::vector<DeviceImage> images_;
  std::vector<ByteRange> changes_;
};

}  // namespace coppice::attention::cuda
