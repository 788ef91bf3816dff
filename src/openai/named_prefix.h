// The beginning of a prompt under a name: what a request may name instead of sending it.
// Layer: openai. Several applications in one process, each with its system prompt: RelayAttention appendix D.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "openai/body_error.h"
#include "openai/tool_fields.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {

struct NamedPrefix {
  std::optional<std::string> text;    // of completions
  std::vector<int32_t> prompt_ids;    // of completions, where there is no text
  std::vector<ChatMessage> messages;  // of chats; empty for completions
  ToolFields tools;                   // of chats: what the model is shown; a request adds its choice
  // As Request has them; requests with this prefix get them too.
  std::string cache_salt;
  int32_t cache_private_begin = 0;
  bool is_public = false;  // "public": all tenants may name and share it; without a salt. Text behind it is each tenant's own
  std::optional<double> ttl_seconds;  // how long it is kept; absent: for good
  std::vector<int32_t> token_ids;     // what it becomes (OpenAiRequestParser::EncodePrefix)

  bool chat() const { return !messages.empty(); }
};

// The prefix of that name; null: there is none.
using FindNamedPrefix = std::function<std::shared_ptr<const NamedPrefix>(const std::string& name)>;

// INVALID_ARGUMENT unless it is 1 to 64 letters, digits, '.', '_' and '-'.
Status CheckPrefixName(std::string_view name);

// A prefix without its token ids from a body with `prompt`, or `messages` and perhaps `tools`, and `cache_salt`,
// `cache_private_begin`, `public`, `ttl_seconds`. `tools`: that field of the body with its members in the order of the text
// (ToolsInOrder); null: they come in the order of `body`. On an error, `error->param` names the field.
std::optional<NamedPrefix> ParseNamedPrefix(const nlohmann::json& body, BodyError* error,
                                            const nlohmann::ordered_json* tools = nullptr);
// The body that ParseNamedPrefix makes the same prefix of.
nlohmann::ordered_json ToBody(const NamedPrefix& prefix);

}  // namespace coppice::openai
