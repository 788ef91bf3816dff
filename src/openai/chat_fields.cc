#include "openai/chat_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace coppice::openai {
namespace {

using nlohmann::json;

constexpr const char* kVariables = "chat_template_kwargs";

// Variables of templates that the request has fields for, or that are the model's own.
bool IsReserved(std::string_view name) {
  constexpr std::string_view kReserved[] = {"messages",  "tools",     "add_generation_prompt", "continue_final_message",
                                            "bos_token", "eos_token", "chat_template"};
  return std::ranges::find(kReserved, name) != std::end(kReserved);
}

void TakeVariables(FieldReader& fields, const ChatRenderer* renderer, ChatFields* chat) {
  const json* given = fields.Find(kVariables);
  if (!given) return;
  if (!given->is_object())
    return fields.Expect(kVariables, *given, R"(an object of variables of the chat template, such as {"enable_thinking": false})");
  FieldReader variables = fields.Inner(*given, kVariables);
  for (const auto& [name, value] : given->items()) {
    if (IsReserved(name)) {
      variables.Fail(name, InvalidArgument(fmt::format("{} is no variable that a request sets here", name)));
    } else if (!renderer || !renderer->Mentions(name)) {
      variables.Unknown(name, value);
    } else {
      chat->variables[name] = value;
    }
  }
  if (!variables.ok()) fields.FailWithin(kVariables, variables.TakeError());
}

}  // namespace

ChatFields TakeChatFields(FieldReader& fields, const ChatRenderer* renderer) {
  ChatFields chat;
  TakeVariables(fields, renderer, &chat);
  // Variables that clients send as fields of their own.
  for (const char* const name : {"reasoning_effort", "verbosity", "enable_thinking", "documents"}) {
    const json* value = fields.Find(name);
    if (!value) continue;
    const bool is_of_the_api = std::string_view(name) == "reasoning_effort" || std::string_view(name) == "verbosity";
    if (renderer && renderer->Mentions(name)) {
      if (!chat.variables.contains(name)) chat.variables[name] = *value;
    } else if (!is_of_the_api) {
      fields.Unknown(name, *value);
    }
  }
  std::optional<bool> adds_prompt;
  fields.Take("add_generation_prompt", &adds_prompt);
  fields.Take("continue_final_message", &chat.continue_final_message);
  if (chat.continue_final_message && adds_prompt.value_or(false))
    fields.Expect("add_generation_prompt", true, "false: continue_final_message ends the prompt within the last message");
  chat.add_generation_prompt = adds_prompt.value_or(!chat.continue_final_message);
  return chat;
}

}  // namespace coppice::openai
