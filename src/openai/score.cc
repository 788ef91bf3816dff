#include "openai/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "core/json.h"
#include "engine/not_finite.h"

namespace coppice::openai {

ScoreCall::ScoreCall(Engine* engine, const ScoreRequest& request, std::function<void(Outcome)> on_end)
    : RequestDriver(engine),
      base_(request.request),
      usage_(request.usage),
      tree_(MakeScoreTree(request.sequences)),
      scores_(static_cast<size_t>(tree_.num_scores)),
      on_end_(std::move(on_end)) {}

std::shared_ptr<ScoreCall> ScoreCall::Start(Engine* engine, const ScoreRequest& request, std::function<void(Outcome)> on_end) {
  const std::shared_ptr<ScoreCall> call(new ScoreCall(engine, request, std::move(on_end)));
  call->Begin([&] { call->SubmitParts(0, 1); });
  return call;
}

void ScoreCall::SubmitParts(size_t begin, size_t end) {
  for (size_t part = begin; part < end; ++part) {
    if (!Submit(PartRequest(part))) return;
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
  return request;
}

void ScoreCall::OnEvent(size_t part, const StreamEvent& event) {
  const std::vector<int32_t>& ids = tree_.parts[part].ids;
  for (size_t i = 0; i < event.prompt_scores.size(); ++i) {
    if (std::isnan(event.prompt_scores[i].logprob)) Fail(LogitsNotFinite());
    scores_[ids[i]] = event.prompt_scores[i];
  }
  if (event.finish_reason == FinishReason::kCancelled && !cancelled())
    Fail(Unavailable(
        "a pause of the engine or an update of weights ended the request before all tokens were scored; send it again"));
  if (part == 0 && event.request_done) SubmitParts(1, tree_.parts.size());
}

void ScoreCall::OnEnd() {
  if (!on_end_) return;
  if (!counts().empty()) usage_.cached = counts().front().cached_tokens;  // the other parts find what this one has computed
  usage_.shared_reads = usage(0).shared_reads;
  std::exchange(on_end_, nullptr)({.status = failure(),
                                   .refused = refused(),
                                   .begun = begun(),
                                   .cancelled = cancelled(),
                                   .usage = usage_,
                                   .scores = std::move(scores_),
                                   .score_ids = std::move(tree_.score_ids)});
}

namespace {

class ScoreText final : public PartedText {
 public:
  ScoreText(std::shared_ptr<const ScoreRequest> request, ScoreCall::Outcome outcome, ResponseFacts facts)
      : request_(std::move(request)), outcome_(std::move(outcome)), facts_(std::move(facts)) {
    held_bytes_ = outcome_.scores.size() * sizeof(ScoredToken);
    for (const std::vector<int32_t>& ids : outcome_.score_ids) held_bytes_ += ids.size() * sizeof(int32_t);
    for (const ScoredSequence& sequence : request_->sequences) held_bytes_ += sequence.tokens.size() * sizeof(int32_t);
  }

  size_t held_bytes() const override { return held_bytes_; }

 private:
  bool AddParts(TextParts* parts) override;
  void AddSequence(size_t i, TextParts* parts) const;

  const std::shared_ptr<const ScoreRequest> request_;
  const ScoreCall::Outcome outcome_;
  const ResponseFacts facts_;
  size_t held_bytes_ = 0;
  size_t next_ = 0;  // sequence
  bool done_ = false;
};

bool ScoreText::AddParts(TextParts* parts) {
  if (done_) return false;
  if (next_ == 0) {
    const std::string line = facts_.line ? fmt::format(R"("line":{},)", *facts_.line) : "";
    parts->Add(fmt::format(R"({{"id":{},{}"object":"score","created":{},"model":{},"scores":[)", DumpJson("score-" + facts_.id),
                           line, facts_.created, DumpJson(facts_.model)));
  }
  if (next_ < outcome_.score_ids.size()) {
    AddSequence(next_++, parts);
  } else {
    parts->Add(fmt::format(R"(],"usage":{}}})", DumpJson(UsageOf(outcome_.usage))));
    done_ = true;
  }
  return true;
}

void ScoreText::AddSequence(size_t i, TextParts* parts) const {
  const std::vector<int32_t>& ids = outcome_.score_ids[i];
  double sum = 0;
  bool greedy = true;
  for (const int32_t id : ids) {
    sum += outcome_.scores[id].logprob;
    greedy &= outcome_.scores[id].greedy;
  }
  const auto comma_before = [](size_t place) { return place > 0 ? "," : ""; };
  parts->Add(fmt::format(R"({}{{"index":{},"logprob":{},"mean_logprob":{},"num_tokens":{},"greedy":{},"token_logprobs":[)",
                         comma_before(i), i, DumpJson(sum), DumpJson(sum / static_cast<double>(ids.size())), ids.size(), greedy));
  parts->AddEach(ids.size(), [this, comma_before, &ids](size_t place, std::string* out) {
    *out += comma_before(place) + DumpJson(outcome_.scores[ids[place]].logprob);
  });
  if (request_->return_token_ids) {
    parts->Add(R"(],"token_ids":[)");
    const auto& [tokens, begin] = request_->sequences[i];
    const std::span scored(tokens.begin() + begin, tokens.end());
    parts->AddEach(scored.size(), [comma_before, scored](size_t place, std::string* out) {
      *out += comma_before(place) + std::to_string(scored[place]);
    });
  }
  parts->Add("]}");
}

}  // namespace

std::unique_ptr<TextSource> ScoreBody(std::shared_ptr<const ScoreRequest> request, ScoreCall::Outcome outcome,
                                      ResponseFacts facts) {
  return std::make_unique<ScoreText>(std::move(request), std::move(outcome), std::move(facts));
}

}  // namespace coppice::openai
