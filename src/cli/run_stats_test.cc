#include "cli/run_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace coppice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

openai::Generation TenSteps() {
  openai::Generation generation;
  generation.prompt_ids = {1, 2, 3, 4};
  generation.samples = {{.index = 0, .finish_reason = FinishReason::kStop},
                        {.index = 1, .finish_reason = FinishReason::kCancelled}};
  generation.decode_tokens = 20;
  generation.metrics = {.prefilled_tokens = 4,
                        .generated_tokens = 22,
                        .decode_steps = 10,
                        .decode_kv_bytes_read = 10 * 3 * 1024,
                        .decode_kv_bytes_read_unshared = 10 * 6 * 1024,
                        .kv_bytes_stored = 2 * 1024 * 1024,
                        .kv_bytes_stored_unshared = 3 * 1024 * 1024,
                        .kv_page_rounding_bytes = 512,
                        .prefill_seconds = 0.5,
                        .decode_seconds = 4,
                        .forward_seconds = 3,
                        .host_seconds = 0.25};
  return generation;
}

TEST(RunStats, FiguresComeFromTheCounters) {
  const RunStats stats = MakeRunStats({.weights = WeightForm::kBF16, .sharing = SharingMode::kOneLevel},
                                      {.kv_dtype = DType::kF32, .page_size = 64}, TenSteps());
  EXPECT_DOUBLE_EQ(stats.prefill_tokens_per_second(), 8);
  EXPECT_DOUBLE_EQ(stats.decode_tokens_per_second(), 5);
  EXPECT_DOUBLE_EQ(stats.kv_bytes_read_per_step(), 3 * 1024);
  EXPECT_DOUBLE_EQ(stats.kv_bytes_read_per_step_unshared(), 6 * 1024);
  EXPECT_EQ(stats.samples, 2);
  EXPECT_EQ(stats.samples_finished, 1);
  EXPECT_GT(stats.peak_rss_bytes, 1 << 20);

  const nlohmann::ordered_json json = ToJson(stats);
  EXPECT_EQ(json["sharing"], "one-level");
  EXPECT_EQ(json["dtype"], "f32");
  EXPECT_EQ(json["weights"], "bf16");
  EXPECT_EQ(json["page_size"], 64);
  EXPECT_EQ(json["decode_tokens_per_second"], 5.0);
  EXPECT_EQ(json["forward_seconds"], 3.0);
  EXPECT_EQ(json["host_seconds"], 0.25);
  EXPECT_EQ(json["kv_bytes_stored"], 2 * 1024 * 1024);
  EXPECT_TRUE(json["baseline"].is_null());
}

void ExpectFitsATerminal(const std::string& text) {
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) EXPECT_LE(text.find('\n', begin) - begin, 80);
}

TEST(RunStats, TableSaysHowMuchSharingGives) {
  RunStats stats = MakeRunStats({}, {}, TenSteps());
  stats.peak_rss_bytes = 300 << 20;
  EXPECT_EQ(FormatTable(stats),
            "                         with sharing  without  factor\n"
            "decode tokens/s                   5.0        -       -\n"
            "prefill tokens/s                  8.0        -       -\n"
            "KV read per decode step       3.0 KiB  6.0 KiB   2.00x\n"
            "KV stored at the peak         2.0 MiB  3.0 MiB   1.50x\n"
            "Without: computed; --baseline store measures its speed.\n"
            "4 prompt tokens; 22 generated in 1 of 2 samples; peak memory 300.0 MiB\n");
  stats.baseline = {.sharing = SharingMode::kStore, .prefill_tokens_per_second = 2, .decode_tokens_per_second = 0.25};
  EXPECT_THAT(FormatTable(stats), HasSubstr("\ndecode tokens/s                   5.0      0.2     20x\n"));
  EXPECT_THAT(FormatTable(stats), HasSubstr("(--sharing store, measured)"));
  ExpectFitsATerminal(FormatTable(stats));
  EXPECT_EQ(ToJson(stats)["baseline"]["decode_tokens_per_second"], 0.25);
  stats.baseline->sharing = SharingMode::kNone;
  EXPECT_THAT(FormatTable(stats), HasSubstr("Without: --sharing none, measured;"));
}

