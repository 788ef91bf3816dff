#include "attention/cuda/plan_upload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>

#include "attention/cuda/kernel_config.h"
#include "attention/plan_units.h"
#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

constexpr int64_t kTasksPerStreamWarp = 8;  // most, by cutting
// Stream items are cut guided: a piece is half of what is left of its item, between these shares of a warp's part of all. Longest
// first, the last pieces to be drawn are the shortest and even out the end (docs/kernels/hopper.md).
constexpr double kLongestStreamPiece = 0.55, kShortestStreamPiece = 0.5;
constexpr int64_t kHeadTasksPerWarp = 3;  // left when kv heads are put together
constexpr int64_t kHeadTaskTokens = 128;  // most, of all kv heads put together (tree 4: 0.147 ms; 256: 0.163)
constexpr int32_t kMinStreamPiece = 256, kMaxShortStreamPiece = 512;  // tokens; a short piece costs more to start than it evens out
// Where an SM has less than that to read, time is latency: a step of a lone warp takes 1.5 us, and other SMs are idle. The shortest
// piece is this share of an SM's part then.
constexpr int32_t kMinStreamPieceOfFew = 64;
constexpr double kShortestPieceOfSm = 0.3;
// Where each SM can have a stream task of its own, and no more, its warps read it as a team, a step each in turn: as much at once
// as with a task a warp, but an eighth of the states to fold (docs/kernels/hopper.md, "Teams"). A step of a short task:
constexpr int64_t kShortTeamStepNs = 2600;
constexpr int32_t kMinDensePiece = 128;  // at least, and whole steps
constexpr int64_t kDenseTasksPerSm = 4;  // most, by cutting
constexpr int64_t kSimulatedTasksPerSm = 6;

// What an SM does alone, fitted to whole launches (docs/kernels/hopper.md, "SMs divided"): dense tiles at 740 TFLOP/s over 132 SMs;
// starting a dense task and storing and folding its states; bulk copies. All together read no faster than the memory. A launch
// takes so much more than its work: its beginning, the first KV, the end of the last tasks.
constexpr double kDenseFlopsPerNs = 740e3 / 132, kDenseTaskNs = 4600, kSmBytesPerNs = 65, kMemoryBytesPerNs = 4.4e3;
constexpr double kLaunchNs = 20000;
// Dense tokens take so much longer if all other SMs stream, or longer still if the memory cannot give both what they ask for.
constexpr double kSlowedByStreams = 0.48;
constexpr double kStreamBytesPerNs = kMemoryBytesPerNs / 132;
// When SMs are divided into those that compute and those that stream: the fewest that compute, how far apart the numbers tried are,
// pieces tried (that are at most so much worse where all SMs compute), and the fewest tasks of a streaming warp, below which its
// last one decides when the step ends.
constexpr double kFewestComputing = 0.45, kSmsApart = 0.12, kPieceWorthTrying = 1.05;
constexpr int64_t kTasksOfStreamingWarp = 5;
constexpr double kWorthChanging = 0.99;  // another choice, against the one before it
// Where dense tiles end in this part of the step, streaming beside them is no risk: division must only be as good.
constexpr double kDenseSoonDone = 0.3, kAsGood = 1.001;
// A stream task occupies its warp, one of kStreamWarpsPerSm, for each step of 32 tokens and for its latencies, which are shorter
// once the dense tasks are done, since it is the last of its sets then and folds from shared memory. And the price of a task where
// dense tiles could do the same.
constexpr double kStreamStepNs = 1850, kStreamTaskBesideDenseNs = 1300, kStreamTaskNs = 1000, kStreamPriceNs = 20000;
// Tokens of a stream task whose warp has the SM's copy path for itself. Who arrives last folds a state of each piece, four rows in
// one pass, a warp 16 rows after each other: what a piece saves in reading must be worth that (measured: 8/1 heads, one request).
constexpr double kStreamTokenNs = 80, kFoldPassNs = 250;

template <class T>
T* At(std::byte* image, size_t offset) {
  return reinterpret_cast<T*>(image + offset);
}

// Folding one more piece of an item of this many rows.
double FoldNs(int64_t rows) {
  return kFoldPassNs * static_cast<double>(CeilDiv(std::min<int64_t>(rows, kFoldWarpRows), kFoldRows));
}

Status Exceeded(const char* what, int64_t have, int64_t most) {
  return ResourceExhausted("CUDA plan: " + std::to_string(have) + " " + what + "; the sizes given at creation allow " +
                           std::to_string(most) + "; create the plan with a larger capacity");
}

}  // namespace

