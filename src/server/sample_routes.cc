#include "server/sample_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/quoted.h"
#include "openai/field_reader.h"
#include "openai/sample_fields.h"
#include "openai/unknown_fields.h"
#include "server/errors.h"
#include "server/json_body.h"
#include "server/query.h"
#include "server/service.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

// The salt that a client gave; a named prefix's is not its to tell.
const std::string& SaltOf(const openai::OpenAiRequest& request) {
  static const std::string kNone;
  return request.prefix && !request.prefix->cache_salt.empty() ? kNone : request.request.cache_salt;
}

// What answers to forks of a request's samples depend on.
std::shared_ptr<const openai::OpenAiRequest> FormOf(const openai::OpenAiRequest& request) {
  openai::OpenAiRequest form = {.endpoint = request.endpoint,
                                .logprobs = request.logprobs,
                                .return_token_ids = request.return_token_ids,
                                .tools = request.tools};
  form.request.max_tokens = request.request.max_tokens;
  form.request.top_logprobs = request.request.top_logprobs;
  return std::make_shared<const openai::OpenAiRequest>(std::move(form));
}

// What is wrong with a body that is no object.
std::optional<openai::BodyError> ObjectError(const nlohmann::json& body) {
  if (body.is_object()) return std::nullopt;
  openai::BodyError error;
  (void)openai::RefuseBody(body, &error);
  return error;
}

ordered_json DeletedSample(const std::string& name) { return {{"object", "sample.deleted"}, {"id", name}, {"deleted", true}}; }

}  // namespace

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

