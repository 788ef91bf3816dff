// llama.cpp's /infill: its fields, and answers in its form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "openai/infill_answer.h"
#include "openai/infill_request.h"
#include "tests/support/byte_tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class InfillTest : public ::testing::Test {
 protected:
  std::optional<OpenAiRequest> Parse(json body) {
    error_ = {};
    body.emplace("input_prefix", "p");
    body.emplace("input_suffix", "s");
    return ParseInfill(body, parser_, &error_);
  }
  OpenAiRequest Parsed(const json& body) {
    std::optional<OpenAiRequest> parsed = Parse(body);
    EXPECT_TRUE(parsed) << body << error_.status.message();
    return parsed.value_or(OpenAiRequest());
  }
  std::string RefusedParam(const json& body) {
    EXPECT_FALSE(Parse(body)) << body;
    return error_.param;
  }

  const ByteTokenizer tokenizer_{
      Tokenizer::Info{.eos_ids = {0}, .fim = {.prefix = 1, .suffix = 2, .middle = 3, .repository = 4, .file = 5, .ends = {4, 5}}}};
  const OpenAiRequestParser parser_{&tokenizer_, 1000, OkStatus(), 256, {.unknown_fields = UnknownFields::kIgnore}};
  BodyError error_;
};

TEST_F(InfillTest, ThePromptStandsBehindThePrefix) {
  EXPECT_THAT(*parser_.Encode(Parsed({{"prompt", "q"}})), ElementsAre(1, 'p', 'q', 2, 's', 3));
  EXPECT_THAT(*parser_.Encode(Parsed({{"input_prefix", ""}, {"input_suffix", ""}})), ElementsAre(1, 2, 3));
  EXPECT_THAT(Parsed(json::object()).request.stop_token_ids, ElementsAre(4, 5));
}

TEST_F(InfillTest, OtherFilesComeFirst) {
  const std::vector<int32_t> ids =
      *parser_.Encode(Parsed(json::parse(R"({"input_extra": [{"filename": "f", "text": "t"}, {"text": "u"}]})")));
  EXPECT_EQ(tokenizer_.Decode(ids), "\4myproject\n\5f\nt\5tmp\nu\5filename\n\1p\2s\3");
  EXPECT_EQ(RefusedParam(json::parse(R"({"input_extra": [{"filename": "f"}]})")), "input_extra[0].text");
  EXPECT_EQ(RefusedParam({{"input_extra", "t"}}), "input_extra");
}

