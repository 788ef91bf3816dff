// Drafts by a second, smaller model of the same vocabulary, which runs ahead of the first on a runner and a KV cache of its own:
// prefixes are shared and kept there as they are in the target's. Linear drafts only. Layer: engine. Leviathan et al. 2023; Chen et
// al. 2023.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/draft.h"
#include "engine/request_state.h"
#include "engine/step_builder.h"
#include "runner/runner.h"

namespace coppice {

struct ModelDrafterParts {
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Runner> runner;  // leaves distributions to the target's runner
  int32_t max_batch_tokens = 512, max_context = 0;
  // Draft what the target would choose if it agreed, with the target's own random numbers, and leave no proposal: the target then
  // compares tokens, and its text does not depend on the drafts at all. Otherwise a draft is drawn from the draft model's
  // distribution under the request's parameters, which is accepted more often.
  bool exact = false;
};

class ModelDrafter final : public Drafter {
 public:
  explicit ModelDrafter(ModelDrafterParts parts);

  // Sequences that are not caught up with yet (their prompt is new to the draft model) get no draft; at most max_batch_tokens of
  // them are computed in a call, so that no sequence stalls. Nor do those for which there is no room. Errors are those of the
  // forward pass.
  Status Propose(std::span<const DraftRequest> requests) override;
  void Clear() override;
  Status Sleep() override { return parts_.runner->Sleep(/*keep_weights=*/true); }
  Status Wake() override { return parts_.runner->Wake(); }
  int64_t kv_bytes_read() const override { return kv_bytes_read_; }

  const KvCache& cache() const { return *parts_.cache; }

 private:
  // A sequence's branch in the draft model.
  struct DraftBranch {
    BranchId branch = kNoBranch;
    int32_t known = 0;            // of `tokens`, those that were the sequence's when it was last asked for
    int32_t computed = 0;         // of `tokens`, those whose KV is there
    int32_t acknowledged = 0;     // generated tokens that the sampling slot knows of; kept where there are penalties
    std::vector<int32_t> tokens;  // and drafts behind them
    uint64_t last_call = 0;
  };
  using DraftBranchKey = std::pair<RequestId, int32_t>;  // request and sample
  // A branch's part of a round: tokens [begin, begin + count) of it are fed.
  struct Job {
    const DraftRequest* request = nullptr;
    DraftBranch* draft = nullptr;
    int32_t begin = 0, count = 0;
    int32_t depth = 0;  // drafts wanted
    int32_t last_row = 0;
    bool samples() const { return count > 0 && begin + count == static_cast<int32_t>(draft->tokens.size()); }
  };

  static DraftBranchKey KeyOf(const Sequence& sequence);
  // Drops what was drafted and not accepted, and adds what came since.
  void Follow(const Sequence& sequence, DraftBranch* draft);
  // Null when there is no room, or another branch computes the same prompt right now.
  DraftBranch* Admit(const Sequence& sequence);
  // Of sequences that this call was not asked about.
  void ReleaseUnused();
  // Forward passes until every request has its draft.
  Status RunRounds(std::span<const DraftRequest> requests);
  // One forward pass over all jobs, and a draft for each that reached the end of its tokens.
  Status RunRound();
  // A draw for each job that reached the end of its tokens.
  void AppendDraws();
  void TakeDrafts(std::span<const TokenDraw> draws);

  ModelDrafterParts parts_;
  StepBuilder steps_;  // on parts_.cache
  std::map<DraftBranchKey, DraftBranch> draft_branches_;
  std::vector<Job> jobs_;
  uint64_t calls_ = 0;
  int64_t kv_bytes_read_ = 0;
  // Of a round; reused.
  std::vector<int32_t> scratch_;
  int32_t num_distributions_ = 0;  // of a call: they stay until the next one
};

}  // namespace coppice
