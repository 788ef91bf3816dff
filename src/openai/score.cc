#include "openai/score.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/not_finite.h"

namespace coppice::openai {

using nlohmann::ordered_json;

ScoreCall::ScoreCall(Engine* engine, const ScoreRequest& request, std::function<void(const Outcome&)> on_end)
    : engine_(*engine),
      base_(request.request),
      tree_(MakeScoreTree(request.sequences)),
      scores_(static_cast<size_t>(tree_.num_scores)),
      outcome_{.usage = request.usage},
      on_end_(std::move(on_end)) {}

std::shared_ptr<ScoreCall> ScoreCall::Start(Engine* engine, const ScoreRequest& request,
                                            std::function<void(const Outcome&)> on_end) {
  const std::shared_ptr<ScoreCall> call(new ScoreCall(engine, request, std::move(on_end)));
  const std::lock_guard lock(call->mutex_);
  call->SubmitParts(0, 1);
  call->EndIfDone();
  return call;
}

void ScoreCall::SubmitParts(size_t begin, size_t end) {
  for (size_t part = begin; part < end; ++part) {
    const Result<RequestId> id = engine_.Submit(PartRequest(part));
    if (id.ok()) {
      submitted_.push_back(*id);
      continue;
    }
    outcome_.status = id.status();
    outcome_.refused = true;
    return CancelSubmitted();
  }
}

Request ScoreCall::PartRequest(size_t part) {
  Request request = base_;
  request.prompt_ids = std::move(tree_.parts[part].prompt_ids);
  request.prompt_scores = std::move(tree_.parts[part].scores);
  if (base_.timeout_seconds > 0) {  // of all parts together
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin_;
    request.timeout_seconds = std::max(1e-3, base_.timeout_seconds - gone.count());
  }
  request.on_event = [self = shared_from_this(), part](const StreamEvent& event) { self->OnEvent(part, event); };
  return request;
}

void ScoreCall::OnEvent(size_t part, const StreamEvent& event) {
  const std::lock_guard lock(mutex_);
  const std::vector<int32_t>& ids = tree_.parts[part].ids;
  for (size_t i = 0; i < event.prompt_scores.size(); ++i) scores_[ids[i]] = event.prompt_scores[i];
  if (part == 0) outcome_.usage.cached = std::max<int64_t>(outcome_.usage.cached, event.cached_tokens);
  if (event.finish_reason == FinishReason::kError && outcome_.status.ok()) {
    outcome_.status = event.status;
    CancelSubmitted();
  }
  if (!event.request_done) return;
  outcome_.usage.shared_reads.Add(event.shared_reads);
  ++done_;
  const bool goes_on = outcome_.status.ok() && !outcome_.cancelled;
  if (part == 0 && goes_on) SubmitParts(1, tree_.parts.size());
  EndIfDone();
}

void ScoreCall::Cancel() {
  const std::lock_guard lock(mutex_);
  if (!on_end_) return;
  outcome_.cancelled = true;
  CancelSubmitted();
}

void ScoreCall::CancelSubmitted() {
  for (const RequestId id : submitted_) (void)engine_.Cancel(id);  // one that has ended needs no cancelling
}

void ScoreCall::EndIfDone() {
  if (done_ < submitted_.size() || !on_end_) return;
  for (const std::vector<int32_t>& ids : tree_.score_ids) {
    std::vector<ScoredToken>& scores = outcome_.scores.emplace_back();
    for (const int32_t id : ids) scores.push_back(scores_[id]);
  }
  std::exchange(on_end_, nullptr)(outcome_);
}

Result<ordered_json> ScoreBody(const ScoreRequest& request, const ScoreCall::Outcome& outcome, const ResponseFacts& facts) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < outcome.scores.size(); ++i) {
    double sum = 0;
    bool greedy = true;
    ordered_json logprobs = ordered_json::array();
    for (const ScoredToken& score : outcome.scores[i]) {
      if (std::isnan(score.logprob)) return LogitsNotFinite();
      sum += score.logprob;
      greedy &= score.greedy;
      logprobs.push_back(score.logprob);
    }
    const size_t count = outcome.scores[i].size();
    ordered_json entry = {{"index", i},          {"logprob", sum},   {"mean_logprob", sum / static_cast<double>(count)},
                          {"num_tokens", count}, {"greedy", greedy}, {"token_logprobs", std::move(logprobs)}};
    const auto& [tokens, begin] = request.sequences[i];
    if (request.return_token_ids) entry["token_ids"] = std::vector<int32_t>(tokens.begin() + begin, tokens.end());
    list.push_back(std::move(entry));
  }
  return ordered_json{{"id", "score-" + facts.id}, {"object", "score"},         {"created", facts.created},
                      {"model", facts.model},      {"scores", std::move(list)}, {"usage", UsageOf(outcome.usage)}};
}

}  // namespace coppice::openai
