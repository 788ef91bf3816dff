// A conversation as the text that the model was trained on. Layer: openai.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {
struct ChatMessage;
class ChatTemplate;
class Tokenizer;
}  // namespace coppice

namespace coppice::openai {

// The text of a chat, with the model's special tokens where the template asks for them.
Result<std::string> RenderChat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer);

}  // namespace coppice::openai
