// The engine's state of a request: its parameters and its n sequences. Plain data; scheduler.h moves sequences between
// states, engine.cc gives them tokens. Layer: engine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "coppice/engine/engine.h"
#include "core/cache_line.h"
#include "engine/beam_search.h"
#include "engine/draft.h"
#include "engine/draft_record.h"
#include "engine/emitter.h"
#include "engine/ngram_drafter.h"

namespace coppice {

struct FairShare;
struct GroupState;
struct TextGroup;
struct RequestState;

// The state of a request's constraint for samples with the same output so far; as many refer to it as there are. Samples that end
// let go of it.
struct SharedConstraint {
  std::unique_ptr<ConstraintState> state;
  int32_t accepted = 0;  // tokens of their output that the state knows: all but those of the last step, at most
};

// One sample: the prompt and what it generated so far. In whole cache lines, as all that every decode step touches: with a thousand
// samples, waiting for them is most of a step's host work. Until the prompt is computed, sequence 0 stands for all n of them.
struct alignas(kCacheLine) Sequence {
  enum class State : uint8_t {
    kPending,  // sequence 0 still computes the prompt for it
    kWaiting,  // has no pages: new, preempted, or forked when all branch slots were taken
    kRunning,  // holds a branch
    kFinished,
  };

  // The first cache line: what a decode step reads and writes.
  RequestState* request = nullptr;
  std::vector<int32_t> generated;  // with what Engine::Extend has added
  int32_t index = 0;               // of the sample
  BranchId branch = kNoBranch;
  int32_t launched = 0;  // tokens that went into a step
  int32_t computed = 0;  // of them, those whose step was committed
  int32_t draw = -1;     // of the step launched last, the draw that gives its next token; with draws_under_way
  int32_t limit = 0;     // tokens of `generated` with which it ends
  int32_t stream = 0;    // of random numbers: Draw::sample
  State state = State::kPending;
  bool end_is_written = false;  // its last event (StepEvents)
  uint8_t draws_under_way = 0;  // tokens that launched steps choose and that are not known yet
  bool has_penalties = false;   // of sampling()
  // The rest.
  std::shared_ptr<const SamplingParams> own_sampling;  // null: the request's
  int32_t indexed = 0;                                 // kv index before which the pairs of its output are in RequestState::bigrams
  int32_t overtaken = 0;                               // AdmissionOrder: what was admitted before it whose turn was later
  std::shared_ptr<TextGroup> text_group;               // AdmissionOrder: while it waits and its request has not begun
  uint64_t arrival = 0, called_until = 0, round = 0;   // AdmissionOrder; arrivals count from 1
  bool follows = false;                                // AdmissionOrder
  std::shared_ptr<SharedConstraint> constraint;        // of Request::constraint; moved on by ConstraintMasks
  int32_t draft_depth = 0;                             // how deep drafting has saved time lately; 0: not tried yet
  int32_t acknowledged = 0;  // generated tokens that the sampling slot of `branch` knows of; kept where there are penalties
  PrefixTree::Cursor found;  // where its text was found in the cache last
  Draft draft;               // for the next step
  DraftRecord draft_record;
  bool pruned = false;     // not wanted any more, but it is sequence 0, which computes or has computed the prompt for others
  int32_t text_begin = 0;  // token of `generated` with which its text stream began

  const SamplingParams& sampling() const;
  int32_t length() const;  // tokens known: prompt and generated
  // Tokens to be computed: those that are known, and those that a step under way will have chosen.
  int32_t remaining() const { return length() + draws_under_way - launched; }
  // Its next token depends on a draw under way (constraint, beams): it goes along in no step before that draw is known.
  bool waits_for_draw() const;
  // Its prompt (or, after a preemption, what it had) is not computed yet; else it decodes.
  bool prefilling() const;
  // Sequences that go on from its next token: all that the prompt is computed for, else itself.
  int32_t num_forks() const;
  // A beam whose continuations are known, and not those of all others yet: it has nothing to compute, and need not hold a branch.
  bool has_arrived() const;
  // Whether the token under way is its last one, whichever it is.
  bool ends_with_draw(int32_t max_context) const;
  int32_t TokenAt(int32_t kv_index) const;
  // Prompt and generated tokens in one run; `scratch` is used where they are not.
  std::span<const int32_t> Tokens(std::vector<int32_t>* scratch) const;
};

// Log-probabilities that are wanted of the prompt, prompt_logprobs or prompt_scores, and what is known of them.
struct PromptScores {
  std::vector<PromptScore> wanted;  // by position
  std::vector<float> logprobs;      // of each
  std::vector<int32_t> ranks;       // of each; empty: they are not wanted
  int32_t num_top = 0;              // most probable tokens of each place that are wanted too
  std::vector<TokenLogprob> top;    // [wanted][num_top]
  float temperature = 1;            // of the distribution that they are of; above 0

  bool empty() const { return wanted.empty(); }
  // The first that is wanted at or after a position.
  int32_t IndexOf(int32_t position) const {
    return static_cast<int32_t>(std::ranges::lower_bound(wanted, position, {}, &PromptScore::position) - wanted.begin());
  }
};

struct alignas(kCacheLine) RequestState {
  using Clock = std::chrono::steady_clock;

  explicit RequestState(std::pmr::memory_resource* memory) : sequences(memory) {}

