#include "openai/sglang_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/json.h"
#include "openai/field_reader.h"
#include "openai/prompt_fields.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int32_t kMaxNewTokens = 128;  // SGLang's default

struct SglangField {
  const char *sglang, *completion;
};
// Of sampling_params. Names that a completion does not know either are refused, or ignored and reported, by its rules.
constexpr SglangField kSglangSampling[] = {{"max_new_tokens", "max_tokens"},
                                           {"min_new_tokens", "min_tokens"},
                                           {"sampling_seed", "seed"},
                                           {"ebnf", "grammar"},
                                           {"n", "n"},
                                           {"temperature", "temperature"},
                                           {"top_p", "top_p"},
                                           {"top_k", "top_k"},
                                           {"min_p", "min_p"},
                                           {"presence_penalty", "presence_penalty"},
                                           {"frequency_penalty", "frequency_penalty"},
                                           {"repetition_penalty", "repetition_penalty"},
                                           {"stop", "stop"},
                                           {"stop_token_ids", "stop_token_ids"},
                                           {"ignore_eos", "ignore_eos"},
                                           {"logit_bias", "logit_bias"},
                                           {"regex", "regex"},
                                           {"stop_regex", "stop_regex"},
                                           {"structural_tag", "structural_tag"},
                                           {"thinking_budget", "thinking_budget"}};
// Of the body.
constexpr SglangField kSglangBody[] = {
    {"stream", "stream"},   {"priority", "priority"}, {"extra_key", "cache_salt"},      {"model", "model"},
    {"timeout", "timeout"}, {"group_id", "group_id"}, {"min_answered", "min_answered"}, {"logprobs_mode", "logprobs_mode"}};
// Fields that change no answer here.
constexpr const char* kSglangWithoutEffect[] = {"log_metrics",   "background",      "stream_options",
                                                "custom_params", "stream_interval", "data_parallel_rank"};
constexpr const char* kUnsupported[] = {
    "input_embeds",           "image_data",           "video_data",        "audio_data",     "session_params",       "lora_path",
    "custom_logit_processor", "return_hidden_states", "token_ids_logprob", "bootstrap_host", "return_routed_experts"};

// The prompts of a body: each as `prompt` of a completion.
std::vector<json> TakePrompts(FieldReader& fields, SglangForm* form) {
  constexpr const char* kText = "text";
  constexpr const char* kIds = "input_ids";
  const json* text = fields.Find(kText);
  const json* ids = fields.Find(kIds);
  if ((text == nullptr) == (ids == nullptr)) {
    fields.Fail(text ? kIds : kText,
                InvalidArgument(text ? "text and input_ids are both given; keep one" : "there is neither text nor input_ids"));
    return {};
  }
  form->by_ids = ids != nullptr;
  const json& given = form->by_ids ? *ids : *text;
  const bool is_list = given.is_array() && !given.empty() && !given.front().is_number();
  form->is_list |= is_list;
  const char* const name = form->by_ids ? kIds : kText;
  const auto is_one = [&](const json& one) {
    return form->by_ids ? one.is_array() && !one.empty() && one.front().is_number() : one.is_string();
  };
  std::vector<json> prompts;
  if (is_list) prompts.assign(given.begin(), given.end());
  if (!is_list) prompts.push_back(given);
  if (prompts.size() > kMaxPrompts) {
    fields.Fail(name, InvalidArgument(fmt::format("{} is a list of {} prompts, expected at most {}; send several requests", name,
                                                  prompts.size(), kMaxPrompts)));
  }
  for (const json& one : prompts) {
    if (!is_one(one))
      fields.Expect(name, one,
                    form->by_ids ? "a list of token ids, at least one, or a list of those" : "a string, or a list of strings");
  }
  return prompts;
}

// One for all prompts, or a list with one for each.
const json* Of(const json* field, size_t prompt) {
  if (!field || !field->is_array()) return field;
  return prompt < field->size() ? &(*field)[prompt] : nullptr;
}

// A field that may be a list with a value for each prompt.
const json* FindEach(FieldReader& fields, const char* name, size_t prompts) {
  const json* value = fields.Find(name);
  if (value && value->is_array() && value->size() != prompts)
    fields.Expect(name, *value, fmt::format("one value, or a list of {}, one for each prompt", prompts));
  return value;
}

