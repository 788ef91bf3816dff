#include "attention/cuda/plan_upload.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

constexpr int64_t kTasksPerStreamWarp = 3;  // enough to even out, few enough that their fixed cost stays small
constexpr int32_t kMinPieceTokens = 256;    // a shorter piece costs more to start than it evens out

template <class T>
T* At(std::byte* image, size_t offset) {
  return reinterpret_cast<T*>(image + offset);
}

Status Exceeded(const char* what, int64_t have, int64_t most) {
  return ResourceExhausted("CUDA plan: " + std::to_string(have) + " " + what + "; the sizes given at creation allow " +
                           std::to_string(most) + "; create the plan with a larger capacity");
}

}  // namespace

PlanLayout::PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int stream_warps) {
  max_pieces = kTasksPerStreamWarp * stream_warps / spec.num_kv_heads + 1;
  max_contributions = sizes.max_contributions + max_pieces;
  max_members = max_contributions;  // a member is a contribution seen from its item
  // Cutting an item into blocks of rows begins a block at a member: at most one block more for each.
  max_items = sizes.max_items + max_contributions;
  max_tasks = max_items * spec.num_kv_heads;
  max_states = sizes.max_states + max_pieces * kStreamRows * spec.num_kv_heads;
  size_t used = 0;
  const auto reserve = [&](size_t& offset, int64_t count, size_t each) {
    offset = used;
    used = (used + static_cast<size_t>(count) * each + 255) / 256 * 256;
  };
  reserve(header, 1, sizeof(PlanHeader));
  reserve(branches, capacity.max_branches, sizeof(DeviceBranch));
  reserve(dense_tasks, max_tasks, sizeof(Task));
  reserve(stream_tasks, max_tasks, sizeof(Task));
  reserve(items, max_items, sizeof(DeviceItem));
  reserve(members, max_members, sizeof(DeviceMember));
  reserve(merge_sets, sizes.max_merge_sets, sizeof(DeviceMergeSet));
  reserve(contributions, max_contributions, sizeof(DeviceContribution));
  reserve(tree_mask, capacity.max_queries, sizeof(uint64_t));
  reserve(page_indices, capacity.max_page_slots, sizeof(int32_t));
  bytes = used;
}

PlanTranslator::PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int stream_warps)
    : spec_(spec), sizes_(sizes), layout_(spec, capacity, sizes, stream_warps), stream_warps_(stream_warps) {
  pieces_.resize(sizes.max_items);
  arrivals_.resize(sizes.max_merge_sets);
}

Status PlanTranslator::TranslatePlan(const PlanView& plan, const PrefixForestView& forest, std::byte* image) {
  if (std::ssize(plan.items) > sizes_.max_items) return Exceeded("items", std::ssize(plan.items), sizes_.max_items);
  if (std::ssize(plan.merge_sets) > sizes_.max_merge_sets) {
    return Exceeded("merge sets", std::ssize(plan.merge_sets), sizes_.max_merge_sets);
  }
  if (plan.num_states > sizes_.max_states) return Exceeded("states", plan.num_states, sizes_.max_states);

  CutStreamItems(plan, forest);
  COPPICE_RETURN_IF_ERROR(EmitContributions(plan, image));
  num_items_ = num_members_ = 0;
  std::ranges::fill(arrivals_, 0);
  // Only queued items are run: the pools of a plan that is edited in place hold others too.
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    for (const int32_t item : queue) COPPICE_RETURN_IF_ERROR(EmitItem(plan, forest, item, image));
  }
  DeviceMember* members = At<DeviceMember>(image, layout_.members);
  for (int64_t m = 0; m < num_members_; ++m) members[m].arrivals = arrivals_[members[m].set];
  EmitTasks(image);
  return OkStatus();
}

int32_t PlanTranslator::EndOf(const WorkItem& item, const PrefixForestView& forest) const {
  return std::min(item.kv_end, forest.branch_kv_len[item.page_row]);
}

