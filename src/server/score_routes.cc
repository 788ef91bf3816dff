#include "server/score_routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/text_source.h"
#include "openai/answer_size.h"
#include "server/answer_limits.h"
#include "server/errors.h"
#include "server/request_log.h"

namespace coppice::server {
namespace {}  // namespace

std::vector<Route> ScoreRoutes::Routes() { return {{"POST", "/v1/score", HandledBy(this, &ScoreRoutes::Score), BodyKind::kJson}}; }

void ScoreRoutes::Score(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = context_.TakeBody(call);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::ScoreRequest> parsed =
      openai::ParseScore(*body->json, context_.parser(), &error, prefixes_.FinderOf(call->key));
  if (!parsed) return context_.Answer(call, error);
  ReportIgnored(call, parsed->ignored_fields);
  if (context_.options().max_waiting > 0 && parsed->sequences.size() > static_cast<size_t>(context_.options().max_waiting)) {
    const std::string message = fmt::format("continuations is a list of {}, and the server lets {} requests wait; send several",
                                            parsed->sequences.size(), context_.options().max_waiting);
    return context_.Answer(call, ErrorResponse(InvalidArgument(message), "continuations"));
  }
  if (const Status allowed = context_.access().Complete(call->key, &parsed->request); !allowed.ok())
    return context_.Answer(call, ErrorResponse(allowed, "priority"));
  if (const openai::BodyError fits = CheckAnswer(context_.options().answers, *parsed); !fits.status.ok())
    return context_.Answer(call, fits);
  if (!context_.Admit(call, {.tokens = parsed->usage.prompt, .samples = std::ssize(parsed->sequences)})) return;
  const auto request = std::make_shared<const openai::ScoreRequest>(*std::move(parsed));
  const auto active = std::make_shared<ActiveCalls::Entry>();
  const auto score =
      openai::ScoreCall::Start(&context_.engine(), *request,
                               [=, this, admission = call->admission, until_it_ends = active](openai::ScoreCall::Outcome outcome) {
                                 admission->End(outcome.begun ? outcome.usage.prompt : 0);
                                 AnswerScore(call, request, std::move(outcome));
                               });
  *active = calls_.Add({.key = call->key, .is_score = true, .call = score});
  call->responder->WhenGone([weak = std::weak_ptr(score)] {
    if (const std::shared_ptr<openai::ScoreCall> score = weak.lock()) score->Cancel();
  });
}

void ScoreRoutes::AnswerScore(const std::shared_ptr<Call>& call, std::shared_ptr<const openai::ScoreRequest> request,
                              openai::ScoreCall::Outcome outcome) {
  if (outcome.cancelled) return context_.Log(*call, kClientLeft);
  if (!outcome.status.ok()) {
    const bool full = outcome.refused && outcome.status.code() == StatusCode::kResourceExhausted;
    return context_.Answer(call, full ? ErrorResponse(429, outcome.status.message()) : ErrorResponse(outcome.status));
  }
  call->usage = outcome.usage;
  context_.metrics().CountTokens(call->key, outcome.usage.prompt, outcome.usage.cached, 0);
  context_.metrics().CountBytesNotRead(call->key, outcome.usage.shared_reads.kv_bytes_not_read);
  const double bytes = AnswerBytes(*request);
  std::unique_ptr<TextSource> body =
      ScoreBody(std::move(request), std::move(outcome),
                {.id = call->request.id, .created = UnixSeconds(), .model = context_.options().model});
  context_.Answer(call, BodyResponse(std::move(body), bytes));
}

}  // namespace coppice::server
