#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <string>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using TokenKind = TokenizerData::TokenKind;

// Up to here rescanning all pairs after each merge is faster than a queue; almost every piece of real text is shorter.
constexpr size_t kMaxShortPiece = 48;
constexpr std::string_view kSpaceSymbol = "\u2581";

uint64_t PairOf(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }

bool IsOneCharacter(std::string_view text) { return !text.empty() && DecodeUtf8(text).length == text.size(); }

// Places where symbols may merge: lowest rank first, those of one rank from left to right. One queue of all places would be slow
// where they are many: a heap of millions lies all over memory. The places of a rank come nearly in order, and ranks are few where
// a piece is long.
template <class Index>
class PlacesByRank {
 public:
  struct Next {
    int32_t rank;
    Index place;
  };

  void Push(int32_t rank, Index place) {
    Places& places = places_[rank];
    if (places.empty()) ranks_.push(rank);
    places.begun ? places.late.push(place) : places.waiting.push_back(place);
  }

  std::optional<Next> Pop() {
    if (ranks_.empty()) return std::nullopt;
    const int32_t rank = ranks_.top();
    Places& places = places_[rank];
    if (!places.begun) {
      places.begun = true;
      if (!std::ranges::is_sorted(places.waiting)) std::ranges::sort(places.waiting);
    }
    Index place;
    const bool has_waiting = places.done < places.waiting.size();
    if (has_waiting && (places.late.empty() || places.waiting[places.done] <= places.late.top())) {
      place = places.waiting[places.done++];
    } else {
      place = places.late.top();
      places.late.pop();
    }
    if (places.empty()) {
      places = {};
      ranks_.pop();
    }
    return Next{rank, place};
  }

 private:
  struct Places {
    std::vector<Index> waiting;  // sorted once the first was taken
    size_t done = 0;             // of these
    bool begun = false;
    std::priority_queue<Index, std::vector<Index>, std::greater<>> late;  // that came since then

    bool empty() const { return done == waiting.size() && late.empty(); }
  };

  std::unordered_map<int32_t, Places> places_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ranks_;  // that have places
};

// The tokens that text can become by merging.
bool IsMergeable(TokenKind kind) {
  return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined || kind == TokenKind::kUnused;
}

}  // namespace

Result<std::unique_ptr<BpeEncoder>> BpeEncoder::Create(const TokenizerData& data) {
  std::unique_ptr<BpeEncoder> encoder(new BpeEncoder(data));
  const bool scored = data.model == "spm-bpe";
  IdMap id_of;
  id_of.reserve(data.tokens.size());
  encoder->byte_ids_.fill(-1);
  encoder->ascii_ids_.fill(-1);
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& token = data.tokens[i];
    const TokenKind kind = data.kinds[i];
    const auto byte = data.byte_level ? std::nullopt : ByteOfToken(token);
    if (byte && (kind == TokenKind::kByte || !scored)) encoder->byte_ids_[*byte] = id;
    if (scored ? !IsMergeable(kind) : kind == TokenKind::kUnused) continue;
    // Of two tokens with the same text the normal one is meant.
    kind == TokenKind::kNormal ? void(id_of.insert_or_assign(token, id)) : void(id_of.try_emplace(token, id));
  }
  for (int byte = 0; data.byte_level && byte < 256; ++byte) {
    const auto found = id_of.find(ByteLevelCharacter(static_cast<uint8_t>(byte)));
    encoder->byte_ids_[byte] = found == id_of.end() ? -1 : found->second;
  }
  encoder->all_bytes_ = std::ranges::find(encoder->byte_ids_, -1) == encoder->byte_ids_.end();
  for (const auto& [token, id] : id_of) {
    if (data.byte_level || !IsOneCharacter(token)) continue;
    if (scored && data.kinds[id] == TokenKind::kUserDefined) continue;
    const auto first = static_cast<uint8_t>(token[0]);
    first < 0x80 ? void(encoder->ascii_ids_[first] = id) : void(encoder->character_ids_.emplace(token, id));
  }
  COPPICE_RETURN_IF_ERROR(scored ? encoder->ScoreMerges(id_of) : encoder->ReadMerges(id_of));
  if (data.ignore_merges) {
    encoder->decoded_.reserve(data.tokens.size());  // views into it must not move
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      if (data.kinds[id] != TokenKind::kNormal) continue;
      encoder->decoded_.push_back(data.byte_level ? ByteLevelDecode(data.tokens[id]) : data.tokens[id]);
      encoder->whole_pieces_.emplace(encoder->decoded_.back(), static_cast<int32_t>(id));
    }
  }
  return encoder;
}

