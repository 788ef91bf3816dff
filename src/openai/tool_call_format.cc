#include "openai/tool_call_format.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL  // header only
#include <xxhash.h>

namespace coppice::openai {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::optional<ToolCallFormat> StyleOf(std::string_view chat_template) {
  if (Has(chat_template, "[TOOL_CALLS]")) return ToolCallFormat{.style = ToolCallStyle::kMistral, .begin = "[TOOL_CALLS]"};
  // Qwen3-Coder marks calls alike and writes XML between the marks.
  if (Has(chat_template, "<tool_call>") && !Has(chat_template, "<function="))
    return ToolCallFormat{.style = ToolCallStyle::kHermes, .begin = "<tool_call>", .end = "</tool_call>"};
  if (Has(chat_template, R"({"name": )") && Has(chat_template, R"("parameters": )") && !Has(chat_template, "<tool_call>"))
    return ToolCallFormat{.style = ToolCallStyle::kLlama, .begin = "<|python_tag|>", .arguments_key = "parameters"};
  return std::nullopt;
}

// Of `mark` where it is one, and a control token.
std::optional<int32_t> ControlToken(std::string_view mark, const Tokenizer& tokenizer) {
  if (mark.empty()) return std::nullopt;
  const Result<std::vector<int32_t>> ids = tokenizer.Encode(mark, {.add_special = false, .parse_special = true});
  if (!ids.ok() || ids->size() != 1 || !tokenizer.TokenBytes(ids->front()).empty()) return std::nullopt;
  return ids->front();
}

}  // namespace

std::optional<ToolCallFormat> ToolCallFormatOf(std::string_view chat_template, const Tokenizer& tokenizer) {
  std::optional<ToolCallFormat> format = StyleOf(chat_template);
  if (!format) return std::nullopt;
  for (const std::string_view mark : {format->begin, format->end}) {
    if (const std::optional<int32_t> id = ControlToken(mark, tokenizer)) format->control_tokens.push_back(*id);
  }
  return format;
}

std::string ToolCallId(ToolCallStyle style, std::string_view answer_id, int32_t choice, int32_t call) {
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const std::string text = fmt::format("{}/{}/{}", answer_id, choice, call);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  const bool is_short = style == ToolCallStyle::kMistral;
  std::string id = is_short ? "" : "call_";
  const size_t digits = is_short ? 9 : 20;
  uint64_t rest = hash.low64;
  for (size_t i = 0; i < digits; ++i) {
    if (i == 10) rest = hash.high64;  // 62^10 is below 2^64
    id += kDigits[rest % kDigits.size()];
    rest /= kDigits.size();
  }
  return id;
}

}  // namespace coppice::openai
