// Prompts as bodies of requests have them: text, token ids, messages.
// Layer: openai.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "openai/field_reader.h"
#include "tokenizer/fim.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {

inline constexpr size_t kMaxPrompts = 2048;     // of one completion request
inline constexpr size_t kMaxMessages = 65'536;  // of one chat, whatever its context takes

// The prompt of a completion: text, or token ids where there is none.
struct Prompt {
  std::optional<std::string> text;
  std::vector<int32_t> ids;
};

// Token ids, each a non-negative int32; nothing where one is something else.
std::optional<std::vector<int32_t>> TokenIds(const nlohmann::json& list);
// A string or a list of token ids; nothing where it is neither.
std::optional<Prompt> ParsePrompt(const nlohmann::json& prompt);
// The field `prompt`: a string, a list of token ids, or a list of those.
std::vector<Prompt> TakePrompts(FieldReader& fields);
// INVALID_ARGUMENT where copies of `bytes` for each of several prompts have more than 16 MiB together. `subject` and `where` for
// the message: "suffix has", "behind".
Status CheckRepeated(std::string_view subject, size_t bytes, std::string_view where, size_t prompts);
// The field `suffix`, that text behind the gap which the answer to each of `prompts` fills; null: there is none, or an empty one.
// `tokenizer` may be null: prompts are token ids then, and have no suffix.
std::shared_ptr<const FimContext> TakeSuffix(FieldReader& fields, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer);
// Whether the model's chat template may read a field of that name.
using ReadsField = std::function<bool(std::string_view name)>;
// The field `messages`: a list of role and content, one at least, kMaxMessages at most; content that is null or absent is "". Of an
// assistant with tool_calls, whose arguments become JSON values as templates want them, or with a refusal, which is its content
// where it has no other; of a tool with tool_call_id. Other fields come along where the template `reads` them.
std::vector<ChatMessage> TakeMessages(FieldReader& fields, const ReadsField& reads = {});
// The message whose fields TakeMessages makes the same one of.
nlohmann::ordered_json ToMessage(const ChatMessage& message);

}  // namespace coppice::openai
