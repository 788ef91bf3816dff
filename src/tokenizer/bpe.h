// Byte-pair encoding of one piece of text: the merge rules, looked up by pairs of ids, applied lowest rank first, leftmost first.
// Ranks are the order of the merges in the file, or of the scores of the merged tokens (SentencePiece). Layer: tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/model_encoder.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Immutable after Create: safe to use from several threads.
class BpeEncoder final : public ModelEncoder {
 public:
  // `data.model` is "bpe" or "spm-bpe". INVALID_ARGUMENT where a merge names a token, or makes one, that the vocabulary lacks.
  // `data` outlives the encoder.
  static Result<std::unique_ptr<BpeEncoder>> Create(const TokenizerData& data);

  // O(n log n) in the length of `piece`; 20 to 30 bytes of memory for each of its symbols.
  void Encode(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const override;

 private:
  struct Merge {
    uint64_t pair = kNoPair;  // left id in the high half, right id in the low half
    int32_t rank = -1;        // -1: this pair does not merge
    int32_t merged = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};  // two ids of -1, which no token has
  using IdMap = std::unordered_map<std::string_view, int32_t>;

  explicit BpeEncoder(const TokenizerData& data) : data_(data) {}
  Status ReadMerges(const IdMap& id_of);
  Status ScoreMerges(const IdMap& id_of);
  void BuildTable(const std::vector<Merge>& merges);
  Merge Find(int32_t left, int32_t right) const;
  size_t Slot(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }  // Fibonacci hashing

  // `piece_first`: where the ids of the whole piece begin.
  void AppendSymbols(std::string_view part, size_t piece_first, std::vector<int32_t>* ids) const;
  void MergeFrom(size_t first, std::vector<int32_t>* ids) const;
  void MergeShort(std::vector<int32_t>* ids, size_t first) const;
  // `Index` holds the places of a piece.
  template <class Index>
  void MergeLong(std::vector<int32_t>* ids, size_t first) const;
  void ResolveSymbols(size_t first, std::vector<int32_t>* ids) const;
  void CutControlTokens(size_t first, std::vector<int32_t>* ids) const;

  const TokenizerData& data_;
  std::array<int32_t, 256> byte_ids_;                            // of bytes (byte level) or of "<0x00>" to "<0xFF>"; -1: no token
  std::array<int32_t, 128> ascii_ids_;                           // of characters; -1: no token
  std::unordered_map<std::string_view, int32_t> character_ids_;  // of the other characters; views into data_
  std::unordered_map<std::string_view, int32_t> whole_pieces_;   // ignore_merges: views into decoded_
  std::vector<std::string> decoded_;                             // what tokens stand for
  std::unordered_map<int32_t, std::pair<int32_t, int32_t>> control_parts_;  // of a control token: what it merges from
  std::vector<Merge> table_;                                                // open addressing, at most half full, a power of two
  int shift_ = 0;                                                           // 64 - log2(table_.size())
  bool all_bytes_ = false;                                                  // every byte has a token

  // spm: symbols beyond the vocabulary. First come characters that only stand inside of tokens, then user-defined tokens, which
  // never merge.
  std::vector<std::string_view> loose_characters_;
  std::vector<int32_t> frozen_ids_;
  AddedTokenMatcher frozen_{{}};
  std::unordered_map<int32_t, std::pair<int32_t, int32_t>> unused_parts_;  // of an unused token: what it merges from
  // No merge joins U+2581 to a character before it: pieces are cut there, and stay short.
  bool cut_at_spaces_ = false;
};

}  // namespace coppice
