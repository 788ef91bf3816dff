// The engine's only seam to devices: it runs steps. A runner owns a model's weights, the memory of its KV pages, the plan of
// attention and the state of sampling; the engine owns requests, the schedule and ids. A step goes in as numbers and comes out as
// tokens; between Launch and Wait it may be anywhere. Layer: runner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/attention/node_reads.h"
#include "coppice/core/status.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/step_batch.h"
#include "runner/token_draw.h"

namespace coppice {

struct RunnerInfo {
  ModelConfig model;
  std::string fingerprint;         // of the model as it was loaded (Checkpoint::Fingerprint)
  DType kv_dtype = DType::kBF16;   // element type of the KV
  int64_t kv_bytes_per_token = 0;  // over all layers and ranks, without heads that are padding
};

struct StepTicket {
  int64_t step = 0;  // 1, 2, 3, ... in the order of launches
};

// Reads of a branch together with others in a step: bytes of all layers, tokens and sharers of those where they are most.
using attention::BranchReads;

// Reads and times of a step.
struct StepStats {
  // By attention, over all layers and ranks, with heads that are padding; unshared: without shared reads.
  int64_t kv_bytes_read = 0, kv_bytes_read_unshared = 0;
  int64_t kv_bytes_distinct = 0;              // each token of what was read once, likewise
  int32_t grouped_rows = 0;                   // rows that read some of their KV together with another branch's
  std::span<const BranchReads> branch_reads;  // by branch slot; empty: nothing was shared. Until the next Launch or Wait
  // Planning; the forward pass, a device's with its edits; logits to tokens. Where they overlap other steps, how long each took.
  double plan_seconds = 0, forward_seconds = 0, sample_seconds = 0;
  double edit_seconds = 0;  // the edits that the host makes
  bool ran_as_graph = false;
  bool new_shape = false;  // it had no graph to launch yet, so that other steps of its shape take less
  // Of a device that runs beside the host: from the end of the step before to the beginning of this one's forward pass, as the
  // device saw it. 0 for the first.
  double device_idle_seconds = 0;
};

// Valid until the next call of Wait.
struct StepResult {
  std::span<const TokenDraw> draws;  // by StepBatch::draws
  std::span<const float> scores;     // by StepBatch::scores, natural logarithm
  // By StepBatch::scores: how probable the token is among all, from 1 on; of equals the lower id is first. 0: not wanted.
  std::span<const int32_t> score_ranks;
  std::span<const TokenLogprob>
      top_logprobs;                         // where top_begin of a draw or score says, most probable first, of equals the lower id
  std::span<const SelectedToken> selected;  // where Selection::selected_begin says, best first
  StepStats stats;
};

// Thread-compatible.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual const RunnerInfo& info() const = 0;

  // Begins a step. Has read everything it was given when it returns: the caller may change all of it. Steps run in the order of
  // their launches, each after the edits, KV and draws of those before; at most two are under way at a time. A batch without rows
  // is a step that only edits. On an error the step did not begin, but its edits have been made.
  // After an exception, for want of memory, any of its edits may have been made: the caller must end all that has slots and KV.
  virtual Result<StepTicket> Launch(const StepBatch& batch, const attention::PrefixForestView& forest) = 0;
  // Waits for the oldest step that is under way. On an error the step's KV and draws cannot be trusted, nor those of a step
  // launched after it, which must still be waited for; its edits have been made. REQUIRES: `ticket` is that step's.
  virtual Result<StepResult> Wait(StepTicket ticket) = 0;

  // How attention reads each node of the last launched step's forest, by node slot, and why; empty: nothing plans attention, or the
  // forest does not show it. Of layers that attend alike, the group that reads the node together counts, else the first.
  virtual std::vector<attention::NodeRead> NodeReads() const { return {}; }

  // KV by token, apart from pages: `kv` is [layer][K, V][token][kv_head][head_dim] in info().kv_dtype, whatever the page size is.
  // Of tokens [0, num_tokens) of a path whose pages, in order, are `pages`. REQUIRES: no step is under way.
  virtual Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const = 0;
  // Writes tokens [begin, num_tokens) of such a path; `pages` are those from kv index `begin` on. REQUIRES: a page begins there; no
  // step is under way.
  virtual Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) = 0;

  // Weights that UpdateWeights can take, of tensors under the names of Hugging Face's folders, whose memory outlives the result.
  // Errors as of WeightStore::CheckUpdate: nothing changes.
  virtual Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap /*tensors*/) const {
    return Unimplemented("the engine has no weights to update: it runs without a model");
  }
  // Replaces weights in place. REQUIRES: PrepareUpdate made `source`; no step is under way.
  virtual Status UpdateWeights(const WeightSource& /*source*/) { return PrepareUpdate({}).status(); }
  // False after an update that failed, or a sleep without weights, until all of them have come.
  virtual bool weights_are_whole() const { return true; }
  // The calls of UpdateWeights between these two are parts of one update, as WeightStore::BeginUpdate says.
  virtual void BeginUpdate() {}
  virtual void EndUpdate() {}
  // Of the whole model, by the names of Hugging Face's folders; none: it runs without a model.
  virtual HeldWeights Weights() const { return {}; }

  // FAILED_PRECONDITION or UNIMPLEMENTED where Sleep cannot be.
  virtual Status CheckSleep(bool /*keep_weights*/) const { return OkStatus(); }
  // Gives the memory of KV back until Wake, its content is lost; and that of weights, which are kept in host memory or dropped. No
  // other call comes meanwhile. After an error Wake brings back what was given. REQUIRES: CheckSleep; no step is under way.
  virtual Status Sleep(bool /*keep_weights*/) { return OkStatus(); }
  // RESOURCE_EXHAUSTED: others have the memory; it can be called again.
  virtual Status Wake() { return OkStatus(); }
};

}  // namespace coppice
