// From a plan's items to the device's tasks. Layer: attention/cuda.
#include "attention/cuda/lower/plan_translator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/plan_units.h"
#include "core/check.h"

namespace coppice::attention::cuda {

PlanTranslator::PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes,
                               const SmRates& rates, const BackendTraits& traits)
    : spec_(spec),
      sizes_(sizes),
      layout_(spec, capacity, sizes, traits.workers),
      num_sms_(traits.workers),
      superblock_(kSuperblockUnits * traits.deterministic_unit),
      costs_(rates, spec, traits),
      queued_(spec, capacity, sizes, num_sms_),
      places_(layout_, sizes),
      cutter_(spec, capacity.page_size, num_sms_, sizes.max_items),
      pieces_{.now = std::vector<DeviceItem>(layout_.max_items),
              .before = std::vector<DeviceItem>(layout_.max_items),
              .same_as = std::vector<int32_t>(layout_.max_items)},
      sets_(sizes),
      plan_items_{.emitted = std::vector<Emitted>(sizes.max_items),
                  .blocks = std::vector<Blocks>(sizes.max_items),
                  .changed = std::vector<uint8_t>(sizes.max_items)},
      members_(layout_.max_members),
      contributions_(layout_.max_contributions),
      tasks_changed_{.dense = ChangedBlocks<Task>(layout_.max_tasks), .stream = ChangedBlocks<Task>(layout_.max_tasks)},
      images_(std::max(capacity.device_images, 1), DeviceImage(layout_)) {
  order_.items.reserve(pieces_.now.size());
  order_.sorting.reserve(pieces_.now.size());
  plan_items_.listed.reserve(sizes.max_items);
  piece_ends_.reserve(layout_.own_states / spec.num_kv_heads);  // a piece has a state at least
  placed_.now.reserve(pieces_.now.size());
  placed_.before.reserve(pieces_.now.size());
  changes_.reserve(members_.max_runs() + contributions_.max_runs() + tasks_changed_.dense.max_runs() +
                   tasks_changed_.stream.max_runs());
}

void PlanTranslator::TranslatePlan(const PlanView& plan, const PrefixForestView& forest) {
  // Plans keep to the sizes that they were created with, and the layout has room for all of those (PlanLayout).
  COPPICE_CHECK(std::ssize(plan.items) <= sizes_.max_items && std::ssize(plan.merge_sets) <= sizes_.max_merge_sets &&
                plan.num_states <= sizes_.max_states);
  const bool all = revision_ == 0 || plan.revision == 0 || plan.changed_since > revision_;
  revision_ = plan.revision;
  TakeChanges(plan, all);
  queued_.Collect(plan, plan_items_.listed, forest, costs_);
  CutItems(plan);
  places_.Begin(plan);
  FindChanges(plan, all);
  members_.Begin();
  contributions_.Begin();
  std::swap(pieces_.now, pieces_.before);
  counts_.items = counts_.members = counts_.emitted = 0;
  for (const QueuedItem& queued : queued_.items()) EmitItem(plan, forest, queued.item);
  OrderItems(forest);
  PlaceTasks();
  members_.End(places_.members_end());
  contributions_.End(places_.contributions_end());
  for (DeviceImage& image : images_) {
    image.dense_tasks.Add(tasks_changed_.dense);
    image.stream_tasks.Add(tasks_changed_.stream);
    image.members.Add(members_.changed());
    image.contributions.Add(contributions_.changed());
  }
  header_ = {.num_dense_tasks = static_cast<int32_t>(counts_.dense_tasks),
             .num_stream_tasks = static_cast<int32_t>(counts_.stream_tasks),
             .num_members = places_.members_end(),
             .num_contributions = places_.contributions_end(),
             .overlapped = shape_.overlapped,
             .cooperative = shape_.cooperative,
             .dense_ctas = shape_.dense_ctas};
}

