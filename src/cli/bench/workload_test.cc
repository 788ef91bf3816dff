// Workloads: token counts, what requests share, that a seed decides all, arrivals, refusals.
#include "cli/bench/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace coppice::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

WorkloadOptions Options(WorkloadKind kind) { return {.kind = kind, .vocab_size = 50000, .max_context = 8192}; }

Workload Made(const WorkloadOptions& options) {
  Result<Workload> workload = MakeWorkload(options);
  EXPECT_TRUE(workload.ok()) << workload.status().message();
  return workload.ok() ? *std::move(workload) : Workload();
}

size_t Common(const WorkloadRequest& a, const WorkloadRequest& b) {
  return static_cast<size_t>(std::ranges::mismatch(a.prompt_ids, b.prompt_ids).in1 - a.prompt_ids.begin());
}

// How many pairs of requests have how long a prefix in common.
std::map<size_t, int> CommonPrefixes(const std::vector<WorkloadRequest>& requests) {
  std::map<size_t, int> pairs;
  for (size_t a = 0; a < requests.size(); ++a) {
    for (size_t b = a + 1; b < requests.size(); ++b) ++pairs[Common(requests[a], requests[b])];
  }
  return pairs;
}

void ExpectLengths(const std::vector<WorkloadRequest>& requests, size_t prompt, int32_t output, int32_t samples) {
  for (const WorkloadRequest& request : requests) {
    EXPECT_EQ(request.prompt_ids.size(), prompt);
    EXPECT_EQ(request.output_tokens, output);
    EXPECT_EQ(request.samples, samples);
    EXPECT_TRUE(std::ranges::all_of(request.prompt_ids, [](int32_t id) { return id >= 0 && id < 50000; }));
  }
}

TEST(WorkloadTest, SharedPrefixHasSglangsDefaults) {
  const Workload workload = Made(Options(WorkloadKind::kSharedPrefix));
  ASSERT_EQ(workload.points.size(), 1);
  EXPECT_EQ(workload.points[0].requests.size(), 64 * 16);
  ExpectLengths(workload.points[0].requests, 2048 + 128, 256, 1);
}

TEST(WorkloadTest, SharedPrefixShares) {
  WorkloadOptions options = Options(WorkloadKind::kSharedPrefix);
  options.groups = 3, options.requests = 4, options.shared_tokens = 50, options.unique_tokens = 5, options.output_tokens = 7;
  const Workload workload = Made(options);
  ExpectLengths(workload.points[0].requests, 55, 7, 1);
  // 3 groups of 4: 6 pairs in each share the 50, the others nothing.
  EXPECT_EQ(CommonPrefixes(workload.points[0].requests), (std::map<size_t, int>{{0, 48}, {50, 18}}));
}

TEST(WorkloadTest, ScaleShrinksTheNumberNotTheLengths) {
  WorkloadOptions options = Options(WorkloadKind::kSharedPrefix);
  options.scale = 1.0 / 32;
  EXPECT_EQ(Made(options).points[0].requests.size(), 2 * 16);
  options.scale = 1e-6;
  EXPECT_EQ(Made(options).points[0].requests.size(), 16);
  options.kind = WorkloadKind::kDocument;
  options.scale = 0.25;
  EXPECT_EQ(Made(options).points[0].requests.size(), 64);
}

double Quantile(const std::vector<WorkloadRequest>& requests, double share, bool output) {
  std::vector<size_t> lengths;
  for (const WorkloadRequest& request : requests)
    lengths.push_back(output ? static_cast<size_t>(request.output_tokens) : request.prompt_ids.size());
  std::ranges::sort(lengths);
  return static_cast<double>(lengths[static_cast<size_t>(share * static_cast<double>(lengths.size()))]);
}

