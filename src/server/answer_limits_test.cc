// Bounds on answers that are not computed yet: what is refused, what is lowered, what the message says.
#include "server/answer_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "openai/answer_size.h"

namespace coppice::server {
namespace {

using openai::BodyError;
using openai::OpenAiRequest;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kContext = 8192;

// A request as parsed: n choices, `max_tokens` named or not.
OpenAiRequest Request(int32_t n, int32_t prompt_tokens, int32_t max_tokens, bool named = true) {
  OpenAiRequest request{.choices = n};
  request.request.n = n;
  request.request.prompt_ids = std::vector<int32_t>(prompt_tokens, 1);
  request.request.max_tokens = max_tokens;
  if (named) request.max_tokens = max_tokens;
  return request;
}

TEST(AnswerLimits, ChoicesOfAPrompt) {
  std::vector<OpenAiRequest> prompts = {Request(129, 5, 1)};
  const BodyError many = CheckAnswer({}, kContext, prompts);
  EXPECT_EQ(many.param, "n");
  EXPECT_THAT(many.status.message(), AllOf(HasSubstr("n is 129"), HasSubstr("128"), HasSubstr("--max-choices")));
  prompts.front().choices = 1;
  EXPECT_EQ(CheckAnswer({}, kContext, prompts).param, "best_of");
  EXPECT_TRUE(CheckAnswer({.max_choices = 0}, kContext, prompts).status.ok());
  prompts.front().request.n = 128;
  EXPECT_TRUE(CheckAnswer({}, kContext, prompts).status.ok());
}

TEST(AnswerLimits, EchoTimesChoicesTimesAlternatives) {
  std::vector<OpenAiRequest> prompts = {Request(16'000, 200, 0)};
  OpenAiRequest& request = prompts.front();
  request.logprobs = true;
  EXPECT_TRUE(CheckAnswer({.max_choices = 0}, kContext, prompts).status.ok());
  request.request.echo = true;
  request.request.top_logprobs = 20;
  const BodyError large = CheckAnswer({.max_choices = 0}, kContext, prompts);
  EXPECT_EQ(large.param, "n");
  EXPECT_THAT(large.status.message(), AllOf(HasSubstr("16000 choices"), HasSubstr("3200000 tokens of echoed prompts"),
                                            HasSubstr("20 alternatives"), HasSubstr("128.0 MiB"), HasSubstr("--max-answer")));
  EXPECT_TRUE(CheckAnswer({.max_choices = 0, .max_bytes = 0}, kContext, prompts).status.ok());
  request.request.n = 128;
  EXPECT_TRUE(CheckAnswer({}, kContext, prompts).status.ok());
}

TEST(AnswerLimits, ListsOfPromptsCountTogether) {
  OpenAiRequest one = Request(8, 100, 8000);
  one.logprobs = true;
  const double bytes = AnswerBytes(one, LargestExtent(one, kContext));
  std::vector<OpenAiRequest> prompts(10, one);
  EXPECT_TRUE(CheckAnswer({.max_bytes = static_cast<int64_t>(bytes * 10.5)}, kContext, prompts).status.ok());
  EXPECT_FALSE(CheckAnswer({.max_bytes = static_cast<int64_t>(bytes * 9.5)}, kContext, prompts).status.ok());
}

TEST(AnswerLimits, OutputThatIsNotNamedIsLowered) {
  for (const bool named : {false, true}) {
    OpenAiRequest one = Request(64, 100, kContext - 100, named);
    one.logprobs = true;
    one.request.top_logprobs = 20;
    std::vector<OpenAiRequest> prompts(2, one);
    constexpr AnswerLimits kLimits = {.max_bytes = int64_t{8} << 20};
    const BodyError error = CheckAnswer(kLimits, kContext, prompts);
    ASSERT_EQ(error.status.ok(), !named) << error.status.message();
    if (named) continue;
    for (const OpenAiRequest& prompt : prompts) EXPECT_EQ(prompt.request.max_tokens, prompts.front().request.max_tokens);
    double bytes = 0;
    for (const OpenAiRequest& prompt : prompts) bytes += AnswerBytes(prompt, LargestExtent(prompt, kContext));
    EXPECT_LE(bytes, kLimits.max_bytes);
    EXPECT_GT(bytes, 0.9 * kLimits.max_bytes);
  }
}

TEST(AnswerLimits, Scores) {
  openai::ScoreRequest request;
  for (int i = 0; i < 100; ++i) request.sequences.push_back({.tokens = std::vector<int32_t>(1001, 1), .begin = 1});
  EXPECT_TRUE(CheckAnswer({}, request).status.ok());
  const BodyError large = CheckAnswer({.max_bytes = 1 << 20}, request);
  EXPECT_EQ(large.param, "continuations");
  EXPECT_THAT(large.status.message(), HasSubstr("100000 scored tokens of 100 continuations"));
}

}  // namespace
}  // namespace coppice::server
