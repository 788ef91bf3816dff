#include "tokenizer/chars_map.h"

#include <algorithm>
#include <cstring>

namespace coppice {
namespace {

// A unit of darts-clone, the library that SentencePiece builds its tries with.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t LabelOf(uint32_t unit) { return unit & (0x80000000u | 0xFFu); }
// Keys in use have a few characters; a damaged trie may go round in circles.
constexpr size_t kMaxKey = 256;
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

Result<CharsMap> CharsMap::Create(std::string_view blob) {
  CharsMap map;
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof trie_bytes) std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes > blob.size() - sizeof trie_bytes) {
    return InvalidArgument("the precompiled character map of " + std::to_string(blob.size()) + " bytes says that its trie has " +
                           std::to_string(trie_bytes) + "; expected a multiple of 4 that fits; the file is damaged");
  }
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), blob.data() + sizeof trie_bytes, trie_bytes);
  map.replacements_ = blob.substr(sizeof trie_bytes + trie_bytes);
  return map;
}

std::optional<CharsMap::Match> CharsMap::Find(std::string_view text, bool longest) const {
  std::optional<Match> match;
  size_t node = OffsetOf(units_[0]);
  for (size_t i = 0; i < std::min(text.size(), kMaxKey); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || LabelOf(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= OffsetOf(unit);
    if (!HasLeaf(unit) || node >= units_.size()) continue;
    const size_t begin = ValueOf(units_[node]);
    if (begin >= replacements_.size()) continue;
    const std::string_view rest = std::string_view(replacements_).substr(begin);
    match = Match{i + 1, rest.substr(0, rest.find('\0'))};
    if (!longest) break;
  }
  return match;
}

}  // namespace coppice
