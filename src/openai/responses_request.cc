#include "openai/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "core/json.h"
#include "openai/field_reader.h"
#include "openai/prompt_fields.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kLogprobsOfText = "message.output_text.logprobs";

// A field that /v1/responses cannot follow, or that is another route's. `neutral` is JSON: a value that asks for what is done
// anyway, beside null.
struct Refused {
  const char* name;
  const char* neutral;
  const char* instead;
};
constexpr Refused kRefused[] = {
    // Those that need a server which keeps responses, or works without a client
    {"background", "false", "send the request without it and wait, or stream"},
    {"conversation", "null", "no conversations are kept here: send all of its items in input"},
    {"previous_response_id", "null",
     "no responses are kept here: send the earlier input and output items in input, before the new ones"},
    {"prompt", "null", "no prompts are kept here: write it out in instructions and input"},
    {"store", "false", "no responses are kept here: leave store out, and send the conversation in input each time"},
    {"context_management", "[]", "leave it out, and shorten input"},
    {"moderation", "null", "leave it out"},
    {"truncation", R"("disabled")", "leave it out, and shorten input where it is longer than the context"},
    // A chat's, under other names
    {"logprobs", "false", R"(use include ["message.output_text.logprobs"])"},
    {"max_completion_tokens", "null", "use max_output_tokens"},
    {"max_tokens", "null", "use max_output_tokens"},
    {"messages", "null", "use input"},
    {"reasoning_effort", "null", "use reasoning.effort"},
    {"response_format", "null", "use text.format"},
    {"verbosity", "null", "use text.verbosity"},
    // Fields that have no place in an answer with one sample
    {"dedup", "false", "use /v1/chat/completions"},
    {"n", "1", "send several requests, which share their input, or use /v1/chat/completions"},
    {"rank", "false", "use /v1/chat/completions"},
    {"return_token_ids", "false", "use /v1/chat/completions"},
    {"vote", "null", "use /v1/chat/completions"},
};

void Refuse(FieldReader& fields) {
  for (const Refused& refused : kRefused) {
    const json* value = fields.Find(refused.name);
    const json neutral = json::parse(refused.neutral);
    if (!value || *value == neutral) continue;
    const std::string expected = neutral.is_null() ? "none" : fmt::format("{} or none", refused.neutral);
    fields.Fail(refused.name,
                InvalidArgument(fmt::format("{} is {}, expected {}; {}", refused.name, Shown(*value), expected, refused.instead)));
  }
}

// A type of parts of a message, and the member that has a part's text.
struct PartType {
  std::string_view type;
  const char* text;
};
constexpr PartType kMessageParts[] = {{"input_text", "text"}, {"output_text", "text"}, {"text", "text"}, {"refusal", "refusal"}};
constexpr PartType kReasoningParts[] = {{"reasoning_text", "text"}, {"summary_text", "text"}};

// The text of the field `name`, a string or a list of parts of these types, which follow each other. Absent is "". `others`: what
// an error says of parts of other types.
std::string JoinedText(FieldReader& item, const char* name, std::span<const PartType> types, std::string_view others) {
  const json* content = item.Find(name);
  std::string text;
  if (!content) return text;
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    item.Expect(name, *content, "a string or a list of parts");
    return text;
  }
  for (size_t i = 0; i < content->size(); ++i) {
    const json& part = (*content)[i];
    const json type = part.is_object() ? part.value("type", json()) : json();
    const auto found = std::ranges::find_if(types, [&](const PartType& known) { return type == known.type; });
    const bool has_text = found != types.end() && part.contains(found->text) && part.at(found->text).is_string();
    if (has_text) {
      text += part.at(found->text).get_ref<const std::string&>();
      continue;
    }
    std::string expected = "a part with a text, of type ";
    for (const PartType& known : types) expected += fmt::format("{}{}", &known == types.data() ? "" : ", ", known.type);
    item.Expect(fmt::format("{}[{}]", name, i).c_str(), part, expected.append(others));
    return text;
  }
  return text;
}

constexpr std::string_view kNoImages = ": images, files and audio are not read";

