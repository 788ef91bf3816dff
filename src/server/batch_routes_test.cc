// Files and batches through the routes, over an engine with a fake model that steps on a thread of its own: whose they are, what is
// refused, what a batch gives, how it is cancelled and expires, and what the next server finds in the folder.
#include "server/batch_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "server/record.h"
#include "server/service.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int32_t kContext = 64;
constexpr const char* kForm = "multipart/form-data; boundary=x";

class OneAnswer final : public Responder {
 public:
  void Send(HttpResponse answer) override {
    response = std::move(answer);
    sent = true;
  }
  void BeginStream() override {}
  void Write(std::string) override {}
  void Write(std::unique_ptr<TextSource>) override {}
  void EndStream() override {}
  void WhenGone(std::function<void()>) override {}

  HttpResponse response = {.status = 0};
  std::atomic<bool> sent{false};
};

std::string FormOf(const std::string& data, const std::string& more = {}, const std::string& purpose = "batch") {
  return "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose + "\r\n" + more +
         "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n" + data + "\r\n--x--\r\n";
}
std::string Field(const std::string& name, const std::string& value) {
  return "--x\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
}

// `count` requests named "0", "1", ...
std::string Requests(int count, int32_t max_tokens = 4) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += json({{"custom_id", std::to_string(i)},
                  {"method", "POST"},
                  {"url", "/v1/completions"},
                  {"body", {{"prompt", {1, 2, 3 + i}}, {"max_tokens", max_tokens}, {"ignore_eos", true}}}})
                .dump() +
            "\n";
  }
  return text;
}

std::vector<json> LinesOf(const std::string& text) {
  std::vector<json> lines;
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    lines.push_back(json::parse(text.substr(begin, text.find('\n', begin) - begin)));
  return lines;
}

class BatchRoutesTest : public ::testing::Test {
 protected:
  BatchRoutesTest() { Start(); }
  ~BatchRoutesTest() override {
    Stop();
    fs::remove_all(folder_);
  }

  void Start(bool with_keys = true, int32_t max_running = 4, TokenLimit token_limit = {}) {
    harness_ = std::make_unique<EngineHarness>(EngineConfig{.model = {.max_position = kContext},
                                                            .max_running = max_running,
                                                            .max_waiting = 8,
                                                            .texts = Letters(64),
                                                            .event_thread = true});
    ServiceOptions options = {.model = "fake", .version = "1", .max_context = kContext};
    // SHA-256 of "a" and "b".
    if (with_keys) {
      options.access.keys = ApiKeys::Parse(
                                "alice ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb\n"
                                "bob 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d\n",
                                "keys")
                                .value();
    }
    options.access.token_limit = token_limit;
    options.files = {
        .folder = folder_, .max_bytes = max_file_bytes_, .max_per_key = max_files_, .max_bytes_per_key = max_bytes_per_key_};
    options.batches = {.max_requests = max_requests_, .max_active = 2, .store = {.max_unfinished_per_key = 2}};
    service_ = std::make_unique<Service>(&harness_->engine(), std::move(options));
    const Status restored = service_->RestoreBatches();
    ASSERT_TRUE(restored.ok()) << restored.message();
  }
  void Step() {
    stepping_ = std::jthread([this](const std::stop_token& stop) { EXPECT_TRUE(harness_->engine().Run(stop).ok()); });
  }
  void Stop() {
    stepping_ = {};
    service_.reset();
    harness_.reset();
  }