Status BpeEncoder::ReadMerges(const IdMap& id_of) {
  std::vector<Merge> merges;
  merges.reserve(data_.merges.size());
  cut_at_spaces_ = !data_.byte_level && !data_.ignore_merges;
  for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const std::string& left = data_.merges[rank].first;
    const std::string& right = data_.merges[rank].second;
    const auto id = [&](const std::string& token) -> Result<int32_t> {
      if (const auto found = id_of.find(token); found != id_of.end()) return found->second;
      return InvalidArgument("merge " + std::to_string(rank) + " (" + Quoted(left) + " + " + Quoted(right) + ") needs the token " +
                             Quoted(token) + ", which is not in the vocabulary of " + std::to_string(data_.tokens.size()) +
                             " tokens; the tokenizer file is damaged or its parts do not belong together");
    };
    COPPICE_ASSIGN_OR_RETURN(const int32_t left_id, id(left));
    COPPICE_ASSIGN_OR_RETURN(const int32_t right_id, id(right));
    COPPICE_ASSIGN_OR_RETURN(const int32_t merged_id, id(left + right));
    merges.push_back({PairOf(left_id, right_id), static_cast<int32_t>(rank), merged_id});
    const bool is_cut = !left.empty() && !right.empty();
    if (is_cut && data_.kinds[merged_id] == TokenKind::kControl) control_parts_.try_emplace(merged_id, left_id, right_id);
    if (right.starts_with(kSpaceSymbol) && !left.ends_with(kSpaceSymbol)) cut_at_spaces_ = false;
  }
  BuildTable(merges);
  return OkStatus();
}

// SentencePiece merges any two symbols whose text together is a token. All ways to cut a token in two symbols are listed, ranked by
// the token's score.
Status BpeEncoder::ScoreMerges(const IdMap& id_of) {
  const auto vocabulary = static_cast<int32_t>(data_.tokens.size());
  IdMap symbol_of;  // what a token can be cut into
  for (const auto& [token, id] : id_of) {
    if (data_.kinds[id] != TokenKind::kUserDefined) symbol_of.emplace(token, id);
  }
  for (const auto& [token, id] : id_of) {
    if (data_.kinds[id] == TokenKind::kUserDefined) continue;
    for (size_t i = 0; i < token.size();) {
      const std::string_view character = token.substr(i, DecodeUtf8(token.substr(i)).length);
      i += character.size();
      if (character.size() == token.size() || symbol_of.contains(character)) continue;
      const int32_t loose = vocabulary + static_cast<int32_t>(loose_characters_.size());
      loose_characters_.push_back(character);
      symbol_of.emplace(character, loose);
      const auto first = static_cast<uint8_t>(character[0]);
      first < 0x80 ? void(ascii_ids_[first] = loose) : void(character_ids_.emplace(character, loose));
    }
  }

  std::vector<int32_t> by_score;
  for (const auto& [token, id] : id_of) {
    if (data_.kinds[id] != TokenKind::kUserDefined && !IsOneCharacter(token)) by_score.push_back(id);
  }
  std::ranges::sort(by_score, [&](int32_t a, int32_t b) {
    return data_.scores[a] != data_.scores[b] ? data_.scores[a] > data_.scores[b] : a < b;
  });
  std::vector<Merge> merges;
  int32_t rank = -1;
  cut_at_spaces_ = true;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i == 0 || data_.scores[by_score[i]] != data_.scores[by_score[i - 1]]) ++rank;  // equal scores: leftmost first
    const std::string_view token = data_.tokens[by_score[i]];
    for (size_t cut = DecodeUtf8(token).length; cut < token.size(); cut += DecodeUtf8(token.substr(cut)).length) {
      const auto left = symbol_of.find(token.substr(0, cut)), right = symbol_of.find(token.substr(cut));
      if (left == symbol_of.end() || right == symbol_of.end()) continue;
      merges.push_back({PairOf(left->second, right->second), rank, by_score[i]});
      if (data_.kinds[by_score[i]] == TokenKind::kUnused) unused_parts_[by_score[i]] = {left->second, right->second};
      if (right->first.starts_with(kSpaceSymbol) && !left->first.ends_with(kSpaceSymbol)) cut_at_spaces_ = false;
    }
  }
  BuildTable(merges);

  std::vector<std::pair<std::string_view, int32_t>> frozen;
  for (const auto& [token, id] : id_of) {
    if (data_.kinds[id] != TokenKind::kUserDefined) continue;
    const auto index = static_cast<int32_t>(loose_characters_.size() + frozen_ids_.size());
    frozen.emplace_back(token, vocabulary + index);
    frozen_ids_.push_back(id);
    if (token.find(kSpaceSymbol, 1) != token.npos) cut_at_spaces_ = false;
  }
  frozen_ = AddedTokenMatcher(std::move(frozen));
  return OkStatus();
}

