// Trainers' routes over an engine with a fake model that another thread steps: what they answer, and what becomes of generations,
// whatever order they come in. No sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "server/service.h"
#include "server/testing/shared_segment.h"
#include "server/trainer/sglang_trainer_routes.h"
#include "server/trainer/vllm_trainer_routes.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keeps what was answered, whichever thread answers.
class KeptAnswer final : public Responder {
 public:
  void Send(HttpResponse answer) override {
    if (answer.source) answer.body = TextOf(answer.source.get());
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(done_) << "a second answer";
    status_ = answer.status;
    text_ = std::move(answer.body);
    done_ = true;
    changed_.notify_all();
  }
  void BeginStream() override {
    const std::lock_guard lock(mutex_);
    status_ = 200;
  }
  void Write(std::string text) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(done_);
    text_ += text;
  }
  void Write(std::unique_ptr<TextSource> source) override { Write(TextOf(source.get())); }
  void EndStream() override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  void WhenGone(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    when_gone_ = std::move(callback);
  }

  void Leave() {
    std::function<void()> gone;
    {
      const std::lock_guard lock(mutex_);
      gone = when_gone_;
    }
    if (gone) gone();
  }
  bool Wait(std::chrono::milliseconds at_most = std::chrono::seconds(60)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [this] { return done_; });
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  int status() {
    EXPECT_TRUE(Wait()) << "no answer";
    return status_;
  }
  const std::string& text() {
    EXPECT_TRUE(Wait()) << "no answer";
    return text_;
  }
  json body() { return json::parse(text()); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int status_ = 0;
  std::string text_;
  std::function<void()> when_gone_;
};

using Answer = std::shared_ptr<KeptAnswer>;

constexpr int32_t kContext = 64;

EngineConfig ConfigOf(uint64_t seed) {
  return {.model = {.vocab_size = 64, .max_position = kContext, .num_pages = 96, .page_size = 4, .seed = seed, .padded = true},
          .max_running = 8,
          .max_batch_tokens = 32,
          .event_thread = true};
}

class TrainerRoutesTest : public ::testing::Test {
 protected:
  explicit TrainerRoutesTest(milliseconds patience = std::chrono::seconds(60))
      : service_(&harness_.engine(), OptionsOf(patience)),
        stepping_([this](const std::stop_token& stop) { (void)harness_.engine().Run(stop); }) {}
  ~TrainerRoutesTest() override { service_.StopTrainer(); }

  static ServiceOptions OptionsOf(milliseconds patience) {
    return {.model = "fake",
            .version = "1.2.3",
            .max_context = kContext,
            .prefixes = {.max_per_key = 4, .max_tokens = 200},
            .trainer = TrainerControl::Options{.model_path = "/no/file", .patience = patience}};
  }

  Answer Ask(const std::string& method, const std::string& target, const std::string& body, const std::string& key = "") {
    auto answer = std::make_shared<KeptAnswer>();
    const size_t query = std::min(target.find('?'), target.size());
    service_.Handle({.method = method,
                     .path = target.substr(0, query),
                     .query = target.substr(std::min(query + 1, target.size())),
                     .body = body,
                     .authorization = key.empty() ? "" : "Bearer " + key,
                     .content_type = body.empty() ? "" : "application/json",
                     .id = "id" + std::to_string(next_id_++)},
                    answer);
    return answer;
  }
  Answer Get(const std::string& target) { return Ask("GET", target, ""); }
  Answer Post(const std::string& target, const json& body = {}) { return Ask("POST", target, body.is_null() ? "" : body.dump()); }

  static json Greedy(std::vector<int32_t> prompt, int32_t max_tokens) {
    return {{"prompt", std::move(prompt)},
            {"max_tokens", max_tokens},
            {"temperature", 0},
            {"ignore_eos", true},
            {"return_token_ids", true}};
  }
  Answer Complete(const json& request) { return Post("/v1/completions", request); }

  // A message that brings weights of the segment, whose floats are the seed and the pad.
  json MessageOf(float seed, std::vector<std::string> names, bool checksum = false) {
    const std::array<float, 2> values = {seed, 0};
    segment_.Write(std::as_bytes(std::span(values)));
    json tensors = json::array();
    for (const std::string& name : names)
      tensors.push_back({{"name", name}, {"dtype", "float32"}, {"shape", {1}}, {"offset", name == "seed" ? 0 : 4}});
    return {{"update_info", {{"segment", segment_.name()}, {"checksum", checksum}, {"tensors", std::move(tensors)}}}};
  }
  json Missing() { return Get("/server_info")->body()["weights"]["missing"]; }
  json Update() { return Get("/server_info")->body()["weights"]["update"]; }

