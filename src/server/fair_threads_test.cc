#include "server/fair_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace coppice::server {
namespace {

using ::testing::ElementsAre;

// Work that reports when it has begun, and ends when it may. Outlives the threads.
class Held {
 public:
  FairThreads::Work work() {
    return [this] {
      begun_ = true;
      begun_.notify_all();
      end_.wait(false);
    };
  }
  void WaitUntilBegun() const { begun_.wait(false); }
  bool begun() const { return begun_; }
  void End() {
    end_ = true;
    end_.notify_all();
  }

 private:
  std::atomic<bool> begun_{false}, end_{false};
};

TEST(FairThreads, DoesAllThatWasPostedBeforeItsEnd) {
  std::atomic<int> done{0};
  {
    FairThreads threads(2);
    for (int i = 0; i < 100; ++i) threads.Post(i % 2 ? "a" : "b", i, [&] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

TEST(FairThreads, AShareLeavesThreadsToOthers) {
  std::vector<Held> many(5);
  FairThreads threads(4);
  for (Held& held : many) threads.Post("many", 0, held.work());
  many[0].WaitUntilBegun();
  many[1].WaitUntilBegun();
  std::promise<void> done;
  threads.Post("few", 0, [&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_FALSE(many[2].begun());
  for (Held& held : many) held.End();
}

TEST(FairThreads, SharesTakeTurnsByTheirBytes) {
  std::mutex mutex;
  std::vector<std::string> order;
  {
    Held first;
    FairThreads threads(1);
    threads.Post("x", 0, first.work());
    first.WaitUntilBegun();
    const auto post = [&](const std::string& share, int64_t bytes, const std::string& name) {
      threads.Post(share, bytes, [&, name] {
        const std::lock_guard lock(mutex);
        order.push_back(name);
      });
    };
    post("large", 1 << 20, "large 1");
    post("large", 1 << 20, "large 2");
    post("large", 1 << 20, "large 3");
    post("small", 10, "small 1");
    post("small", 10, "small 2");
    first.End();
  }
  EXPECT_THAT(order, ElementsAre("large 1", "small 1", "small 2", "large 2", "large 3"));
}

TEST(FairThreads, LargeWorkLeavesThreads) {
  Held large_a[2], large_b, large_c, small_d;
  FairThreads threads(4);
  for (Held& held : large_a) threads.Post("a", FairThreads::kLargeBytes, held.work());
  threads.Post("b", FairThreads::kLargeBytes, large_b.work());
  large_a[0].WaitUntilBegun();
  large_b.WaitUntilBegun();
  threads.Post("c", FairThreads::kLargeBytes, large_c.work());
  threads.Post("d", 0, small_d.work());
  small_d.WaitUntilBegun();
  EXPECT_FALSE(large_a[1].begun());  // one of a share at a time
  EXPECT_FALSE(large_c.begun());     // half of the threads have some
  large_b.End();
  large_c.WaitUntilBegun();
  EXPECT_FALSE(large_a[1].begun());
  large_a[0].End();
  large_a[1].WaitUntilBegun();
  for (Held* held : {&large_a[1], &large_c, &small_d}) held->End();
}

TEST(FairThreads, WhatWorkHoldsIsGivenBackWithIt) {
  FairThreads threads(1);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> weak = held;
  threads.Post("a", 0, [held = std::move(held)] {});
  std::promise<bool> gone;
  threads.Post("a", 0, [&] { gone.set_value(weak.expired()); });
  EXPECT_TRUE(gone.get_future().get());
}

}  // namespace
}  // namespace coppice::server
