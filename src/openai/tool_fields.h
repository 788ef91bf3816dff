// Fields of a chat completion's request about tools: `tools`, `tool_choice`, `parallel_tool_calls`. Their forms are checked here;
// what the model makes of them is others' (tool_call_format.h, tool_grammar.h).
// Layer: openai.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "openai/field_reader.h"

namespace coppice::openai {

inline constexpr size_t kMaxTools = 128;

struct ToolFunction {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema; null: it has none
  bool strict = false;                // its arguments follow the schema, whether the client or the model chose the call
  bool loose = false;                 // "strict": false was said: they need not even where a call is required
};

struct ToolFields {
  enum class Choice : uint8_t { kNone, kAuto, kRequired, kNamed };

  std::vector<ToolFunction> functions;
  nlohmann::ordered_json list;  // the field `tools`, as templates take it
  Choice choice = Choice::kAuto;
  std::string named;  // with kNamed: the function
  bool parallel = true;

  // The model is shown the tools, and what it calls is reported as calls. With kNone it is not, so that it calls none.
  bool used() const { return !functions.empty() && choice != Choice::kNone; }
};

// All three of them. `ordered`: the body's `tools` with its members in the client's order, which the model sees; null: as the body
// has them. `of_prefix`: what the request's prefix brings, instead of which it may not bring others.
ToolFields TakeTools(FieldReader& fields, const nlohmann::ordered_json* ordered, const ToolFields& of_prefix = {});
// `tools` alone: of a prefix.
ToolFields TakeToolList(FieldReader& fields, const nlohmann::ordered_json* ordered);

}  // namespace coppice::openai
