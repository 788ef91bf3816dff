#include "model/kv_split.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "model/shard.h"

namespace coppice {
namespace {

// More samples change little but the time that predicting takes.
constexpr int32_t kMostSamples = 256;

// Of a message between GPUs that read each other's memory, as two H200s linked by 18 NVLinks were measured (docs/ranks.md,
// "Speed").
constexpr double kGpuMessageSeconds = 5e-6, kGpuBytesPerSecond = 381e9;
// Of threads: two barriers a message, and a core's copies.
constexpr double kCpuMessageSeconds = 5e-6, kCpuBytesPerSecond = 8e9;

// A sentence's part that says why the model's KV cannot be divided by tokens; empty: it can be. REQUIRES: ranks exceed KV heads.
std::string WhyNotByTokens(const ModelConfig& config, int ranks) {
  if (Shard::KvSharers(config, ranks) == 0)
    return fmt::format("{} KV heads are not on equally many of {} ranks", config.num_kv_heads, ranks);
  if (config.window > 0 || !config.local_layers.empty()) return "layers have a window, which ends at a token and not at a rank's";
  return "";
}

}  // namespace

KvExchange KvExchangeOf(const ModelConfig& config, int ranks, DType q_dtype, DeviceKind device) {
  const int64_t heads = Shard{0, ranks}.QoHeads(config).padded;
  const int64_t head_bytes = config.head_dim * static_cast<int64_t>(SizeOf(q_dtype));
  const int64_t q_bytes = (ranks - 1) * heads * head_bytes;
  const int64_t state_bytes = (Shard::KvSharers(config, ranks) - 1) * heads * (head_bytes + int64_t{sizeof(float)});
  const bool on_cpu = device == DeviceKind::kCpu;
  return {.fixed_s = 2 * (on_cpu ? kCpuMessageSeconds : kGpuMessageSeconds),
          .row_s = static_cast<double>(q_bytes + state_bytes) / (on_cpu ? kCpuBytesPerSecond : kGpuBytesPerSecond)};
}

TypicalStep TypicalStepOf(int32_t max_running, int32_t max_context, int64_t kv_tokens) {
  const int32_t samples = std::clamp(max_running, 1, kMostSamples);
  const int64_t tokens = std::min<int64_t>(max_context / 2, kv_tokens / samples);
  return {.samples = samples, .tokens = static_cast<int32_t>(std::max<int64_t>(tokens, 1))};
}

std::string KvSplitTimes::Describe(const TypicalStep& step, int sharers) const {
  return fmt::format(
      "a layer's attention of {} samples of {} tokens that share nothing is predicted to take {:.1f} us by tokens, {:.1f} us by "
      "heads; "
      "by tokens KV has room for {} times as many",
      step.samples, step.tokens, 1e6 * tokens_s, 1e6 * heads_s, sharers);
}

Result<KvSplitChoice> ChooseKvSplit(const ModelConfig& config, int ranks, KvSplit wanted, const std::string& why_not,
                                    const TypicalStep& step, const std::function<Result<KvSplitTimes>(int sharers)>& predict) {
  const int sharers = Shard::KvSharers(config, ranks);
  std::string reason;  // against tokens
  if (sharers == 1) {
    reason = fmt::format("{} KV heads are divided among {} {}, so none is on two", config.num_kv_heads, ranks,
                         ranks == 1 ? "rank" : "ranks");
  } else {
    reason = WhyNotByTokens(config, ranks);
    if (reason.empty()) reason = why_not;
  }
  if (!reason.empty()) {
    if (wanted == KvSplit::kTokens) return InvalidArgument("kv_split is tokens, but " + reason + ": expected heads");
    return KvSplitChoice{.reason = sharers == 1 ? "" : reason};
  }
  KvSplitChoice choice = {.reason = "as asked for"};
  bool by_tokens = wanted == KvSplit::kTokens;
  if (wanted == KvSplit::kAuto) {
    COPPICE_ASSIGN_OR_RETURN(const KvSplitTimes times, predict(sharers));
    by_tokens = times.prefers_tokens();
    choice.reason = times.Describe(step, sharers);
  }
  if (by_tokens) {
    choice.split = KvSplit::kTokens;
    choice.sharers = sharers;
  }
  return choice;
}

}  // namespace coppice
