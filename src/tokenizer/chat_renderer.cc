#include "tokenizer/chat_renderer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

bool IsBlank(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (c.kind != Utf8Kind::kValid || !IsWhiteSpace(c.code_point)) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

// True of all that have calls, and of few others, for which more forms are tried than need be.
bool MayHaveCalls(const ChatMessage& message) { return message.fields.find("\"tool_calls\"") != std::string::npos; }

bool ShowsCalls(const std::vector<ChatMessage>& messages, const RenderedChat& chat) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (MayHaveCalls(messages[i]) && !chat.messages[i].has_calls) return false;
  }
  return true;
}

// The prompt up to the end of the last message's content.
Status EndAtContent(const std::vector<ChatMessage>& messages, RenderedChat* chat) {
  const size_t end = chat->messages.back().content_end;
  if (end == 0) {
    return InvalidArgument("continue_final_message: the prompt shows no content of the last message, whose role is " +
                           Quoted(messages.back().role) + "; give it content to go on from");
  }
  chat->prompt.text.resize(end);
  std::vector<ByteRange>& values = chat->prompt.values;
  std::erase_if(values, [end](const ByteRange& range) { return range.begin >= end; });
  if (!values.empty()) values.back().end = std::min(values.back().end, end);
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ChatRenderer>> ChatRenderer::Parse(const std::string& source) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<ChatTemplate> parsed, ChatTemplate::Parse(source));
  return std::unique_ptr<ChatRenderer>(new ChatRenderer(std::move(parsed)));
}

ChatRenderer::ChatRenderer(std::unique_ptr<ChatTemplate> chat_template) : template_(std::move(chat_template)) {
  for (std::string& role : template_->Roles()) {
    knows_system_ |= role == "system";
    knows_developer_ |= role == "developer";
    if (!IsStandardRole(role)) roles_.push_back(std::move(role));
  }
}

Status ChatRenderer::CheckRole(const ChatMessage& message, size_t index) const {
  if (IsStandardRole(message.role) || std::ranges::find(roles_, message.role) != roles_.end()) return OkStatus();
  std::string expected = "system, developer, user, assistant, tool";
  for (const std::string& role : roles_) expected += ", " + role;
  return InvalidArgument("messages[" + std::to_string(index) + "].role is " + Quoted(message.role) + ", expected one of " +
                         expected);
}

Result<RenderedChat> ChatRenderer::Render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer,
                                          const Options& options) const {
  std::vector<ChatMessage> known = messages;
  for (size_t i = 0; i < known.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(CheckRole(known[i], i));
    if (known[i].role == "developer" && !knows_developer_) known[i].role = "system";
  }
  const Tokenizer::Info& info = tokenizer.info();
  const auto text_of = [&](int32_t id) {
    return id < 0 ? std::string() : std::string(tokenizer.TokenBytes(id, /*keep_special=*/true));
  };
  COPPICE_ASSIGN_OR_RETURN(
      RenderedChat chat,
      RenderInSomeForm(known, {.bos_token = text_of(info.bos_id),
                               .eos_token = text_of(info.eos_ids.empty() ? -1 : info.eos_ids.front()),
                               .add_generation_prompt = options.add_generation_prompt && !options.continue_final_message,
                               .fields = options.variables}));
  if (options.continue_final_message) COPPICE_RETURN_IF_ERROR(EndAtContent(known, &chat));
  return chat;
}

std::optional<size_t> ChatRenderer::LeftOut(const std::vector<ChatMessage>& messages, const RenderedChat& chat) const {
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  const bool may_lack_system = knows_system_ && std::ranges::count_if(messages, is_system) == 1 && is_system(messages.front());
  for (size_t i = 0; i < messages.size(); ++i) {
    if (chat.messages[i].has_content || messages[i].role == "assistant" || (i == 0 && may_lack_system)) continue;
    if (!IsBlank(messages[i].content)) return i;
  }
  return std::nullopt;
}

std::vector<ChatForm> ChatRenderer::FormsFor(const std::vector<ChatMessage>& messages, const std::string& variables) const {
  const bool has_calls = std::ranges::any_of(messages, MayHaveCalls);
  const bool has_empty = std::ranges::any_of(messages, [](const ChatMessage& m) { return MayHaveCalls(m) && m.content.empty(); });
  const bool has_tools = variables.find("\"tools\"") != std::string::npos;
  std::vector<ChatForm> forms = {{.no_empty_content = has_empty && template_->AsksForNone()}};
  const auto vary = [&forms](bool applies, bool ChatForm::*member) {
    if (!applies) return;
    for (size_t i = 0, count = forms.size(); i < count; ++i) {
      forms.push_back(forms[i]);
      forms.back().*member = !(forms.back().*member);
    }
  };
  vary(has_empty, &ChatForm::no_empty_content);
  vary(has_calls, &ChatForm::argument_texts);
  vary(has_tools, &ChatForm::complete_tools);
  vary(true, &ChatForm::content_parts);
  return forms;
}

Result<RenderedChat> ChatRenderer::RenderInSomeForm(const std::vector<ChatMessage>& messages,
                                                    ChatTemplate::Variables variables) const {
  std::optional<RenderedChat> without_calls;  // what shows all but calls, where the template knows none
  std::optional<Status> wrong;                // with the first form
  for (const ChatForm& form : FormsFor(messages, variables.fields)) {
    variables.form = form;
    Result<RenderedChat> chat = template_->Render(messages, variables);
    Status status = chat.ok() ? OkStatus() : chat.status();
    if (chat.ok()) {
      const std::optional<size_t> left_out = LeftOut(messages, *chat);
      if (!left_out && ShowsCalls(messages, *chat)) return chat;
      if (!left_out) {
        if (!without_calls) without_calls = *std::move(chat);
        continue;
      }
      status = InvalidArgument("the model's chat template leaves out messages[" + std::to_string(*left_out) + "], whose role is " +
                               Quoted(messages[*left_out].role) + "; give it another role, or leave it out");
    }
    const bool may_render = status.code() == StatusCode::kInvalidArgument;  // in another form: no limit was met
    if (!wrong) wrong = std::move(status);
    if (!may_render) break;
  }
  if (without_calls) return *std::move(without_calls);
  return *wrong;
}

}  // namespace coppice
