// Prefixes over an engine with a fake model: whose they are, what replaces and ends them, and what a folder keeps for the next
// start.
#include "server/prefix_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "openai/request.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

openai::NamedPrefix PrefixOf(std::vector<int32_t> ids) { return {.prompt_ids = ids, .token_ids = ids}; }
openai::NamedPrefix PublicPrefixOf(std::vector<int32_t> ids) {
  return {.prompt_ids = ids, .is_public = true, .token_ids = std::move(ids)};
}

// Keys alice and bob, with these roles.
AccessOptions KeysOf(const std::string& alice, const std::string& bob) {
  const std::string hash = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48b";  // and a digit
  return {.keys = ApiKeys::Parse("alice " + hash + "b role=" + alice + "\nbob " + hash + "c role=" + bob, "keys").value()};
}

class PrefixStoreTest : public ::testing::Test {
 protected:
  PrefixStoreTest() { Start(""); }
  ~PrefixStoreTest() override { fs::remove_all(folder_); }

  void Start(const std::string& folder, AccessOptions access = {}) {
    store_.reset();
    access_ = std::make_unique<Access>(std::move(access), /*max_context=*/256);
    harness_ = std::make_unique<EngineHarness>(EngineConfig{.model = {.num_pages = 64, .page_size = 4}, .max_running = 4});
    store_ = std::make_unique<PrefixStore>(&harness_->engine(), access_.get(),
                                           PrefixStoreOptions{.folder = folder,
                                                              .max_per_key = 2,
                                                              .max_tokens = 40,
                                                              .max_tokens_per_key = max_tokens_per_key_,
                                                              .max_ttl_seconds = max_ttl_seconds_});
    ASSERT_TRUE(store_->Restore().ok());
  }
  Result<PrefixStore::Info> Put(const std::string& key, const std::string& name, openai::NamedPrefix prefix) {
    std::promise<Result<PrefixStore::Info>> promise;
    store_->Put(key, name, std::move(prefix), [&](const PrefixStore::Outcome& outcome) { promise.set_value(outcome.made); });
    harness_->RunToEnd();
    return promise.get_future().get();
  }
  // The tokens that a key's request finds in the cache; with a public prefix of `shared` tokens.
  int64_t Cached(const std::string& key, std::vector<int32_t> prompt, int32_t shared = 0) {
    Request request{.prompt_ids = std::move(prompt), .max_tokens = 1, .cache_tenant = {.begin = shared}};
    EXPECT_TRUE(access_->Complete(key, &request).ok());
    const int64_t before = harness_->engine().Metrics().cached_tokens;
    EXPECT_TRUE(harness_->engine().Submit(std::move(request)).ok());
    harness_->RunToEnd();
    return harness_->engine().Metrics().cached_tokens - before;
  }
  bool Pinned(int32_t length) {
    while (harness_->engine().Step().value()) {
    }
    for (const CachedPrefix& node : harness_->engine().Metrics().prefixes) {
      if (node.end >= length && node.pinned) return true;
    }
    return false;
  }

  const std::string folder_ = fs::temp_directory_path() / ("prefix_store_test." + std::to_string(getpid()));
  std::unique_ptr<EngineHarness> harness_;
  int64_t max_tokens_per_key_ = 0;
  double max_ttl_seconds_ = 0;
  std::unique_ptr<Access> access_;
  std::unique_ptr<PrefixStore> store_;
};

TEST_F(PrefixStoreTest, APrefixIsPinnedUntilItIsDeleted) {
  const auto made = Put("alice", "a", PrefixOf(Prompt(12)));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_FALSE(made->saved);
  EXPECT_TRUE(Pinned(12));
  EXPECT_TRUE(store_->Get("alice", "a"));
  EXPECT_FALSE(store_->Get("bob", "a"));  // another's
  EXPECT_FALSE(store_->Delete("bob", "a"));
  EXPECT_TRUE(store_->Delete("alice", "a"));
  EXPECT_FALSE(store_->Delete("alice", "a"));
  EXPECT_FALSE(Pinned(12));
}

