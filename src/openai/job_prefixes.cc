#include "openai/job_prefixes.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#define XXH_INLINE_ALL  // header only
#include <xxhash.h>

namespace coppice::openai {
namespace {

using Prompts = std::function<std::span<const int32_t>(size_t)>;

constexpr int32_t kFewestTokens = 128;  // below, computing them again is as fast as a file
constexpr int64_t kFewestSaved = 512;   // tokens that need not be computed again
constexpr int kDeepest = 32;            // levels of prefixes below prefixes that are looked at

std::string NameOf(std::span<const int32_t> tokens) {
  const XXH128_hash_t hash = XXH3_128bits(tokens.data(), tokens.size_bytes());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

struct Choice {
  std::vector<SharedPrefix> prefixes;
  int64_t saved = 0;
};

// The best choice within [begin, end), whose prompts share at least `depth` tokens.
Choice Choose(size_t begin, size_t end, size_t depth, int level, const Prompts& prompt) {
  Choice below;
  if (end - begin < 2 || level == kDeepest) return below;
  const std::span<const int32_t> first = prompt(begin), last = prompt(end - 1);  // sorted: the two that differ first
  const size_t most = std::min(first.size(), last.size());
  while (depth < most && first[depth] == last[depth]) ++depth;
  for (size_t at = begin; at < end;) {
    if (prompt(at).size() == depth) {  // it ends here
      ++at;
      continue;
    }
    size_t next = at + 1;
    while (next < end && prompt(next)[depth] == prompt(at)[depth]) ++next;
    Choice child = Choose(at, next, depth, level + 1, prompt);
    below.saved += child.saved;
    below.prefixes.insert(below.prefixes.end(), child.prefixes.begin(), child.prefixes.end());
    at = next;
  }
  const int64_t saved = static_cast<int64_t>(depth) * static_cast<int64_t>(end - begin - 1);
  if (depth < kFewestTokens || saved < kFewestSaved || saved < below.saved) return below;
  return {{{.begin = begin, .end = end, .tokens = static_cast<int32_t>(depth)}}, saved};
}

}  // namespace

std::vector<SharedPrefix> FindSharedPrefixes(size_t count, const Prompts& prompt) {
  return Choose(0, count, 0, 0, prompt).prefixes;
}

JobPrefixes::JobPrefixes(Engine& engine, int32_t page_size, const ResumeFolder& folder, size_t count, Prompts prompt)
    : engine_(engine),
      folder_(folder),
      prompt_(std::move(prompt)),
      most_pinned_tokens_(int64_t{engine.Metrics().pages_total} * page_size / 4) {  // pinned pages are no room for other requests
  for (const SharedPrefix& range : FindSharedPrefixes(count, prompt_)) {
    const std::span<const int32_t> tokens = prompt_(range.begin).first(range.tokens);
    entries_.push_back({.range = range, .name = NameOf(tokens), .left = range.end - range.begin});
  }
}

JobPrefixes::Entry* JobPrefixes::EntryOf(size_t job) {
  const auto after = std::ranges::upper_bound(entries_, job, {}, [](const Entry& entry) { return entry.range.begin; });
  if (after == entries_.begin() || job >= std::prev(after)->range.end) return nullptr;
  return &*std::prev(after);
}

void JobPrefixes::Before(size_t job) {
  Entry* const entry = EntryOf(job);
  if (!entry || entry->started) return;
  entry->started = true;
  if (pinned_tokens_ + entry->range.tokens > most_pinned_tokens_) return;
  const std::string path = folder_.PathOf(entry->name);
  if (std::error_code absent; !path.empty() && std::filesystem::exists(path, absent)) {
    const Status loaded = engine_.LoadPrefix(entry->name, path, CacheTenant());
    entry->pinned = entry->saved = loaded.ok();
    if (loaded.ok()) {
      spdlog::info("the KV of {} tokens that {} requests share comes from {}", entry->range.tokens, entry->left, path);
    } else {
      spdlog::info("{}: {}; it is computed again", path, loaded.message());
    }
  }
  if (!entry->pinned) {
    const std::span<const int32_t> tokens = prompt_(entry->range.begin).first(entry->range.tokens);
    Request request{.prompt_ids = {tokens.begin(), tokens.end()}, .max_tokens = 0, .pin_prompt_as = entry->name};
    request.on_event = [computed = entry->computed](const StreamEvent& event) {
      if (event.finish_reason == FinishReason::kStop || event.finish_reason == FinishReason::kLength) *computed = true;
    };
    if (!engine_.Submit(std::move(request)).ok()) return;  // its requests will hear why
    computing_.push_back(entry);
  }
  entry->has_room = true;
  pinned_tokens_ += entry->range.tokens;
}

void JobPrefixes::AfterStep() {
  std::erase_if(computing_, [this](Entry* entry) {
    if (!*entry->computed) return false;
    Keep(entry);
    return true;
  });
}

void JobPrefixes::Keep(Entry* entry) {
  entry->pinned = true;
  if (entry->left == 0) return (void)engine_.Unpin(entry->name);  // its requests ended before
  const std::string path = folder_.PathOf(entry->name);
  if (path.empty()) return;
  const Status saved = engine_.SavePrefix(entry->name, path);
  entry->saved = saved.ok();
  if (!saved.ok()) return spdlog::info("{}; a run after a kill would compute the prefix again", saved.message());
  if (ResumeFolder::LeavesRoom(path)) return;
  std::error_code ignored;
  entry->saved = !std::filesystem::remove(path, ignored);
  spdlog::info("{} would fill the disk; a run after a kill would compute the prefix again", path);
}

void JobPrefixes::Done(size_t job) {
  Entry* const entry = EntryOf(job);
  if (!entry || --entry->left > 0) return;
  if (entry->pinned) (void)engine_.Unpin(entry->name);
  if (entry->has_room) pinned_tokens_ -= entry->range.tokens;
  std::error_code ignored;
  if (entry->saved) std::filesystem::remove(folder_.PathOf(entry->name), ignored);
}

}  // namespace coppice::openai
