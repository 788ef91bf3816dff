// Routes over an engine with a fake model, and no sockets: what is answered, refused, streamed, cancelled, counted and drained.
#include "server/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/testing/engine_harness.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

// Keeps what was answered.
class FakeResponder final : public Responder {
 public:
  void Send(HttpResponse answer) override {
    EXPECT_FALSE(response || streaming) << "a second answer";
    if (answer.source) {
      from_source = true;
      answer.body = TextOf(answer.source.get());
    }
    response = std::move(answer);
    answered = true;
    answered.notify_all();
  }
  void BeginStream() override {
    EXPECT_FALSE(response || streaming) << "a second answer";
    streaming = true;
  }
  void Write(std::string text) override {
    EXPECT_TRUE(streaming && !ended);
    written += text;
  }
  void Write(std::unique_ptr<TextSource> source) override { Write(TextOf(source.get())); }
  void EndStream() override { ended = true; }
  void WhenGone(std::function<void()> callback) override {
    if (watching_fails) throw std::bad_alloc();
    when_gone = std::move(callback);
  }

  json body() const { return json::parse(response.value().body); }

  std::optional<HttpResponse> response;
  std::atomic<bool> answered = false;  // response may be read, whichever thread sent it
  bool streaming = false, ended = false, from_source = false;
  std::string written;
  std::function<void()> when_gone;
  bool watching_fails = false;  // WhenGone has no memory
};

constexpr int32_t kContext = 64;

class ServiceTest : public ::testing::Test {
 protected:
  explicit ServiceTest(ServiceOptions options = {})
      : harness_({.model = {.max_position = kContext}, .max_running = 4, .max_waiting = 2, .texts = Letters(64)}),
        service_(&harness_.engine(), WithDefaults(std::move(options))) {}

  std::shared_ptr<FakeResponder> Ask(HttpRequest request) {
    auto responder = std::make_shared<FakeResponder>();
    service_.Handle(std::move(request), responder);
    return responder;
  }
  std::shared_ptr<FakeResponder> Get(const std::string& path) { return Ask({.method = "GET", .path = path}); }
  std::shared_ptr<FakeResponder> Post(const std::string& path, const std::string& body) {
    return Ask({.method = "POST", .path = path, .body = body, .content_type = "application/json"});
  }
  // As the API key `key`.
  std::shared_ptr<FakeResponder> Send(const std::string& key, const json& body, const std::string& path = "/v1/completions") {
    return Ask({.method = path.starts_with("/v1/prefixes") ? "PUT" : "POST",
                .path = path,
                .body = body.dump(),
                .authorization = "Bearer " + key,
                .content_type = "application/json"});
  }
  std::shared_ptr<FakeResponder> Complete(json fields) {
    if (!fields.contains("prompt")) fields["prompt"] = {1, 2, 3};
    return Post("/v1/completions", fields.dump());
  }
  std::string Metrics() { return Get("/metrics")->response.value().body; }

  EngineHarness harness_;
  Service service_;

 private:
  static ServiceOptions WithDefaults(ServiceOptions options) {
    options.model = "fake";
    options.version = "1.2.3";
    options.max_context = kContext;
    return options;
  }
};

TEST_F(ServiceTest, RoutesThatThereAre) {
  EXPECT_EQ(Get("/health")->body(), json({{"status", "ok"}}));
  EXPECT_EQ(Get("/ready")->response->status, 200);
  EXPECT_EQ(Get("/version")->body(), json({{"version", "1.2.3"}}));
  EXPECT_EQ(Get("/v1/models")->body()["data"][0]["id"], "fake");
  EXPECT_EQ(Get("/v1/models/fake")->body()["object"], "model");
  EXPECT_EQ(Get("/v1/models/fake")->body()["max_model_len"], kContext);
  EXPECT_EQ(Get("/v1/models")->body()["data"][0], Get("/v1/models/fake")->body());
  EXPECT_EQ(Get("/v1/models/other")->response->status, 404);
  EXPECT_EQ(Get("/tokenizer_info")->body(), json({{"bos_token", nullptr},
                                                  {"eos_token", nullptr},
                                                  {"add_bos_token", false},
                                                  {"add_eos_token", false},
                                                  {"chat_template", nullptr},
                                                  {"model_max_length", kContext}}));
  const json description = Get("/openapi.json")->body();
  for (const char* path : {"/health", "/v1/models/{model}", "/v1/chat/completions", "/v1/responses", "/tokenize"})
    EXPECT_TRUE(description["paths"].contains(path)) << path;
}

TEST_F(ServiceTest, TokensReportWhichWeightsChoseThem) {
  const json ask = {{"token_ids", {1, 2, 3}}, {"sampling_params", {{"max_tokens", 8}, {"seed", 1}, {"ignore_eos", true}}}};
  const auto tokens = Post("/inference/v1/generate", ask.dump());
  const auto text = Post("/generate", R"({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8, "ignore_eos": true}})");
  harness_.Step(3);
  const float seed = 5;
  const WeightTensor weights{.name = std::string(FakeRunner::kSeedTensor), .dtype = DType::kF32, .shape = {1}, .data = &seed};
  ASSERT_TRUE(harness_.engine().UpdateWeights({&weights, 1}, {.when = PauseMode::kKeep, .label = "step-7"}).ok());
  harness_.RunToEnd();
  EXPECT_EQ(tokens->body()["choices"][0]["weight_versions"],
            json::parse(R"([{"version": "0", "start": 0, "end": 3}, {"version": "step-7", "start": 3, "end": 8}])"));
  EXPECT_EQ(text->body()["meta_info"]["weight_version"], "step-7");
  EXPECT_EQ(text->body()["meta_info"]["weight_versions"].size(), 2u);
}

