// Planner::Explain: the tree, each decision with the numbers behind it, and what the step costs with and without sharing. Siblings
// whose subtrees say the same are printed once. For people; programs read the dump (plan_io.h). Layer: attention.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "attention/plan.h"

namespace coppice::attention {
namespace {

constexpr int32_t kMostIndent = 80;  // columns: a chain of nodes may be as deep as there are nodes

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

// The text of a tree from that of its nodes.
class TreeText {
 public:
  explicit TreeText(const ForestIndex& forest) : forest_(forest), nodes_(forest.num_nodes()) {}

  // Each node of the preorder, in any order.
  void SetLines(int32_t n, std::vector<ExplainedLine> lines) { nodes_[n].lines = std::move(lines); }
  void AppendTo(std::string& out) {
    FindAlike();
    const std::span<const int32_t> preorder = forest_.Preorder();
    // Where the first of some alike siblings ends, where to go on after all of them, and what to say of the others.
    struct Alike {
      int32_t end, resume;
      std::string line;
    };
    std::vector<Alike> open;
    for (int32_t at = 0;;) {
      for (; !open.empty() && open.back().end == at; open.pop_back()) out += open.back().line, at = open.back().resume;
      if (at == std::ssize(preorder)) return;
      const int32_t n = preorder[at];
      for (const ExplainedLine& line : nodes_[n].lines) {
        Indent(n, line.indent, out);
        out += line.id < 0 ? line.text : std::string(line.what) + ' ' + std::to_string(line.id) + line.text;
        out += '\n';
      }
      int32_t others = 0, last = n;
      for (int32_t s = forest_.next_sibling[n]; s >= 0 && nodes_[s].kind == nodes_[n].kind; s = forest_.next_sibling[s]) {
        ++others, last = s;
      }
      at += 1;
      if (others == 0) continue;
      const int32_t size = nodes_[n].size;
      Alike alike{.end = at - 1 + size, .resume = at - 1 + size * (others + 1), .line = {}};
      Indent(n, 0, alike.line);
      Append(alike.line, "and %d more like it, the last node %d\n", others, last);
      open.push_back(std::move(alike));
    }
  }

 private:
  struct Node {
    std::vector<ExplainedLine> lines;
    int32_t depth = 0, size = 1;  // size: nodes of the subtree
    int32_t kind = -1;            // the same for subtrees that say the same, ids apart
  };

  void Indent(int32_t n, int32_t more, std::string& out) const {
    out.append(std::min(2 + 2 * nodes_[n].depth + more, kMostIndent), ' ');
  }
  void FindAlike() {
    std::map<std::string, int32_t> kinds;  // by what a node and the kinds of its children say
    const std::span<const int32_t> preorder = forest_.Preorder();
    for (const int32_t n : preorder) {
      if (const int32_t p = forest_.parent[n]; p != kNoParent) nodes_[n].depth = nodes_[p].depth + 1;
    }
    for (size_t at = preorder.size(); at-- > 0;) {
      Node& node = nodes_[preorder[at]];
      std::string says;
      for (const ExplainedLine& line : node.lines) says.append(line.what).append(line.text) += '\n';
      for (int32_t c = forest_.first_child[preorder[at]]; c >= 0; c = forest_.next_sibling[c]) {
        node.size += nodes_[c].size;
        says.append(std::to_string(nodes_[c].kind)) += ' ';
      }
      node.kind = kinds.try_emplace(std::move(says), static_cast<int32_t>(kinds.size())).first->second;
    }
  }

