// The body of POST /v1/score and of a line of `coppice score`: a prompt and its continuations, made into sequences of tokens.
// Layer: openai.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "openai/request.h"
#include "openai/response.h"
#include "openai/score_tree.h"

namespace coppice::openai {

struct ScoreRequest {
  Request request;                        // salt, timeout, priority; its prompts come from the sequences
  std::vector<ScoredSequence> sequences;  // the prompt with each continuation behind it
  TokenUsage usage;                       // prompt: its tokens once, and those of the continuations
  bool return_token_ids = false;
  std::vector<std::string> ignored_fields;  // as OpenAiRequest
};

// Fields of `body`: docs/server.md, "Scores". On an error, `error->param` names the field.
std::optional<ScoreRequest> ParseScore(const nlohmann::json& body, const OpenAiRequestParser& parser, BodyError* error,
                                       const FindNamedPrefix& find_prefix = {});

}  // namespace coppice::openai
