#include "openai/prompt_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "openai/request.h"
#include "openai/score_request.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int32_t kContext = 10;
constexpr size_t kTokenBytes = 4;

// Tokens of kTokenBytes bytes; counts the texts that it was asked for.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(const char* end_of_message = "")
      : Tokenizer({.chat_template =
                       std::string("{% for message in messages %}{{ message['content'] }}") + end_of_message + "{% endfor %}"}) {}
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions&) const override {
    ++encoded;
    return std::vector<int32_t>(text.size() / kTokenBytes + 1, 1);
  }
  std::string_view TokenBytes(int32_t id, bool) const override { return id == 1 ? "abcd" : "a"; }

  mutable int encoded = 0;
};

class PromptBoundsTest : public ::testing::Test {
 protected:
  // The error of a request whose prompt no work may go into.
  BodyError Refused(Endpoint endpoint, const json& body) {
    BodyError error;
    const std::optional<OpenAiRequest> parsed = parser_.Parse(endpoint, body, &error);
    if (parsed) {
      const Result<std::vector<int32_t>> ids = parser_.Encode(*parsed);
      EXPECT_FALSE(ids.ok());
      error = parsed->PromptError(ids.status());
    }
    EXPECT_EQ(tokenizer_.encoded, 0);
    return error;
  }

  CountingTokenizer tokenizer_;
  OpenAiRequestParser parser_{&tokenizer_, kContext, NotFound("none"), /*vocab_size=*/3};
};

TEST_F(PromptBoundsTest, ATextThatFitsIsTokenized) {
  const std::string text(kContext * kTokenBytes, 'a');
  BodyError error;
  const std::optional<OpenAiRequest> parsed = parser_.Parse(Endpoint::kCompletions, {{"prompt", text}}, &error);
  ASSERT_TRUE(parsed) << error.status.message();
  EXPECT_TRUE(parser_.Encode(*parsed).ok());
  EXPECT_TRUE(ParseTokenize({{"prompt", text}}, parser_.bounds(), &error));
}

TEST_F(PromptBoundsTest, OneThatCannotFitIsRefusedByItsBytes) {
  const std::string text(kContext * kTokenBytes + 1, 'a');
  EXPECT_THAT(Refused(Endpoint::kCompletions, {{"prompt", text}}).status.message(),
              HasSubstr("41 bytes; the context has 10 tokens, which are at most 4 bytes each, 40 together"));
  const json messages = json::array({{{"role", "user"}, {"content", text}}});
  EXPECT_EQ(Refused(Endpoint::kChatCompletions, {{"messages", messages}}).param, "messages");
  BodyError error;
  EXPECT_FALSE(ParseTokenize({{"prompt", text}}, parser_.bounds(), &error));
  EXPECT_EQ(error.param, "prompt");
  EXPECT_FALSE(ParseDetokenize({{"tokens", std::vector<int>(kContext + 1, 1)}}, 100, parser_.bounds(), &error));
  EXPECT_EQ(error.param, "tokens");
  EXPECT_TRUE(ParseDetokenize({{"tokens", std::vector<int>(kContext, 1)}}, 100, parser_.bounds(), &error));
}

// Its messages fit, and what the template makes of them does not.
TEST_F(PromptBoundsTest, ThePromptsErrorNamesTheFieldThatHoldsIt) {
  const std::string text(kContext * kTokenBytes - std::string_view("user").size(), 'a');
  EXPECT_EQ(Refused(Endpoint::kCompletions, {{"prompt", text + "user."}}).param, "prompt");
  const CountingTokenizer tokenizer("<|end of message|>");
  const OpenAiRequestParser parser(&tokenizer, kContext, NotFound("none"), /*vocab_size=*/3);
  const auto field_of = [&](Endpoint endpoint, const json& body) {
    BodyError error;
    const std::optional<OpenAiRequest> parsed = parser.Parse(endpoint, body, &error);
    EXPECT_TRUE(parsed) << error.status.message();
    if (!parsed) return std::string();
    const Status status = parser.Encode(*parsed).status();
    EXPECT_THAT(status.message(), HasSubstr("the prompt has 54 bytes; the context has 10 tokens"));
    return parsed->PromptError(status).param;
  };
  const json messages = json::array({{{"role", "user"}, {"content", text}}});
  EXPECT_EQ(field_of(Endpoint::kChatCompletions, {{"messages", messages}}), "messages");
  EXPECT_EQ(field_of(Endpoint::kResponses, {{"input", text}}), "input");
}

TEST_F(PromptBoundsTest, MessagesAreATokenEachAtLeast) {
  json messages = json::array();
  for (int i = 0; i <= kContext; ++i) messages.push_back({{"role", "user"}, {"content", ""}});
  EXPECT_THAT(Refused(Endpoint::kChatCompletions, {{"messages", messages}}).status.message(),
              HasSubstr("the list of messages has 11 entries, each a token at least; the context has 10 tokens"));
}

TEST_F(PromptBoundsTest, TextsOfAScoreAreBoundedTogether) {
  const CountingTokenizer tokenizer;
  const OpenAiRequestParser parser(&tokenizer, 1 << 20);
  BodyError error;
  const json body = {{"prompt", std::string(1 << 20, ' ')}, {"continuations", std::vector<std::string>(100, "abcd")}};
  EXPECT_FALSE(ParseScore(body, parser, &error));
  EXPECT_THAT(error.status.message(), HasSubstr("in all; send several requests"));
  EXPECT_LT(tokenizer.encoded, 50);
}

TEST(PromptBounds, WhereNothingIsKnownAnyTextMayFit) {
  const CountingTokenizer tokenizer;
  EXPECT_EQ(PromptBounds(&tokenizer, 3, 10).max_bytes(), 40u);
  for (const PromptBounds& bounds : {PromptBounds(nullptr, 3, 10), PromptBounds(&tokenizer, 0, 10), PromptBounds(&tokenizer, 3, 0)})
    EXPECT_EQ(bounds.max_bytes(), std::numeric_limits<size_t>::max());
  EXPECT_TRUE(PromptBounds(&tokenizer, 3, 0).CheckTokens("tokens", 1000).ok());
}

}  // namespace
}  // namespace coppice::openai
