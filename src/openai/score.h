// POST /v1/score and `coppice score`: the log-likelihoods of many continuations of one prompt. Puts the tree of
// a request's sequences to an engine and makes the answer's body. Layer: openai.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "coppice/engine/engine.h"
#include "core/text_source.h"
#include "openai/request_driver.h"
#include "openai/response.h"
#include "openai/score_request.h"
#include "openai/score_tree.h"

namespace coppice::openai {

// A ScoreRequest on its way through an engine, which outlives it. Thread-safe.
class ScoreCall final : public RequestDriver {
 public:
  struct Outcome {
    Status status;           // of the first part that failed
    bool refused = false;    // by Submit: with RESOURCE_EXHAUSTED, the queue is full
    bool begun = false;      // a step took a part of it in
    bool cancelled = false;  // by Cancel
    TokenUsage usage;
    std::vector<ScoredToken> scores;
    std::vector<std::vector<int32_t>> score_ids;  // by sequence and scored token: its place in `scores`
  };

  // `on_end` is called once, on the engine's thread for events, or within Start if the engine takes nothing. INTERNAL: a
  // log-probability is none.
  static std::shared_ptr<ScoreCall> Start(Engine* engine, const ScoreRequest& request, std::function<void(Outcome)> on_end);

 private:
  ScoreCall(Engine* engine, const ScoreRequest& request, std::function<void(Outcome)> on_end);

  // The prompt is the first part; the others, which share it, follow when it is cached.
  void SubmitParts(size_t begin, size_t end);
  Request PartRequest(size_t part);
  void OnEvent(size_t part, const StreamEvent& event) override;
  void OnEnd() override;

  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const Request base_;
  TokenUsage usage_;
  ScoreTree tree_;
  std::vector<ScoredToken> scores_;  // by ScoreTree's ids
  std::function<void(Outcome)> on_end_;
};

// The body of an answer to a request that has no error, made while it is taken.
std::unique_ptr<TextSource> ScoreBody(std::shared_ptr<const ScoreRequest> request, ScoreCall::Outcome outcome, ResponseFacts facts);

}  // namespace coppice::openai