// The percentiles of Sarathi-Serve's table 2; 4,000 requests have them within a few percent.
TEST(WorkloadTest, LengthsAreDistributedAsPublished) {
  struct Published {
    WorkloadKind kind;
    double prompt_median, prompt_p90, output_median, output_p90;
    size_t longest;
  };
  for (const Published& published : {Published{WorkloadKind::kSarathi, 1730, 5696, 415, 834, 8192},
                                     Published{WorkloadKind::kArxiv, 7059, 12985, 208, 371, 16384}}) {
    WorkloadOptions options = Options(published.kind);
    options.requests = 4000;
    options.max_context = 32768;
    options.seed = 1;
    const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
    ASSERT_EQ(requests.size(), 4000);
    EXPECT_NEAR(Quantile(requests, 0.5, false), published.prompt_median, 0.07 * published.prompt_median);
    EXPECT_NEAR(Quantile(requests, 0.9, false), published.prompt_p90, 0.04 * published.prompt_p90);
    EXPECT_NEAR(Quantile(requests, 0.5, true), published.output_median, 0.04 * published.output_median);
    EXPECT_NEAR(Quantile(requests, 0.9, true), published.output_p90, 0.04 * published.output_p90);
    for (const WorkloadRequest& request : requests)
      EXPECT_LE(request.prompt_ids.size() + static_cast<size_t>(request.output_tokens), published.longest);
  }
}

// The means and ranges of POD-Attention, section 5.
TEST(WorkloadTest, PodsWorkloadsHaveThePublishedMeansAndRanges) {
  struct Published {
    WorkloadKind kind;
    double total, output;
    int32_t most_ratio;
  };
  for (const Published& published :
       {Published{WorkloadKind::kPodArxiv, 9500, 470, 50}, Published{WorkloadKind::kPodInternal, 10500, 331, 40}}) {
    WorkloadOptions options = Options(published.kind);
    options.requests = 4000, options.max_context = 32768;
    double totals = 0, outputs = 0;
    const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
    ASSERT_EQ(requests.size(), 4000);
    for (const WorkloadRequest& request : requests) {
      const auto prompt = static_cast<int32_t>(request.prompt_ids.size());
      EXPECT_TRUE(prompt + request.output_tokens >= 4096 && prompt + request.output_tokens <= 32768);
      EXPECT_LE(prompt, published.most_ratio * request.output_tokens);
      totals += prompt + request.output_tokens, outputs += request.output_tokens;
    }
    EXPECT_NEAR(totals / 4000, published.total, 0.03 * published.total);
    EXPECT_NEAR(outputs / 4000, published.output, 0.03 * published.output);
  }
}

// Those of RelayAttention's table 1, with the means of PagedAttention's figure 11.
TEST(WorkloadTest, SingleTurnsHaveThePublishedMeansAndRanges) {
  WorkloadOptions options = Options(WorkloadKind::kShareGpt);
  options.requests = 20000;
  options.max_context = 4096;
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  double prompts = 0, outputs = 0;
  for (const WorkloadRequest& request : requests) {
    EXPECT_TRUE(request.prompt_ids.size() >= 4 && request.prompt_ids.size() <= 1024);
    EXPECT_TRUE(request.output_tokens >= 4 && request.output_tokens <= 2013);
    EXPECT_LE(request.prompt_ids.size() + static_cast<size_t>(request.output_tokens), 2048);
    prompts += static_cast<double>(request.prompt_ids.size()), outputs += request.output_tokens;
  }
  EXPECT_NEAR(prompts / 20000, 161.31, 0.03 * 161.31);
  EXPECT_NEAR(outputs / 20000, 337.99, 0.03 * 337.99);
}

TEST(WorkloadTest, PublishedLengthsBehindSeveralSystemPrompts) {
  WorkloadOptions options = Options(WorkloadKind::kShareGpt);
  options.requests = 5, options.max_context = 4096, options.prefixes = {0, 64, 512};
  const Workload workload = Made(options);
  EXPECT_EQ(workload.x_label, "system prompt, tokens");
  ASSERT_EQ(workload.points.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(workload.points[i].x, options.prefixes[i]);
    EXPECT_EQ(CommonPrefixes(workload.points[i].requests), (std::map<size_t, int>{{static_cast<size_t>(options.prefixes[i]), 10}}));
  }
  options.shared_tokens = 64;
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("give one"));
}