  EngineHarness harness_{ConfigOf(0)};
  int next_id_ = 0;
  const std::array<float, 2> nothing_ = {0, 0};
  SharedSegment segment_{std::as_bytes(std::span(nothing_))};
  Service service_;
  std::jthread stepping_;
};

std::vector<int32_t> TokensOf(const json& body) { return body.at("choices").at(0).at("token_ids"); }

// Models of seeds, and their greedy tokens.
class Models {
 public:
  FakeRunner& Of(uint64_t seed) {
    std::unique_ptr<EngineHarness>& model = models_[seed];
    if (!model) model = std::make_unique<EngineHarness>(ConfigOf(seed));
    return model->model();
  }
  bool Says(uint64_t seed, const std::vector<int32_t>& before, int32_t token) { return Of(seed).GreedyAfter(before) == token; }
  void ExpectSaid(uint64_t seed, std::vector<int32_t> text, const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
      EXPECT_TRUE(Says(seed, text, token)) << "seed " << seed;
      text.push_back(token);
    }
  }

 private:
  std::map<uint64_t, std::unique_ptr<EngineHarness>> models_;
};

TEST_F(TrainerRoutesTest, AreNotThereUnlessAskedFor) {
  Service without(&harness_.engine(), {.model = "fake", .version = "1", .max_context = kContext});
  WeightLabels labels(&harness_.engine());
  ActiveCalls calls;
  TrainerContext trainer({.engine = &harness_.engine(), .calls = &calls, .labels = &labels});
  std::vector<Route> routes = VllmTrainerRoutes(&trainer);
  std::ranges::move(SglangTrainerRoutes(&trainer), std::back_inserter(routes));
  for (const Route& route : routes) {
    auto answer = std::make_shared<KeptAnswer>();
    without.Handle({.method = std::string(route.method), .path = std::string(route.path)}, answer);
    EXPECT_EQ(answer->status(), 404) << route.path;
  }
  auto info = std::make_shared<KeptAnswer>();
  without.Handle({.method = "GET", .path = "/server_info"}, info);
  EXPECT_EQ(info->body()["vllm_config"]["weight_transfer_config"], nullptr);
  EXPECT_FALSE(info->body().contains("weights"));
  EXPECT_THAT(info->text(), Not(HasSubstr("/no/file")));
  auto model = std::make_shared<KeptAnswer>();
  without.Handle({.method = "GET", .path = "/model_info"}, model);
  EXPECT_EQ(model->body()["model_path"], "fake");
  EXPECT_EQ(Get("/server_info")->body()["model_path"], "/no/file");
}

TEST_F(TrainerRoutesTest, PauseHoldsGenerationsUntilResume) {
  EXPECT_EQ(Get("/is_paused")->body(), json({{"is_paused", false}}));
  EXPECT_EQ(Post("/pause?mode=keep")->body(), json({{"status", "paused"}}));
  EXPECT_EQ(Get("/is_paused")->body(), json({{"is_paused", true}}));
  const Answer waits = Complete(Greedy({1, 2, 3}, 5));
  EXPECT_FALSE(waits->Wait(milliseconds(50)));
  EXPECT_EQ(Get("/health_generate")->status(), 503);
  EXPECT_EQ(Post("/resume")->body(), json({{"status", "resumed"}}));
  EXPECT_EQ(TokensOf(waits->body()).size(), 5u);
  EXPECT_EQ(Get("/health_generate")->status(), 200);
  EXPECT_EQ(Post("/pause_generation", {{"mode", "abort"}})->body()["status"], "ok");
  EXPECT_EQ(Post("/continue_generation", json::object())->body()["status"], "ok");
  EXPECT_EQ(Post("/pause?mode=now")->status(), 400);
  EXPECT_THAT(Post("/pause?mode=now")->text(), HasSubstr("mode is \\\"now\\\", expected abort, wait or keep"));
}

TEST_F(TrainerRoutesTest, AbortEndsOneGenerationOrAll) {
  ASSERT_EQ(Post("/pause?mode=keep")->status(), 200);
  const std::string id = "id" + std::to_string(next_id_);
  const Answer first = Complete(Greedy({1}, 5)), second = Complete(Greedy({2}, 5)), third = Complete(Greedy({3}, 5));
  EXPECT_EQ(Post("/abort_requests", {{"request_ids", {"cmpl-" + id, "other"}}})->body()["num_aborted"], 1);
  EXPECT_EQ(first->body()["choices"][0]["token_ids"].size(), 0u);
  EXPECT_FALSE(second->done());
  EXPECT_EQ(Post("/abort_request", {{"rid", ""}})->status(), 400);
  EXPECT_EQ(Post("/abort_request", {{"abort_all", true}})->body()["num_aborted"], 2);
  EXPECT_EQ(second->status(), 200);
  EXPECT_EQ(third->status(), 200);
  EXPECT_EQ(Post("/abort_requests")->body()["num_aborted"], 0);
}

