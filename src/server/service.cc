#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/quoted.h"
#include "openai/answer_size.h"
#include "server/answer_limits.h"
#include "server/body_decoder.h"
#include "server/errors.h"
#include "server/host_name.h"
#include "server/kept_response.h"
#include "server/peer.h"
#include "server/trainer/sglang_trainer_routes.h"
#include "server/trainer/vllm_trainer_routes.h"

namespace coppice::server {
namespace {

constexpr size_t kMostLogged = size_t{16} << 10;        // bytes of a body
constexpr int64_t kMostUnreadBody = int64_t{64} << 10;  // bytes of a body that its route does not read

ServerFacts FactsOf(const ServiceOptions& options) {
  return {
      .model = options.model,
      .version = options.version,
      .max_context = options.max_context,
      .world_size = options.world_size,
      .logprobs_mode = options.rules.sampling.logprobs_mode == LogprobsMode::kProcessed ? "processed_logprobs" : "raw_logprobs"};
}

}  // namespace

Service::Service(Engine* engine, ServiceOptions options)
    : options_(std::move(options)),
      context_(engine, &options_),
      weight_labels_(engine),
      trainer_(MakeTrainer()),
      prefixes_(engine, &context_.access(), options_.prefixes),
      samples_(std::make_shared<SampleStore>(engine, options_.samples)),
      generation_routes_(&context_,
                         {.prefixes = &prefixes_, .samples = samples_.get(), .calls = &active_calls_, .labels = &weight_labels_}),
      files_(options_.files),
      batches_(ContextOfBatches(), options_.batches.store),
      batch_routes_(&files_, &batches_),
      status_routes_(&context_, FactsOf(options_), [this](const Call& call) { return FactsForTrainer(call); }),
      prefix_routes_(&context_, &prefixes_),
      score_routes_(&context_, &prefixes_, &active_calls_),
      token_routes_(&context_, &prefixes_),
      sample_routes_(&context_, &generation_routes_, samples_.get()),
      router_(Routes()) {}

std::unique_ptr<TrainerContext> Service::MakeTrainer() {
  if (!context_.options().trainer) return nullptr;
  return std::make_unique<TrainerContext>(TrainerContext::Parts{
      .engine = &context_.engine(),
      .calls = &active_calls_,
      .labels = &weight_labels_,
      .facts = FactsOf(context_.options()),
      .control = *context_.options().trainer,
      .steers = [this](const std::string& key) { return context_.access().IsTrainer(key) || context_.access().IsAdmin(key); },
      .answer = [this](const std::shared_ptr<Call>& call, HttpResponse response) { context_.Answer(call, std::move(response)); }});
}

std::optional<TrainerFacts> Service::FactsForTrainer(const Call& call) {
  const bool is_trainer = trainer_ && (!context_.access().needs_key() || context_.access().IsTrainer(call.key));
  return is_trainer ? std::optional(trainer_->trainer_facts()) : std::nullopt;
}

std::vector<Route> Service::Routes() {
  const auto batches = [this](const std::shared_ptr<Call>& call) { FilesAndBatches(call); };
  std::vector<Route> routes = {
      {"GET", kFilesPath, batches},
      {"POST", kFilesPath, batches, BodyKind::kForm},
      {"GET", kFilePath, batches},
      {"DELETE", kFilePath, batches},
      {"GET", kContentPath, batches},
      {"GET", kBatchesPath, batches},
      {"POST", kBatchesPath, batches, BodyKind::kJson},
      {"GET", kBatchPath, batches},
      {"POST", kCancelPath, batches},
  };
  const auto add = [&](std::vector<Route> others) { std::ranges::move(others, std::back_inserter(routes)); };
  add(status_routes_.Routes());
  add(prefix_routes_.Routes());
  add(generation_routes_.Routes());
  add(sample_routes_.Routes());
  add(score_routes_.Routes());
  add(token_routes_.Routes());
  if (trainer_) {
    add(VllmTrainerRoutes(trainer_.get()));
    add(SglangTrainerRoutes(trainer_.get()));
  }
  return routes;
}

void Service::Drain(const char* why) {
  context_.Drain(why);
  batches_.Stop();
  generation_routes_.Drain(Unavailable(why));
  if (trainer_) trainer_->control().Drain(Unavailable(why));
}

void Service::Handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  const RequestPlan plan = Plan(request);
  if (plan.refusal) return responder->Send(*plan.refusal);
  plan.handle(std::move(request), std::move(responder));
}

RequestPlan Service::Plan(HttpRequest head) {
  const auto kept = std::make_shared<KeptResponse>();
  const auto call = std::make_shared<Call>(Call{.request = std::move(head), .responder = kept});
  RequestPlan plan;
  HttpResponse::Headers answer_headers = context_.options().cross_origin.AnswerHeaders(call->request.origin);
  context_.Try(call, [&] {
    if (const Route* route = FindRoute(call)) plan = PlanOf(*route, call);
  });
  plan.refusal = std::move(kept->response);
  plan.answer_headers = std::move(answer_headers);
  return plan;
}

