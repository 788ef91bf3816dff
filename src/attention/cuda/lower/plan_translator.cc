// From a plan's items to the device's tasks. Layer: attention/cuda.
#include "attention/cuda/lower/plan_translator.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/plan_units.h"
#include "core/check.h"

namespace coppice::attention::cuda {

PlanTranslator::PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes,
                               const SmRates& rates, int num_sms, int kv_tile, int32_t deterministic_unit)
    : spec_(spec),
      sizes_(sizes),
      layout_(spec, capacity, sizes, num_sms),
      num_sms_(num_sms),
      superblock_(kSuperblockUnits * deterministic_unit),
      costs_(rates, spec, kv_tile),
      queued_(spec, capacity, sizes, num_sms),
      places_(layout_, sizes),
      cutter_(spec, num_sms, sizes.max_items),
      items_(layout_.max_items),
      set_contributions_(sizes.max_merge_sets),
      arrivals_(sizes.max_merge_sets),
      members_(layout_.max_members),
      contributions_(layout_.max_contributions),
      dense_changed_(layout_.max_tasks),
      stream_changed_(layout_.max_tasks),
      images_(std::max(capacity.device_images, 1), DeviceImage(layout_)) {
  order_.reserve(items_.size());
  piece_ends_.reserve(layout_.own_states / spec.num_kv_heads);  // a piece has a state at least
  placed_.reserve(items_.size());
  placed_before_.reserve(items_.size());
  changes_.reserve(members_.max_runs() + contributions_.max_runs() + dense_changed_.max_runs() + stream_changed_.max_runs());
}

void PlanTranslator::TranslatePlan(const PlanView& plan, const PrefixForestView& forest) {
  // Plans keep to the sizes that they were created with, and the layout has room for all of those (PlanLayout).
  COPPICE_CHECK(std::ssize(plan.items) <= sizes_.max_items && std::ssize(plan.merge_sets) <= sizes_.max_merge_sets &&
                plan.num_states <= sizes_.max_states);
  queued_.Collect(plan, forest, costs_);
  CutItems(plan);
  places_.Begin(plan);
  PlaceContributions(plan);
  CountArrivals(plan);
  members_.Begin();
  contributions_.Begin();
  num_items_ = num_members_ = 0;
  for (const QueuedItem& queued : queued_.items()) EmitItem(plan, forest, queued.item);
  OrderItems(forest);
  PlaceTasks();
  members_.End(places_.members_end());
  contributions_.End(places_.contributions_end());
  for (DeviceImage& image : images_) {
    image.dense_tasks.Add(dense_changed_);
    image.stream_tasks.Add(stream_changed_);
    image.members.Add(members_.changed());
    image.contributions.Add(contributions_.changed());
  }
  header_ = {.num_dense_tasks = static_cast<int32_t>(num_dense_),
             .num_stream_tasks = static_cast<int32_t>(num_stream_),
             .num_members = places_.members_end(),
             .num_contributions = places_.contributions_end(),
             .side = side_,
             .team = team_,
             .dense_ctas = dense_ctas_};
}

void PlanTranslator::WriteImage(std::byte* image, int number) {
  DeviceImage& lacks = images_[number];
  if (!std::exchange(lacks.known, true)) {
    lacks.dense_tasks.Mark(0, num_dense_);
    lacks.stream_tasks.Mark(0, num_stream_);
    lacks.members.Mark(0, members_.reach());
    lacks.contributions.Mark(0, contributions_.reach());
  }
  changes_.clear();
  WriteTasks(lacks, image);
  members_.Write(lacks.members, image, layout_.members, changes_);
  contributions_.Write(lacks.contributions, image, layout_.contributions, changes_);
  lacks.dense_tasks.Clear();
  lacks.stream_tasks.Clear();
  lacks.members.Clear();
  lacks.contributions.Clear();
}

