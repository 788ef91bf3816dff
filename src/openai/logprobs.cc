#include "openai/logprobs.h"

#include <string_view>
#include <utility>

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

// Characters of UTF-8: bytes that continue none.
int64_t NumCharacters(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  return count;
}

ordered_json ChatToken(int32_t id, float logprob, const Tokenizer* tokenizer) {
  std::string text = TokenText(tokenizer, id);
  ordered_json bytes = ordered_json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", std::move(text)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string TokenText(const Tokenizer* tokenizer, int32_t id) {
  return tokenizer ? std::string(tokenizer->TokenBytes(id, /*keep_special=*/true)) : std::string();
}

void CompletionLogprobs::Add(const ScoredToken& token) {
  std::string text = TokenText(tokenizer_, token.id);
  offsets_.push_back(offset_);
  offset_ += NumCharacters(text);
  tokens_.push_back(std::move(text));
  logprobs_.push_back(token.logprob ? ordered_json(*token.logprob) : ordered_json());
  if (!with_top_) return;
  if (!token.top) return top_.push_back(nullptr);
  ordered_json alternatives = ordered_json::object();
  for (const TokenLogprob& other : *token.top) alternatives[TokenText(tokenizer_, other.token)] = other.logprob;
  top_.push_back(std::move(alternatives));
}

ordered_json CompletionLogprobs::Take() {
  return {{"tokens", std::move(tokens_)},
          {"token_logprobs", std::move(logprobs_)},
          {"top_logprobs", with_top_ ? std::move(top_) : ordered_json()},
          {"text_offset", std::move(offsets_)}};
}

ordered_json ChatLogprobs(std::span<const int32_t> ids, std::span<const float> logprobs,
                          std::span<const std::vector<TokenLogprob>> top, const Tokenizer* tokenizer) {
  ordered_json content = ordered_json::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    ordered_json token = ChatToken(ids[i], logprobs[i], tokenizer);
    ordered_json alternatives = ordered_json::array();
    if (i < top.size()) {
      for (const TokenLogprob& other : top[i]) alternatives.push_back(ChatToken(other.token, other.logprob, tokenizer));
    }
    token["top_logprobs"] = std::move(alternatives);
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

}  // namespace coppice::openai
