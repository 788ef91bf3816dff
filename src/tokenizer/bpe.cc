#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/byte_level.h"

namespace coppice {
namespace {

// Up to here rescanning all pairs after each merge is faster than a heap; almost every piece of real text is shorter.
constexpr size_t kMaxShortPiece = 48;

}  // namespace

Result<BpeEncoder> BpeEncoder::Create(const TokenizerData& data) {
  std::unordered_map<std::string_view, int32_t> id_of;
  id_of.reserve(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    // Of two tokens with the same text the normal one is meant.
    if (data.kinds[id] == TokenizerData::TokenKind::kNormal) id_of.insert_or_assign(data.tokens[id], static_cast<int32_t>(id));
    if (data.kinds[id] != TokenizerData::TokenKind::kUnused) id_of.try_emplace(data.tokens[id], static_cast<int32_t>(id));
  }

  BpeEncoder encoder;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = id_of.find(ByteLevelCharacter(static_cast<uint8_t>(byte)));
    encoder.byte_ids_[byte] = found == id_of.end() ? -1 : found->second;
  }
  encoder.table_.resize(std::bit_ceil(2 * data.merges.size() + 2));
  encoder.shift_ = 64 - std::countr_zero(encoder.table_.size());

  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string& left = data.merges[rank].first;
    const std::string& right = data.merges[rank].second;
    const auto id = [&](const std::string& token) -> Result<int32_t> {
      if (const auto found = id_of.find(token); found != id_of.end()) return found->second;
      return InvalidArgument("merge " + std::to_string(rank) + " (" + Quoted(left) + " + " + Quoted(right) + ") needs the token " +
                             Quoted(token) + ", which is not in the vocabulary of " + std::to_string(data.tokens.size()) +
                             " tokens; the tokenizer file is damaged or its parts do not belong together");
    };
    COPPICE_ASSIGN_OR_RETURN(const int32_t left_id, id(left));
    COPPICE_ASSIGN_OR_RETURN(const int32_t right_id, id(right));
    COPPICE_ASSIGN_OR_RETURN(const int32_t merged_id, id(left + right));
    const uint64_t pair = static_cast<uint64_t>(left_id) << 32 | static_cast<uint32_t>(right_id);
    encoder.Insert({pair, static_cast<int32_t>(rank), merged_id});
  }
  return encoder;
}

void BpeEncoder::Insert(const Merge& merge) {
  size_t slot = Slot(merge.pair);
  while (table_[slot].pair != kNoPair && table_[slot].pair != merge.pair) slot = (slot + 1) & (table_.size() - 1);
  table_[slot] = merge;
}

BpeEncoder::Merge BpeEncoder::Find(int32_t left, int32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  size_t slot = Slot(pair);
  while (table_[slot].pair != kNoPair && table_[slot].pair != pair) slot = (slot + 1) & (table_.size() - 1);
  return table_[slot];
}

void BpeEncoder::Encode(std::string_view piece, std::vector<int32_t>* ids) const {
  const size_t first = ids->size();
  for (char c : piece) {
    if (const int32_t id = byte_ids_[static_cast<uint8_t>(c)]; id >= 0) ids->push_back(id);
  }
  const size_t count = ids->size() - first;
  if (count < 2) return;
  count <= kMaxShortPiece ? MergeShort(ids, first) : MergeLong(ids, first);
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

void BpeEncoder::MergeLong(std::vector<int32_t>* ids, size_t first) const {
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    size_t previous, next;
  };
  struct Candidate {
    int32_t rank, merged;
    size_t left;
    int32_t left_id, right_id;  // as they were: a candidate whose symbols have changed since is stale
    bool operator>(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };
  const size_t count = ids->size() - first, none = count;
  std::vector<Symbol> symbols(count);
  std::vector<Candidate> storage;
  storage.reserve(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue({}, std::move(storage));
  const auto propose = [&](size_t left) {
    if (left == none || symbols[left].next == none) return;
    const int32_t left_id = symbols[left].id, right_id = symbols[symbols[left].next].id;
    if (const Merge merge = Find(left_id, right_id); merge.rank >= 0)
      queue.push({merge.rank, merge.merged, left, left_id, right_id});
  };

  for (size_t i = 0; i < count; ++i) symbols[i] = {(*ids)[first + i], i == 0 ? none : i - 1, i + 1};
  for (size_t i = 0; i < count; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[candidate.left];
    if (left.id != candidate.left_id || left.next == none || symbols[left.next].id != candidate.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = candidate.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next != none) symbols[left.next].previous = candidate.left;
    propose(left.previous);
    propose(candidate.left);
  }

  ids->resize(first);
  for (size_t i = 0; i != none; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace coppice
