// Log-probabilities of tokens as JSON, in the two forms that OpenAI has for them, a token at a time. Layer: openai.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/runner/sampling.h"
#include "coppice/tokenizer/tokenizer.h"

namespace coppice::openai {

// The bytes of a token as text, which lives as long as the tokenizer; empty without one.
std::string_view TokenText(const Tokenizer* tokenizer, int32_t id);
// Its characters, of UTF-8: bytes that continue none.
int64_t TokenCharacters(const Tokenizer* tokenizer, int32_t id);

// A token of an answer. `top`: the most probable ones in its place; null where they are not known.
struct AnswerToken {
  int32_t id = -1;
  std::optional<float> logprob;
  const std::vector<TokenLogprob>* top = nullptr;
};

// A completion's choice has a list for each of these, with an entry a token: {"tokens": [...], "token_logprobs": [...], ...}.
enum class LogprobColumn : uint8_t { kTokens, kLogprobs, kTop, kOffsets };
inline constexpr std::array kLogprobColumns = {LogprobColumn::kTokens, LogprobColumn::kLogprobs, LogprobColumn::kTop,
                                               LogprobColumn::kOffsets};

class CompletionLogprobs {
 public:
  // `with_top`: kTop has entries, else it is null instead of a list. `as_ids`: tokens are named by their ids, and kTop has entries
  // anyway, each with the token itself among the others, as vLLM's clients expect.
  CompletionLogprobs(const Tokenizer* tokenizer, bool with_top, bool as_ids)
      : tokenizer_(tokenizer), with_top_(with_top), as_ids_(as_ids) {}

  // Whether the column has entries, which come between what it begins and what it ends with.
  bool has(LogprobColumn column) const { return column != LogprobColumn::kTop || with_top_ || as_ids_; }
  std::string Begin(LogprobColumn column) const;
  std::string_view End(LogprobColumn column) const;
  // The column's entry of `token`. `*offset`: characters of the choice before it, which kOffsets counts on.
  void Append(LogprobColumn column, const AnswerToken& token, int64_t* offset, std::string* out) const;

 private:
  const Tokenizer* tokenizer_;
  bool with_top_, as_ids_;
};

// {"token", "logprob", "bytes", "top_logprobs"}: an entry of the list "content" of a chat's choice. `as_ids` as above.
void AppendChatLogprob(const AnswerToken& token, const Tokenizer* tokenizer, bool as_ids, std::string* out);

// A token of a prompt, which is `rank`-th in its place.
struct PromptToken {
  int32_t id = -1, rank = 0;
  std::optional<float> logprob;
  const std::vector<TokenLogprob>* top = nullptr;
};
// {"5": {"logprob", "rank", "decoded_token"}, ...}: the token, then the most probable others; null where it has no log-probability.
void AppendPromptLogprob(const PromptToken& token, const Tokenizer* tokenizer, std::string* out);

// token_id:5
std::string IdName(int32_t id);

}  // namespace coppice::openai
