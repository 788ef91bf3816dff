#include "attention_tools/forest_trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "core/math.h"

namespace coppice::attention {
namespace {

using nlohmann::json;
using Node = TracedForest::Node;
using Branch = TracedForest::Branch;

constexpr std::string_view kFormat = "coppice forest trace";
constexpr int32_t kVersion = 1;
constexpr size_t kQuoted = 60;  // bytes of a value in a message
constexpr int32_t kNoEnd = -1;  // of a node that ends with its branch

// A list that a line of a step may have: ids alone, or an id with values.
constexpr std::string_view kNodesGone = "nodes_gone", kNodes = "nodes", kBranchesGone = "branches_gone", kBranches = "branches";

Status Wrong(std::string_view what, const json& value, const std::string& expected) {
  return InvalidArgument(std::string(what) + " is " + PrintableJson(value, kQuoted) + ", expected " + expected);
}

std::string From(int64_t least, int64_t most) { return std::to_string(least) + " to " + std::to_string(most); }

Result<int32_t> ParseInt(std::string_view what, const json& value, int64_t least, int64_t most) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
    return Wrong(what, value, "an integer, " + From(least, most));
  return static_cast<int32_t>(value.get<int64_t>());
}

// A member that must be there.
Result<int32_t> ParseMember(const json& object, const char* name, int64_t least, int64_t most) {
  const auto member = object.find(name);
  if (member == object.end()) return InvalidArgument("there is no " + std::string(name));
  return ParseInt(name, *member, least, most);
}

Status CheckObject(const json& line) { return line.is_object() ? OkStatus() : Wrong("the line", line, "an object"); }

// The fields of TracedLayers, once for writing and reading.
struct SpecField {
  const char* name;
  int32_t AttentionSpec::*place;
  int64_t least, most;
};
constexpr SpecField kSpecFields[] = {{"qo_heads", &AttentionSpec::num_qo_heads, 1, 65535},
                                     {"kv_heads", &AttentionSpec::num_kv_heads, 1, 65535},
                                     {"head_dim", &AttentionSpec::head_dim, 1, 65535},
                                     {"window", &AttentionSpec::window, 0, INT32_MAX}};

class LineWriter {
 public:
  explicit LineWriter(std::string* out) : out_(*out) { out_ += '{'; }
  // Entries of one list come one after the other.
  template <size_t kValues>
  void Add(std::string_view list, const std::array<int32_t, kValues>& entry) {
    if (list != open_) {
      Close();
      if (out_.back() != '{') out_ += ',';
      out_ += '"';
      out_ += list;
      out_ += "\":[";
      open_ = list;
    } else {
      out_ += ',';
    }
    if (kValues > 1) out_ += '[';
    for (size_t i = 0; i < kValues; ++i) {
      if (i > 0) out_ += ',';
      out_ += std::to_string(entry[i]);
    }
    if (kValues > 1) out_ += ']';
  }
  void End() {
    Close();
    out_ += "}\n";
  }

 private:
  void Close() {
    if (!open_.empty()) out_ += ']';
  }

