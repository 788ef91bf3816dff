#include "server/sample_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/json.h"
#include "core/quoted.h"
#include "openai/sample_fields.h"
#include "openai/unknown_fields.h"
#include "server/answer_limits.h"
#include "server/errors.h"
#include "server/query.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

ordered_json DeletedSample(const std::string& name) { return {{"object", "sample.deleted"}, {"id", name}, {"deleted", true}}; }

}  // namespace

std::vector<Route> SampleRoutes::Routes() {
  constexpr std::string_view kPath = "/v1/samples/{sample_id}";
  const auto by = [this](auto handler) { return HandledBy(this, handler); };
  return {{"GET", kPath, by(&SampleRoutes::Get)},
          {"DELETE", kPath, by(&SampleRoutes::Delete)},
          {"POST", "/v1/samples/{sample_id}/fork", by(&SampleRoutes::Fork), BodyKind::kJson},
          {"POST", "/v1/samples/{sample_id}/extend", by(&SampleRoutes::Extend), BodyKind::kJson},
          {"POST", "/v1/samples/{sample_id}/prune", by(&SampleRoutes::Prune), BodyKind::kJson}};
}

std::optional<SampleStore::Sample> SampleRoutes::Find(const std::shared_ptr<Call>& call, const std::string& salt) {
  std::optional<SampleStore::Sample> found = samples_.Find(call->key, salt, call->variable);
  if (!found) {
    context_.Answer(call,
                    ErrorResponse(404, fmt::format("there is no sample {}: its time was over, it was let go, or it was made with "
                                                   "another cache_salt",
                                                   Quoted(call->variable))));
  }
  return found;
}

std::optional<SampleStore::Sample> SampleRoutes::Find(const std::shared_ptr<Call>& call) {
  static constexpr std::string_view kNames[] = {"cache_salt"};
  openai::BodyError error;
  const std::optional<QueryValues> query = ParseQuery(call->request.query, kNames, &error);
  if (!query) {
    context_.Answer(call, error);
    return std::nullopt;
  }
  const auto salt = query->find("cache_salt");
  return Find(call, salt == query->end() ? std::string() : salt->second);
}

void SampleRoutes::Get(const std::shared_ptr<Call>& call) {
  if (const std::optional<SampleStore::Sample> sample = Find(call)) Show(call, *sample);
}

void SampleRoutes::Show(const std::shared_ptr<Call>& call, const SampleStore::Sample& sample, std::optional<int32_t> num_tokens) {
  const Result<SampleInfo> info = context_.engine().Describe(sample.id());
  if (!info.ok()) return context_.Answer(call, KeptErrorResponse(info.status()));
  std::span<const int32_t> tokens = info->token_ids;
  if (num_tokens) tokens = tokens.first(std::min(tokens.size(), static_cast<size_t>(*num_tokens)));
  ordered_json body = {
      {"object", "sample"},
      {"id", call->variable},
      {"prompt_tokens", info->prompt_tokens},
      {"token_ids", tokens},
      {"text", context_.engine().tokenizer() ? context_.engine().tokenizer()->Decode(tokens, /*keep_special=*/true) : ""},
      {"finished", info->finished},
      {"expires", sample.expires ? ordered_json(*sample.expires) : ordered_json()}};
  context_.Answer(call, {.body = DumpJson(std::move(body))});
}

void SampleRoutes::Delete(const std::shared_ptr<Call>& call) {
  if (!Find(call)) return;
  samples_.Delete(call->variable, /*ended=*/false);
  context_.Answer(call, {.body = DumpJson(DeletedSample(call->variable))});
}

bool SampleRoutes::ReadBody(const std::shared_ptr<Call>& call, const std::function<bool(openai::FieldReader&)>& take) {
  const std::optional<JsonBody> body = context_.TakeBody(call);
  if (!body) return false;
  openai::BodyError error;
  openai::UnknownFieldsOf unknown{.rule = context_.options().rules.unknown_fields};
  if (body->json->is_object()) {
    openai::FieldReader fields(*body->json, &unknown);
    if (!take(fields) && fields.ok()) return false;
    openai::RefuseOthersOfRequest(fields);
    error = fields.Finish();
  } else {
    (void)openai::RefuseBody(*body->json, &error);
  }
  if (!error.status.ok()) {
    context_.Answer(call, error);
    return false;
  }
  ReportIgnored(call, unknown.ignored);
  return true;
}

void SampleRoutes::Prune(const std::shared_ptr<Call>& call) {
  std::string salt;
  const auto take = [&](openai::FieldReader& fields) {
    fields.Take("cache_salt", &salt);
    return true;
  };
  if (!ReadBody(call, take) || !Find(call, salt)) return;
  samples_.Delete(call->variable, /*ended=*/true);
  context_.Answer(call, {.body = DumpJson(DeletedSample(call->variable))});
}

