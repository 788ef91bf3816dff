#include "cli/chat_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coppice::cli {
namespace {

using ::testing::HasSubstr;

std::string Roles(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) text += message.role.substr(0, 1) + ":" + message.content + " ";
  return text;
}

TEST(ChatSession, TheSystemMessageIsFirstAndOne) {
  ChatSession session;
  session.Answered("hi", {"hello"}, 0);
  session.SetSystem("be brief");
  session.SetSystem("be kind");
  EXPECT_EQ(Roles(session.With("more")), "s:be kind u:hi a:hello u:more ");
  session.Clear();
  EXPECT_EQ(Roles(session.messages()), "s:be kind ");
  session.SetSystem("");
  EXPECT_EQ(Roles(session.messages()), "");
}

TEST(ChatSession, PickReplacesTheLastAnswer) {
  ChatSession session;
  EXPECT_THAT(session.Pick(0).message(), HasSubstr("has 0 samples"));
  session.Answered("hi", {"a", "b", "c"}, 1);
  EXPECT_EQ(Roles(session.messages()), "u:hi a:b ");
  EXPECT_TRUE(session.Pick(2).ok());
  EXPECT_EQ(Roles(session.messages()), "u:hi a:c ");
  EXPECT_THAT(session.Pick(3).message(), HasSubstr("3 is none of them"));
}

TEST(ChatSession, JsonThereAndBack) {
  ChatSession session;
  session.SetSystem("höflich");
  session.Answered("a \"quoted\"\nline", {"yes"}, 0);
  ChatSession copy;
  ASSERT_TRUE(copy.FromJson(session.ToJson()).ok());
  EXPECT_EQ(Roles(copy.messages()), Roles(session.messages()));
}

TEST(ChatSession, WhatIsNoConversationChangesNothing) {
  ChatSession session;
  session.Answered("hi", {"hello"}, 0);
  for (const auto& [text, words] : {std::pair{"[]", "expected {\"messages\""},
                                    {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0]"},
                                    {"{\"messages\": [{\"role\": \"bot\", \"content\": \"x\"}]}", "the role \"bot\""},
                                    {"{\"messages\": [1]}", "messages[0] is 1"},
                                    {"{", "JSON"}}) {
    const Status status = session.FromJson(text);
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(status.message(), HasSubstr(words)) << text;
    EXPECT_EQ(Roles(session.messages()), "u:hi a:hello ");
  }
}

TEST(ChatCommand, NameAndArgument) {
  EXPECT_FALSE(ParseChatCommand("what is 1/2?"));
  const std::optional<ChatCommand> command = ParseChatCommand("/system  be brief ");
  ASSERT_TRUE(command);
  EXPECT_EQ(command->name, "/system");
  EXPECT_EQ(command->argument, "be brief");
  EXPECT_EQ(ParseChatCommand("/n")->argument, "");
}

}  // namespace
}  // namespace coppice::cli
