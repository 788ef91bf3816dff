#include "openai/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/json.h"
#include "tokenizer/utf8.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

ordered_json ChatToken(int32_t id, std::optional<float> logprob, const Tokenizer* tokenizer, bool as_ids) {
  const std::string_view text = TokenText(tokenizer, id);
  ordered_json bytes = ordered_json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", as_ids ? IdName(id) : std::string(text)},
          {"logprob", logprob ? ordered_json(*logprob) : ordered_json()},
          {"bytes", std::move(bytes)}};
}

// The name of a token among those of `others`: its text; "bytes:\xe2\x80" where that is no text, as OpenAI writes it, since all
// such bytes would be one character in JSON; its id where another token has the same text.
std::string NameBeside(const ordered_json& others, int32_t id, const Tokenizer* tokenizer) {
  std::string name(TokenText(tokenizer, id));
  if (ValidUtf8Prefix(name) != name.size()) {
    std::string bytes = "bytes:";
    for (const char byte : name) bytes += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    name = std::move(bytes);
  }
  return others.contains(name) ? IdName(id) : name;
}

ordered_json Alternatives(const std::vector<TokenLogprob>& top, const Tokenizer* tokenizer, bool as_ids) {
  ordered_json alternatives = ordered_json::object();
  for (const TokenLogprob& other : top)
    alternatives[as_ids ? IdName(other.token) : NameBeside(alternatives, other.token, tokenizer)] = other.logprob;
  return alternatives;
}

std::string_view NameOf(LogprobColumn column) {
  switch (column) {
    case LogprobColumn::kTokens: return "tokens";
    case LogprobColumn::kLogprobs: return "token_logprobs";
    case LogprobColumn::kTop: return "top_logprobs";
    case LogprobColumn::kOffsets: return "text_offset";
  }
  return "?";
}

}  // namespace

std::string_view TokenText(const Tokenizer* tokenizer, int32_t id) {
  return tokenizer ? tokenizer->TokenBytes(id, /*keep_special=*/true) : std::string_view();
}

int64_t TokenCharacters(const Tokenizer* tokenizer, int32_t id) {
  return std::ranges::count_if(TokenText(tokenizer, id),
                               [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
}

std::string CompletionLogprobs::Begin(LogprobColumn column) const {
  return fmt::format(R"({}"{}":{})", column == kLogprobColumns.front() ? '{' : ',', NameOf(column), has(column) ? "[" : "null");
}

std::string_view CompletionLogprobs::End(LogprobColumn column) const {
  const bool last = column == kLogprobColumns.back();
  if (!has(column)) return last ? "}" : "";
  return last ? "]}" : "]";
}

void CompletionLogprobs::Append(LogprobColumn column, const AnswerToken& token, int64_t* offset, std::string* out) const {
  switch (column) {
    case LogprobColumn::kTokens:
      *out += DumpJson(as_ids_ ? IdName(token.id) : std::string(TokenText(tokenizer_, token.id)));
      return;
    case LogprobColumn::kLogprobs: *out += token.logprob ? DumpJson(*token.logprob) : "null"; return;
    case LogprobColumn::kTop: {
      if (!token.top && !(as_ids_ && token.logprob)) {
        *out += "null";
        return;
      }
      ordered_json entries = token.top ? Alternatives(*token.top, tokenizer_, as_ids_) : ordered_json::object();
      if (as_ids_ && token.logprob) entries[IdName(token.id)] = *token.logprob;
      *out += DumpJson(std::move(entries));
      return;
    }
    case LogprobColumn::kOffsets:
      *out += std::to_string(*offset);
      *offset += TokenCharacters(tokenizer_, token.id);
      return;
  }
}

void AppendChatLogprob(const AnswerToken& token, const Tokenizer* tokenizer, bool as_ids, std::string* out) {
  ordered_json entry = ChatToken(token.id, token.logprob, tokenizer, as_ids);
  ordered_json& top = entry["top_logprobs"] = ordered_json::array();
  if (token.top) {
    for (const TokenLogprob& other : *token.top) top.push_back(ChatToken(other.token, other.logprob, tokenizer, as_ids));
  }
  *out += DumpJson(std::move(entry));
}

void AppendPromptLogprob(const PromptToken& token, const Tokenizer* tokenizer, std::string* out) {
  if (!token.logprob) {
    *out += "null";
    return;
  }
  ordered_json entry = ordered_json::object();
  const auto add = [&](int32_t id, float logprob, int32_t rank) {
    entry[std::to_string(id)] = {{"logprob", logprob}, {"rank", rank}, {"decoded_token", TokenText(tokenizer, id)}};
  };
  add(token.id, *token.logprob, token.rank);
  const size_t others = token.top ? token.top->size() : 0;
  for (size_t i = 0; i < others; ++i) {
    const TokenLogprob& other = (*token.top)[i];
    if (other.token != token.id) add(other.token, other.logprob, static_cast<int32_t>(i) + 1);
  }
  *out += DumpJson(std::move(entry));
}

std::string IdName(int32_t id) { return fmt::format("token_id:{}", id); }

}  // namespace coppice::openai