// Decides how many pieces each stream item is cut into.
void PlanTranslator::CutStreamItems(const PlanView& plan, const PrefixForestView& forest) {
  std::ranges::fill(pieces_, Pieces{});
  int64_t tokens = 0, left = layout_.max_pieces;
  const auto for_each_stream_item = [&](const auto& body) {
    for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
      for (const int32_t id : queue) {
        const WorkItem& item = plan.items[id];
        int32_t rows = 0;
        for (int32_t m = 0; m < item.member_count && rows <= kStreamRows; ++m) {
          rows += RowsOf(plan.merge_sets[plan.members[item.member_begin + m]]);
        }
        if (rows <= kStreamRows) body(id, item, rows, std::max(0, EndOf(item, forest) - item.kv_begin));
      }
    }
  };
  for_each_stream_item([&](int32_t, const WorkItem&, int32_t, int32_t length) { tokens += length; });
  const int64_t grain =
      std::max<int64_t>(kMinPieceTokens, tokens * spec_.num_kv_heads / (kTasksPerStreamWarp * stream_warps_) + 1);
  int32_t states = plan.num_states;
  for_each_stream_item([&](int32_t id, const WorkItem& item, int32_t rows, int32_t length) {
    // Rounded to the nearest count: half a grain evens out nothing.
    const int64_t count = std::min<int64_t>((length + grain / 2) / grain, left / std::max(item.member_count, 1));
    if (count <= 1) return;
    left -= count * item.member_count;
    const auto piece = static_cast<int32_t>((length + count - 1) / count + 63) / 64 * 64;
    pieces_[id] = {.count = (length + piece - 1) / piece, .tokens = piece, .state_begin = states, .rows = rows};
    states += pieces_[id].count * rows * spec_.num_kv_heads;
  });
}

// The contributions of each set, an item's pieces in place of the item.
Status PlanTranslator::EmitContributions(const PlanView& plan, std::byte* image) {
  num_contributions_ = 0;
  for (size_t s = 0; s < plan.merge_sets.size(); ++s) {
    const MergeSet& set = plan.merge_sets[s];
    DeviceMergeSet& to = At<DeviceMergeSet>(image, layout_.merge_sets)[s];
    to = {.branch = set.branch,
          .query_begin = set.query_begin,
          .contribution_begin = static_cast<int32_t>(num_contributions_),
          .contribution_count = 0};
    for (int32_t c = set.contribution_begin; c < set.contribution_begin + set.contribution_count; ++c) {
      const Contribution& from = plan.contributions[c];
      to.contribution_count += pieces_[from.item].count;
      num_contributions_ += pieces_[from.item].count;
    }
    if (num_contributions_ > layout_.max_contributions) {
      return Exceeded("contributions", num_contributions_, layout_.max_contributions);
    }
  }
  return OkStatus();
}

// An item becomes its pieces along KV, and each of these blocks of at most kDenseRows rows, cut between members.
Status PlanTranslator::EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item_id, std::byte* image) {
  const WorkItem& item = plan.items[item_id];
  const Pieces& pieces = pieces_[item_id];
  DeviceContribution* contributions = At<DeviceContribution>(image, layout_.contributions);
  for (int32_t piece = 0; piece < pieces.count; ++piece) {
    DeviceItem* block = nullptr;
    int32_t rows_before = 0;  // in the piece
    for (int32_t m = item.member_begin; m < item.member_begin + item.member_count; ++m) {
      const int32_t set_id = plan.members[m];
      const MergeSet& set = plan.merge_sets[set_id];
      const DeviceMergeSet& device_set = At<DeviceMergeSet>(image, layout_.merge_sets)[set_id];
      const int32_t rows = RowsOf(set);
      if (block == nullptr || block->rows + rows > kDenseRows) {
        if (num_items_ == layout_.max_items) return Exceeded("row blocks", num_items_ + 1, layout_.max_items);
        block = &At<DeviceItem>(image, layout_.items)[num_items_++];
        *block = {.kv_begin = item.kv_begin + piece * pieces.tokens,
                  .kv_end = piece + 1 < pieces.count ? item.kv_begin + (piece + 1) * pieces.tokens : item.kv_end,
                  .page_begin = forest.branch_page_begin[item.page_row],
                  .branch = item.page_row,
                  .member_begin = static_cast<int32_t>(num_members_),
                  .member_count = 0,
                  .rows = 0,
                  .rows_per_member = static_cast<uint16_t>(rows),
                  .masked = static_cast<uint16_t>((item.flags & kItemMasked) != 0),
                  .reserved = 0};
      }
      if (num_members_ == layout_.max_members) return Exceeded("members", num_members_ + 1, layout_.max_members);
      DeviceMember member{.set = set_id,
                          .branch = set.branch,
                          .query_begin = set.query_begin,
                          .query_count = set.query_count,
                          .row_begin = block->rows,
                          .state_begin = kDirect,
                          .head_stride = 0,
                          .arrivals = 0};
      if (device_set.contribution_count > 1) {
        int32_t at = device_set.contribution_begin;
        for (int32_t c = set.contribution_begin; c < set.contribution_begin + set.contribution_count; ++c) {
          const Contribution& from = plan.contributions[c];
          if (from.item != item_id) {
            at += pieces_[from.item].count;
            continue;
          }
          const bool own = pieces.count > 1;  // the plan has no states for pieces
          member.head_stride = own ? pieces.rows : from.head_stride;
          member.state_begin =
              own ? pieces.state_begin + piece * pieces.rows * spec_.num_kv_heads + rows_before : from.state_begin;
          contributions[at + piece] = {.state_begin = member.state_begin, .head_stride = member.head_stride};
          break;
        }
      }
      // One ticket for each warpgroup that holds rows of the set; a stream tile is one warp.
      arrivals_[set_id] += 1 + ((member.row_begin + rows - 1) / 64 - member.row_begin / 64);
      At<DeviceMember>(image, layout_.members)[num_members_++] = member;
      if (rows != block->rows_per_member) block->rows_per_member = 0;
      ++block->member_count;
      block->rows = static_cast<uint16_t>(block->rows + rows);
      rows_before += rows;
    }
  }
  return OkStatus();
}