TEST_F(ServiceTest, TheRestOfAGroupIsAnsweredWithWhatThereIs) {
  const auto ask = [&](int tokens) {
    return Post("/inference/v1/generate", json({{"token_ids", {1, 2, 3}},
                                                {"group_id", "g"},
                                                {"min_answered", 1},
                                                {"sampling_params", {{"max_tokens", tokens}, {"ignore_eos", true}}}})
                                              .dump());
  };
  const auto long_one = ask(40), short_one = ask(3);
  harness_.RunToEnd();
  EXPECT_EQ(short_one->body()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(long_one->response->status, 200);
  EXPECT_EQ(long_one->body()["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(long_one->body()["choices"][0]["token_ids"].size(), 3u);
  const auto late = ask(5);
  harness_.RunToEnd();
  EXPECT_EQ(late->body()["choices"][0]["token_ids"], json::array());
  EXPECT_THAT(Metrics(), HasSubstr("coppice_http_requests_active 0"));
}

TEST_F(ServiceTest, ThePageLoadsNothingFromElsewhere) {
  const auto page = Get("/");
  EXPECT_EQ(page->response->content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page->response->headers, ::testing::Contains(Pair("content-security-policy", HasSubstr("default-src 'none'"))));
  for (const char* path : {"/page/style.css", "/page/playground.js", "/page/live.js"}) {
    EXPECT_THAT(page->response->body, HasSubstr(path));
    EXPECT_EQ(Get(path)->response->status, 200) << path;
  }
  const auto markdown = Get("/page/marked.esm.js");
  EXPECT_EQ(markdown->response->content_type, "text/javascript; charset=utf-8");
  EXPECT_THAT(markdown->response->body, HasSubstr("MIT Licensed"));
  EXPECT_EQ(Get("/page/none.js")->response->status, 404);
  EXPECT_EQ(Get("/page/marked.esm.js/more")->response->status, 404);
}

TEST_F(ServiceTest, NoPlanBeforeTheFirstStep) {
  const json plan = Get("/v1/plan")->body();
  EXPECT_EQ(plan["step"], nullptr);
  EXPECT_TRUE(plan["reads"].empty());
}

TEST_F(ServiceTest, TheTreeWhileSamplesRun) {
  const auto answer = Complete({{"prompt", {1, 2, 3, 4, 5, 6, 7, 8}}, {"max_tokens", 6}, {"n", 3}});
  harness_.Step(2);
  const json running = Get("/v1/tree")->body();
  EXPECT_EQ(running["samples_running"], 3);
  ASSERT_FALSE(running["nodes"].empty());
  EXPECT_EQ(running["nodes"][0]["running"], 3);
  EXPECT_EQ(running["nodes"][0]["read_together"], true);
  EXPECT_THAT(running["nodes"][0]["reason"].get<std::string>(), HasSubstr("3 samples read them together: "));
  const json plan = Get("/v1/plan")->body();
  EXPECT_EQ(plan["reads"][0]["node"], running["nodes"][0]["id"]);
  EXPECT_EQ(plan["reads"][0]["samples"], 3);
  EXPECT_LT(plan["kv_bytes_read"], plan["kv_bytes_read_unshared"]);
  EXPECT_THAT(plan["text"].get<std::string>(), HasSubstr("tokens 0 to 8: 3 samples read them together"));
  harness_.RunToEnd();
  const json tree = Get("/v1/tree")->body();
  ASSERT_FALSE(tree["nodes"].empty());
  EXPECT_EQ(tree["nodes"][0]["begin"], 0);
  EXPECT_EQ(tree["nodes"][0]["parent"], 0);
  EXPECT_EQ(tree["nodes"][0]["running"], 0);
  EXPECT_EQ(tree["nodes"][0]["read_together"], nullptr);
  EXPECT_EQ(tree["num_nodes"], tree["nodes"].size());
  EXPECT_EQ(tree["generated_tokens"], 18);
  EXPECT_LT(tree["kv_bytes_read"], tree["kv_bytes_read_unshared"]);
}

TEST_F(ServiceTest, Scores) {
  const auto answer = Post("/v1/score", R"({"prompt": [0, 1], "continuations": [[2], [2, 3]], "return_token_ids": true})");
  harness_.RunToEnd();
  ASSERT_EQ(answer->response.value().status, 200) << answer->response->body;
  const json scores = answer->body()["scores"];
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0]["token_ids"], json({2}));
  EXPECT_EQ(scores[1]["token_ids"], json({2, 3}));
  EXPECT_EQ(scores[0]["token_logprobs"][0], scores[1]["token_logprobs"][0]);
  EXPECT_EQ(answer->body()["usage"]["prompt_tokens"], 2 + 1 + 2);
  EXPECT_EQ(Post("/v1/score", R"({"prompt": [0, 1]})")->body()["error"]["param"], "continuations");
  EXPECT_EQ(Post("/v1/score", R"({"prompt": [0, 1], "continuations": [[]]})")->response->status, 400);
}

TEST_F(ServiceTest, AScoreWhoseClientLeavesEnds) {
  const auto answer = Post("/v1/score", R"({"prompt": [0, 1], "continuations": [[2], [2, 3]]})");
  EXPECT_EQ(service_.active(), 1);
  ASSERT_TRUE(answer->when_gone);
  answer->when_gone();
  harness_.RunToEnd();
  EXPECT_FALSE(answer->response);
  EXPECT_EQ(service_.active(), 0);
}

TEST_F(ServiceTest, ATimeoutOutOfRangeIsNamed) {
  for (const double timeout : {-2.0, 1e300}) {
    const auto answer = Complete({{"timeout", timeout}});
    ASSERT_EQ(answer->response.value().status, 400);
    EXPECT_EQ(answer->body()["error"]["param"], "timeout");
  }
}

TEST_F(ServiceTest, WhatThereIsNot) {
  EXPECT_EQ(Get("/v1/models/")->response->status, 200);  // as without the slash
  const auto missing = Get("/nothing\r\nhere");
  EXPECT_EQ(missing->response->status, 404);
  EXPECT_EQ(missing->body()["error"]["type"], "invalid_request_error");
  const auto wrong_method = Get("/v1/completions");
  EXPECT_EQ(wrong_method->response->status, 405);
  EXPECT_THAT(wrong_method->response->headers, ::testing::Contains(Pair("allow", "POST")));
  for (const char* type : {"", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"}) {
    EXPECT_EQ(Ask({.method = "POST", .path = "/v1/completions", .body = "{}", .content_type = type})->response->status, 415)
        << type;
  }
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8", "application/json ;x"})
    EXPECT_EQ(Ask({.method = "POST", .path = "/v1/completions", .body = "{}", .content_type = type})->response->status, 400)
        << type;
}

TEST_F(ServiceTest, BodiesThatAreNoRequests) {
  for (const std::string& body : {std::string(), std::string("{"), std::string("[]"), std::string("{\"prompt\": \"\xff\"}"),
                                  std::string(100'000, '['), std::string(R"({"prompt": [1], "prompt": [2]})"),
                                  std::string(R"({"prompt": [1e400]})"), std::string(R"({"prompt": [99999999999999999999]})")}) {
    const auto answer = Post("/v1/completions", body);
    EXPECT_EQ(answer->response->status, 400) << body.substr(0, 40);
    EXPECT_TRUE(answer->body()["error"]["message"].is_string());
  }
  EXPECT_EQ(Complete({{"prompt", {64}}})->response->status, 400);  // beyond the vocabulary
  EXPECT_EQ(Complete({{"suffix", "x"}})->body()["error"]["param"], "suffix");
  EXPECT_EQ(service_.active(), 0);
}

TEST_F(ServiceTest, CompletionWhole) {
  const auto answer =
      Complete({{"prompt", {{1, 2, 3}, {4, 5}}}, {"max_tokens", 3}, {"temperature", 0}, {"return_token_ids", true}});
  EXPECT_FALSE(answer->response);
  EXPECT_EQ(service_.active(), 1);
  harness_.RunToEnd();
  ASSERT_TRUE(answer->response);
  const json body = answer->body();
  EXPECT_EQ(body["choices"][0]["token_ids"], json(harness_.GreedyAfter({1, 2, 3}, 3)));
  EXPECT_EQ(body["choices"][1]["token_ids"], json(harness_.GreedyAfter({4, 5}, 3)));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(service_.active(), 0);
  EXPECT_THAT(Metrics(), HasSubstr("coppice_key_generated_tokens_total{key=\"\"} 6\n"));
}

TEST_F(ServiceTest, ALargeAnswerIsWrittenWhileItIsTaken) {
  const json prompt = std::vector<int32_t>(60, 1);
  const json fields = {{"prompt", prompt}, {"max_tokens", 1}, {"n", 8}, {"temperature", 0}, {"ignore_eos", true}};
  const auto small = Complete(fields);
  harness_.RunToEnd();
  ASSERT_EQ(small->response.value().status, 200) << small->response->body;
  EXPECT_FALSE(small->from_source);
  json echoed = fields;
  echoed.update({{"echo", true}, {"logprobs", 20}});
  const auto large = Complete(echoed);
  harness_.RunToEnd();
  EXPECT_TRUE(large->from_source);
  json voted = fields;
  voted["vote"] = ".";
  const auto votes = Complete(voted);
  harness_.RunToEnd();
  EXPECT_TRUE(votes->from_source);  // a regex takes its time elsewhere
  EXPECT_EQ(votes->body()["votes"][0]["count"], 8);
  echoed["stream"] = true;
  const auto stream = Complete(echoed);
  harness_.RunToEnd();
  EXPECT_TRUE(stream->ended);
  json of_stream;  // the log-probabilities of the prompt, which come first
  size_t echoes = 0;
  for (size_t begin = 0; begin < stream->written.size(); begin = stream->written.find("\n\n", begin) + 2) {
    const std::string data = stream->written.substr(begin + 6, stream->written.find("\n\n", begin) - begin - 6);
    if (data == "[DONE]") continue;
    const json choice = json::parse(data)["choices"][0];
    if (choice["logprobs"]["tokens"].size() != 60) continue;
    ++echoes;
    of_stream = choice["logprobs"];
  }
  EXPECT_EQ(echoes, 8u);
  const json body = large->body();
  for (const json& choice : body["choices"]) {
    EXPECT_EQ(choice["text"].get<std::string>().size(), 61u);
    for (const char* column : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      const json& entries = choice["logprobs"][column];
      ASSERT_EQ(entries.size(), 61u);
      EXPECT_TRUE(json(entries.begin(), entries.begin() + 60) == of_stream[column]) << column;
    }
  }
}

TEST_F(ServiceTest, WhatWouldBeTooLargeIsNotBegun) {
  const auto many = Complete({{"n", 129}});
  ASSERT_EQ(many->response.value().status, 400);
  EXPECT_EQ(many->body()["error"]["param"], "n");
  EXPECT_EQ(Complete({{"n", 1}, {"best_of", 129}})->body()["error"]["param"], "best_of");
  EXPECT_EQ(service_.active(), 0);
}

class SmallAnswersTest : public ServiceTest {
 protected:
  SmallAnswersTest() : ServiceTest({.answers = {.max_bytes = 20'000}}) {}
};

TEST_F(SmallAnswersTest, AreBoundedInEveryForm) {
  const json prompt = std::vector<int32_t>(40, 1);
  const auto echoed = Complete({{"prompt", prompt}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 20}});
  ASSERT_EQ(echoed->response.value().status, 400);
  EXPECT_THAT(echoed->body()["error"]["message"].get<std::string>(), HasSubstr("--max-answer"));
  const json scored = std::vector<int32_t>(20, 1);
  const auto score = Post("/v1/score", json({{"prompt", {0}}, {"continuations", std::vector<json>(40, scored)}}).dump());
  ASSERT_EQ(score->response.value().status, 400);
  EXPECT_EQ(score->body()["error"]["param"], "continuations");
  const auto plain = Complete({{"prompt", prompt}, {"max_tokens", 1}, {"logprobs", 20}});
  harness_.RunToEnd();
  EXPECT_EQ(plain->response.value().status, 200) << plain->response->body;
}

TEST_F(ServiceTest, CompletionStreamed) {
  const auto answer = Complete({{"max_tokens", 3}, {"temperature", 0}, {"n", 2}, {"stream", true}});
  EXPECT_TRUE(answer->streaming);
  harness_.RunToEnd();
  EXPECT_TRUE(answer->ended);
  EXPECT_TRUE(answer->written.ends_with("data: [DONE]\n\n"));
  std::string text;
  for (const int32_t token : harness_.GreedyAfter({1, 2, 3}, 3)) text += Letters(64)[token];
  std::string got[2];
  for (size_t begin = 0; begin < answer->written.size(); begin = answer->written.find("\n\n", begin) + 2) {
    const std::string data = answer->written.substr(begin + 6, answer->written.find("\n\n", begin) - begin - 6);
    if (data == "[DONE]") continue;
    const json choice = json::parse(data)["choices"][0];
    got[choice["index"].get<int>()] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(got[0], text);
  EXPECT_EQ(got[1], text);
}

TEST_F(ServiceTest, AClientThatLeavesFreesItsPlace) {
  const auto whole = Complete({{"max_tokens", 50}}), streamed = Complete({{"max_tokens", 50}, {"stream", true}});
  harness_.Step(3);
  EXPECT_EQ(harness_.engine().Metrics().running, 2);
  whole->when_gone();
  streamed->when_gone();
  harness_.RunToEnd();
  EXPECT_EQ(harness_.engine().Metrics().running, 0);
  EXPECT_LT(harness_.engine().Metrics().generated_tokens, 20);
  EXPECT_FALSE(whole->response);
  EXPECT_FALSE(streamed->ended);
  EXPECT_EQ(service_.active(), 0);
  EXPECT_THAT(Metrics(), HasSubstr("coppice_http_requests_total{route=\"/v1/completions\",status=\"499\"} 2\n"));
}

// The part of the call that comes behind its admission, before anything runs that could end it.
TEST_F(ServiceTest, WhatFailsOnceItIsAdmittedFreesItsPlace) {
  const auto failing = std::make_shared<FakeResponder>();
  failing->watching_fails = true;
  service_.Handle({.method = "POST",
                   .path = "/v1/completions",
                   .body = R"({"prompt": [1, 2, 3], "regex": "a+"})",
                   .content_type = "application/json"},
                  failing);
  ASSERT_TRUE(failing->response);
  EXPECT_EQ(failing->response->status, 503);
  EXPECT_EQ(service_.active(), 0);
}

TEST(AdmissionTest, EndsOnceHoweverItEnds) {
  std::optional<Access> made;
  Access& access = made.emplace(AccessOptions{.max_active_per_key = 2, .token_limit = {.per_minute = 100}},
                                /*max_context=*/64);
  std::shared_ptr<Admission> dropped, ended, refused;
  ASSERT_FALSE(access.Admit("a", {.tokens = 60, .samples = 2}, &dropped));
  EXPECT_EQ(access.Admit("a", {.tokens = 1, .samples = 1}, &refused)->status, 429);
  EXPECT_EQ(access.active(), 1);
  dropped.reset();  // with all of its tokens
  EXPECT_EQ(access.active(), 0);
  ASSERT_FALSE(access.Admit("a", {.tokens = 90}, &ended));
  EXPECT_EQ(access.Admit("a", {.tokens = 20}, &refused)->status, 429);
  EXPECT_EQ(access.ActiveOf("a"), 1);
  ended->End(/*used_tokens=*/50);
  ended->End(0);
  ended.reset();
  EXPECT_EQ(access.ActiveOf("a"), 0);
  EXPECT_EQ(access.Admit("a", {.tokens = 60}, &refused)->status, 429);  // 50 of 100 are left
  EXPECT_FALSE(access.Admit("a", {.tokens = 50}, &ended));
  made.reset();  // as where a server ends before what runs in its engine
  ended->End(0);
}

TEST_F(ServiceTest, AFullQueueIs429AndTheRestGoesOn) {
  const auto first = Complete({{"max_tokens", 2}}), second = Complete({{"max_tokens", 2}, {"stream", true}});
  const auto refused = Complete({{"max_tokens", 2}}), refused_stream = Complete({{"max_tokens", 2}, {"stream", true}});
  for (const auto& answer : {refused, refused_stream}) {
    ASSERT_TRUE(answer->response);
    EXPECT_EQ(answer->response->status, 429);
    EXPECT_EQ(answer->body()["error"]["type"], "rate_limit_error");
    EXPECT_THAT(answer->response->headers, ::testing::Contains(Pair("retry-after", "1")));
  }
  harness_.RunToEnd();
  EXPECT_EQ(first->response->status, 200);
  EXPECT_TRUE(second->ended);
}

TEST_F(ServiceTest, AListThatIsRefusedInPartEndsWithWhatRan) {
  const auto first = Complete({{"max_tokens", 2}});
  const auto list = Complete({{"prompt", {{4, 5}, {6, 7}, {8, 9}}}, {"max_tokens", 2}});  // two have no room
  EXPECT_FALSE(list->response) << "its first prompt may run";
  EXPECT_EQ(service_.active(), 2);
  harness_.RunToEnd();
  EXPECT_EQ(list->response.value().status, 429);
  EXPECT_EQ(first->response.value().status, 200);
  EXPECT_EQ(service_.active(), 0);
}

TEST_F(ServiceTest, AStepThatFailsEndsItsRequestsWithTheReason) {
  const auto whole = Complete({{"max_tokens", 9}}), streamed = Complete({{"max_tokens", 9}, {"stream", true}});
  harness_.model().FailNext(Internal("the model broke"));
  EXPECT_FALSE(harness_.engine().Step().ok());
  harness_.RunToEnd();
  EXPECT_EQ(whole->response->status, 500);
  EXPECT_THAT(whole->response->body, HasSubstr("the model broke"));
  EXPECT_TRUE(streamed->ended);
  EXPECT_THAT(streamed->written, HasSubstr("data: {\"error\":{\"message\":\"the model broke"));
  EXPECT_EQ(service_.active(), 0);
}

TEST_F(ServiceTest, DrainingRefusesWhatIsNewAndEndsWhatIsUnderWay) {
  const auto answer = Complete({{"max_tokens", 4}});
  service_.Drain();
  EXPECT_EQ(Get("/ready")->response->status, 503);
  EXPECT_EQ(Get("/health")->response->status, 200);
  EXPECT_EQ(Complete({})->response->status, 503);
  harness_.RunToEnd();
  EXPECT_EQ(answer->response->status, 200);
}

TEST_F(ServiceTest, WhatAHeadDecidesNeedsNoBody) {
  const auto plan = [&](HttpRequest head) { return service_.Plan(std::move(head)); };
  HttpRequest head = {.method = "POST", .path = "/nowhere", .content_type = "application/json", .peer = "192.0.2.1"};
  EXPECT_EQ(plan(head).refusal->status, 404);
  head.path = "/health";
  EXPECT_EQ(plan(head).refusal->status, 405);
  head.path = "/v1/completions";
  const RequestPlan right = plan(head);
  EXPECT_FALSE(right.refusal);
  EXPECT_TRUE(right.takes_time);
  EXPECT_EQ(right.share, "peer 192.0.2.1");
  EXPECT_EQ(right.max_body_bytes, std::nullopt);
  head.origin = "https://elsewhere.example";
  EXPECT_EQ(plan(head).refusal->status, 403);
  head.origin.clear();
  head.content_type = "text/plain";
  EXPECT_EQ(plan(head).refusal->status, 415);
  EXPECT_FALSE(plan({.method = "GET", .path = "/health"}).takes_time);
  EXPECT_LE(plan({.method = "GET", .path = "/health"}).max_body_bytes, 1 << 20);  // nothing reads it
  service_.Drain();
  head.content_type = "application/json";
  EXPECT_EQ(plan(head).refusal->status, 503);
  EXPECT_THAT(Metrics(), HasSubstr("coppice_http_requests_total{route=\"/v1/completions\",status=\"503\"} 1\n"));
}

class KeysTest : public ServiceTest {
 protected:
  // printf %s a | sha256sum, and of b
  KeysTest()
      : ServiceTest({.access = {.keys = ApiKeys::Parse("alice ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\n"
                                                       "bob 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
                                                       "k")
                                            .value()}}) {}
  // A request whose prompt takes nearly all of a step.
  std::shared_ptr<FakeResponder> Fill(const std::string& key, int32_t token, json fields = json::object()) {
    fields.update({{"prompt", std::vector<int32_t>(30, token)}, {"max_tokens", 1}});
    return Send(key, fields);
  }
};

TEST_F(KeysTest, TakeTurns) {
  const auto first = Fill("a", 1);
  harness_.Step(1);
  const auto second = Fill("a", 2), third = Fill("b", 3);
  while (!third->response) {
    EXPECT_FALSE(second->response);
    harness_.Step(1);
  }
  harness_.RunToEnd();
  EXPECT_EQ(second->response.value().status, 200);
}

TEST_F(KeysTest, PriorityComesBeforeTurns) {
  const auto first = Fill("a", 1);
  harness_.Step(1);
  const auto second = Fill("b", 2, {{"priority", -1}}), third = Fill("a", 3);
  while (!third->response) harness_.Step(1);
  EXPECT_FALSE(second->response);
  harness_.RunToEnd();
  EXPECT_EQ(second->response.value().status, 200);
  EXPECT_EQ(Fill("a", 1, {{"priority", 1}})->body()["error"]["param"], "priority");  // it would come before other keys'
}

// Keys a (alice) and b (bob), and c of role admin.
class NeighboursTest : public ServiceTest {
 protected:
  explicit NeighboursTest(bool share_between_keys = false)
      // printf %s a | sha256sum, and of b and c
      : ServiceTest(
            {.access = {.keys = ApiKeys::Parse("alice ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\n"
                                               "bob 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\n"
                                               "root 2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6 role=admin",
                                               "k")
                                    .value(),
                        .share_between_keys = share_between_keys},
             .prefixes = {.max_per_key = 4, .max_tokens = 1000}}) {}

  // Send, with the whole answer.
  std::shared_ptr<FakeResponder> Run(const std::string& key, const json& body, const std::string& path = "/v1/completions") {
    const auto answer = Send(key, body, path);
    harness_.RunToEnd();
    answer->answered.wait(false);  // a prefix is answered for by a thread of its store
    return answer;
  }
  // The cached tokens that a completion of 20 tokens of `token` reports, with these fields too.
  int Cached(const std::string& key, int32_t token, json fields = json::object()) {
    fields.update({{"prompt", std::vector<int32_t>(20, token)}, {"max_tokens", 1}});
    const auto answer = Run(key, fields);
    EXPECT_EQ(answer->response.value().status, 200) << answer->response->body;
    return answer->body()["usage"]["prompt_tokens_details"]["cached_tokens"];
  }
  std::string See(const std::string& key, const std::string& path) {
    return Ask({.method = "GET", .path = path, .authorization = "Bearer " + key})->response.value().body;
  }
};

TEST_F(NeighboursTest, NothingOfAnotherKeyIsFoundOrCounted) {
  const std::vector<json> ways = {json::object(),
                                  {{"cache_salt", "alice"}},
                                  {{"cache_salt", "alice"}, {"cache_private_begin", 8}},
                                  {{"cache_salt", "bob"}, {"cache_private_begin", 20}}};
  int32_t token = 0;
  Cached("b", ++token);
  for (const json& of_alice : ways) {
    ++token;
    const std::string metrics = See("b", "/metrics"), tree = See("b", "/v1/tree");
    Cached("a", token, of_alice);
    const json score = {{"prompt", std::vector<int32_t>(20, token)}, {"continuations", {{1, 2}, {3}}}};
    EXPECT_EQ(Run("a", score, "/v1/score")->response.value().status, 200);
    EXPECT_EQ(See("b", "/metrics"), metrics);
    EXPECT_EQ(See("b", "/v1/tree"), tree);
    EXPECT_EQ(Run("b", score, "/v1/score")->body()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    for (const json& of_bob : ways) {
      ++token;
      Cached("a", token, of_alice);
      EXPECT_EQ(Cached("b", token, of_bob), 0) << of_alice << of_bob;
      EXPECT_GT(Cached("b", token, of_bob), 0) << of_alice << of_bob;
    }
  }
}

TEST_F(NeighboursTest, AnAdminSeesEverything) {
  Cached("a", 1);
  Cached("b", 2);
  EXPECT_THAT(See("a", "/metrics"), HasSubstr("coppice_key_prompt_tokens_total{key=\"alice\"} 20\n"));
  EXPECT_THAT(See("a", "/metrics"), Not(AnyOf(HasSubstr("bob"), HasSubstr("coppice_steps_total"), HasSubstr("cpu_seconds"))));
  EXPECT_THAT(See("c", "/metrics"), AllOf(HasSubstr("key=\"alice\"} 20\n"), HasSubstr("key=\"bob\"} 20\n"),
                                          HasSubstr("coppice_prefill_tokens_total 40\n")));
  const json own = json::parse(See("a", "/v1/tree")), all = json::parse(See("c", "/v1/tree"));
  ASSERT_EQ(own["nodes"].size(), 1u);
  EXPECT_EQ(own["nodes"][0],
            json({{"id", 1}, {"parent", 0}, {"begin", 0}, {"end", 20}, {"hits", 0}, {"running", 0}, {"pinned", false}}));
  EXPECT_EQ(own["prompt_tokens"], 20);
  EXPECT_FALSE(own.contains("pages_used"));
  EXPECT_EQ(all["nodes"].size(), 2u);
  EXPECT_EQ(all["prefilled_tokens"], 40);
}

TEST_F(NeighboursTest, AnAdminsPublicPrefixIsForAll) {
  const json body = {{"prompt", std::vector<int32_t>(16, 1)}, {"public", true}};
  const auto refused = Run("a", body, "/v1/prefixes/p");
  EXPECT_EQ(refused->response.value().status, 403);
  EXPECT_EQ(refused->body()["error"]["param"], "public");
  const auto made = Run("c", body, "/v1/prefixes/p");
  ASSERT_EQ(made->response.value().status, 200) << made->response->body;
  EXPECT_EQ(made->body()["public"], true);
  EXPECT_EQ(json::parse(See("a", "/v1/prefixes"))["data"][0]["name"], "p");
  EXPECT_EQ(Cached("a", 2, {{"prefix", "p"}}), 16);
  EXPECT_EQ(Cached("a", 2, {{"prefix", "p"}}), 35);
  EXPECT_EQ(Cached("b", 2, {{"prefix", "p"}}), 16) << "what follows it is each key's own";
  EXPECT_EQ(Cached("b", 3, {{"prefix", "p"}, {"cache_salt", "s"}}), 16);
  EXPECT_EQ(Cached("a", 3, {{"prefix", "p"}, {"cache_salt", "s"}}), 16);
  EXPECT_EQ(Cached("b", 1), 0) << "without the name nothing is shared";
  const auto of_others = json::parse(See("b", "/v1/tree"));
  for (const json& node : of_others["nodes"]) EXPECT_TRUE(node["begin"] >= 16 || node["end"] == 20) << node;
}

class SharingNeighboursTest : public NeighboursTest {
 protected:
  SharingNeighboursTest() : NeighboursTest(/*share_between_keys=*/true) {}
};

TEST_F(SharingNeighboursTest, WhatHasASaltIsAKeysOwnAllTheSame) {
  EXPECT_EQ(Cached("a", 1), 0);
  EXPECT_GT(Cached("b", 1), 0);
  EXPECT_EQ(Cached("a", 2, {{"cache_salt", "s"}}), 0);
  EXPECT_EQ(Cached("b", 2, {{"cache_salt", "s"}}), 0);
  EXPECT_GT(Cached("a", 2, {{"cache_salt", "s"}}), 0);
  EXPECT_EQ(Cached("a", 3, {{"cache_salt", "s"}, {"cache_private_begin", 8}}), 0);
  EXPECT_EQ(Cached("b", 3, {{"cache_salt", "s"}, {"cache_private_begin", 8}}), 8);
}

class TokenLimitsTest : public ServiceTest {
 protected:
  // printf %s a | sha256sum, and of b
  TokenLimitsTest()
      : ServiceTest(
            {.access = {
                 .keys = ApiKeys::Parse("alice ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\n"
                                        "bob 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d tokens_per_minute=0",
                                        "k")
                             .value(),
                 .token_limit = {.per_request = 20, .per_minute = 50}}}) {}

  static std::string RetryAfter(const FakeResponder& answer) {
    for (const auto& [name, value] : answer.response.value().headers) {
      if (name == "retry-after") return value;
    }
    return "none";
  }
};

TEST_F(TokenLimitsTest, OfARequest) {
  EXPECT_EQ(Send("a", {{"prompt", {1, 2, 3, 4}}, {"max_tokens", 16}})->response, std::nullopt);
  const auto refused = Send("a", {{"prompt", {1, 2, 3, 4}}, {"max_tokens", 9}, {"n", 2}});
  ASSERT_EQ(refused->response.value().status, 400);
  EXPECT_THAT(refused->body()["error"]["message"].get<std::string>(),
              HasSubstr("22 tokens, and this API key may use 20 in a request"));
  EXPECT_EQ(Send("b", {{"prompt", {1, 2, 3, 4}}, {"max_tokens", 17}})->response.value().status, 400);
  const auto score = Send("b", {{"prompt", std::vector<int32_t>(18, 1)}, {"continuations", {{1, 2}, {3}}}}, "/v1/score");
  EXPECT_EQ(score->response.value().status, 400);
  EXPECT_EQ(Send("b", {{"prompt", std::vector<int32_t>(21, 1)}}, "/v1/prefixes/p")->response.value().status, 400);
  harness_.RunToEnd();
  EXPECT_EQ(service_.active(), 0);
}

TEST_F(TokenLimitsTest, OutputThatIsNotAskedForIsWhatTheLimitLeaves) {
  const auto answer = Send("a", {{"prompt", {1, 2, 3, 4, 5, 6}}, {"n", 2}, {"ignore_eos", true}});  // 16 tokens each by default
  harness_.RunToEnd();
  ASSERT_EQ(answer->response.value().status, 200) << answer->response->body;
  EXPECT_EQ(answer->body()["usage"]["completion_tokens"], 14);
  EXPECT_EQ(answer->body()["choices"][0]["finish_reason"], "length");
}

TEST_F(TokenLimitsTest, OfAMinute) {
  const json body = {{"prompt", {1, 2, 3, 4, 5}}, {"max_tokens", 15}, {"ignore_eos", true}};
  const auto first = Send("a", body), second = Send("a", body), third = Send("a", body);
  ASSERT_EQ(third->response.value().status, 429);
  EXPECT_THAT(third->body()["error"]["message"].get<std::string>(), HasSubstr("of the 50 a minute that this API key may use"));
  EXPECT_EQ(third->body()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(RetryAfter(*third), "12");  // of 20 tokens 10 are there, and a minute brings 50
  harness_.RunToEnd();
  const auto other = Send("b", body);  // its key has no limit
  harness_.RunToEnd();
  for (const auto& answer : {first, second, other}) EXPECT_EQ(answer->response.value().status, 200);
  EXPECT_EQ(Send("a", body)->response.value().status, 429) << "what was used stays used";
  EXPECT_EQ(service_.active(), 0);
}

TEST_F(TokenLimitsTest, EchoedPromptsCountForEachChoice) {
  const auto ask = [&](int32_t n) { return Send("a", {{"prompt", {1, 2, 3, 4}}, {"max_tokens", 1}, {"n", n}, {"echo", true}}); };
  EXPECT_THAT(ask(5)->response.value().body, HasSubstr("have 25 tokens"));
  const auto first = ask(4);  // 4 prompts and as many tokens of output
  harness_.RunToEnd();
  ASSERT_EQ(first->response.value().status, 200) << first->response->body;
  EXPECT_EQ(first->body()["usage"]["prompt_tokens"], 4);
  const auto second = ask(4), third = ask(4);
  EXPECT_FALSE(second->response);
  EXPECT_THAT(third->response.value().body, HasSubstr("10 are left"));  // of 50
}

TEST_F(TokenLimitsTest, WhatRanIsNotGivenBackWhateverItsAnswer) {
  const json body = {{"prompt", {1, 2, 3, 4, 5}}, {"max_tokens", 15}, {"ignore_eos", true}};
  harness_.model().FailNext(Internal("the model broke"));
  const auto failed = Send("a", {{"prompt", std::vector<int32_t>(20, 1)}, {"max_tokens", 0}});
  EXPECT_FALSE(harness_.engine().Step().ok());
  harness_.RunToEnd();
  EXPECT_EQ(failed->response.value().status, 500);
  const auto left = Send("a", body);
  harness_.Step(3);
  left->when_gone();  // after a few of its tokens
  harness_.RunToEnd();
  const auto third = Send("a", body);  // of 50, 20 and 5 to 15 are gone
  EXPECT_FALSE(third->response) << third->response->body;
  harness_.RunToEnd();
  EXPECT_EQ(Send("a", body)->response.value().status, 429);
}

TEST_F(TokenLimitsTest, WhatIsNotUsedIsGivenBack) {
  for (int i = 0; i < 6; ++i) {  // 20 tokens each
    const auto answer = Send("a", {{"prompt", {1, 2, 3, 4, 5}}, {"max_tokens", 15}});
    ASSERT_FALSE(answer->response) << answer->response->body;
    answer->when_gone();  // before a step
    harness_.RunToEnd();
    const auto refused = Send("a", {{"prompt", {1, 2, 3}}, {"max_tokens", 8}, {"temperature", -1}});
    EXPECT_EQ(refused->response.value().status, 400);
  }
}

class LocalServiceTest : public ServiceTest {
 protected:
  LocalServiceTest() : ServiceTest({.only_local_hosts = true, .host_names = {"models.example.org"}}) {}
};

TEST_F(LocalServiceTest, APageOfAnotherSiteIsRefused) {
  const auto status = [&](const std::string& host) {
    return Ask({.method = "GET", .path = "/v1/models", .host = host})->response->status;
  };
  EXPECT_EQ(status("localhost:8000"), 200);
  EXPECT_EQ(status("models.example.org"), 200);
  EXPECT_EQ(status("attacker.example.org:8000"), 403);
  EXPECT_EQ(Ask({.method = "GET", .path = "/health", .host = "x"})->body()["error"]["type"], "invalid_request_error");
}

class ServiceWithLimitsTest : public ServiceTest {
 protected:
  // printf %s secret | sha256sum
  ServiceWithLimitsTest()
      : ServiceTest(
            {.max_waiting = 2,
             .access = {.keys = ApiKeys::Parse("bob 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "k").value(),
                        .max_active_per_key = 1,
                        .request_timeout = 1e-6}}) {}
};

TEST_F(ServiceWithLimitsTest, AKeyIsKnownByTheHead) {
  HttpRequest head = {.method = "POST", .path = "/v1/completions", .content_type = "application/json", .peer = "192.0.2.1"};
  EXPECT_EQ(service_.Plan(head).refusal->status, 401);
  head.authorization = "Bearer secret";
  EXPECT_FALSE(service_.Plan(head).refusal);
  EXPECT_EQ(service_.Plan(head).share, "bob");
  EXPECT_EQ(service_.Plan({.method = "GET", .path = "/health", .peer = "192.0.2.1"}).share, "peer 192.0.2.1");
}

TEST_F(ServiceWithLimitsTest, KeysGuardAllButHealth) {
  EXPECT_EQ(Get("/health")->response->status, 200);
  EXPECT_EQ(Get("/openapi.json")->response->status, 200);
  EXPECT_EQ(Get("/")->response->status, 200);
  for (const char* path : {"/metrics", "/v1/models", "/v1/tree"}) EXPECT_EQ(Get(path)->response->status, 401) << path;
  const auto refused = Complete({});
  EXPECT_EQ(refused->response->status, 401);
  EXPECT_EQ(refused->body()["error"]["code"], "invalid_api_key");
  EXPECT_THAT(refused->response->headers, ::testing::Contains(Pair("www-authenticate", "Bearer")));
  EXPECT_EQ(Ask({.method = "GET", .path = "/v1/models", .authorization = "Bearer secret"})->response->status, 200);
  EXPECT_EQ(Ask({.method = "GET", .path = "/v1/models", .authorization = "Bearer wrong"})->response->status, 401);
}

TEST_F(ServiceWithLimitsTest, LimitsOfTheServer) {
  const auto post = [&](const json& body) {
    return Ask({.method = "POST",
                .path = "/v1/completions",
                .body = body.dump(),
                .authorization = "Bearer secret",
                .content_type = "application/json"});
  };
  const auto many = post({{"prompt", {{1}, {2}, {3}}}});
  EXPECT_EQ(many->response->status, 400);
  EXPECT_EQ(many->body()["error"]["param"], "prompt");
  for (const json& body : {json{{"prompt", {1}}, {"n", 2}}, json{{"prompt", {{1}, {2}}}}, json{{"prompt", {1}}, {"best_of", 2}}}) {
    const auto wide = post(body);
    EXPECT_EQ(wide->response->status, 400) << body;
    EXPECT_THAT(wide->response->body, HasSubstr("2 samples"));
  }
  const auto score = Ask({.method = "POST",
                          .path = "/v1/score",
                          .body = R"({"prompt": [1], "continuations": [[2], [3]]})",
                          .authorization = "Bearer secret",
                          .content_type = "application/json"});
  EXPECT_THAT(score->response.value().body, HasSubstr("2 samples"));
  const auto late = post({{"prompt", {1, 2}}});
  const auto second = post({{"prompt", {1, 2}}});
  EXPECT_EQ(second->response->status, 429);
  EXPECT_THAT(second->response->body, HasSubstr("API key"));
  harness_.RunToEnd();
  EXPECT_EQ(late->response->status, 408);
  EXPECT_FALSE(post({{"prompt", {1, 2}}})->response);  // there is room again
  harness_.RunToEnd();
}

}  // namespace
}  // namespace coppice::server
