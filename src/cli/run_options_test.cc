#include "cli/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <limits>

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Parses `coppice run <arguments>`; CLI11's message on an error.
std::string Parse(const std::string& arguments, RunOptions& options) {
  CLI::App app;
  AddRunCommand(app, options);
  try {
    app.parse("run " + arguments, /*program_name_included=*/false);
    return "";
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
}

TEST(RunOptions, Defaults) {
  RunOptions options;
  ASSERT_EQ(Parse("", options), "");
  EXPECT_EQ(options.request.n, 1);
  EXPECT_EQ(options.request.max_tokens, 128);
  EXPECT_EQ(options.request.sampling.temperature, 1.0f);
  EXPECT_EQ(options.engine.sharing, SharingMode::kTree);
  EXPECT_EQ(options.engine.dtype, std::nullopt);
  EXPECT_FALSE(options.baseline);
  EXPECT_TRUE(Validate(options).ok());
}

TEST(RunOptions, EveryOptionArrives) {
  RunOptions options;
  ASSERT_EQ(
      Parse("--model m.gguf --prompt hello --chat --system short -n 64 --max-tokens 32 --temperature 0.5 --top-p 0.9 --top-k 40 "
            "--min-p 0.05 --seed 18446744073709551615 --sharing one-level --dtype f32 --page-size 64 --threads 2 --stop A --stop B "
            "--ignore-eos --rank --best-of 80 --dedup --vote [0-9]+ --echo --json --prompt-logprobs --force-sharing --max-context "
            "512 --kv-cache 2GiB --baseline none --beside peer.json "
            "--draft model --draft-model small.gguf --draft-tokens 6 --draft-branches 1 --draft-policy always",
            options),
      "");
  RunOptions searching;
  ASSERT_EQ(Parse("-p x -n 2 --beam-width 8 --length-penalty 0.5 --early-stopping never --stochastic-beams", searching), "");
  EXPECT_EQ(searching.request.beams.width, 8);
  EXPECT_EQ(searching.request.beams.length_penalty, 0.5f);
  EXPECT_EQ(searching.request.beams.early_stopping, EarlyStopping::kNever);
  EXPECT_TRUE(searching.request.beams.stochastic);
  const Request& request = options.request;
  EXPECT_EQ(options.engine.model_path, "m.gguf");
  EXPECT_EQ(options.prompt, "hello");
  EXPECT_EQ(options.system, "short");
  EXPECT_EQ(request.n, 64);
  EXPECT_EQ(request.max_tokens, 32);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.05f);
  EXPECT_EQ(request.sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(request.stop, ElementsAre("A", "B"));
  EXPECT_EQ(options.best_of, 80);
  EXPECT_EQ(options.engine.draft, DraftMode::kModel);
  EXPECT_EQ(options.engine.draft_model_path, "small.gguf");
  EXPECT_EQ(options.engine.draft_tokens, 6);
  EXPECT_EQ(options.engine.experiment.draft_policy, DraftPolicy::kAlways);
  EXPECT_EQ(options.vote, "[0-9]+");
  EXPECT_TRUE(request.echo && options.deduplicate);
  EXPECT_TRUE(request.ignore_eos && request.prompt_logprobs && options.rank && options.json && options.chat);
  EXPECT_EQ(options.engine.sharing, SharingMode::kOneLevel);
  EXPECT_EQ(options.engine.dtype, DType::kF32);
  EXPECT_EQ(options.engine.page_size, 64);
  EXPECT_EQ(options.engine.num_threads, 2);
  EXPECT_EQ(options.engine.max_context, 512);
  EXPECT_EQ(options.engine.kv_cache_bytes, int64_t{2} << 30);
  EXPECT_TRUE(options.engine.experiment.force_sharing);
  EXPECT_EQ(options.baseline, SharingMode::kNone);
  EXPECT_EQ(options.beside, "peer.json");
  EXPECT_TRUE(Validate(options).ok());
}

TEST(RunOptions, UnknownValuesNameWhatIsKnown) {
  RunOptions options;
  EXPECT_THAT(Parse("--sharing forest", options),
              HasSubstr("'forest' is no sharing mode; expected tree, one-level, store or none"));
  EXPECT_THAT(Parse("--dtype int8", options), HasSubstr("'int8' is no dtype of the engine; expected bf16, f16 or f32"));
  EXPECT_THAT(Parse("--weights q4", options), HasSubstr("'q4' is no form of weights; expected fastest, stored, bf16 or f32"));
  EXPECT_THAT(Parse("--draft eagle", options), HasSubstr("'eagle' is no way to draft; expected none, ngram or model"));
  EXPECT_THAT(Parse("--draft-policy never", options), HasSubstr("'never' is no policy of drafting; expected measured or always"));
  EXPECT_THAT(Parse("--schedule fair", options), HasSubstr("'fair' is no schedule; expected mixed or prefill-first"));
  EXPECT_THAT(Parse("--chunk some", options), HasSubstr("'some' is no chunk; expected auto, or a number of tokens"));
  EXPECT_THAT(Parse("--prompt-ids 1,x", options), HasSubstr("'x' is no token id"));
  EXPECT_NE(Parse("-n many", options), "");
  EXPECT_NE(Parse("--unknown", options), "");
}

TEST(RunOptions, ScheduleAndChunk) {
  RunOptions options;
  EXPECT_EQ(Parse("--schedule prefill-first --chunk auto", options), "");
  EXPECT_EQ(options.engine.experiment.schedule, SchedulePolicy::kPrefillFirst);
  EXPECT_EQ(options.engine.chunk, kAutoChunk);
  EXPECT_EQ(*ParseChunk("128"), 128);
  EXPECT_EQ(Parse("--target-tbt 0.05", options), "");
  EXPECT_EQ(options.engine.target_tbt, 0.05);
  EXPECT_NE(Parse("--target-tbt -1", options), "");
}

TEST(RunOptions, WeightForms) {
  RunOptions options;
  EXPECT_EQ(options.engine.weights, WeightForm::kFastest);
  EXPECT_EQ(Parse("--weights f32", options), "");
  EXPECT_EQ(options.engine.weights, WeightForm::kF32);
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(Parse("--weights bf16 --dtype f32", options), "");
  EXPECT_EQ(Validate(options).message().substr(0, 33), "--weights is bf16 and dtype f32: ");
  EXPECT_EQ(Parse("--weights bf16 --dtype f16", options), "");
  EXPECT_EQ(Validate(options).message().substr(0, 33), "--weights is bf16 and dtype f16: ");
  EXPECT_EQ(Parse("--weights stored --dtype bf16", options), "");
  EXPECT_EQ(options.engine.weights, WeightForm::kStored);
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(Parse("--weights stored --dtype f32", options), "");
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(Parse("--weights stored --dtype f16", options), "");
  EXPECT_EQ(Validate(options).message().substr(0, 35), "--weights is stored and dtype f16: ");
  EXPECT_EQ(Parse("--weights stored --device cuda:1", options), "");
  EXPECT_EQ(Validate(options).message().substr(0, 38), "--weights is stored and device cuda:1:");
}

TEST(RunOptions, TokenIds) {
  EXPECT_THAT(*ParseTokenIds("1, 2 ,30"), ElementsAre(1, 2, 30));
  EXPECT_THAT(*ParseTokenIds(""), ElementsAre());
  for (const char* bad : {"1,,2", "-1", "1.5", "99999999999", "1 2"}) EXPECT_FALSE(ParseTokenIds(bad).ok()) << bad;
}

TEST(RunOptions, ValidateNamesOptionValueAndExpectation) {
  const auto message = [](auto edit) {
    RunOptions options;
    edit(options);
    return Validate(options).message();
  };
  EXPECT_EQ(message([](RunOptions& o) { o.request.n = 0; }), "-n is 0, expected at least 1");
  EXPECT_EQ(message([](RunOptions& o) { o.request.max_tokens = 0; }), "--max-tokens is 0, expected at least 1");
  EXPECT_EQ(message([](RunOptions& o) { o.request.sampling.top_p = 0; }), "--top-p is 0, expected a number above 0 and at most 1");
  EXPECT_EQ(message([](RunOptions& o) { o.engine.page_size = 257; }), "--page-size is 257, expected 1..256");
  EXPECT_THAT(message([](RunOptions& o) { o.request.sampling.temperature = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("--temperature is nan"));
  EXPECT_THAT(message([](RunOptions& o) { o.prompt = o.prompt_file = "x"; }), HasSubstr("more than one prompt"));
  EXPECT_THAT(message([](RunOptions& o) {
                o.prompt = "x";
                o.keep_newline = true;
              }),
              HasSubstr("--keep-newline is for --prompt-file and stdin"));
  EXPECT_THAT(message([](RunOptions& o) { o.system = "x"; }), HasSubstr("add --chat"));
  EXPECT_THAT(message([](RunOptions& o) { o.request.prompt_logprobs = true; }), HasSubstr("add --json"));
  EXPECT_EQ(message([](RunOptions& o) { o.engine.draft_tokens = 64; }), "--draft-tokens is 64, expected 1..63");
  EXPECT_THAT(message([](RunOptions& o) { o.engine.draft = DraftMode::kModel; }), HasSubstr("--draft-model PATH"));
  EXPECT_EQ(message([](RunOptions& o) { o.request.n = 4, o.best_of = 3; }), "--best-of is 3; expected at least -n, which is 4");
  EXPECT_THAT(message([](RunOptions& o) { o.vote_stop = true; }), HasSubstr("--vote-stop ends samples by their votes; add --vote"));
  EXPECT_THAT(message([](RunOptions& o) { o.vote = "a", o.vote_stop = true, o.best_of = 4; }), HasSubstr("keep one of the two"));
  EXPECT_THAT(message([](RunOptions& o) { o.request.beams.length_penalty = 2; }),
              HasSubstr("are of beam search; add --beam-width"));
  EXPECT_THAT(message([](RunOptions& o) { o.request.beams.width = 4, o.best_of = 4; }), HasSubstr("--best-of compares samples"));
  EXPECT_EQ(message([](RunOptions& o) { o.request.beams.width = 4, o.request.n = 5; }),
            "-n is 5, expected at most beam_width, which is 4");
  EXPECT_THAT(message([](RunOptions& o) { o.vote = "("; }), HasSubstr("--vote: answer pattern (: missing closing parenthesis"));
  EXPECT_THAT(message([](RunOptions& o) { o.request.stop = {""}; }), HasSubstr("--stop has an empty string"));
}

}  // namespace
}  // namespace coppice::cli