  // The first two cache lines, with the first fields of `params`, params.sampling the last: what a decode step reads and writes.
  std::unique_ptr<Listener> listener;  // has params.on_event
  const std::vector<int32_t>* end_ids =
      &own_end_ids;           // all tokens that end a sample; the model's eos ids where there are no others
  int32_t unfinished = 0;     // sequences not finished yet
  bool has_listener = false;  // listener->on_event is not empty
  bool has_stops = false;     // stop strings: the step decodes its text, since that decides when a sample ends
  bool has_constraint = false;
  // Its sequences are beams. Their continuations follow from the draws of all of them, which the host must know: none of them is in
  // a step that is launched before the step under way is committed.
  std::unique_ptr<BeamSearch> beams;
  bool repins = false;       // the engine's own: computes a pinned prompt anew (Prefixes::TakeRepins)
  bool forked = false;       // its samples are sequences of their own: the prompt is computed, or its last step launched
  uint8_t top_logprobs = 0;  // params.top_logprobs
  bool wants_ranks = false;  // params.ranks
  SharedReads shared_reads;  // of committed steps
  Request params;
  // The rest.
  RequestId id{};
  std::vector<int32_t> own_end_ids;  // end_ids, where they are this request's own
  // By index: n, without those that were pruned, and children. They never move.
  std::pmr::map<int32_t, Sequence> sequences;
  int32_t next_index = 0;  // of the sequence that comes next
  PromptScores scores;
  std::optional<Clock::time_point> deadline;
  std::unique_ptr<BigramIndex> bigrams;  // of the prompt and of all outputs; NgramDrafter
  int64_t virtual_start = 0;             // place in the queue: FairQueue
  GroupState* group = nullptr;           // of params.group, or null
  FairShare* share = nullptr;            // of params.share_of, while one of its sequences waits or runs

  bool has_begun() const { return listener->begun(); }
  int32_t prompt_length() const { return static_cast<int32_t>(params.prompt_ids.size()); }
  // Whether a sequence is one of those that sequence 0 computes the prompt for, and whose first tokens are drawn together.
  bool BeginsWithPrompt(const Sequence& sequence) const { return sequence.index < params.n; }
  // Sequence 0 still computes the prompt.
  bool computes_prompt() const {
    return !forked && !sequences.empty() && sequences.begin()->second.state != Sequence::State::kFinished;
  }
  // One more sample, which is pending: with the next index and the request's settings.
  Sequence* AddSequence();
};

// NOT_FOUND.
Status UnknownRequest(RequestId id);

// Requests and sequences come from pools, so that a step that visits them all touches few pages of memory: among their prompts, on
// the heap, each had two of its own.
struct DeleteRequest {
  std::pmr::memory_resource* memory = nullptr;
  void operator()(RequestState* request) const { std::pmr::polymorphic_allocator<>(memory).delete_object(request); }
};
using RequestPtr = std::unique_ptr<RequestState, DeleteRequest>;
// A request that has just come, without an id yet. REQUIRES: ValidateRequest. `eos_ids`, of the model, `tokenizer` (may be null)
// and `memory` outlive it.
RequestPtr MakeRequest(Request params, const std::vector<int32_t>& eos_ids, const Tokenizer* tokenizer,
                       std::pmr::memory_resource* memory);

inline int32_t Sequence::length() const { return request->prompt_length() + static_cast<int32_t>(generated.size()); }

inline bool Sequence::waits_for_draw() const {
  return draws_under_way > 0 && (request->has_constraint || request->beams != nullptr);
}

inline bool Sequence::has_arrived() const { return request->beams != nullptr && request->beams->arrived(index); }

inline bool Sequence::prefilling() const { return !request->forked || remaining() > 1; }

inline int32_t Sequence::num_forks() const {
  if (request->forked) return 1;
  return request->beams != nullptr ? request->beams->width() : request->params.n;
}

inline const SamplingParams& Sequence::sampling() const { return own_sampling ? *own_sampling : request->params.sampling; }

inline bool Sequence::ends_with_draw(int32_t max_context) const {
  return std::ssize(generated) + draws_under_way >= limit || length() + draws_under_way >= max_context;
}

inline int32_t Sequence::TokenAt(int32_t kv_index) const {
  const int32_t prompt = request->prompt_length();
  return kv_index < prompt ? request->params.prompt_ids[kv_index] : generated[kv_index - prompt];
}

inline std::span<const int32_t> Sequence::Tokens(std::vector<int32_t>* scratch) const {
  const std::vector<int32_t>& prompt = request->params.prompt_ids;
  if (generated.empty()) return prompt;
  scratch->assign(prompt.begin(), prompt.end());
  scratch->insert(scratch->end(), generated.begin(), generated.end());
  return *scratch;
}

// Of all of the sequence's tokens.
inline CacheSalt SaltOf(const Sequence& sequence) {
  const Request& params = sequence.request->params;
  return {.salt = params.cache_salt,
          .private_begin = params.cache_private_begin,
          .tenant = params.cache_tenant.name,
          .tenant_begin = params.cache_tenant.begin};
}

// For loops over many sequences, each a few cache misses: fetches the sequence that is sixteen turns ahead, and what the one that
// is eight turns ahead refers to. `at(i)` is the i-th of `count` sequences.
template <class At>
void PrefetchAhead(size_t i, size_t count, const KvCache& cache, const At& at) {
  if (i + 16 < count) __builtin_prefetch(at(i + 16));
  if (i + 8 < count) {
    const Sequence* const sequence = at(i + 8);
    __builtin_prefetch(sequence->request);
    __builtin_prefetch(reinterpret_cast<const std::byte*>(sequence->request) + kCacheLine);
    if (!sequence->generated.empty()) __builtin_prefetch(&sequence->generated.back());
    cache.Prefetch(sequence->branch, sequence->computed);
  }
}

}  // namespace coppice