TEST_F(InfillTest, FieldsHaveLlamaCppsNames) {
  const OpenAiRequest parsed = Parsed({{"n_predict", 7},
                                       {"repeat_penalty", 1.25},
                                       {"top_k", 40},
                                       {"min_p", 0.05},
                                       {"seed", 5},
                                       {"stop", {"\n"}},
                                       {"stream", true},
                                       {"logit_bias", json::parse("[[65, 0.5]]")},
                                       {"cache_prompt", true},
                                       {"id_slot", 0}});
  EXPECT_EQ(parsed.max_tokens, 7);
  EXPECT_EQ(parsed.request.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(parsed.request.sampling.top_k, 40);
  EXPECT_EQ(parsed.request.sampling.min_p, 0.05f);
  EXPECT_EQ(parsed.request.sampling.seed, 5u);
  EXPECT_THAT(parsed.request.stop, ElementsAre("\n"));
  EXPECT_THAT(parsed.request.sampling.logit_bias, ElementsAre(::testing::Pair(65, 0.5f)));
  EXPECT_TRUE(parsed.stream);
  EXPECT_THAT(parsed.ignored_fields, IsEmpty());
  for (const int n : {-1, -2}) EXPECT_TRUE(Parsed({{"n_predict", n}}).no_limit);
  EXPECT_TRUE(Parsed(json::object()).no_limit);
  EXPECT_EQ(Parsed({{"n_predict", 0}}).max_tokens, 0);
}

TEST_F(InfillTest, WhatEditorsSendIsIgnoredAndReportedAndTheRestRefused) {
  EXPECT_THAT(Parsed({{"samplers", {"top_k", "infill"}}, {"t_max_predict_ms", 500}, {"mood", 1}}).ignored_fields,
              ::testing::UnorderedElementsAre("samplers", "t_max_predict_ms", "mood"));
  EXPECT_EQ(RefusedParam({{"mirostat", 2}}), "mirostat");
  EXPECT_EQ(RefusedParam({{"n_predict", "x"}}), "n_predict");
  EXPECT_EQ(RefusedParam({{"repeat_penalty", "x"}}), "repeat_penalty");
  EXPECT_EQ(RefusedParam({{"prompt", {1}}}), "prompt");
  EXPECT_FALSE(ParseInfill({{"input_prefix", "a"}}, parser_, &error_));
  EXPECT_EQ(error_.param, "input_suffix");
  const ByteTokenizer plain{""};
  const OpenAiRequestParser none(&plain, 100);
  EXPECT_FALSE(ParseInfill({{"input_prefix", "a"}, {"input_suffix", ""}}, none, &error_));
  EXPECT_THAT(error_.status.message(), HasSubstr("no fill-in-the-middle tokens"));
}

TEST_F(InfillTest, AnswersHaveLlamaCppsForm) {
  struct Case {
    FinishReason reason;
    int32_t last;
    const char* stop_type;
  };
  for (const auto& [reason, last, stop_type] :
       {Case{FinishReason::kStop, 0, "eos"}, Case{FinishReason::kStop, 5, "eos"}, Case{FinishReason::kStop, 'b', "word"},
        Case{FinishReason::kLength, 'b', "limit"}}) {
    Answer answer{.request = Parsed({{"return_tokens", true}}), .usage = {.prompt = 6, .cached = 2, .completion = 3}};
    answer.output.samples = {{.text = "a\n", .token_ids = {'a', '\n', last}, .finish_reason = reason}};
    const json body = json::parse(TextOf(InfillBody(answer, {.model = "m"}, &tokenizer_).get()));
    EXPECT_EQ(body, json::parse(R"({"index": 0, "content": "a\n", "tokens": [97, 10, )" + std::to_string(last) + R"(], "stop": true,
        "id_slot": -1, "tokens_predicted": 3, "tokens_evaluated": 6, "model": "m", "has_new_line": true, "truncated": false,
        "stop_type": ")" + stop_type +
                                R"(", "tokens_cached": 2})"));
  }
}

TEST_F(InfillTest, StreamsHaveLlamaCppsForm) {
  OpenAiRequest request = Parsed({{"stream", true}});
  request.request.prompt_ids = {1, 2, 3};
  const std::unique_ptr<AnswerStream> stream = StreamOf(&request, {.model = "m"}, 0, &tokenizer_);
  std::string out;
  stream->Append({.index = 0, .token_ids = {'a'}, .text = "a"}, &out);
  stream->Append({.index = 0, .token_ids = {0}, .finish_reason = FinishReason::kStop}, &out);
  EXPECT_EQ(stream->End({.prompt = 3, .completion = 2}, {}, &out), nullptr);
  std::vector<json> objects;
  for (size_t begin = 0; begin < out.size();) {
    const size_t end = out.find("\n\n", begin);
    ASSERT_EQ(out.substr(begin, 6), "data: ");
    objects.push_back(json::parse(out.substr(begin + 6, end - begin - 6)));
    begin = end + 2;
  }
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0]["content"], "a");
  EXPECT_EQ(objects[0]["stop"], false);
  EXPECT_EQ(objects[0]["tokens"], json::array());
  EXPECT_EQ(objects[1]["content"], "");
  EXPECT_EQ(objects[1]["stop"], true);
  EXPECT_EQ(objects[1]["stop_type"], "eos");
  EXPECT_EQ(objects[1]["tokens_evaluated"], 3);
  out.clear();
  stream->End({}, {.status = Internal("lost"), .param = ""}, &out);
  EXPECT_THAT(out, HasSubstr(R"("message":"lost")"));
}

}  // namespace
}  // namespace coppice::openai
