// The object of a streamed completion, as far as measuring needs it: ours, or that of another server with OpenAI's API.
// Layer: cli.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

struct CompletionChunk {
  struct Choice {
    int32_t index = 0;
    int64_t tokens = 0;  // those of "token_ids" where they are given, else 1 for text that is not empty
    bool finished = false;
  };
  struct Usage {
    int64_t completion_tokens = 0;
    std::optional<int64_t> cached_tokens;
  };
  std::vector<Choice> choices;
  std::optional<Usage> usage;
  std::string error;  // the message of one; else empty
};

// DATA_LOSS shows the beginning of what is no such object.
Result<CompletionChunk> ParseCompletionChunk(std::string_view data);

// The message of an error's body: {"error": {"message"}}, {"error": "..."}, {"message"} or {"detail"}, else the beginning of the
// text itself.
std::string ErrorMessageOf(std::string_view body);

}  // namespace coppice::cli