// In the order of the queues, longest first; kv heads outermost within a run of items over the same KV, so that its row blocks meet in
// the L2.
void PlanTranslator::EmitTasks(std::byte* image) {
  DeviceItem* items = At<DeviceItem>(image, layout_.items);
  Task* dense = At<Task>(image, layout_.dense_tasks);
  Task* stream = At<Task>(image, layout_.stream_tasks);
  num_dense_ = num_stream_ = 0;
  int64_t stream_blocks = 0;
  for (int64_t i = 0; i < num_items_; ++i) stream_blocks += items[i].rows <= kStreamRows;
  const int64_t heads = spec_.num_kv_heads;
  const int64_t heads_per_task = std::clamp(stream_blocks * heads / (2 * kTasksPerStreamWarp * stream_warps_), int64_t{1}, heads);
  const auto same_kv = [](const DeviceItem& a, const DeviceItem& b) {
    return a.page_begin == b.page_begin && a.kv_begin == b.kv_begin && a.kv_end == b.kv_end;
  };
  for (int64_t begin = 0, end = 0; begin < num_items_; begin = end) {
    while (end < num_items_ && same_kv(items[begin], items[end])) ++end;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = begin; i < end; ++i) {
        const auto item = static_cast<int32_t>(i);
        if (items[i].rows > kStreamRows) {
          dense[num_dense_++] = {.item = item, .head_begin = static_cast<uint16_t>(head), .head_count = 1};
        } else if (head % heads_per_task == 0) {
          stream[num_stream_++] = {.item = item,
                                   .head_begin = static_cast<uint16_t>(head),
                                   .head_count = static_cast<uint16_t>(std::min(heads_per_task, heads - head))};
        }
      }
    }
  }
  *At<PlanHeader>(image, layout_.header) = {.num_dense_tasks = static_cast<int32_t>(num_dense_),
                                            .num_stream_tasks = static_cast<int32_t>(num_stream_)};
}

void PlanTranslator::TranslateLengths(const PrefixForestView& forest, std::byte* image) const {
  DeviceBranch* branches = At<DeviceBranch>(image, layout_.branches);
  for (size_t b = 0; b < forest.branch_kv_len.size(); ++b) {
    branches[b] = {.kv_len = forest.branch_kv_len[b],
                   .query_begin = forest.branch_query_begin[b],
                   .query_count = forest.branch_query_count[b],
                   .reserved = 0};
  }
  std::memcpy(image + layout_.tree_mask, forest.query_tree_mask.data(), forest.query_tree_mask.size_bytes());
  At<PlanHeader>(image, layout_.header)->has_tree_mask = !forest.query_tree_mask.empty();
}

}  // namespace coppice::attention::cuda
