// How long a step's attention takes, by the planner's cost model over sums: which nodes of the requests' tree are read once for how
// many samples. No plan is made: a node is shared where sharing it costs less by itself, as attention/share decides. What that
// leaves out (whole steps judged by their cuts, items evened out among workers) the tests bound. Layer: simulate.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cost_model.h"
#include "attention/step_model.h"
#include "coppice/core/status.h"
#include "model/config.h"

namespace coppice::simulate {

// Tokens of a prompt that a step computes.
struct PromptChunk {
  int32_t tokens = 0, before = 0;  // that it computes; that stand before these
};

// What a step reads of KV, all layers, in bytes, and how long it takes.
struct AttentionStep {
  double seconds = 0, seconds_unshared = 0;
  double bytes_read = 0, bytes_read_unshared = 0;
};

// Layers of one spec.
struct LayerKind {
  attention::AttentionSpec spec;
  attention::BackendTraits traits;
  int32_t layers = 0;
};

class AttentionTimes {
 public:
  AttentionTimes(std::span<const LayerKind> kinds, const attention::MachineModel& machine);

  // What the decoding samples of one engine read, kept while they come and go. A piece of memory of its user's.
  struct Decoding {
    struct Sums {
      attention::StepShape shared, apart;  // of one layer: as it is best node by node, and if every sample reads for itself
    };
    std::vector<Sums> kinds;
    int64_t samples = 0;
  };
  Decoding Nothing() const { return {.kinds = std::vector<Decoding::Sums>(kinds_.size())}; }
  // A node of `tokens` tokens whose last one is the path's `end`-th has `to` samples below it in place of `from`.
  void ChangeNode(int32_t tokens, int32_t end, int32_t from, int32_t to, Decoding* decoding) const;
  // So many samples more, or fewer, whose prompts have so many tokens.
  void ChangeSamples(int32_t samples, int32_t prompt_tokens, Decoding* decoding) const;

  // A step in which all of them decode, having `own_tokens` tokens behind their prompts, all together, and prompts are computed.
  AttentionStep Step(const Decoding& decoding, int64_t own_tokens, std::span<const PromptChunk> chunks) const;

  // Of one token, all layers.
  int64_t kv_bytes_per_token() const;

 private:
  struct Kind {
    attention::CostModel cost;
    int32_t layers = 0, window = 0, group = 1;
    int32_t tile_queries = 1;  // of a prompt that one item has
    bool cuts_kv = false;
    int64_t set_queries = 1;
  };
  bool Shares(const Kind& kind, int32_t tokens, int32_t end, int32_t samples) const;
  void CountNode(const Kind& kind, int32_t tokens, int32_t end, int32_t samples, int64_t sign, Decoding::Sums* sums) const;
  void CountChunk(const Kind& kind, const PromptChunk& chunk, Decoding::Sums* sums) const;
  double StepNs(const Kind& kind, const attention::StepShape& shape) const;

  std::vector<Kind> kinds_;
};

}  // namespace coppice::simulate
