// How often each token occurs in a growing text, kept up to date token by token: what the penalties look at, so that they cost the
// distinct tokens of a text and not its length. Layer: runner.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace coppice {

// Thread-compatible.
class TokenCounts {
 public:
  struct Entry {
    int32_t token = 0, count = 0;
    bool in_prompt = false;
  };

  // Counts one occurrence; `prompt`, if given, says whether the token occurs there too. Amortised O(1).
  void Add(int32_t token, const TokenCounts* prompt = nullptr) {
    const auto [place, is_new] = places_.try_emplace(token, entries_.size());
    if (is_new) entries_.push_back({.token = token, .in_prompt = prompt != nullptr && prompt->Contains(token)});
    ++entries_[place->second].count;
    ++total_;
  }
  bool Contains(int32_t token) const { return places_.contains(token); }
  // One per distinct token.
  std::span<const Entry> entries() const { return entries_; }
  // Tokens counted so far.
  size_t total() const { return total_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> places_;
  size_t total_ = 0;
};

}  // namespace coppice
