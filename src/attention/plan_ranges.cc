// What each shared node and each row tile reads, and how ranges are cut along KV, along rows and into blocks of kv heads. Layer:
// attention.
#include "attention/plan.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <utility>

#include "attention/plan_stages.h"

namespace coppice::attention {
namespace {

// Tasks a worker should have, so that longest-first order evens out the rest.
constexpr double kTasksPerWorker = 3;
// A piece is no shorter than this multiple of what cutting it off costs: on a GPU, and where steps are sums, which do not know how
// far a state has to go between cores.
constexpr double kMinPieceOverhead = 4, kMinSumPieceOverhead = 6;
// A task takes several kv heads until it lasts this many starts.
constexpr double kMinTaskStarts = 8;
// Rounding of a leaf's own tokens, see PlannedClass.
constexpr uint32_t kShortestLeaf = 64, kShortLeaf = 512;
// The power of 2^(1/4) at or above `value`: changes by at least 19 %, so that small edits leave it alone.
double Quantise(double value) { return value <= 0 ? 0 : std::exp2(std::ceil(4 * std::log2(value)) / 4); }

}  // namespace

// What kLive is taken to be when times are predicted: the leaf's own tokens rounded up to a step, so that growth changes it rarely.
// Octaves up to 512 tokens, where fixed costs dominate; a quarter of that above.
Planner::LengthClass Planner::PlannedClass(int32_t leaf_begin, int32_t kv_len) const {
  const int32_t ahead = options_.lookahead_tokens / 2;
  const uint32_t own = static_cast<uint32_t>(std::max(0, kv_len - leaf_begin) + ahead);
  const uint32_t fine_step = std::bit_floor(own) / 4;
  const uint32_t planned =
      own <= kShortLeaf ? std::max(kShortestLeaf, std::bit_ceil(own)) : (own + fine_step - 1) / fine_step * fine_step;
  const uint32_t step = planned == kShortestLeaf ? kShortestLeaf
                        : planned <= kShortLeaf  ? planned / 2
                                                 : std::bit_floor(planned - 1) / 4;
  const int32_t last = leaf_begin + static_cast<int32_t>(planned) - ahead;
  return {.first = planned == kShortestLeaf ? INT32_MIN : last - static_cast<int32_t>(step) + 1,
          .last = last,
          .planned = last + ahead,
          .typical = last - std::min(last - leaf_begin, static_cast<int32_t>(step)) / 2};  // of those with tokens of their own
}

int32_t Planner::VisibleBegin(int32_t min_query) const {
  if (spec_.window == 0) return 0;
  return AlignDown(std::max(0, min_query - spec_.window + 1), window_unit_);
}

// From the roots down: what each shared node and each row tile reads. An absorbed node's tokens go to whoever is below it.
void Planner::AssignRanges() {
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    node.range_begin = p == kNoParent ? 0 : nodes_[p].range_below;
    const int32_t range_below = node.shared() ? node.share_end : node.range_begin;
    if (range_below != std::exchange(node.range_below, range_below)) MarkChildren(n);
    if (node.shared()) {
      Owner owner{Geometry{.begin = std::max(node.range_begin, VisibleBegin(node.min_query)),
                           .end = node.share_end,
                           .rows = node.rows,
                           .num_sets = node.num_sets}};
      owner.planned_end = node.share_end;
      owner.cached_end = node.chain_begin;
      owner.min_query = node.min_query;
      owner.max_query = node.max_query;
      owner.step_ps = Picoseconds(OwnerLoad(owner, 1).RooflineNs());
      SetOwner(n, owner);
    } else if (owners_[n].rows > 0) {
      SetOwner(n, {});
    }
    for (int32_t b : BranchesAt(n)) {
      const int32_t kv_len = index_->kv_len[b], first = kv_len - index_->query_count[b];
      const bool grows = Grows(b);
      ForEachTile(b, [&](const Tile& tile) {
        const int32_t min_query = first + tile.first_query, end = min_query + tile.num_queries;
        Owner owner{Geometry{.begin = std::max(range_below, VisibleBegin(min_query)),
                             .end = tile.last ? kLive : end,
                             .rows = tile.num_queries * spec_.group_size(),
                             .num_sets = tile.num_sets}};
        owner.planned_end = std::max(grows ? PlannedClass(index_->begin[n], kv_len).planned : end, owner.begin);
        owner.cached_end = node.num_consumers == 1 ? node.chain_begin : node.share_end;
        owner.min_query = min_query;
        owner.max_query = end - 1;
        owner.step_ps = Picoseconds(OwnerLoad(owner, 1).RooflineNs());
        const bool nothing_left = !IsLive(n) && owner.begin >= kv_len;  // the shared node has all of it
        SetOwner(tile.owner, nothing_left ? Owner{} : owner);
      });
    }
  });
}

