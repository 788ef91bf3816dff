// The one place where the sizes and ranges of options and requests are checked: what is refused, with which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "engine/validate_options.h"
#include "engine/validate_request.h"

namespace coppice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr RequestLimits kLimits{.vocab_size = 100,
                                .max_context = 64,
                                .longest_context = 200,
                                .page_size = 4,
                                .num_pages = 40,
                                .max_running = 8,
                                .has_tokenizer = true};

Status Validated(const std::function<void(Request&)>& change, const RequestLimits& limits = kLimits) {
  Request request{.prompt_ids = {1, 2, 3}};
  change(request);
  return ValidateRequest(request, limits);
}

TEST(ValidateRequest, NumbersOfSamplesAreBoundedByTheCache) {
  EXPECT_TRUE(Validated([](Request& r) { r.n = 40; }).ok());
  for (const int32_t n : {41, 1'000'000'000, INT32_MAX})
    EXPECT_THAT(Validated([&](Request& r) { r.n = n; }).message(), AllOf(HasSubstr("n is " + std::to_string(n)), HasSubstr("40")));
  RequestLimits small_cache = kLimits;
  small_cache.num_pages = 8;
  small_cache.max_running = 30;  // samples take turns
  EXPECT_TRUE(Validated([](Request& r) { r.n = 30, r.max_tokens = 2; }, small_cache).ok());
  EXPECT_FALSE(Validated([](Request& r) { r.n = 31, r.max_tokens = 2; }, small_cache).ok());
}

TEST(ValidateRequest, AnErrorSaysWhatWouldHoldALongPrompt) {
  const auto message = [](size_t tokens, int32_t max_tokens, const RequestLimits& limits = kLimits) {
    return Validated([&](Request& r) { r.prompt_ids.assign(tokens, 1), r.max_tokens = max_tokens; }, limits).message();
  };
  EXPECT_EQ(message(63, 1), "");
  EXPECT_EQ(message(64, 0), "");
  EXPECT_EQ(message(64, 1),
            "the prompt has 64 tokens, the context length is 64 and must hold at least one more: shorten the prompt, or raise "
            "max_context (--max-context), which this model lets be 200");
  EXPECT_EQ(message(200, 0),
            "the prompt has 200 tokens, the context length is 64: shorten the prompt, or raise max_context (--max-context), which "
            "this model lets be 200");
  // More would not help.
  EXPECT_EQ(message(200, 1),
            "the prompt has 200 tokens, the context length is 64 and must hold at least one more: shorten the prompt; the limit of "
            "this model is 200");
  RequestLimits full = kLimits;
  full.longest_context = full.max_context;
  EXPECT_THAT(message(65, 0, full), AllOf(HasSubstr("context length is 64"), HasSubstr("the limit of this model is 64")));
  EXPECT_THAT(message(64, 1, full), ::testing::Not(HasSubstr("max_context")));
}

TEST(ValidateRequest, ListsAreBounded) {
  EXPECT_TRUE(Validated([](Request& r) { r.stop_token_ids.assign(100, 5); }).ok());
  EXPECT_THAT(Validated([](Request& r) { r.stop_token_ids.assign(101, 5); }).message(), HasSubstr("stop_token_ids has 101"));
  EXPECT_THAT(Validated([](Request& r) {
                r.sampling.logit_bias.assign(101, {5, 1.0f});
              }).message(),
              HasSubstr("logit_bias has 101"));
  EXPECT_THAT(Validated([](Request& r) { r.stop.assign(257, "x"); }).message(), HasSubstr("stop has 257 strings"));
  EXPECT_THAT(Validated([](Request& r) { r.stop = {std::string(1025, 'x')}; }).message(), HasSubstr("stop has 1025 bytes"));
  EXPECT_THAT(Validated([](Request& r) { r.stop = {"x", ""}; }).message(), HasSubstr("empty"));
  EXPECT_THAT(Validated([](Request& r) { r.cache_salt.assign(4097, 'x'); }).message(), HasSubstr("cache_salt has 4097"));
  EXPECT_THAT(Validated([](Request& r) { r.cache_tenant.name.assign(4097, 'x'); }).message(),
              HasSubstr("cache_tenant.name has 4097"));
  EXPECT_THAT(Validated([](Request& r) { r.cache_tenant.begin = -1; }).message(), HasSubstr("cache_tenant.begin is -1"));
  EXPECT_THAT(Validated([](Request& r) { r.pin_prompt_as.assign(4097, 'x'); }).message(), HasSubstr("pin_prompt_as has 4097"));
}

TEST(ValidateRequest, NumbersThatWouldLeaveTheRangeOfFloatAreRefused) {
  const auto refused = [](const std::string& field, const std::function<void(SamplingParams&, float)>& set,
                          std::initializer_list<float> values) {
    for (const float value : values) {
      const Status status = Validated([&](Request& r) { set(r.sampling, value); });
      EXPECT_THAT(status.message(), HasSubstr(field)) << value;
    }
  };
  refused("temperature", [](SamplingParams& s, float v) { s.temperature = v; }, {-1.0f, NAN, kInfinity});
  refused("top_p", [](SamplingParams& s, float v) { s.top_p = v; }, {0.0f, 1.5f, NAN});
  refused("min_p", [](SamplingParams& s, float v) { s.min_p = v; }, {-0.5f, 1.5f, NAN});
  refused("presence_penalty", [](SamplingParams& s, float v) { s.presence_penalty = v; }, {NAN, kInfinity, 3e38f, -3e38f});
  refused("frequency_penalty", [](SamplingParams& s, float v) { s.frequency_penalty = v; }, {NAN, kInfinity, 3e38f, -3e38f});
  refused("repetition_penalty", [](SamplingParams& s, float v) { s.repetition_penalty = v; }, {0.0f, 1e-38f, 3e38f, NAN});
  refused("logit_bias", [](SamplingParams& s, float v) { s.logit_bias = {{3, v}}; }, {NAN, kInfinity, 3e38f});
  EXPECT_TRUE(Validated([](Request& r) { r.sampling.logit_bias = {{3, -kInfinity}}; }).ok());  // never this token
  for (const double seconds : {-1.0, double{NAN}, double{kInfinity}, 1e300})
    EXPECT_THAT(Validated([&](Request& r) { r.timeout_seconds = seconds; }).message(), HasSubstr("timeout_seconds"));
}

TEST(ValidateRequest, ParametersAreCheckedWithoutAModel) {
  EXPECT_TRUE(ValidateParameters(Request{}).ok());  // a prompt comes later
  EXPECT_THAT(ValidateParameters(Request{.n = 0}).message(), HasSubstr("n is 0"));
  EXPECT_THAT(ValidateParameters(Request{.max_tokens = 3, .min_tokens = 4}).message(), HasSubstr("min_tokens is 4"));
  EXPECT_THAT(ValidateParameters(Request{.max_tokens = -1}).message(), HasSubstr("max_tokens is -1"));
}

TEST(ValidateRequest, APromptThatGeneratesNothingMayFillTheContext) {
  const auto filled = [](int32_t max_tokens) { return [=](Request& r) { r.prompt_ids.assign(64, 1), r.max_tokens = max_tokens; }; };
  EXPECT_TRUE(Validated(filled(0)).ok());
  EXPECT_THAT(Validated(filled(1)).message(), HasSubstr("at least one more"));
}

TEST(ValidateRequest, ScoresAreOfThePromptAndInOrder) {
  const auto validated = [](std::vector<PromptScore> scores) {
    return Validated([&](Request& r) { r.prompt_scores = std::move(scores); });
  };
  EXPECT_TRUE(validated({{0, 1}, {2, 99}, {2, 0}}).ok());
  EXPECT_THAT(validated({{3, 1}}).message(), HasSubstr("prompt_scores[0].position is 3, expected a prompt index in 0..2"));
  EXPECT_THAT(validated({{1, 1}, {0, 1}}).message(), HasSubstr("prompt_scores[1].position is 0"));
  EXPECT_THAT(validated({{-1, 1}}).message(), HasSubstr("position is -1"));
  EXPECT_THAT(validated({{0, 100}}).message(), HasSubstr("prompt_scores[0].token is 100"));
  EXPECT_THAT(Validated([](Request& r) {
                r.prompt_logprobs = true, r.prompt_scores = {{0, 1}};
              }).message(),
              HasSubstr("ask for one of the two"));
}

TEST(ValidateOptions, EveryNumberHasARange) {
  EXPECT_TRUE(ValidateOptions({}).ok());
  const auto refused = [](const char* option, const std::function<void(EngineOptions&)>& change) {
    EngineOptions options;
    change(options);
    const Status status = ValidateOptions(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << option;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(option), HasSubstr("expected")));
  };
  for (const int32_t value : {0, 257, INT32_MAX, INT32_MIN}) refused("page_size", [=](auto& o) { o.page_size = value; });
  for (const int32_t value : {0, -1, 65537, INT32_MAX}) refused("max_running", [=](auto& o) { o.max_running = value; });
  for (const int32_t value : {0, (1 << 20) + 1, INT32_MAX})
    refused("max_batch_tokens", [=](auto& o) { o.max_batch_tokens = value; });
  for (const int32_t value : {-1, 4097, INT32_MAX}) refused("num_threads", [=](auto& o) { o.num_threads = value; });
  refused("max_graphs", [](auto& o) { o.experiment.max_graphs = -1; });
  for (const int32_t value : {0, 64}) refused("draft_tokens", [=](auto& o) { o.draft_tokens = value; });
  for (const int32_t value : {0, 64}) refused("draft_branches", [=](auto& o) { o.experiment.draft_branches = value; });
  refused("chunk", [](auto& o) { o.chunk = -2; });
  for (const double value : {-0.1, double{INFINITY}, double{NAN}}) refused("target_tbt", [=](auto& o) { o.target_tbt = value; });
  refused("target_tbt", [](auto& o) { o.target_tbt = 0.1, o.experiment.schedule = SchedulePolicy::kPrefillFirst; });
  refused("max_context", [](auto& o) { o.max_context = -1; });
  refused("max_waiting", [](auto& o) { o.max_waiting = -1; });
  refused("kv_cache_bytes", [](auto& o) { o.kv_cache_bytes = -1; });
  refused("draft_model_path", [](auto& o) { o.draft = DraftMode::kModel; });
}

}  // namespace
}  // namespace coppice