uint32_t SpreadStep(int32_t n) {
  if (n < 2) return 0;
  int64_t places = std::lround(0.618 * n);  // the golden section, or next to it
  for (int64_t away = 1; std::gcd(places, n) > 1; away = away > 0 ? -away - 1 : -away + 1) places += away;
  return static_cast<uint32_t>(((places << 32) + n - 1) / n);
}

PlanLayout::PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms) {
  const int64_t most = int64_t{num_sms} * (kDenseTasksPerSm * kDenseRows + kTasksPerStreamWarp * kStreamWarpsPerSm * kStreamRows);
  own_states = spec.deterministic ? 0 : std::min(most, kMostPieces * capacity.max_queries * spec.num_qo_heads);
  max_states = sizes.max_states + own_states;
  max_contributions = sizes.max_contributions + own_states / spec.num_kv_heads;  // each has a row or more
  max_members = max_contributions;                                               // a member is a contribution seen from its item
  max_items = sizes.max_items + max_contributions;                               // a block of rows begins at a member
  max_tasks = max_items * spec.num_kv_heads;
  size_t used = 0;
  const auto reserve = [&](size_t& offset, int64_t count, size_t each) {
    offset = used;
    used = RoundUp(used + static_cast<size_t>(count) * each, 256);
  };
  reserve(header, 1, sizeof(PlanHeader));
  reserve(branches, capacity.max_branches, sizeof(DeviceBranch));
  reserve(dense_tasks, max_tasks, sizeof(Task));
  reserve(stream_tasks, max_tasks, sizeof(Task));
  reserve(members, max_members, sizeof(DeviceMember));
  reserve(contributions, max_contributions, sizeof(DeviceContribution));
  reserve(tree_mask, capacity.max_queries, sizeof(uint64_t));
  reserve(page_indices, capacity.max_page_slots, sizeof(int32_t));
  // A launch asks for its first lines of some arrays before it knows how much they hold (PrefetchFirst), at most a task for each
  // stream warp past an array's beginning: they lie in this memory too.
  bytes = used + static_cast<size_t>(num_sms) * kStreamWarpsPerSm * sizeof(Task);
}

PlanTranslator::PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms,
                               int kv_tile)
    : spec_(spec),
      sizes_(sizes),
      layout_(spec, capacity, sizes, num_sms),
      num_sms_(num_sms),
      dense_piece_unit_(RoundUp(kMinDensePiece, kv_tile)) {
  pieces_.resize(sizes.max_items);
  lengths_.reserve(sizes.max_items);
  joined_.reserve(sizes.max_items);
  node_reads_.reserve(capacity.max_nodes > 0 ? capacity.max_nodes : 2 * capacity.max_branches);
  tiles_.reserve(sizes.max_items);
  items_.resize(layout_.max_items);
  arrivals_.resize(sizes.max_merge_sets);
  set_contributions_.resize(sizes.max_merge_sets);
  sm_busy_until_.resize(num_sms);
}

Status PlanTranslator::TranslatePlan(const PlanView& plan, const PrefixForestView& forest, std::byte* image) {
  if (std::ssize(plan.items) > sizes_.max_items) return Exceeded("items", std::ssize(plan.items), sizes_.max_items);
  if (std::ssize(plan.merge_sets) > sizes_.max_merge_sets) {
    return Exceeded("merge sets", std::ssize(plan.merge_sets), sizes_.max_merge_sets);
  }
  if (plan.num_states > sizes_.max_states) return Exceeded("states", plan.num_states, sizes_.max_states);

  CutItems(plan, forest);
  COPPICE_RETURN_IF_ERROR(CountContributions(plan));
  num_items_ = num_members_ = 0;
  std::ranges::fill(arrivals_, 0);
  for (const Length& length : lengths_) COPPICE_RETURN_IF_ERROR(EmitItem(plan, forest, length.item, image));
  DeviceMember* members = At<DeviceMember>(image, layout_.members);
  for (int64_t m = 0; m < num_members_; ++m) members[m].arrivals = static_cast<uint16_t>(arrivals_[members[m].set]);
  EmitTasks(forest, image);
  return OkStatus();
}

int32_t PlanTranslator::EndOf(const WorkItem& item, const PrefixForestView& forest) const {
  return std::min(item.kv_end, forest.branch_kv_len[item.page_row]);
}