TEST(WorkloadTest, PublishedLengthsBehindASystemPrompt) {
  WorkloadOptions options = Options(WorkloadKind::kShareGpt);
  options.requests = 6, options.shared_tokens = 512, options.max_context = 4096;
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{512, 15}}));
  for (const WorkloadRequest& request : requests)
    EXPECT_LE(request.prompt_ids.size() + static_cast<size_t>(request.output_tokens), 4096);
  options.max_context = 512;
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("hardly a request has 0 tokens or less"));
}

TEST(WorkloadTest, SelfConsistencyHasGsm8ksLengths) {
  WorkloadOptions options = Options(WorkloadKind::kGsm8k);
  std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  ASSERT_EQ(requests.size(), 1319);
  double problems = 0, outputs = 0;
  for (const WorkloadRequest& request : requests) {
    EXPECT_EQ(request.samples, 40);
    const size_t problem = request.prompt_ids.size() - 756;
    EXPECT_TRUE(problem >= 28 && problem <= 195 && request.output_tokens >= 29 && request.output_tokens <= 311);
    problems += static_cast<double>(problem), outputs += request.output_tokens;
  }
  EXPECT_NEAR(problems / 1319, 72.4, 0.04 * 72.4);  // the means of the test split
  EXPECT_NEAR(outputs / 1319, 101.7, 0.04 * 101.7);
  options.requests = 4, options.shots = 2;
  requests = Made(options).points[0].requests;
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{189, 6}}));
  options.shots = 9;
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("--shots is 9, and gsm8k has 8"));
}

TEST(WorkloadTest, MmluHasRelaysRangesAndTheSplitsQuestions) {
  WorkloadOptions options = Options(WorkloadKind::kMmlu);
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  ASSERT_EQ(requests.size(), 14042);
  // A subject's questions stand together and share its examples; no others do.
  std::vector<std::span<const WorkloadRequest>> subjects;
  for (size_t begin = 0, i = 1; i <= requests.size(); ++i) {
    if (i < requests.size() && Common(requests[begin], requests[i]) > 0) continue;
    subjects.emplace_back(&requests[begin], i - begin);
    begin = i;
  }
  ASSERT_EQ(subjects.size(), 57);
  double questions = 0;
  size_t shortest = 1 << 20, longest = 0;
  for (const std::span<const WorkloadRequest> subject : subjects) {
    const size_t examples = Common(subject[0], subject[1]);
    EXPECT_EQ(Common(subject[0], subject.back()), examples);
    shortest = std::min(shortest, examples), longest = std::max(longest, examples);
    for (const WorkloadRequest& request : subject) {
      const size_t question = request.prompt_ids.size() - examples;
      EXPECT_TRUE(question >= 55 && question <= 1219);
      EXPECT_EQ(request.output_tokens, 32);
      questions += static_cast<double>(question);
    }
  }
  // RelayAttention's table 1 has 379 to 2,895; the mean is that of the split.
  EXPECT_NEAR(static_cast<double>(shortest), 379, 5);
  EXPECT_NEAR(static_cast<double>(longest), 2895, 5);
  EXPECT_NEAR(questions / 14042, 151.3, 0.03 * 151.3);

  options.groups = 3, options.requests = 5, options.shots = 1;
  const std::vector<WorkloadRequest> few = Made(options).points[0].requests;
  ASSERT_EQ(few.size(), 15);
  EXPECT_EQ(Common(few[0], few[4]), 17 + (455 - 17) / 5);  // abstract algebra is the first subject
  EXPECT_EQ(Common(few[4], few[5]), 0);
  options.groups = 58;
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("--groups is 58, and mmlu has 57"));
}

