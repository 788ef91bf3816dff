#include "server/status_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json.h"
#include "core/quoted.h"
#include "server/errors.h"
#include "server/openapi.h"
#include "server/page.h"
#include "server/tree_response.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

}  // namespace

StatusRoutes::StatusRoutes(RouteContext* context, ServerFacts facts, FactsForTrainer trainer_facts)
    : context_(*context), facts_(std::move(facts)), trainer_facts_(std::move(trainer_facts)) {}

std::vector<Route> StatusRoutes::Routes() {
  const auto by = [this](auto handler) { return HandledBy(this, handler); };
  using S = StatusRoutes;
  return {
      {"GET", "/health", by(&S::Health), BodyKind::kNone, /*open=*/true},
      {"GET", "/ready", by(&S::Ready), BodyKind::kNone, /*open=*/true},
      {"GET", "/version", by(&S::Version), BodyKind::kNone, /*open=*/true},
      {"GET", "/openapi.json", by(&S::OpenApi), BodyKind::kNone, /*open=*/true},
      {"GET", "/", by(&S::Page), BodyKind::kNone, /*open=*/true},
      {"GET", "/page/{file}", by(&S::Page), BodyKind::kNone, /*open=*/true},
      {"GET", "/metrics", by(&S::Metrics)},
      {"GET", "/v1/tree", by(&S::Tree)},
      {"GET", "/v1/plan", by(&S::LastPlan)},
      {"GET", "/v1/models", by(&S::Models)},
      {"GET", "/v1/models/{model}", by(&S::Model)},
      {"GET", "/server_info", by(&S::ServerInfo)},
      {"GET", "/model_info", by(&S::ModelInfo)},
      {"GET", "/get_model_info", by(&S::ModelInfo)},
  };
}

void StatusRoutes::Health(const std::shared_ptr<Call>& call) { context_.Answer(call, {.body = R"({"status":"ok"})"}); }

void StatusRoutes::Ready(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  context_.Answer(call, {.body = R"({"status":"ready"})"});
}

void StatusRoutes::Version(const std::shared_ptr<Call>& call) {
  context_.Answer(call, {.body = DumpJson({{"version", context_.options().version}})});
}

void StatusRoutes::OpenApi(const std::shared_ptr<Call>& call) { context_.Answer(call, {.body = std::string(OpenApiDocument())}); }

void StatusRoutes::ServerInfo(const std::shared_ptr<Call>& call) {
  const std::optional<TrainerFacts> trainer = trainer_facts_(*call);
  context_.Answer(call, {.body = DumpJson(server::ServerInfo(facts_, &context_.engine(), trainer ? &*trainer : nullptr))});
}

void StatusRoutes::ModelInfo(const std::shared_ptr<Call>& call) {
  const std::optional<TrainerFacts> trainer = trainer_facts_(*call);
  context_.Answer(call, {.body = DumpJson(ModelInfoAnswer(facts_, &context_.engine(), trainer ? &*trainer : nullptr))});
}

void StatusRoutes::Metrics(const std::shared_ptr<Call>& call) {
  context_.Answer(call, {.body = context_.access().IsAdmin(call->key)
                                     ? context_.metrics().Text(context_.engine().Metrics(), context_.access().active())
                                     : context_.metrics().TextOf(call->key, context_.access().ActiveOf(call->key)),
                         .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void StatusRoutes::Page(const std::shared_ptr<Call>& call) {
  const std::string path = call->variable.empty() ? "/" : "/page/" + call->variable;
  const auto file = std::ranges::find(PageFiles(), path, &PageFile::path);
  if (file == PageFiles().end())
    return context_.Answer(call, ErrorResponse(404, fmt::format("the page has no file {}", Quoted(call->variable))));
  context_.Answer(call, {.body = std::string(file->text),
                         .content_type = std::string(file->content_type),
                         .headers = {{"content-security-policy", std::string(kPagePolicy)},
                                     {"x-content-type-options", "nosniff"},
                                     {"referrer-policy", "no-referrer"},
                                     {"cache-control", "no-cache"}}});
}

void StatusRoutes::Tree(const std::shared_ptr<Call>& call) {
  const EngineMetrics metrics = context_.engine().Metrics();
  context_.Answer(call, {.body = DumpJson(context_.access().IsAdmin(call->key)
                                              ? TreeResponse(metrics, context_.engine().model_info())
                                              : TreeResponseOf(call->key, metrics, context_.engine().model_info(),
                                                               context_.metrics().TokensOf(call->key)))});
}

void StatusRoutes::LastPlan(const std::shared_ptr<Call>& call) {
  if (!context_.access().IsAdmin(call->key)) {  // it shows what others' requests do
    return context_.Answer(call,
                           ErrorResponse(403, "the plan of a step is of all keys' requests: it takes an API key of role admin"));
  }
  context_.Answer(call, {.body = DumpJson(PlanResponse(context_.engine().Metrics().plan.get()))});
}

ordered_json StatusRoutes::ModelObject(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "coppice"},
          {"max_model_len", context_.options().max_context}};
}

void StatusRoutes::Models(const std::shared_ptr<Call>& call) {
  ordered_json models = ordered_json::array({ModelObject(context_.options().model)});
  for (const std::string& alias : context_.options().aliases) models.push_back(ModelObject(alias));
  context_.Answer(call, {.body = DumpJson({{"object", "list"}, {"data", std::move(models)}})});
}

void StatusRoutes::Model(const std::shared_ptr<Call>& call) {
  const std::string& name = call->variable;
  if (name != context_.options().model && std::ranges::find(context_.options().aliases, name) == context_.options().aliases.end())
    return context_.Answer(
        call, ErrorResponse(404, fmt::format("there is no model {}, the server has {}", Quoted(name), context_.options().model)));
  context_.Answer(call, {.body = DumpJson(ModelObject(name))});
}

}  // namespace coppice::server
