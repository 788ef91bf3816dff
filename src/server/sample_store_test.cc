// Kept samples by name: whose they are, until when, and what becomes of them where answers and the store end before each other.
#include "server/sample_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice::server {
namespace {

using ::testing::HasSubstr;

class SampleStoreTest : public ::testing::Test {
 protected:
  // Samples of a request that has ended, under names of `key`.
  std::shared_ptr<SampleStore::Generated> Generate(const std::string& key, int32_t n, double seconds) {
    Result<std::shared_ptr<SampleStore::Generated>> generated = store_->Reserve(key, n, seconds);
    EXPECT_TRUE(generated.ok());
    Request request = Greedy({1, 2, 3}, /*max_tokens=*/2, n);
    kept_ = openai::KeptRequest::Keep(&request);
    const Result<RequestId> id = harness_.engine().Submit(std::move(request));
    EXPECT_TRUE(id.ok());
    kept_->SetId(*id);
    std::vector<SampleId> samples;
    for (int32_t i = 0; i < n; ++i) samples.push_back(kept_->sample(i));
    (*generated)->Begin(0, kept_, samples, "salt", std::make_shared<const openai::OpenAiRequest>());
    harness_.RunToEnd();
    return *generated;
  }
  std::optional<SampleStore::Sample> Find(const std::string& name) { return store_->Find("key", "salt", name); }
  bool IsInEngine(int32_t index) { return harness_.engine().Describe(kept_->sample(index)).ok(); }

  EngineHarness harness_{{}};
  std::shared_ptr<SampleStore> store_ = std::make_shared<SampleStore>(&harness_.engine(), SampleStoreOptions{.max_per_key = 4});
  std::shared_ptr<openai::KeptRequest> kept_;
};

TEST_F(SampleStoreTest, ASampleIsItsKeysAndSaltsAlone) {
  const auto generated = Generate("key", 2, /*seconds=*/60);
  const std::string name = generated->names()[1];
  ASSERT_TRUE(Find(name));
  EXPECT_EQ(Find(name)->index, 1);
  EXPECT_FALSE(store_->Find("other", "salt", name) || store_->Find("key", "", name) || Find(name + "0"));
}

TEST_F(SampleStoreTest, ItsTimeBeginsWithItsLastAnswersEnd) {
  const auto first = Generate("key", 1, /*seconds=*/60);
  const std::string name = first->names()[0];
  const auto second = store_->Resume(name, /*seconds=*/60);
  first->End(/*keep=*/true);
  EXPECT_EQ(Find(name)->expires, std::nullopt);  // the other answer still has it
  second->End(/*keep=*/true);
  EXPECT_NE(Find(name)->expires, std::nullopt);
}

TEST_F(SampleStoreTest, WhatExpiresIsPrunedAndItsPlaceIsFree) {
  const auto generated = Generate("key", 4, /*seconds=*/0.05);
  EXPECT_THAT(store_->Reserve("key", 1, 60).status().message(), HasSubstr("4 samples of this API key are kept"));
  EXPECT_TRUE(store_->Reserve("other", 4, 60).ok());
  generated->End(/*keep=*/true);
  for (int i = 0; i < 1'000 && Find(generated->names()[0]); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  Result<std::shared_ptr<SampleStore::Generated>> again = store_->Reserve("key", 4, 60);
  for (int i = 0; i < 1'000 && !again.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    again = store_->Reserve("key", 4, 60);
  }
  EXPECT_TRUE(again.ok());
  EXPECT_FALSE(IsInEngine(0));
}

TEST_F(SampleStoreTest, WhatIsDeletedWhileItIsGeneratedGoesAtItsEnd) {
  const auto generated = Generate("key", 2, /*seconds=*/60);
  store_->Delete(generated->names()[0], /*ended=*/false);
  store_->Delete(generated->names()[1], /*ended=*/true);
  EXPECT_FALSE(Find(generated->names()[0]) || Find(generated->names()[1]));
  EXPECT_TRUE(IsInEngine(0));
  EXPECT_FALSE(IsInEngine(1));
  generated->End(/*keep=*/true);
  EXPECT_FALSE(IsInEngine(0));
}

TEST_F(SampleStoreTest, WhatGoesLeavesNoParametersBehind) {
  const auto parent = Generate("key", 1, /*seconds=*/60);
  const auto forked = store_->Reserve("key", 1, /*seconds=*/60).value();
  const auto group = kept_->Fork(harness_.engine(), 0, {.params = SamplingParams{.temperature = 0.5F}}).value();
  forked->Begin(0, kept_, group->samples(), "salt", std::make_shared<const openai::OpenAiRequest>());
  const int32_t child = group->samples()[0].index;
  EXPECT_EQ(kept_->SamplingOf(child).temperature, 0.5F);
  store_->Delete(forked->names()[0], /*ended=*/true);
  EXPECT_EQ(kept_->SamplingOf(child).temperature, 0);
}

TEST_F(SampleStoreTest, AnAnswerThatNeverCameKeepsNothing) {
  std::string name;
  {
    const auto generated = Generate("key", 4, /*seconds=*/60);
    name = generated->names()[0];
  }
  EXPECT_FALSE(Find(name));
  EXPECT_FALSE(IsInEngine(0));
  EXPECT_TRUE(store_->Reserve("key", 4, 60).ok());
}

TEST_F(SampleStoreTest, AnswersMayOutliveTheStore) {
  const auto generated = Generate("key", 1, /*seconds=*/60);
  store_.reset();
  generated->End(/*keep=*/true);
}

}  // namespace
}  // namespace coppice::server