// Makes the chat of one body.
class Converter {
 public:
  Converter(const json& body, const ordered_json* tools, UnknownFieldsOf* unknown)
      : body_(body), ordered_tools_(tools), fields_(body, unknown) {}

  std::optional<ChatOfResponses> Convert(BodyError* error) {
    Refuse(fields_);
    TakeInput();
    TakeText();
    TakeReasoning();
    TakeTools();
    TakeToolChoice();
    TakeInclude();
    for (const char* const name : {"max_tool_calls", "prompt_cache_options", "background_options"}) {
      fields_.Find(name);  // of tools, of caches and of work that are not here
    }
    // The answer repeats it.
    if (const json* metadata = fields_.Find("metadata"); metadata && !metadata->is_object())
      fields_.Expect("metadata", *metadata, "an object");
    if (const json* limit = fields_.Find("max_output_tokens")) chat()["max_completion_tokens"] = *limit;
    if (!fields_.ok()) {
      *error = fields_.TakeError();
      return std::nullopt;
    }
    for (const auto& [name, value] : body_.items()) {
      if (!fields_.IsKnown(name)) chat()[name] = value;
    }
    return std::move(made_);
  }

 private:
  json& chat() { return *made_.body; }
  json& messages() { return chat()["messages"]; }

  void TakeInput();
  void TakeItem(const json& item, int32_t index);
  void AddMessage(FieldReader& item, int32_t index);
  void AddCall(FieldReader& item, int32_t index);
  void AddCallOutput(FieldReader& item, int32_t index);
  void AddReasoning(FieldReader& item, int32_t index);
  json& AddMessage(json message, int32_t index);
  // The assistant's last message, which its next call joins; null: that call begins a message.
  json* OpenTurn();
  // An assistant's message for reasoning that nothing of the assistant follows.
  void EndReasoning();
  void TakeText();
  void TakeFormat(FieldReader& text);
  void TakeReasoning();
  void TakeTools();
  void TakeToolChoice();
  void TakeInclude();

  const json& body_;
  const ordered_json* ordered_tools_;
  FieldReader fields_;
  ChatOfResponses made_{.body = DismantledJson(json(json::object()))};
  std::string reasoning_;        // what the next message of the assistant begins with
  int32_t reasoning_item_ = -1;  // -1: there is none
};

void Converter::TakeInput() {
  constexpr std::string_view kExpected = "a string or a list of items";
  messages() = json::array();
  std::optional<std::string> instructions;
  fields_.Take("instructions", &instructions);
  if (instructions && !instructions->empty()) AddMessage({{"role", "system"}, {"content", *std::move(instructions)}}, -1);
  const json* input = fields_.Find("input");
  if (!input || *input == json::array()) return fields_.Expect("input", input ? *input : json(), kExpected);
  if (input->is_string()) {
    AddMessage({{"role", "user"}, {"content", *input}}, 0);
    return;
  }
  if (!input->is_array()) return fields_.Expect("input", *input, kExpected);
  if (input->size() > kMaxMessages)
    return fields_.Fail("input",
                        InvalidArgument(fmt::format("input has {} items, expected at most {}", input->size(), kMaxMessages)));
  for (size_t i = 0; i < input->size() && fields_.ok(); ++i) TakeItem((*input)[i], static_cast<int32_t>(i));
  EndReasoning();
}

void Converter::TakeItem(const json& item, int32_t index) {
  const std::string place = fmt::format("input[{}]", index);
  if (!item.is_object()) return fields_.Expect(place.c_str(), item, "an item, an object with type");
  FieldReader entry = fields_.Inner(item, place);
  std::string type = item.contains("role") ? "message" : "";
  entry.Take("type", &type);
  for (const char* const name : {"id", "status"}) entry.Find(name);  // of an answer that comes back
  bool others_go_along = false;
  if (type == "message") {
    others_go_along = true;
    AddMessage(entry, index);
  } else if (type == "function_call") {
    AddCall(entry, index);
  } else if (type == "function_call_output") {
    others_go_along = true;
    AddCallOutput(entry, index);
  } else if (type == "reasoning") {
    AddReasoning(entry, index);
  } else if (type == "item_reference") {
    entry.Expect("type", type, "an item itself: none are kept here that one could refer to");
  } else {
    entry.Expect("type", type, "message, function_call, function_call_output or reasoning");
  }
  const BodyError error = others_go_along ? entry.TakeError() : entry.Finish();
  if (!error.status.ok()) fields_.FailWithin(place, error);
}

