#include "engine/ngram_drafter.h"

#include <algorithm>

#include "engine/request_state.h"

namespace coppice {
namespace {

constexpr int32_t kMaxPlaces = 32;  // compared; bounds the work on text that repeats itself
constexpr int32_t kMaxMatch = 8;    // tokens; longer agreement adds nothing

uint64_t Key(int32_t a, int32_t b) { return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b); }

// Takes in the pairs of a sample's text that something is known to follow: of the prompt once, and of what it has generated.
void CatchUp(Sequence& sequence, BigramIndex* index) {
  const int32_t prompt = sequence.request->prompt_length(), end = sequence.length() - 1;
  const auto append = [&](int32_t sample, int32_t at) {
    index->Append(sequence.TokenAt(at - 1), sequence.TokenAt(at), {.sample = sample, .end = at});
  };
  for (int32_t at = index->prompt_end(); at < std::min(prompt, end); ++at) append(BigramIndex::kPrompt, at);
  for (sequence.indexed = std::max({sequence.indexed, prompt, 1}); sequence.indexed < end; ++sequence.indexed)
    append(sequence.index, sequence.indexed);
}

}  // namespace

void BigramIndex::Append(int32_t a, int32_t b, const Place& place) {
  const int32_t number = static_cast<int32_t>(places_.size());
  const auto [last, is_new] = last_.try_emplace(Key(a, b), number);
  previous_.push_back(is_new ? -1 : last->second);
  places_.push_back(place);
  last->second = number;
  if (place.sample == kPrompt) prompt_end_ = place.end + 1;
}

int32_t BigramIndex::Last(int32_t a, int32_t b) const {
  const auto last = last_.find(Key(a, b));
  return last == last_.end() ? -1 : last->second;
}

Status NgramDrafter::Propose(std::span<const DraftRequest> requests) {
  for (const DraftRequest& request : requests) Guess(request);
  return OkStatus();
}

void NgramDrafter::Guess(const DraftRequest& request) {
  Sequence& sequence = *request.sequence;
  RequestState& state = *sequence.request;
  const int32_t length = sequence.length();
  if (length < 3) return;
  if (!state.bigrams) state.bigrams = std::make_unique<BigramIndex>();
  const BigramIndex& index = *state.bigrams;
  CatchUp(sequence, state.bigrams.get());

  const int32_t a = sequence.TokenAt(length - 2), b = sequence.TokenAt(length - 1);
  places_.clear();
  int32_t compared = 0;
  for (int32_t number = index.Last(a, b); number >= 0 && compared < kMaxPlaces; number = index.Previous(number), ++compared) {
    const auto [sample, at] = index.At(number);
    const Sequence* text = &sequence;
    if (sample != BigramIndex::kPrompt && sample != sequence.index) {
      const auto sibling = state.sequences.find(sample);
      if (sibling == state.sequences.end()) continue;  // it was pruned
      text = &sibling->second;
    }
    if (text == &sequence && at >= length - 1) continue;  // of a sample without tokens: what follows the prompt is its siblings'
    int32_t matched = 2;
    while (matched < kMaxMatch && matched <= at && text->TokenAt(at - matched) == sequence.TokenAt(length - 1 - matched)) ++matched;
    places_.push_back({.text = text, .matched = matched, .next = at + 1});
  }
  std::ranges::stable_sort(places_, [&](const Place& one, const Place& other) {
    if (one.matched != other.matched) return one.matched > other.matched;
    return one.text == &sequence && other.text != &sequence;
  });
  int32_t branches = 0;
  for (const Place& place : places_) {
    if (branches == options_.branches) break;
    const int32_t size_before = sequence.draft.size();
    path_.clear();
    int32_t node = Draft::kRoot;
    for (int32_t i = place.next; std::ssize(path_) < request.max_depth && sequence.draft.size() < Draft::kMaxTokens; ++i) {
      const int32_t known = place.text->length();
      if (i >= known && place.text != &sequence) break;  // a sibling has said no more
      // Where the copy reaches the end of the text it goes on with what it copied: a repetition.
      path_.push_back(i < known ? place.text->TokenAt(i) : path_[i - known]);
      node = sequence.draft.Extend(node, path_.back());
    }
    branches += sequence.draft.size() > size_before;  // not where an earlier place says the same
  }
}

}  // namespace coppice