  HttpResponse Ask(HttpRequest request, const std::string& key = "a") {
    if (!key.empty()) request.authorization = "Bearer " + key;
    auto responder = std::make_shared<OneAnswer>();
    service_->Handle(std::move(request), responder);
    return responder->response;
  }
  HttpResponse Get(const std::string& path, const std::string& query = {}, const std::string& key = "a") {
    return Ask({.method = "GET", .path = path, .query = query}, key);
  }
  HttpResponse Post(const std::string& path, const json& body, const std::string& key = "a") {
    return Ask({.method = "POST", .path = path, .body = body.dump(), .content_type = "application/json"}, key);
  }
  HttpResponse Send(const std::string& form, const std::string& key = "a") {
    return Ask({.method = "POST", .path = "/v1/files", .body = form, .content_type = kForm}, key);
  }
  std::string Upload(const std::string& data, const std::string& key = "a") {
    const HttpResponse answer = Send(FormOf(data), key);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body)["id"];
  }
  static json BatchOf(const std::string& file) {
    return {{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}};
  }
  std::string Create(const std::string& file) {
    const HttpResponse answer = Post("/v1/batches", BatchOf(file));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body)["id"];
  }
  json Batch(const std::string& id) { return json::parse(Get("/v1/batches/" + id).body); }
  json WaitFor(const std::string& id, const std::function<bool(const json&)>& reached) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    json batch = Batch(id);
    while (!reached(batch) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      batch = Batch(id);
    }
    EXPECT_TRUE(reached(batch)) << batch;
    return batch;
  }
  json WaitForState(const std::string& id, const std::string& state) {
    return WaitFor(id, [&](const json& batch) { return batch["status"] == state; });
  }
  // Of a batch or file, while no service runs: its time is over.
  void Expire(const std::string& id) {
    const std::string path = folder_ + "/" + id + ".json";
    json record = *ReadRecord(path);
    record["expires"] = record["created"];
    std::ofstream(path) << record;
  }
  std::string Content(const std::string& file) {
    const HttpResponse answer = Get("/v1/files/" + file + "/content");
    if (!answer.file) return {};
    std::string text(static_cast<size_t>(answer.file->size), '\0');
    EXPECT_EQ(pread(answer.file->file.get(), text.data(), text.size(), 0), answer.file->size);
    return text;
  }

  const std::string folder_ = fs::temp_directory_path() / ("batch_routes_test." + std::to_string(getpid()));
  int32_t max_files_ = 6;                                                      // from the next Start on
  int64_t max_file_bytes_ = 4000, max_bytes_per_key_ = 0, max_requests_ = 20;  // likewise
  std::unique_ptr<EngineHarness> harness_;
  std::unique_ptr<Service> service_;
  std::jthread stepping_;
};

TEST_F(BatchRoutesTest, AFileBelongsToItsKey) {
  const std::string id = Upload("{}\n");
  const json info = json::parse(Get("/v1/files/" + id).body);
  EXPECT_EQ(info["bytes"], 3);
  EXPECT_EQ(info["filename"], "in.jsonl");
  EXPECT_EQ(info["purpose"], "batch");
  EXPECT_EQ(Content(id), "{}\n");
  for (const char* path : {"", "/content"}) EXPECT_EQ(Get("/v1/files/" + id + path, "", "b").status, 404);
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + id}, "b").status, 404);
  EXPECT_EQ(Post("/v1/batches", BatchOf(id), "b").status, 400);
  EXPECT_TRUE(json::parse(Get("/v1/files", "", "b").body)["data"].empty());
  EXPECT_EQ(Get("/v1/files", "", "").status, 401);
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + id}).status, 200);
  EXPECT_EQ(Get("/v1/files/" + id).status, 404);
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + id + "/content"}).status, 405);
  for (const auto& file : fs::directory_iterator(folder_)) EXPECT_EQ(file.path().filename(), "lock");
}

TEST_F(BatchRoutesTest, ListsComeInPages) {
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(Upload(std::to_string(i)));
  const auto list = [&](const std::string& query) {
    const json page = json::parse(Get("/v1/files", query).body);
    std::vector<std::string> found;
    for (const json& file : page["data"]) found.push_back(file["id"]);
    return std::pair(found, page.value("has_more", false));
  };
  EXPECT_EQ(list(""), std::pair(std::vector{ids[2], ids[1], ids[0]}, false));
  EXPECT_EQ(list("order=asc&limit=2"), std::pair(std::vector{ids[0], ids[1]}, true));
  EXPECT_EQ(list("order=asc&limit=2&after=" + ids[1]), std::pair(std::vector{ids[2]}, false));
  EXPECT_TRUE(list("purpose=batch%5Foutput").first.empty());
  EXPECT_EQ(list("purpose=batch").first.size(), 3);
  for (const char* query : {"limit=0", "limit=10001", "limit=1x", "order=up", "after=file-1", "limit=1&limit=2", "else=1"})
    EXPECT_EQ(Get("/v1/files", query).status, 400) << query;
  EXPECT_EQ(Get("/v1/batches", "purpose=batch").status, 400);
}

