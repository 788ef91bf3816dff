#include "simulate/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "simulate/chat_mix.h"
#include "simulate/prompt_tree.h"
#include "simulate/step_times.h"

namespace coppice::simulate {
namespace {

std::string MessageOf(const std::string& line, int32_t block_tokens = 512) {
  const Result<TraceLine> parsed = ParseTraceLine(line, block_tokens);
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(Trace, ReadsSegmentsAndBlocks) {
  const TraceLine segments =
      ParseTraceLine(R"({"timestamp": 1500, "segments": [["system", 100], [7, 20]], "output_length": 9, "output_id": 8})", 512)
          .value();
  EXPECT_DOUBLE_EQ(segments.arrival, 1.5);
  ASSERT_EQ(segments.prompt.size(), 2u);
  EXPECT_EQ(segments.prompt[0].tokens, 100);
  EXPECT_EQ(segments.prompt[1].id, 7u);
  EXPECT_EQ(segments.output_tokens, 9);
  EXPECT_EQ(segments.output_id, 8u);
  const TraceLine blocks =
      ParseTraceLine(R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 9]})", 512).value();
  ASSERT_EQ(blocks.prompt.size(), 3u);
  EXPECT_EQ(blocks.prompt[1].tokens, 512);
  EXPECT_EQ(blocks.prompt[2].tokens, 1100 - 1024);
}

TEST(Trace, RefusesWhatIsNoRequest) {
  EXPECT_NE(MessageOf("{"), "");
  EXPECT_EQ(MessageOf("[]"), "the line is [], expected an object");
  EXPECT_EQ(MessageOf(R"({"segments": [[1, 2]], "output_length": 1})"), "there is no timestamp");
  EXPECT_EQ(MessageOf(R"({"timestamp": -1, "segments": [[1, 2]], "output_length": 1})"),
            "timestamp is -1, expected milliseconds, at least 0");
  EXPECT_EQ(MessageOf(R"({"timestamp": 0, "output_length": 1})"), "there are neither segments nor hash_ids");
  EXPECT_EQ(MessageOf(R"({"timestamp": 0, "segments": [[1, 0]], "output_length": 1})"),
            "a segment is [1,0], expected [id, tokens], with at least one token");
  EXPECT_EQ(MessageOf(R"({"timestamp": 0, "segments": [[1, 2]], "output_length": -1})"),
            "output_length is -1, expected a whole number from 0 to 1073741824");
  EXPECT_EQ(MessageOf(R"({"timestamp": 0, "segments": [[1, 2]], "output_length": 1, "n": 2})"),
            "there is no field \"n\", expected timestamp, segments or hash_ids, input_length, output_length, samples, output_id");
  EXPECT_EQ(
      MessageOf(R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2]})", 512),
      "there are 2 hash_ids and 1100 tokens (input_length), expected 3 blocks of 512; the option --block-tokens says how long a "
      "block is");
}

TEST(Trace, SharesWhatIsEqualFromTheBeginning) {
  Trace trace;
  trace.Add({.arrival = 2, .prompt = {{1, 10}, {2, 5}}, .output_tokens = 3, .output_id = 3});
  trace.Add({.arrival = 1, .prompt = {{1, 10}, {4, 5}}, .output_tokens = 3});
  trace.Add({.arrival = 3, .prompt = {{1, 10}, {2, 5}, {3, 3}, {5, 2}}, .output_tokens = 1});
  trace.Add({.arrival = 4, .prompt = {{1, 11}}, .output_tokens = 1});  // another length, another text
  trace.Sort();
  EXPECT_DOUBLE_EQ(trace.requests().front().arrival, 1);
  EXPECT_EQ(trace.nodes().size(), 6u);
  // 15, then 10 of 15, then 18 of 20, then nothing of 11.
  EXPECT_DOUBLE_EQ(EndlessHitRate(trace), (10.0 + 18) / (15 + 15 + 20 + 11));
  Trace again;
  for (const TraceRequest& request : trace.requests()) again.Add(ParseTraceLine(FormatTraceLine(trace, request), 512).value());
  EXPECT_DOUBLE_EQ(EndlessHitRate(again), EndlessHitRate(trace));
  EXPECT_EQ(again.nodes().size(), trace.nodes().size());
}