// Decides how many pieces each item is cut into.
void PlanTranslator::CutItems(const PlanView& plan, const PrefixForestView& forest) {
  std::ranges::fill(pieces_, Pieces{});
  piece_ends_.clear();
  lengths_.clear();
  int64_t stream_tokens = 0;
  int64_t stream_blocks = 0;
  int64_t stream_steps = 0;
  // Only queued items are run: the pools of a plan that is edited in place hold others too.
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    for (const int32_t id : queue) {
      const WorkItem& item = plan.items[id];
      int32_t rows = 0;
      for (int32_t m = 0; m < item.member_count; ++m) rows += RowsOf(plan.merge_sets[plan.members[item.member_begin + m]]);
      const int32_t tokens = std::max(0, EndOf(item, forest) - item.kv_begin);
      lengths_.push_back({.item = id, .rows = rows, .blocks = static_cast<int32_t>(CeilDiv(rows, kDenseRows)), .tokens = tokens});
    }
  }
  JoinItems(plan, forest);
  for (Length& length : lengths_) {
    length.dense = IsDense(plan, length);
    if (!length.dense) {
      pieces_[length.item].block_rows = kStreamRows;
      const int64_t blocks = CeilDiv(length.rows, kStreamRows);
      stream_blocks += blocks;
      stream_tokens += length.tokens * blocks;
      stream_steps += blocks * CeilDiv(length.tokens, kStreamStepTokens);
    }
  }
  CountReads(plan, forest);
  double stream_memory_tokens = 0;
  for (const Length& length : lengths_) {
    if (!length.dense) stream_memory_tokens += length.memory_tokens;
  }
  dense_ctas_ = num_sms_;
  team_ = false;
  if (spec_.deterministic) return;
  const int64_t heads = spec_.num_kv_heads;
  const int32_t dense_piece =
      DivideSms({.bytes = static_cast<double>(stream_tokens * heads) * 4 * spec_.head_dim,
                 .memory_share = stream_memory_tokens / static_cast<double>(std::max<int64_t>(stream_tokens, 1)),
                 .steps = stream_steps * heads,
                 .tasks = stream_blocks * heads});
  const int64_t stream_warps = int64_t{num_sms_} * kStreamWarpsPerSm;
  const double tokens_per_warp = static_cast<double>(stream_tokens * heads) / stream_warps;
  const double fewest =
      std::clamp<double>(kShortestPieceOfSm * kStreamWarpsPerSm * tokens_per_warp, kMinStreamPieceOfFew, kMinStreamPiece);
  const auto shortest =
      static_cast<int32_t>(std::clamp<double>(kShortestStreamPiece * tokens_per_warp, fewest, kMaxShortStreamPiece));
  const auto longest = static_cast<int32_t>(std::max<double>(shortest, kLongestStreamPiece * tokens_per_warp));

  const int32_t team_piece = TeamPiece(plan);
  team_ = team_piece > 0;
  int64_t states = plan.num_states, end_of_states = sizes_.max_states + layout_.own_states;
  for (const Length& length : lengths_) {
    const int64_t most = std::min(kMostPieces, (end_of_states - states) / (length.rows * heads));
    Pieces& pieces = pieces_[length.item];
    pieces.ends_begin = static_cast<int32_t>(piece_ends_.size());
    if (length.dense) {
      CutEvenly(length.tokens, std::min(CeilDiv(length.tokens, dense_piece), most), dense_piece_unit_);
    } else if (team_) {
      CutEvenly(length.tokens, std::min(CeilDiv(length.tokens, team_piece), most), kStreamStepTokens);
    } else {
      // n pieces take tokens / n to read and n to fold: least together at the root of their ratio.
      const auto useful = std::lround(std::sqrt(length.tokens * kStreamTokenNs / FoldNs(length.rows)));
      const int64_t fewest_tokens = CeilDiv(length.tokens, std::clamp<int64_t>(useful, 1, std::max<int64_t>(most, 1)));
      const auto least = static_cast<int32_t>(std::max<int64_t>(shortest, fewest_tokens));
      CutGuided(length.tokens, least, std::max(least, longest), most);
    }
    pieces.count = static_cast<int32_t>(piece_ends_.size()) - pieces.ends_begin + 1;
    if (pieces.count == 1) continue;
    pieces.state_begin = static_cast<int32_t>(states);
    pieces.rows = length.rows;
    states += pieces.count * length.rows * heads;
  }
}

