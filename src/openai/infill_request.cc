#include "openai/infill_request.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "openai/field_reader.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

struct Renamed {
  const char *infill, *completion;
};
// The last of two that become one field counts.
constexpr Renamed kFields[] = {{"model", "model"},
                               {"stream", "stream"},
                               {"max_tokens", "max_tokens"},
                               {"n_predict", "max_tokens"},
                               {"temperature", "temperature"},
                               {"top_k", "top_k"},
                               {"top_p", "top_p"},
                               {"min_p", "min_p"},
                               {"repeat_penalty", "repetition_penalty"},
                               {"presence_penalty", "presence_penalty"},
                               {"frequency_penalty", "frequency_penalty"},
                               {"stop", "stop"},
                               {"ignore_eos", "ignore_eos"},
                               {"grammar", "grammar"},
                               {"cache_salt", "cache_salt"},
                               {"cache_private_begin", "cache_private_begin"},
                               {"timeout", "timeout"},
                               {"priority", "priority"}};
// Fields of llama.cpp's server and its samplers. Editors send them always; an answer without them is as good.
constexpr const char* kIgnored[] = {"samplers", "n_indent", "t_max_prompt_ms", "t_max_predict_ms", "response_fields"};
// Fields that change no answer here.
constexpr const char* kWithoutEffect[] = {"cache_prompt",  "id_slot",           "n_keep",
                                          "n_cache_reuse", "timings_per_token", "return_progress"};

void TakeText(FieldReader& fields, const char* name, std::string* text) {
  if (!fields.Find(name)) fields.Expect(name, json(), "a string");
  fields.Take(name, text);
}

void TakeFiles(FieldReader& fields, std::vector<FimFile>* files) {
  constexpr const char* kName = "input_extra";
  constexpr std::string_view kExpected = R"(a list of objects such as {"filename": "a.py", "text": "..."})";
  const json* list = fields.Find(kName);
  if (!list) return;
  if (!list->is_array()) return fields.Expect(kName, *list, kExpected);
  for (const json& entry : *list) {
    const std::string place = fmt::format("{}[{}]", kName, files->size());
    if (!entry.is_object()) return fields.Expect(place.c_str(), entry, R"(an object with "text")");
    FimFile& file = files->emplace_back(FimFile{.name = "tmp"});  // llama.cpp's name of a file without one
    FieldReader parts = fields.Inner(entry, place);
    TakeText(parts, "text", &file.text);
    parts.Take("filename", &file.name);
    for (const char* const name : {"time", "id"}) parts.Find(name);  // editors' own
    if (const BodyError wrong = parts.Finish(); !wrong.status.ok()) return fields.FailWithin(place, wrong);
  }
}

// llama.cpp takes a list of [token id, bias] too.
void TakeLogitBias(FieldReader& fields, json* completion) {
  constexpr const char* kName = "logit_bias";
  const json* value = fields.Find(kName);
  if (!value) return;
  json& bias = (*completion)[kName] = *value;
  if (!value->is_array()) return;
  bias = json::object();
  for (const json& pair : *value) {
    if (!pair.is_array() || pair.size() != 2 || !IsWhole(pair[0]) || !pair[1].is_number())
      return fields.Expect(kName, *value, "an object of token id to number, or a list of [token id, number]");
    bias[fmt::format("{:.0f}", pair[0].get<double>())] = pair[1];
  }
}

const char* NameInInfill(const std::string& completion) {
  for (const Renamed& field : kFields) {
    if (completion == field.completion && std::string_view(field.infill) != "max_tokens") return field.infill;
  }
  return completion == "suffix" ? "input_suffix" : completion == "prompt" ? "input_prefix" : nullptr;
}

}  // namespace

std::optional<OpenAiRequest> ParseInfill(const json& body, const OpenAiRequestParser& parser, BodyError* error) {
  if (!body.is_object()) return RefuseBody(body, error);
  UnknownFieldsOf unknown{.rule = parser.unknown_fields()};
  FieldReader fields(body, &unknown);
  json completion = {{"max_tokens", -1}};
  std::string prefix, begun;
  FimContext context;
  TakeText(fields, "input_prefix", &prefix);
  TakeText(fields, "input_suffix", &context.suffix);
  fields.Take("prompt", &begun);
  TakeFiles(fields, &context.files);
  for (const auto& [infill, name] : kFields) {
    if (const json* value = fields.Find(infill)) completion[name] = *value;
  }
  if (completion["max_tokens"] == -2) completion["max_tokens"] = -1;  // up to the end of the context, as -1 here
  TakeLogitBias(fields, &completion);
  int64_t seed = -1;
  fields.Take("seed", &seed);
  if (seed >= 0) completion["seed"] = seed;  // -1: another one each time
  auto form = std::make_shared<InfillForm>();
  fields.Take("return_tokens", &form->return_tokens);
  for (const char* const name : kWithoutEffect) fields.Find(name);
  for (const char* const name : kIgnored) {
    if (fields.Find(name)) unknown.ignored.emplace_back(name);
  }
  if (*error = fields.Finish(); !error->status.ok()) return std::nullopt;

  completion["prompt"] = prefix + begun;
  std::optional<OpenAiRequest> parsed = parser.Parse(Endpoint::kCompletions, completion, error);
  if (parsed) error->status = parser.SetFim(std::move(context), &*parsed);
  if (!error->status.ok()) {
    if (const char* name = NameInInfill(error->param)) error->param = name;
    return std::nullopt;
  }
  parsed->infill = std::move(form);
  parsed->ignored_fields = std::move(unknown.ignored);
  return parsed;
}

}  // namespace coppice::openai
