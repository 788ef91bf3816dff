// The trace of an engine's steps against the forests that it ran, with forks, prunes, beams and preemption; what becomes of a
// recording that cannot be written.
#include "cli/forest_recorder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attention_tools/forest_trace.h"
#include "cli/bench/replay.h"
#include "coppice/attention/attention.h"
#include "engine/testing/engine_harness.h"
#include "tests/support/tiny_model.h"

namespace coppice::cli {
namespace {

using attention::kFreeSlot;
using attention::OwnedForest;
using attention::PrefixForestView;

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A forest in words: each node and branch in use.
std::string Words(const PrefixForestView& forest) {
  std::ostringstream words;
  for (size_t n = 0; n < forest.node_parent.size(); ++n) {
    if (forest.node_parent[n] == kFreeSlot) continue;
    words << "node " << n << " below " << forest.node_parent[n] << ": " << forest.node_begin[n] << " to " << forest.node_end[n]
          << '\n';
  }
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    if (forest.branch_node[b] == kFreeSlot) continue;
    words << "branch " << b << " at " << forest.branch_node[b] << ": " << forest.branch_kv_len[b] << ", "
          << forest.branch_query_count[b] << " queries\n";
  }
  return words.str();
}

// Keeps each forest beside the recorder.
class Witness final : public ForestListener {
 public:
  explicit Witness(const std::string& path) : recorder_(path) {}
  Status Begin() override { return recorder_.Begin(); }
  void OnStep(const ModelInfo& model, const PrefixForestView& forest) override {
    seen_.push_back(Words(forest));
    recorder_.OnStep(model, forest);
  }
  const std::vector<std::string>& seen() const { return seen_; }

 private:
  ForestRecorder recorder_;
  std::vector<std::string> seen_;
};

TEST(ForestRecorder, ATraceHasTheForestsThatTheEngineRan) {
  const testing::TemporaryFolder folder;
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kNone}) {
    SCOPED_TRACE(Name(sharing));
    const std::string path = folder.path() + "/" + std::string(Name(sharing));
    auto witness = std::make_shared<Witness>(path);
    ASSERT_TRUE(witness->Begin().ok());
    {
      // Pages for about half of what the samples want: some are preempted.
      EngineConfig config{
          .model = {.num_pages = 40, .page_size = 4}, .max_running = 12, .sharing = sharing, .forest_listener = witness};
      EngineHarness harness(config);
      std::vector<RequestId> requests;
      for (int32_t i = 0; i < 3; ++i) {
        requests.push_back(harness.engine()
                               .Submit({.prompt_ids = Prompt(20 + 3 * i, i % 2),
                                        .n = 3,
                                        .max_tokens = 24,
                                        .sampling = {.temperature = 1},
                                        .ignore_eos = true,
                                        .keep = true})
                               .value());
      }
      ASSERT_TRUE(harness.engine().Submit({.prompt_ids = Prompt(10), .n = 2, .max_tokens = 10, .beams = {.width = 3}}).ok());
      harness.Step(12);
      const RequestId first = requests.front();
      if (sharing == SharingMode::kTree) {
        EXPECT_TRUE(harness.engine().Fork({.request = first, .index = 0}, {.n = 2, .keep_tokens = 1, .max_tokens = 9}).ok());
      }
      harness.Step(3);
      EXPECT_TRUE(harness.engine().Prune({.request = first, .index = 1}).ok());
      harness.RunToEnd();
      EXPECT_GT(harness.engine().Metrics().preemptions, 0) << "the test wants some";
    }
    const std::vector<std::string> seen = witness->seen();
    witness.reset();  // writes what is left
    ASSERT_GT(seen.size(), 30u);
    const Result<ReplayedTrace> trace = ReadForestTrace(path, 0);
    ASSERT_TRUE(trace.ok()) << trace.status().message();
    EXPECT_EQ(trace->head.page_size, 4);
    ASSERT_EQ(trace->steps.size(), seen.size());
    for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(Words(trace->steps[i].forest.Forest()), seen[i]) << "step " << i;
  }
}

TEST(ForestRecorder, TakesNoFileOfAnotherKind) {
  const testing::TemporaryFolder folder;
  folder.Write("letter", "dear reader");
  const Status status = ForestRecorder(folder.path() + "/letter").Begin();
  EXPECT_NE(status.message().find("holds something else than a forest trace"), std::string::npos) << status.message();
  EXPECT_EQ(TextOf(folder.path() + "/letter"), "dear reader");
  EXPECT_FALSE(ForestRecorder(folder.path() + "/none/trace").Begin().ok());
  EXPECT_FALSE(ForestRecorder(folder.path()).Begin().ok());
}

TEST(ForestRecorder, AnEarlierTraceStaysUntilTheFirstStep) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/trace", before = std::string(attention::kForestTraceBegin) + "}\n";
  folder.Write("trace", before);
  EXPECT_TRUE(ForestRecorder(path).Begin().ok());
  EXPECT_EQ(TextOf(path), before);
}

TEST(ForestRecorder, AFullDiskEndsTheRecordingAlone) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/trace";
  std::signal(SIGXFSZ, SIG_IGN);  // as the program does
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limit = before;
  limit.rlim_cur = 400;  // the head and a step or two
  auto recorder = std::make_shared<ForestRecorder>(path);
  ASSERT_TRUE(recorder->Begin().ok());
  EngineHarness harness({.forest_listener = recorder});
  harness.Submit({.prompt_ids = Prompt(20), .n = 8, .max_tokens = 200, .ignore_eos = true});
  setrlimit(RLIMIT_FSIZE, &limit);
  harness.RunToEnd();
  recorder.reset();
  setrlimit(RLIMIT_FSIZE, &before);
  const std::string text = TextOf(path);
  EXPECT_LE(text.size(), 400u);
  EXPECT_TRUE(text.ends_with("\n")) << "a part of a line";
}

}  // namespace
}  // namespace coppice::cli