void PlanTranslator::WriteImage(std::byte* image, int number) {
  DeviceImage& lacks = images_[number];
  if (!std::exchange(lacks.known, true)) {
    lacks.dense_tasks.Mark(0, counts_.dense_tasks);
    lacks.stream_tasks.Mark(0, counts_.stream_tasks);
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
  shape_.dense_ctas = num_sms_;
  shape_.cooperative = shape_.overlapped = shape_.prompts_cut = false;
  if (spec_.deterministic) return;
  const auto merges = [&] {
    return std::ranges::any_of(plan.merge_sets, [](const MergeSet& set) { return set.contribution_count > 1; });
  };
  const StepCuts cuts = cutter_.Choose(queued_.items(), merges, layout_.own_states, costs_);
  shape_.dense_ctas = cuts.split.dense_ctas;
  shape_.cooperative = cuts.stream.cooperative_piece > 0;
  shape_.overlapped = cuts.split.overlapped;
  if (random_ && !queued_.items().empty()) PartitionAtRandom();
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
    shape_.prompts_cut |= item.cut_tokens != item.tokens;
    pieces.state_begin = static_cast<int32_t>(states);
    pieces.rows = item.rows;
    states += pieces.count * item.rows * heads;
  }
}

void PlanTranslator::PartitionAtRandom() {
  const auto stream_rows = [](const QueuedItem& item) { return item.dense ? 0 : item.rows; };
  const auto widest = std::ranges::max(queued_.items(), {}, stream_rows);
  const bool dense = std::ranges::any_of(queued_.items(), &QueuedItem::dense);
  shape_.cooperative = false;
  shape_.overlapped = dense && cutter_.HasOverlap(costs_) && stream_rows(widest) <= kOverlappedRows && (*random_)() % 2 == 0;
  shape_.dense_ctas = dense ? 1 + static_cast<int32_t>((*random_)() % num_sms_) : num_sms_;
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

void PlanTranslator::TakeChanges(const PlanView& plan, bool all) {
  plan_items_.listed.clear();
  if (all) {
    for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
      plan_items_.listed.insert(plan_items_.listed.end(), queue.begin(), queue.end());
    }
  } else {
    plan_items_.listed.assign(plan.changed_items.begin(), plan.changed_items.end());
  }
}

// An item's members, and its contributions to their sets, depend on the item, on its pieces and their places, and on its sets'
// contributions and arrivals; those depend on all items of the set.
void PlanTranslator::FindChanges(const PlanView& plan, bool all) {
  std::ranges::fill(plan_items_.changed, 0);
  for (const int32_t id : plan_items_.listed) plan_items_.changed[id] = 1;
  const auto change_set = [&](int32_t set) {
    const MergeSet& of = plan.merge_sets[set];
    for (const Contribution& c : plan.contributions.subspan(of.contribution_begin, of.contribution_count))
      plan_items_.changed[c.item] = 1;
  };
  const auto listed = [&](int32_t set) {
    sets_.Change(set);
    change_set(set);
  };
  if (all) {
    for (size_t set = 0; set < plan.merge_sets.size(); ++set) listed(static_cast<int32_t>(set));
  } else {
    std::ranges::for_each(plan.changed_sets, listed);
  }
  for (const QueuedItem& queued : queued_.items()) {
    const int32_t id = queued.item;
    const ItemPieces& pieces = queued_.pieces(id);
    const Emitted now{.pieces = pieces.count,
                      .state_begin = pieces.state_begin,
                      .block_rows = pieces.block_rows,
                      .members = places_.TakeMembers(plan.items[id], pieces.count)};
    if (std::exchange(plan_items_.emitted[id], now) != now) plan_items_.changed[id] = 1;
    if (plan_items_.changed[id] != 0) PutParts(plan, id);
  }
  sets_.Place(plan, places_);
  std::ranges::for_each(sets_.changed(), change_set);
}

// Puts an item's contributions and arrivals into its sets.
void PlanTranslator::PutParts(const PlanView& plan, int32_t item_id) {
  const WorkItem& item = plan.items[item_id];
  const ItemPieces& pieces = queued_.pieces(item_id);
  BlockPacker packer(pieces.block_rows);
  for (const int32_t set : plan.members.subspan(item.member_begin, item.member_count)) {
    const int32_t rows = queued_.RowsOf(plan.merge_sets[set]), begin = packer.Add(rows);
    sets_.Put(plan, item_id, set, pieces.count, CeilDiv(begin + rows, kWarpgroupRows) - begin / kWarpgroupRows);
  }
}

