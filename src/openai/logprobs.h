// Log-probabilities of tokens in the two forms that OpenAI has for them. Layer: openai.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coppice/runner/sampling.h"
#include "coppice/tokenizer/tokenizer.h"

namespace coppice::openai {

// The bytes of a token as text; empty without a tokenizer.
std::string TokenText(const Tokenizer* tokenizer, int32_t id);

// A token of a completion. `top`: the most probable ones in its place; null where they are not known.
struct ScoredToken {
  int32_t id = -1;
  std::optional<float> logprob;
  const std::vector<TokenLogprob>* top = nullptr;
};

// {tokens, token_logprobs, top_logprobs, text_offset} of a completion's choice, token by token.
class CompletionLogprobs {
 public:
  // `with_top`: top_logprobs has an entry a token, else it is null. `offset`: characters of the choice before the first token.
  CompletionLogprobs(const Tokenizer* tokenizer, bool with_top, int64_t offset = 0)
      : tokenizer_(tokenizer), with_top_(with_top), offset_(offset) {}

  void Add(const ScoredToken& token);
  int64_t offset() const { return offset_; }
  nlohmann::ordered_json Take();

 private:
  const Tokenizer* tokenizer_;
  bool with_top_;
  int64_t offset_;
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array(), logprobs_ = tokens_, top_ = tokens_, offsets_ = tokens_;
};

// {content: [{token, logprob, bytes, top_logprobs}]} of a chat's choice. `top` is empty or has a list for each token.
nlohmann::ordered_json ChatLogprobs(std::span<const int32_t> ids, std::span<const float> logprobs,
                                    std::span<const std::vector<TokenLogprob>> top, const Tokenizer* tokenizer);

}  // namespace coppice::openai