// All pairs of prompts share as many tokens by their nodes as by their ids.
TEST(Trace, PromptsOfTokensShareToTheToken) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<int32_t>> prompts(1 + random() % 20);
    for (std::vector<int32_t>& prompt : prompts) {
      prompt.resize(1 + random() % 12);
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 2);
    }
    std::ranges::sort(prompts);
    Trace trace;
    const std::vector<int32_t> nodes = AddSortedPrompts(
        prompts.size(), [&](size_t i) { return std::span<const int32_t>(prompts[i]); }, &trace);
    for (size_t a = 0; a < prompts.size(); ++a) {
      for (size_t b = 0; b < prompts.size(); ++b) {
        const auto shared = std::ranges::mismatch(prompts[a], prompts[b]).in1 - prompts[a].begin();
        int32_t found = 0;
        for (int32_t n = nodes[a]; n != kNoNode; n = trace.nodes()[n].parent) {
          for (int32_t m = nodes[b]; m != kNoNode; m = trace.nodes()[m].parent) {
            if (n == m) found = std::max(found, trace.nodes()[n].end);
          }
        }
        EXPECT_EQ(found, shared) << round;
      }
      EXPECT_EQ(trace.nodes()[nodes[a]].end, std::ssize(prompts[a]));
    }
  }
}

TEST(ChatMix, IsTheSameForASeedAndComesAtItsRate) {
  const ChatMixOptions options{.requests = 20000, .rate = 50, .max_context = 4096, .seed = 3};
  const Trace trace = MakeChatMix(options), again = MakeChatMix(options);
  ASSERT_EQ(trace.requests().size(), 20000u);
  EXPECT_EQ(FormatTraceLine(trace, trace.requests().back()), FormatTraceLine(again, again.requests().back()));
  EXPECT_TRUE(std::ranges::is_sorted(trace.requests(), {}, &TraceRequest::arrival));
  int64_t prompt_tokens = 0;
  for (const TraceRequest& request : trace.requests()) {
    EXPECT_LE(trace.prompt_tokens(request) + request.output_tokens, 4096);
    prompt_tokens += trace.prompt_tokens(request);
  }
  // The first turns come alone, so a trace begins below its rate; and there are fewer turns where the context ends them.
  EXPECT_NEAR(5000 / (trace.requests().back().arrival - trace.requests()[15000].arrival), 50, 12);
  EXPECT_GT(prompt_tokens / 20000, 600);
  EXPECT_GT(EndlessHitRate(trace), 0.85);
}

TEST(StepTimes, GoAlongTheTable) {
  const StepTimes times = StepTimes::Parse(R"({"prompt": [[1, 1], [3, 2]], "decode": [[1, 1.5], [3, 4]], "model": "m"})").value();
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 1}), 1);
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 2}), 1.5);
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 5}), 3);  // on the last line
  EXPECT_DOUBLE_EQ(times.Seconds({.decode = 3}), 4);
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 1, .decode = 1, .ended = 1}), 1.5 + 1.25);
  EXPECT_EQ(StepTimes::Parse(R"({"prompt": [[1, 1]]})").status().message(),
            "there is no list decode of [rows, seconds]; measure with coppice bench steps");
  EXPECT_EQ(StepTimes::Parse(R"({"prompt": [[2, 1], [2, 2]], "decode": [[1, 1]]})").status().message(),
            "prompt steps have 2 and then 2 rows, expected more rows each");
  EXPECT_EQ(StepTimes::Parse(R"({"prompt": [[2, 0]], "decode": [[1, 1]]})").status().message(),
            "a prompt step has 2 rows and takes 0 s, expected positive numbers");
}

TEST(StepTimes, TakeNoLessBeyondTheTable) {
  const StepTimes times = StepTimes::FromTable({{1, 1}, {2, 1.5}, {4, 1}}, {{1, 2}, {2, 1.75}}).value();
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 3}), 1.25);
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 1000}), 1);
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 996, .decode = 4}), 1 + 0.25);
}

TEST(StepTimes, RooflineIsTheLongerOfReadingAndComputing) {
  const StepTimes times = StepTimes::FromRoofline(
      {.layer_bytes = 1000, .layer_flops = 10, .head_bytes = 100, .head_flops = 1, .bytes_per_s = 1000, .flops_per_s = 1000});
  EXPECT_DOUBLE_EQ(times.Seconds({.prompt = 64}), 1);  // reads
  EXPECT_NEAR(times.Seconds({.prompt = 1024}), 10.24, 1e-9);
  EXPECT_NEAR(times.Seconds({.decode = 1}), 1.1, 1e-9);
}

}  // namespace
}  // namespace coppice::simulate
