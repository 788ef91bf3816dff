// The body of vLLM's POST /inference/v1/generate: token ids in, token ids out, as trainers and routers ask for them, turned into a
// completion. Layer: openai.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "openai/body_error.h"
#include "openai/request.h"

namespace coppice::openai {

// Fields that the answer depends on beside the samples.
struct TokensForm {
  bool with_text = false;   // output_mode text
  bool final_only = false;  // of a stream: an object a choice, at its end (output_kind 2)
};

// token_ids; sampling_params with vLLM's names; request_id, model, stream, stream_options, cache_salt, priority (lower ones first:
// the engine's priority is its negative), return_token_ids, output_mode; extensions cache_private_begin, timeout, group_id,
// min_answered. Without max_tokens the output may go on to the end of the context. On an error, `error->param` names the field.
// `schema`: the text of sampling_params.structured_outputs.json, if its order is known.
std::optional<OpenAiRequest> ParseTokens(const nlohmann::json& body, const OpenAiRequestParser& parser, BodyError* error,
                                         const std::string& schema = {});
// Whether the body says by what random numbers the request draws.
bool IsSeededTokens(const nlohmann::json& body);
// An error of the completion that such a request is, by the body's names.
BodyError InWordsOfTokens(BodyError error);

}  // namespace coppice::openai