TEST_F(TrainerRoutesTest, AbortKnowsTheIdsThatClientsGave) {
  ASSERT_EQ(Post("/pause?mode=keep")->status(), 200);
  const json sampling = {{"max_new_tokens", 5}, {"temperature", 0}, {"ignore_eos", true}};
  const Answer alone = Post("/generate", {{"input_ids", {1, 2}}, {"rid", "mine"}, {"sampling_params", sampling}});
  const Answer listed = Post("/generate", {{"input_ids", {{3}, {4}}}, {"rid", {"left", "right"}}, {"sampling_params", sampling}});
  const Answer streamed =
      Post("/generate", {{"input_ids", {5}}, {"rid", "stream"}, {"stream", true}, {"sampling_params", sampling}});
  const Answer tokens =
      Post("/inference/v1/generate", {{"token_ids", {6}}, {"request_id", "r6"}, {"sampling_params", {{"max_tokens", 5}}}});
  EXPECT_EQ(Post("/abort_request", {{"rid", "min"}})->body()["num_aborted"], 0);
  EXPECT_EQ(Post("/abort_request", {{"rid", "mine"}})->body()["num_aborted"], 1);
  EXPECT_EQ(alone->body()["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(alone->body()["meta_info"]["id"], "mine");
  // Of a list one prompt ends, and the others go on.
  EXPECT_EQ(Post("/abort_request", {{"rid", "left"}})->body()["num_aborted"], 1);
  EXPECT_EQ(Post("/abort_request", {{"rid", "stream"}})->body()["num_aborted"], 1);
  EXPECT_THAT(streamed->text(), HasSubstr("abort"));
  EXPECT_EQ(Post("/abort_requests", {{"request_ids", {"r6"}}})->body()["num_aborted"], 1);
  EXPECT_EQ(tokens->body()["choices"][0]["finish_reason"], "abort");
  EXPECT_FALSE(listed->done());
  ASSERT_EQ(Post("/resume")->status(), 200);
  EXPECT_EQ(listed->body()[0]["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(listed->body()[1]["meta_info"]["finish_reason"]["type"], "length");
  EXPECT_EQ(listed->body()[1]["output_ids"].size(), 5u);
  EXPECT_EQ(Post("/abort_request", {{"rid", "mine"}})->body()["num_aborted"], 0);
}

TEST_F(TrainerRoutesTest, AnUpdateInPartsIsOneVersion) {
  Models models;
  EXPECT_EQ(Get("/get_weight_version")->body(), json({{"weight_version", "0"}}));
  EXPECT_EQ(Post("/init_weight_transfer_engine", {{"init_info", {{"transport", "shared_memory"}}}})->status(), 200);
  EXPECT_EQ(Post("/start_weight_update", json::object())->body(), json({{"message", "Weight update started"}}));
  EXPECT_EQ(Update(), "open");
  EXPECT_EQ(Missing(), json::array());
  const Answer waits = Complete(Greedy({1, 2, 3}, 5));
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"seed"}))->body(), json({{"message", "Weights updated"}}));
  EXPECT_EQ(Missing(), json({"pad"}));
  EXPECT_EQ(Post("/resume")->status(), 409);
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"pad"}))->status(), 200);
  EXPECT_FALSE(waits->done());
  EXPECT_EQ(Post("/finish_weight_update", {{"weight_version", "step 7"}})->body(),
            json({{"message", "Weight update finished"}, {"weight_version", "step 7"}, {"version", 1}}));
  models.ExpectSaid(11, {1, 2, 3}, TokensOf(waits->body()));
  EXPECT_EQ(Get("/weight_version")->body()["weight_version"], "step 7");
  EXPECT_EQ(Post("/update_weight_version", {{"new_version", "best"}})->status(), 200);
  EXPECT_EQ(Get("/weight_info")->body()["weight_version"], "best");
  EXPECT_EQ(
      Post("/inference/v1/generate", {{"token_ids", {1, 2, 3}}, {"sampling_params", {{"max_tokens", 2}, {"ignore_eos", true}}}})
          ->body()["choices"][0]["weight_versions"][0]["version"],
      "best")
      << "answers name weights as the trainer does";
  EXPECT_EQ(Get("/weight_info")->body()["weights"][1],
            json({{"name", "seed"}, {"dtype", "float32"}, {"shape", {1}}, {"missing", false}}));
  EXPECT_EQ(Update(), "none");
  EXPECT_EQ(Post("/finish_weight_update")->status(), 409);
  // Without a start, one call is an update of its own.
  EXPECT_EQ(Post("/update_weights", MessageOf(12, {"seed"}))->status(), 200);
  models.ExpectSaid(12, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
  EXPECT_EQ(Get("/get_weight_version")->body()["weight_version"], "2");
}