// Whole items, or as many pieces as there are SMs.
int32_t PlanTranslator::TeamPiece(const PlanView& plan) const {
  const auto blocks = [&](const Length& length) { return CeilDiv(length.rows, kStreamRows) * spec_.num_kv_heads; };
  const auto tasks = [&](int32_t piece) {
    int64_t count = 0;
    for (const Length& length : lengths_) count += std::max<int64_t>(CeilDiv(length.tokens, piece), 1) * blocks(length);
    return count;
  };
  int64_t tokens = 0;
  int32_t longest = 1;
  for (const Length& length : lengths_) {
    if (length.dense) return 0;
    tokens += length.tokens * blocks(length);
    longest = std::max(longest, length.tokens);
  }
  if (tokens > kMostTeamTokens * num_sms_ || tasks(longest) > num_sms_) return 0;
  auto piece = std::max(kMinTeamPiece, static_cast<int32_t>(RoundUp(CeilDiv(tokens, num_sms_), kStreamStepTokens)));
  while (piece < longest && tasks(piece) > num_sms_) piece += kStreamStepTokens;
  const auto steps_ns = [](int32_t length) { return CeilDiv(length, kStreamStepTokens * kStreamWarpsPerSm) * kShortTeamStepNs; };
  const bool merges = std::ranges::any_of(plan.merge_sets, [&](const MergeSet& set) {  // even if items stay whole
    int32_t items = 0;
    for (int32_t c = 0; c < set.contribution_count; ++c) {
      items += pieces_[plan.contributions[set.contribution_begin + c].item].count;
    }
    return items > 1;
  });
  const int64_t merge_ns = merges ? 0 : kTeamMergeNs;
  return steps_ns(longest) <= steps_ns(std::min(piece, longest)) + merge_ns ? longest : piece;
}

// Finds the items whose KV one task reads, those with one block of rows on nodes that nothing else reads, and each item's share of
// what is read from memory.
void PlanTranslator::CountReads(const PlanView& plan, const PrefixForestView& forest) {
  const auto blocks_of = [&](const Length& length) {
    return static_cast<int32_t>(CeilDiv(length.rows, pieces_[length.item].block_rows));
  };
  const auto for_each_node = [&](const Length& length, auto&& visit) {  // with the tokens of it that the item reads
    const int32_t begin = pieces_[length.item].kv_begin, end = begin + length.tokens;
    int32_t n = forest.branch_node[plan.items[length.item].page_row];
    for (; n != kNoParent && begin < forest.node_end[n]; n = forest.node_parent[n]) {
      const int32_t tokens = std::min(end, forest.node_end[n]) - std::max(begin, forest.node_begin[n]);
      if (forest.node_begin[n] < end) visit(n, tokens);
    }
  };
  node_reads_.assign(forest.node_parent.size(), 0);
  for (const Length& length : lengths_) {
    for_each_node(length, [&, blocks = blocks_of(length)](int32_t n, int32_t) { node_reads_[n] += blocks; });
  }
  for (Length& length : lengths_) {
    bool& once = pieces_[length.item].read_once;
    once = true;
    for_each_node(length, [&, blocks = blocks_of(length)](int32_t n, int32_t tokens) {
      once &= node_reads_[n] == 1;
      length.memory_tokens += static_cast<double>(tokens) * blocks / node_reads_[n];
    });
  }
}

// Both append the ends of all pieces but the last, which is open, to piece_ends_.
void PlanTranslator::CutEvenly(int32_t tokens, int64_t count, int64_t unit) {
  if (count <= 1) return;
  const int64_t piece = RoundUp(CeilDiv(tokens, count), unit);
  for (int64_t end = piece; end < tokens; end += piece) piece_ends_.push_back(static_cast<int32_t>(end));
}

void PlanTranslator::CutGuided(int32_t tokens, int32_t shortest, int32_t longest, int64_t most) {
  if (tokens <= longest + longest / 4) return;
  for (int32_t end = 0; --most > 0;) {
    const int32_t left = tokens - end;
    const auto piece = RoundUp(std::clamp(left / 2, shortest, longest), kStreamStepTokens);
    if (left < piece + shortest / 2) return;
    piece_ends_.push_back(end += piece);
  }
}

// Few rows or few tokens leave a dense tile's SM idle for most of its task; stream tiles read the range again for every 16 rows.
bool PlanTranslator::IsDense(const PlanView& plan, const Length& length) const {
  if (length.rows <= kStreamRows || spec_.deterministic) return length.rows > kStreamRows;
  const WorkItem& item = plan.items[length.item];
  for (int32_t m = item.member_begin; m < item.member_begin + item.member_count; ++m) {
    if (RowsOf(plan.merge_sets[plan.members[m]]) > kStreamRows) return true;  // sets are not cut
  }
  const double dense_ns =
      static_cast<double>(length.blocks) * (kDenseTaskNs + static_cast<double>(WholeDenseSteps(length.tokens)) * DenseTokenNs());
  const double step_ns = std::max(kStreamStepNs / kStreamWarpsPerSm, kStreamStepTokens * 4 * spec_.head_dim / kStreamBytesPerNs);
  const double stream_ns =
      static_cast<double>(CeilDiv(length.rows, kStreamRows)) *
      (kStreamPriceNs / kStreamWarpsPerSm + static_cast<double>(CeilDiv(length.tokens, kStreamStepTokens)) * step_ns);
  return dense_ns <= stream_ns;
}

