#include "openai/prompt_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/json.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Text of a message: a string, or a list of parts of type text, or refusal, as an assistant's may be.
std::optional<std::string> ContentOf(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const json& part : content) {
    const json type = part.is_object() ? part.value("type", json()) : json();
    if (type != "text" && type != "refusal") return std::nullopt;
    const auto found = part.find(type.get_ref<const std::string&>());
    if (found == part.end() || !found->is_string()) return std::nullopt;
    text += found->get_ref<const std::string&>();
  }
  return text;
}

// The arguments of a call as templates take them: a JSON object, or the text where it is none, as a model may have written it.
Result<ordered_json> ArgumentsOf(const std::string& text) {
  if (text.empty()) return ordered_json::object();
  Result<ordered_json> arguments = ParseOrderedJson(text);
  if (arguments.ok() && arguments->is_object()) return arguments;
  // Arguments too large or too deep for a template are refused; a text that is no JSON stays a text.
  if (!arguments.ok() && arguments.status().code() == StatusCode::kInvalidArgument) return arguments.status();
  return ordered_json(text);
}

// An entry of tool_calls, which lies at `place`; `error` says which field is wrong.
ordered_json CallOf(const FieldReader& message, const json& call, const std::string& place, BodyError* error) {
  if (!call.is_object()) {
    *error = {InvalidArgument(fmt::format("it is {}, expected an object with id, type and function", Shown(call))), ""};
    return nullptr;
  }
  FieldReader entry = message.Inner(call, place);
  std::string id, type = "function", name, arguments;
  entry.Take("id", &id);
  entry.Take("type", &type);
  entry.Find("index");  // of streams, whose parts clients put together
  if (type != "function") entry.Expect("type", type, "\"function\"");
  const json* parts = entry.Find("function");
  if (!parts || !parts->is_object()) entry.Expect("function", parts ? *parts : json(), "an object with name and arguments");
  *error = entry.Finish();
  if (!error->status.ok()) return nullptr;
  FieldReader fields = entry.Inner(*parts, "function");
  fields.Take("name", &name);
  if (name.empty()) fields.Expect("name", name, "the name of a function");
  fields.Take("arguments", &arguments);
  const Result<ordered_json> value = ArgumentsOf(arguments);
  if (!value.ok()) fields.Fail("arguments", value.status());
  *error = fields.Finish();
  if (!error->status.ok()) {
    error->param = Within("function", error->param);
    return nullptr;
  }
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", *value}}}};
}

// Adds what an assistant called. An empty list is as good as none.
void TakeCalls(FieldReader& parts, bool may_call, ordered_json* added) {
  constexpr const char* kName = "tool_calls";
  const json* list = parts.Find(kName);
  if (!list || *list == json::array()) return;
  if (!may_call) return parts.Expect(kName, *list, "none: an assistant calls tools");
  if (!list->is_array()) return parts.Expect(kName, *list, "a list of calls");
  ordered_json calls = ordered_json::array();
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = fmt::format("tool_calls[{}]", i);
    BodyError error;
    calls.push_back(CallOf(parts, (*list)[i], place, &error));
    if (!error.status.ok()) return parts.FailWithin(place, error);
  }
  (*added)[kName] = std::move(calls);
}

// Fields that only an assistant's messages have, as answers have them.
void TakeAnswered(FieldReader& parts, ChatMessage* taken, ordered_json* added) {
  parts.Find("annotations");  // where texts that it quotes come from: no words of its own
  std::string refusal, reasoning;
  parts.Take("refusal", &refusal);
  if (taken->content.empty()) {
    taken->content = std::move(refusal);
  } else if (!refusal.empty()) {
    parts.Unknown("refusal", refusal);
  }
  // Two names of what a model thought.
  for (const char* const name : {"reasoning", "reasoning_content"}) parts.Take(name, &reasoning);
  if (!reasoning.empty()) (*added)["reasoning_content"] = std::move(reasoning);
  for (const auto& [name, instead] : {std::pair("audio", "content"), std::pair("function_call", "tool_calls")}) {
    if (const json* value = parts.Find(name)) parts.Expect(name, *value, fmt::format("none; use {}", instead));
  }
}

