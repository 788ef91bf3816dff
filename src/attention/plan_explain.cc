// Planner::Explain: the tree, each decision with the numbers behind it, and what the step costs with and without sharing.
// For people; programs read the dump (plan_io.h). Layer: attention.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "attention/plan.h"

namespace coppice::attention {
namespace {

template <class... Args>
void Append(std::string& out, const char* format, Args... args) {
  std::array<char, 512> line;
  const int length = std::snprintf(line.data(), line.size(), format, args...);
  out.append(line.data(), std::min(static_cast<size_t>(std::max(length, 0)), line.size() - 1));
}

std::string Range(int32_t begin, int32_t end) {
  std::string text;
  Append(text, end == kLive ? "[%d, live)" : "[%d, %d)", begin, end);
  return text;
}

}  // namespace

std::string Planner::Explain() const {
  std::string out;
  if (!planned_) return "no plan yet: call Update\n";
  const PlanStats stats = Stats();
  const Load load = TotalLoad();
  Append(out, "attention plan: %d qo heads, %d kv heads, head_dim %d, kv %s%s, machine %s, %d workers\n", spec_.num_qo_heads,
         spec_.num_kv_heads, spec_.head_dim, std::string(coppice::Name(spec_.kv_dtype)).c_str(),
         spec_.deterministic ? ", deterministic" : "", machine_.name.c_str(), cost_.workers());
  if (traits_.native_head_dim > spec_.head_dim) {
    Append(out, "head_dim is padded on chip to %d: %.0f %% more computation\n", traits_.native_head_dim,
           100.0 * (traits_.native_head_dim - spec_.head_dim) / spec_.head_dim);
  }
  Append(out, "prices: memory %.2f, compute %.2f; grain %.1f us; capacity pressure %d\n", memory_price_, compute_price_,
         grain_ns_ / 1e3, pressure_);

  const auto append_owner = [&](const Owner& owner, int indent) {
    if (owner.pieces == 0) return;
    if (traits_.cuts_kv && !spec_.deterministic) {  // the backend says how it runs the range
      Append(out, "%*sreads %s for %d rows%s\n", indent, "", Range(owner.begin, owner.end).c_str(), owner.rows,
             owner.writes_states ? "" : " (writes the output if it stays whole)");
      return;
    }
    Append(out, "%*sreads %s for %d rows: %d x %d %s items%s, %d kv heads a task\n", indent, "",
           Range(owner.begin, owner.end).c_str(), owner.rows, owner.pieces, owner.row_groups,
           cost_.KindOf(owner.rows / owner.row_groups) == ItemKind::kDenseTile ? "dense" : "stream",
           owner.writes_states ? "" : " (write the output)", owner.heads_per_task);
  };
  for (int32_t n : index_->Preorder()) {
    const NodePlan& node = nodes_[n];
    int indent = 2;
    for (int32_t p = index_->parent[n]; p != kNoParent; p = index_->parent[p]) indent += 2;
    Append(out, "%*snode %d %s, %zu branches, %d rows: %s", indent, "", n, Range(index_->begin[n], index_->end[n]).c_str(),
           BranchesBelow(n).size(), node.rows, std::string(Name(node.decision)).c_str());
    if (node.tokens > 0 && node.num_consumers > 1) {
      Append(out, " (%d tokens: read once %.2f us, read by the %d items below %.2f us)", node.tokens, node.share_ns / 1e3,
             node.below_reads, node.absorb_ns / 1e3);
    }
    out += '\n';
    append_owner(owners_[n], indent + 4);
    for (int32_t b : BranchesAt(n)) {
      Append(out, "%*sbranch %d, kv_len %d, %d queries\n", indent + 2, "", b, forest_.branch_kv_len[b], index_->query_count[b]);
      ForEachTile(b, [&](const Tile& tile) { append_owner(owners_[tile.owner], indent + 4); });
    }
  }
  const double mib = 1.0 / (1 << 20);
  Append(out, "KV read: %.3f MiB, without sharing %.3f MiB; partial states %.3f MiB\n",
         static_cast<double>(stats.kv_bytes_read) * mib, static_cast<double>(stats.kv_bytes_read_unshared) * mib,
         static_cast<double>(stats.state_bytes) * mib);
  Append(out, "%.3f Gflop in %d items (%d shared nodes, %d absorbed), %d merge sets, %d contributions\n",
         static_cast<double>(stats.flops) / 1e9, stats.num_items, stats.shared_nodes, stats.absorbed_nodes, stats.num_merge_sets,
         stats.num_contributions);
  Append(out, "predicted: %.2f us (memory %.2f, compute %.2f, fixed and states %.2f)\n", stats.predicted_ns / 1e3,
         load.memory_ns / 1e3, load.compute_ns / 1e3, load.overhead_ns / 1e3);
  return out;
}

}  // namespace coppice::attention