// Joins items that read neighbouring ranges for the same members: the planner's own cuts along KV, which are made anew here. Not in
// deterministic mode, whose cuts define the result.
void PlanTranslator::JoinItems(const PlanView& plan, const PrefixForestView& forest) {
  const auto key = [&](const Length& length) {
    const WorkItem& item = plan.items[length.item];
    return std::tuple(item.member_begin, item.member_count, item.page_row, item.kv_begin);
  };
  joined_ = lengths_;
  std::ranges::sort(joined_, {}, key);
  for (size_t i = 0, head = 0; i < joined_.size(); ++i) {
    const WorkItem& item = plan.items[joined_[i].item];
    const WorkItem& first = plan.items[joined_[head].item];
    Pieces& whole = pieces_[joined_[head].item];
    const bool joins = !spec_.deterministic && i > head && item.member_begin == first.member_begin &&
                       item.member_count == first.member_count && item.page_row == first.page_row && item.kv_begin == whole.kv_end;
    if (joins) {
      pieces_[joined_[i].item].count = 0;
      whole.kv_end = item.kv_end;
      whole.masked |= item.flags & kItemMasked;
    } else {
      head = i;
      pieces_[joined_[i].item] = {.kv_begin = item.kv_begin, .kv_end = item.kv_end, .masked = (item.flags & kItemMasked) != 0};
    }
  }
  const auto drop_joined = [&] { std::erase_if(lengths_, [&](const Length& length) { return pieces_[length.item].count == 0; }); };
  drop_joined();
  const bool prompts_joined = !spec_.deterministic && JoinPromptTiles(plan);
  drop_joined();
  for (Length& length : lengths_) {
    const Pieces& whole = pieces_[length.item];
    const WorkItem& item = plan.items[length.item];
    length.tokens = std::max(0, std::min(whole.kv_end, forest.branch_kv_len[item.page_row]) - whole.kv_begin);
  }
  if (prompts_joined) std::ranges::stable_sort(lengths_, std::greater<>(), &Length::tokens);  // longest first, as the queues were
}

// What the row tiles of one prompt read in common gains nothing from being read by items of its own, whose row blocks are the same
// tiles: each tile reads on through and needs no states. Where there are several tasks to an SM, one group of rows in four stays as
// it is: its short tiles even out the end. True if any were joined.
bool PlanTranslator::JoinPromptTiles(const PlanView& plan) {
  int64_t tiles = 0, groups = 0;
  bool joined = false;
  for (const Length& length : lengths_) tiles += length.blocks == 1 && pieces_[length.item].masked;
  const bool leave_some = tiles * spec_.num_kv_heads > num_sms_;
  const auto members_of = [&](const WorkItem& item) { return plan.members.subspan(item.member_begin, item.member_count); };
  for (const Length& length : lengths_) {
    const WorkItem& common = plan.items[length.item];
    const auto members = members_of(common);
    const int32_t branch = plan.merge_sets[members.front()].branch;
    if (branch != common.page_row) continue;
    tiles_.clear();
    int64_t members_of_tiles = 0;
    for (const int32_t set_id : members) {
      const MergeSet& set = plan.merge_sets[set_id];
      if (set.branch != branch) break;
      for (const Contribution& c : plan.contributions.subspan(set.contribution_begin, set.contribution_count)) {
        const Pieces& pieces = pieces_[c.item];
        if (pieces.count == 0 || pieces.kv_begin != pieces_[length.item].kv_end || plan.items[c.item].page_row != branch) continue;
        if (tiles_.empty() || tiles_.back() != c.item) {
          tiles_.push_back(c.item);
          members_of_tiles += plan.items[c.item].member_count;
        }
        break;
      }
    }
    // The tiles must have these members and no others.
    const auto begins_here = [&](int32_t tile) {
      return std::ranges::find(members, members_of(plan.items[tile]).front()) != members.end();
    };
    if (members_of_tiles != std::ssize(members) || !std::ranges::all_of(tiles_, begins_here)) continue;
    if (groups++ % 4 == 3 && leave_some) continue;
    for (const int32_t tile : tiles_) {
      pieces_[tile].kv_begin = pieces_[length.item].kv_begin;
      pieces_[tile].masked |= pieces_[length.item].masked;
    }
    pieces_[length.item].count = 0;
    joined = true;
  }
  return joined;
}