void Converter::AddMessage(FieldReader& item, int32_t index) {
  std::string role;
  item.Take("role", &role);
  if (role.empty()) return item.Expect("role", json(role), "system, developer, user or assistant");
  if (role == "tool") return item.Expect("role", role, "another one; results of calls are items of type function_call_output");
  if (const json* calls = item.Find("tool_calls"))
    return item.Expect("tool_calls", *calls, "none; calls are items of type function_call");
  item.Find("phase");
  std::string content = JoinedText(item, "content", kMessageParts, kNoImages);
  const bool is_assistant = role == "assistant";
  json message = {{"role", std::move(role)}};
  bool has_others = false;
  for (const auto& [name, value] : item.body().items()) {
    if (item.IsKnown(name) || value.is_null()) continue;
    message[name] = value;
    has_others = true;
  }
  // Text behind calls is of the same turn, as a chat's message has both.
  json* const turn = is_assistant && !has_others ? OpenTurn() : nullptr;
  if (turn && turn->contains("tool_calls")) {
    turn->at("content").get_ref<std::string&>() += content;
    return;
  }
  message["content"] = std::move(content);
  if (!is_assistant) EndReasoning();
  AddMessage(std::move(message), index);
}

void Converter::AddCall(FieldReader& item, int32_t index) {
  std::string id, name, arguments;
  item.Take("call_id", &id);
  item.Take("name", &name);
  item.Take("arguments", &arguments);
  if (id.empty()) item.Expect("call_id", json(id), "the id of the call, which its output names");
  if (name.empty()) item.Expect("name", json(name), "the name of a function");
  for (const char* const ignored : {"caller", "namespace", "async"}) item.Find(ignored);
  if (!item.ok()) return;
  json* turn = OpenTurn();
  if (!turn) turn = &AddMessage({{"role", "assistant"}, {"content", ""}}, index);
  json& calls = (*turn)["tool_calls"];
  if (calls.is_null()) calls = json::array();
  calls.push_back({{"id", std::move(id)},
                   {"type", "function"},
                   {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}});
  made_.origins.back().calls.push_back(index);
}

void Converter::AddCallOutput(FieldReader& item, int32_t index) {
  std::string id;
  item.Take("call_id", &id);
  if (id.empty()) return item.Expect("call_id", json(id), "the call_id of the function_call that this is the result of");
  if (!item.Find("output")) return item.Expect("output", json(), "a string or a list of parts");
  std::string output = JoinedText(item, "output", kMessageParts, kNoImages);
  for (const char* const ignored : {"caller", "namespace"}) item.Find(ignored);
  json message = {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(output)}};
  for (const auto& [name, value] : item.body().items()) {
    if (!item.IsKnown(name) && !message.contains(name)) message[name] = value;
  }
  EndReasoning();
  AddMessage(std::move(message), index);
}

void Converter::AddReasoning(FieldReader& item, int32_t index) {
  const std::string content = JoinedText(item, "content", kReasoningParts, "");
  const std::string summary = JoinedText(item, "summary", kReasoningParts, "");
  item.Find("encrypted_content");  // of a model that is not here
  reasoning_ += content.empty() ? summary : content;
  if (reasoning_item_ < 0) reasoning_item_ = index;
}

json& Converter::AddMessage(json message, int32_t index) {
  if (message.at("role") == "assistant" && reasoning_item_ >= 0) {
    if (!reasoning_.empty() && !message.contains("reasoning_content")) message["reasoning_content"] = reasoning_;
    reasoning_.clear();
    reasoning_item_ = -1;
  }
  messages().push_back(std::move(message));
  made_.origins.push_back({.item = index});
  return messages().back();
}

