#include "server/answer_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "openai/answer_size.h"

namespace coppice::server {
namespace {

using openai::AnswerExtent;
using openai::BodyError;
using openai::OpenAiRequest;

std::string MiB(double bytes) { return fmt::format("{:.1f} MiB", bytes / (1 << 20)); }

double BytesOf(std::span<const OpenAiRequest> prompts, int32_t max_context) {
  double bytes = 0;
  for (const OpenAiRequest& prompt : prompts) bytes += AnswerBytes(prompt, LargestExtent(prompt, max_context));
  return bytes;
}

// Lowers max_tokens where it is not named, of all prompts to the same number, so that the answer has room.
void FitOutput(double max_bytes, int32_t max_context, std::span<OpenAiRequest> prompts) {
  double named = 0, of_token = 0;  // bytes of all else; of one more token of each sample
  for (const OpenAiRequest& prompt : prompts) {
    AnswerExtent extent = LargestExtent(prompt, max_context);
    if (!prompt.max_tokens) {
      of_token += static_cast<double>(extent.choices) * BytesOfOutputToken(prompt);
      extent.output_tokens = 0;
    }
    named += AnswerBytes(prompt, extent);
  }
  if (of_token == 0) return;
  const double room = std::max(1.0, (max_bytes - named) / of_token);
  for (OpenAiRequest& prompt : prompts) {
    int32_t& max_tokens = prompt.request.max_tokens;
    if (!prompt.max_tokens) max_tokens = static_cast<int32_t>(std::min<double>(max_tokens, room));
  }
}

BodyError TooLarge(const AnswerLimits& limits, double bytes, const std::string& of_what, const char* instead, const char* param) {
  return {InvalidArgument(fmt::format("the answer may become {} of JSON ({}), and the server gives {} at most (--max-answer); {}",
                                      MiB(bytes), of_what, MiB(static_cast<double>(limits.max_bytes)), instead)),
          param};
}

}  // namespace

BodyError CheckAnswer(const AnswerLimits& limits, int32_t max_context, std::span<OpenAiRequest> prompts) {
  for (const OpenAiRequest& prompt : prompts) {
    const int32_t choices = prompt.request.num_sequences();
    if (limits.max_choices == 0 || choices <= limits.max_choices) continue;
    const bool has_beams = prompt.request.beams.width > 0;
    const char* const param = choices == prompt.choices ? "n" : has_beams ? "beam_width" : "best_of";
    return {InvalidArgument(fmt::format("{} is {}, and the server makes {} choices of a prompt at most (--max-choices); send "
                                        "several requests: what their prompts have in common is computed once",
                                        param, choices, limits.max_choices)),
            param};
  }
  const auto max_bytes = static_cast<double>(limits.max_bytes);
  if (limits.max_bytes == 0 || BytesOf(prompts, max_context) <= max_bytes) return {};
  FitOutput(max_bytes, max_context, prompts);
  const double bytes = BytesOf(prompts, max_context);
  if (bytes <= max_bytes) return {};
  int64_t choices = 0, prompt_tokens = 0, output_tokens = 0;
  for (const OpenAiRequest& prompt : prompts) {
    const AnswerExtent extent = LargestExtent(prompt, max_context);
    choices += extent.choices;
    prompt_tokens += prompt.request.echo ? extent.choices * extent.prompt_tokens : 0;
    output_tokens += extent.output_tokens;
  }
  return TooLarge(limits, bytes,
                  fmt::format("{} choices with {} tokens of echoed prompts and {} of output, {} alternatives of each", choices,
                              prompt_tokens, output_tokens, prompts.front().request.top_logprobs),
                  "ask for fewer choices, tokens or alternatives, or leave echo out", choices > 1 ? "n" : "max_tokens");
}

BodyError CheckAnswer(const AnswerLimits& limits, const openai::ScoreRequest& request) {
  const double bytes = AnswerBytes(request);
  if (limits.max_bytes == 0 || bytes <= static_cast<double>(limits.max_bytes)) return {};
  int64_t tokens = 0;
  for (const auto& [ids, begin] : request.sequences) tokens += std::ssize(ids) - begin;
  return TooLarge(limits, bytes, fmt::format("{} scored tokens of {} continuations", tokens, request.sequences.size()),
                  "send several requests", "continuations");
}

}  // namespace coppice::server
