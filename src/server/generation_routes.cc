#include "server/generation_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/random_bytes.h"
#include "openai/field_reader.h"
#include "openai/infill_request.h"
#include "openai/sglang_request.h"
#include "openai/tokens_request.h"
#include "server/answer_limits.h"
#include "server/compile_call.h"
#include "server/errors.h"
#include "server/request_log.h"

namespace coppice::server {
namespace {

// For requests without a seed: other samples each time.
uint64_t RandomSeed() {
  uint64_t seed = 0;
  DrawRandom(std::as_writable_bytes(std::span(&seed, 1)));
  return seed;
}

// Fields of completions and chats for their samples' lives, which no file of requests has.
struct SampleLives {
  std::optional<double> keep;  // seconds
  bool vote_stop = false;
};
// Takes `keep` and `vote_stop` out of the body. On an error, `error->param` names the field.
SampleLives TakeLives(openai::Endpoint endpoint, nlohmann::json* body, openai::BodyError* error) {
  SampleLives lives;
  if (endpoint == openai::Endpoint::kResponses || !body->is_object()) return lives;
  openai::FieldReader fields(*body);
  fields.Take("keep", &lives.keep);
  fields.Take("vote_stop", &lives.vote_stop);
  const nlohmann::json* const vote = fields.Find("vote");
  if (lives.vote_stop && !vote) fields.Fail("vote_stop", InvalidArgument("vote_stop ends samples by their votes: give vote, too"));
  *error = fields.TakeError();
  body->erase("keep");
  body->erase("vote_stop");
  return lives;
}

// The salt that a client gave; a named prefix's stays hidden.
const std::string& SaltOf(const openai::OpenAiRequest& request) {
  static const std::string kNone;
  return request.prefix && !request.prefix->cache_salt.empty() ? kNone : request.request.cache_salt;
}

// The fields of a request that answers to forks of its samples depend on.
std::shared_ptr<const openai::OpenAiRequest> FormOf(const openai::OpenAiRequest& request) {
  openai::OpenAiRequest form = {.endpoint = request.endpoint,
                                .logprobs = request.logprobs,
                                .return_token_ids = request.return_token_ids,
                                .tokens_as_ids = request.tokens_as_ids,
                                .tools = request.tools};
  form.request.max_tokens = request.request.max_tokens;
  form.request.top_logprobs = request.request.top_logprobs;
  return std::make_shared<const openai::OpenAiRequest>(std::move(form));
}

Result<std::unique_ptr<GrammarCompiler>> MakeGrammars(const Engine& engine, const ServiceOptions& options) {
  if (!engine.tokenizer()) return InvalidArgument("the model has no tokenizer");
  return GrammarCompiler::Create(*engine.tokenizer(), engine.model_info().vocab_size, options.grammar_process);
}

}  // namespace

GenerationRoutes::GenerationRoutes(RouteContext* context, Parts parts)
    : context_(*context),
      parts_(parts),
      grammars_(MakeGrammars(context->engine(), context->options())),
      compile_queue_(grammars_.ok() ? std::make_unique<CompileQueue>(grammars_->get()) : nullptr) {}

void GenerationRoutes::Drain(const Status& why) {
  if (compile_queue_) compile_queue_->Stop(why);
}

std::vector<Route> GenerationRoutes::Routes() {
  const auto by = [this](auto handler) { return HandledBy(this, handler); };
  using G = GenerationRoutes;
  return {
      {"POST", "/v1/completions", by(&G::Completions), BodyKind::kJson},
      {"POST", "/v1/chat/completions", by(&G::ChatCompletions), BodyKind::kJson},
      {"POST", "/v1/responses", by(&G::Responses), BodyKind::kJson},
      {"POST", "/infill", by(&G::Infill), BodyKind::kJson},
      {"POST", "/inference/v1/generate", by(&G::GenerateTokens), BodyKind::kJson},
      {"POST", "/generate", by(&G::SglangGenerate), BodyKind::kJson},
  };
}

void GenerationRoutes::Completions(const std::shared_ptr<Call>& call) { Generate(openai::Endpoint::kCompletions, call); }

void GenerationRoutes::ChatCompletions(const std::shared_ptr<Call>& call) { Generate(openai::Endpoint::kChatCompletions, call); }

void GenerationRoutes::Responses(const std::shared_ptr<Call>& call) { Generate(openai::Endpoint::kResponses, call); }

void GenerationRoutes::Generate(openai::Endpoint endpoint, const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  std::optional<JsonBody> body = context_.TakeBody(call, endpoint);
  if (!body) return;
  openai::BodyError error;
  const SampleLives lives = TakeLives(endpoint, &*body->json, &error);
  if (!error.status.ok()) return context_.Answer(call, error);
  std::optional<std::vector<openai::OpenAiRequest>> prompts = context_.parser().ParseList(
      endpoint, *body->json, &error, parts_.prefixes->FinderOf(call->key), body->ordered.tools_or_null(), body->ordered.schema);
  if (!prompts) return context_.Answer(call, error);
  if (lives.keep && !Keep(call, *lives.keep, *prompts)) return;
  if (lives.vote_stop) prompts->front().vote_stop = true;  // with a vote there is one
  const auto seed = body->json->find("seed");
  Take(call, *std::move(prompts), seed != body->json->end() && !seed->is_null());
}

void GenerationRoutes::Infill(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = context_.TakeBody(call);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::OpenAiRequest> parsed = openai::ParseInfill(*body->json, context_.parser(), &error);
  if (!parsed) return context_.Answer(call, error);
  const auto seed = body->json->find("seed");
  const bool seeded = seed != body->json->end() && seed->is_number() && seed->get<double>() >= 0;
  TakeOne(call, *std::move(parsed), seeded);
}

void GenerationRoutes::GenerateTokens(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = context_.TakeBody(call, openai::Endpoint::kCompletions, "sampling_params");
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::OpenAiRequest> parsed = openai::ParseTokens(*body->json, context_.parser(), &error, body->ordered.schema);
  if (!parsed) return context_.Answer(call, error);
  TakeOne(call, *std::move(parsed), openai::IsSeededTokens(*body->json));
}

void GenerationRoutes::SglangGenerate(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = context_.TakeBody(call);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::SglangRequests> parsed = openai::ParseSglang(*body->json, context_.parser(), &error);
  if (!parsed) return context_.Answer(call, error);
  Take(call, std::move(parsed->prompts), parsed->seeded);
}

void GenerationRoutes::TakeOne(const std::shared_ptr<Call>& call, openai::OpenAiRequest prompt, bool seeded) {
  std::vector<openai::OpenAiRequest> prompts;
  prompts.push_back(std::move(prompt));
  Take(call, std::move(prompts), seeded);
}

void GenerationRoutes::Take(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts, bool seeded) {
  if (!prompts.empty()) ReportIgnored(call, prompts.front().ignored_fields);
  int64_t samples = 0;
  for (const openai::OpenAiRequest& prompt : prompts) samples += prompt.request.num_sequences();
  if (context_.options().max_waiting > 0 && prompts.size() > 1 &&
      samples > context_.options().max_waiting) {  // one prompt waits for an empty line
    const std::string message =
        fmt::format("prompt is a list of {} prompts with {} samples in all, and the server lets {} wait; send several requests",
                    prompts.size(), samples, context_.options().max_waiting);
    return context_.Answer(call, ErrorResponse(InvalidArgument(message), "prompt"));
  }
  for (openai::OpenAiRequest& prompt : prompts) {
    if (!seeded) prompt.request.sampling.seed = RandomSeed();
    Result<std::vector<int32_t>> ids = context_.parser().Encode(prompt);
    if (!ids.ok()) {
      const openai::BodyError error = prompt.PromptError(ids.status());
      return context_.Answer(call, error);
    }
    context_.parser().SetPrompt(*std::move(ids), &prompt);
    if (const openai::BodyError begins = CheckLogprobStart(prompt); !begins.status.ok()) return context_.Answer(call, begins);
    if (Status allowed = context_.access().Complete(call->key, &prompt.request); !allowed.ok()) {
      const openai::BodyError error = prompt.InItsWords({.status = std::move(allowed), .param = "priority"});
      return context_.Answer(call, error);
    }
  }
  if (openai::BodyError fits = CheckAnswer(context_.options().answers, context_.options().max_context, prompts);
      !fits.status.ok()) {
    const openai::BodyError error = prompts.front().InItsWords(std::move(fits));
    return context_.Answer(call, error);
  }
  if (!context_.Admit(call, context_.access().BoundCost(call->key, prompts))) return;
  Compile(call, std::move(prompts));
}

void GenerationRoutes::Compile(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts) {
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
    context_.Try(call, [&] {
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

void GenerationRoutes::AnswerUncompiled(const std::shared_ptr<Call>& call, const openai::BodyError& error) {
  call->admission->End(/*used_tokens=*/0);
  const StatusCode code = error.status.code();
  if (code == StatusCode::kCancelled) return context_.Log(*call, kClientLeft);
  if (code == StatusCode::kResourceExhausted) return context_.Answer(call, ErrorResponse(429, error.status.message(), error.param));
  context_.Answer(call, error);
}

void GenerationRoutes::Start(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts) {
  GenerationCall::Parts parts = PartsOf(call);
  if (call->samples) parts.on_kept = KeepPrompts(*call, prompts);
  parts.prompts = std::move(prompts);
  GenerationCall::Start(std::move(parts));
}

GenerationCall::Parts GenerationRoutes::PartsOf(const std::shared_ptr<Call>& call) {
  return {.engine = &context_.engine(),
          .post = [this, share = call->key](std::function<void()> work) { vote_readers_.Post(share, 0, std::move(work)); },
          .facts = {.id = call->request.id,
                    .created = UnixSeconds(),
                    .model = context_.options().model,
                    .version_label = [this](int64_t number) { return parts_.labels->Find(number); }},
          .responder = call->responder,
          .active = parts_.calls,
          .key = call->key,
          .on_end =
              [this, call, admission = call->admission](const GenerationCall::Outcome& outcome) {
                call->usage = outcome.usage;
                if (outcome.first_token_seconds >= 0) context_.metrics().CountFirstToken(outcome.first_token_seconds);
                if (outcome.token_seconds >= 0) context_.metrics().CountTimePerToken(outcome.token_seconds);
                context_.metrics().CountTokens(call->key, outcome.usage.prompt, outcome.usage.cached, outcome.usage.completion);
                context_.metrics().CountBytesNotRead(call->key, outcome.usage.shared_reads.kv_bytes_not_read);
                call->reason = outcome.reason;
                context_.Log(*call, outcome.status);
                if (call->samples) call->samples->End(/*keep=*/outcome.status == 200);
                admission->End(outcome.computed_tokens);
              }};
}

bool GenerationRoutes::Keep(const std::shared_ptr<Call>& call, double seconds, std::span<openai::OpenAiRequest> prompts) {
  int64_t count = 0;
  for (const openai::OpenAiRequest& prompt : prompts) {
    if (prompt.request.n != prompt.choices || prompt.deduplicate) {
      context_.Answer(
          call, ErrorResponse(InvalidArgument("keep is of samples that the answer has: leave best_of and dedup out"), "keep"));
      return false;
    }
    count += std::max(0, prompt.request.n);
  }
  Result<std::shared_ptr<SampleStore::Generated>> samples = parts_.samples->Reserve(call->key, count, seconds);
  if (!samples.ok()) {
    context_.Answer(call, KeptErrorResponse(samples.status()));
    return false;
  }
  call->samples = *std::move(samples);
  auto name = call->samples->names().begin();
  for (openai::OpenAiRequest& prompt : prompts) {
    const auto end = name + std::max(0, prompt.request.n);
    prompt.sample_ids.assign(name, end);
    name = end;
  }
  return true;
}

decltype(GenerationCall::Parts::on_kept) GenerationRoutes::KeepPrompts(const Call& call,
                                                                       std::span<const openai::OpenAiRequest> prompts) {
  struct Prompt {
    size_t first = 0;
    std::string salt;
    std::shared_ptr<const openai::OpenAiRequest> form;
    int32_t n = 0;
  };
  std::vector<Prompt> kept;
  size_t first = 0;
  for (const openai::OpenAiRequest& prompt : prompts) {
    kept.push_back({.first = first, .salt = SaltOf(prompt), .form = FormOf(prompt), .n = prompt.request.n});
    first += prompt.sample_ids.size();
  }
  return [samples = call.samples, kept = std::move(kept)](size_t i, const std::shared_ptr<openai::KeptRequest>& request) {
    std::vector<SampleId> ids;
    for (int32_t index = 0; index < kept[i].n; ++index) ids.push_back(request->sample(index));
    samples->Begin(kept[i].first, request, ids, kept[i].salt, kept[i].form);
  };
}

}  // namespace coppice::server