json* Converter::OpenTurn() {
  const bool is_open = reasoning_item_ < 0 && !messages().empty() && messages().back().at("role") == "assistant";
  return is_open ? &messages().back() : nullptr;
}

void Converter::EndReasoning() {
  if (reasoning_item_ >= 0 && !reasoning_.empty()) AddMessage({{"role", "assistant"}, {"content", ""}}, reasoning_item_);
  reasoning_item_ = -1;
}

void Converter::TakeText() {
  const json* given = fields_.Find("text");
  if (!given) return;
  if (!given->is_object()) return fields_.Expect("text", *given, R"(an object such as {"format": {"type": "json_object"}})");
  FieldReader text = fields_.Inner(*given, "text");
  TakeFormat(text);
  if (const json* verbosity = text.Find("verbosity")) chat()["verbosity"] = *verbosity;
  if (const BodyError error = text.Finish(); !error.status.ok()) fields_.FailWithin("text", error);
}

void Converter::TakeFormat(FieldReader& text) {
  constexpr std::string_view kExpected = "an object whose type is text, json_object or json_schema, this one with name and schema";
  const json* format = text.Find("format");
  if (!format) return;
  const json type = format->is_object() ? format->value("type", json()) : json();
  const bool has_schema = type == "json_schema";
  if (has_schema ? !format->value("schema", json()).is_object() : type != "text" && type != "json_object")
    return text.Expect("format", *format, kExpected);
  json chosen = {{"type", type}};
  if (has_schema) {
    chosen["json_schema"] = *format;
    chosen["json_schema"].erase("type");
  } else {
    FieldReader parts = text.Inner(*format, "format");
    parts.Find("type");
    if (const BodyError error = parts.Finish(); !error.status.ok()) return text.FailWithin("format", error);
  }
  chat()["response_format"] = std::move(chosen);
}

void Converter::TakeReasoning() {
  const json* given = fields_.Find("reasoning");
  if (!given) return;
  if (!given->is_object()) return fields_.Expect("reasoning", *given, R"(an object such as {"effort": "low"})");
  FieldReader reasoning = fields_.Inner(*given, "reasoning");
  if (const json* effort = reasoning.Find("effort")) chat()["reasoning_effort"] = *effort;
  if (const BodyError error = reasoning.Finish(); !error.status.ok()) fields_.FailWithin("reasoning", error);
}

// A function as chats have it: all but its type lies under `function`.
template <class Json>
Json NestedTool(const Json& tool) {
  Json function = tool;
  function.erase("type");
  Json nested = Json::object();
  nested["type"] = "function";
  nested["function"] = std::move(function);
  return nested;
}

void Converter::TakeTools() {
  const json* list = fields_.Find("tools");
  if (!list) return;
  if (!list->is_array()) return fields_.Expect("tools", *list, "a list of tools");
  json nested = json::array();
  for (const json& tool : *list) {
    const std::string place = fmt::format("tools[{}]", nested.size());
    const json type = tool.is_object() ? tool.value("type", json()) : json();
    if (!tool.is_object()) return fields_.Expect(place.c_str(), tool, "an object with type, name and parameters");
    if (type != "function") {
      return fields_.Fail(place + ".type",
                          InvalidArgument(fmt::format("{}: type is {}, expected \"function\": other tools are run by "
                                                      "OpenAI's servers, and not here",
                                                      place, Shown(type))));
    }
    if (tool.contains("function")) {
      return fields_.Fail(place + ".function", InvalidArgument(fmt::format(
                                                   "{}: function is {}, expected its name, description and parameters beside type",
                                                   place, Shown(tool.at("function")))));
    }
    nested.push_back(NestedTool(tool));
  }
  chat()["tools"] = std::move(nested);
  if (!ordered_tools_) return;
  made_.tools.emplace(ordered_json(ordered_json::array()));
  for (const ordered_json& tool : *ordered_tools_) (**made_.tools).push_back(NestedTool(tool));
}

