// Sets of characters: Unicode scalar values, that is, code points but for surrogates. Layer: grammar.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace coppice {

struct CharRange {
  char32_t first, last;  // both belong to it

  friend bool operator==(const CharRange&, const CharRange&) = default;
};

// A value type; ranges are sorted and neither overlap nor touch.
class CharSet {
 public:
  CharSet() = default;
  // In any order; they may overlap. Surrogates are left out.
  CharSet(std::initializer_list<CharRange> ranges) : CharSet(std::vector<CharRange>(ranges)) {}
  explicit CharSet(std::vector<CharRange> ranges);
  static CharSet Of(char32_t c) { return CharSet({{c, c}}); }
  static CharSet OfAscii(std::string_view characters);
  static CharSet All();

  std::span<const CharRange> ranges() const& { return ranges_; }
  std::span<const CharRange> ranges() && = delete;  // of a set that is gone
  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t c) const;

  CharSet Complement() const;
  friend CharSet operator|(const CharSet& a, const CharSet& b);
  friend CharSet operator&(const CharSet& a, const CharSet& b);
  friend bool operator==(const CharSet&, const CharSet&) = default;

 private:
  std::vector<CharRange> ranges_;
};

}  // namespace coppice
