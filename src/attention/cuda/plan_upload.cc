#include "attention/cuda/plan_upload.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

template <class T>
T* At(std::byte* image, size_t offset) {
  return reinterpret_cast<T*>(image + offset);
}

Status Exceeded(const char* what, int64_t have, int64_t most) {
  return ResourceExhausted("CUDA plan: " + std::to_string(have) + " " + what + "; the sizes given at creation allow " +
                           std::to_string(most) + "; create the plan with a larger capacity");
}

}  // namespace

PlanLayout::PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes) {
  // Cutting an item into blocks of rows begins a block at a member: at most one block more for each.
  max_items = int64_t{sizes.max_items} + sizes.max_members;
  max_tasks = max_items * spec.num_kv_heads;
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
  reserve(members, sizes.max_members, sizeof(DeviceMember));
  reserve(merge_sets, sizes.max_merge_sets, sizeof(DeviceMergeSet));
  reserve(contributions, sizes.max_contributions, sizeof(DeviceContribution));
  reserve(tree_mask, capacity.max_queries, sizeof(uint64_t));
  reserve(page_indices, capacity.max_page_slots, sizeof(int32_t));
  bytes = used;
}

PlanTranslator::PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int stream_warps)
    : spec_(spec), sizes_(sizes), layout_(spec, capacity, sizes), stream_warps_(stream_warps) {
  first_block_.resize(sizes.max_items + 1);
  arrivals_.resize(sizes.max_merge_sets);
}

Status PlanTranslator::TranslatePlan(const PlanView& plan, const PrefixForestView& forest, std::byte* image) {
  if (std::ssize(plan.items) > sizes_.max_items) return Exceeded("items", std::ssize(plan.items), sizes_.max_items);
  if (std::ssize(plan.members) > sizes_.max_members) return Exceeded("members", std::ssize(plan.members), sizes_.max_members);
  if (std::ssize(plan.merge_sets) > sizes_.max_merge_sets) {
    return Exceeded("merge sets", std::ssize(plan.merge_sets), sizes_.max_merge_sets);
  }
  if (std::ssize(plan.contributions) > sizes_.max_contributions) {
    return Exceeded("contributions", std::ssize(plan.contributions), sizes_.max_contributions);
  }
  if (plan.num_states > sizes_.max_states) return Exceeded("states", plan.num_states, sizes_.max_states);

  for (size_t s = 0; s < plan.merge_sets.size(); ++s) {
    const MergeSet& set = plan.merge_sets[s];
    At<DeviceMergeSet>(image, layout_.merge_sets)[s] = {.branch = set.branch,
                                                        .query_begin = set.query_begin,
                                                        .contribution_begin = set.contribution_begin,
                                                        .contribution_count = set.contribution_count};
  }
  for (size_t c = 0; c < plan.contributions.size(); ++c) {
    At<DeviceContribution>(image, layout_.contributions)[c] = {.state_begin = plan.contributions[c].state_begin,
                                                               .head_stride = plan.contributions[c].head_stride};
  }
  num_items_ = 0;
  std::ranges::fill(arrivals_, 0);
  // Only queued items are run: pools of a plan edited in place may hold others.
  std::ranges::fill(first_block_, -1);
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    for (const int32_t item : queue) COPPICE_RETURN_IF_ERROR(CutItem(plan, forest, item, image));
  }
  for (int64_t i = 0; i < num_items_; ++i) {
    const DeviceItem& block = At<DeviceItem>(image, layout_.items)[i];
    for (int32_t m = block.member_begin; m < block.member_begin + block.member_count; ++m) {
      DeviceMember& member = At<DeviceMember>(image, layout_.members)[m];
      member.arrivals = arrivals_[member.set];
    }
  }
  LayOutTasks(plan, image);
  return OkStatus();
}