void Converter::TakeToolChoice() {
  const json* choice = fields_.Find("tool_choice");
  if (!choice) return;
  if (*choice == "none" || *choice == "auto" || *choice == "required") {
    chat()["tool_choice"] = *choice;
    return;
  }
  const json name = choice->is_object() ? choice->value("name", json()) : json();
  if (!name.is_string() || choice->value("type", json()) != "function" || choice->size() != 2)
    return fields_.Expect("tool_choice", *choice, R"(none, auto, required or {"type": "function", "name": ...})");
  chat()["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
}

void Converter::TakeInclude() {
  // Parts of items that no answer of this server has, but for the first.
  constexpr const char* kKnown[] = {kLogprobsOfText,
                                    "reasoning.encrypted_content",
                                    "code_interpreter_call.outputs",
                                    "computer_call_output.output.image_url",
                                    "file_search_call.results",
                                    "message.input_image.image_url",
                                    "web_search_call.action.sources",
                                    "web_search_call.results"};
  bool logprobs = false;
  if (const json* include = fields_.Find("include")) {
    const json list = include->is_array() ? *include : json::array({*include});
    for (const json& name : list) {
      if (std::ranges::find(kKnown, name) == std::end(kKnown))
        return fields_.Expect("include", *include, fmt::format("a list of names such as \"{}\"", kLogprobsOfText));
      logprobs |= name == kLogprobsOfText;
    }
  }
  if (logprobs) chat()["logprobs"] = true;
  const json* top = fields_.Find("top_logprobs");
  if (!top) return;
  if (!logprobs && *top != 0)
    return fields_.Expect("top_logprobs", *top, fmt::format("0 or absent where include has no \"{}\"", kLogprobsOfText));
  chat()["top_logprobs"] = *top;
}

// ---------------------------------------------------------------------------------------------------------------- names of fields

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

struct FieldNames {
  std::string_view chat, responses;
};
// A name that begins with another one comes before it.
constexpr FieldNames kNames[] = {{"max_completion_tokens", "max_output_tokens"},
                                 {"max_tokens", "max_output_tokens"},
                                 {"messages", "input"},
                                 {"reasoning_effort", "reasoning.effort"},
                                 {"response_format.json_schema", "text.format"},
                                 {"response_format", "text.format"},
                                 {"verbosity", "text.verbosity"}};

// Reads "NAME[INDEX]" at the beginning of `*text` and drops it.
std::optional<size_t> TakeIndex(std::string_view name, std::string_view* text) {
  std::string_view rest = *text;
  if (!rest.starts_with(name)) return std::nullopt;
  rest.remove_prefix(name.size());
  size_t index = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
  const auto digits = static_cast<size_t>(end - rest.data());
  if (error != std::errc() || digits == rest.size() || *end != ']') return std::nullopt;
  text->remove_prefix(name.size() + digits + 1);
  return index;
}

// Reads a place in the chat at the beginning of `*text` and drops it; "": there is none.
std::string TakePlace(const std::vector<ChatOfResponses::Origin>& origins, std::string_view* text) {
  if (const std::optional<size_t> tool = TakeIndex("tools[", text)) {
    if (text->starts_with(".function")) text->remove_prefix(9);
    return fmt::format("tools[{}]", *tool);
  }
  if (const std::optional<size_t> index = TakeIndex("messages[", text)) {
    if (*index >= origins.size()) return fmt::format("input[{}]", *index);  // of a prefix's messages and these
    const ChatOfResponses::Origin& origin = origins[*index];
    for (const std::string_view calls : {".tool_calls[", ": tool_calls["}) {
      std::string_view rest = *text;
      const std::optional<size_t> call = TakeIndex(calls, &rest);
      if (!call || *call >= origin.calls.size()) continue;
      if (rest.starts_with(".function")) rest.remove_prefix(9);
      *text = rest;
      return fmt::format("input[{}]", origin.calls[*call]);
    }
    if (text->starts_with(".tool_call_id")) text->remove_prefix(5);
    return origin.item < 0 ? "instructions" : fmt::format("input[{}]", origin.item);
  }
  for (const auto& [chat, responses] : kNames) {
    if (!text->starts_with(chat) || (text->size() > chat.size() && IsWord((*text)[chat.size()]))) continue;
    text->remove_prefix(chat.size());
    return std::string(responses);
  }
  return "";
}

// Text in quotes is a value and keeps its words.
std::string InOtherWords(std::string_view text, const std::vector<ChatOfResponses::Origin>& origins) {
  std::string renamed;
  bool quoted = false;
  while (!text.empty()) {
    const bool begins_word = renamed.empty() || !(IsWord(renamed.back()) || renamed.back() == '.');
    if (!quoted && begins_word) {
      if (const std::string place = TakePlace(origins, &text); !place.empty()) {
        renamed += place;
        continue;
      }
    }
    if (quoted && text.front() == '\\' && text.size() > 1) {
      renamed += text.substr(0, 2);
      text.remove_prefix(2);
      continue;
    }
    quoted ^= text.front() == '"';
    renamed += text.front();
    text.remove_prefix(1);
  }
  return renamed;
}

}  // namespace