TEST(WorkloadTest, SingleLevelHasEachProblemOnceASample) {
  WorkloadOptions options = Options(WorkloadKind::kFewShot);
  options.requests = 3, options.samples = 4, options.shared_tokens = 50, options.unique_tokens = 6, options.output_tokens = 7;
  options.single_level = true;
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  ASSERT_EQ(requests.size(), 12);
  ExpectLengths(requests, 56, 7, 1);
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{50, 66}}));
  options.kind = WorkloadKind::kDocument, options.samples = {};
  EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("document has no --single-level"));
}

TEST(WorkloadTest, FewShotDocumentAndSampling) {
  WorkloadOptions options = Options(WorkloadKind::kFewShot);
  options.requests = 5;
  std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  ExpectLengths(requests, 2400 + 256, 512, 128);
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{2400, 10}}));

  options = Options(WorkloadKind::kDocument);
  requests = Made(options).points[0].requests;
  EXPECT_EQ(requests.size(), 256);
  ExpectLengths(requests, 7032, 16, 1);
  EXPECT_EQ(CommonPrefixes(requests).begin()->first, 7000);

  requests = Made(Options(WorkloadKind::kSampling)).points[0].requests;
  ExpectLengths(requests, 512, 128, 64);
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{0, 28}}));
}

TEST(WorkloadTest, Tree) {
  WorkloadOptions options = Options(WorkloadKind::kTree);
  options.tree = "100,20x2,3x3";
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  EXPECT_EQ(requests.size(), 6);
  ExpectLengths(requests, 123, 64, 1);
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{100, 9}, {120, 6}}));
}

TEST(WorkloadTest, MixtureIsHalfAThirdAndARest) {
  WorkloadOptions options = Options(WorkloadKind::kMixture);
  options.requests = 12;
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  ExpectLengths(requests, 1024 + 128, 128, 1);
  // 6 share A (15 pairs), 4 share B (6 pairs), 2 nothing: 66 pairs in all.
  EXPECT_EQ(CommonPrefixes(requests), (std::map<size_t, int>{{0, 45}, {1024, 21}}));
}

TEST(WorkloadTest, RelayVariesPrefixAndRequest) {
  const Workload workload = Made(Options(WorkloadKind::kRelay));
  ASSERT_EQ(workload.points.size(), 18);
  EXPECT_FALSE(workload.x_label.empty());
  EXPECT_EQ(workload.points.front().x, 64);
  ExpectLengths(workload.points.front().requests, 64 + 64, 128, 1);
  EXPECT_EQ(workload.points.back().x, 2048);
  ExpectLengths(workload.points.back().requests, 2048 + 256, 512, 1);
  EXPECT_EQ(CommonPrefixes(workload.points.back().requests).begin()->first, 2048);
}

TEST(WorkloadTest, RatioKeepsTheTotal) {
  WorkloadOptions options = Options(WorkloadKind::kRatio);
  options.total_tokens = 900;
  options.requests = 3;
  const Workload workload = Made(options);
  ASSERT_EQ(workload.points.size(), 9);
  ExpectLengths(workload.points.front().requests, 800, 100, 1);  // 8 to 1
  ExpectLengths(workload.points.back().requests, 864, 36, 1);    // 24 to 1
  EXPECT_EQ(CommonPrefixes(workload.points.back().requests), (std::map<size_t, int>{{0, 3}}));
}