// The fields of a completion that sampling_params stand for, and what they say of the answer's form.
void TakeSampling(FieldReader& fields, const json* given, json* completion, SglangForm* form) {
  constexpr const char* kName = "sampling_params";
  const json none = json::object();
  if (given && !given->is_object()) return fields.Expect(kName, *given, "an object such as {\"max_new_tokens\": 16}");
  FieldReader params = fields.Inner(given ? *given : none, kName);
  for (const auto& [sglang, name] : kSglangSampling) {
    if (const json* value = params.Find(sglang)) (*completion)[name] = *value;
  }
  if (const json* schema = params.Find("json_schema")) (*completion)["structured_outputs"] = {{"json", *schema}};
  bool skips_special = true, spaced = true;
  params.Take("skip_special_tokens", &skips_special);
  params.Take("no_stop_trim", &form->keeps_stop);
  params.Take("spaces_between_special_tokens", &spaced);  // no text has any here
  form->keeps_special = !skips_special;
  for (const char* const name : kSglangWithoutEffect) params.Find(name);
  if (const BodyError wrong = params.Finish(); !wrong.status.ok()) fields.FailWithin(kName, wrong);
}

// Of what each of several prompts has a copy of: `common`, and `sampling` where it is one for all.
void CheckCopies(FieldReader& fields, size_t prompts, const json& common, const json* sampling) {
  if (prompts < 2) return;  // there are none, and nothing is written to be measured
  const size_t bytes =
      DumpJson(ordered_json(common)).size() + (sampling && sampling->is_object() ? DumpJson(ordered_json(*sampling)).size() : 0);
  const Status fits = CheckRepeated("sampling_params and other fields beside the prompts have", bytes, "for", prompts);
  if (!fits.ok()) fields.Fail("sampling_params", fits);
}

bool HasSeed(const json& completion) { return completion.contains("seed"); }

bool IsSameForm(const OpenAiRequest& a, const OpenAiRequest& b) {
  if (!a.output || !b.output) return !a.output && !b.output;
  return a.output->source.kind == b.output->source.kind && a.output->source.text == b.output->source.text;
}

}  // namespace

BodyError InWordsOfSglang(BodyError error) {
  if (error.param == "prompt") {
    error.param = "text";
  } else if (error.param == "logprobs") {
    error.param = "top_logprobs_num";
  } else if (error.param.starts_with("structured_outputs")) {
    error.param = "sampling_params.json_schema";
  } else {
    for (const SglangField& field : kSglangBody) {
      if (error.param == field.completion) {
        error.param = field.sglang;
        return error;
      }
    }
    for (const SglangField& field : kSglangSampling) {
      if (error.param != field.completion) continue;
      error.param = fmt::format("sampling_params.{}", field.sglang);
      break;
    }
  }
  return error;
}

BodyError CheckLogprobStart(const OpenAiRequest& prompt) {
  const int32_t begin = prompt.request.prompt_logprobs_begin;
  const int64_t length = std::ssize(prompt.request.prompt_ids);
  if (!prompt.sglang || begin <= length) return {};
  return {
      InvalidArgument(fmt::format("logprob_start_len is {} and the prompt has {} tokens, expected at most as many, or -1 (none of "
                                  "the prompt)",
                                  begin, length)),
      "logprob_start_len"};
}

