// How long a step's attention takes, by the planner's cost model over sums: which nodes of the requests' tree are read once for how
// many samples. No plan is made: a node is shared where sharing it costs less by itself, as attention/share decides, at the prices
// that the step gives its two resources. Tests bound the error of the parts that this leaves out: whole steps compared by their
// cuts, items evened out among workers. Layer: simulate.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/cost_model.h"
#include "attention/range_costs.h"
#include "attention/step_model.h"
#include "coppice/core/status.h"
#include "model/config.h"
#include "model/kv_split.h"

namespace coppice::simulate {

// Tokens of a prompt that a step computes.
struct PromptChunk {
  int32_t tokens = 0, before = 0;  // that it computes; that stand before these
  int32_t alone = 0;               // of those before, the last ones, which no other queries of the step see
};

// A node that a chunk's queries and others see.
struct SharedNode {
  int32_t tokens = 0, end = 0;  // of the node; up to its end
  int32_t samples = 0;          // that decode below it
  int32_t reads = -1;           // PathNode::reads
  int32_t parent = -1;          // of the step's nodes
  std::vector<int32_t> chunks;  // those whose path has no such node below this one, by place in the step
};

// The parts of prompts that a step computes. `nodes`: parents first.
struct StepPrompts {
  std::vector<PromptChunk> chunks;
  std::vector<SharedNode> nodes;
};

// A step's reads of KV, all layers, in bytes, and its time.
struct AttentionStep {
  double seconds = 0, seconds_unshared = 0;
  double bytes_read = 0, bytes_read_unshared = 0;
};

// Layers of one spec.
struct LayerKind {
  attention::AttentionSpec spec;
  attention::BackendTraits traits;
  int32_t layers = 0;
  // Ranks that divide the tokens of KV, each of which reads and computes a part of every token's time with the query heads of all,
  // and what they exchange in a layer.
  int32_t token_ranks = 1;
  KvExchange exchange = {};
};

class AttentionTimes {
 public:
  AttentionTimes(std::span<const LayerKind> kinds, const attention::MachineModel& machine);

  // Items that read the same tokens, added up: what they take for a token.
  struct Readers {
    int64_t rows = 0, sets = 0;  // rows and sets served, whatever the items
    int64_t items = 0, dense_rows = 0, dense_items = 0, stream_items = 0,
            stream_rows = 0;  // row groups of the items; rows as computed
    int64_t compute_ps = 0;

    Readers& Add(const Readers& other, int64_t times = 1);
  };
  // At each of attention::kPrices.
  template <class T>
  using ByPrices = std::array<T, attention::kPrices.size()>;

  // Reads of the decoding samples of one engine, kept while samples come and go. The caller owns it.
  struct Decoding {
    struct Sums {
      ByPrices<attention::StepShape> shared;  // of one layer: as it is best node by node at these prices
      attention::StepShape apart;             // and if every sample reads for itself
      int64_t compute_ps = 0;                 // if every node is read once
    };
    std::vector<Sums> kinds;
    int64_t samples = 0;
    // Of nodes with several samples below, all kinds of layers one after the other; places that are free.
    std::vector<ByPrices<Readers>> readers;
    std::vector<int32_t> free_places;
  };
  Decoding Nothing() const { return {.kinds = std::vector<Decoding::Sums>(kinds_.size())}; }

  // A node of a sample's path. `reads` is -1 where no two samples decode below it, else what ChangePath made it.
  struct PathNode {
    int32_t tokens = 0, end = 0;  // of the node; up to its end
    int32_t samples = 0;          // that decode below it so far
    int32_t* reads = nullptr;
  };
  // So many samples more, or fewer, decode below a path, from the root on.
  void ChangePath(std::span<const PathNode> path, int32_t samples, Decoding* decoding) const;
  // So many samples more, or fewer, whose prompts have so many tokens.
  void ChangeSamples(int32_t samples, int32_t prompt_tokens, Decoding* decoding) const;

  // A step in which all of them decode, having `own_tokens` tokens behind their prompts, all together, and prompts are computed.
  AttentionStep Step(const Decoding& decoding, int64_t own_tokens, const StepPrompts& prompts) const;

  // Of one token, all layers; where ranks divide tokens, of one of them in the mean.
  int64_t kv_bytes_per_token() const;

 private:
  struct Kind {
    attention::CostModel cost;
    int32_t layers = 0, window = 0, group = 1, token_ranks = 1;
    KvExchange exchange;
    int32_t tile_queries = 1, set_queries = 1;  // of a prompt: those of a row tile, of a merge set
    int32_t kv_tile = 1, tile_rows = 1;
    bool cuts_kv = false;
    size_t num_prices = 1;  // of kPrices, how many there are to choose from
  };
  // Tokens read, and the time of computing them, if every node is read once.
  struct Distinct {
    int64_t tokens = 0, compute_ps = 0;
  };
  struct SharedRange {
    int64_t tokens = 0, rows = 0;
  };
  static Readers ItemOf(const Kind& kind, int64_t rows, int64_t sets);
  static Readers SamplesOf(const Kind& kind, int64_t samples);
  static Readers TilesOf(const Kind& kind, const PromptChunk& chunk);
  // The readers that go on above a node.
  static Readers Above(const Kind& kind, const Readers& below, bool shares);
  Readers ReadersAt(size_t kind, size_t prices, int32_t samples, int32_t reads, const Decoding& decoding) const;

  static bool Shares(const Kind& kind, int64_t tokens, int64_t end, const Readers& readers, size_t prices);
  static void CountNode(const Kind& kind, int64_t tokens, int64_t end, const Readers& readers, bool shares, int64_t sign,
                        attention::StepShape* shape);
  static void CountTiles(const Kind& kind, const PromptChunk& chunk, int32_t before, attention::StepShape* shape);
  // Returns the items that read for all of a chunk's queries.
  std::vector<SharedRange> CountPrompts(size_t kind, const StepPrompts& prompts, size_t prices, const Decoding& decoding,
                                        attention::StepShape* shared) const;
  static int64_t TokensReadByRowGroups(const Kind& kind, std::span<const SharedRange> ranges, double step_ns);
  static Distinct DistinctOf(const Kind& kind, int64_t own_tokens, const StepPrompts& prompts);
  static size_t PricesOf(const Kind& kind, const Distinct& step);  // of kPrices
  double StepNs(const Kind& kind, const attention::StepShape& shape) const;

  std::vector<Kind> kinds_;
};

}  // namespace coppice::simulate