Planner::RowCosts Planner::ComputeRowCosts(int32_t rows) const {
  const double compute_ns = cost_.ComputeNs(rows);
  const double token_ns = std::max(cost_.ReadNs(), compute_ns) * cost_.workers() / spec_.num_kv_heads;
  const double cut_ns =
      cost_.task_fixed_ns() + (cost_.DenseStartNs(rows) + cost_.StateNs(rows)) * cost_.workers() / spec_.num_kv_heads;
  const double shortest = (cost_.has_latencies() ? kMinPieceOverhead : kMinSumPieceOverhead) * cut_ns / token_ns;
  return {.rows = rows,
          .row_groups = static_cast<int32_t>(cost_.RowGroups(rows)),
          .shortest_piece = std::max(2 * traits_.kv_tile, static_cast<int32_t>(std::min(shortest, 1e9))),
          .dense_tasks = cost_.DenseTasks(rows),
          .computed_rows = cost_.ComputedRows(rows),
          .compute_ps = Picoseconds(compute_ns),
          .compute_ns = compute_ns,
          .token_ns = token_ns};
}

// What an owner's range costs if it is cut into this many pieces; its first row group reads what others do not from memory.
Load Planner::OwnerLoad(const Owner& owner, int32_t pieces) const {
  const RowCosts& costs = CostsOf(owner.rows);
  const int32_t groups = std::max(owner.row_groups, costs.row_groups), tokens = owner.planned_end - owner.begin;
  const int32_t cached = std::clamp(owner.cached_end - owner.begin, 0, tokens);
  Load load{.memory_ns = (tokens - cached) * cost_.ReadNs(),
            .compute_ns = tokens * costs.compute_ns,
            .overhead_ns = groups * pieces * cost_.ItemNs() + pieces * cost_.DenseStartNs(owner.rows)};
  if (cached > 0 || groups > 1) load.memory_ns += (cached + double{1} * tokens * (groups - 1)) * cost_.RereadNs(tokens);
  return load;
}

// No task should be long beside a worker's part of the step.
void Planner::SetGrain() {
  const double grain =
      std::max(Quantise(static_cast<double>(step_ps_) * 1e-3 / kTasksPerWorker), kMinTaskStarts * cost_.task_fixed_ns()) *
      (1 << pressure_);
  if (grain != grain_ns_) MarkAll();
  grain_ns_ = grain;
}

// Cuts ranges to the grain and adds up what the layout needs.
void Planner::SplitOwners() {
  ForEachDirty([&](int32_t n) {
    NodePlan& node = nodes_[n];
    const int32_t p = index_->parent[n];
    const int32_t above = p == kNoParent ? 0 : nodes_[p].num_contributions;
    Owner& owner = owners_[n];
    Needs needs;
    if (owner.rows > 0) {
      owner.contributions_above = above;
      ShapeOwner(owner, n);
      const bool ends_here = !IsLive(n) && node.share_end == index_->end[n] && BranchesAt(n).size() == BranchesBelow(n).size();
      owner.writes_states = above + owner.pieces > 1 || !ends_here;
      needs = NeedsOf(owner);
    } else if (node.absorbed()) {  // its first reader
      needs.memory_ps = Picoseconds(node.tokens * (cost_.ReadNs() - cost_.RereadNs(node.tokens)));
    }
    SetNeeds(n, needs);
    const int32_t contributions = above + owner.pieces;
    if (contributions != std::exchange(node.num_contributions, contributions)) MarkChildren(n);
    for (int32_t b : BranchesAt(n)) {
      ForEachTile(b, [&](const Tile& tile) {
        Owner& own = owners_[tile.owner];
        own.contributions_above = contributions;
        if (own.rows > 0) ShapeOwner(own, tile.owner);
        const int32_t total = contributions + own.pieces;
        own.writes_states = total > 1;
        Needs own_needs = NeedsOf(own);
        own_needs.contributions = tile.num_sets * BlockPool::Rounded(total);
        own_needs.too_deep = traits_.max_set_contributions > 0 && total > traits_.max_set_contributions;
        if (total > 1) own_needs.overhead_ps += Picoseconds(tile.num_sets * cost_.MergeNs());
        SetNeeds(tile.owner, own_needs);
      });
    }
  });
}

