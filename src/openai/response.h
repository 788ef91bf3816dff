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
  int64_t prompt_tokens = 0, cached_tokens = 0;
};

// The body of a finished request; `samples` by index, of which it has the best where it wants fewer. `tokenizer` may be null:
// choices then carry token_ids, their text is empty. `prompt` is empty without echo. With a vote, "votes" has the answers, most
// votes first, and INVALID_ARGUMENT says that the regex exceeds its match limit on a sample.
Result<nlohmann::ordered_json> ResponseBody(const OpenAiRequest& request, const EchoedPrompt& prompt,
                                            std::span<const Sample> samples, const ResponseFacts& facts,
                                            const Tokenizer* tokenizer);

// {"error": {message, type, param, code}}; an empty `param` becomes null.
nlohmann::ordered_json ErrorBody(const Status& status, std::string_view param);
// The HTTP status that a server gives for it.
int HttpStatus(const Status& status);

}  // namespace coppice::openai
