#include "engine/chunk_probe.h"

#include <algorithm>
#include <chrono>

#include "core/check.h"
#include "engine/open_device.h"
#include "engine/step_builder.h"

namespace coppice {
namespace {

constexpr int32_t kSmallest = 16;
constexpr int kRuns = 2;             // of each size, of which the fastest counts
constexpr int kRunsOfGpu = 4;        // which captures the second, and at times the third
constexpr double kGoodShare = 0.95;  // of the best speed

// Seconds of one forward pass over a prompt of `count` tokens. No logits: all chunks of a prompt but its last go without.
Result<double> TimeChunk(const EngineParts& parts, int32_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t i = 0; i < count; ++i) tokens[i] = i % parts.runner->info().model.vocab_size;
  KvCache& cache = *parts.cache;
  StepBuilder step(&cache);
  step.Begin();
  const KvCache::Admission admission = cache.Admit({.tokens = tokens});
  COPPICE_CHECK(admission.outcome == KvCache::Outcome::kAdmitted && admission.computed == 0);
  step.Rows(admission.branch, 0, tokens);
  const auto begin = std::chrono::steady_clock::now();
  const Result<StepTicket> ticket = step.Launch(parts.runner.get());
  const Status status = ticket.ok() ? parts.runner->Wait(*ticket).status() : ticket.status();
  if (ticket.ok()) (void)step.Launched(*ticket);  // nothing of it is kept
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  cache.Release(admission.branch, tokens);
  cache.DropCached();
  COPPICE_RETURN_IF_ERROR(status);
  return seconds.count();
}

// The longest prompt that a step can compute at once.
int32_t LargestChunk(const EngineParts& parts) {
  const int64_t cache_tokens = int64_t{parts.cache->usage().pages_total} * parts.cache->options().page_size;
  return static_cast<int32_t>(std::min<int64_t>({parts.options.max_batch_tokens, parts.options.max_context, cache_tokens}));
}

}  // namespace

Status WarmUp(const EngineParts& parts) { return TimeChunk(parts, std::min(kSmallest, LargestChunk(parts))).status(); }

Result<std::vector<ChunkSpeed>> MeasureChunks(const EngineParts& parts) {
  const int32_t largest = LargestChunk(parts);
  std::vector<ChunkSpeed> speeds;
  for (int32_t tokens = std::min(kSmallest, largest); tokens <= largest; tokens *= 2) speeds.push_back({.tokens = tokens});
  if (speeds.back().tokens < largest) speeds.push_back({.tokens = largest});
  const int runs = IsOnCpus(parts.options.device) ? kRuns : kRunsOfGpu;
  for (int run = 0; run < runs; ++run) {
    for (ChunkSpeed& speed : speeds) {
      COPPICE_ASSIGN_OR_RETURN(const double seconds, TimeChunk(parts, speed.tokens));
      speed.tokens_per_second = std::max(speed.tokens_per_second, speed.tokens / seconds);
    }
  }
  return speeds;
}

int32_t SmallestGoodChunk(std::span<const ChunkSpeed> speeds) {
  const auto slower = [](const ChunkSpeed& a, const ChunkSpeed& b) { return a.tokens_per_second < b.tokens_per_second; };
  const double enough = kGoodShare * std::max_element(speeds.begin(), speeds.end(), slower)->tokens_per_second;
  return std::find_if(speeds.begin(), speeds.end(), [&](const ChunkSpeed& s) { return s.tokens_per_second >= enough; })->tokens;
}

}  // namespace coppice
