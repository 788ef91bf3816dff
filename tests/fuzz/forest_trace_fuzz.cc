// Input: a forest trace. Each step that is accepted is laid out, and read again from what is written of it.
#include "attention_tools/forest_trace.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice::attention;
using coppice::Result;
using coppice::Status;
using coppice::fuzz::Require;
using coppice::fuzz::RequireOneLine;

namespace {

// Slots behind the last one in use may be missing.
bool Agree(const TracedForest& a, const TracedForest& b) {
  const auto agree = [](const auto& x, const auto& y) {
    const auto at = [](const auto& slots, size_t i) { return i < slots.size() ? slots[i] : std::decay_t<decltype(slots[0])>(); };
    for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
      if (at(x, i) != at(y, i)) return false;
    }
    return true;
  };
  return agree(a.nodes, b.nodes) && agree(a.branches, b.branches);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kMostSteps = 32;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto next_line = [&text] {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return line;
  };
  const Result<ForestTraceHead> head = ParseForestTraceHead(next_line());
  if (!head.ok()) {
    RequireOneLine(head.status());
    return 0;
  }
  const Result<ForestTraceHead> same = ParseForestTraceHead(ForestTraceWriter::HeadLine(*head));
  Require(same.ok() && *same == *head, "a head that is read as another");
  ForestTraceReader reader, again;
  ForestTraceWriter writer;
  for (int step = 0; step < kMostSteps && !text.empty(); ++step) {
    if (const Status read = reader.ReadStep(next_line()); !read.ok()) {
      RequireOneLine(read);
      return 0;
    }
    const Result<OwnedForest> forest = LayOutPages(reader.forest(), head->page_size);
    if (!forest.ok()) {
      RequireOneLine(forest.status());
      return 0;
    }
    OwnedForest versioned = *forest;
    versioned.version = static_cast<uint64_t>(step);
    std::string line;
    writer.AppendStep(versioned.Forest(), &line);
    Require(again.ReadStep(line).ok() && Agree(again.forest(), reader.forest()), "a step that is read as another");
  }
  return 0;
}