// An item becomes its pieces along KV, and each of these blocks of at most kDenseRows rows, cut between members. All pieces have
// the blocks and members of the first one, with a range and states of their own.
void PlanTranslator::EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item_id) {
  const WorkItem& item = plan.items[item_id];
  const ItemPieces& pieces = queued_.pieces(item_id);
  const std::span<const int32_t> ends = PieceEnds(item_id);
  const auto first = static_cast<int32_t>(counts_.items);
  if (plan_items_.changed[item_id] != 0) {
    EmitBlocks(plan, item_id);
    ++counts_.emitted;
  } else {
    const Blocks& before = plan_items_.blocks[item_id];
    std::copy_n(&pieces_.before[before.begin], before.count, &pieces_.now[first]);
    std::iota(&pieces_.same_as[first], &pieces_.same_as[first] + before.count, before.begin);
    counts_.items += before.count;
  }
  const auto count = static_cast<int32_t>(counts_.items) - first;
  plan_items_.blocks[item_id] = {.begin = first, .count = count};
  const std::span<DeviceItem> blocks(&pieces_.now[first], static_cast<size_t>(count));
  for (DeviceItem& block : blocks) {
    block.kv_begin = item.kv_begin;
    block.kv_end = item.kv_end;
    block.page_begin = forest.branch_page_begin[item.page_row];
    block.read_once = pieces.read_once;
    block.masked = (item.flags & kItemMasked) != 0;
  }
  for (int32_t piece = 1; piece < pieces.count; ++piece) {
    COPPICE_DCHECK(counts_.items + std::ssize(blocks) <= layout_.max_items);
    for (int32_t block = 0; block < count; ++block) {
      const int32_t same = pieces_.same_as[first + block];
      pieces_.same_as[counts_.items] = same < 0 ? -1 : same + piece * count;
      DeviceItem& part = pieces_.now[counts_.items++];
      part = blocks[block];
      part.kv_begin = item.kv_begin + ends[piece - 1];
      if (piece + 1 < pieces.count) part.kv_end = item.kv_begin + ends[piece];
      part.member_begin += piece * item.member_count;
    }
  }
  counts_.members += int64_t{pieces.count} * item.member_count;
  if (pieces.count == 1) return;
  for (DeviceItem& part : blocks) part.kv_end = item.kv_begin + ends.front();
}

// The blocks of the first piece, but for what it reads, and the members of all pieces.
void PlanTranslator::EmitBlocks(const PlanView& plan, int32_t item_id) {
  const WorkItem& item = plan.items[item_id];
  const ItemPieces& pieces = queued_.pieces(item_id);
  int32_t member = plan_items_.emitted[item_id].members;
  const Blocks before = plan_items_.blocks[item_id];
  const int64_t first = counts_.items;
  DeviceItem* block = nullptr;
  BlockPacker packer(pieces.block_rows);
  int32_t rows_before = 0;  // in the piece
  for (const int32_t set_id : plan.members.subspan(item.member_begin, item.member_count)) {
    const int32_t rows = queued_.RowsOf(plan.merge_sets[set_id]), row_begin = packer.Add(rows);
    if (row_begin == 0) {
      COPPICE_DCHECK(counts_.items < layout_.max_items);
      pieces_.same_as[counts_.items] =
          counts_.items - first < before.count ? before.begin + static_cast<int32_t>(counts_.items - first) : -1;
      block = &pieces_.now[counts_.items++];
      *block = {};
      block->branch = item.page_row;
      block->member_begin = member;
      block->dense = pieces.block_rows == kDenseRows;
      block->rows_per_member = static_cast<uint16_t>(rows);
    }
    const MemberPlace place{.index = member++, .rows_before = rows_before, .row_begin = row_begin};
    if (EmitMember(plan, item_id, set_id, place) && block->member_count == 0) pieces_.same_as[counts_.items - 1] = -1;
    if (rows != block->rows_per_member) block->rows_per_member = 0;
    ++block->member_count;
    block->rows = static_cast<uint16_t>(block->rows + rows);
    rows_before += rows;
  }
}

