#include "cli/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/json.h"

namespace coppice::cli {
namespace {

Result<ChatMessage> ParseMessage(const nlohmann::json& message, size_t index) {
  ChatMessage parsed;
  for (const auto& [key, target] : {std::pair{"role", &parsed.role}, std::pair{"content", &parsed.content}}) {
    const auto found = message.is_object() ? message.find(key) : message.end();
    if (!message.is_object() || found == message.end() || !found->is_string())
      return InvalidArgument(fmt::format("messages[{}] is {}, expected an object with texts \"role\" and \"content\"", index,
                                         PrintableJson(message, 60)));
    *target = found->get<std::string>();
  }
  const std::string_view roles[] = {"system", "user", "assistant"};
  if (std::ranges::find(roles, parsed.role) == std::end(roles))
    return InvalidArgument(fmt::format("messages[{}] has the role {}, expected system, user or assistant", index,
                                       PrintableJson(message.at("role"), 40)));
  return parsed;
}

std::string_view Trim(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

}  // namespace

void ChatSession::SetSystem(const std::string& text) {
  if (!messages_.empty() && messages_.front().role == "system") messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", text});
}

std::vector<ChatMessage> ChatSession::With(const std::string& user) const {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", user});
  return messages;
}

void ChatSession::Answered(const std::string& user, std::vector<std::string> samples, size_t chosen) {
  messages_.push_back({"user", user});
  messages_.push_back({"assistant", samples.at(chosen)});
  samples_ = std::move(samples);
}

Status ChatSession::Pick(size_t index) {
  if (index >= samples_.size())
    return InvalidArgument(
        fmt::format("the last answer has {} samples, counted from 0; {} is none of them", samples_.size(), index));
  messages_.back().content = samples_[index];
  return OkStatus();
}

void ChatSession::Clear() {
  std::erase_if(messages_, [](const ChatMessage& message) { return message.role != "system"; });
  samples_.clear();
}

std::string ChatSession::ToJson() const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages_) messages.push_back({{"role", message.role}, {"content", message.content}});
  const nlohmann::ordered_json json = {{"messages", std::move(messages)}};
  return json.dump(1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status ChatSession::FromJson(std::string_view text) {
  COPPICE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text));
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array())
    return InvalidArgument(fmt::format("it holds {}, expected {{\"messages\": [...]}}", PrintableJson(json, 60)));
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& message : json["messages"]) {
    COPPICE_ASSIGN_OR_RETURN(ChatMessage parsed, ParseMessage(message, messages.size()));
    messages.push_back(std::move(parsed));
  }
  messages_ = std::move(messages);
  samples_.clear();
  return OkStatus();
}

std::optional<ChatCommand> ParseChatCommand(std::string_view line) {
  if (!line.starts_with('/')) return std::nullopt;
  const size_t end = std::min(line.find_first_of(" \t"), line.size());
  return ChatCommand{.name = std::string(line.substr(0, end)), .argument = std::string(Trim(line.substr(end)))};
}

}  // namespace coppice::cli
