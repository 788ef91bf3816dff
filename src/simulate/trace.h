// Requests as a simulation sees them: when they come, of which pieces of text their prompts are made, how long their answers are.
// There is no text: pieces are equal where they have the same id and length and what comes before them is equal. All pieces of all
// prompts are one tree, so a prompt is the node where it ends. Layer: simulate.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::simulate {

inline constexpr int32_t kNoNode = -1;

struct Segment {
  uint64_t id = 0;
  int32_t tokens = 0;
};

struct TraceNode {
  int32_t parent = kNoNode;
  int32_t tokens = 0, end = 0;  // of the piece; up to its end
};

struct TraceRequest {
  double arrival = 0;  // seconds
  int32_t prompt = kNoNode;
  int32_t output_tokens = 0;  // of each sample
  int32_t samples = 1;
  int32_t output = kNoNode;  // what a later prompt may have behind this one, where that is known
};

// One line of a trace.
struct TraceLine {
  double arrival = 0;
  std::vector<Segment> prompt;
  int32_t output_tokens = 0, samples = 1;
  std::optional<uint64_t> output_id;  // the piece of text that the answer is in later prompts
};

// Thread-compatible.
class Trace {
 public:
  // The node of a piece behind `parent`. REQUIRES: tokens > 0.
  int32_t Find(int32_t parent, const Segment& segment);
  // REQUIRES: the prompt has tokens.
  void Add(const TraceLine& line);
  // Adds a request to a prompt that is there already.
  void AddRequest(const TraceRequest& request) { requests_.push_back(request); }
  // In the order of arrival; those of one moment stay in the order in which they came.
  void Sort();

  const std::vector<TraceNode>& nodes() const { return nodes_; }
  const std::vector<TraceRequest>& requests() const { return requests_; }
  int32_t prompt_tokens(const TraceRequest& request) const { return nodes_[request.prompt].end; }
  // The pieces of a path from the root on, with the ids that they were found by.
  std::vector<Segment> PathTo(int32_t node) const;

 private:
  struct Key {
    uint64_t id;
    int32_t parent, tokens;
    bool operator==(const Key&) const = default;
    friend size_t hash_value(const Key& key) {
      uint64_t hash = key.id * 0x9E3779B97F4A7C15u ^ (static_cast<uint64_t>(static_cast<uint32_t>(key.parent)) << 32);
      hash = (hash ^ static_cast<uint32_t>(key.tokens)) * 0xBF58476D1CE4E5B9u;
      return static_cast<size_t>(hash ^ (hash >> 29));
    }
  };
  boost::unordered_flat_map<Key, int32_t> ids_;
  std::vector<TraceNode> nodes_;
  std::vector<uint64_t> node_ids_;
  std::vector<TraceRequest> requests_;
};

// A line of JSON. Fields: `timestamp` (milliseconds), `output_length`, and of the prompt either `segments`, a list of [id, tokens],
// or `hash_ids` with `input_length`, as Mooncake's traces have them: ids of blocks of `block_tokens` tokens each, the last one of
// what is left. Also `samples`, and `output_id`, the id of the segment that the answer is in later prompts. Ids are numbers of at
// least 0 or texts. INVALID_ARGUMENT names the field, its value and what is expected; DATA_LOSS says where the text is no JSON.
Result<TraceLine> ParseTraceLine(std::string_view text, int32_t block_tokens);
// Such a line, with `segments`.
std::string FormatTraceLine(const Trace& trace, const TraceRequest& request);

// The hit rate of one machine that keeps all: of all prompt tokens, those that an earlier prompt or answer had. The last token of a
// prompt is always computed.
double EndlessHitRate(const Trace& trace);

}  // namespace coppice::simulate
