// A unigram model: of all ways to cut a piece into tokens, the one with the highest sum of scores (Kudo 2018, arXiv 1804.10959),
// found by Viterbi over a trie of the tokens. Layer: tokenizer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/model_encoder.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Immutable after Create: safe to use from several threads.
class UnigramEncoder final : public ModelEncoder {
 public:
  // `data.model` is "unigram" or "spm-unigram": SentencePiece's sums are in single precision, and its user-defined tokens always
  // win. INVALID_ARGUMENT without an unk token. `data` outlives the encoder.
  static Result<std::unique_ptr<UnigramEncoder>> Create(const TokenizerData& data);

  // O(n m) in the length of `piece` and of the longest token.
  void Encode(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const override;

 private:
  struct Edge {
    uint64_t key = kNoEdge;  // node in the high part, byte in the low one
    uint32_t child = 0;
  };
  static constexpr uint64_t kNoEdge = ~uint64_t{0};

  explicit UnigramEncoder(const TokenizerData& data) : data_(data) {}
  void BuildTrie(const std::vector<int32_t>& ids);
  // 0: there is no such edge.
  uint32_t Child(uint32_t node, uint8_t byte) const;

  template <class Sum>
  void Viterbi(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const;

  // A run of text without tokens: its bytes, or unk.
  void EncodeUnknown(std::string_view text, bool with_control, std::vector<int32_t>* ids) const;
  // The token that ends at a node, of those that text may become; -1: none.
  int32_t TokenAt(uint32_t node, bool with_control) const {
    const int32_t id = node_ids_[node];
    return id < 0 || with_control || data_.kinds[id] != TokenizerData::TokenKind::kControl ? id : -1;
  }

  const TokenizerData& data_;
  bool from_sentencepiece_ = false;
  std::vector<Edge> edges_;            // open addressing, at most half full, a power of two
  int shift_ = 0;                      // 64 - log2(edges_.size())
  std::vector<int32_t> node_ids_;      // the token that ends at a node; -1: none
  std::array<int32_t, 256> byte_ids_;  // of "<0x00>" to "<0xFF>"
  double unk_score_ = 0, max_score_ = 0;
};

}  // namespace coppice
