#include "server/service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/exhaustion.h"
#include "core/json.h"
#include "core/quoted.h"
#include "core/random_bytes.h"
#include "openai/answer_size.h"
#include "openai/field_reader.h"
#include "openai/infill_request.h"
#include "openai/sglang_request.h"
#include "openai/tokens_request.h"
#include "server/body_decoder.h"
#include "server/compile_call.h"
#include "server/errors.h"
#include "server/generation_call.h"
#include "server/host_name.h"
#include "server/json_body.h"
#include "server/kept_response.h"
#include "server/openapi.h"
#include "server/page.h"
#include "server/peer.h"
#include "server/request_log.h"
#include "server/sample_routes.h"
#include "server/tree_response.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr size_t kMostLogged = size_t{16} << 10;        // bytes of a body
constexpr int64_t kMostUnreadBody = int64_t{64} << 10;  // bytes of a body that its route does not read

// Who gives no seed gets other samples each time.
uint64_t RandomSeed() {
  uint64_t seed = 0;
  DrawRandom(std::as_writable_bytes(std::span(&seed, 1)));
  return seed;
}

}  // namespace

std::optional<JsonBody> Service::TakeBody(const std::shared_ptr<Call>& call, std::optional<openai::Endpoint> endpoint,
                                          std::string_view member) {
  const std::string text = std::exchange(call->request.body, {});
  Result<json> body = ParseJson(text);
  if (!body.ok()) {
    Answer(call, ErrorResponse(InvalidArgument("the body " + body.status().message())));
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

constexpr std::string_view kPrefixPath = "/v1/prefixes/{name}", kModelPath = "/v1/models/{model}";

ordered_json ToJson(const PrefixStore::Info& info) {
  return {{"object", "prefix"},
          {"name", info.name},
          {"made_of", info.prefix->chat() ? "messages" : "prompt"},
          {"num_tokens", info.prefix->token_ids.size()},
          {"private", !info.prefix->cache_salt.empty()},
          {"public", info.prefix->is_public},
          {"created", info.created},
          {"expires", info.expires ? ordered_json(*info.expires) : ordered_json()},
          {"saved", info.saved}};
}

std::unique_ptr<TrainerRoutes> Service::MakeTrainer() {
  if (!options_.trainer) return nullptr;
  return std::make_unique<TrainerRoutes>(TrainerRoutes::Parts{
      .engine = &engine_,
      .calls = &active_calls_,
      .facts = facts_,
      .control = *options_.trainer,
      .answer = [this](const std::shared_ptr<Call>& call, HttpResponse response) { Answer(call, std::move(response)); }});
}

std::vector<Route> Service::Routes() {
  const auto by = [this](void (Service::*handler)(const std::shared_ptr<Call>&)) {
    return [this, handler](const std::shared_ptr<Call>& call) { (this->*handler)(call); };
  };
  std::vector<Route> routes = {
      {"GET", "/health", by(&Service::Health), BodyKind::kNone, /*open=*/true},
      {"GET", "/ready", by(&Service::Ready), BodyKind::kNone, /*open=*/true},
      {"GET", "/version", by(&Service::Version), BodyKind::kNone, /*open=*/true},
      {"GET", "/openapi.json", by(&Service::OpenApi), BodyKind::kNone, /*open=*/true},
      {"GET", "/", by(&Service::Page), BodyKind::kNone, /*open=*/true},
      {"GET", "/page/{file}", by(&Service::Page), BodyKind::kNone, /*open=*/true},
      {"GET", "/metrics", by(&Service::Metrics)},
      {"GET", "/v1/tree", by(&Service::Tree)},
      {"GET", "/v1/plan", by(&Service::LastPlan)},
      {"GET", "/v1/models", by(&Service::Models)},
      {"GET", kModelPath, by(&Service::Model)},
      {"GET", "/v1/prefixes", by(&Service::ListPrefixes)},
      {"GET", kPrefixPath, by(&Service::GetPrefix)},
      {"PUT", kPrefixPath, by(&Service::PutPrefix), BodyKind::kJson},
      {"DELETE", kPrefixPath, by(&Service::DeletePrefix)},
      {"POST", "/v1/completions", by(&Service::Completions), BodyKind::kJson},
      {"POST", "/v1/chat/completions", by(&Service::ChatCompletions), BodyKind::kJson},
      {"POST", "/v1/responses", by(&Service::Responses), BodyKind::kJson},
      {"POST", "/infill", by(&Service::Infill), BodyKind::kJson},
      {"POST", "/inference/v1/generate", by(&Service::GenerateTokens), BodyKind::kJson},
      {"POST", "/generate", by(&Service::SglangGenerate), BodyKind::kJson},
      {"POST", "/v1/score", by(&Service::Score), BodyKind::kJson},
      {"GET", kSamplePath, by(&Service::GetSample)},
      {"DELETE", kSamplePath, by(&Service::DeleteSample)},
      {"POST", kForkPath, by(&Service::ForkSample), BodyKind::kJson},
      {"POST", kExtendPath, by(&Service::ExtendSample), BodyKind::kJson},
      {"POST", kPrunePath, by(&Service::PruneSample), BodyKind::kJson},
      {"GET", kFilesPath, by(&Service::FilesAndBatches)},
      {"POST", kFilesPath, by(&Service::FilesAndBatches), BodyKind::kForm},
      {"GET", kFilePath, by(&Service::FilesAndBatches)},
      {"DELETE", kFilePath, by(&Service::FilesAndBatches)},
      {"GET", kContentPath, by(&Service::FilesAndBatches)},
      {"GET", kBatchesPath, by(&Service::FilesAndBatches)},
      {"POST", kBatchesPath, by(&Service::FilesAndBatches), BodyKind::kJson},
      {"GET", kBatchPath, by(&Service::FilesAndBatches)},
      {"POST", kCancelPath, by(&Service::FilesAndBatches)},
      {"POST", "/tokenize", by(&Service::Tokenize), BodyKind::kJson},
      {"GET", "/tokenizer_info", by(&Service::TokenizerInfo)},
      {"POST", "/detokenize", by(&Service::Detokenize), BodyKind::kJson},
      {"GET", "/server_info", by(&Service::ServerInfo)},
      {"GET", "/model_info", by(&Service::ModelInfo)},
      {"GET", "/get_model_info", by(&Service::ModelInfo)},
  };
  if (trainer_) std::ranges::move(trainer_->Routes(), std::back_inserter(routes));
  return routes;
}

Service::Service(Engine* engine, ServiceOptions options)
    : engine_(*engine),
      options_(std::move(options)),
      facts_({.model = options_.model,
              .version = options_.version,
              .max_context = options_.max_context,
              .world_size = options_.world_size,
              .logprobs_mode =
                  options_.rules.sampling.logprobs_mode == LogprobsMode::kProcessed ? "processed_logprobs" : "raw_logprobs"}),
      trainer_(MakeTrainer()),
      router_(Routes()),
      parser_(engine->tokenizer(), options_.max_context, engine->tokenizer_status(), engine->model_info().vocab_size,
              options_.rules),
      created_(Now()),
      metrics_({.version = options_.version, .model = options_.model}),
      access_(options_.access, options_.max_context),
      prefixes_(engine, &access_, options_.prefixes),
      samples_(std::make_shared<SampleStore>(engine, options_.samples)),
      grammars_(engine->tokenizer()
                    ? GrammarCompiler::Create(*engine->tokenizer(), engine->model_info().vocab_size, options_.grammar_process)
                    : InvalidArgument("the model has no tokenizer")),
      compile_queue_(grammars_.ok() ? std::make_unique<CompileQueue>(grammars_->get()) : nullptr),
      files_(options_.files),
      batches_(ContextOfBatches(), options_.batches.store),
      batch_routes_(&files_, &batches_) {}

void Service::Handle(HttpRequest request, std::shared_ptr<Responder> responder) {
  const RequestPlan plan = Plan(request);
  if (plan.refusal) return responder->Send(*plan.refusal);
  plan.handle(std::move(request), std::move(responder));
}

template <class Work>
void Service::Try(const std::shared_ptr<Call>& call, const Work& work) {
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
  // The responder tells the client where there is no memory for this either.
  Answer(call, ErrorResponse(status));
}

RequestPlan Service::Plan(HttpRequest head) {
  const auto kept = std::make_shared<KeptResponse>();
  const auto call = std::make_shared<Call>(Call{.request = std::move(head), .responder = kept});
  RequestPlan plan;
  HttpResponse::Headers answer_headers = options_.cross_origin.AnswerHeaders(call->request.origin);
  Try(call, [&] {
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
  } else if (RefuseWhenDraining(call)) {
    return plan;
  }
  plan.is_gzip = takes_json && !IsIdentity(call->request.content_encoding);  // FindRoute refuses others
  if (route.body == BodyKind::kForm) {
    if (!files_.enabled()) route.handle(call);  // it says so
    plan.body_folder = options_.files.folder;
    plan.max_body_bytes = MaxUploadBytes(options_.files.max_bytes);
  }
  plan.handle = [this, call, &route](HttpRequest request, std::shared_ptr<Responder> responder) {
    call->request = std::move(request);
    call->responder = std::move(responder);
    if (options_.log_text) call->logged_body = call->request.body.substr(0, kMostLogged);
    Try(call, [&] { route.handle(call); });
  };
  return plan;
}

const Route* Service::FindRoute(const std::shared_ptr<Call>& call) {
  if (options_.only_local_hosts && !IsLocalHost(call->request.host, options_.host_names)) {
    Answer(call,
           ErrorResponse(403, fmt::format("the request is for {}, and this server serves this machine; --host-name lets a name in",
                                          Quoted(call->request.host))));
    return nullptr;
  }
  if (std::optional<HttpResponse> allowed = options_.cross_origin.AnswerPreflight(call->request)) {
    Answer(call, *std::move(allowed));
    return nullptr;
  }
  Router::Found found = router_.Find(call->request);
  call->route = found.path;
  call->variable = std::move(found.variable);
  if (!found.route) {
    Answer(call, *std::move(found.refusal));
    return nullptr;
  }
  if (access_.needs_key() && !found.route->open) {
    const ApiKey* key = access_.FindKey(call->request.authorization);
    if (!key) {
      HttpResponse refused = ErrorResponse(401, "the API key is missing or unknown; send Authorization: Bearer KEY");
      refused.headers.emplace_back("www-authenticate", "Bearer");
      Answer(call, std::move(refused));
      return nullptr;
    }
    call->key = key->name;
    if (found.route->trainer && key->role != Role::kTrainer) {
      Answer(call,
             ErrorResponse(403, fmt::format("{} takes an API key of role trainer (role=trainer in the key file)", found.path)));
      return nullptr;
    }
  }
  // A page of another site can make a browser send forms and empty bodies here, and may try others; the browser says where they
  // come from. A key it does not send.
  const HttpRequest& head = call->request;
  if (!access_.needs_key() && head.method != "GET" && !options_.cross_origin.Allows(head.origin) &&
      IsOfAnotherSite(head.origin, head.host, options_.host_names)) {
    Answer(call, ErrorResponse(403, fmt::format("the request comes from a page of {}, not of this server; --allow-origin lets "
                                                "one in",
                                                Quoted(head.origin))));
    return nullptr;
  }
  if (std::optional<HttpResponse> refused = RefuseBodyType(*found.route, head)) {
    Answer(call, *std::move(refused));
    return nullptr;
  }
  return found.route;
}

bool Service::RefuseWhenDraining(const std::shared_ptr<Call>& call) {
  const char* const why = draining_;
  if (why) Answer(call, ErrorResponse(503, why));
  return why != nullptr;
}

void Service::Answer(const std::shared_ptr<Call>& call, HttpResponse response) {
  call->reason = response.reason;
  Log(*call, response.status);  // before the client can ask /metrics for what it was just answered
  call->responder->Send(std::move(response));
}

void Service::Log(const Call& call, int status) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - call.begin).count();
  metrics_.CountRequest(call.route, status, seconds);
  spdlog::log(IsPoll(call, status) ? spdlog::level::debug : spdlog::level::info, "{}",
              RequestLine(call, status, seconds, options_.log_form));
}

void Service::Health(const std::shared_ptr<Call>& call) { Answer(call, {.body = R"({"status":"ok"})"}); }

void Service::Ready(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  Answer(call, {.body = R"({"status":"ready"})"});
}

void Service::Version(const std::shared_ptr<Call>& call) { Answer(call, {.body = DumpJson({{"version", options_.version}})}); }

void Service::OpenApi(const std::shared_ptr<Call>& call) { Answer(call, {.body = std::string(OpenApiDocument())}); }

void Service::ServerInfo(const std::shared_ptr<Call>& call) {
  const std::optional<TrainerFacts> trainer = FactsForTrainer(*call);
  Answer(call, {.body = DumpJson(server::ServerInfo(facts_, &engine_, trainer ? &*trainer : nullptr))});
}

void Service::ModelInfo(const std::shared_ptr<Call>& call) {
  const std::optional<TrainerFacts> trainer = FactsForTrainer(*call);
  Answer(call, {.body = DumpJson(ModelInfoAnswer(facts_, &engine_, trainer ? &*trainer : nullptr))});
}

std::optional<TrainerFacts> Service::FactsForTrainer(const Call& call) const {
  const bool is_trainer = trainer_ && (!access_.needs_key() || access_.IsTrainer(call.key));
  return is_trainer ? std::optional(trainer_->facts()) : std::nullopt;
}

void Service::Metrics(const std::shared_ptr<Call>& call) {
  Answer(call, {.body = access_.IsAdmin(call->key) ? metrics_.Text(engine_.Metrics(), access_.active())
                                                   : metrics_.TextOf(call->key, access_.ActiveOf(call->key)),
                .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

void Service::Page(const std::shared_ptr<Call>& call) {
  const std::string path = call->variable.empty() ? "/" : "/page/" + call->variable;
  const auto file = std::ranges::find(PageFiles(), path, &PageFile::path);
  if (file == PageFiles().end())
    return Answer(call, ErrorResponse(404, fmt::format("the page has no file {}", Quoted(call->variable))));
  Answer(call, {.body = std::string(file->text),
                .content_type = std::string(file->content_type),
                .headers = {{"content-security-policy", std::string(kPagePolicy)},
                            {"x-content-type-options", "nosniff"},
                            {"referrer-policy", "no-referrer"},
                            {"cache-control", "no-cache"}}});
}

void Service::Tree(const std::shared_ptr<Call>& call) {
  const EngineMetrics metrics = engine_.Metrics();
  Answer(call, {.body = DumpJson(access_.IsAdmin(call->key)
                                     ? TreeResponse(metrics, engine_.model_info())
                                     : TreeResponseOf(call->key, metrics, engine_.model_info(), metrics_.TokensOf(call->key)))});
}

void Service::LastPlan(const std::shared_ptr<Call>& call) {
  if (!access_.IsAdmin(call->key)) {  // it tells what others' requests do
    return Answer(call, ErrorResponse(403, "the plan of a step is of all keys' requests: it takes an API key of role admin"));
  }
  Answer(call, {.body = DumpJson(PlanResponse(engine_.Metrics().plan.get()))});
}

ordered_json Service::ModelObject(const std::string& name) const {
  return {
      {"id", name}, {"object", "model"}, {"created", created_}, {"owned_by", "coppice"}, {"max_model_len", options_.max_context}};
}

void Service::Models(const std::shared_ptr<Call>& call) {
  ordered_json models = ordered_json::array({ModelObject(options_.model)});
  for (const std::string& alias : options_.aliases) models.push_back(ModelObject(alias));
  Answer(call, {.body = DumpJson({{"object", "list"}, {"data", std::move(models)}})});
}

void Service::Model(const std::shared_ptr<Call>& call) {
  const std::string& name = call->variable;
  if (name != options_.model && std::ranges::find(options_.aliases, name) == options_.aliases.end())
    return Answer(call, ErrorResponse(404, fmt::format("there is no model {}, the server has {}", Quoted(name), options_.model)));
  Answer(call, {.body = DumpJson(ModelObject(name))});
}

void Service::Completions(const std::shared_ptr<Call>& call) { Generate(openai::Endpoint::kCompletions, call); }
void Service::ChatCompletions(const std::shared_ptr<Call>& call) { Generate(openai::Endpoint::kChatCompletions, call); }
void Service::Responses(const std::shared_ptr<Call>& call) { Generate(openai::Endpoint::kResponses, call); }

bool Service::Admit(const std::shared_ptr<Call>& call, const RequestCost& cost) {
  std::optional<HttpResponse> refused = access_.Admit(call->key, cost, &call->admission);
  if (refused) Answer(call, *std::move(refused));
  return !refused;
}

void Service::TellIgnored(const std::shared_ptr<Call>& call, const std::vector<std::string>& fields) {
  if (fields.empty()) return;
  call->ignored_fields = openai::Listed(fields);
  call->responder->AddHeader("x-coppice-ignored-fields", call->ignored_fields);
}

void Service::Generate(openai::Endpoint endpoint, const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  std::optional<JsonBody> body = TakeBody(call, endpoint);
  if (!body) return;
  openai::BodyError error;
  const SampleLives lives = TakeLives(endpoint, &*body->json, &error);
  if (!error.status.ok()) return Answer(call, ErrorResponse(error.status, error.param));
  std::optional<std::vector<openai::OpenAiRequest>> prompts =
      parser_.ParseList(endpoint, *body->json, &error, PrefixesOf(call->key), body->ordered.tools_or_null(), body->ordered.schema);
  if (!prompts) return Answer(call, ErrorResponse(error.status, error.param));
  if (lives.keep && !Keep(call, *lives.keep, *prompts)) return;
  if (lives.vote_stop) prompts->front().vote_stop = true;  // with a vote there is one
  const auto seed = body->json->find("seed");
  Take(call, *std::move(prompts), seed != body->json->end() && !seed->is_null());
}

void Service::Infill(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::OpenAiRequest> parsed = openai::ParseInfill(*body->json, parser_, &error);
  if (!parsed) return Answer(call, ErrorResponse(error.status, error.param));
  const auto seed = body->json->find("seed");
  const bool seeded = seed != body->json->end() && seed->is_number() && seed->get<double>() >= 0;
  std::vector<openai::OpenAiRequest> prompts;
  prompts.push_back(*std::move(parsed));
  Take(call, std::move(prompts), seeded);
}

void Service::GenerateTokens(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = TakeBody(call, openai::Endpoint::kCompletions, "sampling_params");
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::OpenAiRequest> parsed = openai::ParseTokens(*body->json, parser_, &error, body->ordered.schema);
  if (!parsed) return Answer(call, ErrorResponse(error.status, error.param));
  std::vector<openai::OpenAiRequest> prompts;
  prompts.push_back(*std::move(parsed));
  Take(call, std::move(prompts), openai::IsSeededTokens(*body->json));
}

void Service::SglangGenerate(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::SglangRequests> parsed = openai::ParseSglang(*body->json, parser_, &error);
  if (!parsed) return Answer(call, ErrorResponse(error.status, error.param));
  Take(call, std::move(parsed->prompts), parsed->seeded);
}

void Service::Take(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts, bool seeded) {
  if (!prompts.empty()) TellIgnored(call, prompts.front().ignored_fields);
  int64_t samples = 0;
  for (const openai::OpenAiRequest& prompt : prompts) samples += prompt.request.n;
  if (options_.max_waiting > 0 && prompts.size() > 1 && samples > options_.max_waiting) {  // one prompt waits for an empty line
    const std::string message =
        fmt::format("prompt is a list of {} prompts with {} samples in all, and the server lets {} wait; send several requests",
                    prompts.size(), samples, options_.max_waiting);
    return Answer(call, ErrorResponse(InvalidArgument(message), "prompt"));
  }
  for (openai::OpenAiRequest& prompt : prompts) {
    if (!seeded) prompt.request.sampling.seed = RandomSeed();
    Result<std::vector<int32_t>> ids = parser_.Encode(prompt);
    if (!ids.ok()) {
      const openai::BodyError error = prompt.PromptError(ids.status());
      return Answer(call, ErrorResponse(error.status, error.param));
    }
    parser_.SetPrompt(*std::move(ids), &prompt);
    if (Status allowed = access_.Complete(call->key, &prompt.request); !allowed.ok()) {
      const openai::BodyError error = prompt.InItsWords({.status = std::move(allowed), .param = "priority"});
      return Answer(call, ErrorResponse(error.status, error.param));
    }
  }
  if (openai::BodyError fits = CheckAnswer(options_.answers, options_.max_context, prompts); !fits.status.ok()) {
    const openai::BodyError error = prompts.front().InItsWords(std::move(fits));
    return Answer(call, ErrorResponse(error.status, error.param));
  }
  if (!Admit(call, access_.BoundCost(call->key, prompts))) return;
  Compile(call, std::move(prompts));
}

void Service::Compile(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts) {
  const std::shared_ptr<const openai::OutputForm> form = prompts.front().output;
  if (!form) return Start(call, std::move(prompts));
  using Clock = CompileQueue::Clock;
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> deadline;
  constexpr double kLongest = 1e6;  // seconds; what compiling takes is bounded
  if (const double timeout = prompts.front().request.timeout_seconds; timeout > 0)
    deadline = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, kLongest)));
  const auto waiting = std::make_shared<std::vector<openai::OpenAiRequest>>(std::move(prompts));
  const auto on_compiled = [=, this](const Result<CompileQueue::Constraint>& compiled) {
    Try(call, [&] {
      if (!compiled.ok()) return AnswerUncompiled(call, form->ErrorOf(compiled.status()));
      const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
      for (openai::OpenAiRequest& prompt : *waiting) {
        prompt.request.constraint = *compiled;
        if (deadline) prompt.request.timeout_seconds = std::max(1e-3, prompt.request.timeout_seconds - waited);
      }
      Start(call, std::move(*waiting));
    });
  };
  if (!compile_queue_) return on_compiled(grammars_.status());
  CompileCall::Start({.queue = compile_queue_.get(),
                      .key = call->key,
                      .source = form->source,
                      .deadline = deadline,
                      .responder = call->responder,
                      .on_compiled = on_compiled});
}

void Service::AnswerUncompiled(const std::shared_ptr<Call>& call, const openai::BodyError& error) {
  call->admission->End(/*used_tokens=*/0);
  const StatusCode code = error.status.code();
  if (code == StatusCode::kCancelled) return Log(*call, kClientLeft);
  Answer(call, code == StatusCode::kResourceExhausted ? ErrorResponse(429, error.status.message(), error.param)
                                                      : ErrorResponse(error.status, error.param));
}

void Service::Start(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts) {
  GenerationCall::Parts parts = PartsOf(call);
  if (call->samples) parts.on_kept = KeepPrompts(*call, prompts);
  parts.prompts = std::move(prompts);
  GenerationCall::Start(std::move(parts));
}

GenerationCall::Parts Service::PartsOf(const std::shared_ptr<Call>& call) {
  return {.engine = &engine_,
          .post = [this, share = call->key](std::function<void()> work) { vote_readers_.Post(share, 0, std::move(work)); },
          .facts = {.id = call->request.id,
                    .created = Now(),
                    .model = options_.model,
                    .version_label = [this](int64_t number) { return engine_.WeightLabel(number); }},
          .responder = call->responder,
          .active = &active_calls_,
          .on_end =
              [this, call, admission = call->admission](const GenerationCall::Outcome& outcome) {
                call->usage = outcome.usage;
                if (outcome.first_token_seconds >= 0) metrics_.CountFirstToken(outcome.first_token_seconds);
                if (outcome.token_seconds >= 0) metrics_.CountTimePerToken(outcome.token_seconds);
                metrics_.CountTokens(call->key, outcome.usage.prompt, outcome.usage.cached, outcome.usage.completion);
                metrics_.CountBytesNotRead(call->key, outcome.usage.shared_reads.kv_bytes_not_read);
                call->reason = outcome.reason;
                Log(*call, outcome.status);
                if (call->samples) call->samples->End(/*keep=*/outcome.status == 200);
                admission->End(outcome.computed_tokens);
              }};
}

openai::FindNamedPrefix Service::PrefixesOf(const std::string& key) {
  return [this, key](const std::string& name) {
    const std::optional<PrefixStore::Info> found = prefixes_.Get(key, name);
    return found ? found->prefix : nullptr;
  };
}

void Service::Score(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::ScoreRequest> parsed = openai::ParseScore(*body->json, parser_, &error, PrefixesOf(call->key));
  if (!parsed) return Answer(call, ErrorResponse(error.status, error.param));
  TellIgnored(call, parsed->ignored_fields);
  if (options_.max_waiting > 0 && parsed->sequences.size() > static_cast<size_t>(options_.max_waiting)) {
    const std::string message = fmt::format("continuations is a list of {}, and the server lets {} requests wait; send several",
                                            parsed->sequences.size(), options_.max_waiting);
    return Answer(call, ErrorResponse(InvalidArgument(message), "continuations"));
  }
  if (const Status allowed = access_.Complete(call->key, &parsed->request); !allowed.ok())
    return Answer(call, ErrorResponse(allowed, "priority"));
  if (const openai::BodyError fits = CheckAnswer(options_.answers, *parsed); !fits.status.ok())
    return Answer(call, ErrorResponse(fits.status, fits.param));
  if (!Admit(call, {.tokens = parsed->usage.prompt, .samples = std::ssize(parsed->sequences)})) return;
  const auto request = std::make_shared<const openai::ScoreRequest>(*std::move(parsed));
  const auto score =
      openai::ScoreCall::Start(&engine_, *request, [=, this, admission = call->admission](openai::ScoreCall::Outcome outcome) {
        admission->End(outcome.begun ? outcome.usage.prompt : 0);
        AnswerScore(call, request, std::move(outcome));
      });
  call->responder->WhenGone([weak = std::weak_ptr(score)] {
    if (const std::shared_ptr<openai::ScoreCall> score = weak.lock()) score->Cancel();
  });
}

void Service::AnswerScore(const std::shared_ptr<Call>& call, std::shared_ptr<const openai::ScoreRequest> request,
                          openai::ScoreCall::Outcome outcome) {
  if (outcome.cancelled) return Log(*call, kClientLeft);
  if (!outcome.status.ok()) {
    const bool full = outcome.refused && outcome.status.code() == StatusCode::kResourceExhausted;
    return Answer(call, full ? ErrorResponse(429, outcome.status.message()) : ErrorResponse(outcome.status));
  }
  call->usage = outcome.usage;
  metrics_.CountTokens(call->key, outcome.usage.prompt, outcome.usage.cached, 0);
  metrics_.CountBytesNotRead(call->key, outcome.usage.shared_reads.kv_bytes_not_read);
  const double bytes = AnswerBytes(*request);
  std::unique_ptr<TextSource> body =
      ScoreBody(std::move(request), std::move(outcome), {.id = call->request.id, .created = Now(), .model = options_.model});
  Answer(call, BodyResponse(std::move(body), bytes));
}

void Service::PutPrefix(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::string& name = call->variable;
  if (const Status named = openai::CheckPrefixName(name); !named.ok()) return Answer(call, ErrorResponse(named, "name"));
  const std::optional<JsonBody> body = TakeBody(call, openai::Endpoint::kChatCompletions);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::NamedPrefix> prefix = openai::ParseNamedPrefix(*body->json, &error, body->ordered.tools_or_null());
  if (!prefix) return Answer(call, ErrorResponse(error.status, error.param));
  if (prefix->is_public && !access_.IsAdmin(call->key)) {
    return Answer(
        call, ErrorResponse(403, "public is true, which takes an API key of role admin (role=admin in the key file)", "public"));
  }
  if (const Status allowed = prefixes_.CheckTtl(*prefix); !allowed.ok()) return Answer(call, ErrorResponse(allowed, "ttl_seconds"));
  std::optional<std::vector<int32_t>> ids = parser_.EncodePrefix(*prefix, &error);
  if (!ids) return Answer(call, ErrorResponse(error.status, error.param));
  prefix->token_ids = *std::move(ids);
  if (!Admit(call, {.tokens = std::ssize(prefix->token_ids)})) return;
  prefixes_.Put(call->key, name, *std::move(prefix),
                [this, call, admission = call->admission](const PrefixStore::Outcome& outcome) {
                  const Result<PrefixStore::Info>& made = outcome.made;
                  const int64_t tokens = admission->cost().tokens;
                  admission->End(outcome.begun ? tokens : 0);
                  if (made.ok()) {
                    call->usage = {.prompt = tokens, .cached = outcome.cached};
                    metrics_.CountTokens(call->key, call->usage.prompt, outcome.cached, 0);
                    Answer(call, {.body = DumpJson(ToJson(*made))});
                  } else {
                    const StatusCode code = made.status().code();
                    Answer(call, code == StatusCode::kResourceExhausted    ? ErrorResponse(429, made.status().message())
                                 : code == StatusCode::kFailedPrecondition ? ErrorResponse(409, made.status().message())
                                                                           : ErrorResponse(made.status()));
                  }
                });
}

void Service::GetPrefix(const std::shared_ptr<Call>& call) {
  const std::string& name = call->variable;
  const std::optional<PrefixStore::Info> found = prefixes_.Get(call->key, name);
  if (!found) return Answer(call, ErrorResponse(404, fmt::format("there is no prefix {}", Quoted(name))));
  Answer(call, {.body = DumpJson(ToJson(*found))});
}

void Service::DeletePrefix(const std::shared_ptr<Call>& call) {
  const std::string& name = call->variable;
  if (!prefixes_.Delete(call->key, name))
    return Answer(call, ErrorResponse(404, fmt::format("there is no prefix {}", Quoted(name))));
  Answer(call, {.body = DumpJson({{"object", "prefix.deleted"}, {"name", name}, {"deleted", true}})});
}

void Service::ListPrefixes(const std::shared_ptr<Call>& call) {
  ordered_json list = ordered_json::array();
  for (const PrefixStore::Info& info : prefixes_.List(call->key)) list.push_back(ToJson(info));
  Answer(call, {.body = DumpJson({{"object", "list"}, {"data", std::move(list)}})});
}

BatchContext Service::ContextOfBatches() {
  return {.engine = &engine_,
          .parser = &parser_,
          .files = &files_,
          .compile_queue = compile_queue_.get(),
          .model = options_.model,
          .max_requests = options_.batches.max_requests,
          .max_line_bytes = options_.batches.max_line_bytes,
          .max_active = options_.batches.max_active,
          .max_waiting = options_.batches.max_waiting,
          .prefixes_of = [this](const std::string& key) { return PrefixesOf(key); },
          .admit = [this](const std::string& key, openai::OpenAiRequest* request) -> openai::BatchAdmission {
            if (openai::BodyError fits = CheckAnswer(options_.answers, options_.max_context, std::span(request, 1));
                !fits.status.ok())
              return {.status = std::move(fits.status), .param = std::move(fits.param)};
            return access_.AdmitOfBatch(key, request);
          },
          .release = [this](const std::string& key, int64_t taken, int64_t used) { access_.LeaveOfBatch(key, taken, used); },
          .count =
              [this](const std::string& key, const openai::TokenUsage& usage) {
                metrics_.CountTokens(key, usage.prompt, usage.cached, usage.completion);
                metrics_.CountBytesNotRead(key, usage.shared_reads.kv_bytes_not_read);
              }};
}

void Service::FilesAndBatches(const std::shared_ptr<Call>& call) {
  const bool makes = call->request.method == "POST" && call->route != kCancelPath;
  if (makes && RefuseWhenDraining(call)) return;
  Answer(call, batch_routes_.Answer(call->route, call->key, call->variable, call->request));
}

void Service::Tokenize(const std::shared_ptr<Call>& call) {
  const std::optional<JsonBody> body = TakeBody(call, openai::Endpoint::kChatCompletions);
  if (!body) return;
  const Tokenizer* tokenizer = engine_.tokenizer();
  if (!tokenizer) return Answer(call, ErrorResponse(FailedPrecondition(engine_.tokenizer_status().message())));
  const bool is_chat = body->json->is_object() && body->json->contains("messages");
  openai::BodyError error;
  Result<std::vector<int32_t>> ids = std::vector<int32_t>();
  if (is_chat) {
    const std::optional<openai::OpenAiRequest> chat =
        parser_.Parse(openai::Endpoint::kChatCompletions, *body->json, &error, PrefixesOf(call->key), body->ordered.tools_or_null(),
                      body->ordered.schema);
    if (!chat) return Answer(call, ErrorResponse(error.status, error.param));
    TellIgnored(call, chat->ignored_fields);
    ids = parser_.Encode(*chat);
  } else {
    const std::optional<openai::TokenizeRequest> request = openai::ParseTokenize(*body->json, parser_.bounds(), &error);
    if (!request) return Answer(call, ErrorResponse(error.status, error.param));
    ids = tokenizer->Encode(request->text, {.add_special = request->add_special_tokens, .parse_special = true});
  }
  if (!ids.ok()) return Answer(call, ErrorResponse(ids.status(), is_chat ? "messages" : "prompt"));
  Answer(call, {.body = DumpJson({{"count", ids->size()}, {"max_model_len", options_.max_context}, {"tokens", *ids}})});
}

void Service::TokenizerInfo(const std::shared_ptr<Call>& call) {
  const Tokenizer* tokenizer = engine_.tokenizer();
  if (!tokenizer) return Answer(call, ErrorResponse(FailedPrecondition(engine_.tokenizer_status().message())));
  const Tokenizer::Info& info = tokenizer->info();
  const auto text = [&](int32_t id) {
    return id < 0 ? ordered_json() : ordered_json(tokenizer->TokenBytes(id, /*keep_special=*/true));
  };
  const ordered_json chat_template = info.chat_template.empty() ? ordered_json() : ordered_json(info.chat_template);
  Answer(call, {.body = DumpJson({{"bos_token", text(info.bos_id)},
                                  {"eos_token", text(info.eos_ids.empty() ? -1 : info.eos_ids.front())},
                                  {"add_bos_token", info.add_bos},
                                  {"add_eos_token", info.add_eos},
                                  {"chat_template", chat_template},
                                  {"model_max_length", options_.max_context}})});
}

void Service::Detokenize(const std::shared_ptr<Call>& call) {
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  const Tokenizer* tokenizer = engine_.tokenizer();
  if (!tokenizer) return Answer(call, ErrorResponse(FailedPrecondition(engine_.tokenizer_status().message())));
  openai::BodyError error;
  const std::optional<std::vector<int32_t>> ids =
      openai::ParseDetokenize(*body->json, engine_.model_info().vocab_size, parser_.bounds(), &error);
  if (!ids) return Answer(call, ErrorResponse(error.status, error.param));
  Answer(call, {.body = DumpJson({{"prompt", tokenizer->Decode(*ids, /*keep_special=*/true)}})});
}

}  // namespace coppice::server
