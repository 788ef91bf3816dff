// How deep samples draft: a depth that follows what was accepted of a sample's drafts, within what the step has room for and the
// sample may still say, and whether they draft at all (draft_gain.h). A Drafter (draft.h) guesses; the runner verifies; commit.h
// takes over what was right. Layer: engine. docs/engine.md, "Speculative decoding".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coppice/engine/engine.h"
#include "engine/draft.h"
#include "engine/draft_gain.h"
#include "engine/scheduler.h"

namespace coppice {

// Thread-compatible.
class Drafts {
 public:
  struct Options {
    int32_t max_depth = 4;    // EngineOptions::draft_tokens
    int32_t max_context = 0;  // tokens
    DraftPolicy policy = DraftPolicy::kMeasured;
  };
  // `drafter` null: no drafts.
  Drafts(std::unique_ptr<Drafter> drafter, const Options& options) : drafter_(std::move(drafter)), options_(options) {}

  bool enabled() const { return drafter_ != nullptr; }
  // Whether the next steps draft, `running` samples being there. Drafts follow what is known of a text, so steps that draft are not
  // launched ahead. REQUIRES: called before Propose, for it.
  bool DecideFor(int32_t running);
  bool drafting() const { return drafting_; }
  // Guesses for the sequences that decode in the next step, if it drafts. Else those of a drafter that guesses freely are held
  // against the tokens that come, so that drafting begins where it promises to save time. On an error `asked` have no drafts that
  // can be trusted.
  Status Propose(Scheduler* scheduler);
  // The sequences that Propose asked for.
  std::span<const DraftRequest> asked() const { return asked_; }
  // Forgets all sequences, also where a call that threw has left things half done.
  void Clear();
  // Clear, and the drafter's memory is given back; see Drafter.
  Status Sleep();
  Status Wake() { return drafter_ ? drafter_->Wake() : OkStatus(); }
  // Of the first `drafts` tokens of a sequence's draft, `accepted` were what the model says.
  void NoteAccepted(Sequence* sequence, int32_t drafts, int32_t accepted) const;
  // A step without prompt rows was committed.
  void NoteStep(DraftGain::Step step);
  // By drafting itself so far, all layers of a draft model.
  int64_t kv_bytes_read() const { return drafter_ ? drafter_->kv_bytes_read() : 0; }

 private:
  // Whether guesses are followed in steps without drafts, too.
  bool forecasts() const { return options_.policy == DraftPolicy::kMeasured && drafter_->guesses_freely(); }
  // Asks for a guess, if there is room for one.
  void Ask(const Scheduler& scheduler, Sequence* sequence);

  std::unique_ptr<Drafter> drafter_;
  Options options_;
  DraftGain gain_;
  bool drafting_ = false;
  bool drafter_rests_ = false;     // it knows that no sequence drafts now
  std::optional<double> promise_;  // tokens of a sample in a step with drafts, where that is forecast
  std::vector<DraftRequest> asked_;
};

}  // namespace coppice