std::optional<SglangRequests> ParseSglang(const json& body, const OpenAiRequestParser& parser, BodyError* error) {
  if (!body.is_object()) {
    (void)RefuseBody(body, error);
    return std::nullopt;
  }
  UnknownFieldsOf unknown{.rule = parser.unknown_fields()};
  FieldReader fields(body, &unknown);
  SglangForm form;
  const std::vector<json> prompts = TakePrompts(fields, &form);
  const size_t count = prompts.size();
  json common = {{"max_tokens", kMaxNewTokens}};
  for (const auto& [sglang, name] : kSglangBody) {
    if (const json* value = fields.Find(sglang)) common[name] = *value;
  }
  const json* rids = FindEach(fields, "rid", count);
  const json* sampling = FindEach(fields, "sampling_params", count);
  const json* wants_logprobs = FindEach(fields, "return_logprob", count);
  const json* starts = FindEach(fields, "logprob_start_len", count);
  const json* tops = FindEach(fields, "top_logprobs_num", count);
  fields.Take("return_text_in_logprobs", &form.texts_in_logprobs);
  for (const char* const name : kSglangWithoutEffect) fields.Find(name);
  for (const char* const name : kUnsupported) {
    const json* value = fields.Find(name);
    if (value && *value != false && !(value->is_structured() && value->empty()))
      fields.Expect(name, *value, "it absent: it is not supported");
  }

  CheckCopies(fields, count, common, sampling);

  std::vector<json> completions;
  std::vector<std::string> ids;
  std::vector<int32_t> begins;
  std::vector<SglangForm> forms;
  for (size_t i = 0; i < count && fields.ok(); ++i) {
    json& completion = completions.emplace_back(common);
    completion["prompt"] = prompts[i];
    TakeSampling(fields, Of(sampling, i), &completion, &forms.emplace_back(form));
    json values = json::object();  // of this prompt, as fields that are read like all others
    const auto put = [&](const char* name, const json* value) {
      if (value && !value->is_null()) values[name] = *value;
    };
    put("rid", Of(rids, i));
    put("return_logprob", Of(wants_logprobs, i));
    put("logprob_start_len", Of(starts, i));
    put("top_logprobs_num", Of(tops, i));
    FieldReader own(values);
    bool logprobs = false;
    int32_t start = -1, top = 0;
    own.TakeClientId("rid", &ids.emplace_back());
    own.Take("return_logprob", &logprobs);
    own.Take("logprob_start_len", &start);
    own.Take("top_logprobs_num", &top);
    if (start < -1) own.Expect("logprob_start_len", start, "-1 (none of the prompt), or the index of a prompt token");
    if (const BodyError wrong = own.Finish(); !wrong.status.ok()) fields.Fail(wrong.param, wrong.status);
    if (logprobs) completion["logprobs"] = top;
    begins.push_back(logprobs ? start : -1);
  }
  if (*error = fields.Finish(); !error->status.ok()) return std::nullopt;

  SglangRequests requests = {.seeded = HasSeed(completions.front())};
  for (size_t i = 0; i < count; ++i) {
    if (HasSeed(completions[i]) != requests.seeded) {
      *error = {InvalidArgument("sampling_seed is given for some of the prompts; give it for all of them or none"),
                "sampling_params.sampling_seed"};
      return std::nullopt;
    }
    std::optional<OpenAiRequest> parsed = parser.Parse(Endpoint::kCompletions, completions[i], error);
    if (!parsed) {
      *error = InWordsOfSglang(std::move(*error));
      if (error->param == "text" && form.by_ids) error->param = "input_ids";
      return std::nullopt;
    }
    parsed->RenameOutputField([](const std::string& field) { return InWordsOfSglang({.param = field}).param; });
    parsed->client_id = std::move(ids[i]);
    form.is_list |= parsed->choices > 1;
    requests.prompts.push_back(*std::move(parsed));
  }
  for (size_t i = 0; i < count; ++i) {
    OpenAiRequest& prompt = requests.prompts[i];
    if (!IsSameForm(prompt, requests.prompts.front())) {
      *error = {InvalidArgument("the prompts ask for outputs of different forms; send a request for each"), "sampling_params"};
      return std::nullopt;
    }
    SglangForm own = forms[i];
    own.is_list = form.is_list;
    own.with_input_logprobs = begins[i] >= 0;
    own.with_top = prompt.logprobs && prompt.request.top_logprobs > 0;
    if (own.with_input_logprobs) {
      prompt.prompt_logprobs = prompt.request.prompt_logprobs = true;
      prompt.request.prompt_logprobs_begin = begins[i];
    }
    prompt.sglang = std::make_shared<const SglangForm>(own);
  }
  std::vector<std::string>& ignored = requests.prompts.front().ignored_fields;
  for (std::string& name : ignored) name = InWordsOfSglang({.param = name}).param;
  ignored.insert(ignored.end(), unknown.ignored.begin(), unknown.ignored.end());
  return requests;
}

}  // namespace coppice::openai
