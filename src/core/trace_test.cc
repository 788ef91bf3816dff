#include "core/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace coppice {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  ~TraceTest() override {
    (void)FinishTrace();
    std::filesystem::remove(path_);
  }
  nlohmann::json Events() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file)["traceEvents"];
  }
  const std::string path_ = ::testing::TempDir() + "trace_test." + std::to_string(getpid()) + ".json";
};

TEST_F(TraceTest, SpansOfEachThreadNestAndCarryTheirValues) {
  ASSERT_TRUE(StartTrace(path_).ok());
  {
    TraceSpan outer("outer");
    outer.Set("rows", 3);
    outer.Set("bytes", int64_t{1} << 40);
    { const TraceSpan inner("inner"); }
    std::thread([] { const TraceSpan other("other"); }).join();
  }
  ASSERT_TRUE(FinishTrace().ok());
  std::map<std::string, nlohmann::json> spans;
  std::set<int> named;
  for (const nlohmann::json& event : Events()) {
    if (event["ph"] == "X") spans[event["name"]] = event;
    if (event["name"] == "thread_name") named.insert(event["tid"].get<int>());
  }
  ASSERT_EQ(spans.size(), 3u);
  const nlohmann::json &outer = spans["outer"], &inner = spans["inner"], &other = spans["other"];
  EXPECT_EQ(outer["args"], nlohmann::json({{"rows", 3}, {"bytes", int64_t{1} << 40}}));
  EXPECT_FALSE(inner.contains("args"));
  EXPECT_EQ(inner["tid"], outer["tid"]);
  EXPECT_NE(other["tid"], outer["tid"]);
  EXPECT_EQ(named, (std::set<int>{outer["tid"], other["tid"]}));
  for (const nlohmann::json& within : {inner, other}) {
    EXPECT_GE(within["ts"], outer["ts"]);
    EXPECT_LE(within["ts"].get<double>() + within["dur"].get<double>(),
              outer["ts"].get<double>() + outer["dur"].get<double>() + 1e-3);
  }
}

TEST_F(TraceTest, WithoutATraceSpansLeaveNothing) {
  { const TraceSpan span("before"); }
  EXPECT_TRUE(FinishTrace().ok());
  ASSERT_TRUE(StartTrace(path_).ok());
  ASSERT_TRUE(FinishTrace().ok());
  { const TraceSpan span("after"); }
  for (const nlohmann::json& event : Events()) EXPECT_NE(event["ph"], "X") << event;
}

TEST_F(TraceTest, SpansThatAStartOrFinishCutsAreLeftOut) {
  {
    const TraceSpan before("before");
    ASSERT_TRUE(StartTrace(path_).ok());
    const TraceSpan after("after");
    ASSERT_TRUE(FinishTrace().ok());
  }
  for (const nlohmann::json& event : Events()) EXPECT_NE(event["ph"], "X") << event;
}

TEST_F(TraceTest, ManyThreadsWriteWholeEvents) {
  ASSERT_TRUE(StartTrace(path_).ok());
  constexpr int kThreads = 4, kSpans = 5000;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < kSpans; ++i) {
          TraceSpan span("step");
          span.Set("i", i);
        }
      });
    }
  }
  ASSERT_TRUE(FinishTrace().ok());
  std::map<int, int64_t> sums;
  for (const nlohmann::json& event : Events()) {
    if (event["ph"] == "X") sums[event["tid"]] += event["args"]["i"].get<int64_t>();
  }
  ASSERT_EQ(sums.size(), size_t{kThreads});
  for (const auto& [thread, sum] : sums) EXPECT_EQ(sum, int64_t{kSpans} * (kSpans - 1) / 2);
}

TEST_F(TraceTest, SaysWhatIsWrongWithAPath) {
  EXPECT_EQ(StartTrace("/dev/full").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StartTrace("/no/such/folder/trace.json").code(), StatusCode::kNotFound);
  std::ofstream(path_) << "notes\n";
  EXPECT_EQ(StartTrace(path_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::filesystem::file_size(path_), 6u);
  std::ofstream(path_).close();  // empty
  ASSERT_TRUE(StartTrace(path_).ok());
  ASSERT_TRUE(FinishTrace().ok());
  ASSERT_TRUE(StartTrace(path_).ok());  // in the place of the earlier one
  ASSERT_TRUE(FinishTrace().ok());
  std::filesystem::remove(path_);
  ASSERT_TRUE(StartTrace(path_).ok());
  EXPECT_EQ(StartTrace(path_ + "2").code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "the file comes when it is whole";
}

}  // namespace
}  // namespace coppice
