#include "openai/answer_size.h"

#include <algorithm>

#include "openai/sglang_request.h"

namespace coppice::openai {
namespace {

// By the form of the JSON: a token's text is 4 to 5 bytes, a number up to 20. A completion of SmolLM2 with echo and 20 alternatives
// (2,000 choices of 200 tokens, 211 MB) has 0.82 of the estimate.
constexpr double kHead = 512;  // of an answer
constexpr double kChoice = 160;
constexpr double kText = 6, kId = 7, kNumber = 21;
constexpr double kQuoted = kText + 3;                              // a token as a string
constexpr double kEntry = kQuoted + kNumber + 7;                   // of a completion: token, logprob, text_offset
constexpr double kAlternative = kQuoted + kNumber;                 // of a completion: "token":number
constexpr double kChatEntry = kQuoted + kNumber + kText * 4 + 50;  // of a chat: with the bytes as numbers, and four names
constexpr double kPromptEntry = kId + kQuoted + kNumber + 50;      // of prompt_logprobs: the id, three names, and text
constexpr double kIdEntry = 2 * kId + kNumber + 60;  // of vLLM's route for token ids: the id twice, a rank, four names
constexpr double kSglangEntry = kId + kQuoted + kNumber + 4;
constexpr double kScoredSequence = 150;

double BytesOfToken(const OpenAiRequest& request) {
  double bytes = request.return_token_ids || request.token_route || request.sglang ? kId : 0;
  if (!request.logprobs) return bytes;
  const auto top = static_cast<double>(request.request.top_logprobs);
  if (request.token_route) return bytes + kIdEntry * (2 + top);
  if (request.sglang) return bytes + kSglangEntry * (1 + top);
  return bytes + (IsChat(request.endpoint) ? kChatEntry * (1 + top) : kEntry + kAlternative * top);
}

// How often a token stands in the answer: the events of a streamed response repeat what ends, and the last one all of it; each
// event of SGLang's stream all that came before it.
double CopiesOfOutput(const OpenAiRequest& request) {
  if (request.sglang && request.stream) return std::max(1.0, static_cast<double>(request.request.max_tokens) / 2);
  return request.responses && request.stream ? 5 : 1;
}

// The answer's fields of a prompt beside echo.
double BytesOfPrompt(const OpenAiRequest& request, const AnswerExtent& extent) {
  const auto tokens = static_cast<double>(extent.prompt_tokens);
  const auto top = static_cast<double>(request.request.prompt_top_logprobs.value_or(request.request.top_logprobs));
  if (request.sglang) {
    const double objects = request.stream ? static_cast<double>(extent.output_tokens) : static_cast<double>(extent.choices);
    return request.sglang->with_input_logprobs ? objects * tokens * kSglangEntry * (1 + top) : 0;
  }
  const bool in_each = !request.token_route && (!IsChat(request.endpoint) || request.stream);
  const double copies = in_each ? static_cast<double>(extent.choices) : 1;
  return copies * tokens * ((request.return_token_ids ? kId : 0) + (request.prompt_logprobs ? kPromptEntry * (1 + top) : 0));
}

// Bytes of the request's fields that an answer repeats.
double BytesOfEcho(const OpenAiRequest& request) {
  if (!request.responses) return 0;
  return static_cast<double>(request.responses->echo.size()) * (request.stream ? 3 : 1);
}

}  // namespace

AnswerExtent LargestExtent(const OpenAiRequest& request, int32_t max_context) {
  const auto prompt = static_cast<int64_t>(request.request.prompt_ids.size());
  const int64_t samples = std::max(1, request.request.n);  // the engine refuses others
  const int64_t output = std::clamp<int64_t>(max_context - prompt, 0, std::max(0, request.request.max_tokens));
  return {.choices = samples,
          .prompt_tokens = prompt,
          .prompt_bytes = request.text ? std::ssize(*request.text) : static_cast<int64_t>(kText) * prompt,
          .output_tokens = samples * output};
}

double BytesOfOutputToken(const OpenAiRequest& request) { return CopiesOfOutput(request) * (kText + BytesOfToken(request)); }

double AnswerBytes(const OpenAiRequest& request, const AnswerExtent& extent) {
  double choice = kChoice;
  if (request.request.echo)
    choice += static_cast<double>(extent.prompt_bytes) + static_cast<double>(extent.prompt_tokens) * BytesOfToken(request);
  return kHead + BytesOfEcho(request) + BytesOfPrompt(request, extent) + static_cast<double>(extent.choices) * choice +
         static_cast<double>(extent.output_tokens) * BytesOfOutputToken(request);
}

double AnswerBytes(const ScoreRequest& request) {
  double bytes = kHead;
  for (const auto& [tokens, begin] : request.sequences) {
    bytes += kScoredSequence + static_cast<double>(std::ssize(tokens) - begin) * (kNumber + (request.return_token_ids ? kId : 0));
  }
  return bytes;
}

int64_t RepeatedTokens(const OpenAiRequest& request, int64_t prompt_tokens) {
  return request.request.echo ? prompt_tokens * (request.choices - 1) : 0;
}

}  // namespace coppice::openai