TEST_F(TrainerRoutesTest, AnAnswerWithoutATokenNamesTheWeightsOfItsEnd) {
  json update = MessageOf(11, {"seed", "pad"});
  update["weight_version"] = "w1";
  ASSERT_EQ(Post("/update_weights", update)->status(), 200);
  ASSERT_EQ(Post("/pause?mode=keep")->status(), 200);
  for (const bool stream : {false, true}) {
    const Answer waits = Post("/generate", {{"input_ids", {1, 2}}, {"rid", "mine"}, {"stream", stream}});
    ASSERT_EQ(Post("/abort_request", {{"rid", "mine"}})->body()["num_aborted"], 1);
    EXPECT_THAT(waits->text(), HasSubstr(R"("output_ids":[],)"));
    EXPECT_THAT(waits->text(), HasSubstr(R"("weight_version":"w1","weight_versions":[])"));
  }
}

TEST_F(TrainerRoutesTest, WhatIsNoUpdateChangesNothing) {
  Models models;
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  json wrong = MessageOf(11, {"seed", "pad"});
  wrong["update_info"]["tensors"][1]["name"] = "other";
  EXPECT_EQ(Post("/update_weights", wrong)->status(), 400);
  EXPECT_EQ(Post("/update_weights", {{"update_info", {{"names", {"seed"}}}}})->status(), 400);
  EXPECT_EQ(Post("/update_weights_from_tensor", {{"serialized_named_tensors", {"gASV"}}})->status(), 400);
  EXPECT_EQ(Post("/update_weights", json::object())->status(), 400);
  EXPECT_EQ(Ask("POST", "/update_weights", "[")->status(), 400);
  EXPECT_EQ(Ask("POST", "/update_weights", "[]")->status(), 400);
  EXPECT_EQ(Missing(), json::array());
  ASSERT_EQ(Post("/finish_weight_update")->status(), 200);
  EXPECT_EQ(Get("/get_weight_version")->body()["weight_version"], "0");
  models.ExpectSaid(0, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
}

TEST_F(TrainerRoutesTest, ChecksumsAreThoseOfTheBytesThatCame) {
  ASSERT_EQ(Post("/update_weights", MessageOf(1, {"seed"}, /*checksum=*/true))->status(), 200);
  const json checksums = Post("/weight_checker", {{"action", "checksum"}})->body()["checksums"];
  EXPECT_EQ(checksums["seed"], "e00e5eb9444182f352323374ef4e08ebcb784725fdd4fd612d7730540b3e0c8c");
  EXPECT_EQ(checksums["pad"], nullptr);
  const auto compare = [&](const json& baseline) {
    return Post("/weight_checker", {{"action", "compare"}, {"baseline", baseline}})->body();
  };
  EXPECT_EQ(compare({{"seed", checksums["seed"]}}), json({{"match", false}, {"mismatches", {"pad"}}}));
  ASSERT_EQ(Post("/update_weights", MessageOf(1, {"pad"}, /*checksum=*/true))->status(), 200);
  const json all = Post("/weights_checker", {{"action", "checksum"}})->body()["checksums"];
  EXPECT_EQ(compare(all), json({{"match", true}, {"mismatches", json::array()}}));
  ASSERT_EQ(Post("/update_weights", MessageOf(2, {"seed"}, /*checksum=*/true))->status(), 200);
  EXPECT_EQ(compare(all)["mismatches"], json({"seed"}));
  EXPECT_EQ(Post("/weight_checker", {{"action", "reset"}})->status(), 400);
}

TEST_F(TrainerRoutesTest, SleepGivesWeightsBackUntilTheyComeAgain) {
  Models models;
  EXPECT_EQ(Post("/sleep?level=1")->status(), 200);
  EXPECT_EQ(Get("/is_sleeping")->body(), json({{"is_sleeping", true}}));
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"seed"}))->status(), 409);
  EXPECT_EQ(Post("/start_weight_update")->status(), 409);
  EXPECT_EQ(Post("/wake_up")->status(), 200);
  EXPECT_EQ(Get("/is_sleeping")->body(), json({{"is_sleeping", false}}));
  EXPECT_EQ(Post("/sleep", {{"level", 3}})->status(), 400);
  for (const char* const path : {"/wake_up", "/release_memory_occupation", "/resume_memory_occupation"}) {
    EXPECT_EQ(Post(path, {{"tags", {"weights", "kvcache"}}})->status(), 400) << path;
    EXPECT_EQ(Get("/is_sleeping")->body(), json({{"is_sleeping", false}}));
  }
  // As a trainer on the same card does: weights first, then KV.
  EXPECT_EQ(Post("/sleep", {{"level", 2}})->status(), 200);
  EXPECT_EQ(Post("/wake_up?tags=weights")->status(), 200);
  EXPECT_EQ(Missing(), json({"pad", "seed"}));
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"seed", "pad"}))->status(), 200);
  EXPECT_EQ(Post("/wake_up?tags=kv_cache")->status(), 200);
  models.ExpectSaid(11, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
  // Weights that updates brought are not those of the model's file.
  EXPECT_EQ(Post("/release_memory_occupation", json::object())->status(), 200);
  EXPECT_EQ(Post("/resume_memory_occupation", json::object())->status(), 409);
  EXPECT_EQ(Post("/collective_rpc", {{"method", "reload_weights"}})->status(), 200);
  EXPECT_EQ(Post("/resume")->status(), 200);
  models.ExpectSaid(0, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
  EXPECT_EQ(Post("/collective_rpc", {{"method", "exec"}})->status(), 400);
}

TEST_F(TrainerRoutesTest, SkyRlsNamesAreThoseOfTheRoutes) {
  EXPECT_EQ(Post("/collective_rpc", {{"method", "skyrl_start_weight_update"}})->status(), 200);
  const json message = MessageOf(11, {"seed"});
  EXPECT_EQ(Post("/collective_rpc", {{"method", "update_weights"}, {"args", {message["update_info"]}}})->status(), 200);
  EXPECT_EQ(Post("/collective_rpc", {{"method", "skyrl_finish_weight_update"}})->status(), 200);
  EXPECT_EQ(Get("/get_weight_version")->body()["weight_version"], "1");
}

TEST_F(TrainerRoutesTest, ResetOfTheCacheReportsWhatBecameOfPins) {
  const auto reset = [&] { return Post("/reset_prefix_cache")->body(); };
  EXPECT_EQ(reset(), json({{"success", true}, {"pinned_prefixes", {{"kept", 0}, {"pages", "dropped"}, {"computed_anew", 0}}}}));
  ASSERT_EQ(Ask("PUT", "/v1/prefixes/p", R"({"prompt": [31, 32, 33, 34, 35, 36, 37, 38]})")->status(), 200);
  EXPECT_EQ(reset(), json({{"success", true}, {"pinned_prefixes", {{"kept", 1}, {"pages", "dropped"}, {"computed_anew", 1}}}}));
  const auto cached = [&] {
    return Complete(Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 2))->body()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 0);
  EXPECT_EQ(Get("/flush_cache")->status(), 200);
  EXPECT_EQ(cached(), 0);
}