void BpeEncoder::BuildTable(const std::vector<Merge>& merges) {
  table_.resize(std::bit_ceil(2 * merges.size() + 2));
  shift_ = 64 - std::countr_zero(table_.size());
  for (const Merge& merge : merges) {
    size_t slot = Slot(merge.pair);
    while (table_[slot].pair != kNoPair && table_[slot].pair != merge.pair) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = merge;  // of two equal pairs the later one counts
  }
}

BpeEncoder::Merge BpeEncoder::Find(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  size_t slot = Slot(pair);
  while (table_[slot].pair != kNoPair && table_[slot].pair != pair) slot = (slot + 1) & (table_.size() - 1);
  return table_[slot];
}

void BpeEncoder::Encode(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const {
  if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) return ids->push_back(whole->second);
  const size_t first_id = ids->size();
  while (!piece.empty()) {
    size_t end = piece.size();
    if (cut_at_spaces_) {
      // Before the first U+2581 that follows another character.
      size_t at = 0;
      while (piece.substr(at).starts_with(kSpaceSymbol)) at += kSpaceSymbol.size();
      end = std::min(end, piece.find(kSpaceSymbol, at));
    }
    const size_t first = ids->size();
    AppendSymbols(piece.substr(0, end), first_id, ids);
    MergeFrom(first, ids);
    piece.remove_prefix(end);
  }
  if (data_.model == "spm-bpe") ResolveSymbols(first_id, ids);
  if (!with_control && !control_parts_.empty()) CutControlTokens(first_id, ids);
}

void BpeEncoder::CutControlTokens(size_t first, std::vector<int32_t>* ids) const {
  std::vector<int32_t> pending(ids->rbegin(), ids->rend() - static_cast<std::ptrdiff_t>(first));
  ids->resize(first);
  while (!pending.empty()) {
    const int32_t id = pending.back();
    pending.pop_back();
    if (const auto parts = control_parts_.find(id); parts != control_parts_.end()) {
      pending.insert(pending.end(), {parts->second.second, parts->second.first});
    } else {
      ids->push_back(id);
    }
  }
}

void BpeEncoder::AppendSymbols(std::string_view piece, size_t piece_first, std::vector<int32_t>* ids) const {
  const auto append_unk = [&] {
    const bool fuses = data_.fuse_unk && ids->size() > piece_first && ids->back() == data_.unk_id;
    if (data_.unk_id >= 0 && !fuses) ids->push_back(data_.unk_id);
  };
  if (data_.byte_level) {
    for (char c : piece) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      id >= 0 ? ids->push_back(id) : append_unk();
    }
    return;
  }
  while (!piece.empty()) {
    if (const auto frozen = frozen_.MatchAt(piece, 0)) {
      ids->push_back(frozen->id);
      piece.remove_prefix(frozen->length);
      continue;
    }
    const auto lead = static_cast<uint8_t>(piece[0]);
    const std::string_view character = piece.substr(0, lead < 0x80 ? 1 : DecodeUtf8(piece).length);
    piece.remove_prefix(character.size());
    int32_t id = -1;
    if (lead < 0x80) {
      id = ascii_ids_[lead];
    } else if (const auto found = character_ids_.find(character); found != character_ids_.end()) {
      id = found->second;
    }
    if (id >= 0) {
      ids->push_back(id);
    } else if (data_.byte_fallback && all_bytes_) {
      for (char c : character) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else {
      append_unk();
    }
  }
}

