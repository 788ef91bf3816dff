// A chat of OpenAI's API as the prompt of a model. The API leaves open what templates differ in: what role a developer has, whether
// empty content is none, whether the arguments of calls are objects. Here each template gets the form that it was written for, and
// what it would leave out in silence is an error.
// Layer: tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer.h"

namespace coppice {

// Immutable: safe to use from several threads.
class ChatRenderer {
 public:
  // As ChatTemplate::Parse.
  static Result<std::unique_ptr<ChatRenderer>> Parse(const std::string& source);

  struct Options {
    std::string variables = {};  // of the template beside the messages, a JSON object, tools among them; empty: none
    bool add_generation_prompt = true;
    bool continue_final_message = false;  // the prompt ends where the content of the last message does
  };
  // The rules:
  // - Roles are those of OpenAI's API and those that the template compares roles with; others are INVALID_ARGUMENT. "developer" is
  //   "system" unless the template compares roles with it.
  // - Content that is null, absent or "" is the same, beside tool calls too.
  // - A message whose content does not appear in the prompt is INVALID_ARGUMENT. Not so an assistant's, since templates leave out
  //   what was thought, and a single system message of a template that knows the role: some say it in certain turns only.
  // - Of the forms of ChatForm the first one is taken in which the template renders and shows all messages and calls. Where it
  //   knows no calls they are left out.
  Result<RenderedChat> Render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer, const Options& options) const;
  Result<RenderedChat> Render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer) const {
    return Render(messages, tokenizer, Options());
  }

  bool Mentions(std::string_view name) const { return template_->Mentions(name); }

 private:
  explicit ChatRenderer(std::unique_ptr<ChatTemplate> chat_template);
  Status CheckRole(const ChatMessage& message, size_t index) const;
  // The first message that the prompt should show and does not.
  std::optional<size_t> LeftOut(const std::vector<ChatMessage>& messages, const RenderedChat& chat) const;
  // All forms that may make a difference, in the order in which they are tried.
  std::vector<ChatForm> FormsFor(const std::vector<ChatMessage>& messages, const std::string& variables) const;
  Result<RenderedChat> RenderInSomeForm(const std::vector<ChatMessage>& messages, ChatTemplate::Variables variables) const;

  std::unique_ptr<ChatTemplate> template_;
  std::vector<std::string> roles_;  // beside those of the API
  bool knows_system_ = false, knows_developer_ = false;
};

}  // namespace coppice