// Decides how many pieces each item is cut into. Deterministic mode defines its cuts itself.
void PlanTranslator::CutItems(const PlanView& plan) {
  piece_ends_.clear();
  dense_ctas_ = num_sms_;
  team_ = side_ = false;
  if (spec_.deterministic) return;
  const auto merges = [&] {
    return std::ranges::any_of(plan.merge_sets, [&](const MergeSet& set) {
      int32_t items = 0;
      for (const Contribution& c : plan.contributions.subspan(set.contribution_begin, set.contribution_count)) {
        items += queued_.pieces(c.item).count;
      }
      return items > 1;
    });
  };
  const StepCuts cuts = cutter_.Choose(queued_.items(), merges, layout_.own_states, costs_);
  dense_ctas_ = cuts.division.dense_ctas;
  team_ = cuts.stream.team_piece > 0;
  side_ = cuts.division.side;
  if (random_ && !queued_.items().empty()) DivideAtRandom();
  const int64_t heads = spec_.num_kv_heads;
  int64_t states = plan.num_states;
  const int64_t end_of_states = sizes_.max_states + layout_.own_states;
  for (const QueuedItem& item : queued_.items()) {
    const int64_t most = std::min(kMostPieces, (end_of_states - states) / (item.rows * heads));
    ItemPieces& pieces = queued_.pieces(item.item);
    pieces.ends_begin = static_cast<int32_t>(piece_ends_.size());
    random_ ? CutAtRandom(item, most) : CutRange(item, cuts, most, costs_, piece_ends_);
    pieces.count = static_cast<int32_t>(piece_ends_.size()) - pieces.ends_begin + 1;
    if (pieces.count == 1) continue;
    pieces.state_begin = static_cast<int32_t>(states);
    pieces.rows = item.rows;
    states += pieces.count * item.rows * heads;
  }
}

void PlanTranslator::DivideAtRandom() {
  const auto stream_rows = [](const QueuedItem& item) { return item.dense ? 0 : item.rows; };
  const auto widest = std::ranges::max(queued_.items(), {}, stream_rows);
  const bool dense = std::ranges::any_of(queued_.items(), &QueuedItem::dense);
  team_ = false;
  side_ = dense && HasSideTiles(spec_, costs_.kv_tile()) && stream_rows(widest) <= kSideRows && (*random_)() % 2 == 0;
  dense_ctas_ = dense ? 1 + static_cast<int32_t>((*random_)() % num_sms_) : num_sms_;
}

void PlanTranslator::CutAtRandom(const QueuedItem& item, int64_t most) {
  const int32_t unit = item.dense ? costs_.dense_piece_unit() : kStreamStepTokens;
  const uint64_t one_in = 1 + (*random_)() % 8;
  for (int32_t end = unit; end < item.tokens && most > 1; end += unit) {
    if ((*random_)() % one_in != 0) continue;
    piece_ends_.push_back(end);
    --most;
  }
}

// The contributions of each set, an item's pieces in place of the item.
void PlanTranslator::PlaceContributions(const PlanView& plan) {
  num_contributions_ = 0;
  for (size_t s = 0; s < plan.merge_sets.size(); ++s) {
    const MergeSet& set = plan.merge_sets[s];
    SetContributions& to = set_contributions_[s];
    to = {};
    for (int32_t c = set.contribution_begin; c < set.contribution_begin + set.contribution_count; ++c) {
      const Contribution& from = plan.contributions[c];
      to.count += queued_.pieces(from.item).count;
    }
    COPPICE_CHECK(to.count <= kMaxSetContributions);
    to.begin = places_.TakeContributions(set, to.count);
    num_contributions_ += to.count;
  }
}

// Tickets that complete each set: one for each warpgroup that holds rows of it, in every piece; a stream tile is one warp.
void PlanTranslator::CountArrivals(const PlanView& plan) {
  std::ranges::fill(arrivals_, 0);
  for (const QueuedItem& queued : queued_.items()) {
    const WorkItem& item = plan.items[queued.item];
    const ItemPieces& pieces = queued_.pieces(queued.item);
    int32_t begin = 0;  // in the block of rows
    for (const int32_t set : plan.members.subspan(item.member_begin, item.member_count)) {
      const int32_t rows = queued_.RowsOf(plan.merge_sets[set]);
      if (begin + rows > pieces.block_rows) begin = 0;
      arrivals_[set] += pieces.count * (1 + ((begin + rows - 1) / 64 - begin / 64));
      begin += rows;
    }
  }
}

