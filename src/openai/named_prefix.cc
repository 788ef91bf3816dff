#include "openai/named_prefix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/quoted.h"
#include "openai/prompt_fields.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kLongestTtl = 10.0 * 365 * 86'400;  // seconds; a clock of nanoseconds holds it

void TakePromptOrMessages(FieldReader& fields, const ordered_json* tools, NamedPrefix* prefix) {
  const json* prompt = fields.Find("prompt");
  const json* messages = fields.Find("messages");
  if ((prompt == nullptr) == (messages == nullptr)) {
    constexpr std::string_view kExpected = "one of prompt (for completions) and messages (for chats)";
    return fields.Fail("prompt", InvalidArgument(fmt::format("there are {}, expected {}", prompt ? "both" : "none", kExpected)));
  }
  if (messages) {
    prefix->messages = TakeMessages(fields);
    prefix->tools = TakeToolList(fields, tools);
    return;
  }
  std::optional<Prompt> parsed = ParsePrompt(*prompt);
  if (!parsed) return fields.Expect("prompt", *prompt, "a string or a list of token ids");
  prefix->text = std::move(parsed->text);
  prefix->prompt_ids = std::move(parsed->ids);
}

}  // namespace

Status CheckPrefixName(std::string_view name) {
  constexpr size_t kLongest = 64;
  const auto allowed = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) || c == '.' || c == '_' || c == '-'); };
  if (!name.empty() && name.size() <= kLongest && std::ranges::all_of(name, allowed)) return OkStatus();
  return InvalidArgument(
      fmt::format("the name of the prefix is {}, expected 1 to {} of A-Z a-z 0-9 . _ -", Quoted(std::string(name)), kLongest));
}

std::optional<NamedPrefix> ParseNamedPrefix(const json& body, BodyError* error, const ordered_json* tools) {
  if (!body.is_object()) return RefuseBody(body, error);
  NamedPrefix prefix;
  FieldReader fields(body);
  TakePromptOrMessages(fields, tools, &prefix);
  fields.Take("cache_salt", &prefix.cache_salt);
  fields.Take("cache_private_begin", &prefix.cache_private_begin);
  fields.Take("public", &prefix.is_public);
  if (prefix.is_public && !prefix.cache_salt.empty()) {
    fields.Fail("public", InvalidArgument("public is true and there is a cache_salt, which keeps the prefix from others: leave one "
                                          "of them out"));
  }
  fields.Take("ttl_seconds", &prefix.ttl_seconds);
  if (prefix.ttl_seconds && !(*prefix.ttl_seconds > 0 && *prefix.ttl_seconds <= kLongestTtl))
    fields.Expect("ttl_seconds", *prefix.ttl_seconds, fmt::format("a number above 0 and at most {:.0f}", kLongestTtl));
  std::string model;
  fields.Take("model", &model);
  *error = fields.Finish();
  if (!error->status.ok()) return std::nullopt;
  return prefix;
}

ordered_json ToBody(const NamedPrefix& prefix) {
  ordered_json body;
  if (prefix.chat()) {
    for (const ChatMessage& message : prefix.messages) body["messages"].push_back(ToMessage(message));
    if (prefix.tools.used()) body["tools"] = prefix.tools.list;
  } else if (prefix.text) {
    body["prompt"] = *prefix.text;
  } else {
    body["prompt"] = prefix.prompt_ids;
  }
  if (!prefix.cache_salt.empty()) body["cache_salt"] = prefix.cache_salt;
  if (prefix.cache_private_begin != 0) body["cache_private_begin"] = prefix.cache_private_begin;
  if (prefix.is_public) body["public"] = true;
  if (prefix.ttl_seconds) body["ttl_seconds"] = *prefix.ttl_seconds;
  return body;
}

}  // namespace coppice::openai
