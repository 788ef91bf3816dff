// The body of llama.cpp's POST /infill: the text around a gap and other files, by which editors complete code, turned into a
// completion that fills the gap. Layer: openai.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "openai/request.h"

namespace coppice::openai {

// input_prefix and input_suffix; input_extra, a list of {filename, text}; prompt, which stands behind the prefix; n_predict and
// other fields by llama.cpp's names. How it samples beside those, and what its server keeps or reports, is ignored and reported. On
// an error, `error->param` names the field. The request's answer has llama.cpp's form (OpenAiRequest::infill).
std::optional<OpenAiRequest> ParseInfill(const nlohmann::json& body, const OpenAiRequestParser& parser, BodyError* error);

}  // namespace coppice::openai