std::string ChatOfResponses::Renamed(std::string_view text) const { return InOtherWords(text, origins); }

BodyError ChatOfResponses::Renamed(const BodyError& error) const {
  return {Status(error.status.code(), Renamed(error.status.message())), Renamed(error.param)};
}

BodyError InWordsOfResponses(const BodyError& error) {
  return {Status(error.status.code(), InOtherWords(error.status.message(), {})), InOtherWords(error.param, {})};
}

std::optional<ChatOfResponses> ToChat(const json& body, const ordered_json* tools, UnknownFieldsOf* unknown, BodyError* error) {
  return Converter(body, tools, unknown).Convert(error);
}

namespace {

// 0.7 and not 0.699999988: the shortest text that is this float.
double Shortest(float value) { return std::isfinite(value) ? json::parse(fmt::format("{}", value)).get<double>() : value; }

}  // namespace

ResponsesForm FormOf(const json& body, const ordered_json* tools, const std::string& schema, const SamplingParams& sampling) {
  const auto field = [&](const char* name, json absent = json()) {
    const auto found = body.find(name);
    return found == body.end() || found->is_null() ? std::move(absent) : *found;
  };
  const json text = field("text", json::object());
  const json format = text.value("format", json());
  ordered_json reported_format = {{"type", "text"}};
  if (!format.is_null()) {
    for (const char* const name : {"type", "name", "description", "strict"}) {
      if (format.contains(name)) reported_format[name] = format[name];
    }
    if (format.contains("schema"))
      reported_format["schema"] = schema.empty() ? ordered_json(format["schema"]) : ordered_json::parse(schema);
  }
  ordered_json reported_text = {{"format", std::move(reported_format)}};
  if (text.contains("verbosity")) reported_text["verbosity"] = text["verbosity"];
  const ordered_json reported_tools = tools && !tools->is_null() ? *tools : ordered_json(field("tools", json::array()));
  DismantledJson<ordered_json> echo(
      ordered_json{{"instructions", field("instructions")},
                   {"max_output_tokens", field("max_output_tokens")},
                   {"max_tool_calls", field("max_tool_calls")},
                   {"metadata", field("metadata", json::object())},
                   {"parallel_tool_calls", field("parallel_tool_calls", true)},
                   {"previous_response_id", nullptr},
                   {"prompt_cache_key", field("prompt_cache_key")},
                   {"reasoning", {{"effort", field("reasoning", json::object()).value("effort", json())}, {"summary", nullptr}}},
                   {"safety_identifier", field("safety_identifier")},
                   {"service_tier", "default"},
                   {"store", false},
                   {"temperature", Shortest(sampling.temperature)},
                   {"text", reported_text},
                   {"tool_choice", field("tool_choice", "auto")},
                   {"tools", reported_tools},
                   {"top_logprobs", field("top_logprobs", 0)},
                   {"top_p", Shortest(sampling.top_p)},
                   {"truncation", "disabled"},
                   {"user", field("user")}});
  const std::string members = DumpJson(std::move(*echo));
  return {.echo = members.substr(1, members.size() - 2)};
}

}  // namespace coppice::openai