ChatMessage MessageOf(FieldReader parts, const ReadsField& reads, BodyError* error) {
  ChatMessage taken;
  ordered_json added;
  parts.Take("role", &taken.role);
  if (taken.role.empty()) parts.Expect("role", json(), "system, developer, user, assistant or tool");
  if (const json* content = parts.Find("content")) {
    std::optional<std::string> text = ContentOf(*content);
    if (!text) parts.Expect("content", *content, "a string or a list of text parts");
    taken.content = std::move(text).value_or("");
  }
  const bool is_assistant = taken.role == "assistant";
  TakeCalls(parts, is_assistant, &added);
  if (is_assistant) TakeAnswered(parts, &taken, &added);
  if (taken.role == "tool") {
    std::string id;
    parts.Take("tool_call_id", &id);
    if (id.empty()) parts.Expect("tool_call_id", json(id), "the id of the call that this is the result of");
    added["tool_call_id"] = id;
  }
  if (parts.Find("name")) {
    std::string name;
    parts.Take("name", &name);
    added["name"] = name;
  }
  for (const auto& [name, value] : parts.body().items()) {
    const bool goes_along = reads && !parts.IsKnown(name) && reads(name);
    if (!goes_along || !parts.Find(name.c_str())) continue;
    added[name] = value;
  }
  if (!added.is_null()) taken.fields = DumpJson(std::move(added));
  *error = parts.Finish();
  return taken;
}

}  // namespace

std::optional<std::vector<int32_t>> TokenIds(const json& value) {
  std::vector<int32_t> ids;
  for (const json& id : value) {
    if (!IsWhole(id)) return std::nullopt;
    const double number = id.get<double>();  // exact where it is one of an id
    if (number < 0 || number > INT32_MAX) return std::nullopt;
    ids.push_back(static_cast<int32_t>(number));
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

Status CheckRepeated(std::string_view subject, size_t bytes, std::string_view where, size_t prompts) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  if (prompts < 2 || bytes <= kMostBytes / prompts) return OkStatus();
  return InvalidArgument(
      fmt::format("{} {} bytes, {} each of {} prompts; expected {} bytes together at most: send several requests", subject, bytes,
                  where, prompts, kMostBytes));
}

std::shared_ptr<const FimContext> TakeSuffix(FieldReader& fields, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer) {
  constexpr const char* kName = "suffix";
  auto context = std::make_shared<FimContext>();
  fields.Take(kName, &context->suffix);
  if (context->suffix.empty()) return nullptr;
  if (!std::ranges::all_of(prompts, [](const Prompt& prompt) { return prompt.text.has_value(); })) {
    fields.Fail(kName,
                InvalidArgument("suffix stands behind a prompt that is text, and a prompt is a list of token ids; write what "
                                "the model is to see into the ids, and leave suffix out"));
  } else if (tokenizer) {
    if (Status able = CheckFim(*tokenizer); !able.ok()) fields.Fail(kName, InvalidArgument("suffix: " + able.message()));
  }
  const Status fits =
      CheckRepeated("suffix has", context->suffix.size(), "behind", prompts.size());  // each is tokenised with all of it
  if (!fits.ok()) fields.Fail(kName, fits);
  return context;
}

std::vector<ChatMessage> TakeMessages(FieldReader& fields, const ReadsField& reads) {
  const json* list = fields.Find("messages");
  std::vector<ChatMessage> messages;
  if (!list || !list->is_array() || list->empty()) {
    fields.Expect("messages", list ? *list : json(), "a list of messages with role and content");
    return messages;
  }
  if (list->size() > kMaxMessages) {
    fields.Fail("messages",
                InvalidArgument(fmt::format("messages has {} entries, expected at most {}", list->size(), kMaxMessages)));
    return messages;
  }
  for (const json& message : *list) {
    const std::string place = fmt::format("messages[{}]", messages.size());
    if (!message.is_object()) {
      fields.Expect(place.c_str(), message, "an object with role and content");
      break;
    }
    BodyError error;
    messages.push_back(MessageOf(fields.Inner(message, place), reads, &error));
    if (!error.status.ok()) {
      fields.FailWithin(place, error);
      break;
    }
  }
  return messages;
}

ordered_json ToMessage(const ChatMessage& message) {
  ordered_json written = {{"role", message.role}, {"content", message.content}};
  if (message.fields.empty()) return written;
  const ordered_json fields = ordered_json::parse(message.fields);
  for (const auto& [name, value] : fields.items()) written[name] = value;
  if (!written.contains("tool_calls")) return written;
  for (ordered_json& call : written["tool_calls"]) {
    ordered_json& arguments = call["function"]["arguments"];
    if (!arguments.is_string()) arguments = DumpJson(std::move(arguments));
  }
  return written;
}

}  // namespace coppice::openai
