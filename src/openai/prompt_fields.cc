#include "openai/prompt_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace coppice::openai {
namespace {

using nlohmann::json;

// Text of a message: a string, or a list of parts of type text.
std::optional<std::string> ContentOf(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const json& part : content) {
    if (!part.is_object() || part.value("type", json()) != "text" || !part.value("text", json()).is_string()) return std::nullopt;
    text += part["text"].get<std::string>();
  }
  return text;
}

}  // namespace

std::optional<std::vector<int32_t>> TokenIds(const json& value) {
  std::vector<int32_t> ids;
  for (const json& id : value) {
    if (!id.is_number_integer()) return std::nullopt;
    const int64_t value = id.get<int64_t>();  // what is too large becomes negative
    if (value < 0 || value > INT32_MAX) return std::nullopt;
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

std::optional<Prompt> ParsePrompt(const json& prompt) {
  if (prompt.is_string()) return Prompt{.text = prompt.get<std::string>()};
  if (!prompt.is_array() || prompt.empty()) return std::nullopt;
  std::optional<std::vector<int32_t>> ids = TokenIds(prompt);
  if (!ids) return std::nullopt;
  return Prompt{.ids = *std::move(ids)};
}

std::vector<Prompt> TakePrompts(FieldReader& fields) {
  constexpr std::string_view kExpected = "a string, a list of token ids, or a list of those";
  std::vector<Prompt> prompts;
  const json* value = fields.Find("prompt");
  if (!value) {
    fields.Fail("prompt", InvalidArgument(fmt::format("prompt is missing, expected {}", kExpected)));
    return prompts;
  }
  const bool is_list = value->is_array() && !value->empty() && !value->front().is_number();
  if (is_list && value->size() > kMaxPrompts) {
    fields.Fail("prompt", InvalidArgument(fmt::format("prompt is a list of {} prompts, expected at most {}; send several requests",
                                                      value->size(), kMaxPrompts)));
    return prompts;
  }
  const auto add = [&](const json& prompt) {
    std::optional<Prompt> parsed = ParsePrompt(prompt);
    if (parsed) {
      prompts.push_back(*std::move(parsed));
    } else {
      fields.Expect("prompt", prompt, kExpected);
    }
  };
  if (!is_list) {
    add(*value);
  } else {
    for (const json& prompt : *value) add(prompt);
  }
  return prompts;
}

std::vector<ChatMessage> TakeMessages(FieldReader& fields) {
  const json* list = fields.Find("messages");
  std::vector<ChatMessage> messages;
  if (!list || !list->is_array() || list->empty()) {
    fields.Expect("messages", list ? *list : json(), "a list of messages with role and content");
    return messages;
  }
  for (const json& message : *list) {
    const std::string place = fmt::format("messages[{}]", messages.size());
    if (!message.is_object()) {
      fields.Expect(place.c_str(), message, "an object with role and content");
      break;
    }
    FieldReader parts(message);
    ChatMessage& added = messages.emplace_back();
    parts.Take("role", &added.role);
    if (added.role.empty()) parts.Expect("role", json(), "system, user or assistant");
    const json* content = parts.Find("content");
    const std::optional<std::string> text = content ? ContentOf(*content) : std::nullopt;
    if (!text) parts.Expect("content", content ? *content : json(), "a string or a list of text parts");
    added.content = text.value_or("");
    if (BodyError error = parts.Finish(); !error.status.ok()) {
      fields.Fail((place + "." + error.param).c_str(), InvalidArgument(place + ": " + error.status.message()));
      break;
    }
  }
  return messages;
}

}  // namespace coppice::openai