bool Service::Keep(const std::shared_ptr<Call>& call, double seconds, std::span<openai::OpenAiRequest> prompts) {
  int64_t count = 0;
  for (const openai::OpenAiRequest& prompt : prompts) {
    if (prompt.request.n != prompt.choices || prompt.deduplicate) {
      Answer(call, ErrorResponse(InvalidArgument("keep is of samples that the answer has: leave best_of and dedup out"), "keep"));
      return false;
    }
    count += std::max(0, prompt.request.n);
  }
  Result<std::shared_ptr<SampleStore::Generated>> samples = samples_->Reserve(call->key, count, seconds);
  if (!samples.ok()) {
    AnswerVerbError(call, samples.status());
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

decltype(GenerationCall::Parts::on_kept) Service::KeepPrompts(const Call& call, std::span<const openai::OpenAiRequest> prompts) {
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

std::optional<SampleStore::Sample> Service::FindSample(const std::shared_ptr<Call>& call, const std::string& salt) {
  std::optional<SampleStore::Sample> found = samples_->Find(call->key, salt, call->variable);
  if (!found) {
    Answer(call, ErrorResponse(404, fmt::format("there is no sample {}: its time was over, it was let go, or it was made with "
                                                "another cache_salt",
                                                Quoted(call->variable))));
  }
  return found;
}

std::optional<SampleStore::Sample> Service::FindSample(const std::shared_ptr<Call>& call) {
  static constexpr std::string_view kNames[] = {"cache_salt"};
  openai::BodyError error;
  const std::optional<QueryValues> query = ParseQuery(call->request.query, kNames, &error);
  if (!query) {
    Answer(call, ErrorResponse(error.status, error.param));
    return std::nullopt;
  }
  const auto salt = query->find("cache_salt");
  return FindSample(call, salt == query->end() ? std::string() : salt->second);
}

void Service::AnswerVerbError(const std::shared_ptr<Call>& call, const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound: return Answer(call, ErrorResponse(404, status.message()));
    case StatusCode::kFailedPrecondition: return Answer(call, ErrorResponse(409, status.message()));
    case StatusCode::kResourceExhausted: return Answer(call, ErrorResponse(429, status.message()));
    default: return Answer(call, ErrorResponse(status));
  }
}

void Service::GetSample(const std::shared_ptr<Call>& call) {
  const std::optional<SampleStore::Sample> sample = FindSample(call);
  if (!sample) return;
  const Result<SampleInfo> info = engine_.Describe(sample->id());
  if (!info.ok()) return AnswerVerbError(call, info.status());
  ordered_json body = {{"object", "sample"},
                       {"id", call->variable},
                       {"prompt_tokens", info->prompt_tokens},
                       {"token_ids", info->token_ids},
                       {"text", engine_.tokenizer() ? engine_.tokenizer()->Decode(info->token_ids, /*keep_special=*/true) : ""},
                       {"finished", info->finished},
                       {"expires", sample->expires ? ordered_json(*sample->expires) : ordered_json()}};
  Answer(call, {.body = DumpJson(std::move(body))});
}

void Service::DeleteSample(const std::shared_ptr<Call>& call) {
  if (!FindSample(call)) return;
  samples_->Delete(call->variable, /*ended=*/false);
  Answer(call, {.body = DumpJson(DeletedSample(call->variable))});
}

void Service::PruneSample(const std::shared_ptr<Call>& call) {
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  if (const std::optional<openai::BodyError> wrong = ObjectError(*body->json)) return Answer(call, ErrorResponse(wrong->status));
  openai::UnknownFieldsOf unknown{.rule = options_.rules.unknown_fields};
  openai::FieldReader fields(*body->json, &unknown);
  std::string salt;
  fields.Take("cache_salt", &salt);
  if (const openai::BodyError error = fields.Finish(); !error.status.ok())
    return Answer(call, ErrorResponse(error.status, error.param));
  TellIgnored(call, unknown.ignored);
  if (!FindSample(call, salt)) return;
  samples_->Delete(call->variable, /*ended=*/true);
  Answer(call, {.body = DumpJson(DeletedSample(call->variable))});
}

// A fork or an extension, which answers as the request did that made the sample.
struct Service::SampleVerb {
  std::string salt;
  SampleStore::Sample sample;
  double keep = 0;             // seconds
  openai::OpenAiRequest form;  // of the answer
  int64_t tokens = 0;          // that its samples begin with
};

// Reads what both have. nullopt, with the answer given, where there is no such sample.
std::optional<Service::SampleVerb> Service::TakeVerb(const std::shared_ptr<Call>& call, openai::FieldReader& fields) {
  SampleVerb verb;
  fields.Take("cache_salt", &verb.salt);
  std::optional<SampleStore::Sample> sample = FindSample(call, verb.salt);
  if (!sample) return std::nullopt;
  verb.sample = *std::move(sample);
  verb.keep = verb.sample.seconds;
  fields.Take("keep", &verb.keep);
  verb.form = *verb.sample.form;
  openai::TakeStream(fields, &verb.form);
  return verb;
}

bool Service::AdmitVerb(const std::shared_ptr<Call>& call, std::optional<int32_t> keep_tokens, SampleVerb* verb) {
  Request& request = verb->form.request;
  verb->form.choices = request.n;
  verb->form.max_tokens = request.max_tokens;
  if (const openai::BodyError fits = CheckAnswer(options_.answers, options_.max_context, std::span(&verb->form, 1));
      !fits.status.ok()) {
    Answer(call, ErrorResponse(fits.status, fits.param));
    return false;
  }
  const Result<SampleInfo> info = engine_.Describe(verb->sample.id());
  if (!info.ok()) {
    AnswerVerbError(call, info.status());
    return false;
  }
  verb->tokens += keep_tokens ? info->prompt_tokens + std::max(0, *keep_tokens) : std::ssize(info->token_ids);
  const int64_t samples = std::max(1, request.n);
  const int64_t room = std::max<int64_t>(0, options_.max_context - verb->tokens);
  const int64_t output = std::clamp<int64_t>(request.max_tokens, 0, room);
  return Admit(call, {.tokens = verb->tokens + samples * output, .samples = samples});
}

void Service::StartVerb(const std::shared_ptr<Call>& call, SampleVerb verb,
                        const std::shared_ptr<openai::KeptRequest::Group>& group) {
  verb.form.sample_ids = call->samples->names();
  call->samples->Begin(0, verb.sample.request, group->samples(), verb.salt, verb.sample.form);
  GenerationCall::Parts parts = PartsOf(call);
  parts.prompts.push_back(std::move(verb.form));
  parts.kept = verb.sample.request;
  parts.group = group;
  parts.begun_tokens = verb.tokens;
  GenerationCall::Start(std::move(parts));
}

void Service::ForkSample(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  if (const std::optional<openai::BodyError> wrong = ObjectError(*body->json)) return Answer(call, ErrorResponse(wrong->status));
  openai::UnknownFieldsOf unknown{.rule = options_.rules.unknown_fields};
  openai::FieldReader fields(*body->json, &unknown);
  std::optional<SampleVerb> verb = TakeVerb(call, fields);
  if (!verb) return;
  const ForkOptions options = openai::TakeFork(fields, verb->sample.request->SamplingOf(verb->sample.index));
  if (const openai::BodyError error = fields.Finish(); !error.status.ok())
    return Answer(call, ErrorResponse(error.status, error.param));
  TellIgnored(call, unknown.ignored);
  verb->form.request.n = options.n;
  verb->form.request.max_tokens = options.max_tokens.value_or(verb->form.request.max_tokens);
  Result<std::shared_ptr<SampleStore::Generated>> samples = samples_->Reserve(call->key, std::max(0, options.n), verb->keep);
  if (!samples.ok()) return AnswerVerbError(call, samples.status());
  call->samples = *std::move(samples);
  if (!AdmitVerb(call, options.keep_tokens, &*verb)) return;
  const Result<std::shared_ptr<openai::KeptRequest::Group>> group =
      verb->sample.request->Fork(engine_, verb->sample.index, options);
  if (!group.ok()) {
    call->admission->End(/*used_tokens=*/0);
    return AnswerVerbError(call, group.status());
  }
  StartVerb(call, *std::move(verb), *group);
}

void Service::ExtendSample(const std::shared_ptr<Call>& call) {
  if (RefuseWhenDraining(call)) return;
  const std::optional<JsonBody> body = TakeBody(call);
  if (!body) return;
  if (const std::optional<openai::BodyError> wrong = ObjectError(*body->json)) return Answer(call, ErrorResponse(wrong->status));
  openai::UnknownFieldsOf unknown{.rule = options_.rules.unknown_fields};
  openai::FieldReader fields(*body->json, &unknown);
  std::optional<SampleVerb> verb = TakeVerb(call, fields);
  if (!verb) return;
  const std::vector<int32_t> tokens = openai::TakeExtension(fields, engine_.tokenizer(), parser_.bounds());
  if (const openai::BodyError error = fields.Finish(); !error.status.ok())
    return Answer(call, ErrorResponse(error.status, error.param));
  TellIgnored(call, unknown.ignored);
  verb->form.request.n = 1;
  verb->tokens = std::ssize(tokens);
  if (const Status allowed = samples_->CheckSeconds(verb->keep); !allowed.ok()) return Answer(call, ErrorResponse(allowed, "keep"));
  if (!AdmitVerb(call, /*keep_tokens=*/{}, &*verb)) return;
  const Result<std::shared_ptr<openai::KeptRequest::Group>> group =
      verb->sample.request->Extend(engine_, verb->sample.index, tokens);
  if (!group.ok()) {
    call->admission->End(/*used_tokens=*/0);
    return AnswerVerbError(call, group.status());
  }
  call->samples = samples_->Resume(call->variable, verb->keep);
  StartVerb(call, *std::move(verb), *group);
}

}  // namespace coppice::server