  std::string& out_;
  std::string_view open_;
};

Node NodeAt(const PrefixForestView& forest, size_t n) {
  if (forest.node_parent[n] == kFreeSlot) return {};
  const int32_t end = forest.node_end[n];
  return {.parent = forest.node_parent[n], .tokens = end == kLive ? kLive : end - forest.node_begin[n]};
}

Branch BranchAt(const PrefixForestView& forest, size_t b) {
  if (forest.branch_node[b] == kFreeSlot) return {};
  return {.node = forest.branch_node[b], .kv_len = forest.branch_kv_len[b], .queries = forest.branch_query_count[b]};
}

// A branch that no line names has as many queries as in the step before, and these are its next tokens.
Branch GoesOn(const Branch& branch) {
  return {.node = branch.node, .kv_len = branch.kv_len + branch.queries, .queries = branch.queries};
}

// The slot of an entry in the list that holds it; the list grows up to it.
template <class T>
T& SlotOf(std::vector<T>& slots, int32_t id) {
  if (static_cast<size_t>(id) >= slots.size()) slots.resize(static_cast<size_t>(id) + 1);
  return slots[id];
}

// Calls take(id, values) for each entry of a list of the line. Entries of one value are ids alone.
template <size_t kValues, class Take>
Status ForEach(const json& line, std::string_view list, Take take) {
  const auto found = line.find(list);
  if (found == line.end()) return OkStatus();
  if (!found->is_array()) return Wrong(list, *found, "a list");
  for (const json& entry : *found) {
    const bool is_id = kValues == 1;
    if (!is_id && !(entry.is_array() && entry.size() == kValues))
      return Wrong("an entry of " + std::string(list), entry, "a list of " + std::to_string(kValues) + " integers");
    std::array<int32_t, kValues> values;
    for (size_t i = 0; i < kValues; ++i) {
      const int64_t most = i == 0 ? ForestTraceReader::kMostSlots - 1 : INT32_MAX;
      COPPICE_ASSIGN_OR_RETURN(values[i],
                               ParseInt("a value in " + std::string(list), is_id ? entry : entry[i], i == 0 ? 0 : -1, most));
    }
    COPPICE_RETURN_IF_ERROR(take(values));
  }
  return OkStatus();
}

std::string NameOf(const char* kind, int32_t id) { return std::string(kind) + " " + std::to_string(id); }

Status CheckTokens(const std::string& what, int32_t tokens) {
  if (tokens >= 0 && tokens <= ForestTraceReader::kMostTokens) return OkStatus();
  return InvalidArgument(what + " has " + std::to_string(tokens) + " tokens, expected " + From(0, ForestTraceReader::kMostTokens));
}

// Where each node begins and ends, and which pages it owns.
class PageLayout {
 public:
  PageLayout(const TracedForest& traced, int32_t page_size)
      : traced_(traced), page_size_(page_size), begin_(traced.nodes.size(), kUnknown), first_page_(traced.nodes.size(), kUnknown) {}

  // Begins of the node and those above it.
  Status FindBegin(int32_t node) {
    path_.clear();
    for (int32_t n = node; n != kNoParent && begin_[n] == kUnknown; n = traced_.nodes[n].parent) {
      begin_[n] = kOpen;
      path_.push_back(n);
      const int32_t parent = traced_.nodes[n].parent;
      if (parent == kNoParent) continue;
      if (static_cast<size_t>(parent) >= traced_.nodes.size() || traced_.nodes[parent].parent == kFreeSlot)
        return InvalidArgument(NameOf("node", n) + " has parent " + std::to_string(parent) + ", which is none of the step's nodes");
      if (begin_[parent] == kOpen) return InvalidArgument(NameOf("node", n) + " is its own ancestor");
      if (traced_.nodes[parent].tokens == kLive)
        return InvalidArgument(NameOf("node", n) + " has parent " + std::to_string(parent) + ", which ends with its branch");
    }
    while (!path_.empty()) {
      const int32_t n = path_.back(), parent = traced_.nodes[n].parent;
      path_.pop_back();
      begin_[n] = parent == kNoParent ? 0 : EndOf(parent);
      if (traced_.nodes[n].tokens != kLive) COPPICE_RETURN_IF_ERROR(CheckTokens("the path to " + NameOf("node", n), EndOf(n)));
    }
    return OkStatus();
  }
  int32_t BeginOf(int32_t node) const { return begin_[node]; }
  int32_t EndOf(int32_t node) const {
    return traced_.nodes[node].tokens == kLive ? kLive : begin_[node] + traced_.nodes[node].tokens;
  }

  Status CheckLength(int32_t b) const {
    const Branch& branch = traced_.branches[b];
    const int32_t begin = begin_[branch.node], end = EndOf(branch.node);
    if (branch.kv_len >= begin && (end == kLive || branch.kv_len == end)) return OkStatus();
    return InvalidArgument(NameOf("branch", b) + " has " + std::to_string(branch.kv_len) + " tokens, expected " +
                           (end == kLive ? "at least " + std::to_string(begin) : std::to_string(end)) + ", where its node " +
                           std::to_string(branch.node) + (end == kLive ? " begins" : " ends"));
  }
  // The page row of a branch: the pages of the nodes of its path, then its own. REQUIRES: CheckLength passed.
  std::vector<int32_t> RowOf(const Branch& branch) {
    std::vector<int32_t> row(CeilDiv(branch.kv_len, page_size_), kUnknown);
    for (int32_t n = branch.node; n != kNoParent; n = traced_.nodes[n].parent) {
      if (traced_.nodes[n].tokens == kLive) continue;
      const int32_t first = begin_[n] / page_size_, end = EndOf(n) / page_size_;
      if (first_page_[n] == kUnknown) first_page_[n] = std::exchange(num_pages_, num_pages_ + end - first);
      std::iota(row.begin() + first, row.begin() + end, first_page_[n]);
    }
    for (int32_t& page : row) {
      if (page == kUnknown) page = num_pages_++;
    }
    return row;
  }