// Dense tiles leave the memory idle and streams the tensor cores, so some SMs stream from the start while the others compute, which
// join them when no dense task is left (POD-Attention's point, by SM). Finds the SMs that compute and the length of dense pieces
// for which the step ends soonest.
int32_t PlanTranslator::DivideSms(const StreamWork& stream) {
  const int64_t heads = spec_.num_kv_heads;
  int64_t tokens = 0;
  for (const Length& length : lengths_) {
    if (length.dense) tokens += int64_t{length.tokens} * length.blocks * heads;
  }
  if (tokens == 0) return INT32_MAX;
  struct Choice {
    double ns = INFINITY;
    int64_t tasks = 0;
    int32_t piece = INT32_MAX;
  };
  std::array<Choice, 11> choices;
  size_t num_choices = 0;
  Choice best;
  for (const double share : {1e9, 16.0, 8.0, 4.0, 2.0, 1.0, 1 / 2.0, 1 / 3.0, 1 / 4.0, 1 / 6.0, 1 / 8.0}) {
    const double wanted = std::min(share * static_cast<double>(tokens) / num_sms_, 1e9);
    const auto piece = static_cast<int32_t>(WholeDenseSteps(static_cast<int64_t>(wanted) + 1));
    int64_t tasks = 0;
    for (const Length& length : lengths_) {
      if (length.dense) tasks += CeilDiv(length.tokens, piece) * length.blocks * heads;
    }
    if (num_choices > 0 && tasks == choices[num_choices - 1].tasks) continue;  // the same cuts
    const Simulated step = Simulate(piece, num_sms_, stream);
    if (step.states > layout_.own_states) break;
    const Choice choice{step.ns, tasks, piece};
    choices[num_choices++] = choice;
    if (choice.ns < kWorthChanging * best.ns) best = choice;
  }
  // As many SMs as take whole rounds of the tasks.
  const double all_sms_ns = best.ns;
  for (const Choice& choice : std::span(choices).first(num_choices)) {
    if (choice.ns > kPieceWorthTrying * all_sms_ns) continue;
    double most = num_sms_ - 1;
    for (int64_t rounds = CeilDiv(choice.tasks, num_sms_); most >= kFewestComputing * num_sms_; ++rounds) {
      const auto ctas = static_cast<int32_t>(CeilDiv(choice.tasks, rounds));
      if (ctas > most) continue;
      most = ctas - kSmsApart * num_sms_;
      const int64_t streaming_warps = int64_t{num_sms_ - ctas} * kStreamWarpsPerSm;
      if (ctas < kFewestComputing * num_sms_ || stream.tasks < kTasksOfStreamingWarp * streaming_warps) break;
      const Simulated step = Simulate(choice.piece, ctas, stream);
      const double worth = step.dense_ns < kDenseSoonDone * step.ns ? kAsGood : kWorthChanging;
      if (step.ns < worth * best.ns) best = {step.ns, choice.tasks, choice.piece}, dense_ctas_ = ctas;
    }
  }
  return best.piece;
}

int64_t PlanTranslator::WholeDenseSteps(int64_t tokens) const { return RoundUp(tokens, dense_piece_unit_); }

double PlanTranslator::DenseTokenNs() const { return 4.0 * kDenseRows * spec_.head_dim / kDenseFlopsPerNs; }

// The step's time if dense items are cut to this length and run on this many SMs, longest tasks first as the queue has them, each
// on the SM that is free first.
PlanTranslator::Simulated PlanTranslator::Simulate(int32_t piece, int32_t dense_ctas, const StreamWork& stream) {
  const int64_t heads = spec_.num_kv_heads;
  const double token_ns = DenseTokenNs();
  // First the SMs' ends if nothing disturbs the dense tiles.
  const auto busy_until = std::span(sm_busy_until_).first(dense_ctas);
  std::ranges::fill(busy_until, 0.0);
  const std::greater<> later;
  Simulated step;
  int64_t tasks = 0;
  double fold_ns = 0, rest_ns = 0, tokens = 0, memory_tokens = 0;  // that dense tasks read, and of those from memory
  for (const Length& length : lengths_) {
    if (!length.dense || length.tokens == 0) continue;
    tokens += static_cast<double>(length.tokens) * length.blocks;
    memory_tokens += length.memory_tokens;
    const int64_t count = CeilDiv(length.tokens, piece);
    const double task_ns = kDenseTaskNs + static_cast<double>(WholeDenseSteps(CeilDiv(length.tokens, count))) * token_ns;
    const int64_t item_tasks = count * length.blocks * heads;
    if (count > 1) {
      step.states += count * length.rows * heads;
      fold_ns = std::max(fold_ns, static_cast<double>(count) * FoldNs(length.rows));
    }
    if (tasks += item_tasks; tasks > kSimulatedTasksPerSm * num_sms_) {  // so many even out by themselves
      rest_ns += static_cast<double>(item_tasks) * task_ns;
      continue;
    }
    for (int64_t i = 0; i < item_tasks; ++i) {
      std::ranges::pop_heap(busy_until, later);
      busy_until.back() += task_ns;
      std::ranges::push_heap(busy_until, later);
    }
  }
  for (double& end : busy_until) end += rest_ns / dense_ctas;
  std::ranges::sort(busy_until);
  // Then with the streams, which share the memory with the dense tiles as each asks for it.
  const auto stream_bytes_per_ns = [&](double task_ns) {  // of an SM
    const double warp_ns = static_cast<double>(stream.steps) * kStreamStepNs + static_cast<double>(stream.tasks) * task_ns;
    return std::min(kSmBytesPerNs, stream.bytes * kStreamWarpsPerSm / std::max(1.0, warp_ns));
  };
  const double beside = stream_bytes_per_ns(kStreamTaskBesideDenseNs);
  const double after = std::min(stream_bytes_per_ns(kStreamTaskNs), kMemoryBytesPerNs / stream.memory_share / num_sms_);
  const double dense_bytes_per_ns =
      tokens > 0 ? memory_tokens / tokens * 4 * spec_.head_dim / token_ns : 0;  // of an SM, from memory
  double now = 0, left = stream.bytes, undisturbed = 0;
  int64_t computing = dense_ctas;
  for (const double end : busy_until) {
    double dense_ns = end - undisturbed;
    const double dense_bytes = static_cast<double>(computing) * dense_bytes_per_ns;
    if (left > 0) {
      const auto streaming = static_cast<double>(num_sms_ - computing);
      const double share = std::min(1.0, kMemoryBytesPerNs / (streaming * beside * stream.memory_share + dense_bytes));
      const double pace = std::min(share, 1 / (1 + kSlowedByStreams * streaming / num_sms_));
      const double ns = std::min(dense_ns / pace, left / (streaming * beside * share));
      now += ns, dense_ns -= ns * pace, left -= ns * streaming * beside * share;
    }
    now += std::max(dense_ns, 0.0) / std::min(1.0, kMemoryBytesPerNs / dense_bytes);
    undisturbed = end;
    --computing;
  }
  const double dense_end = now;
  if (left > 0) now += left / (after * num_sms_);
  // Where streaming ends later, its warps fold, a set each.
  step.ns = kLaunchNs + std::max(now, dense_end + fold_ns);
  step.dense_ns = dense_end;
  return step;
}

