// Translates a plan and the forest's live arrays into the form that the kernel reads (plan_device.h): items cut into pieces and
// blocks of at most kDenseRows rows, tasks laid out so that blocks which read the same KV run side by side, states and tickets
// resolved per member. queued_items, sm_partition and kv_cuts decide on joins, the partition and cuts. Host memory only;
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
  // For tests: plans translated from now on are cut, ordered and partitioned at random, in place of the fastest way.
  // Every draw is a plan that a kernel must run right.
  void LowerAtRandom(uint64_t seed) { random_.emplace(seed); }
  // Writes what device image `number` lacks of the plan last translated to `image`, any block of memory of the layout's size, and
  // lists it.
  void WriteImage(std::byte* image, int number = 0);
  // The parts that WriteImage wrote.
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
  bool cooperative() const { return shape_.cooperative; }
  bool overlapped() const { return shape_.overlapped; }
  // Where the pieces of a queued item but the last one end, from where it begins.
  std::span<const int32_t> PieceEnds(int32_t item) const {
    const ItemPieces& pieces = queued_.pieces(item);
    return std::span(piece_ends_).subspan(pieces.ends_begin, pieces.count - 1);
  }
  // Contributions of a merge set, pieces counted one by one.
  int32_t SetStates(int32_t set) const { return sets_[set].count; }
  int64_t num_items() const { return counts_.items; }
  int64_t num_members() const { return counts_.members; }
  int64_t num_contributions() const { return sets_.num_contributions(); }
  // Items of the plan last translated whose members were emitted again.
  int64_t num_emitted() const { return counts_.emitted; }
  int64_t num_dense_tasks() const { return counts_.dense_tasks; }
  int64_t num_stream_tasks() const { return counts_.stream_tasks; }

 private:
  // A plan item as it was emitted last: what its members and the shape of its blocks depend on beside itself and its sets.
  struct Emitted {
    int32_t pieces = 0, state_begin = 0, block_rows = 0, members = 0;
    bool operator==(const Emitted&) const = default;
  };
  // Its blocks, under the first piece.
  struct Blocks {
    int32_t begin = 0, count = 0;  // of PieceList::now
  };
  // Of a member in the first piece of its item.
  struct MemberPlace {
    int64_t index;        // in the image
    int32_t rows_before;  // in the piece
    int32_t row_begin;    // in its block
  };
  // An item in task order. Those that begin with the same KV follow each other, and their tasks too: a run.
  struct PlacedItem {
    int32_t item;  // of PieceList::now
    int32_t dense_begin, stream_begin, run_end;
  };
  struct OrderedItem {
    uint32_t place;  // the first one first
    int32_t item;    // of PieceList::now
  };
  // Parts of the translation that a device image lacks.
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
  // How the CTAs of a launch take the plan's tasks.
  struct Shape {
    int32_t dense_ctas = 0;    // that take dense tasks
    bool cooperative = false;  // the stream warps of a CTA read each task together
    bool overlapped = false;   // CTAs overlap stream tasks with their dense ones
    bool prompts_cut = false;  // tiles of one prompt have several pieces
  };
  struct Counts {
    int64_t items = 0, members = 0, emitted = 0, dense_tasks = 0, stream_tasks = 0;
  };
  // Pieces and blocks, in queue order; those of the plan before.
  struct PieceList {
    std::vector<DeviceItem> now, before;
    std::vector<int32_t> same_as;  // [now] the one of `before` that it may equal, whose first member it has; -1
  };
  struct TaskOrder {
    std::vector<OrderedItem> items, sorting;  // of PieceList::now: longest first, and as they stand
  };
  struct PlanItems {  // [plan item]
    std::vector<Emitted> emitted;
    std::vector<Blocks> blocks;
    std::vector<uint8_t> changed;  // to be emitted again
    std::vector<int32_t> listed;   // those that changed, as the plan says
  };
  struct Placed {
    std::vector<PlacedItem> now, before;  // in task order; of the plan before
  };
  struct TasksChanged {
    ChangedBlocks<Task> dense, stream;
  };
  void TakeChanges(const PlanView& plan, bool all);
  void CutItems(const PlanView& plan);
  // Appends the ends of a range's pieces.
  void CutAtRandom(const QueuedItem& item, int64_t most);
  void PartitionAtRandom();
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
  Shape shape_;
  PlanHeader header_{};    // but for what changes with every step
  uint64_t revision_ = 0;  // of the plan translated last; 0: unknown
  Counts counts_;
  PieceList pieces_;
  TaskOrder order_;
  SetTotals sets_;
  PlanItems plan_items_;
  std::vector<int32_t> piece_ends_;  // of all items, see ItemPieces
  KeptArray<DeviceMember> members_;
  KeptArray<DeviceContribution> contributions_;
  Placed placed_;
  TasksChanged tasks_changed_;
  std::vector<DeviceImage> images_;
  std::vector<ByteRange> changes_;
};

}  // namespace coppice::attention::cuda