TEST_F(BatchRoutesTest, UploadsThatAreRefused) {
  const auto refused = [&](const std::string& form) { return json::parse(Send(form).body)["error"]["param"]; };
  EXPECT_EQ(refused(FormOf("a", "", "fine-tune")), "purpose");
  EXPECT_EQ(refused(FormOf("")), "file");
  EXPECT_EQ(refused(FormOf("a", Field("else", "1"))), "else");
  EXPECT_EQ(refused(FormOf("a", Field("expires_after[anchor]", "created_at"))), "expires_after");
  EXPECT_EQ(refused(FormOf("a", Field("expires_after[anchor]", "created_at") + Field("expires_after[seconds]", "5"))),
            "expires_after");
  EXPECT_EQ(refused(Field("purpose", "batch") + "--x--"), "file");
  EXPECT_EQ(Send("nonsense").status, 400);
  EXPECT_EQ(Send(FormOf(std::string(4001, 'a'))).status, 413);
  const HttpResponse expiring =
      Send(FormOf("a", Field("expires_after[anchor]", "created_at") + Field("expires_after[seconds]", "3600")));
  const json file = json::parse(expiring.body);
  EXPECT_EQ(file["expires_at"], file["created_at"].get<int64_t>() + 3600);
  for (int i = 0; i < 5; ++i) Upload("a");
  EXPECT_EQ(Send(FormOf("a")).status, 429);
  EXPECT_EQ(Send(FormOf("a"), "b").status, 200);  // another's room
}

TEST_F(BatchRoutesTest, KeysThatMayUploadAreKnownBeforeTheBodyIsRead) {
  const auto plan = [&](HttpRequest head) { return service_->Plan(std::move(head)); };
  HttpRequest head = {.method = "POST", .path = "/v1/files", .content_type = kForm};
  EXPECT_EQ(plan(head).refusal->status, 401);
  head.authorization = "Bearer a";
  EXPECT_FALSE(plan(head).refusal);
  EXPECT_EQ(plan(head).max_body_bytes, MaxUploadBytes(4000));
  EXPECT_NE(plan(head).body_folder, "");
  EXPECT_EQ(plan({.method = "GET", .path = "/v1/files", .authorization = "Bearer a"}).body_folder, "");
  head.content_type = "application/json";
  EXPECT_EQ(plan(head).refusal->status, 415);
  service_->Drain();
  head.content_type = kForm;
  EXPECT_EQ(plan(head).refusal->status, 503);
}

TEST_F(BatchRoutesTest, APageOfAnotherSiteUploadsNothing) {
  Stop();
  Start(/*with_keys=*/false);
  HttpRequest request = {
      .method = "POST", .path = "/v1/files", .host = "127.0.0.1:8000", .body = FormOf("a"), .content_type = kForm};
  request.origin = "http://elsewhere.example";
  EXPECT_EQ(Ask(request, "").status, 403);
  EXPECT_EQ(Ask({.method = "POST", .path = "/v1/batches/batch_1/cancel", .origin = "null"}, "").status, 403);
  request.origin = "http://127.0.0.1:8000";
  EXPECT_EQ(Ask(request, "").status, 200);
}