TEST_F(PrefixStoreTest, OneThatAPauseEndsIsNotMade) {
  std::promise<Result<PrefixStore::Info>> promise;
  store_->Put("alice", "a", PrefixOf(Prompt(40)), [&](const PrefixStore::Outcome& outcome) { promise.set_value(outcome.made); });
  harness_->Step();  // 32 tokens of it
  ASSERT_TRUE(harness_->engine().Pause({.mode = PauseMode::kAbort}).ok());
  ASSERT_TRUE(harness_->engine().Resume().ok());
  harness_->RunToEnd();
  EXPECT_EQ(promise.get_future().get().status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(store_->Get("alice", "a"));
  EXPECT_TRUE(Put("alice", "a", PrefixOf(Prompt(40))).ok());
  EXPECT_TRUE(Pinned(40));
}

TEST_F(PrefixStoreTest, ANewOneTakesThePlaceOfTheOld) {
  ASSERT_TRUE(Put("", "a", PrefixOf(Prompt(20, 1))).ok());
  ASSERT_TRUE(Put("", "a", PrefixOf(Prompt(8, 2))).ok());
  EXPECT_EQ(store_->List("").size(), 1U);
  EXPECT_EQ(store_->Get("", "a")->prefix->token_ids.size(), 8U);
  EXPECT_FALSE(Pinned(20));
  EXPECT_TRUE(Pinned(8));
}

TEST_F(PrefixStoreTest, RoomIsBounded) {
  EXPECT_THAT(Put("", "long", PrefixOf(Prompt(41))).status().message(), HasSubstr("41 tokens"));
  ASSERT_TRUE(Put("", "a", PrefixOf(Prompt(4, 1))).ok());
  ASSERT_TRUE(Put("", "b", PrefixOf(Prompt(4, 2))).ok());
  EXPECT_EQ(Put("", "c", PrefixOf(Prompt(4, 3))).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Put("bob", "c", PrefixOf(Prompt(4, 3))).ok());
  EXPECT_TRUE(Put("", "b", PrefixOf(Prompt(5, 4))).ok());  // in the place of one
}

TEST_F(PrefixStoreTest, OneKeyLeavesTokensForOthers) {
  max_tokens_per_key_ = 20;
  Start("");
  EXPECT_THAT(Put("alice", "a", PrefixOf(Prompt(21))).status().message(), HasSubstr("expected 20 at most"));
  ASSERT_TRUE(Put("alice", "a", PrefixOf(Prompt(12, 1))).ok());
  EXPECT_EQ(Put("alice", "b", PrefixOf(Prompt(9, 2))).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Put("bob", "a", PrefixOf(Prompt(20, 3))).ok());
  EXPECT_TRUE(Put("alice", "a", PrefixOf(Prompt(20, 4))).ok());  // in the place of the old one
  const Status full = Put("carol", "a", PrefixOf(Prompt(4, 5))).status();
  EXPECT_THAT(full.message(), HasSubstr("of all API keys"));
  EXPECT_THAT(full.message(), ::testing::Not(HasSubstr("40")));  // what others have is theirs
}

TEST_F(PrefixStoreTest, NoneIsKeptForLongerThanOneMayBe) {
  max_ttl_seconds_ = 100;
  Start(folder_);
  openai::NamedPrefix prefix = PrefixOf(Prompt(12));
  prefix.ttl_seconds = 101;
  EXPECT_THAT(store_->CheckTtl(prefix).message(), HasSubstr("ttl_seconds is 101, expected 100 at most"));
  prefix.ttl_seconds = 100;
  EXPECT_TRUE(store_->CheckTtl(prefix).ok());
  EXPECT_TRUE(store_->CheckTtl(PrefixOf(Prompt(12))).ok());
  const auto made = Put("", "a", PrefixOf(Prompt(12)));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->expires, made->created + 100);
  max_ttl_seconds_ = 50;  // holds for what an earlier server kept
  Start(folder_);
  EXPECT_EQ(store_->Get("", "a").value().expires, made->created + 50);
}