// Writes a merge set's place to all pieces of an item, and their contributions to the set.
bool PlanTranslator::EmitMember(const PlanView& plan, int32_t item_id, int32_t set_id, MemberPlace place) {
  const WorkItem& item = plan.items[item_id];
  const ItemPieces& pieces = queued_.pieces(item_id);
  const MergeSet& set = plan.merge_sets[set_id];
  const SetTotal& of_set = sets_[set_id];
  DeviceMember member{.set = set_id,
                      .branch = set.branch,
                      .query_begin = set.query_begin,
                      .state_begin = kDirect,
                      .head_stride = 0,
                      .contribution_begin = of_set.begin,
                      .contribution_count = static_cast<uint16_t>(of_set.count),
                      .query_count = static_cast<uint16_t>(set.query_count),
                      .row_begin = static_cast<uint16_t>(place.row_begin),
                      .arrivals = static_cast<uint16_t>(of_set.arrivals)};
  if (of_set.count <= 1) return members_.Put(place.index, member);  // its only contribution: the item is whole
  int32_t at = of_set.begin;
  const Contribution* from = &plan.contributions[set.contribution_begin];
  for (; from->item != item_id; ++from) at += queued_.pieces(from->item).count;
  const bool own = pieces.count > 1;  // the plan has no states for pieces
  member.head_stride = own ? pieces.rows : from->head_stride;
  member.state_begin = own ? pieces.state_begin + place.rows_before : from->state_begin;
  bool changed = false;
  for (int32_t piece = 0; piece < pieces.count; ++piece) {
    changed |= members_.Put(place.index + int64_t{piece} * item.member_count, member);
    contributions_.Put(at + piece, {.state_begin = member.state_begin,
                                    .head_stride = static_cast<uint32_t>(member.head_stride),
                                    .begins_superblock = item.kv_begin % superblock_ == 0});
    member.state_begin += pieces.rows * spec_.num_kv_heads;
  }
  return changed;
}

// Longest first, and how many kv heads a task takes.
void PlanTranslator::OrderItems(const PrefixForestView& forest) {
  const auto tokens_of = [&](const DeviceItem& item) {
    return std::max(0, std::min(item.kv_end, forest.branch_kv_len[item.branch]) - item.kv_begin);
  };
  const auto by_length = [&](int64_t i) {
    return random_ ? static_cast<uint32_t>((*random_)()) : UINT32_MAX - static_cast<uint32_t>(tokens_of(pieces_.now[i]));
  };
  int64_t stream_items = 0;
  order_.items.clear();
  for (int64_t i = 0; i < counts_.items; ++i) {
    stream_items += !pieces_.now[i].dense;
    order_.items.push_back({.place = by_length(i), .item = static_cast<int32_t>(i)});
  }
  if (shape_.prompts_cut) {  // pieces of one length that read the same KV follow each other, so that it comes from memory once
    for (OrderedItem& ordered : order_.items) ordered.place = static_cast<uint32_t>(pieces_.now[ordered.item].kv_begin);
    SortByPlace();
    for (OrderedItem& ordered : order_.items) ordered.place = by_length(ordered.item);
  }
  SortByPlace();
  const int64_t heads = spec_.num_kv_heads;
  const int64_t per_warp = stream_items * heads / (int64_t{num_sms_} * kStreamWarpsPerSm);
  // Heads of a short item go together, so that a task is worth its start; never to more than a piece's tokens.
  const int64_t most_heads = std::clamp(per_warp / kHeadTasksPerWarp, int64_t{1}, std::min(heads, kMostTaskHeads));
  for (DeviceItem& item : std::span(pieces_.now).first(counts_.items)) {
    const int64_t work = std::max<int64_t>(tokens_of(item), 1) * (item.rows > kStreamRows / 2 ? kTwoColumnHeadWork : 1);
    item.head_count =
        static_cast<uint16_t>(shape_.cooperative || item.dense ? 1 : std::clamp(kHeadTaskTokens / work, int64_t{1}, most_heads));
  }
}

// Stable, by a byte of the places after the other, the least first: thousands of items are sorted so in half the time of a sort
// that compares.
void PlanTranslator::SortByPlace() {
  if (order_.items.empty()) return;
  const auto [least, most] = std::ranges::minmax(order_.items, {}, &OrderedItem::place);
  const uint32_t first = least.place, span = most.place - first;
  order_.sorting.resize(order_.items.size());
  for (int shift = 0; shift < 32 && span >> shift != 0; shift += 8) {
    const auto byte_of = [&](const OrderedItem& item) { return (item.place - first) >> shift & 0xff; };
    std::array<int32_t, 256> begin{};
    for (const OrderedItem& item : order_.items) ++begin[byte_of(item)];
    std::exclusive_scan(begin.begin(), begin.end(), begin.begin(), 0);
    for (const OrderedItem& item : order_.items) order_.sorting[begin[byte_of(item)]++] = item;
    std::swap(order_.items, order_.sorting);
  }
}