// An item becomes its pieces along KV, and each of these blocks of at most kDenseRows rows, cut between members. All pieces have
// the blocks and members of the first one, with a range and states of their own.
void PlanTranslator::EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item_id) {
  const WorkItem& item = plan.items[item_id];
  const ItemPieces& pieces = queued_.pieces(item_id);
  const int64_t first = num_items_;
  int32_t member = places_.TakeMembers(item, pieces.count);
  DeviceItem* block = nullptr;
  int32_t rows_before = 0;  // in the piece
  for (const int32_t set_id : plan.members.subspan(item.member_begin, item.member_count)) {
    const int32_t rows = queued_.RowsOf(plan.merge_sets[set_id]);
    if (block == nullptr || block->rows + rows > pieces.block_rows) {
      COPPICE_DCHECK(num_items_ < layout_.max_items);
      block = &items_[num_items_++];
      *block = {.kv_begin = pieces.kv_begin,
                .kv_end = pieces.kv_end,
                .page_begin = forest.branch_page_begin[item.page_row],
                .branch = item.page_row,
                .member_begin = member,
                .member_count = 0,
                .rows = 0,
                .dense = pieces.block_rows == kDenseRows,
                .read_once = pieces.read_once,
                .masked = pieces.masked,
                .rows_per_member = static_cast<uint16_t>(rows),
                .head_begin = 0,
                .head_count = static_cast<uint16_t>(spec_.num_kv_heads)};
    }
    EmitMember(plan, item_id, set_id, {.index = member++, .rows_before = rows_before, .row_begin = block->rows});
    if (rows != block->rows_per_member) block->rows_per_member = 0;
    ++block->member_count;
    block->rows = static_cast<uint16_t>(block->rows + rows);
    rows_before += rows;
  }
  const std::span<DeviceItem> blocks(&items_[first], static_cast<size_t>(num_items_ - first));
  const std::span<const int32_t> ends = PieceEnds(item_id);
  for (int32_t piece = 1; piece < pieces.count; ++piece) {
    COPPICE_DCHECK(num_items_ + std::ssize(blocks) <= layout_.max_items);
    for (const DeviceItem& whole : blocks) {
      DeviceItem& part = items_[num_items_++];
      part = whole;
      part.kv_begin = pieces.kv_begin + ends[piece - 1];
      if (piece + 1 < pieces.count) part.kv_end = pieces.kv_begin + ends[piece];
      part.member_begin += piece * item.member_count;
    }
  }
  num_members_ += int64_t{pieces.count} * item.member_count;
  if (pieces.count == 1) return;
  for (DeviceItem& part : blocks) part.kv_end = pieces.kv_begin + ends.front();
}

