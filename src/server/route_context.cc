#include "server/route_context.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/exhaustion.h"
#include "core/json.h"
#include "openai/response.h"
#include "server/errors.h"
#include "server/request_log.h"

namespace coppice::server {

using nlohmann::json;

RouteContext::RouteContext(Engine* engine, const ServiceOptions* options)
    : engine_(*engine),
      options_(*options),
      parser_(engine->tokenizer(), options_.max_context, engine->model_info().tokenizer_status, engine->model_info().vocab_size,
              options_.rules),
      metrics_({.version = options_.version, .model = options_.model}),
      access_(options_.access, options_.max_context) {}

std::optional<JsonBody> RouteContext::TakeBody(const std::shared_ptr<Call>& call, std::optional<openai::Endpoint> endpoint,
                                               std::string_view member) {
  const std::string text = std::exchange(call->request.body, {});
  Result<json> body = ParseJson(text);
  if (!body.ok()) {
    Answer(call, ErrorResponse(InvalidArgument("the body: " + body.status().message())));
    return std::nullopt;
  }
  JsonBody taken = {.json = DismantledJson(*std::move(body))};
  if (!endpoint) return taken;
  openai::BodyError error;
  const json* of_parts = &*taken.json;
  if (!member.empty()) {
    if (!of_parts->is_object() || !of_parts->contains(member)) return taken;
    of_parts = &(*of_parts)[std::string(member)];
  }
  std::optional<openai::OrderedParts> ordered =
      openai::ReadOrderedParts(*endpoint, *of_parts, text, &error, std::span(&member, member.empty() ? 0 : 1));
  if (!ordered) {
    Answer(call, ErrorResponse(error.status, openai::Within(std::string(member), error.param)));
    return std::nullopt;
  }
  taken.ordered = *std::move(ordered);
  return taken;
}

bool RouteContext::Admit(const std::shared_ptr<Call>& call, const RequestCost& cost) {
  std::optional<HttpResponse> refused = access_.Admit(call->key, cost, &call->admission);
  if (refused) Answer(call, *std::move(refused));
  return !refused;
}

bool RouteContext::RefuseWhenDraining(const std::shared_ptr<Call>& call) {
  const char* const why = draining_;
  if (why) Answer(call, ErrorResponse(503, why));
  return why != nullptr;
}

void RouteContext::Answer(const std::shared_ptr<Call>& call, HttpResponse response) {
  call->reason = response.reason;
  Log(*call, response.status);  // before the client can ask /metrics for what it was just answered
  call->responder->Send(std::move(response));
}

void RouteContext::Log(const Call& call, int status) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - call.begin).count();
  metrics_.CountRequest(call.route, status, seconds);
  spdlog::log(IsPoll(call, status) ? spdlog::level::debug : spdlog::level::info, "{}",
              RequestLine(call, status, seconds, options_.log_form));
}

void RouteContext::Try(const std::shared_ptr<Call>& call, const std::function<void()>& work) {
  Status status;
  try {
    status = CatchExhaustion("answering a request", [&] {
      work();
      return OkStatus();
    });
  } catch (const std::exception& error) {  // a fault of ours: it costs one request, not the server
    status = Internal(fmt::format("answering the request failed: {}", error.what()));
  }
  if (status.ok()) return;
  call->admission.reset();  // what goes on in spite of this has its own hold of it
  // The responder answers the client where there is no memory for this either.
  Answer(call, ErrorResponse(status));
}

void ReportIgnored(const std::shared_ptr<Call>& call, const std::vector<std::string>& fields) {
  if (fields.empty()) return;
  call->ignored_fields = openai::Listed(fields);
  call->responder->AddHeader("x-coppice-ignored-fields", call->ignored_fields);
}

}  // namespace coppice::server
