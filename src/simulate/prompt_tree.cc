#include "simulate/prompt_tree.h"

#include <algorithm>

#include "core/check.h"

namespace coppice::simulate {
namespace {

int32_t SharedBegin(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

uint64_t HashOf(std::span<const int32_t> tokens) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001B3u;
  return hash;
}

// Ascending ends of pieces that a prompt shares with some prompt before it, going on from its predecessor's.
void Follow(int32_t shared, std::vector<int32_t>* ends) {
  while (!ends->empty() && ends->back() > shared) ends->pop_back();
  if (shared > 0 && (ends->empty() || ends->back() < shared)) ends->push_back(shared);
}

}  // namespace

std::vector<int32_t> AddSortedPrompts(size_t count, const std::function<std::span<const int32_t>(size_t)>& prompt, Trace* trace) {
  std::vector<int32_t> shared(count);  // with the prompt before
  for (size_t i = 1; i < count; ++i) shared[i] = SharedBegin(prompt(i - 1), prompt(i));
  std::vector<std::vector<int32_t>> cuts(count);
  std::vector<int32_t> ends;
  for (size_t i = count; i-- > 0;) {  // what it shares with prompts behind it
    if (i + 1 < count) Follow(shared[i + 1], &ends);
    cuts[i] = ends;
  }
  ends.clear();
  std::vector<int32_t> nodes;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) Follow(shared[i], &ends);
    const std::span<const int32_t> tokens = prompt(i);
    COPPICE_CHECK(!tokens.empty());
    std::vector<int32_t> all;
    std::ranges::set_union(ends, cuts[i], std::back_inserter(all));
    if (all.empty() || all.back() < std::ssize(tokens)) all.push_back(static_cast<int32_t>(tokens.size()));
    int32_t node = kNoNode, begin = 0;
    for (const int32_t end : all) {
      node = trace->Find(node, {.id = HashOf(tokens.subspan(begin, end - begin)), .tokens = end - begin});
      begin = end;
    }
    nodes.push_back(node);
    cuts[i].clear();
  }
  return nodes;
}

}  // namespace coppice::simulate
