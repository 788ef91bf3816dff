#include "tokenizer/unigram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "tokenizer/byte_token.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using TokenKind = TokenizerData::TokenKind;

constexpr int32_t kNoToken = -2;                 // of a character that no token begins with
constexpr double kUnkPenalty = 10;               // below the least score, in both libraries
constexpr double kUserDefinedPenalty = 0.1;      // SentencePiece: below the best score for each byte
constexpr uint64_t kHash = 0x9E3779B97F4A7C15u;  // Fibonacci hashing

}  // namespace

Result<std::unique_ptr<UnigramEncoder>> UnigramEncoder::Create(const TokenizerData& data) {
  const bool from_sentencepiece = data.model == "spm-unigram";
  if (data.unk_id < 0) return InvalidArgument("the unigram tokenizer has no unk token; expected one of its tokens");
  std::unique_ptr<UnigramEncoder> encoder(new UnigramEncoder(data));
  encoder->from_sentencepiece_ = from_sentencepiece;
  encoder->byte_ids_.fill(-1);
  std::unordered_map<std::string_view, int32_t> id_of;
  double min_score = std::numeric_limits<float>::max(), max_score = std::numeric_limits<float>::min();  // min: as in SentencePiece
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const TokenKind kind = data.kinds[i];
    if (const auto byte = ByteOfToken(data.tokens[i]); byte && (kind == TokenKind::kByte || !from_sentencepiece)) {
      encoder->byte_ids_[*byte] = id;
    }
    // SentencePiece counts normal tokens only; Hugging Face every one of its model, of which those added are no part.
    const bool scored = from_sentencepiece ? kind == TokenKind::kNormal : !std::isnan(data.scores[i]);
    if (scored) {
      min_score = std::min(min_score, data.scores[i]);
      max_score = std::max(max_score, data.scores[i]);
    }
    const bool in_text = from_sentencepiece ? kind == TokenKind::kNormal || kind == TokenKind::kUserDefined : scored;
    if (in_text && !data.tokens[i].empty()) id_of.insert_or_assign(data.tokens[i], id);
  }
  // The sum that SentencePiece makes is one of floats.
  encoder->unk_score_ =
      from_sentencepiece ? static_cast<double>(static_cast<float>(min_score - kUnkPenalty)) : min_score - kUnkPenalty;
  encoder->max_score_ = max_score;
  std::vector<int32_t> ids;
  for (const auto& [token, id] : id_of) ids.push_back(id);
  std::ranges::sort(ids);
  encoder->BuildTrie(ids);
  return encoder;
}

void UnigramEncoder::BuildTrie(const std::vector<int32_t>& ids) {
  size_t bytes = 0;
  for (int32_t id : ids) bytes += data_.tokens[id].size();
  edges_.resize(std::bit_ceil(2 * bytes + 2));
  shift_ = 64 - std::countr_zero(edges_.size());
  node_ids_.assign(1, -1);
  for (int32_t id : ids) {
    uint32_t node = 0;
    for (char c : data_.tokens[id]) {
      const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(c);
      size_t slot = key * kHash >> shift_;
      while (edges_[slot].key != kNoEdge && edges_[slot].key != key) slot = (slot + 1) & (edges_.size() - 1);
      if (edges_[slot].key == kNoEdge) {
        edges_[slot] = {key, static_cast<uint32_t>(node_ids_.size())};
        node_ids_.push_back(-1);
      }
      node = edges_[slot].child;
    }
    node_ids_[node] = id;
  }
}

uint32_t UnigramEncoder::Child(uint32_t node, uint8_t byte) const {
  const uint64_t key = uint64_t{node} << 8 | byte;
  size_t slot = key * kHash >> shift_;
  while (edges_[slot].key != kNoEdge && edges_[slot].key != key) slot = (slot + 1) & (edges_.size() - 1);
  return edges_[slot].key == kNoEdge ? 0 : edges_[slot].child;
}

void UnigramEncoder::Encode(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const {
  from_sentencepiece_ ? Viterbi<float>(piece, with_control, ids) : Viterbi<double>(piece, with_control, ids);
}

template <class Sum>
void UnigramEncoder::Viterbi(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const {
  struct Best {
    int32_t id = -1;
    int64_t begin = -1;  // of the token that ends here; -1: nothing ends here
    Sum sum = 0;
  };
  std::vector<Best> best(piece.size() + 1);
  const auto propose = [&](size_t begin, size_t end, int32_t id, double score) {
    const double sum = score + static_cast<double>(best[begin].sum);
    if (best[end].begin >= 0 && static_cast<Sum>(sum) <= best[end].sum) return;
    best[end] = {id, static_cast<int64_t>(begin), static_cast<Sum>(sum)};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t character = DecodeUtf8(piece.substr(begin)).length;
    bool has_single = false;
    uint32_t node = 0;
    for (size_t end = begin; end < piece.size();) {
      node = Child(node, static_cast<uint8_t>(piece[end++]));
      if (node == 0) break;
      const int32_t id = TokenAt(node, with_control);
      if (id < 0) continue;
      const size_t length = end - begin;
      const bool user_defined = from_sentencepiece_ && data_.kinds[id] == TokenKind::kUserDefined;
      propose(begin, end, id,
              user_defined ? static_cast<double>(static_cast<float>(length) * static_cast<float>(max_score_)) - kUserDefinedPenalty
                           : static_cast<double>(data_.scores[id]));
      has_single |= length == character;
    }
    if (!has_single) propose(begin, begin + character, kNoToken, unk_score_);
    begin += character;
  }

  std::vector<const Best*> path;  // last token first
  for (size_t end = piece.size(); end > 0; end = static_cast<size_t>(best[end].begin)) path.push_back(&best[end]);
  size_t unknown = piece.size();  // where a run of text without tokens begins; the end: there is none
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    const auto begin = static_cast<size_t>((*step)->begin), end = static_cast<size_t>(*step - best.data());
    const bool is_unknown = (*step)->id == kNoToken || (*step)->id == data_.unk_id;
    if (is_unknown) unknown = std::min(unknown, begin);
    const bool goes_on = is_unknown && data_.fuse_unk && end < piece.size();
    if (unknown < piece.size() && !goes_on) {
      const size_t unknown_end = is_unknown ? end : begin;
      EncodeUnknown(piece.substr(unknown, unknown_end - unknown), with_control, ids);
      unknown = piece.size();
    }
    if (!is_unknown) ids->push_back((*step)->id);
  }
}

void UnigramEncoder::EncodeUnknown(std::string_view text, bool with_control, std::vector<int32_t>* ids) const {
  if (!from_sentencepiece_) {  // Hugging Face looks once more whether it is a token, which the text of unk itself is
    uint32_t node = 0;
    for (const char c : text) {
      if (node = Child(node, static_cast<uint8_t>(c)); node == 0) break;
    }
    if (node != 0 && TokenAt(node, with_control) >= 0) return ids->push_back(node_ids_[node]);
  }
  const auto id_of = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (data_.byte_fallback && std::ranges::all_of(text, [&](char c) { return id_of(c) >= 0; })) {
    for (const char c : text) ids->push_back(id_of(c));
  } else {
    ids->push_back(data_.unk_id);
  }
}

}  // namespace coppice