TEST_F(PrefixStoreTest, ItsTimeEnds) {
  openai::NamedPrefix prefix = PrefixOf(Prompt(12));
  prefix.ttl_seconds = 0.05;
  ASSERT_TRUE(Put("", "a", prefix).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_FALSE(store_->Get("", "a"));
  for (int i = 0; i < 1000 && Pinned(12); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(Pinned(12));
}

TEST_F(PrefixStoreTest, WhatFailsIsReportedAndLeavesTheOldOne) {
  ASSERT_TRUE(Put("", "a", PrefixOf(Prompt(8))).ok());
  EXPECT_FALSE(Put("", "a", PrefixOf({999'999})).ok());  // beyond the vocabulary
  EXPECT_TRUE(Put("", "a", PrefixOf(Prompt(9))).ok());   // and the name is free again
}

TEST_F(PrefixStoreTest, TheNextStartFindsWhatTheFolderKeeps) {
  Start(folder_);
  openai::NamedPrefix salted = PrefixOf(Prompt(12, 1));
  salted.cache_salt = "s";
  salted.cache_private_begin = 2;
  ASSERT_TRUE(Put("alice", "a", salted)->saved);
  ASSERT_TRUE(Put("", "b", PrefixOf(Prompt(8, 2)))->saved);
  ASSERT_TRUE(Put("", "b", PrefixOf(Prompt(9, 3)))->saved);
  openai::NamedPrefix short_lived = PrefixOf(Prompt(4, 4));
  short_lived.ttl_seconds = 1;
  ASSERT_TRUE(Put("", "c", short_lived)->saved);
  std::ofstream(folder_ + "/broken.json") << "[[[";
  std::ofstream(folder_ + "/strange.json") << R"({"key": 1})";
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));

  Start(folder_);
  const auto a = store_->Get("alice", "a");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->prefix->token_ids, Prompt(12, 1));
  EXPECT_EQ(a->prefix->cache_salt, "s");
  EXPECT_EQ(a->prefix->cache_private_begin, 2);
  EXPECT_EQ(store_->Get("", "b")->prefix->token_ids.size(), 9U);
  EXPECT_FALSE(store_->Get("", "c"));
  EXPECT_TRUE(Pinned(12));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2 + 2 * 2);  // nothing of what is gone

  EXPECT_TRUE(store_->Delete("alice", "a"));
  Start(folder_);
  EXPECT_FALSE(store_->Get("alice", "a"));
}

// Files in a folder are not always those that a server put there.
TEST_F(PrefixStoreTest, RecordsThatAreNoneAreLeft) {
  Start(folder_);
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  ASSERT_TRUE(Put("", "a", PrefixOf(Prompt(8)))->saved);
  std::string record;
  for (const fs::directory_entry& file : fs::directory_iterator(folder_)) {
    if (file.path().extension() == ".json") record = file.path();
  }
  nlohmann::json fields = nlohmann::json::parse(std::ifstream(record));
  fs::create_symlink("/dev/zero", folder_ + "/device.json");
  fs::create_symlink(record, folder_ + "/link.json");
  ASSERT_EQ(mkfifo((folder_ + "/pipe.json").c_str(), 0600), 0);
  fs::create_directory(folder_ + "/folder.json");
  std::ofstream(folder_ + "/large.json");
  fs::resize_file(folder_ + "/large.json", uintmax_t{1} << 40);  // a hole
  const size_t strange = 5;
  Start(folder_);
  EXPECT_EQ(store_->List("").size(), 1u);
  for (const auto& ids : {nlohmann::json(Prompt(9)), nlohmann::json(Prompt(7)), nlohmann::json(Prompt(8, 3)), nlohmann::json({-1}),
                          nlohmann::json({int64_t{1} << 40}), nlohmann::json({1.5}), nlohmann::json::array()}) {
    fields["token_ids"] = ids;
    std::ofstream(record) << fields;
    Start(folder_);
    EXPECT_TRUE(store_->List("").empty()) << ids;
    EXPECT_TRUE(fs::exists(record));
  }
  fields["token_ids"] = Prompt(8);
  std::ofstream(record) << fields;
  Start(folder_);
  EXPECT_EQ(store_->List("").size(), 1u);
  EXPECT_EQ(static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())), 2 + strange);
}

TEST_F(PrefixStoreTest, APrefixIsItsKeysAlsoInTheCache) {
  Start("", KeysOf("admin", "user"));
  ASSERT_TRUE(Put("alice", "a", PrefixOf(Prompt(12))).ok());
  EXPECT_EQ(Cached("bob", Prompt(12)), 0);
  EXPECT_EQ(Cached("alice", Prompt(12)), 12);
}

