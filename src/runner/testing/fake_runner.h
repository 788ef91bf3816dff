// Stand-ins for tests and the host-overhead bench: a model without layers whose logits depend on the whole token history, read back
// through the page rows of the forest, so that any fault in sharing, copying or scheduling changes its tokens.
// Layer: runner, tests only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/host_runner.h"

namespace coppice {

// Each slot of KV holds the hash of the path up to its token, in its lowest 16 bits the token, and in the next 8 the version of the
// weights that made it. Attention is played by walking a query's whole row and checking that every slot continues the one before
// it, in no older version; the plan must cover that row.
class FakeRunner final : public HostRunner {
 public:
  struct Options {
    int32_t vocab_size = 64, max_position = 256;
    int32_t num_pages = 64, page_size = 16;
    std::vector<int32_t> eos_token_ids;
    uint64_t seed = 0;         // models of different seeds say different things after the same tokens
    float logit_range = 8.0f;  // logits are uniform in [0, logit_range)
    int32_t memory = 0;        // of the history, the last so many tokens count; 0: all
    bool padded = false;       // it has a second weight, kPadTensor, which changes nothing
  };
  // `plan`, of the CPU, must cover each query's history in the forests that it is updated with; `executor`, for sampling, outlives
  // the runner.
  FakeRunner(const Options& options, std::unique_ptr<attention::AttentionPlan> plan, Executor* executor,
             std::shared_ptr<DraftDistributions> distributions = nullptr);

  void set_fingerprint(std::string fingerprint) { mutable_info().fingerprint = std::move(fingerprint); }
  // One head of one element: K and V are the two halves of a slot.
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;

  // Its weights, a float each: Options::seed, and where it is padded another.
  static constexpr std::string_view kSeedTensor = "seed", kPadTensor = "pad";
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override;
  bool weights_are_whole() const override { return missing_.empty(); }
  void BeginUpdate() override;
  void EndUpdate() override;
  HeldWeights Weights() const override;
  // Of updates, failed ones included.
  uint8_t weight_version() const { return version_; }
  // Of the weights that made the KV in a slot.
  uint8_t VersionAt(int64_t slot) const;
  Status CheckSleep(bool keep_weights) const override;
  // Its KV is garbage after it, its seed if that is not kept.
  Status Sleep(bool keep_weights) override;
  Status Wake() override;
  bool asleep() const { return asleep_; }
  // Weights cannot be dropped.
  void HoldWeights() { holds_weights_ = true; }
  // The next update fails half-way.
  void FailNextUpdate(Status status) { update_failure_ = std::move(status); }

  // The model's logits and greedy token after `tokens`, from the tokens alone.
  std::vector<float> LogitsAfter(std::span<const int32_t> tokens) const;
  int32_t GreedyAfter(std::span<const int32_t> tokens) const;
  int64_t tokens_computed() const { return tokens_computed_; }
  int32_t largest_batch() const { return largest_batch_; }
  // The next step fails, after its edits.
  void FailNext(Status status) { failure_ = std::move(status); }
  // Steps with rows, counted from 1, for which this is true fail.
  void FailWhen(std::function<bool(int64_t step)> fails) { fails_ = std::move(fails); }

 private:
  Status MoveSlots(std::span<const attention::SlotMove> moves) override;
  Status CopyPages(std::span<const attention::PageCopy> copies) override;
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch) override;
  void CheckPlan() const;
  std::set<std::string, std::less<>> AllWeights() const;
  // The state of a query with these tokens before it (itself included).
  uint64_t StateAfter(std::span<const int32_t> tokens) const;
  void FillLogits(uint64_t state, std::span<float> logits) const;

  class WatchedPlan;

  Options options_;
  const uint64_t loaded_seed_;
  const WatchedPlan& plan_;
  int32_t page_size_;
  std::vector<uint64_t> memory_;
  std::vector<uint64_t> states_;  // by token of the batch
  std::vector<int32_t> history_;  // tokens that a query sees
  std::vector<float> logits_;
  int64_t tokens_computed_ = 0;
  int32_t largest_batch_ = 0;
  Status failure_, update_failure_;
  bool asleep_ = false, holds_weights_ = false;
  std::set<std::string, std::less<>> missing_;  // weights
  bool keeps_rest_ = false;                     // what an open update does not bring stays as it was
  uint8_t version_ = 0;
  std::function<bool(int64_t)> fails_;
  int64_t num_steps_ = 0;
};

}  // namespace coppice