// Writes a merge set's place to all pieces of an item, and their contributions to the set.
void PlanTranslator::EmitMember(const PlanView& plan, int32_t item_id, int32_t set_id, MemberPlace place) {
  const WorkItem& item = plan.items[item_id];
  const ItemPieces& pieces = queued_.pieces(item_id);
  const MergeSet& set = plan.merge_sets[set_id];
  const SetContributions& of_set = set_contributions_[set_id];
  DeviceMember member{.set = set_id,
                      .branch = set.branch,
                      .query_begin = set.query_begin,
                      .state_begin = kDirect,
                      .head_stride = 0,
                      .contribution_begin = of_set.begin,
                      .contribution_count = static_cast<uint16_t>(of_set.count),
                      .query_count = static_cast<uint16_t>(set.query_count),
                      .row_begin = static_cast<uint16_t>(place.row_begin),
                      .arrivals = static_cast<uint16_t>(arrivals_[set_id])};
  if (of_set.count <= 1) {  // its only contribution: the item is whole
    members_.Put(place.index, member);
    return;
  }
  int32_t at = of_set.begin;
  const Contribution* from = &plan.contributions[set.contribution_begin];
  for (; from->item != item_id; ++from) at += queued_.pieces(from->item).count;
  const bool own = pieces.count > 1;  // the plan has no states for pieces
  member.head_stride = own ? pieces.rows : from->head_stride;
  member.state_begin = own ? pieces.state_begin + place.rows_before : from->state_begin;
  for (int32_t piece = 0; piece < pieces.count; ++piece) {
    members_.Put(place.index + int64_t{piece} * item.member_count, member);
    contributions_.Put(at + piece, {.state_begin = member.state_begin,
                                    .head_stride = static_cast<uint32_t>(member.head_stride),
                                    .begins_superblock = item.kv_begin % superblock_ == 0});
    member.state_begin += pieces.rows * spec_.num_kv_heads;
  }
}

// Longest first, and how many kv heads a task takes.
void PlanTranslator::OrderItems(const PrefixForestView& forest) {
  const auto tokens_of = [&](const DeviceItem& item) {
    return std::max(0, std::min(item.kv_end, forest.branch_kv_len[item.branch]) - item.kv_begin);
  };
  int64_t stream_items = 0;
  order_.clear();
  for (int64_t i = 0; i < num_items_; ++i) {
    stream_items += !items_[i].dense;
    const uint32_t place = random_ ? static_cast<uint32_t>((*random_)()) : UINT32_MAX - static_cast<uint32_t>(tokens_of(items_[i]));
    order_.push_back(uint64_t{place} << 32 | static_cast<uint64_t>(i));
  }
  std::ranges::sort(order_);
  const int64_t heads = spec_.num_kv_heads;
  const int64_t per_warp = stream_items * heads / (int64_t{num_sms_} * kStreamWarpsPerSm);
  // Heads of a short item go together, so that a task is worth its start; never to more than a piece's tokens.
  const int64_t most_heads = std::clamp(per_warp / kHeadTasksPerWarp, int64_t{1}, std::min<int64_t>(heads, 8));
  for (DeviceItem& item : std::span(items_).first(num_items_)) {
    const int64_t work = std::max<int64_t>(tokens_of(item), 1) * (item.rows > 8 ? 8 : 1);  // many rows: more to store and to fold
    item.head_count = static_cast<uint16_t>(team_ || item.dense ? 1 : std::clamp(kHeadTaskTokens / work, int64_t{1}, most_heads));
  }
}

// Where the tasks of each item lie, and which differ from those of the plan before. Whole items are compared, not their tasks,
// which are one for each kv head.
void PlanTranslator::PlaceTasks() {
  std::swap(placed_, placed_before_);
  placed_.resize(num_items_);
  dense_changed_.Clear();
  stream_changed_.Clear();
  num_dense_ = num_stream_ = 0;
  const auto at = [&](int64_t i) -> const DeviceItem& { return items_[order_[i] & UINT32_MAX]; };
  const auto same_kv = [](const DeviceItem& a, const DeviceItem& b) {
    return a.page_begin == b.page_begin && a.kv_begin == b.kv_begin;
  };
  for (int64_t begin = 0, end = 0; begin < num_items_; begin = end) {
    while (end < num_items_ && same_kv(at(begin), at(end))) ++end;
    const auto dense_begin = static_cast<int32_t>(num_dense_), stream_begin = static_cast<int32_t>(num_stream_);
    bool same = end <= std::ssize(placed_before_);
    for (int64_t i = begin; i < end; ++i) {
      const DeviceItem& item = at(i);
      PlacedItem& placed = placed_[i];
      placed = {.task = {.item = item, .first = members_[item.member_begin]},
                .dense_begin = dense_begin,
                .stream_begin = stream_begin,
                .run_end = static_cast<int32_t>(end)};
      same = same && placed_before_[i].dense_begin == dense_begin && placed_before_[i].stream_begin == stream_begin &&
             placed_before_[i].run_end == end && placed_before_[i].task == placed.task;
      (item.dense ? num_dense_ : num_stream_) += CeilDiv(spec_.num_kv_heads, item.head_count);
    }
    if (same) continue;
    dense_changed_.Mark(dense_begin, num_dense_);
    stream_changed_.Mark(stream_begin, num_stream_);
  }
}

