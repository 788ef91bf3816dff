// A batch over an engine with a fake model that the test steps: how much of it is in the engine, the requests it gives way to, how
// it is cancelled, and what another run finds of it.
#include "openai/batch_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice::openai {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int32_t kContext = 64;

std::vector<json> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<json> lines;
  for (std::string text; std::getline(file, text);) lines.push_back(json::parse(text));
  return lines;
}

std::vector<std::string> IdsOf(const std::vector<json>& lines) {
  std::vector<std::string> ids;
  for (const json& line : lines) ids.push_back(line["custom_id"]);
  return ids;
}

class BatchRunTest : public ::testing::Test {
 protected:
  BatchRunTest() { fs::create_directories(folder_); }
  ~BatchRunTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void WriteInput(const std::vector<json>& lines) const {
    std::ofstream file(Path("in"));
    for (const json& line : lines) file << line.dump() << "\n";
  }
  static json Line(const std::string& custom_id, json body, const char* url = "/v1/completions") {
    return {{"custom_id", custom_id}, {"method", "POST"}, {"url", url}, {"body", std::move(body)}};
  }
  static json Greedy(int32_t token, int32_t max_tokens = 4) {
    return {{"prompt", {1, 2, token}}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
  }
  // `count` requests named "0", "1", ...
  void WriteRequests(int count) const {
    std::vector<json> lines;
    for (int i = 0; i < count; ++i) lines.push_back(Line(std::to_string(i), Greedy(3 + i)));
    WriteInput(lines);
  }
  void Open(BatchRunOptions options = {}, BatchRules rules = {}) {
    Close();
    output_.emplace(BatchOutput::Open(Path("out")).value());
    errors_.emplace(BatchErrors::Resume(Path("errors")).value());
    input_.emplace(BatchInput::Read(Path("in"), parser_, *output_, &*errors_, std::move(rules)).value());
    options.model = "fake";
    run_.emplace(&harness_.engine(), &*input_, &parser_, std::move(options), nullptr, &*output_, &*errors_);
  }
  void Close() {
    run_.reset();
    input_.reset();
    output_.reset();
    errors_.reset();
  }
  void Turn() {
    ASSERT_TRUE(run_->Submit().ok());
    harness_.Step();
    const Status written = run_->WriteFinished();
    ASSERT_TRUE(written.ok()) << written.message();
  }
  void RunToEnd() {
    for (int turn = 0; turn < 1000 && !run_->done(); ++turn) Turn();
    EXPECT_TRUE(run_->done());
  }
  int32_t InEngine() const {
    const EngineLoad load = harness_.engine().Load();
    return load.waiting + load.running;
  }

  const std::string folder_ = fs::temp_directory_path() / ("batch_run_test." + std::to_string(getpid()));
  mutable EngineHarness harness_{{.model = {.max_position = kContext}, .max_running = 4, .max_waiting = 3}};
  OpenAiRequestParser parser_{nullptr, kContext};
  std::optional<BatchOutput> output_;
  std::optional<BatchErrors> errors_;
  std::optional<BatchInput> input_;
  std::optional<BatchRun> run_;
};

TEST_F(BatchRunTest, AnswersAreWritten) {
  WriteRequests(9);
  TokenUsage usage;
  Open({.on_answer = [&](const TokenUsage& one) {
    usage.prompt += one.prompt;
    usage.completion += one.completion;
  }});
  RunToEnd();
  EXPECT_EQ(run_->counts().answered, 9);
  EXPECT_EQ(usage.prompt, 27);
  EXPECT_EQ(usage.completion, 36);
  const std::vector<json> answers = LinesOf(Path("out"));
  ASSERT_EQ(answers.size(), 9);
  for (const json& answer : answers) {
    const std::vector<int32_t> prompt = {1, 2, 3 + std::stoi(answer["custom_id"].get<std::string>())};
    EXPECT_EQ(answer["response"]["body"]["choices"][0]["token_ids"], json(harness_.GreedyAfter(prompt, 4)));
    EXPECT_EQ(answer["response"]["status_code"], 200);
    EXPECT_TRUE(answer["error"].is_null());
  }
  EXPECT_FALSE(fs::exists(Path("errors")));
}

TEST_F(BatchRunTest, ABoundedNumberIsInTheEngine) {
  WriteRequests(9);
  Open({.max_waiting = 2});
  ASSERT_TRUE(run_->Submit().ok());
  EXPECT_EQ(InEngine(), 2);
  RunToEnd();
  Close();
  fs::remove(Path("out"));
  Open({.max_active = 3});
  for (int turn = 0; turn < 1000 && !run_->done(); ++turn) {
    Turn();
    EXPECT_LE(InEngine(), 3);
  }
  EXPECT_EQ(run_->counts().answered, 9);
}

TEST_F(BatchRunTest, ACarefulRunBeginsWithOne) {
  WriteRequests(9);
  Open({.careful = true});
  ASSERT_TRUE(run_->Submit().ok());
  EXPECT_EQ(InEngine(), 1);
  RunToEnd();
  EXPECT_EQ(run_->counts().answered, 9);
}

TEST_F(BatchRunTest, AFullQueueIsWaitedFor) {
  WriteRequests(2);
  for (int i = 0; i < 3; ++i) harness_.Submit({.prompt_ids = {5, 6}, .max_tokens = 8});
  Open({.max_waiting = 100});
  ASSERT_TRUE(run_->Submit().ok());
  EXPECT_EQ(InEngine(), 3);
  RunToEnd();
  EXPECT_EQ(run_->counts().answered, 2);
  EXPECT_EQ(errors_->count(), 0);
}

TEST_F(BatchRunTest, WhatTheCallerAddsAndRefuses) {
  WriteInput({Line("a", Greedy(3)), Line("b", {{"prompt", {1}}, {"priority", 7}})});
  Open({.admit = [](OpenAiRequest* request) -> BatchAdmission {
    if (request->request.priority == 0) return {};
    return {.status = InvalidArgument("priority is 7, expected at most 0"), .param = "priority"};
  }});
  RunToEnd();
  EXPECT_THAT(IdsOf(LinesOf(Path("out"))), UnorderedElementsAre("a"));
  const std::vector<json> errors = LinesOf(Path("errors"));
  ASSERT_EQ(errors.size(), 1);
  EXPECT_EQ(errors[0]["custom_id"], "b");
  EXPECT_EQ(errors[0]["response"]["status_code"], 400);
  EXPECT_EQ(errors[0]["response"]["body"]["error"]["param"], "priority");
}

// 10 tokens, of which each request takes 7 and uses 5.
TEST_F(BatchRunTest, RequestsWaitUntilTheyAreAdmitted) {
  WriteRequests(6);
  int64_t left = 10, waited = 0;
  Open({.admit = [&](OpenAiRequest* request) -> BatchAdmission {
          request->request.max_tokens = 2;
          if (left < 7 && ++waited > 0) return {.wait = std::chrono::milliseconds(1)};
          left -= 7;
          return {.taken_tokens = 7};
        },
        .on_end =
            [&](int64_t taken, int64_t used) {
              EXPECT_EQ(taken, 7);
              EXPECT_EQ(used, 3 + 2);
              left += taken;
            }});
  for (int turn = 0; turn < 1000 && !run_->done(); ++turn) {
    Turn();
    EXPECT_LE(InEngine(), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(run_->counts().answered, 6);
  EXPECT_GT(waited, 0);
  EXPECT_EQ(left, 10);
}

TEST_F(BatchRunTest, WhatARunLeavesInTheEngineEnds) {
  WriteRequests(3);
  Open();
  ASSERT_TRUE(run_->Submit().ok());
  EXPECT_EQ(InEngine(), 3);
  Close();
  harness_.Step();
  EXPECT_EQ(InEngine(), 0);
}

TEST_F(BatchRunTest, CancelledGoesOnWhereItWas) {
  WriteRequests(9);
  Open({.max_active = 2});
  while (run_->counts().answered < 3) Turn();
  run_->Cancel();
  RunToEnd();
  EXPECT_EQ(InEngine(), 0);
  const auto answered = run_->counts().answered;
  EXPECT_LT(answered, 9);
  Open();
  EXPECT_EQ(input_->num_finished_before(), answered);
  RunToEnd();
  EXPECT_EQ(LinesOf(Path("out")).size(), 9);
}

TEST_F(BatchRunTest, ALostDeviceIsNoRequestsFault) {
  WriteRequests(5);
  Open();
  while (run_->counts().answered < 1) Turn();
  ASSERT_TRUE(run_->Submit().ok());
  harness_.model().FailNext(Unavailable("the device is lost"));
  EXPECT_FALSE(harness_.engine().Step().ok());
  EXPECT_EQ(run_->WriteFinished().code(), StatusCode::kUnavailable);
  EXPECT_EQ(errors_->count(), 0);
}

TEST_F(BatchRunTest, RequestsThatAPauseEndsAreAnsweredAfterIt) {
  WriteRequests(6);
  Open({.max_active = 2});
  while (run_->counts().answered < 2) Turn();
  ASSERT_TRUE(run_->Submit().ok());
  harness_.Step();
  ASSERT_TRUE(harness_.engine().Pause({.mode = PauseMode::kAbort, .refuse_new = true}).ok());
  for (int turn = 0; turn < 5; ++turn) Turn();
  EXPECT_EQ(InEngine(), 0) << "a paused engine gets none";
  EXPECT_FALSE(run_->done());
  ASSERT_TRUE(harness_.engine().Resume().ok());
  RunToEnd();
  EXPECT_EQ(run_->counts().answered, 6);
  const std::vector<json> answers = LinesOf(Path("out"));
  EXPECT_THAT(IdsOf(answers), UnorderedElementsAre("0", "1", "2", "3", "4", "5"));
  for (const json& answer : answers) EXPECT_EQ(answer["response"]["body"]["choices"][0]["finish_reason"], "length");
}

TEST_F(BatchRunTest, SamplesThatTheirGroupEndsAreAnswers) {
  json body = Greedy(3, 8);
  body["group_id"] = "g";
  body["min_answered"] = 1;
  json shorter = body;
  shorter["max_tokens"] = 2;
  WriteInput({Line("a", body), Line("b", shorter)});
  Open();
  RunToEnd();
  const std::vector<json> answers = LinesOf(Path("out"));
  ASSERT_EQ(answers.size(), 2u);
  for (const json& answer : answers)
    EXPECT_EQ(answer["response"]["body"]["choices"][0]["finish_reason"], answer["custom_id"] == "a" ? "abort" : "length");
}

TEST_F(BatchRunTest, WhatIsNotTriedAnyMore) {
  WriteRequests(6);
  Open({.max_active = 2});
  while (run_->counts().answered < 2) Turn();
  run_->Cancel();
  RunToEnd();
  ASSERT_TRUE(run_->ReportUnanswered("batch_expired", DeadlineExceeded("24 hours are over")).ok());
  EXPECT_EQ(run_->counts().done(), 6);
  const std::vector<json> errors = LinesOf(Path("errors"));
  EXPECT_EQ(errors.size() + LinesOf(Path("out")).size(), 6);
  for (const json& error : errors) {
    EXPECT_EQ(error["error"]["code"], "batch_expired");
    EXPECT_EQ(error["error"]["message"], "24 hours are over");
    EXPECT_TRUE(error["response"].is_null());
  }
}

TEST_F(BatchRunTest, ErrorsOfAnEarlierRunStay) {
  WriteInput({Line("a", Greedy(3)), Line("b", {{"prompt", {100'000}}}), Line("c", {{"prompt", "text"}, {"else", 1}}),
              Line("d", Greedy(4), "/v1/chat/completions"), Line("e", Greedy(5), "/v1/embeddings"), Line("a", Greedy(6))});
  const BatchRules rules = {.endpoint = Endpoint::kCompletions};
  Open({}, rules);
  RunToEnd();
  const std::vector<json> first = LinesOf(Path("errors"));
  EXPECT_EQ(first.size(), 5);
  EXPECT_EQ(errors_->count(), 5);
  Close();
  std::ofstream(Path("errors"), std::ios::app) << R"({"id":"batch_req_5)";  // torn by a kill
  Open({}, rules);
  EXPECT_TRUE(input_->jobs().empty());
  EXPECT_EQ(errors_->count(), 5);
  EXPECT_EQ(LinesOf(Path("errors")), first);
  for (const json& error : first) {
    if (error["line"] != 4) continue;
    EXPECT_THAT(error["error"]["message"], HasSubstr("expected the batch's endpoint /v1/completions"));
    EXPECT_EQ(error["error"]["param"], "url");
  }
}

TEST_F(BatchRunTest, AnswersOfAnyLengthAreFound) {
  const std::string key = R"(,"response":)";
  std::ofstream(Path("out")) << R"({"id":"batch_req_1","custom_id":)" << json(key).dump() << R"(,"response":{"body":")"
                             << std::string(LineReader::kMaxLineBytes, 'x') << R"("},"error":null})"
                             << "\n";
  const Result<BatchOutput> output = BatchOutput::Open(Path("out"));
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(output->finished().at(key), "batch_req_1");
  EXPECT_EQ(output->size(), static_cast<int64_t>(fs::file_size(Path("out"))));
  std::ofstream(Path("scores")) << R"({"id":"score-1","line":3,"object":"score","scores":[)"
                                << std::string(LineReader::kMaxLineBytes, '1') << "]}\n";
  EXPECT_EQ(BatchOutput::Open(Path("scores"), kScoreOutput)->finished().at("3"), "score-1");
  std::ofstream(Path("other")) << std::string(LineReader::kMaxLineBytes + 1, 'x') << "\n";
  EXPECT_THAT(BatchOutput::Open(Path("other")).status().message(), HasSubstr("no result of coppice batch"));
}

TEST_F(BatchRunTest, AnswersNameTheirModel) {
  const auto write = [&](const std::string& model) {
    std::ofstream(Path("out")) << R"({"id":"batch_req_1","custom_id":"a","response":{"status_code":200,"body":{)" << model
                               << R"("choices":[]}},"error":null})"
                               << "\n";
    return BatchOutput::Open(Path("out")).value();
  };
  EXPECT_TRUE(write(R"("model":"small",)").CheckModel("small").ok());
  EXPECT_TRUE(write("").CheckModel("large").ok());
  EXPECT_THAT(write(R"("model":"small",)").CheckModel("large").message(),
              HasSubstr(R"(of the model "small", and this one is "large")"));
  std::ofstream(Path("scores")) << R"({"id":"score-1","line":3,"object":"score","model":"small","scores":[]})"
                                << "\n";
  EXPECT_THAT(BatchOutput::Open(Path("scores"), kScoreOutput)->CheckModel("large").message(), HasSubstr(R"("small")"));
}

TEST_F(BatchRunTest, RulesOfTheInput) {
  WriteRequests(5);
  output_.emplace(BatchOutput::Open(Path("out")).value());
  errors_.emplace(BatchErrors::Resume(Path("errors")).value());
  const auto read = [&](const BatchRules& rules) { return BatchInput::Read(Path("in"), parser_, *output_, &*errors_, rules); };
  EXPECT_TRUE(read({.max_requests = 5}).ok());
  EXPECT_THAT(read({.max_requests = 4}).status().message(), HasSubstr("more than 4 requests"));
  int asked = 0;
  EXPECT_EQ(read({.should_stop = [&] { return ++asked > 2; }}).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(read({.max_line_bytes = 20})->jobs().empty());
  const std::vector<json> errors = LinesOf(Path("errors"));
  ASSERT_EQ(errors.size(), 5);
  EXPECT_THAT(errors[0]["error"]["message"].get<std::string>(), HasSubstr("expected at most 20"));
}

TEST_F(BatchRunTest, APrefixThatIsGoneIsTheLinesError) {
  WriteInput({Line("a", {{"prompt", {7, 8}}, {"prefix", "p"}, {"max_tokens", 2}})});
  std::shared_ptr<const NamedPrefix> prefix =
      std::make_shared<const NamedPrefix>(NamedPrefix{.prompt_ids = std::vector<int32_t>{1, 2}, .token_ids = {1, 2}});
  Open({}, {.find_prefix = [&](const std::string&) { return prefix; }});
  ASSERT_EQ(input_->jobs().size(), 1);
  prefix.reset();
  RunToEnd();
  EXPECT_EQ(run_->counts().failed, 1);
  EXPECT_EQ(LinesOf(Path("errors")).at(0)["custom_id"], "a");
}

}  // namespace
}  // namespace coppice::openai
