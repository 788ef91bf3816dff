#include "openai/structured_outputs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/json.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

std::optional<std::vector<std::string>> TextsOf(const json& list) {
  if (!list.is_array() || list.empty()) return std::nullopt;
  std::vector<std::string> texts;
  for (const json& text : list) {
    if (!text.is_string() || text == "") return std::nullopt;
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

}  // namespace

std::string ChoiceGrammar(std::span<const std::string> choices) {
  std::string grammar = "root ::=";
  for (const std::string& choice : choices) {
    grammar += grammar.ends_with('=') ? " \"" : " | \"";
    for (const char c : choice) {
      if (c == '"' || c == '\\') {
        grammar += '\\';
        grammar += c;
      } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
        grammar += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      } else {
        grammar += c;
      }
    }
    grammar += '"';
  }
  return grammar;
}

std::optional<GrammarSource> TakeStructuredOutputs(FieldReader& fields, const std::string& schema_in_order) {
  constexpr const char* kName = "structured_outputs";
  constexpr std::string_view kExpected = "an object with one of regex, json, json_object, choice and grammar";
  const json* value = fields.Find(kName);
  if (!value) return std::nullopt;
  if (!value->is_object()) {
    fields.Expect(kName, *value, kExpected);
    return std::nullopt;
  }
  FieldReader parts = fields.Inner(*value, kName);
  std::vector<GrammarSource> found;
  for (const auto& [name, kind] : {std::pair("regex", GrammarKind::kRegex), std::pair("grammar", GrammarKind::kEbnf)}) {
    std::optional<std::string> text;
    parts.Take(name, &text);
    if (text) found.push_back({kind, *std::move(text)});
  }
  if (const json* schema = parts.Find("json")) {
    if (schema->is_string()) {
      found.push_back({GrammarKind::kJsonSchema, schema->get<std::string>()});
    } else {
      found.push_back(
          {GrammarKind::kJsonSchema, schema_in_order.empty() ? DumpJson(nlohmann::ordered_json(*schema)) : schema_in_order});
    }
  }
  bool any_object = false;
  parts.Take("json_object", &any_object);
  if (any_object) found.push_back({GrammarKind::kJsonObject, {}});
  if (const json* list = parts.Find("choice")) {
    const std::optional<std::vector<std::string>> choices = TextsOf(*list);
    if (!choices) parts.Expect("choice", *list, "a list of texts, none of them empty");
    if (choices) found.push_back({GrammarKind::kEbnf, ChoiceGrammar(*choices)});
  }
  if (const json* tag = parts.Find("structural_tag")) parts.Expect("structural_tag", *tag, "it absent: it is not supported");
  // How vLLM's own backends go about it; here one does.
  for (const char* const name : {"disable_any_whitespace", "disable_additional_properties", "disable_fallback",
                                 "whitespace_pattern", "_backend", "_backend_was_auto", "backend"}) {
    const json* option = parts.Find(name);
    if (option && *option != false && name[0] == 'd' && std::string_view(name) != "disable_fallback") parts.Unknown(name, *option);
  }
  if (const BodyError error = parts.Finish(); !error.status.ok()) {
    fields.FailWithin(kName, error);
    return std::nullopt;
  }
  if (found.size() > 1) fields.Expect(kName, *value, kExpected);
  if (found.size() != 1) return std::nullopt;
  return std::move(found.front());
}

}  // namespace coppice::openai