Planner::Needs Planner::NeedsOf(const Owner& owner) const {
  if (owner.pieces == 0) return {};
  const Load load = OwnerLoad(owner, owner.pieces);
  Needs needs{.memory_ps = Picoseconds(load.memory_ns),
              .compute_ps = Picoseconds(load.compute_ns),
              .overhead_ps = Picoseconds(load.overhead_ns),
              .items = BlockPool::Rounded(owner.num_items()),
              .members = BlockPool::Rounded(owner.num_sets)};
  if (owner.writes_states) {
    const int64_t states = int64_t{owner.pieces} * owner.rows;
    needs.states = states > sizes_.max_states ? states : BlockPool::Rounded(static_cast<int32_t>(states));  // more never fit
    needs.overhead_ps += Picoseconds(owner.pieces * cost_.StateNs(owner.rows));
  }
  return needs;
}

bool Planner::Fits() const {
  return total_needs_.too_deep == 0 && total_needs_.items <= sizes_.max_items && total_needs_.members <= sizes_.max_members &&
         total_needs_.contributions <= sizes_.max_contributions && total_needs_.states <= sizes_.max_states / spec_.num_kv_heads;
}

// Pieces along KV, groups along the rows, kv heads per task.
void Planner::ShapeOwner(Owner& owner, int32_t owner_id) const {
  const int32_t tokens = owner.planned_end - owner.begin;
  const RowCosts& all_rows = CostsOf(owner.rows);
  // Of one head on one worker. Where steps are sums, what the step counts: tokens that others read too come from the cache.
  const double whole_ns = cost_.has_latencies() ? tokens * all_rows.token_ns + cost_.task_fixed_ns()
                                                : static_cast<double>(owner.step_ps) * 1e-3 * cost_.workers() / spec_.num_kv_heads;
  int32_t wanted = all_rows.row_groups, groups = wanted;
  if (whole_ns > groups * grain_ns_) {
    wanted = static_cast<int32_t>(std::min(whole_ns / grain_ns_, 65536.0)) + 1;
    // Cutting rows reads the range again, from the cache; cutting KV writes more states. Take the cheaper. Whoever forces sharing
    // wants each token read once.
    const int32_t by_rows = std::min(wanted, static_cast<int32_t>(CeilDiv(owner.rows, traits_.dense_tile_rows)));
    if (by_rows > groups && !options_.force_sharing) {
      const double reread_ns = double{1} * (by_rows - groups) * tokens * cost_.RereadNs(tokens);
      const double state_ns = static_cast<double>(CeilDiv(wanted, groups) - 1) * cost_.StateNs(owner.rows);
      if (reread_ns <= state_ns) groups = by_rows;
    }
  }
  owner.row_groups = 1;
  owner.group_rows = INT32_MAX;
  if (groups > 1) {
    owner.group_rows = RoundUp(static_cast<int32_t>(CeilDiv(owner.rows, groups)), traits_.dense_tile_rows);
    if (traits_.max_item_rows > 0) owner.group_rows = std::min(owner.group_rows, traits_.max_item_rows);
    owner.row_groups = 0;
    ForEachRowGroup(owner_id, owner.group_rows, [&](const RowGroup&) { ++owner.row_groups; });
  }
  const RowCosts& group = owner.row_groups == 1 ? all_rows : CostsOf(static_cast<int32_t>(CeilDiv(owner.rows, owner.row_groups)));
  int32_t pieces = 1;
  if (wanted > owner.row_groups && pressure_ < kMaxPressure && (!traits_.cuts_kv || spec_.deterministic)) {
    // A backend that cuts for itself runs blocks of rows apart.
    const int64_t blocks = traits_.cuts_kv ? CeilDiv(owner.rows, traits_.dense_tile_rows) : 1;
    pieces = std::clamp(static_cast<int32_t>(CeilDiv(wanted, std::max<int64_t>(owner.row_groups, blocks))), 1,
                        std::max(1, tokens / group.shortest_piece));
  }
  CutRange(owner, owner_id >= capacity_.max_nodes, pieces);

  const double piece_ns = group.token_ns * tokens / owner.pieces + cost_.task_fixed_ns();
  const double least = kMinTaskStarts * cost_.task_fixed_ns();
  const int32_t heads = least <= piece_ns ? 1 : static_cast<int32_t>(std::min(least / piece_ns + 1, grain_ns_ / piece_ns));
  const int32_t most =
      traits_.max_heads_per_task > 0 ? std::min(traits_.max_heads_per_task, spec_.num_kv_heads) : spec_.num_kv_heads;
  owner.heads_per_task = std::clamp(heads, 1, most);
}

