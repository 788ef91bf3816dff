#include "openai/chat.h"

#include "tokenizer/tokenizer.h"

namespace coppice::openai {

Result<std::string> RenderChat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer) {
  const TokenizerData& data = tokenizer.data();
  const auto text_of = [&](int32_t id) {
    return id < 0 ? std::string() : std::string(tokenizer.TokenBytes(id, /*keep_special=*/true));
  };
  return chat.Render(messages,
                     {.bos_token = text_of(data.bos_id), .eos_token = text_of(data.eos_ids.empty() ? -1 : data.eos_ids.front())});
}

}  // namespace coppice::openai
