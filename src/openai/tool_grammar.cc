#include "openai/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/json.h"

namespace coppice::openai {
namespace {

// The formats are those of XGrammar's structural tags.
using nlohmann::ordered_json;
using Choice = ToolFields::Choice;

ordered_json ConstString(std::string_view text) { return {{"type", "const_string"}, {"value", text}}; }
ordered_json Grammar(std::string text) { return {{"type", "grammar"}, {"grammar", std::move(text)}}; }
ordered_json AnyObject() { return Grammar(SchemaGrammar({GrammarKind::kJsonObject, {}}).value()); }
ordered_json Sequence(ordered_json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }
ordered_json Either(ordered_json one, ordered_json other) {
  return {{"type", "or"}, {"elements", ordered_json::array({std::move(one), std::move(other)})}};
}

ordered_json FormatOf(const GrammarSource& content) {
  switch (content.kind) {
    case GrammarKind::kJsonSchema: return Grammar(SchemaGrammar(content).value());  // it was checked
    case GrammarKind::kRegex: return {{"type", "regex"}, {"pattern", content.text}};
    case GrammarKind::kEbnf: return Grammar(content.text);
    default: return AnyObject();
  }
}

class Writer {
 public:
  Writer(const ToolFields& tools, const ToolCallFormat& format) : tools_(tools), format_(format) {}

  // Marks that are control tokens are no part of any text.
  bool hides_marks() const { return !format_.control_tokens.empty(); }

  // One call or more, which are the whole output. `begun`: the first mark is in the prompt.
  ordered_json Calls(bool begun) const {
    const bool one = !tools_.parallel || tools_.choice == Choice::kNamed || format_.style == ToolCallStyle::kLlama || hides_end();
    ordered_json calls = {{"type", "tags_with_separator"},
                          {"tags", Tags(begun)},
                          {"separator", format_.style == ToolCallStyle::kMistral ? ", " : "\n"},
                          {"at_least_one", true},
                          {"stop_after_first", one}};
    if (format_.style != ToolCallStyle::kMistral) return calls;
    const std::string begin = begun ? "[" : std::string(format_.begin) + "[";
    return Sequence(ordered_json::array({ConstString(begin), std::move(calls), ConstString("]")}));
  }

  // Any text, in which what begins like a call is one.
  ordered_json TextWithCalls() const {
    if (format_.style == ToolCallStyle::kHermes)
      return {{"type", "triggered_tags"},
              {"triggers", {format_.begin}},
              {"tags", Tags(false)},
              {"at_least_one", false},
              {"stop_after_first", false}};
    const std::string first = format_.style == ToolCallStyle::kMistral ? R"([^\[ \t\r\n])" : R"([^{ \t\r\n])";
    return Either(Sequence(ordered_json::array({{{"type", "regex"}, {"pattern", first}}, {{"type", "any_text"}}})), Calls(false));
  }

 private:
  bool hides_end() const { return hides_marks() && !format_.end.empty(); }

  ordered_json Tags(bool begun) const {
    ordered_json tags = ordered_json::array();
    for (const ToolFunction& function : tools_.functions) {
      if (tools_.choice == Choice::kNamed && function.name != tools_.named) continue;
      const bool marked = format_.style == ToolCallStyle::kHermes;
      const std::string mark = marked && !begun ? std::string(format_.begin) + "\n" : "";
      tags.push_back({{"type", "tag"},
                      {"begin", fmt::format(R"({}{{"name": {}, "{}": )", mark, DumpJson(function.name), format_.arguments_key)},
                      {"content", Arguments(function)},
                      {"end", marked && !hides_end() ? "}\n" + std::string(format_.end) : "}"}});
    }
    return tags;
  }

  ordered_json Arguments(const ToolFunction& function) const {
    const bool free = tools_.choice == Choice::kAuto ? !function.strict : function.loose;
    if (free) return AnyObject();
    const std::string schema =
        function.parameters.is_null() ? R"({"type": "object", "properties": {}})" : DumpJson(function.parameters);
    return Grammar(SchemaGrammar({GrammarKind::kJsonSchema, schema}).value());  // they were checked
  }

  const ToolFields& tools_;
  const ToolCallFormat& format_;
};

// Schemas one by one, so that the error names the function.
BodyError CheckSchemas(const ToolFields& tools) {
  for (size_t i = 0; i < tools.functions.size(); ++i) {
    const ToolFunction& function = tools.functions[i];
    const bool other = tools.choice == Choice::kNamed && function.name != tools.named;
    const bool follows = tools.choice == Choice::kAuto ? function.strict : !function.loose;
    if (other || !follows || function.parameters.is_null()) continue;
    const Status status = CheckGrammarSource({GrammarKind::kJsonSchema, DumpJson(function.parameters)});
    if (!status.ok()) {
      const std::string param = fmt::format("tools[{}].function.parameters", i);
      return {InvalidArgument(fmt::format("{}: {}; or say \"strict\": false, and check the arguments", param, status.message())),
              param};
    }
  }
  return {};
}

}  // namespace

std::optional<GrammarSource> ToolGrammar(const ToolFields& tools, const ToolCallFormat& format, const GrammarSource* content,
                                         std::string* begun, BodyError* error) {
  const bool forced = tools.choice == Choice::kRequired || tools.choice == Choice::kNamed;
  const bool strict = std::ranges::any_of(tools.functions, &ToolFunction::strict);
  if (!forced && !strict && !content) return std::nullopt;
  *error = CheckSchemas(tools);
  if (content && error->status.ok()) *error = {CheckGrammarSource(*content), "response_format"};
  if (!error->status.ok()) return std::nullopt;

  const Writer writer(tools, format);
  ordered_json output;
  if (forced) {
    const bool has_mark = format.style != ToolCallStyle::kLlama;
    if (has_mark && writer.hides_marks()) *begun = std::string(format.begin) + (format.style == ToolCallStyle::kHermes ? "\n" : "");
    output = writer.Calls(!begun->empty());
  } else if (writer.hides_marks() && format.style != ToolCallStyle::kLlama) {
    const char* const param = content ? "response_format" : "tools";
    *error = {InvalidArgument(fmt::format("the model marks a call with the control token {}, so {} cannot be kept where it is free "
                                          "to call or not: let tool_choice be required, or leave {} out",
                                          format.begin, content ? "the form of the output" : "\"strict\": true",
                                          content ? "response_format, regex and grammar" : "strict")),
              param};
    return std::nullopt;
  } else if (content) {
    output = Either(FormatOf(*content), writer.Calls(false));
  } else {
    output = writer.TextWithCalls();
  }
  return GrammarSource{GrammarKind::kStructuralTag, DumpJson({{"type", "structural_tag"}, {"format", std::move(output)}})};
}

}  // namespace coppice::openai
