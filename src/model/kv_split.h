// Where ranks exceed KV heads: whether those that have the same ones may divide their KV by tokens, and what they then exchange.
// Figures and reasons: docs/ranks.md. Layer: model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/config.h"

namespace coppice {

// Seconds that a layer's exchange takes: q of all ranks to each, then states to where their heads are.
struct KvExchange {
  double fixed_s = 0, row_s = 0;

  double Seconds(double rows) const { return fixed_s + row_s * rows; }
};
KvExchange KvExchangeOf(const ModelConfig& config, int ranks, DType q_dtype, DeviceKind device);

// The step that both ways of dividing are predicted for: samples that share nothing, in the middle of the way to the longest
// context, as far as `kv_tokens` tokens of KV, all that there is room for by heads, suffice.
struct TypicalStep {
  int32_t samples = 1, tokens = 1;
};
TypicalStep TypicalStepOf(int32_t max_running, int32_t max_context, int64_t kv_tokens);

// Of a layer of that step.
struct KvSplitTimes {
  double heads_s = 0, tokens_s = 0;  // attention, by tokens with the exchange

  // Attention by tokens may be a tenth slower, since KV has so much more room.
  bool prefers_tokens() const { return tokens_s <= 1.1 * heads_s; }
  std::string Describe(const TypicalStep& step, int sharers) const;
};

struct KvSplitChoice {
  KvSplit split = KvSplit::kHeads;  // or kTokens
  int32_t sharers = 1;              // kTokens: the ranks that divide the tokens of a KV head
  std::string reason;               // a sentence's end; empty where ranks do not exceed KV heads
};

// The wanted split, or with kAuto the one that is predicted to be faster for `step`, if possible. `why_not`: the caller's reason
// against tokens, a sentence's part, or empty. `predict` is called where the times decide, and gets the ranks that would divide
// the tokens. INVALID_ARGUMENT: kTokens is wanted and cannot be.
Result<KvSplitChoice> ChooseKvSplit(const ModelConfig& config, int ranks, KvSplit wanted, const std::string& why_not,
                                    const TypicalStep& step, const std::function<Result<KvSplitTimes>(int sharers)>& predict);

}  // namespace coppice