// Cuts an item between members into blocks that a tile holds.
Status PlanTranslator::CutItem(const PlanView& plan, const PrefixForestView& forest, int32_t item_id, std::byte* image) {
  const WorkItem& item = plan.items[item_id];
  first_block_[item_id] = static_cast<int32_t>(num_items_);
  DeviceItem* block = nullptr;
  const auto rows_of = [&](int32_t m) { return plan.merge_sets[plan.members[m]].query_count * spec_.group_size(); };
  for (int32_t m = item.member_begin; m < item.member_begin + item.member_count; ++m) {
    const int32_t set_id = plan.members[m];
    const MergeSet& set = plan.merge_sets[set_id];
    const int32_t rows = rows_of(m);
    if (block == nullptr || block->rows + rows > kDenseRows) {
      if (num_items_ == layout_.max_items) return Exceeded("row blocks", num_items_ + 1, layout_.max_items);
      block = &At<DeviceItem>(image, layout_.items)[num_items_++];
      *block = {.kv_begin = item.kv_begin,
                .kv_end = item.kv_end,
                .page_begin = forest.branch_page_begin[item.page_row],
                .branch = item.page_row,
                .member_begin = m,
                .member_count = 0,
                .rows = 0,
                .rows_per_member = static_cast<uint16_t>(rows),
                .masked = static_cast<uint16_t>((item.flags & kItemMasked) != 0),
                .reserved = 0};
    }
    DeviceMember member{.set = set_id,
                        .branch = set.branch,
                        .query_begin = set.query_begin,
                        .query_count = set.query_count,
                        .row_begin = block->rows,
                        .state_begin = kDirect,
                        .head_stride = 0,
                        .arrivals = 0};
    if (set.contribution_count > 1) {
      for (int32_t c = set.contribution_begin; c < set.contribution_begin + set.contribution_count; ++c) {
        if (plan.contributions[c].item != item_id) continue;
        member.state_begin = plan.contributions[c].state_begin;
        member.head_stride = plan.contributions[c].head_stride;
      }
    }
    At<DeviceMember>(image, layout_.members)[m] = member;
    if (rows != block->rows_per_member) block->rows_per_member = 0;
    ++block->member_count;
    block->rows = static_cast<uint16_t>(block->rows + rows);
  }
  // One ticket for each warpgroup that holds rows of a set; a stream tile is one warp.
  for (int64_t i = first_block_[item_id]; i < num_items_; ++i) {
    const DeviceItem& b = At<DeviceItem>(image, layout_.items)[i];
    for (int32_t m = b.member_begin; m < b.member_begin + b.member_count; ++m) {
      const DeviceMember& member = At<DeviceMember>(image, layout_.members)[m];
      const int32_t last_row = member.row_begin + member.query_count * spec_.group_size() - 1;
      arrivals_[member.set] += 1 + (last_row / 64 - member.row_begin / 64);
    }
  }
  return OkStatus();
}

// Longest first, as the queues are; kv heads outermost within a run of items over the same KV, so that its row blocks meet in the L2.
void PlanTranslator::LayOutTasks(const PlanView& plan, std::byte* image) {
  DeviceItem* items = At<DeviceItem>(image, layout_.items);
  Task* dense = At<Task>(image, layout_.dense_tasks);
  Task* stream = At<Task>(image, layout_.stream_tasks);
  num_dense_ = num_stream_ = 0;
  int64_t stream_blocks = 0;
  for (int64_t i = 0; i < num_items_; ++i) stream_blocks += items[i].rows <= kStreamRows;
  constexpr int64_t kTasksPerWarp = 4;  // left to each stream warp, for balance
  const int64_t heads = spec_.num_kv_heads;
  const int64_t heads_per_task = std::clamp(stream_blocks * heads / (kTasksPerWarp * stream_warps_), int64_t{1}, heads);

  // Device items lie in queue order, the blocks of one item side by side.
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
  *At<PlanHeader>(image, layout_.header) = {
      .num_dense_tasks = static_cast<int32_t>(num_dense_), .num_stream_tasks = static_cast<int32_t>(num_stream_)};
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
