#include "openai/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/check.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

bool IsName(const std::string& name) {
  constexpr size_t kLongest = 64;
  const auto allowed = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) || c == '_' || c == '-' || c == '.'); };
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, allowed);
}

// One entry of `tools`, which lies at `place`. The model sees all of it: templates write tools whole.
BodyError CheckTool(const FieldReader& body, const json& tool, const std::string& place, ToolFunction* function) {
  if (!tool.is_object())
    return {InvalidArgument(fmt::format("it is {}, expected an object with type and function", Shown(tool))), ""};
  FieldReader entry = body.Inner(tool, place);
  std::string type;
  entry.Take("type", &type);
  if (type != "function") entry.Expect("type", type, "\"function\"");
  const json* parts = entry.Find("function");
  if (!parts || !parts->is_object()) entry.Expect("function", parts ? *parts : json(), "an object with name and parameters");
  if (!entry.ok()) return entry.Finish();
  FieldReader fields = entry.Inner(*parts, "function");
  std::string description;
  fields.Take("name", &function->name);
  if (fields.ok() && !IsName(function->name)) fields.Expect("name", function->name, "1 to 64 of A-Z a-z 0-9 _ - .");
  fields.Take("description", &description);
  if (const json* strict = fields.Find("strict")) {
    fields.Take("strict", &function->strict);
    function->loose = *strict == false;
  }
  if (const json* parameters = fields.Find("parameters"); parameters && !parameters->is_object())
    fields.Expect("parameters", *parameters, "a JSON schema");
  constexpr bool kShown = true;
  if (BodyError error = fields.Finish(kShown); !error.status.ok()) return {error.status, Within("function", error.param)};
  return entry.Finish(kShown);
}

void TakeList(FieldReader& fields, const ordered_json* ordered, ToolFields* tools) {
  constexpr const char* kName = "tools";
  const json* list = fields.Find(kName);
  if (!list) return;
  if (!list->is_array() || list->size() > kMaxTools)
    return fields.Expect(kName, list->is_array() ? json(list->size()) : *list,
                         fmt::format("a list of at most {} tools", kMaxTools));
  tools->list = ordered ? *ordered : ordered_json(*list);
  COPPICE_CHECK(tools->list.is_array() && tools->list.size() == list->size());  // of the same text
  for (size_t i = 0; i < list->size(); ++i) {
    ToolFunction function;
    const std::string place = fmt::format("tools[{}]", i);
    if (const BodyError error = CheckTool(fields, (*list)[i], place, &function); !error.status.ok())
      return fields.FailWithin(place, error);
    if (std::ranges::find(tools->functions, function.name, &ToolFunction::name) != tools->functions.end())
      return fields.Fail(kName, InvalidArgument(fmt::format("tools has the function {} twice; give each a name of its own",
                                                            Shown(function.name))));
    function.parameters = tools->list[i]["function"].value("parameters", ordered_json());
    tools->functions.push_back(std::move(function));
  }
}

void TakeChoice(FieldReader& fields, ToolFields* tools) {
  using Choice = ToolFields::Choice;
  constexpr const char* kName = "tool_choice";
  constexpr std::string_view kExpected = R"(none, auto, required or {"type": "function", "function": {"name": ...}})";
  const json* choice = fields.Find(kName);
  if (!choice) return;
  if (choice->is_object()) {
    const json function = choice->value("function", json());
    const json name = function.is_object() ? function.value("name", json()) : json();
    if (choice->value("type", json()) != "function" || choice->size() != 2 || !name.is_string() || function.size() != 1)
      return fields.Expect(kName, *choice, kExpected);
    tools->choice = Choice::kNamed;
    tools->named = name.get<std::string>();
    if (std::ranges::find(tools->functions, tools->named, &ToolFunction::name) == tools->functions.end())
      return fields.Expect(kName, tools->named, "the name of one of the tools");
    return;
  }
  if (*choice == "none") {
    tools->choice = Choice::kNone;
  } else if (*choice == "required") {
    tools->choice = Choice::kRequired;
    if (tools->functions.empty()) fields.Expect(kName, *choice, "none or auto, since there are no tools");
  } else if (*choice != "auto") {
    fields.Expect(kName, *choice, kExpected);
  }
}

}  // namespace

ToolFields TakeToolList(FieldReader& fields, const ordered_json* ordered) {
  ToolFields tools;
  TakeList(fields, ordered, &tools);
  return tools;
}

ToolFields TakeTools(FieldReader& fields, const ordered_json* ordered, const ToolFields& of_prefix) {
  ToolFields tools = of_prefix;
  if (of_prefix.functions.empty()) {
    tools = TakeToolList(fields, ordered);
  } else if (fields.Find("tools")) {
    fields.Fail("tools", InvalidArgument("the prefix has tools, which are the request's too: leave tools out"));
  }
  TakeChoice(fields, &tools);
  fields.Take("parallel_tool_calls", &tools.parallel);
  return tools;
}

}  // namespace coppice::openai