// Cuts at absolute multiples: of the KV tile, or where deterministic mode allows (plan.h, (a) to (d)).
void Planner::CutRange(Owner& owner, bool is_tile, int32_t pieces) const {
  owner.unit_pieces = 0;
  if (!spec_.deterministic) {
    owner.pieces = 1;
    owner.first_cut = owner.chunk = 0;
    if (pieces == 1) return;
    const int32_t base = AlignDown(owner.begin, traits_.kv_tile);
    owner.chunk =
        std::max(traits_.kv_tile, RoundUp(static_cast<int32_t>(CeilDiv(owner.planned_end - base, pieces)), traits_.kv_tile));
    owner.first_cut = base + owner.chunk;
    owner.pieces = std::max(1, static_cast<int32_t>(CeilDiv(owner.planned_end - base, owner.chunk)));
    return;
  }
  const int32_t superblock = kSuperblockUnits * share_unit_;
  owner.chunk = superblock;
  if (is_tile && owner.contributions_above == 0 && pieces == 1) {  // (d)
    owner.pieces = 1;
    owner.first_cut = owner.chunk = 0;
    return;
  }
  // A live range is laid out as far as it may grow before the next Update: HoldLengths holds no length but the present one.
  const int32_t end = owner.end == kLive ? RoundUp(owner.max_query + 1 + options_.lookahead_tokens, share_unit_) : owner.end;
  owner.first_cut = RoundUp(owner.begin, superblock);
  // (b) units up to the next superblock, (a) superblocks from there on.
  owner.unit_pieces = static_cast<int32_t>(CeilDiv(std::min(owner.first_cut, end) - owner.begin, share_unit_));
  const int32_t superblocks = static_cast<int32_t>(CeilDiv(std::max(0, end - owner.first_cut), superblock));
  owner.pieces = std::max(1, owner.unit_pieces + superblocks);
  if (owner.unit_pieces > 0) return;
  if (traits_.cuts_kv && superblocks == 1 && pieces > 1) {  // (a) its even part of the units, and (b) the others
    const auto units = static_cast<int32_t>(CeilDiv(end - owner.begin, share_unit_));
    const auto first_units = static_cast<int32_t>(CeilDiv(units, pieces));
    owner.pieces = 1 + units - first_units;
    owner.first_cut = owner.begin + first_units * share_unit_;
    owner.chunk = share_unit_;
    return;
  }
  int32_t first_superblocks = 1;
  if (owner.contributions_above == 0) {  // (c): the first item takes the whole superblocks that need no cut, or its even part
    const int32_t whole = (end - owner.begin) / superblock;
    const auto even = static_cast<int32_t>(CeilDiv(superblocks, pieces));
    first_superblocks = std::clamp(traits_.cuts_kv ? even : superblocks - pieces + 1, 1, std::max(1, whole));
    owner.pieces = std::max(1, 1 + superblocks - first_superblocks);
  }
  owner.first_cut = owner.begin + first_superblocks * superblock;
}

int32_t Planner::PieceBegin(const Owner& owner, int32_t piece) const {
  if (piece == 0) return owner.begin;
  if (piece < owner.unit_pieces) return owner.begin + piece * share_unit_;
  return owner.first_cut + (piece - std::max(1, owner.unit_pieces)) * owner.chunk;
}

}  // namespace coppice::attention