 private:
  static constexpr int32_t kUnknown = -1, kOpen = -2;

  const TracedForest& traced_;
  const int32_t page_size_;
  std::vector<int32_t> begin_, first_page_;  // by node
  std::vector<int32_t> path_;
  int32_t num_pages_ = 0;
};

}  // namespace

std::string ForestTraceWriter::HeadLine(const ForestTraceHead& head) {
  std::string line = std::string(kForestTraceBegin) + ",\"version\":" + std::to_string(kVersion) +
                     ",\"page_size\":" + std::to_string(head.page_size) + ",\"layers\":[";
  for (const TracedLayers& layers : head.layers) {
    if (line.back() != '[') line += ',';
    line += "{\"layers\":" + std::to_string(layers.num_layers);
    for (const SpecField& field : kSpecFields) {
      line += ",\"" + std::string(field.name) + "\":" + std::to_string(layers.spec.*field.place);
    }
    line += '}';
  }
  return line + "]}\n";
}

void ForestTraceWriter::AppendStep(const PrefixForestView& forest, std::string* out) {
  LineWriter line(out);
  if (is_first_ || forest.version != version_) {
    before_.nodes.resize(std::max(before_.nodes.size(), forest.node_parent.size()));
    const size_t count = before_.nodes.size();
    const auto now = [&](size_t n) { return n < forest.node_parent.size() ? NodeAt(forest, n) : Node(); };
    for (size_t n = 0; n < count; ++n) {
      if (before_.nodes[n].parent != kFreeSlot && now(n).parent == kFreeSlot) line.Add<1>(kNodesGone, {static_cast<int32_t>(n)});
    }
    for (size_t n = 0; n < count; ++n) {
      const Node node = now(n);
      if (std::exchange(before_.nodes[n], node) == node || node.parent == kFreeSlot) continue;
      line.Add<3>(kNodes, {static_cast<int32_t>(n), node.parent, node.tokens == kLive ? kNoEnd : node.tokens});
    }
  }
  before_.branches.resize(std::max(before_.branches.size(), forest.branch_node.size()));
  const size_t count = before_.branches.size();
  const auto now = [&](size_t b) { return b < forest.branch_node.size() ? BranchAt(forest, b) : Branch(); };
  for (size_t b = 0; b < count; ++b) {
    if (before_.branches[b].node != kFreeSlot && now(b).node == kFreeSlot) line.Add<1>(kBranchesGone, {static_cast<int32_t>(b)});
  }
  for (size_t b = 0; b < count; ++b) {
    const Branch branch = now(b);
    if (GoesOn(std::exchange(before_.branches[b], branch)) == branch || branch.node == kFreeSlot) continue;
    line.Add<4>(kBranches, {static_cast<int32_t>(b), branch.node, branch.kv_len, branch.queries});
  }
  line.End();
  version_ = forest.version;
  is_first_ = false;
}

Result<ForestTraceHead> ParseForestTraceHead(std::string_view text) {
  COPPICE_ASSIGN_OR_RETURN(const json line, ParseJson(text));
  COPPICE_RETURN_IF_ERROR(CheckObject(line));
  const json format = line.value("format", json());
  if (format != kFormat) return Wrong("format", format, '"' + std::string(kFormat) + '"');
  COPPICE_RETURN_IF_ERROR(ParseMember(line, "version", kVersion, kVersion).status());
  ForestTraceHead head;
  COPPICE_ASSIGN_OR_RETURN(head.page_size, ParseMember(line, "page_size", 1, 256));
  const json groups = line.value("layers", json());
  if (!groups.is_array() || groups.empty()) return Wrong("layers", groups, "a list of objects");
  for (const json& group : groups) {
    if (!group.is_object()) return Wrong("an entry of layers", group, "an object");
    TracedLayers& layers = head.layers.emplace_back();
    COPPICE_ASSIGN_OR_RETURN(layers.num_layers, ParseMember(group, "layers", 1, 65535));
    for (const SpecField& field : kSpecFields) {
      COPPICE_ASSIGN_OR_RETURN(layers.spec.*field.place, ParseMember(group, field.name, field.least, field.most));
    }
  }
  return head;
}