TEST_F(BatchRoutesTest, ABatchIsAnswered) {
  Step();
  const std::string file =
      Upload(Requests(3) + "{\"custom_id\": \"s\", \"method\": \"POST\", \"url\": \"/v1/score\", \"body\": {}}\n" +
             "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {}}\n");
  json fields = BatchOf(file);
  fields["metadata"] = {{"of", "a test"}};
  const json made = json::parse(Post("/v1/batches", fields).body);
  EXPECT_EQ(made["status"], "validating");
  EXPECT_TRUE(made["output_file_id"].is_null());
  const std::string id = made["id"];
  EXPECT_EQ(Get("/v1/batches/" + id, "", "b").status, 404);
  EXPECT_EQ(Ask({.method = "POST", .path = "/v1/batches/" + id + "/cancel"}, "b").status, 404);
  const json batch = WaitForState(id, "completed");
  EXPECT_EQ(batch["request_counts"], json({{"total", 5}, {"completed", 3}, {"failed", 2}}));
  EXPECT_EQ(batch["metadata"], fields["metadata"]);
  EXPECT_EQ(batch["expires_at"], batch["created_at"].get<int64_t>() + 86400);
  for (const char* time : {"in_progress_at", "finalizing_at", "completed_at"}) EXPECT_TRUE(batch[time].is_number()) << time;
  EXPECT_TRUE(batch["cancelled_at"].is_null());

  std::vector<std::string> answered, failed;
  for (const json& line : LinesOf(Content(batch["output_file_id"]))) {
    EXPECT_EQ(line["response"]["body"]["model"], "fake");
    EXPECT_EQ(line["response"]["body"]["usage"]["completion_tokens"], 4);
    answered.push_back(line["custom_id"]);
  }
  EXPECT_THAT(answered, UnorderedElementsAre("0", "1", "2"));
  for (const json& line : LinesOf(Content(batch["error_file_id"]))) failed.push_back(line["custom_id"]);
  EXPECT_THAT(failed, ElementsAre("s", "c"));
  const std::string output = batch["output_file_id"];
  EXPECT_EQ(json::parse(Get("/v1/files/" + output).body)["purpose"], "batch_output");
  EXPECT_EQ(Post("/v1/batches", BatchOf(output)).status, 400);  // no input
  EXPECT_EQ(json::parse(Get("/v1/batches").body)["data"][0]["id"], id);
  EXPECT_THAT(Get("/metrics").body, HasSubstr("coppice_key_generated_tokens_total{key=\"alice\"} 12"));
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + file}).status, 200);
}

TEST_F(BatchRoutesTest, BatchesThatAreRefused) {
  const std::string file = Upload(Requests(1));
  const auto refused = [&](const char* field, const json& value) {
    json body = BatchOf(file);
    body[field] = value;
    const HttpResponse answer = Post("/v1/batches", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return json::parse(answer.body)["error"]["param"] == field;
  };
  EXPECT_TRUE(refused("input_file_id", "file-0"));
  EXPECT_TRUE(refused("input_file_id", 5));
  EXPECT_TRUE(refused("endpoint", "/v1/embeddings"));
  EXPECT_TRUE(refused("completion_window", "1h"));
  EXPECT_TRUE(refused("metadata", {{"a", 1}}));
  EXPECT_TRUE(refused("metadata", {{"a", std::string(513, 'a')}}));
  EXPECT_TRUE(refused("output_expires_after", {{"anchor", "created_at"}, {"seconds", 1e300}}));
  EXPECT_TRUE(refused("else", 1));
  EXPECT_EQ(Post("/v1/batches", json::array()).status, 400);
  for (int i = 0; i < 2; ++i) Create(file);
  EXPECT_EQ(Post("/v1/batches", BatchOf(file)).status, 429);
}

TEST_F(BatchRoutesTest, InputsThatAreNone) {
  Step();
  const json empty = WaitForState(Create(Upload("\n \n")), "failed");
  EXPECT_THAT(empty["errors"]["data"][0]["message"], HasSubstr("holds no request"));
  const json many = WaitForState(Create(Upload(Requests(21))), "failed");
  EXPECT_THAT(many["errors"]["data"][0]["message"], HasSubstr("more than 20 requests"));
  EXPECT_TRUE(many["output_file_id"].is_null());
}

TEST_F(BatchRoutesTest, ABatchKeepsRoomForItsFiles) {
  const std::string file = Upload(Requests(1));
  Create(file);
  for (int i = 0; i < 3; ++i) Upload("a");
  EXPECT_EQ(Send(FormOf("a")).status, 429) << "four files, and two of the batch";
  EXPECT_EQ(Post("/v1/batches", BatchOf(file)).status, 429);
  Stop();
  Start();  // which knows of the batch
  EXPECT_EQ(Send(FormOf("a")).status, 429);
  Step();
  const std::string id = json::parse(Get("/v1/batches").body)["data"][0]["id"];
  EXPECT_TRUE(WaitForState(id, "completed")["error_file_id"].is_null());
  EXPECT_EQ(Send(FormOf("a")).status, 200) << "it wrote one";
  EXPECT_EQ(Send(FormOf("a")).status, 429);
}

TEST_F(BatchRoutesTest, BytesOfAKeyAreBounded) {
  Stop();
  max_bytes_per_key_ = 3000;
  Start();
  const std::string small = Upload(Requests(2));
  Upload(std::string(2600, 'a'));
  const HttpResponse refused = Send(FormOf(std::string(400, 'a')));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("--max-bytes-per-key"));
  EXPECT_EQ(Send(FormOf(std::string(2900, 'a')), "b").status, 200) << "another's room";
  EXPECT_EQ(Post("/v1/batches", BatchOf(small)).status, 429) << "no room for what it writes";
}

