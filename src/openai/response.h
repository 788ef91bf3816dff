// Common parts of all answers to OpenAI requests: the model, what it cost, why a choice ended, the body of an error. Layer: openai.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice::openai {

struct ResponseFacts {
  std::string id;       // of the completion, without its "cmpl-" or "chatcmpl-"
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::optional<int64_t> line;                             // of the file that has the request; of scores alone
  std::function<std::string(int64_t)> version_label = {};  // of a version; empty: its number is reported
};

// Tokens: of prompts, of those the ones found in the cache, and of all that was generated.
struct TokenUsage {
  int64_t prompt = 0, cached = 0, completion = 0;
  SharedReads shared_reads;  // of all requests together

  void Add(const TokenUsage& other) {
    prompt += other.prompt;
    cached += other.cached;
    completion += other.completion;
    shared_reads.Add(other.shared_reads);
  }
};
// As an answer has it.
nlohmann::ordered_json SharedPrefixOf(const SharedReads& reads);
nlohmann::ordered_json UsageOf(const TokenUsage& usage);
// Why a choice ended, in OpenAI's words; `num_calls`: of tools, in its output.
std::string_view ReasonOf(FinishReason reason, int32_t num_calls);

// A version of weights: its label, or its number where it has none.
std::string VersionName(const ResponseFacts& facts, int64_t version);

// {"error": {message, type, param, code}}; an empty `param` becomes null.
nlohmann::ordered_json ErrorBody(const Status& status, std::string_view param);
nlohmann::ordered_json ErrorBody(int http_status, std::string_view message, std::string_view param);
// `data` as a server-sent event without a name.
std::string DataEvent(nlohmann::ordered_json data);
// The HTTP status that a server gives for it.
int HttpStatus(const Status& status);

}  // namespace coppice::openai
