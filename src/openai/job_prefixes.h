// The beginnings that many prompts of a batch have in common: found in the sorted prompts, computed once, pinned in the cache as
// long as requests need them, and kept on disk so that a killed run does not compute them again.
// Layer: openai. RelayAttention section 3: a system prompt's KV is filled once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coppice/engine/engine.h"
#include "openai/resume_folder.h"

namespace coppice::openai {

// Prompts [begin, end) of a sorted list begin with the same `tokens` tokens.
struct SharedPrefix {
  size_t begin = 0, end = 0;
  int32_t tokens = 0;
};

// Disjoint ranges, in order, that save the most tokens: a prefix counts for each prompt but one. `prompt(i)` is the i-th of
// `count`, sorted by their tokens. Only prefixes that are worth a file. Linear in the prompts' tokens, for each level of the tree
// at most once.
std::vector<SharedPrefix> FindSharedPrefixes(size_t count, const std::function<std::span<const int32_t>(size_t)>& prompt);

// Thread-compatible: called by the thread that steps the engine. The engine's errors about a prefix are not the job's: its requests
// are answered all the same, and compute what is missing.
class JobPrefixes {
 public:
  // `count` and `prompt` as in FindSharedPrefixes; what `prompt` refers to, the engine and the folder outlive this.
  JobPrefixes(Engine& engine, int32_t page_size, const ResumeFolder& folder, size_t count,
              std::function<std::span<const int32_t>(size_t)> prompt);

  // Before request `job` is submitted: loads its prefix, or asks the engine to compute it first.
  void Before(size_t job);
  // Between two steps: keeps what has been computed.
  void AfterStep();
  // Request `job` is answered or failed; with the last one its prefix is let go.
  void Done(size_t job);

 private:
  struct Entry {
    SharedPrefix range;
    std::string name;
    size_t left = 0;  // requests
    bool started = false, has_room = false, pinned = false, saved = false;
    std::shared_ptr<std::atomic<bool>> computed = std::make_shared<std::atomic<bool>>(false);  // set on the engine's thread
  };
  Entry* EntryOf(size_t job);
  void Keep(Entry* entry);

  Engine& engine_;
  const ResumeFolder& folder_;
  const std::function<std::span<const int32_t>(size_t)> prompt_;
  std::vector<Entry> entries_;
  std::vector<Entry*> computing_;
  const int64_t most_pinned_tokens_;
  int64_t pinned_tokens_ = 0;  // or on their way there
};

}  // namespace coppice::openai
