// One simulated `coppice serve`: its cache, its line, its steps, by counts alone. It follows the engine's scheduler (decodes first,
// then prompts in chunks within a step's budget; equal prompts in flight are waited for; of those that wait, what shares most with
// running samples comes first; out of pages the newest gives way), a step's time is that of StepTimes and AttentionTimes, and the
// least recently used text is evicted. Steps between arrivals and ends are taken together. Layer: simulate.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "simulate/attention_times.h"
#include "simulate/step_times.h"
#include "simulate/trace.h"

namespace coppice::simulate {

// The times of a replica's steps.
struct Costs {
  StepTimes steps;
  AttentionTimes attention;
};

// As the options of the engine of these names.
struct ServerOptions {
  int32_t max_running = 256, max_batch_tokens = 512, chunk = 0;  // chunk 0: what the budget leaves
  int32_t page_size = 16;
  int64_t kv_tokens = 0;       // that the KV cache holds
  double request_seconds = 0;  // that a request takes beside its steps, such as its HTTP
};

struct Outcome {
  int32_t replica = -1;
  int32_t cached_tokens = 0;                   // of the prompt
  float first_token_seconds = 0, seconds = 0;  // since the request came: the first token, the end
  bool refused = false;                        // it does not fit the cache
};

struct ReplicaTotals {
  int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, steps = 0, preemptions = 0, evicted_tokens = 0;
  double busy_seconds = 0, kv_bytes_read = 0, kv_bytes_read_unshared = 0;
};

// A node that a replica has, or is to have since a request for it waits: for routers that go by it.
using OnHeld = std::function<void(int32_t node, bool held)>;
// A request has been answered.
using OnEnded = std::function<void(int32_t request)>;

// Thread-compatible.
class Replica {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // All outlive the replica. `outcomes`: by request. The callbacks may be empty.
  Replica(int32_t id, const Trace* trace, const Costs* costs, const ServerOptions& options, std::span<Outcome> outcomes,
          OnEnded on_ended, OnHeld on_held);

  // A request of the trace comes now. REQUIRES: no earlier than anything before it.
  void Submit(int32_t request, double now);
  // When the steps that are planned end; kNever where nothing runs.
  double next_event() const { return end_; }
  // Ends them and plans what follows. REQUIRES: next_event is not kNever.
  void Advance();

  const ReplicaTotals& totals() const { return totals_; }
  // Requests that are not answered, their samples, and the prompt tokens of them that nothing has computed.
  int32_t outstanding() const { return outstanding_; }
  int64_t samples_outstanding() const { return samples_waiting_ + samples_running_; }
  int64_t backlog_tokens() const { return waiting_tokens_ + prefilling_tokens_; }
  int64_t samples_waiting() const { return samples_waiting_; }
  int64_t samples_running() const { return samples_running_; }

  // Whether its sums are those of its lists; for tests.
  bool CheckIntegrity() const;

 private:
  // A text that is cached, or is about to be.
  struct Entry {
    int32_t node = kNoNode;  // kNoNode: text that no prompt of the trace has
    int32_t tokens = 0;
    int32_t before = -1, after = -1;  // in the order of use, where listed
    int32_t users = 0, decoding = 0;  // samples that run through it; of those, that decode
    int32_t waiting = 0;              // requests in the queue
    int32_t reads = -1;               // AttentionTimes::PathNode
    int32_t chunks = 0, place = -1;   // while a step is planned: chunks that see it, and its place in prompts_.nodes
    bool ready = false, computing = false, listed = false;
  };
  struct Running {
    int32_t request = 0;
    int32_t samples = 0;
    int32_t computed = 0, target = 0;  // of the prompt, and of what was generated before it gave way
    int32_t generated = 0;             // before that
    int64_t ends_at = 0;               // step by steps_: a sample's last token; where it decodes
    bool decodes = false;
    std::vector<int32_t> path;  // entries from the root on
    size_t next_unready = 0;    // of them
  };
  struct Waiting {
    int32_t request = 0;
    int32_t generated = 0;
    int32_t backlog = 0;  // prompt tokens that were not there when it came
    bool begun = false;
  };
  enum class Admission { kAdmitted, kPending, kNoRoom };

  void Plan(double now);
  void ComputePrompts(int32_t* budget);
  void Admit(int32_t* budget);
  Admission TryAdmit(const Waiting& waiting);
  void ComputeChunk(Running* running, int32_t* budget);
  void FindSharedNodes();
  void PlanSteps(double now);
  void BeginDecoding(Running* running, double now);
  void Leave(Running* running, double now);
  void SetDecoding(const Running& running, bool decodes);
  void PreemptNewest();
  bool IsShortOfRoom();

  const TraceRequest& RequestOf(int32_t request) const { return trace_.requests()[request]; }
  void FillPath(int32_t node);  // path_nodes_
  int32_t FindEntry(int32_t node) const;
  int32_t EntryOf(int32_t node);  // made where there is none
  void DropIfUnused(int32_t entry);
  void List(int32_t entry);  // as the one that was used last
  void Unlist(int32_t entry);
  bool MakeRoom(int64_t tokens);
  void KeepGenerated(const Running& running, int32_t per_sample);
  double Sum(double AttentionStep::*what) const;  // over the planned steps

  const int32_t id_;
  const Trace& trace_;
  const Costs& costs_;
  const ServerOptions options_;
  const std::span<Outcome> outcomes_;
  const OnEnded on_ended_;
  const OnHeld on_held_;

  boost::unordered_flat_map<int32_t, int32_t> entry_of_node_;
  std::vector<Entry> entries_;
  std::vector<int32_t> free_entries_;
  int32_t oldest_ = -1, newest_ = -1;
  int64_t used_tokens_ = 0, listed_tokens_ = 0;

  std::deque<Waiting> waiting_;
  std::vector<Running> running_;  // in the order of admission
  StepPrompts prompts_;
  std::vector<size_t> chunk_of_;  // of running_, by place in prompts_.chunks
  std::vector<int32_t> path_nodes_;
  AttentionTimes::Decoding decoding_;
  std::vector<AttentionTimes::PathNode> decode_path_;
  int32_t decode_rows_ = 0, outstanding_ = 0;
  int64_t own_tokens_ = 0;  // generated by samples that decode, in the cache
  int64_t samples_waiting_ = 0, samples_running_ = 0, waiting_tokens_ = 0, prefilling_tokens_ = 0;

  // The planned steps: what the first one takes, all that is beside attention included, and how much more each further one does.
  double begin_ = 0, end_ = kNever;
  AttentionStep first_, growth_;
  int64_t planned_ = 0, steps_ = 0;

  ReplicaTotals totals_;
};

}  // namespace coppice::simulate