Status ForestTraceReader::ReadStep(std::string_view text) {
  COPPICE_ASSIGN_OR_RETURN(const json line, ParseJson(text));
  COPPICE_RETURN_IF_ERROR(CheckObject(line));
  for (const auto& [name, value] : line.items()) {
    if (name != kNodesGone && name != kNodes && name != kBranchesGone && name != kBranches)
      return InvalidArgument("there is no field " + PrintableJson(json(name), kQuoted) +
                             ", expected nodes_gone, nodes, branches_gone, branches");
  }
  for (Branch& branch : forest_.branches) {
    if (branch.node == kFreeSlot) continue;
    branch = GoesOn(branch);
  }
  COPPICE_RETURN_IF_ERROR(ForEach<1>(line, kBranchesGone, [&](const auto& id) -> Status {
    Branch& branch = SlotOf(forest_.branches, id[0]);
    if (branch.node == kFreeSlot) return InvalidArgument(NameOf("branch", id[0]) + " is gone, and was not there");
    branch = {};
    return OkStatus();
  }));
  COPPICE_RETURN_IF_ERROR(ForEach<1>(line, kNodesGone, [&](const auto& id) -> Status {
    Node& node = SlotOf(forest_.nodes, id[0]);
    if (node.parent == kFreeSlot) return InvalidArgument(NameOf("node", id[0]) + " is gone, and was not there");
    node = {};
    return OkStatus();
  }));
  COPPICE_RETURN_IF_ERROR(ForEach<3>(line, kNodes, [&](const auto& values) -> Status {
    const auto [id, parent, tokens] = values;
    if (tokens != kNoEnd) COPPICE_RETURN_IF_ERROR(CheckTokens(NameOf("node", id), tokens));
    SlotOf(forest_.nodes, id) = {.parent = parent, .tokens = tokens == kNoEnd ? kLive : tokens};
    return OkStatus();
  }));
  COPPICE_RETURN_IF_ERROR(ForEach<4>(line, kBranches, [&](const auto& values) -> Status {
    const auto [id, node, kv_len, queries] = values;
    if (queries < 0 || queries > kv_len)
      return InvalidArgument(NameOf("branch", id) + " has " + std::to_string(queries) + " queries, expected " + From(0, kv_len) +
                             ", the number of its tokens");
    SlotOf(forest_.branches, id) = {.node = node, .kv_len = kv_len, .queries = queries};
    return OkStatus();
  }));
  for (size_t b = 0; b < forest_.branches.size(); ++b) {
    const Branch& branch = forest_.branches[b];
    if (branch.node == kFreeSlot) continue;
    const std::string name = NameOf("branch", static_cast<int32_t>(b));
    if (branch.node < 0 || std::cmp_greater_equal(branch.node, forest_.nodes.size()) ||
        forest_.nodes[branch.node].parent == kFreeSlot)
      return InvalidArgument(name + " ends at node " + std::to_string(branch.node) + ", which is none of the step's nodes");
    COPPICE_RETURN_IF_ERROR(CheckTokens(name, branch.kv_len));
  }
  return OkStatus();
}

Result<OwnedForest> LayOutPages(const TracedForest& traced, int32_t page_size) {
  OwnedForest forest{.page_size = page_size};
  PageLayout layout(traced, page_size);
  for (int32_t n = 0; n < std::ssize(traced.nodes); ++n) {
    if (traced.nodes[n].parent == kFreeSlot) {
      forest.AddNode(kFreeSlot, 0, 0);
      continue;
    }
    COPPICE_RETURN_IF_ERROR(layout.FindBegin(n));
    forest.AddNode(traced.nodes[n].parent, layout.BeginOf(n), layout.EndOf(n));
  }
  constexpr int64_t kMostPages = 1 << 26;  // in all rows, so that they can be counted and held
  int64_t num_pages = 0;
  for (int32_t b = 0; b < std::ssize(traced.branches); ++b) {
    const Branch& branch = traced.branches[b];
    const bool reads = branch.node != kFreeSlot && branch.queries > 0;
    if (branch.node != kFreeSlot) COPPICE_RETURN_IF_ERROR(layout.CheckLength(b));
    num_pages += reads ? CeilDiv(branch.kv_len, page_size) : 0;
    if (num_pages > kMostPages)
      return InvalidArgument("the branches up to " + NameOf("branch", b) + " have " + std::to_string(num_pages) +
                             " pages, each its own, expected at most " + std::to_string(kMostPages) + " in a step");
    forest.AddBranch(branch.node, branch.kv_len, branch.queries, reads ? layout.RowOf(branch) : std::vector<int32_t>());
  }
  return forest;
}

}  // namespace coppice::attention