  const ForestIndex& forest_;
  std::vector<Node> nodes_;
};

}  // namespace

ExplainedLine Planner::ExplainRange(RangeId range_id) const {
  ExplainedLine line{.indent = 4};
  const ShareRange& reads = shares_.range(range_id);
  const RangeCuts& cuts = items_.cuts(range_id);
  if (problem_.traits.cuts_kv && !problem_.spec.deterministic) {  // the backend says how it runs the range
    Append(line.text, "reads %s for %d rows%s", Range(reads.begin, reads.end).c_str(), reads.rows,
           cuts.writes_states ? "" : " (writes the output if it stays whole)");
    return line;
  }
  Append(line.text, "reads %s for %d rows: %d x %d %s items%s, %d kv heads a task", Range(reads.begin, reads.end).c_str(),
         reads.rows, cuts.pieces, cuts.row_groups,
         problem_.cost.tiles().KindOf(reads.rows / cuts.row_groups) == ItemKind::kDenseTile ? "dense" : "stream",
         cuts.writes_states ? "" : " (write the output)", items_.heads_per_task(range_id));
  return line;
}

std::vector<ExplainedLine> Planner::ExplainNode(int32_t n) const {
  const NodePlan& node = shares_.node(n);
  const ForestIndex& forest = forest_.now();
  std::vector<ExplainedLine> lines = {{.indent = 0, .what = "node", .id = n}};
  std::string& says = lines.front().text;
  Append(says, " %s, %zu branches, %d rows: %s", Range(forest.begin[n], forest.end[n]).c_str(), forest.BranchesBelow(n).size(),
         node.rows, std::string(Name(node.decision)).c_str());
  if (node.tokens > 0 && node.num_consumers > 1) {
    Append(says, " (%d tokens: read once %.2f us, read by the %d items below %.2f us)", node.tokens, node.share_ns / 1e3,
           node.below_reads, node.per_child_ns / 1e3);
  }
  if (items_.cuts(NodeRange(n)).pieces > 0) lines.push_back(ExplainRange(NodeRange(n)));
  for (int32_t b : forest.BranchesAt(n)) {
    ExplainedLine& branch = lines.emplace_back(ExplainedLine{.indent = 2, .what = "branch", .id = b});
    Append(branch.text, ", kv_len %d, %d queries", forest_.view().branch_kv_len[b], forest.query_count[b]);
    tiles_.ForEachTile(b, [&](const RowTile& tile) {
      if (items_.cuts(tile.range_id).pieces > 0) lines.push_back(ExplainRange(tile.range_id));
    });
  }
  return lines;
}

std::string Planner::Explain() const {
  std::string out;
  if (!planned_) return "no plan yet: call Update\n";
  const PlanStats stats = Stats();
  const Load load = items_.TotalLoad();
  const std::string& from = problem_.machine.scaled_from;
  std::string measured;
  if (!from.empty()) measured = " (scaled from " + from + ", not measured)";
  if (problem_.machine.name.starts_with("generic")) measured = " (not measured: see coppice bench calibrate)";
  Append(out, "attention plan: %d qo heads, %d kv heads, head_dim %d, kv %s%s, machine %s%s, %d workers\n",
         problem_.spec.num_qo_heads, problem_.spec.num_kv_heads, problem_.spec.head_dim,
         std::string(coppice::Name(problem_.spec.kv_dtype)).c_str(), problem_.spec.deterministic ? ", deterministic" : "",
         problem_.machine.name.c_str(), measured.c_str(), problem_.cost.workers());
  if (problem_.traits.native_head_dim > problem_.spec.head_dim) {
    Append(out, "head_dim is padded on chip to %d: %.0f %% more computation\n", problem_.traits.native_head_dim,
           100.0 * (problem_.traits.native_head_dim - problem_.spec.head_dim) / problem_.spec.head_dim);
  }
  Append(out, "prices: memory %.2f, compute %.2f; target task time %.1f us; coarsening level %d\n", shares_.memory_price(),
         shares_.compute_price(), items_.target_task_ns() / 1e3, coarsening_level_);

  TreeText tree(forest_.now());
  for (int32_t n : forest_.now().Preorder()) tree.SetLines(n, ExplainNode(n));
  tree.AppendTo(out);
  const double mib = 1.0 / (1 << 20);
  Append(out, "KV read: %.3f MiB, without sharing %.3f MiB; partial states %.3f MiB\n",
         static_cast<double>(stats.kv_bytes_read) * mib, static_cast<double>(stats.kv_bytes_read_unshared) * mib,
         static_cast<double>(stats.state_bytes) * mib);
  Append(out, "%.3f Gflop in %d items (%d shared nodes, %d read per child), %d merge sets, %d contributions\n",
         static_cast<double>(stats.flops) / 1e9, stats.num_items, stats.shared_nodes, stats.unshared_nodes, stats.num_merge_sets,
         stats.num_contributions);
  Append(out, "predicted: %.2f us (memory %.2f, compute %.2f, fixed and states %.2f)\n", stats.predicted_ns / 1e3,
         load.memory_ns / 1e3, load.compute_ns / 1e3, load.overhead_ns / 1e3);
  return out;
}

}  // namespace coppice::attention