TEST_F(BatchRoutesTest, ABatchThatFillsItsKeysRoomEndsWithWhatItHas) {
  Stop();
  max_bytes_per_key_ = 5000;
  Start();
  Step();
  const std::string id = Create(Upload(Requests(14, 60)));
  const json batch = WaitForState(id, "failed");
  EXPECT_EQ(batch["errors"]["data"][0]["code"], "storage_limit");
  EXPECT_THAT(batch["errors"]["data"][0]["message"], HasSubstr("keeps 5000 of an API key"));
  const size_t answered = LinesOf(Content(batch["output_file_id"])).size();
  EXPECT_GT(answered, 0u);
  EXPECT_LT(answered, 14u);
}

TEST_F(BatchRoutesTest, ABatchWhoseFirstRequestsAllFailIsGivenUp) {
  Stop();
  max_requests_ = 3000;
  max_file_bytes_ = 1'000'000;
  max_files_ = 20;
  Start();
  Step();
  const auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "{}\n";
    return text;
  };
  // Lines that are no requests; requests that the engine refuses; and where one is right, all others are reported.
  const json unread = WaitForState(Create(Upload(lines(2500))), "failed");
  EXPECT_EQ(unread["errors"]["data"][0]["code"], "invalid_input");
  EXPECT_THAT(unread["errors"]["data"][0]["message"], HasSubstr("the first 100 lines are all errors"));
  EXPECT_EQ(LinesOf(Content(unread["error_file_id"])).size(), 100u);
  const json refused = WaitForState(Create(Upload(Requests(500, -2))), "failed");
  EXPECT_THAT(refused["errors"]["data"][0]["message"], HasSubstr("requests all failed"));
  EXPECT_EQ(LinesOf(Content(refused["error_file_id"])).size(), 100u);
  const json begun = WaitForState(Create(Upload(Requests(1) + lines(2500))), "completed");
  EXPECT_EQ(begun["request_counts"], json({{"total", 2501}, {"completed", 1}, {"failed", 2500}}));
  EXPECT_EQ(LinesOf(Content(begun["error_file_id"])).size(), 1000u) << "the rest is counted";
  const json few = WaitForState(Create(Upload(lines(99))), "completed");
  EXPECT_EQ(few["request_counts"]["failed"], 99);
}

TEST_F(BatchRoutesTest, ABatchIsCancelled) {
  const std::string file = Upload(Requests(5)), id = Create(file);
  WaitForState(id, "in_progress");  // no thread steps the engine
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + file}).status, 409);
  EXPECT_EQ(Ask({.method = "POST", .path = "/v1/batches/" + id + "/cancel"}).status, 200);
  Step();
  const json batch = WaitForState(id, "cancelled");
  EXPECT_TRUE(batch["cancelling_at"].is_number());
  EXPECT_TRUE(batch["cancelled_at"].is_number());
  EXPECT_EQ(Ask({.method = "POST", .path = "/v1/batches/" + id + "/cancel"}).status, 409);
  EXPECT_EQ(harness_->engine().Load().waiting, 0);
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + file}).status, 200);
}

