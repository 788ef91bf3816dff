// The body of an answer to a request, made while it is taken: that of completions and chat completions here, that of /v1/responses
// in responses_body.h. Layer: openai.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coppice/tokenizer/tokenizer.h"
#include "core/text_source.h"
#include "openai/generation.h"
#include "openai/logprobs.h"
#include "openai/request.h"
#include "openai/response.h"

namespace coppice::openai {

// A prompt's finished request and what came out of it. Its prompt may be taken out of the request: no answer needs it.
struct Answer {
  OpenAiRequest request;
  RequestOutput output;
  TokenUsage usage;
};

// A token of a sample, whose list of others it points to.
AnswerToken TokenOf(const Sample& sample, size_t i);
// The sample's memory.
size_t HeldBytes(const Sample& sample, int32_t top_logprobs);

// Token `i` of a prompt as AppendPromptLogprob takes it; `ids` are the prompt's.
PromptToken TokenOf(const EchoedPrompt& prompt, std::span<const int32_t> ids, size_t i);
// The answer's memory.
size_t HeldBytes(const Answer& answer);
// The name of a kept sample as a field that follows others of its choice; "": it is not kept.
std::string SampleIdField(const OpenAiRequest& request, int32_t sample);

// Of one or more prompts of one endpoint; a prompt's choices are its samples by index, or the best of them where fewer are wanted.
// The prompt that choices repeat becomes text once. `tokenizer`, which outlives the body, may be null: choices then carry
// token_ids, their text is empty. With a vote, which is of one prompt, "votes" has the answers, most votes first; null where the
// regex exceeds its match limit on a sample.
std::unique_ptr<TextSource> ResponseBody(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer);

}  // namespace coppice::openai