TEST_F(TrainerRoutesTest, AFailedPartRefusesRequestsUntilAWholeUpdate) {
  Models models;
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  const Answer waits = Complete(Greedy({1, 2, 3}, 5));
  harness_.model().FailNextUpdate(Internal("the device is full"));
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"seed"}))->status(), 500);
  EXPECT_EQ(waits->status(), 503);
  EXPECT_EQ(Update(), "given_up");
  EXPECT_EQ(Missing(), json({"pad", "seed"}));
  EXPECT_EQ(Complete(Greedy({1}, 5))->status(), 503);
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"seed", "pad"}))->status(), 409);
  EXPECT_EQ(Post("/resume")->status(), 409);
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  ASSERT_EQ(Post("/update_weights", MessageOf(11, {"seed"}))->status(), 200);
  EXPECT_EQ(Post("/finish_weight_update")->status(), 409);
  EXPECT_EQ(Missing(), json({"pad"}));
  EXPECT_EQ(Complete(Greedy({1}, 5))->status(), 503);
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  ASSERT_EQ(Post("/update_weights", MessageOf(12, {"seed", "pad"}))->status(), 200);
  ASSERT_EQ(Post("/finish_weight_update")->status(), 200);
  models.ExpectSaid(12, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
}

TEST_F(TrainerRoutesTest, AnUpdateWithoutTheWeightsThatASleepDroppedRefusesRequests) {
  ASSERT_EQ(Post("/sleep?level=2")->status(), 200);
  ASSERT_EQ(Post("/wake_up?tags=weights")->status(), 200);
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  const Answer waits = Complete(Greedy({1}, 5));
  EXPECT_EQ(Post("/finish_weight_update")->status(), 409);
  EXPECT_EQ(Update(), "given_up");
  EXPECT_EQ(waits->status(), 503);
  EXPECT_EQ(Complete(Greedy({1}, 5))->status(), 503);
}