TEST_F(BatchRoutesTest, TheNextServerGoesOnWithABatch) {
  Step();
  const std::string id = Create(Upload(Requests(12, 20) + "no request\n"));
  WaitFor(id, [](const json& batch) { return batch["request_counts"]["completed"] >= 3; });
  Stop();
  std::ofstream(folder_ + "/file-" + std::string(32, '0') + ".data") << "an upload that was cut off";
  Start();
  Step();
  const json batch = WaitForState(id, "completed");
  EXPECT_EQ(batch["request_counts"], json({{"total", 13}, {"completed", 12}, {"failed", 1}}));
  std::vector<std::string> answered;
  for (const json& line : LinesOf(Content(batch["output_file_id"]))) answered.push_back(line["custom_id"]);
  std::ranges::sort(answered);
  EXPECT_EQ(std::ranges::unique(answered).size(), 0);
  EXPECT_EQ(answered.size(), 12);
  EXPECT_EQ(LinesOf(Content(batch["error_file_id"])).size(), 1);
  EXPECT_LE(harness_->engine().Metrics().prompt_tokens, 9 * 3);  // of this server: what was answered before is not computed again
  EXPECT_FALSE(fs::exists(folder_ + "/file-" + std::string(32, '0') + ".data"));
}

TEST_F(BatchRoutesTest, ClientsThatWaitComeFirst) {
  Stop();
  Start(/*with_keys=*/true, /*max_running=*/1);
  const std::string id = Create(Upload(Requests(4, 2)));
  WaitForState(id, "in_progress");
  while (harness_->engine().Load().waiting < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  auto responder = std::make_shared<OneAnswer>();
  service_->Handle({.method = "POST",
                    .path = "/v1/completions",
                    .body = R"({"prompt": [9, 9, 9], "max_tokens": 2, "ignore_eos": true})",
                    .authorization = "Bearer a",
                    .content_type = "application/json"},
                   responder);
  while (harness_->engine().Metrics().generated_tokens < 2) ASSERT_TRUE(harness_->engine().Step().ok());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);  // of the thread for events
  while (!responder->sent && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(responder->sent) << "a batch's request came first";
  EXPECT_EQ(responder->response.status, 200);
  Step();
  EXPECT_EQ(WaitForState(id, "completed")["request_counts"]["completed"], 4);
}

TEST_F(BatchRoutesTest, BatchesUseTheTokensOfTheirKey) {
  Stop();
  Start(/*with_keys=*/true, /*max_running=*/4, {.per_minute = 330});
  Step();
  const auto begin = std::chrono::steady_clock::now();
  const std::string id = Create(Upload(Requests(4, 40)));  // 43 tokens each, all of them used
  EXPECT_EQ(WaitForState(id, "completed")["request_counts"]["completed"], 4);
  // Three fit above the half that is left to clients that wait; the fourth waits for 7 more tokens.
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(taken.count(), (4 * 43 - 165) / 330.0 * 60);
  const HttpResponse refused = Post("/v1/completions", {{"prompt", {1, 2, 3}}, {"max_tokens", 60}, {"n", 5}});
  EXPECT_EQ(refused.status, 429) << refused.body;
}

TEST_F(BatchRoutesTest, ALineMayAskForNoMoreThanItsKeyHas) {
  Stop();
  Start(/*with_keys=*/true, /*max_running=*/4, {.per_request = 20});
  Step();
  const json batch = WaitForState(Create(Upload(Requests(1, 30))), "completed");
  EXPECT_EQ(batch["request_counts"]["failed"], 1);
  const json line = LinesOf(Content(batch["error_file_id"])).at(0);
  EXPECT_EQ(line["response"]["status_code"], 400);
  EXPECT_THAT(line["response"]["body"]["error"]["message"].get<std::string>(), HasSubstr("tokens_per_request"));
}

TEST_F(BatchRoutesTest, AShutdownIsNoEnd) {
  const std::string id = Create(Upload(Requests(5)));
  WaitForState(id, "in_progress");
  service_->Drain();
  Stop();
  Start();
  Step();
  EXPECT_EQ(WaitForState(id, "completed")["request_counts"]["completed"], 5);
}

TEST_F(BatchRoutesTest, ABatchExpires) {
  const std::string id = Create(Upload(Requests(5)));
  WaitForState(id, "in_progress");
  Stop();
  Expire(id);
  std::ofstream(folder_ + "/batch_" + std::string(32, '1') + ".json") << "{\"key\": 1}";  // is left as it is
  Start();
  Step();
  EXPECT_TRUE(WaitForState(id, "expired")["expired_at"].is_number());
  EXPECT_TRUE(fs::exists(folder_ + "/batch_" + std::string(32, '1') + ".json"));
}

TEST_F(BatchRoutesTest, ABatchGoesOnWithAnInputThatHasExpired) {
  const std::string file = Upload(Requests(5)), id = Create(file);
  WaitForState(id, "in_progress");
  Stop();
  Expire(file);
  Start();
  Step();
  EXPECT_EQ(WaitForState(id, "completed")["request_counts"]["completed"], 5);
  EXPECT_EQ(Get("/v1/files/" + file).status, 404);
}

TEST_F(BatchRoutesTest, ABatchInTheQueueIsCancelledAtOnce) {
  for (int i = 0; i < 2; ++i) WaitForState(Create(Upload(Requests(5))), "in_progress");  // no thread steps the engine
  const std::string file = Upload(Requests(5), "b");
  const json queued = json::parse(Post("/v1/batches", BatchOf(file), "b").body);
  EXPECT_EQ(queued["status"], "validating");
  const std::string path = "/v1/batches/" + queued["id"].get<std::string>();
  const json cancelled = json::parse(Ask({.method = "POST", .path = path + "/cancel"}, "b").body);
  EXPECT_EQ(cancelled["status"], "cancelled");
  EXPECT_TRUE(cancelled["cancelling_at"].is_number() && cancelled["cancelled_at"].is_number());
  EXPECT_EQ(Ask({.method = "DELETE", .path = "/v1/files/" + file}, "b").status, 200);
  Step();
  const json batches = json::parse(Get("/v1/batches").body);
  for (const json& batch : batches["data"]) WaitForState(batch["id"], "completed");
  EXPECT_EQ(json::parse(Get(path, "", "b").body)["status"], "cancelled");
}

TEST_F(BatchRoutesTest, AFolderThatCannotBeWrittenTo) {
  const std::string file = Upload(Requests(1));
  fs::remove_all(folder_);
  for (const HttpResponse& answer : {Send(FormOf("a")), Post("/v1/batches", BatchOf(file))}) {
    EXPECT_EQ(answer.status, 500) << answer.body;
    EXPECT_THAT(answer.body, ::testing::Not(HasSubstr(folder_)));
  }
}

TEST_F(BatchRoutesTest, RecordsThatAreNoRegularFilesAreLeft) {
  const std::string file = Upload(Requests(1));
  Stop();
  const std::string other = "file-" + std::string(32, '2');
  ASSERT_EQ(mkfifo((folder_ + "/batch_" + std::string(32, '1') + ".json").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", folder_ + "/batch_" + std::string(32, '2') + ".json");
  ASSERT_EQ(mkfifo((folder_ + "/file-" + std::string(32, '1') + ".json").c_str(), 0600), 0);
  fs::copy_file(folder_ + "/" + file + ".json", folder_ + "/" + other + ".json");
  fs::create_symlink(folder_ + "/" + file + ".data", folder_ + "/" + other + ".data");  // another's, or any file of the machine
  Start();
  const json list = json::parse(Get("/v1/files").body)["data"];
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["id"], file);
}

TEST_F(BatchRoutesTest, AFolderHasOneServer) {
  FileStore other({.folder = folder_});
  EXPECT_EQ(other.Restore({}).code(), StatusCode::kFailedPrecondition);
}

TEST(BatchRoutesWithoutAFolder, SayWhatIsMissing) {
  EngineHarness harness({.model = {.max_position = kContext}});
  Service service(&harness.engine(), {.model = "fake", .max_context = kContext});
  ASSERT_TRUE(service.RestoreBatches().ok());
  auto responder = std::make_shared<OneAnswer>();
  service.Handle({.method = "GET", .path = "/v1/files"}, responder);
  EXPECT_EQ(responder->response.status, 400);
  EXPECT_THAT(responder->response.body, HasSubstr("--files FOLDER"));
  EXPECT_EQ(service.Plan({.method = "POST", .path = "/v1/files", .content_type = kForm}).refusal->status, 400);
}

}  // namespace
}  // namespace coppice::server