TEST_F(PrefixStoreTest, APublicPrefixIsForAllKeys) {
  Start("", KeysOf("admin", "admin"));
  ASSERT_TRUE(Put("alice", "a", PublicPrefixOf(Prompt(12))).ok());
  ASSERT_TRUE(store_->Get("bob", "a"));
  EXPECT_EQ(store_->List("bob").size(), 1U);
  EXPECT_FALSE(store_->Delete("bob", "a"));
  EXPECT_EQ(Put("bob", "a", PublicPrefixOf(Prompt(9))).status().code(), StatusCode::kFailedPrecondition);
  // Its tokens are shared, and what follows them is not.
  std::vector<int32_t> longer = Prompt(12);
  longer.insert(longer.end(), {9, 8, 7, 6, 5, 4});
  EXPECT_EQ(Cached("bob", longer, 12), 12);
  EXPECT_EQ(Cached("bob", longer, 12), 18);
  EXPECT_EQ(Cached("alice", longer, 12), 12);
  EXPECT_EQ(Cached("carol", longer), 0);  // a request that does not name it has nothing of it
  // A key's own prefix of the name comes first.
  ASSERT_TRUE(Put("bob", "a", PrefixOf(Prompt(9, 3))).ok());
  EXPECT_EQ(store_->Get("bob", "a")->prefix->token_ids.size(), 9U);
  EXPECT_EQ(store_->Get("carol", "a")->prefix->token_ids.size(), 12U);
  EXPECT_TRUE(store_->Delete("bob", "a"));
  EXPECT_TRUE(store_->Get("bob", "a"));
  // One that takes its place need not be public.
  ASSERT_TRUE(Put("alice", "a", PrefixOf(Prompt(8))).ok());
  EXPECT_FALSE(store_->Get("bob", "a"));
  EXPECT_TRUE(store_->List("bob").empty());
  EXPECT_TRUE(Put("bob", "a", PublicPrefixOf(Prompt(9))).ok());
}

TEST_F(PrefixStoreTest, FilesOfOlderServersBelongToTheirKeys) {
  Start(folder_);  // without keys: salts alone
  openai::NamedPrefix salted = PrefixOf(Prompt(12, 1));
  salted.cache_salt = "s";
  ASSERT_TRUE(Put("alice", "a", PrefixOf(Prompt(12))).ok());
  ASSERT_TRUE(Put("bob", "b", salted).ok());
  Start(folder_, KeysOf("user", "user"));
  ASSERT_TRUE(store_->Get("alice", "a"));
  ASSERT_TRUE(store_->Get("bob", "b"));
  EXPECT_EQ(Cached("bob", Prompt(12)), 0);
  EXPECT_EQ(Cached("alice", Prompt(12)), 12);
  const auto salt_of = [&](const std::string& key) {
    Request request{.prompt_ids = Prompt(12, 1), .max_tokens = 1, .cache_salt = "s"};
    EXPECT_TRUE(access_->Complete(key, &request).ok());
    const int64_t before = harness_->engine().Metrics().cached_tokens;
    EXPECT_TRUE(harness_->engine().Submit(std::move(request)).ok());
    harness_->RunToEnd();
    return harness_->engine().Metrics().cached_tokens - before;
  };
  EXPECT_EQ(salt_of("alice"), 0);
  EXPECT_EQ(salt_of("bob"), 12);
}

TEST_F(PrefixStoreTest, APublicPrefixStaysPublicWhileItsKeyIsAnAdmins) {
  Start(folder_, KeysOf("admin", "user"));
  ASSERT_TRUE(Put("alice", "a", PublicPrefixOf(Prompt(12))).ok());
  Start(folder_, KeysOf("admin", "user"));
  EXPECT_TRUE(store_->Get("bob", "a"));
  EXPECT_EQ(Cached("bob", Prompt(12), 12), 12);
  Start(folder_, KeysOf("user", "user"));
  EXPECT_FALSE(store_->Get("bob", "a"));
  EXPECT_FALSE(store_->Get("alice", "a"));
  EXPECT_FALSE(Pinned(12));
  Start(folder_, KeysOf("admin", "user"));
  EXPECT_TRUE(store_->Get("bob", "a"));  // its files were left
}

TEST_F(PrefixStoreTest, ToolsAreKeptAsTheirClientWroteThem) {
  Start(folder_);
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":)"
      R"({"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}}}]})";
  const nlohmann::ordered_json tools = openai::ToolsInOrder(body).value();
  openai::BodyError error;
  openai::NamedPrefix prefix = openai::ParseNamedPrefix(nlohmann::json::parse(body), &error, &tools).value();
  prefix.token_ids = Prompt(4);
  ASSERT_TRUE(Put("", "a", prefix)->saved);
  Start(folder_);
  const auto found = store_->Get("", "a");
  ASSERT_TRUE(found);
  EXPECT_EQ(openai::ToBody(*found->prefix).dump(), body);
  EXPECT_EQ(found->prefix->tools.functions.at(0).name, "f");
}

}  // namespace
}  // namespace coppice::server