// Symbols beyond the vocabulary and unused tokens become what stands for them; runs of unk become one.
void BpeEncoder::ResolveSymbols(size_t first, std::vector<int32_t>* ids) const {
  if (loose_characters_.empty() && frozen_ids_.empty() && unused_parts_.empty() && !data_.fuse_unk) return;
  const auto vocabulary = static_cast<int32_t>(data_.tokens.size());
  const auto loose_end = vocabulary + static_cast<int32_t>(loose_characters_.size());
  std::vector<int32_t> pending(ids->rbegin(), ids->rend() - static_cast<std::ptrdiff_t>(first)), resolved;
  while (!pending.empty()) {
    const int32_t symbol = pending.back();
    pending.pop_back();
    if (const auto parts = unused_parts_.find(symbol); parts != unused_parts_.end()) {
      pending.insert(pending.end(), {parts->second.second, parts->second.first});
    } else if (symbol >= loose_end) {
      resolved.push_back(frozen_ids_[symbol - loose_end]);
    } else if (symbol >= vocabulary && data_.byte_fallback && all_bytes_) {
      for (char c : loose_characters_[symbol - vocabulary]) resolved.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else {
      const int32_t id = symbol >= vocabulary ? data_.unk_id : symbol;
      const bool fuses = data_.fuse_unk && id == data_.unk_id && !resolved.empty() && resolved.back() == id;
      if (id >= 0 && !fuses) resolved.push_back(id);
    }
  }
  ids->resize(first);
  ids->insert(ids->end(), resolved.begin(), resolved.end());
}

void BpeEncoder::MergeFrom(size_t first, std::vector<int32_t>* ids) const {
  const size_t count = ids->size() - first;
  if (count < 2) return;
  if (count <= kMaxShortPiece) return MergeShort(ids, first);
  count <= std::numeric_limits<uint32_t>::max() ? MergeLong<uint32_t>(ids, first) : MergeLong<uint64_t>(ids, first);
}

void BpeEncoder::MergeShort(std::vector<int32_t>* ids, size_t first) const {
  size_t count = ids->size() - first;
  int32_t* symbols = ids->data() + first;
  Merge merges[kMaxShortPiece];  // merges[i]: of symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = Find(symbols[i], symbols[i + 1]);

  while (count >= 2) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i].rank >= 0 && (best == count || merges[i].rank < merges[best].rank)) best = i;
    }
    if (best == count) break;
    symbols[best] = merges[best].merged;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    --count;
    if (best + 1 < count) {
      std::copy(merges + best + 2, merges + count, merges + best + 1);
      merges[best] = Find(symbols[best], symbols[best + 1]);
    }
    if (best > 0) merges[best - 1] = Find(symbols[best - 1], symbols[best]);
  }
  ids->resize(first + count);
}

template <class Index>
void BpeEncoder::MergeLong(std::vector<int32_t>* ids, size_t first) const {
  const size_t count = ids->size() - first;
  int32_t* const symbols = ids->data() + first;
  // Symbols stay at the place of their first one. How many places one takes stands at the first and at the last of them, so that
  // both neighbours are found (boundary tags: Knuth 1968, section 2.5).
  std::vector<int32_t> lengths(count, 1);
  std::vector<int32_t> ranks(count, -1);  // of the merge with the next symbol; -1: none
  PlacesByRank<Index> places;
  const auto propose = [&](size_t left) {
    const size_t right = left + lengths[left];
    ranks[left] = right < count ? Find(symbols[left], symbols[right]).rank : -1;
    if (ranks[left] >= 0) places.Push(ranks[left], static_cast<Index>(left));
  };

  for (size_t i = 0; i < count; ++i) propose(i);
  while (const auto next = places.Pop()) {
    const auto [rank, left] = *next;
    if (ranks[left] != rank) continue;  // what stood there has merged since
    const size_t right = left + lengths[left];
    symbols[left] = Find(symbols[left], symbols[right]).merged;
    ranks[right] = -1;
    const int32_t length = lengths[left] + lengths[right];
    lengths[left] = lengths[left + length - 1] = length;
    propose(left);
    if (left > 0) propose(left - lengths[left - 1]);
  }

  size_t kept = 0;
  for (size_t i = 0; i < count; i += lengths[i]) symbols[kept++] = symbols[i];
  ids->resize(first + kept);
}

}  // namespace coppice