// A fork or an extension, which answers as the request did that made the sample.
struct SampleRoutes::Verb {
  std::string salt;
  SampleStore::Sample sample;
  double keep = 0;             // seconds
  openai::OpenAiRequest form;  // of the answer
  int64_t tokens = 0;          // that its samples begin with
};

bool SampleRoutes::TakeVerb(const std::shared_ptr<Call>& call, openai::FieldReader& fields, Verb* verb) {
  fields.Take("cache_salt", &verb->salt);
  if (!fields.ok()) return false;
  std::optional<SampleStore::Sample> sample = Find(call, verb->salt);
  if (!sample) return false;
  verb->sample = *std::move(sample);
  verb->keep = verb->sample.seconds;
  fields.Take("keep", &verb->keep);
  verb->form = *verb->sample.form;
  openai::TakeStream(fields, &verb->form);
  return true;
}

bool SampleRoutes::Admit(const std::shared_ptr<Call>& call, std::optional<int32_t> keep_tokens, Verb* verb) {
  Request& request = verb->form.request;
  verb->form.choices = request.n;
  verb->form.max_tokens = request.max_tokens;
  if (const openai::BodyError fits =
          CheckAnswer(context_.options().answers, context_.options().max_context, std::span(&verb->form, 1));
      !fits.status.ok()) {
    context_.Answer(call, fits);
    return false;
  }
  const Result<SampleInfo> info = context_.engine().Describe(verb->sample.id());
  if (!info.ok()) {
    context_.Answer(call, KeptErrorResponse(info.status()));
    return false;
  }
  verb->tokens += keep_tokens ? info->prompt_tokens + std::max(0, *keep_tokens) : std::ssize(info->token_ids);
  const int64_t samples = std::max(1, request.n);
  const int64_t room = std::max<int64_t>(0, context_.options().max_context - verb->tokens);
  const int64_t output = std::clamp<int64_t>(request.max_tokens, 0, room);
  return context_.Admit(call, {.tokens = verb->tokens + samples * output, .samples = samples});
}

void SampleRoutes::Refuse(const std::shared_ptr<Call>& call, const Status& refusal) {
  call->admission->End(/*used_tokens=*/0);
  context_.Answer(call, KeptErrorResponse(refusal));
}

void SampleRoutes::Answer(const std::shared_ptr<Call>& call, Verb verb, const std::shared_ptr<Group>& group) {
  verb.form.sample_ids = call->samples->names();
  call->samples->Begin(0, verb.sample.request, group->samples(), verb.salt, verb.sample.form);
  GenerationCall::Parts parts = generations_.PartsOf(call);
  parts.prompts.push_back(std::move(verb.form));
  parts.kept = verb.sample.request;
  parts.group = group;
  parts.begun_tokens = verb.tokens;
  GenerationCall::Start(std::move(parts));
}

void SampleRoutes::Fork(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  Verb verb;
  ForkOptions options;
  const auto take = [&](openai::FieldReader& fields) {
    if (!TakeVerb(call, fields, &verb)) return false;
    options = openai::TakeFork(fields, verb.sample.request->SamplingOf(verb.sample.index));
    return true;
  };
  if (!ReadBody(call, take)) return;
  verb.form.request.n = options.n;
  verb.form.request.max_tokens = options.max_tokens.value_or(verb.form.request.max_tokens);
  Result<std::shared_ptr<SampleStore::Generated>> samples = samples_.Reserve(call->key, std::max(0, options.n), verb.keep);
  if (!samples.ok()) return context_.Answer(call, KeptErrorResponse(samples.status()));
  call->samples = *std::move(samples);
  if (!Admit(call, options.keep_tokens, &verb)) return;
  const Result<std::shared_ptr<Group>> group = verb.sample.request->Fork(context_.engine(), verb.sample.index, options);
  if (!group.ok()) return Refuse(call, group.status());
  Answer(call, std::move(verb), *group);
}

void SampleRoutes::Extend(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  Verb verb;
  std::vector<int32_t> tokens;
  const auto take = [&](openai::FieldReader& fields) {
    if (!TakeVerb(call, fields, &verb)) return false;
    tokens = openai::TakeExtension(fields, context_.engine().tokenizer(), context_.parser().bounds());
    return true;
  };
  if (!ReadBody(call, take)) return;
  verb.form.request.n = 1;
  verb.tokens = std::ssize(tokens);
  if (const Status allowed = samples_.CheckSeconds(verb.keep); !allowed.ok())
    return context_.Answer(call, ErrorResponse(allowed, "keep"));
  if (!Admit(call, /*keep_tokens=*/{}, &verb)) return;
  const Result<openai::KeptRequest::Extended> extended = verb.sample.request->Extend(context_.engine(), verb.sample.index, tokens);
  if (!extended.ok()) return Refuse(call, extended.status());
  if (extended->group) {
    call->samples = samples_.Resume(call->variable, verb.keep);
    return Answer(call, std::move(verb), extended->group);
  }
  call->admission->End(std::ssize(tokens));
  Show(call, verb.sample, extended->num_tokens);
}

}  // namespace coppice::server