TEST_F(TrainerRoutesTest, ScoresThatWaitEndWithGenerations) {
  const json score = {{"prompt", {1, 2, 3}}, {"continuations", {{4}, {5, 6}}}};
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  const Answer waits = Post("/v1/score", score);
  EXPECT_EQ(Post("/abort_requests")->body()["num_aborted"], 0) << "it has no answer with what has come";
  harness_.model().FailNextUpdate(Internal("the device is full"));
  EXPECT_EQ(Post("/update_weights", MessageOf(11, {"seed"}))->status(), 500);
  EXPECT_EQ(waits->status(), 503);
  ASSERT_EQ(Post("/collective_rpc", {{"method", "reload_weights"}})->status(), 200);
  ASSERT_EQ(Post("/resume")->status(), 200);
  EXPECT_EQ(Post("/v1/score", score)->status(), 200);
  ASSERT_EQ(Post("/pause?mode=keep")->status(), 200);
  const Answer drained = Post("/v1/score", score);
  service_.Drain();
  EXPECT_EQ(drained->status(), 503);
}

TEST_F(TrainerRoutesTest, GenerationsThatAPauseHoldsEndWithTheServer) {
  stepping_ = {};
  const Answer runs = Complete(Greedy({1, 2, 3}, 5));
  harness_.Step();
  const Answer paused = Post("/pause?mode=wait");
  while (!harness_.engine().Load().draining) std::this_thread::sleep_for(milliseconds(1));
  const Answer waits = Complete(Greedy({1}, 5));
  service_.Drain();  // while the engine runs still
  stepping_ = std::jthread([this](const std::stop_token& stop) { (void)harness_.engine().Run(stop); });
  EXPECT_EQ(paused->status(), 200);
  EXPECT_EQ(runs->status(), 200);
  EXPECT_EQ(waits->status(), 503);
}

class ImpatientTest : public TrainerRoutesTest {
 protected:
  ImpatientTest() : TrainerRoutesTest(milliseconds(250)) {}
};

// A trainer that dies.
TEST_F(ImpatientTest, AnUpdateThatDoesNotGoOnIsGivenUp) {
  Models models;
  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  models.ExpectSaid(0, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));  // waits until that is given up
  EXPECT_EQ(Update(), "none");

  ASSERT_EQ(Post("/start_weight_update")->status(), 200);
  ASSERT_EQ(Post("/update_weights", MessageOf(11, {"seed"}))->status(), 200);
  const Answer waits = Complete(Greedy({1, 2, 3}, 5));
  EXPECT_EQ(waits->status(), 503);
  EXPECT_THAT(waits->text(), HasSubstr("an update of weights ended half-way"));
  EXPECT_EQ(Complete(Greedy({1, 2, 3}, 5))->status(), 503);
  EXPECT_EQ(Update(), "given_up");
  EXPECT_EQ(Missing(), json({"pad"}));
  EXPECT_EQ(Post("/wake_up")->status(), 200);  // reads the model's file
  EXPECT_EQ(Update(), "none");
  models.ExpectSaid(0, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
}

TEST_F(ImpatientTest, AnUpdateThatHasBroughtAllEndsByItself) {
  Models models;
  ASSERT_EQ(Post("/start_weight_update", {{"weight_version", "all"}})->status(), 200);
  ASSERT_EQ(Post("/update_weights", MessageOf(11, {"seed", "pad"}))->status(), 200);
  models.ExpectSaid(11, {1, 2, 3}, TokensOf(Complete(Greedy({1, 2, 3}, 5))->body()));
  EXPECT_EQ(Get("/get_weight_version")->body()["weight_version"], "all");
  EXPECT_EQ(Update(), "none");
}

// ------------------------------------------------------------------------------------------------------------------- at random

// Weights as they may have come to be, in order.
struct Epoch {
  uint64_t seed = 0;
  bool kept = false;  // what ran before went on
};

