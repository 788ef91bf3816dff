// A step's plan in words. Layer: engine.
#include "coppice/engine/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "core/format_bytes.h"

namespace coppice {
namespace {

using attention::ReadReason;

std::string Counted(int64_t count, std::string_view noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

// Of one layer.
std::string Microseconds(double us) { return fmt::format("{:.{}f} us", us, us < 10 ? 1 : 0); }

std::string Why(const PlannedRead& read) {
  const std::string together = Microseconds(read.together_us), apart = Microseconds(read.apart_us);
  switch (read.reason) {
    case ReadReason::kFaster:
      return "predicted cost " + (read.together ? together + " a layer, apart " + apart : apart + " a layer, together " + together);
    case ReadReason::kForced: return "sharing is forced, whatever it costs";
    case ReadReason::kPolicy: return "the sharing mode allows no other way";
    case ReadReason::kNoRoom: return "the plan has no room for another shared read";
    case ReadReason::kStepNoGain: return "reading them together would save time by itself, but the whole step would end no sooner";
    case ReadReason::kNotSeen: return "they lie before the window of attention, so that none is read at all";
    case ReadReason::kOneReader: return "one sample alone reads them in this step";
  }
  return "";
}

// Reads as trees.
class ReadTrees {
 public:
  explicit ReadTrees(const std::vector<PlannedRead>& reads) : reads_(reads) {
    std::map<int32_t, size_t> index;  // by node
    for (size_t i = 0; i < reads.size(); ++i) index[reads[i].node] = i;
    children_.resize(reads.size());
    for (size_t i = 0; i < reads.size(); ++i) {
      const auto parent = index.find(reads[i].parent);
      (parent == index.end() ? roots_ : children_[parent->second]).push_back(i);
    }
  }

  // Each line: what the plan decided about as one, which may be several nodes.
  void AppendTo(std::string* text) const {
    struct Place {
      size_t read;
      size_t depth;
    };
    std::vector<Place> open;
    const auto push = [&](const std::vector<size_t>& siblings, size_t depth) {
      for (size_t i = siblings.size(); i-- > 0;) open.push_back({.read = siblings[i], .depth = depth});
    };
    push(roots_, 0);
    while (!open.empty()) {
      const Place place = open.back();
      open.pop_back();
      size_t last = place.read;
      while (children_[last].size() == 1 && GoesOn(reads_[last], reads_[children_[last].front()])) last = children_[last].front();
      constexpr size_t kMostIndent = 40;  // columns: a chain of nodes may be as deep as there are nodes
      *text += fmt::format("{:{}}tokens {} to {}: {}\n", "", std::min(2 + 2 * place.depth, kMostIndent), reads_[place.read].begin,
                           reads_[last].end, ReasonText(reads_[place.read]));
      push(children_[last], place.depth + 1);
    }
  }

 private:
  // Whether the plan decided about both as one.
  static bool GoesOn(const PlannedRead& read, const PlannedRead& next) {
    return next.decision == read.decision && next.samples == read.samples;
  }

  const std::vector<PlannedRead>& reads_;
  std::vector<size_t> roots_;
  std::vector<std::vector<size_t>> children_;  // by read
};

}  // namespace

std::string ReasonText(const PlannedRead& read) {
  return fmt::format("{} read them {}: {}.", Counted(read.samples, "sample"), read.together ? "together" : "apart", Why(read));
}

std::string PlanText(const StepPlan& plan) {
  std::string text = fmt::format("step {}: {} of outputs, {} of prompts\n", plan.step, Counted(plan.decode_rows, "token"),
                                 Counted(plan.prefill_rows, "token"));
  ReadTrees(plan.reads).AppendTo(&text);
  if (plan.reads.empty()) text += "  no two samples have tokens in common: there is nothing to read together\n";
  text += fmt::format("KV read by attention: {}; without reading together {}", Bytes(plan.kv_bytes_read),
                      Bytes(plan.kv_bytes_read_unshared));
  if (plan.kv_bytes_read > 0) {
    text += fmt::format(", {:.1f} times as much",
                        static_cast<double>(plan.kv_bytes_read_unshared) / static_cast<double>(plan.kv_bytes_read));
  }
  return text + '\n';
}

}  // namespace coppice
