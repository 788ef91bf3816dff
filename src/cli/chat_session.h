// A conversation as `coppice chat` keeps it: its messages, the samples of the last answer, and its form in a file. Layer: cli.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/tokenizer/tokenizer.h"

namespace coppice::cli {

class ChatSession {
 public:
  // The messages that the next answer follows, the system's first.
  const std::vector<ChatMessage>& messages() const { return messages_; }

  // An empty text: there is no system message any more.
  void SetSystem(const std::string& text);
  // The user's message. It counts once it is answered.
  std::vector<ChatMessage> With(const std::string& user) const;
  // `samples`: what was answered, of which the one at `chosen` goes on.
  void Answered(const std::string& user, std::vector<std::string> samples, size_t chosen);
  // Another sample of the last answer goes on. INVALID_ARGUMENT if there is none of that index.
  Status Pick(size_t index);
  // But for the system message.
  void Clear();

  // {"messages": [{"role": ..., "content": ...}]}, as OpenAI's clients write chats.
  std::string ToJson() const;
  // The other way round; INVALID_ARGUMENT says what of `text` is none, and nothing has changed.
  Status FromJson(std::string_view text);

 private:
  std::vector<ChatMessage> messages_;
  std::vector<std::string> samples_;  // of the last answer
};

// A line "/name argument" of a chat; none: it is a message.
struct ChatCommand {
  std::string name, argument;
};
std::optional<ChatCommand> ParseChatCommand(std::string_view line);

}  // namespace coppice::cli