void PlanTranslator::WriteTasks(DeviceImage& lacks, std::byte* image) {
  const auto list = [&](size_t offset) {
    return [this, offset](int64_t begin, int64_t end) {
      changes_.push_back({offset + begin * sizeof(Task), offset + end * sizeof(Task)});
    };
  };
  lacks.dense_tasks.ForEachRun(num_dense_, list(layout_.dense_tasks));
  lacks.stream_tasks.ForEachRun(num_stream_, list(layout_.stream_tasks));
  if (changes_.empty()) return;
  for (int64_t begin = 0, end = 0; begin < num_items_; begin = end) {
    end = placed_[begin].run_end;
    const int64_t dense_end = end < num_items_ ? placed_[end].dense_begin : num_dense_;
    const int64_t stream_end = end < num_items_ ? placed_[end].stream_begin : num_stream_;
    if (lacks.dense_tasks.Any(placed_[begin].dense_begin, dense_end) ||
        lacks.stream_tasks.Any(placed_[begin].stream_begin, stream_end)) {
      WriteRun(begin, At<Task>(image, layout_.dense_tasks), At<Task>(image, layout_.stream_tasks));
    }
  }
}

// kv heads outermost, so that the row blocks of the same KV meet in the L2.
void PlanTranslator::WriteRun(int64_t begin, Task* dense, Task* stream) const {
  const int32_t heads = spec_.num_kv_heads;
  const int64_t end = placed_[begin].run_end;
  dense += placed_[begin].dense_begin;
  stream += placed_[begin].stream_begin;
  const auto write = [&](const Task& item, int32_t head) {
    Task& task = item.item.dense ? *dense++ : *stream++;
    task = item;
    task.item.head_begin = static_cast<uint16_t>(head);
    task.item.head_count = static_cast<uint16_t>(std::min<int32_t>(item.item.head_count, heads - head));
  };
  if (end - begin == 1) {
    const Task item = placed_[begin].task;  // a copy that no write can alias
    for (int32_t head = 0; head < heads; head += item.item.head_count) write(item, head);
    return;
  }
  for (int32_t head = 0; head < heads; ++head) {
    for (int64_t i = begin; i < end; ++i) {
      if (const Task& item = placed_[i].task; head % item.item.head_count == 0) write(item, head);
    }
  }
}

void PlanTranslator::TranslateLengths(const PrefixForestView& forest, std::byte* image) const {
  DeviceBranch* branches = At<DeviceBranch>(image, layout_.branches);
  PlanHeader header = header_;
  header.num_branches = static_cast<int32_t>(forest.branch_kv_len.size());
  int32_t num_queries = 0;
  for (size_t b = 0; b < forest.branch_kv_len.size(); ++b) {
    const int32_t begin = forest.branch_query_begin[b], count = forest.branch_query_count[b];
    branches[b] = {.kv_len = forest.branch_kv_len[b],
                   .query_begin = begin,
                   .query_count = forest.branch_node[b] == kFreeSlot ? 0 : count,
                   .page_begin = forest.branch_page_begin[b]};
    num_queries = std::max(num_queries, forest.branch_node[b] == kFreeSlot ? 0 : begin + count);
  }
  header.num_queries = num_queries;
  if (!forest.query_tree_mask.empty()) {
    std::memcpy(image + layout_.tree_mask, forest.query_tree_mask.data(), forest.query_tree_mask.size_bytes());
  }
  header.has_tree_mask = !forest.query_tree_mask.empty();
  *At<PlanHeader>(image, layout_.header) = header;
}

}  // namespace coppice::attention::cuda
