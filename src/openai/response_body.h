// The body of an answer to completions or chat completions, made while it is taken. Layer: openai.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coppice/tokenizer/tokenizer.h"
#include "core/text_source.h"
#include "openai/generation.h"
#include "openai/request.h"
#include "openai/response.h"

namespace coppice::openai {

// A prompt's finished request and what came out of it. Its prompt may be taken out of the request: no answer needs it.
struct Answer {
  OpenAiRequest request;
  RequestOutput output;
  int64_t prompt_tokens = 0;
};

// Of one or more prompts of one endpoint; a prompt's choices are its samples by index, or the best of them where fewer are wanted.
// What choices repeat of the prompt becomes text once. `tokenizer`, which outlives the body, may be null: choices then carry
// token_ids, their text is empty. With a vote, which is of one prompt, "votes" has the answers, most votes first; null where the
// regex exceeds its match limit on a sample.
std::unique_ptr<TextSource> ResponseBody(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer);

}  // namespace coppice::openai
