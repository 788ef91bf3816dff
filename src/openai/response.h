// What is answered to an OpenAI request: the body of a completion or a chat completion, the body of an error.
// Layer: openai.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "openai/generation.h"
#include "openai/request.h"

namespace coppice::openai {

struct ResponseFacts {
  std::string id;       // of the completion, without its "cmpl-" or "chatcmpl-"
  int64_t created = 0;  // seconds since 1970
  std::string model;
};

// Tokens: of prompts, of those the ones found in the cache, and of all that was generated.
struct TokenUsage {
  int64_t prompt = 0, cached = 0, completion = 0;
  SharedReads shared_reads;  // of all requests together
};
// As an answer has it.
nlohmann::ordered_json SharedPrefixOf(const SharedReads& reads);
nlohmann::ordered_json UsageOf(const TokenUsage& usage);
// Why a choice ended, in OpenAI's words; `num_calls`: of tools, in its output.
std::string_view ReasonOf(FinishReason reason, int32_t num_calls);

// A prompt's finished request and what came out of it.
struct Answer {
  const OpenAiRequest* request = nullptr;
  const RequestOutput* output = nullptr;
  int64_t prompt_tokens = 0;
};
// The body of an answer to one or more prompts of one endpoint; a prompt's choices are its samples by index, or the best of them
// where fewer are wanted. `tokenizer` may be null: choices then carry token_ids, their text is empty. With a vote, which is of one
// prompt, "votes" has the answers, most votes first, and INVALID_ARGUMENT says that the regex exceeds its match limit on a sample.
Result<nlohmann::ordered_json> ResponseBody(std::span<const Answer> answers, const ResponseFacts& facts,
                                            const Tokenizer* tokenizer);

// {"error": {message, type, param, code}}; an empty `param` becomes null.
nlohmann::ordered_json ErrorBody(const Status& status, std::string_view param);
nlohmann::ordered_json ErrorBody(int http_status, std::string_view message, std::string_view param);
// The HTTP status that a server gives for it.
int HttpStatus(const Status& status);

}  // namespace coppice::openai
