#include "server/trainer/trainer_context.h"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/exhaustion.h"
#include "core/json.h"
#include "server/errors.h"
#include "server/trainer/trainer_fields.h"

namespace coppice::server {
namespace {

HttpResponse ResponseOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kFailedPrecondition: return ErrorResponse(409, status.message());
    case StatusCode::kUnimplemented: return ErrorResponse(501, status.message());
    default: return ErrorResponse(status);
  }
}

}  // namespace

TrainerContext::TrainerContext(Parts parts)
    : parts_(std::move(parts)), control_(parts_.engine, parts_.calls, parts_.labels, parts_.control) {}

TrainerFacts TrainerContext::trainer_facts() const {
  return {
      .label = labels().Now(), .update_state = std::string(Name(control_.update_state())), .model_path = parts_.control.model_path};
}

Route TrainerContext::Now(std::string_view method, std::string_view path, TrainerHandler handler) {
  return {.method = method,
          .path = path,
          .handle =
              [this, handler](const std::shared_ptr<Call>& call) {
                const Result<TrainerFields> fields = TrainerFields::Read(call->request);
                if (!fields.ok()) return Respond(call, ResponseOf(fields.status()));
                Run(call, [&] { return handler(*this, *fields); });
              },
          .body = method == "GET" ? BodyKind::kNone : BodyKind::kOptionalJson,
          .trainer = true};
}

Route TrainerContext::InTurn(std::string_view method, std::string_view path, TrainerHandler handler) {
  Route route = Now(method, path, handler);
  route.handle = [this, handler](const std::shared_ptr<Call>& call) {
    Result<TrainerFields> fields = TrainerFields::Read(call->request);
    if (!fields.ok()) return Respond(call, ResponseOf(fields.status()));
    call->request.body.clear();
    control_.Post([this, call, handler, fields = *std::move(fields)] { Run(call, [&] { return handler(*this, fields); }); });
  };
  return route;
}

Route TrainerContext::Abort(std::string_view path, AbortHandler handler) {
  return {.method = "POST",
          .path = path,
          .handle =
              [this, handler](const std::shared_ptr<Call>& call) {
                const Result<TrainerFields> fields = TrainerFields::Read(call->request);
                if (!fields.ok()) return Respond(call, ResponseOf(fields.status()));
                const std::string* const key = parts_.steers(call->key) ? nullptr : &call->key;
                Run(call, [&] { return handler(*parts_.calls, *fields, key); });
              },
          .body = BodyKind::kOptionalJson};
}

void TrainerContext::Run(const std::shared_ptr<Call>& call, const std::function<TrainerAnswer()>& handler) const {
  HttpResponse response;
  try {
    TrainerAnswer answer = CatchExhaustion("answering a trainer", handler);
    response = answer.ok() ? HttpResponse{.body = DumpJson(*std::move(answer))} : ResponseOf(answer.status());
  } catch (const std::exception& error) {  // a fault of ours: it costs one request, not the server
    response = ErrorResponse(Internal(fmt::format("answering the request failed: {}", error.what())));
  }
  Respond(call, std::move(response));
}

}  // namespace coppice::server