TEST(RunStats, TableHasAnotherEnginesColumn) {
  RunStats stats = MakeRunStats({}, {}, TenSteps());
  stats.peak_rss_bytes = 300 << 20;
  EXPECT_TRUE(ToJson(stats)["beside"].is_null());
  stats.baseline = {.sharing = SharingMode::kStore, .prefill_tokens_per_second = 7, .decode_tokens_per_second = 0.25};
  stats.peer = {.name = "llama.cpp", .prefill_tokens_per_second = 2, .decode_tokens_per_second = 2};
  EXPECT_EQ(FormatTable(stats),
            "                         with sharing  without  llama.cpp  factor\n"
            "decode tokens/s                   5.0      0.2        2.0   2.50x\n"
            "prefill tokens/s                  8.0      7.0        2.0   1.14x\n"
            "KV read per decode step       3.0 KiB  6.0 KiB          -   2.00x\n"
            "KV stored at the peak         2.0 MiB  3.0 MiB          -   1.50x\n"
            "Without: each sample reads what they share itself (--sharing store, measured);\n"
            "of what is stored, it has a copy of its own (computed).\n"
            "llama.cpp: the same job, run before. Factor: over the better of the two.\n"
            "4 prompt tokens; 22 generated in 1 of 2 samples; peak memory 300.0 MiB\n");
  ExpectFitsATerminal(FormatTable(stats));
  EXPECT_EQ(ToJson(stats)["beside"]["name"], "llama.cpp");
  stats.baseline.reset();
  EXPECT_THAT(FormatTable(stats), HasSubstr("decode tokens/s                   5.0        -        2.0   2.50x\n"));
  stats.peer->name = "an engine of 16b";
  ExpectFitsATerminal(FormatTable(stats));
}

TEST(RunStats, TableSaysWhyNothingWasShared) {
  RunStats stats = MakeRunStats({}, {}, TenSteps());
  EXPECT_THAT(FormatTable(stats), Not(HasSubstr("make sharing save time")));
  stats.decode_kv_bytes_read = stats.decode_kv_bytes_read_unshared;
  EXPECT_THAT(FormatTable(stats), HasSubstr("for 2 samples over 4\ntokens,"));
  ExpectFitsATerminal(FormatTable(stats));
  stats.sharing = SharingMode::kStore;
  EXPECT_THAT(FormatTable(stats), Not(HasSubstr("make sharing save time")));
}

TEST(RunStats, OneSampleHasItsSpeedAlone) {
  RunStats stats = MakeRunStats({}, {}, TenSteps());
  stats.samples = 1;
  stats.peak_rss_bytes = 300 << 20;
  EXPECT_EQ(FormatTable(stats), "22 tokens at 5.0/s; prompt 4 tokens at 8.0/s; peak memory 300.0 MiB\n");
}

TEST(RunStats, DraftsAreCountedWhereThereAreAny) {
  RunStats stats{.sample_steps = 100, .drafted_tokens = 80, .accepted_draft_tokens = 60};
  EXPECT_THAT(FormatTable(stats), HasSubstr("\n1.60 tokens a step of a sample: 60 of 80 drafted tokens accepted\n"));
  EXPECT_EQ(ToJson(stats)["tokens_per_step"], 1.6);
  stats.undrafted_steps = 12;
  EXPECT_THAT(FormatTable(stats), HasSubstr("60 of 80 drafted tokens accepted;\n12 steps without drafts, by measured gain\n"));
  stats.undrafted_steps = 0;
  stats.draft_trees_cut = 7;
  EXPECT_THAT(FormatTable(stats), HasSubstr("60 of 80 drafted tokens accepted;\n7 draft trees became linear, since prompts ran"));
  stats.drafted_tokens = stats.accepted_draft_tokens = 0;
  EXPECT_THAT(FormatTable(stats), Not(HasSubstr("drafted")));
}

TEST(RunStats, NothingMeasuredIsADashNotADivision) {
  const RunStats stats = MakeRunStats({}, {}, openai::Generation());
  EXPECT_THAT(FormatTable(stats), HasSubstr("decode tokens/s                     -"));
  EXPECT_EQ(stats.kv_bytes_read_per_step(), 0);
}

}  // namespace
}  // namespace coppice::cli
