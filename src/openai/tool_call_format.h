// How a model writes the calls of tools into its output: what marks them, and under which names a call has its parts.
// Layer: openai.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace coppice::openai {

enum class ToolCallStyle : uint8_t {
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number; Hermes, Qwen2.5, Qwen3
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
  kLlama,    // {"name": ..., "parameters": {...}}, which is the whole output, <|python_tag|> perhaps before it; Llama 3.1 and later
};

struct ToolCallFormat {
  ToolCallStyle style = ToolCallStyle::kHermes;
  std::string_view begin, end;                   // what marks a call (kMistral: the list of them); kLlama: may stand before it
  std::string_view arguments_key = "arguments";  // the other name of the arguments is read too
  // Of begin and end, those that are control tokens of the model: its output has their text only if the request asks for it, and
  // no grammar can ask for them.
  std::vector<int32_t> control_tokens;
};

// Of a model whose chats with tools this template renders; nothing where the template shows none of the styles.
std::optional<ToolCallFormat> ToolCallFormatOf(std::string_view chat_template, const Tokenizer& tokenizer);

// The name of a call in an answer. Equal for equal arguments, so that a batch that is repeated gives the same answer; nine letters
// and digits where the model's template wants that (Mistral).
std::string ToolCallId(ToolCallStyle style, std::string_view answer_id, int32_t choice, int32_t call);

}  // namespace coppice::openai