// The contributions of each set, an item's pieces in place of the item.
Status PlanTranslator::CountContributions(const PlanView& plan) {
  num_contributions_ = 0;
  for (size_t s = 0; s < plan.merge_sets.size(); ++s) {
    const MergeSet& set = plan.merge_sets[s];
    SetContributions& to = set_contributions_[s];
    to = {.begin = static_cast<int32_t>(num_contributions_), .count = 0};
    for (int32_t c = set.contribution_begin; c < set.contribution_begin + set.contribution_count; ++c) {
      const Contribution& from = plan.contributions[c];
      to.count += pieces_[from.item].count;
      num_contributions_ += pieces_[from.item].count;
    }
    if (to.count > UINT16_MAX) return Exceeded("contributions of a merge set", to.count, UINT16_MAX);
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
  const int32_t* ends = piece_ends_.data() + pieces.ends_begin;
  DeviceContribution* contributions = At<DeviceContribution>(image, layout_.contributions);
  for (int32_t piece = 0; piece < pieces.count; ++piece) {
    DeviceItem* block = nullptr;
    int32_t rows_before = 0;  // in the piece
    for (int32_t m = item.member_begin; m < item.member_begin + item.member_count; ++m) {
      const int32_t set_id = plan.members[m];
      const MergeSet& set = plan.merge_sets[set_id];
      const SetContributions& of_set = set_contributions_[set_id];
      const int32_t rows = RowsOf(set);
      if (block == nullptr || block->rows + rows > pieces.block_rows) {
        if (num_items_ == layout_.max_items) return Exceeded("row blocks", num_items_ + 1, layout_.max_items);
        block = &items_[num_items_++];
        *block = {.kv_begin = pieces.kv_begin + (piece > 0 ? ends[piece - 1] : 0),
                  .kv_end = piece + 1 < pieces.count ? pieces.kv_begin + ends[piece] : pieces.kv_end,
                  .page_begin = forest.branch_page_begin[item.page_row],
                  .branch = item.page_row,
                  .member_begin = static_cast<int32_t>(num_members_),
                  .member_count = 0,
                  .rows = 0,
                  .dense = pieces.block_rows == kDenseRows,
                  .read_once = pieces.read_once,
                  .masked = pieces.masked,
                  .rows_per_member = static_cast<uint16_t>(rows),
                  .head_begin = 0,
                  .head_count = static_cast<uint16_t>(spec_.num_kv_heads)};
      }
      if (num_members_ == layout_.max_members) return Exceeded("members", num_members_ + 1, layout_.max_members);
      DeviceMember member{.set = set_id,
                          .branch = set.branch,
                          .query_begin = set.query_begin,
                          .state_begin = kDirect,
                          .head_stride = 0,
                          .contribution_begin = of_set.begin,
                          .contribution_count = static_cast<uint16_t>(of_set.count),
                          .query_count = static_cast<uint16_t>(set.query_count),
                          .row_begin = block->rows,
                          .arrivals = 0};
      if (of_set.count > 1) {
        int32_t at = of_set.begin;
        for (int32_t c = set.contribution_begin; c < set.contribution_begin + set.contribution_count; ++c) {
          const Contribution& from = plan.contributions[c];
          if (from.item != item_id) {
            at += pieces_[from.item].count;
            continue;
          }
          const bool own = pieces.count > 1;  // the plan has no states for pieces
          member.head_stride = own ? pieces.rows : from.head_stride;
          member.state_begin = own ? pieces.state_begin + piece * pieces.rows * spec_.num_kv_heads + rows_before : from.state_begin;
          contributions[at + piece] = {.state_begin = member.state_begin,
                                       .head_stride = static_cast<uint32_t>(member.head_stride),
                                       .begins_superblock = item.kv_begin % kDeterministicSuperblock == 0};
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

// Longest first; kv heads outermost within a run of items that begin with the same KV, so that its row
// blocks meet in the L2.
void PlanTranslator::EmitTasks(const PrefixForestView& forest, std::byte* image) {
  const DeviceMember* members = At<DeviceMember>(image, layout_.members);
  Task* dense = At<Task>(image, layout_.dense_tasks);
  Task* stream = At<Task>(image, layout_.stream_tasks);
  num_dense_ = num_stream_ = 0;
  const auto tokens_of = [&](const DeviceItem& item) {
    return std::max(0, std::min(item.kv_end, forest.branch_kv_len[item.branch]) - item.kv_begin);
  };
  std::stable_sort(items_.begin(), items_.begin() + num_items_,
                   [&](const DeviceItem& a, const DeviceItem& b) { return tokens_of(a) > tokens_of(b); });
  int64_t stream_items = 0;
  for (int64_t i = 0; i < num_items_; ++i) stream_items += !items_[i].dense;
  const int64_t heads = spec_.num_kv_heads;
  const int64_t per_warp = stream_items * heads / (int64_t{num_sms_} * kStreamWarpsPerSm);
  // Heads of a short item go together, so that a task is worth its start; never to more than a piece's tokens.
  const int64_t most_heads = std::clamp(per_warp / kHeadTasksPerWarp, int64_t{1}, std::min<int64_t>(heads, 8));
  const auto heads_per_task = [&](const DeviceItem& item) {
    const int64_t work = std::max<int64_t>(tokens_of(item), 1) * (item.rows > 8 ? 8 : 1);  // many rows: more to store and to fold
    return team_ ? 1 : std::clamp(kHeadTaskTokens / work, int64_t{1}, most_heads);
  };
  const auto same_kv = [](const DeviceItem& a, const DeviceItem& b) {
    return a.page_begin == b.page_begin && a.kv_begin == b.kv_begin;
  };
  const auto task = [&](int64_t i, int64_t head, int64_t count) {
    Task t{.item = items_[i], .first = members[items_[i].member_begin]};
    t.item.head_begin = static_cast<uint16_t>(head);
    t.item.head_count = static_cast<uint16_t>(count);
    return t;
  };
  for (int64_t begin = 0, end = 0; begin < num_items_; begin = end) {
    while (end < num_items_ && same_kv(items_[begin], items_[end])) ++end;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = begin; i < end; ++i) {
        if (items_[i].dense) {
          dense[num_dense_++] = task(i, head, 1);
        } else if (const int64_t count = heads_per_task(items_[i]); head % count == 0) {
          stream[num_stream_++] = task(i, head, std::min(count, heads - head));
        }
      }
    }
  }
  *At<PlanHeader>(image, layout_.header) = {.num_dense_tasks = static_cast<int32_t>(num_dense_),
                                            .num_stream_tasks = static_cast<int32_t>(num_stream_),
                                            .num_members = static_cast<int32_t>(num_members_),
                                            .num_contributions = static_cast<int32_t>(num_contributions_),
                                            .team = team_,
                                            .dense_ctas = dense_ctas_};
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
  PlanHeader& header = *At<PlanHeader>(image, layout_.header);
  header.num_branches = static_cast<int32_t>(forest.branch_kv_len.size());
  header.num_queries = 0;
  for (size_t b = 0; b < forest.branch_kv_len.size(); ++b) {
    if (forest.branch_node[b] == kFreeSlot) continue;
    header.num_queries = std::max(header.num_queries, forest.branch_query_begin[b] + forest.branch_query_count[b]);
  }
  header.has_tree_mask = !forest.query_tree_mask.empty();
}

}  // namespace coppice::attention::cuda