class RandomEventsTest : public TrainerRoutesTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr size_t kStreams = 64;
  static constexpr uint64_t kSeeds = 6;

  RandomEventsTest() : TrainerRoutesTest(milliseconds(200)) {}

  struct Stream {
    Answer answer;
    json request;
    size_t first_epoch = 0;
    bool left = false, may_end = false;  // the client; before all tokens have come
  };

  void Submit(Stream* stream) {
    std::vector<int32_t> prompt(1 + random_() % 20);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * (1 + random_() % 2)) % 64);
    json request = Greedy(prompt, static_cast<int32_t>(1 + random_() % 24));
    const Answer answer = Complete(request);
    *stream = {.answer = answer, .request = std::move(request), .first_epoch = epochs_.size() - 1};
  }

  // That each token is what the weights of some epoch say, in the order of epochs, from one to the next of which samples went on.
  void Check(Stream* stream) {
    Stream ended = std::exchange(*stream, Stream());
    if (ended.left) return;
    const int status = ended.answer->status();
    if (status == 503) {
      EXPECT_TRUE(may_refuse_ || ended.may_end) << ended.answer->text();
      return;
    }
    ASSERT_EQ(status, 200) << ended.answer->text();
    const json choices = ended.answer->body().at("choices");
    if (choices.empty()) {  // it had no token when it was ended
      EXPECT_TRUE(ended.may_end);
      return;
    }
    const json& choice = choices.at(0);
    const std::vector<int32_t> tokens = choice.at("token_ids");
    if (!ended.may_end) {
      EXPECT_EQ(choice.at("finish_reason"), "length");
    }
    if (choice.at("finish_reason") == "length") {
      EXPECT_EQ(tokens.size(), ended.request["max_tokens"].get<size_t>());
      ++whole_;
    }
    std::vector<int32_t> text = ended.request["prompt"];
    std::vector<bool> possible(epochs_.size() - ended.first_epoch, true);
    for (const int32_t token : tokens) {
      for (size_t e = 0; e < possible.size(); ++e)
        possible[e] = possible[e] && models_.Says(epochs_[ended.first_epoch + e].seed, text, token);
      ASSERT_NE(std::ranges::count(possible, true), 0) << "token " << text.size() - ended.request["prompt"].size();
      for (size_t e = 1; e < possible.size(); ++e) {
        if (possible[e - 1] && epochs_[ended.first_epoch + e].kept) possible[e] = true;
      }
      text.push_back(token);
    }
  }

  // Of all streams that have begun: they may end early.
  void LetEnd() {
    for (Stream& stream : streams_) stream.may_end = true;
  }
  bool IsPaused() { return harness_.engine().Load().state != EngineState::kRunning; }

  // The weights of `seed` may be there from now on.
  void NoteUpdate(uint64_t seed, bool kept) { epochs_.push_back({seed, kept || IsPaused()}); }

  int64_t version() { return harness_.engine().weight_version().number; }
  // Of the weights that there are.
  uint64_t Seed() {
    const std::vector<int32_t> text = {1, 2, 3};
    uint64_t seed = 0;
    while (seed < kSeeds && models_.Of(seed).LogitsAfter(text) != harness_.model().LogitsAfter(text)) ++seed;
    EXPECT_LT(seed, kSeeds);
    return seed;
  }
  // An action, and then what has come of it is known.
  void Act() {
    const size_t epochs = epochs_.size();
    const int64_t before = version();
    ActAtRandom();
    const uint64_t seed = Seed();
    if (version() == before && seed == epochs_[epochs - 1].seed) {  // a part of an open update makes no version
      epochs_.resize(epochs);
    } else {
      if (epochs_.size() == epochs) epochs_.push_back({.kept = true});
      epochs_.back().seed = seed;
    }
  }

  void ActAtRandom() {
    const std::array<std::string, 3> modes = {"wait", "abort", "keep"};
    const std::string mode = modes[random_() % 3];
    const uint64_t seed = 1 + random_() % (kSeeds - 1);
    const uint32_t action = random_() % 100;
    if (action < 12) {
      if (mode == "abort") LetEnd();
      EXPECT_THAT(Post("/pause?mode=" + mode)->status(), ::testing::AnyOf(200, 409));
    } else if (action < 40) {
      (void)Post("/resume")->status();
    } else if (action < 55) {  // an update of its own
      if (mode == "abort") LetEnd();
      NoteUpdate(seed, mode == "keep");
      json message = MessageOf(static_cast<float>(seed), {"seed", "pad"});
      message["mode"] = mode;
      (void)Post("/update_weights", message)->status();
    } else if (action < 70) {  // one in parts; the trainer may die between them
      if (mode == "abort") LetEnd();
      if (Update() == "open") LetEnd();  // that one is given up
      const bool was_paused = IsPaused();
      epochs_.push_back({seed, mode == "keep" || was_paused});
      if (Post("/start_weight_update", {{"mode", mode}})->status() != 200) return;
      const bool first = random_() % 2 == 0;
      const bool dies = random_() % 5 == 0;
      if (Post("/update_weights", MessageOf(static_cast<float>(seed), {first ? "seed" : "pad"}))->status() != 200 || dies) {
        LetEnd();
        may_refuse_ = true;
        ++deaths_;
        std::this_thread::sleep_for(milliseconds(random_() % 300));
        return;
      }
      const int last = Post("/update_weights", MessageOf(static_cast<float>(seed), {first ? "pad" : "seed"}))->status();
      const int end = last == 200 ? Post("/finish_weight_update")->status() : last;
      if (end != 200) {  // this thread had no time, and it was given up
        LetEnd();
        may_refuse_ = true;
      }
    } else if (action < 76) {
      LetEnd();
      (void)Post("/abort_requests")->status();
    } else if (action < 84) {
      Stream& stream = streams_[random_() % kStreams];
      if (!stream.answer) return;
      stream.left = true;
      stream.answer->Leave();
    } else if (action < 88) {
      if (mode == "abort") LetEnd();
      (void)Post("/sleep?level=" + std::to_string(random_() % 3) + "&mode=" + mode)->status();
    } else if (action < 94) {
      NoteUpdate(0, /*kept=*/true);  // what the file says, where weights are missing
      (void)Post(random_() % 3 == 0 ? "/wake_up?tags=weights" : "/wake_up")->status();
    } else if (action < 96) {
      EXPECT_EQ(Post("/reset_prefix_cache")->status(), 200);
    } else if (action < 98) {
      if (IsPaused()) return;
      NoteUpdate(0, /*kept=*/false);
      (void)Post("/collective_rpc", {{"method", "reload_weights"}})->status();
    } else {
      EXPECT_EQ(Get("/server_info")->status(), 200);
    }
  }

  // Weights are whole, and the engine runs.
  void Mend() {
    if (harness_.engine().Load().state == EngineState::kAsleep) (void)Post("/wake_up?tags=weights")->status();
    LetEnd();
    if (Update() == "open") (void)Post("/finish_weight_update")->status();
    epochs_.push_back({3, true});
    const auto update = [&] {
      return Post("/start_weight_update", {{"mode", "keep"}})->status() == 200 &&
             Post("/update_weights", MessageOf(3, {"seed", "pad"}))->status() == 200 &&
             Post("/finish_weight_update")->status() == 200;
    };
    ASSERT_TRUE(update() || update() || update());  // where this thread has no time, one is given up
    ASSERT_EQ(Post("/resume")->status(), 200);
    EXPECT_EQ(Update(), "none");
  }

  std::mt19937 random_{static_cast<uint32_t>(GetParam())};
  Models models_;
  std::vector<Epoch> epochs_ = {{}};
  std::array<Stream, kStreams> streams_;
  bool may_refuse_ = false;  // weights may be missing
  int whole_ = 0, deaths_ = 0;
};

