#include "cli/run_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/progress_line.h"

namespace coppice::cli {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

openai::Generation ThreeSamples() {
  openai::Generation generation;
  generation.prompt_ids = {1, 2};
  generation.prompt_logprobs = {std::nullopt, -0.25f};
  generation.samples = {
      {.index = 0, .text = "low", .token_ids = {5, 6}, .logprobs = {-2, -3}, .finish_reason = FinishReason::kLength},
      {.index = 1, .text = "cut off", .token_ids = {7}, .logprobs = {-1}, .finish_reason = FinishReason::kCancelled},
      {.index = 2, .text = "h\u00f6ch", .token_ids = {8}, .logprobs = {-0.5f}, .finish_reason = FinishReason::kStop},
  };
  return generation;
}

TEST(FormatSample, HeadingThenText) {
  const openai::Generation generation = ThreeSamples();
  EXPECT_EQ(FormatSample(generation.samples[0]), "--- sample 0: 2 tokens, length, mean log-probability -2.500\nlow\n");
  EXPECT_EQ(FormatSample(generation.samples[2], 1),
            "--- rank 1, sample 2: 1 tokens, stop, mean log-probability -0.500\nh\u00f6ch\n");
}

TEST(FormatSample, IdsWithoutATokenizer) {
  EXPECT_EQ(FormatSample({.index = 3, .token_ids = {4, 5}, .finish_reason = FinishReason::kLength}),
            "--- sample 3: 2 tokens, length\n4,5\n");
}

TEST(FormatJson, SchemaAndOrder) {
  const openai::Generation generation = ThreeSamples();
  const json object = json::parse(FormatJson(generation, MakeRunStats({}, {}, generation), {}));
  EXPECT_EQ(object["prompt_ids"], json({1, 2}));
  EXPECT_EQ(object["prompt_logprobs"], json({nullptr, -0.25}));
  ASSERT_EQ(object["samples"].size(), 2u);  // the cancelled one is not finished
  EXPECT_EQ(object["samples"][0], json({{"index", 0},
                                        {"text", "low"},
                                        {"token_ids", {5, 6}},
                                        {"logprobs", {-2.0, -3.0}},
                                        {"mean_logprob", -2.5},
                                        {"finish_reason", "length"}}));
  EXPECT_EQ(object["stats"]["samples_finished"], 2);
  EXPECT_EQ(object["stats"]["interrupted"], false);
  EXPECT_EQ(object["usage"]["shared_prefix"], json::parse(R"({"tokens": 0, "sharers": 0, "kv_bytes_not_read": 0})"));

  const json ranked = json::parse(FormatJson(generation, MakeRunStats({}, {}, generation), {.selection = {.rank = true}}));
  EXPECT_EQ(ranked["samples"][0]["index"], 2);
}

TEST(FormatJson, EchoAndVotes) {
  openai::Generation generation = ThreeSamples();
  generation.prompt_text = "say: ";
  const std::vector<VotedAnswer> votes = {{.answer = "low", .voters = {0}, .mean_logprob = -2.5}};
  const json object = json::parse(
      FormatJson(generation, MakeRunStats({}, {}, generation), {.selection = {.best = 1}, .echo = true, .votes = &votes}));
  ASSERT_EQ(object["samples"].size(), 1u);
  const json& sample = object["samples"][0];
  EXPECT_EQ(sample["text"], "say: h\u00f6ch");
  EXPECT_EQ(sample["token_ids"], json({1, 2, 8}));
  EXPECT_EQ(sample["logprobs"], json({nullptr, -0.25, -0.5}));
  EXPECT_EQ(sample["mean_logprob"], -0.5);  // of what was generated
  EXPECT_EQ(object["votes"], json::parse(R"([{"answer": "low", "samples": [0], "mean_logprob": -2.5}])"));
  EXPECT_EQ(FormatSample(generation.samples[2], 0, "say: "),
            "--- sample 2: 1 tokens, stop, mean log-probability -0.500\nsay: h\u00f6ch\n");
  EXPECT_EQ(FormatVotes(votes, 2), "vote: low (1 of 2 samples: 0)\n");
  EXPECT_EQ(FormatVotes({}, 2), "vote: no sample has an answer\n");
}

TEST(FormatJson, SurvivesWhatJsonCannotHold) {
  openai::Generation generation;
  generation.samples = {{.text = "\xff", .token_ids = {1}, .logprobs = {-INFINITY}, .finish_reason = FinishReason::kStop}};
  const json object = json::parse(FormatJson(generation, MakeRunStats({}, {}, generation), {}));
  EXPECT_EQ(object["samples"][0]["text"], "\ufffd");
  EXPECT_TRUE(object["samples"][0]["logprobs"][0].is_null());
  EXPECT_FALSE(object.contains("prompt_logprobs"));
}

TEST(FormatProgress, RateAndTimeLeftOnlyOnceThereAreTokens) {
  EngineMetrics metrics{.prefilled_tokens = 256};
  openai::GenerationProgress progress{.metrics = &metrics, .prompt_tokens = 512, .tokens_wanted = 64, .samples = 4};
  EXPECT_THAT(FormatProgress(progress), ElementsAre("[##########..........] prompt 256/512 tokens"));
  metrics = {.prefilled_tokens = 2048, .generated_tokens = 32, .decode_seconds = 2};  // mode `none` prefills each copy
  progress.decode_tokens = 16;
  progress.samples_finished = 1;
  EXPECT_THAT(FormatProgress(progress), ElementsAre("[##########..........] 32/64 tokens", "8.0/s", "0:04 left", "1/4 samples"));
}

TEST(FitParts, WhatIsLastIsLeftOutFirst) {
  const std::vector<std::string> parts = {"[####] 3/9", "12.0/s", "0:41 left"};
  EXPECT_EQ(FitParts(parts, 80), "[####] 3/9, 12.0/s, 0:41 left");
  EXPECT_EQ(FitParts(parts, 29), "[####] 3/9, 12.0/s, 0:41 left");
  EXPECT_EQ(FitParts(parts, 28), "[####] 3/9, 12.0/s");
  EXPECT_EQ(FitParts(parts, 4), "[###");
  EXPECT_EQ(FitParts({"模型.gguf"}, 3), "模");  // two columns a character
}

TEST(FormatTimeLeft, HoursWhereThereAreSome) {
  EXPECT_EQ(FormatTimeLeft(0.2), "0:01 left");
  EXPECT_EQ(FormatTimeLeft(41), "0:41 left");
  EXPECT_EQ(FormatTimeLeft(7400), "2:03:20 left");
  EXPECT_EQ(FormatTimeLeft(-5), "0:00 left");
}

TEST(SampleStream, TextAsItComesAndTokenIdsWhereThereIsNone) {
  SampleStream text(true);
  EXPECT_EQ(text.Add({.index = 0, .token_ids = {5}, .text = " Paris"}), " Paris");
  EXPECT_EQ(text.Add({.index = 0, .token_ids = {6}, .text = ".\n"}), ".\n");
  EXPECT_EQ(text.End(), "");
  SampleStream ids(false);
  EXPECT_EQ(ids.End(), "");
  EXPECT_EQ(ids.Add({.index = 0, .token_ids = {5, 6}}), "5,6");
  EXPECT_EQ(ids.Add({.index = 0, .token_ids = {7}}), ",7");
  EXPECT_EQ(ids.End(), "\n");
}

}  // namespace
}  // namespace coppice::cli
