#include "cli/logprob_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace coppice::cli {
namespace {

using ::testing::HasSubstr;

LogprobComparison Compare(const std::string& rollout, const std::string& trainer, size_t worst = 2) {
  return CompareLogprobs(ReadLogprobs(rollout).value(), ReadLogprobs(trainer).value(), worst).value();
}

TEST(LogprobComparison, SaysHowFarTwoSidesAreApart) {
  const LogprobComparison c = Compare(R"({"id": "a", "token_ids": [5, 6, 7], "logprobs": [-1, null, -0.5]}
{"token_ids": [8], "logprobs": [-2]})",
                                      R"({"logprobs": [-1.25, -3, -0.25]}
{"logprobs": [-1.5]})");
  EXPECT_EQ(c.sequences, 2);
  EXPECT_EQ(c.tokens, 3);
  EXPECT_EQ(c.left_out, 1);
  EXPECT_NEAR(c.mean, (0.25 + 0.25 + 0.5) / 3, 1e-12);
  EXPECT_NEAR(c.bias, 0.5 / 3, 1e-12);
  EXPECT_NEAR(c.k1, -0.5 / 3, 1e-12);
  EXPECT_NEAR(c.k3, (std::exp(-0.25) - 0.75 + std::exp(0.25) - 1.25 + std::exp(0.5) - 1.5) / 3, 1e-12);
  EXPECT_EQ(c.largest, 0.5);
  EXPECT_NEAR(c.largest_ratio, std::exp(0.5), 1e-12);
  EXPECT_NEAR(c.deviation, std::sqrt((std::pow(-0.25 - c.bias, 2) + std::pow(0.25 - c.bias, 2) + std::pow(0.5 - c.bias, 2)) / 3),
              1e-12);
  ASSERT_EQ(c.worst.size(), 2u);
  EXPECT_EQ(c.worst[0].sequence, "sequence 2");
  EXPECT_EQ(c.worst[0].token_id, 8);
  EXPECT_EQ(c.worst[1].sequence, "a");
  EXPECT_THAT(TextOf(c), HasSubstr("3 tokens of 2 sequences, 1 without a log-probability left out"));
  const nlohmann::json json = nlohmann::json::parse(JsonOf(c));
  EXPECT_EQ(json["tokens"], 3);
  EXPECT_EQ(json["worst"][0]["difference"], 0.5);
}

TEST(LogprobComparison, EqualSidesAreNoNatsApart) {
  const std::string line = R"({"logprobs": [-1.5, -0.25, -7]})";
  const LogprobComparison c = Compare(line, line);
  EXPECT_EQ(c.largest, 0);
  EXPECT_EQ(c.k1, 0);
  EXPECT_EQ(c.k3, 0);
}

TEST(LogprobComparison, ReadsWhatServersAnswer) {
  const auto completion = ReadLogprobs(
      R"({"id": "cmpl-1", "choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1, -2]}}, {"logprobs": {"token_logprobs": [-3]}}]})");
  ASSERT_TRUE(completion.ok()) << completion.status().ToString();
  ASSERT_EQ(completion->size(), 2u);
  EXPECT_EQ((*completion)[0].token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ((*completion)[1].name, "cmpl-1, choice 1");
  const auto tokens = ReadLogprobs(R"({"choices": [{"logprobs": {"content": [{"token_id": 4, "logprob": -1, "rank": 1}]}}]})");
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  EXPECT_EQ((*tokens)[0].token_ids, std::vector<int32_t>{4});
  const auto batch = ReadLogprobs(
      R"({"custom_id": "x", "response": {"status_code": 200, "body": {"choices": [{"logprobs": {"token_logprobs": [-1]}}]}}})");
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ((*batch)[0].name, "x");
}

TEST(LogprobComparison, NamesWhatIsWrong) {
  const auto error = [](const std::string& text) { return ReadLogprobs(text).status().message(); };
  EXPECT_THAT(error(R"({"logprobs": [-1]}
{"logprobs": [0.5]})"),
              HasSubstr("logprobs is 0.5, expected a number of at most 0, or null"));
  EXPECT_THAT(error(R"({"logprobs": [0.5]})"), HasSubstr("line 1"));
  EXPECT_THAT(error(R"({"token_ids": [1]})"), HasSubstr("neither logprobs nor choices"));
  EXPECT_THAT(error(R"({"token_ids": [1, 2], "logprobs": [-1]})"), HasSubstr("token_ids has 2 entries and logprobs 1"));
  EXPECT_THAT(error(R"({"token_ids": [-4], "logprobs": [-1]})"), HasSubstr("token_ids is -4, expected a token id"));
  EXPECT_THAT(error(R"({"choices": [{"text": "a"}]})"), HasSubstr("a choice has no logprobs"));
  EXPECT_THAT(error(R"({"choices": [{"logprobs": {"content": [{"token_id": 4, "logprob": -1}, {"logprob": -1}]}}]})"),
              HasSubstr("token_id in some of its entries"));
  const auto both = [](const std::string& rollout, const std::string& trainer) {
    return CompareLogprobs(ReadLogprobs(rollout).value(), ReadLogprobs(trainer).value(), 1).status().message();
  };
  EXPECT_THAT(both(R"({"logprobs": [-1]})", R"({"logprobs": [-1, -2]})"),
              HasSubstr("has 1 log-probabilities of the rollout and 2"));
  EXPECT_THAT(both(R"({"logprobs": [-1]})", "{\"logprobs\": [-1]}\n{\"logprobs\": [-1]}"),
              HasSubstr("1 sequences and the trainer 2"));
  EXPECT_THAT(both(R"({"logprobs": [-1], "token_ids": [4]})", R"({"logprobs": [-1], "token_ids": [5]})"),
              HasSubstr("is 4 in the rollout and 5 in the trainer's file"));
  EXPECT_THAT(both(R"({"logprobs": [null]})", R"({"logprobs": [-1]})"), HasSubstr("no token of which both"));
}

}  // namespace
}  // namespace coppice::cli