TEST(WorkloadTest, LengthsFromAFile) {
  const std::string path = ::testing::TempDir() + "/lengths.txt";
  std::ofstream(path) << "# prompt output group shared\n10 3\n20, 4, 1, 12\n\n30 5 1 15  # longer\n12 1 1 12\n";
  WorkloadOptions options = Options(WorkloadKind::kLengths);
  options.lengths_file = path;
  const std::vector<WorkloadRequest> requests = Made(options).points[0].requests;
  ASSERT_EQ(requests.size(), 4);
  EXPECT_EQ(requests[0].prompt_ids.size(), 10);
  EXPECT_EQ(requests[0].output_tokens, 3);
  EXPECT_EQ(requests[2].prompt_ids.size(), 30);
  EXPECT_EQ(Common(requests[0], requests[1]), 0);
  EXPECT_EQ(Common(requests[1], requests[2]), 12);
  EXPECT_EQ(Common(requests[1], requests[3]), 12);
  for (const char* bad : {"10", "10 x", "0 1", "10 1 1", "10 1 1 11", "10 1 1 2 3", "1.5 1", "# nothing"}) {
    std::ofstream(path) << bad << "\n";
    EXPECT_THAT(MakeWorkload(options).status().message(), HasSubstr("lengths.txt")) << bad;
  }
}

TEST(WorkloadTest, TheSeedDecides) {
  WorkloadOptions options = Options(WorkloadKind::kMixture);
  const auto prompts = [&](uint64_t seed) {
    options.seed = seed;
    std::vector<std::vector<int32_t>> all;
    const Workload workload = Made(options);
    for (const WorkloadRequest& request : workload.points[0].requests) all.push_back(request.prompt_ids);
    return all;
  };
  EXPECT_EQ(prompts(1), prompts(1));
  EXPECT_NE(prompts(1), prompts(2));
}

TEST(WorkloadTest, PoissonArrivals) {
  const std::vector<double> arrivals = PoissonArrivals(20000, 4, 7);
  EXPECT_TRUE(std::ranges::is_sorted(arrivals));
  EXPECT_NEAR(arrivals.back(), 20000 / 4.0, 3 * 20000 / 4.0 / std::sqrt(20000.0));
  // The gaps' standard deviation is their mean: 1 / rate.
  double squares = 0;
  for (size_t i = 1; i < arrivals.size(); ++i)
    squares += (arrivals[i] - arrivals[i - 1] - 0.25) * (arrivals[i] - arrivals[i - 1] - 0.25);
  EXPECT_NEAR(std::sqrt(squares / 20000), 0.25, 0.01);
  EXPECT_EQ(PoissonArrivals(10, 4, 7), PoissonArrivals(10, 4, 7));
  EXPECT_NE(PoissonArrivals(10, 4, 7), PoissonArrivals(10, 4, 8));
}

TEST(WorkloadTest, Refusals) {
  const auto message = [](const WorkloadOptions& options) { return MakeWorkload(options).status().message(); };
  WorkloadOptions options = Options(WorkloadKind::kSampling);
  options.shared_tokens = 5;
  EXPECT_THAT(message(options), HasSubstr("sampling has no --shared-tokens"));
  options = Options(WorkloadKind::kSharedPrefix);
  options.groups = 0;
  EXPECT_THAT(message(options), HasSubstr("--groups is 0"));
  options = Options(WorkloadKind::kDocument);
  options.shared_tokens = 8192;
  EXPECT_THAT(message(options), AllOf(HasSubstr("context length is 8192"), Not(HasSubstr("--max-context"))));
  options.longest_context = 65536;
  EXPECT_THAT(message(options), HasSubstr("or raise --max-context, which this model lets be 65536"));
  options = Options(WorkloadKind::kMixture);
  options.ratios = {8};
  EXPECT_THAT(message(options), HasSubstr("no --ratios"));
  options = Options(WorkloadKind::kRatio);
  options.ratios = {5000};
  EXPECT_THAT(message(options), HasSubstr("--ratios has 5000"));
  EXPECT_THAT(message(Options(WorkloadKind::kLengths)), HasSubstr("--lengths"));
  options = Options(WorkloadKind::kMixture);
  options.scale = -1;
  EXPECT_THAT(message(options), HasSubstr("--scale is -1"));
  EXPECT_THAT(ParseWorkloadKind("books").status().message(), HasSubstr("few-shot"));
  EXPECT_EQ(*ParseWorkloadKind("relay"), WorkloadKind::kRelay);
}

}  // namespace
}  // namespace coppice::cli