RequestPlan Service::PlanOf(const Route& route, const std::shared_ptr<Call>& call) {
  RequestPlan plan = {.takes_time = !route.open};
  // No name of a key has a space in it.
  plan.share = call->key.empty() ? "peer " + PeerOf(call->request.peer) : call->key;
  const bool takes_json = route.body == BodyKind::kJson || route.body == BodyKind::kOptionalJson;
  if (route.body == BodyKind::kNone) {
    plan.max_body_bytes = kMostUnreadBody;
  } else if (context_.RefuseWhenDraining(call)) {
    return plan;
  }
  plan.is_gzip = takes_json && !IsIdentity(call->request.content_encoding);  // FindRoute refuses others
  if (route.body == BodyKind::kForm) {
    if (!files_.enabled()) route.handle(call);  // it says so
    plan.body_folder = context_.options().files.folder;
    plan.max_body_bytes = MaxUploadBytes(context_.options().files.max_bytes);
  }
  plan.handle = [this, call, &route](HttpRequest request, std::shared_ptr<Responder> responder) {
    call->request = std::move(request);
    call->responder = std::move(responder);
    if (context_.options().log_text) call->logged_body = call->request.body.substr(0, kMostLogged);
    context_.Try(call, [&] { route.handle(call); });
  };
  return plan;
}

const Route* Service::FindRoute(const std::shared_ptr<Call>& call) {
  if (context_.options().only_local_hosts && !IsLocalHost(call->request.host, context_.options().host_names)) {
    context_.Answer(
        call,
        ErrorResponse(403, fmt::format("the request is for {}, and this server serves this machine; --host-name lets a name in",
                                       Quoted(call->request.host))));
    return nullptr;
  }
  if (std::optional<HttpResponse> allowed = context_.options().cross_origin.AnswerPreflight(call->request)) {
    context_.Answer(call, *std::move(allowed));
    return nullptr;
  }
  Router::Found found = router_.Find(call->request);
  call->route = found.path;
  call->variable = std::move(found.variable);
  if (!found.route) {
    context_.Answer(call, *std::move(found.refusal));
    return nullptr;
  }
  if (context_.access().needs_key() && !found.route->open) {
    const ApiKey* key = context_.access().FindKey(call->request.authorization);
    if (!key) {
      HttpResponse refused = ErrorResponse(401, "the API key is missing or unknown; send Authorization: Bearer KEY");
      refused.headers.emplace_back("www-authenticate", "Bearer");
      context_.Answer(call, std::move(refused));
      return nullptr;
    }
    call->key = key->name;
    if (found.route->trainer && key->role != Role::kTrainer) {
      context_.Answer(
          call, ErrorResponse(403, fmt::format("{} takes an API key of role trainer (role=trainer in the key file)", found.path)));
      return nullptr;
    }
  }
  // A page of another site can make a browser send forms and empty bodies here, and may try others; the browser says where they
  // come from. A key it does not send.
  const HttpRequest& head = call->request;
  if (!context_.access().needs_key() && head.method != "GET" && !context_.options().cross_origin.Allows(head.origin) &&
      IsOfAnotherSite(head.origin, head.host, context_.options().host_names)) {
    context_.Answer(call,
                    ErrorResponse(403, fmt::format("the request comes from a page of {}, not of this server; --allow-origin lets "
                                                   "one in",
                                                   Quoted(head.origin))));
    return nullptr;
  }
  if (std::optional<HttpResponse> refused = RefuseBodyType(*found.route, head)) {
    context_.Answer(call, *std::move(refused));
    return nullptr;
  }
  return found.route;
}

BatchContext Service::ContextOfBatches() {
  return {
      .engine = &context_.engine(),
      .parser = &context_.parser(),
      .files = &files_,
      .compile_queue = generation_routes_.compile_queue(),
      .model = context_.options().model,
      .max_requests = context_.options().batches.max_requests,
      .max_line_bytes = context_.options().batches.max_line_bytes,
      .max_active = context_.options().batches.max_active,
      .max_waiting = context_.options().batches.max_waiting,
      .prefixes_of = [this](const std::string& key) { return prefixes_.FinderOf(key); },
      .admit = [this](const std::string& key, openai::OpenAiRequest* request) -> openai::BatchAdmission {
        if (openai::BodyError fits = CheckAnswer(context_.options().answers, context_.options().max_context, std::span(request, 1));
            !fits.status.ok())
          return {.status = std::move(fits.status), .param = std::move(fits.param)};
        return context_.access().AdmitOfBatch(key, request);
      },
      .release = [this](const std::string& key, int64_t taken, int64_t used) { context_.access().LeaveOfBatch(key, taken, used); },
      .count =
          [this](const std::string& key, const openai::TokenUsage& usage) {
            context_.metrics().CountTokens(key, usage.prompt, usage.cached, usage.completion);
            context_.metrics().CountBytesNotRead(key, usage.shared_reads.kv_bytes_not_read);
          }};
}

void Service::FilesAndBatches(const std::shared_ptr<Call>& call) {
  const bool makes = call->request.method == "POST" && call->route != kCancelPath;
  if (makes && context_.RefuseWhenDraining(call)) return;
  context_.Answer(call, batch_routes_.Answer(call->route, call->key, call->variable, call->request));
}

}  // namespace coppice::server
