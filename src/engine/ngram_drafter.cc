#include "engine/ngram_drafter.h"

#include <algorithm>

#include "engine/request_state.h"

namespace coppice {
namespace {

constexpr int32_t kMaxPlaces = 32;  // compared; bounds the work on text that repeats itself
constexpr int32_t kMaxMatch = 8;    // tokens; longer agreement tells nothing more

uint64_t Key(int32_t a, int32_t b) { return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b); }

// Brings an index of `sequence`'s text up to the pairs that something is known to follow, below index `end`.
void CatchUp(const Sequence& sequence, int32_t end, BigramIndex* index) {
  while (index->end() < end) index->Append(sequence.TokenAt(index->end() - 1), sequence.TokenAt(index->end()));
}

}  // namespace

void BigramIndex::Append(int32_t a, int32_t b) {
  const auto [place, is_new] = last_.try_emplace(Key(a, b), end());
  previous_.push_back(is_new ? -1 : place->second);
  place->second = end() - 1;
}

int32_t BigramIndex::Last(int32_t a, int32_t b) const {
  const auto place = last_.find(Key(a, b));
  return place == last_.end() ? -1 : place->second;
}

Status NgramDrafter::Propose(std::span<const DraftRequest> requests) {
  for (const DraftRequest& request : requests) Guess(request);
  return OkStatus();
}

void NgramDrafter::Guess(const DraftRequest& request) {
  Sequence& sequence = *request.sequence;
  RequestState& state = *sequence.request;
  const int32_t length = sequence.length(), prompt = state.prompt_length();
  if (length < 3) return;
  // The prompt is indexed once for all samples; a sample's own index has the pairs that end in its own tokens.
  if (!state.prompt_bigrams) state.prompt_bigrams = std::make_unique<BigramIndex>(1);
  if (!sequence.bigrams) sequence.bigrams = std::make_unique<BigramIndex>(std::max(prompt, 1));
  CatchUp(sequence, std::min(prompt, length - 1), state.prompt_bigrams.get());
  CatchUp(sequence, length - 1, sequence.bigrams.get());

  const int32_t a = sequence.TokenAt(length - 2), b = sequence.TokenAt(length - 1);
  places_.clear();
  for (const BigramIndex* index : {sequence.bigrams.get(), state.prompt_bigrams.get()}) {
    for (int32_t at = index->Last(a, b); at >= 0 && places_.size() < kMaxPlaces; at = index->Previous(at)) {
      if (at == length - 1) continue;  // of a sample without tokens: what follows the prompt is its siblings'
      int32_t matched = 2;
      while (matched < kMaxMatch && matched <= at && sequence.TokenAt(at - matched) == sequence.TokenAt(length - 1 - matched))
        ++matched;
      places_.push_back({.matched = matched, .next = at + 1});
    }
  }
  std::ranges::stable_sort(places_, std::ranges::greater(), &Place::matched);
  int32_t branches = 0;
  for (const Place& place : places_) {
    if (branches == options_.branches) break;
    const int32_t size_before = sequence.draft.size();
    path_.clear();
    int32_t node = Draft::kRoot;
    for (int32_t i = place.next; std::ssize(path_) < request.max_depth && sequence.draft.size() < Draft::kMaxTokens; ++i) {
      // Where the copy reaches the end of the text it goes on with what it copied: a repetition.
      path_.push_back(i < length ? sequence.TokenAt(i) : path_[i - length]);
      node = sequence.draft.Extend(node, path_.back());
    }
    branches += sequence.draft.size() > size_before;  // not where an earlier place says the same
  }
}

}  // namespace coppice
