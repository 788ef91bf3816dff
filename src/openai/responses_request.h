// The body of a request to OpenAI's /v1/responses, turned into that of a chat completion, so that both have the same limits,
// schemas, tools and rules for unknown fields. The server keeps no responses: a request brings its whole conversation. Layer:
// openai.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/runner/sampling.h"
#include "core/dismantle_json.h"
#include "openai/body_error.h"
#include "openai/unknown_fields.h"

namespace coppice::openai {

// The part of its request that an answer repeats.
struct ResponsesForm {
  std::string echo;  // members of a JSON object, without the braces
};

struct ChatOfResponses {
  // Which items of `input` a message of the chat was made of.
  struct Origin {
    int32_t item = -1;           // -1: the field `instructions`
    std::vector<int32_t> calls;  // by the message's tool_calls
  };

  // A text or error about the chat, with the names that the client's body has for its fields.
  std::string Renamed(std::string_view text) const;
  BodyError Renamed(const BodyError& error) const;

  DismantledJson<nlohmann::json> body;
  std::optional<DismantledJson<nlohmann::ordered_json>> tools;  // in the order of the text; nothing: there are none
  std::vector<Origin> origins;                                  // by message
};

// Fields of `body`: those of docs/server.md; all others become the chat's, for its parser to take, ignore or refuse. `tools`: that
// field with its members in the order of the text; null: in that of `body`. On an error, `error->param` names the field.
std::optional<ChatOfResponses> ToChat(const nlohmann::json& body, const nlohmann::ordered_json* tools, UnknownFieldsOf* unknown,
                                      BodyError* error);

// REQUIRES: ToChat took the body. `schema`: that of text.format in the order of the text; empty: there is none, or in the order of
// `body`. `sampling`: of the parsed request.
ResponsesForm FormOf(const nlohmann::json& body, const nlohmann::ordered_json* tools, const std::string& schema,
                     const SamplingParams& sampling);

// `error`, which came up once the request was parsed, by the names of fields that /v1/responses has.
BodyError InWordsOfResponses(const BodyError& error);

}  // namespace coppice::openai