// Where the tasks of each item lie, and which differ from those of the plan before. Whole items are compared, not their tasks,
// which are one for each kv head.
void PlanTranslator::PlaceTasks() {
  std::swap(placed_.now, placed_.before);
  placed_.now.resize(counts_.items);
  tasks_changed_.dense.Clear();
  tasks_changed_.stream.Clear();
  counts_.dense_tasks = counts_.stream_tasks = 0;
  const auto at = [&](int64_t i) -> const DeviceItem& { return pieces_.now[order_.items[i].item]; };
  const auto same_kv = [](const DeviceItem& a, const DeviceItem& b) {
    return a.page_begin == b.page_begin && a.kv_begin == b.kv_begin;
  };
  for (int64_t begin = 0, end = 0; begin < counts_.items; begin = end) {
    while (end < counts_.items && same_kv(at(begin), at(end))) ++end;
    const auto dense_begin = static_cast<int32_t>(counts_.dense_tasks), stream_begin = static_cast<int32_t>(counts_.stream_tasks);
    bool same = end <= std::ssize(placed_.before);
    for (int64_t i = begin; i < end; ++i) {
      const DeviceItem& item = at(i);
      placed_.now[i] = {.item = order_.items[i].item,
                        .dense_begin = dense_begin,
                        .stream_begin = stream_begin,
                        .run_end = static_cast<int32_t>(end)};
      same = same && placed_.before[i].dense_begin == dense_begin && placed_.before[i].stream_begin == stream_begin &&
             placed_.before[i].run_end == end && placed_.before[i].item == pieces_.same_as[order_.items[i].item] &&
             pieces_.before[placed_.before[i].item] == item;
      (item.dense ? counts_.dense_tasks : counts_.stream_tasks) += CeilDiv(spec_.num_kv_heads, item.head_count);
    }
    if (same) continue;
    tasks_changed_.dense.Mark(dense_begin, counts_.dense_tasks);
    tasks_changed_.stream.Mark(stream_begin, counts_.stream_tasks);
  }
}

void PlanTranslator::WriteTasks(DeviceImage& lacks, std::byte* image) {
  const auto list = [&](size_t offset) {
    return [this, offset](int64_t begin, int64_t end) {
      changes_.push_back({offset + begin * sizeof(Task), offset + end * sizeof(Task)});
    };
  };
  lacks.dense_tasks.ForEachRun(counts_.dense_tasks, list(layout_.dense_tasks));
  lacks.stream_tasks.ForEachRun(counts_.stream_tasks, list(layout_.stream_tasks));
  if (changes_.empty()) return;
  for (int64_t begin = 0, end = 0; begin < counts_.items; begin = end) {
    end = placed_.now[begin].run_end;
    const int64_t dense_end = end < counts_.items ? placed_.now[end].dense_begin : counts_.dense_tasks;
    const int64_t stream_end = end < counts_.items ? placed_.now[end].stream_begin : counts_.stream_tasks;
    if (lacks.dense_tasks.Any(placed_.now[begin].dense_begin, dense_end) ||
        lacks.stream_tasks.Any(placed_.now[begin].stream_begin, stream_end)) {
      WriteRun(begin, At<Task>(image, layout_.dense_tasks), At<Task>(image, layout_.stream_tasks));
    }
  }
}

// kv heads outermost, so that the row blocks of the same KV meet in the L2.
void PlanTranslator::WriteRun(int64_t begin, Task* dense, Task* stream) const {
  const int32_t heads = spec_.num_kv_heads;
  const int64_t end = placed_.now[begin].run_end;
  dense += placed_.now[begin].dense_begin;
  stream += placed_.now[begin].stream_begin;
  const auto write = [&](const DeviceItem& item, const DeviceMember& first, int32_t head) {
    Task& task = item.dense ? *dense++ : *stream++;
    task = {.item = item, .first = first};
    task.item.head_begin = static_cast<uint16_t>(head);
    task.item.head_count = static_cast<uint16_t>(std::min<int32_t>(item.head_count, heads - head));
  };
  if (end - begin == 1) {
    const DeviceItem item = pieces_.now[placed_.now[begin].item];  // copies that no write can alias
    const DeviceMember first = members_[item.member_begin];
    for (int32_t head = 0; head < heads; head += item.head_count) write(item, first, head);
    return;
  }
  for (int32_t head = 0; head < heads; ++head) {
    for (int64_t i = begin; i < end; ++i) {
      const DeviceItem& item = pieces_.now[placed_.now[i].item];
      if (head % item.head_count == 0) write(item, members_[item.member_begin], head);
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