TEST_P(RandomEventsTest, LoseNoTokenAndMixNoVersions) {
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    for (int event = 0; event < 100; ++event) {
      for (Stream& stream : streams_) {
        if (stream.answer && (stream.left || stream.answer->done())) Check(&stream);
        if (HasFatalFailure()) return;
        if (!stream.answer && random_() % 8 == 0) Submit(&stream);
      }
      Act();
      if (HasFatalFailure()) return;
    }
    Mend();
    if (HasFatalFailure()) return;
    for (Stream& stream : streams_) {
      if (stream.answer) Check(&stream);
      if (HasFatalFailure()) return;
    }
    may_refuse_ = false;
    epochs_.erase(epochs_.begin(), epochs_.end() - 1);
    epochs_.front().kept = false;
    const Answer after = Complete(Greedy({1, 2, 3}, 10));
    models_.ExpectSaid(3, {1, 2, 3}, TokensOf(after->body()));
  }
  EXPECT_GT(whole_, kRounds * 10);
  EXPECT_GT(deaths_, 0);
}

// 300 events each, with fewer updates of weights than a fake model's KV distinguishes. COPPICE_LONG_TEST=1 (ctest label `long`):
// 10^4.
INSTANTIATE_TEST_SUITE_P(Seeds, RandomEventsTest, ::testing::Range(0, std::getenv("COPPICE_LONG_TEST") != nullptr ? 34 : 2));

}  // namespace
}  // namespace coppice::server
