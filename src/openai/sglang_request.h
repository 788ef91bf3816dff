// The body of SGLang's POST /generate, as trainers and SGLang's clients send it, turned into completions. Layer: openai.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "openai/body_error.h"
#include "openai/request.h"

namespace coppice::openai {

// Fields that the answer depends on beside the samples.
struct SglangForm {
  bool is_list = false;              // of answers: the body has a list of prompts, or asks for several samples
  bool by_ids = false;               // the prompt is input_ids
  bool with_input_logprobs = false;  // of prompt tokens, from Request::prompt_logprobs_begin on
  bool with_top = false;             // top_logprobs_num is above 0
  bool keeps_special = false;        // skip_special_tokens false: the text has special tokens
  bool keeps_stop = false;           // no_stop_trim: and what ended it
  bool texts_in_logprobs = false;    // return_text_in_logprobs
};

struct SglangRequests {
  std::vector<OpenAiRequest> prompts;  // one or more
  bool seeded = false;                 // they say by what random numbers they draw
};

// text or input_ids, one or a list; sampling_params with SGLang's names, one object or one for each prompt; return_logprob,
// logprob_start_len, top_logprobs_num, return_text_in_logprobs; stream, rid, priority, extra_key (a cache_salt); extensions
// timeout, group_id, min_answered, logprobs_mode. On an error, `error->param` names the field.
std::optional<SglangRequests> ParseSglang(const nlohmann::json& body, const OpenAiRequestParser& parser, BodyError* error);
// Of a request whose prompt is set: whether its log-probabilities begin within the prompt, or right behind it.
BodyError CheckLogprobStart(const OpenAiRequest& prompt);
// An error of the completion that such a request is, by the body's names.
BodyError InWordsOfSglang(BodyError error);

}  // namespace coppice::openai
