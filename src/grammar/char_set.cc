#include "grammar/char_set.h"

#include <algorithm>

namespace coppice {
namespace {

constexpr CharRange kBelowSurrogates = {0, 0xD7FF}, kAboveSurrogates = {0xE000, 0x10FFFF};

}  // namespace

CharSet::CharSet(std::vector<CharRange> ranges) {
  std::vector<CharRange> scalars;
  for (const CharRange& range : ranges) {
    for (const CharRange& part : {kBelowSurrogates, kAboveSurrogates}) {
      const CharRange common = {std::max(range.first, part.first), std::min(range.last, part.last)};
      if (common.first <= common.last) scalars.push_back(common);
    }
  }
  std::ranges::sort(scalars, {}, &CharRange::first);
  for (const CharRange& range : scalars) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

CharSet CharSet::OfAscii(std::string_view characters) {
  std::vector<CharRange> ranges;
  for (const char c : characters) ranges.push_back({static_cast<char32_t>(c), static_cast<char32_t>(c)});
  return CharSet(std::move(ranges));
}

CharSet CharSet::All() { return CharSet({kBelowSurrogates, kAboveSurrogates}); }

bool CharSet::Contains(char32_t c) const {
  const auto after = std::ranges::upper_bound(ranges_, c, {}, &CharRange::first);
  return after != ranges_.begin() && c <= std::prev(after)->last;
}

CharSet CharSet::Complement() const {
  std::vector<CharRange> gaps;
  char32_t next = 0;
  for (const CharRange& range : ranges_) {
    if (next < range.first) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kAboveSurrogates.last) gaps.push_back({next, kAboveSurrogates.last});
  return CharSet(std::move(gaps));
}

CharSet operator|(const CharSet& a, const CharSet& b) {
  std::vector<CharRange> ranges = a.ranges_;
  ranges.insert(ranges.end(), b.ranges_.begin(), b.ranges_.end());
  return CharSet(std::move(ranges));
}

CharSet operator&(const CharSet& a, const CharSet& b) { return (a.Complement() | b.Complement()).Complement(); }

}  // namespace coppice
