#include "cli/bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <sstream>
#include <utility>

#include "cli/bench/mmlu_lengths.h"
#include "cli/bench/tree_problem.h"
#include "cli/read_file.h"
#include "core/check.h"
#include "simulate/draws.h"

namespace coppice::cli {
namespace {

// A kind's defaults; 0: it has no such number.
struct Shape {
  WorkloadKind kind;
  std::string_view name;
  int32_t groups = 0, requests = 0, shared_tokens = 0, unique_tokens = 0, output_tokens = 0, samples = 0, total_tokens = 0;
  int32_t shots = 0;
};

constexpr int32_t kGsm8kShots = 8;

constexpr Shape kShapes[] = {
    {WorkloadKind::kSharedPrefix, "shared-prefix", 64, 16, 2048, 128, 256, 1},
    {WorkloadKind::kFewShot, "few-shot", 0, 120, 2400, 256, 512, 128},
    {WorkloadKind::kDocument, "document", 0, 256, 7000, 32, 16, 1},
    {WorkloadKind::kTree, "tree", 0, 0, 0, 0, 64, 1},
    {WorkloadKind::kRelay, "relay", 0, 64},
    {WorkloadKind::kMixture, "mixture", 0, 96, 1024, 128, 128, 1},
    {WorkloadKind::kSampling, "sampling", 0, 8, 0, 512, 128, 64},
    {WorkloadKind::kRatio, "ratio", 0, 64, 0, 0, 0, 0, 2048},
    {WorkloadKind::kShareGpt, "sharegpt", 0, 1000},
    {WorkloadKind::kSarathi, "sarathi", 0, 1000},
    {WorkloadKind::kArxiv, "arxiv", 0, 1000},
    {WorkloadKind::kPodArxiv, "pod-arxiv", 0, 1000},
    {WorkloadKind::kPodInternal, "pod-internal", 0, 1000},
    {WorkloadKind::kGsm8k, "gsm8k", 0, 1319, 0, 0, 0, 40, 0, kGsm8kShots},
    {WorkloadKind::kMmlu, "mmlu", std::size(kMmluSubjects), kMmluMostQuestions, 0, 0, 32, 1, 0, kMmluShots},
    {WorkloadKind::kLengths, "lengths"},
};

// Tokens of a prompt or an output: a log-normal distribution, of which lengths from `least` to `most` are taken.
struct Lengths {
  double median, sigma;
  int32_t least = 1, most = INT32_MAX;

  bool Has(int64_t length) const { return length >= least && length <= most; }
};
// Of whose requests those of `least_total` to `max_total` tokens are taken, with `most_ratio` prompt tokens per output token at
// most.
struct LengthShape {
  WorkloadKind kind;
  Lengths prompt, output;
  int32_t max_total;
  int32_t least_total = 0;
  int32_t most_ratio = INT32_MAX;

  bool Has(int64_t of_prompt, int64_t of_output) const {
    return prompt.Has(of_prompt) && output.Has(of_output) && of_prompt + of_output >= least_total &&
           of_prompt <= most_ratio * of_output;
  }
};
// sharegpt: single turns of ShareGPTv3 as PagedAttention and RelayAttention take them: prompts of 4 to 1,024 tokens and answers of
// 4 to 2,013 (RelayAttention, table 1), 2,048 together, with means of 161 and 338 (PagedAttention, figure 11). Each sigma is that
// of the distribution with this mean whose 99th percentile is the range's end; percentiles themselves are not published. sarathi,
// arxiv: fitted so that what is taken has the medians and 90th percentiles of Sarathi-Serve's table 2: openchat_sharegpt4 1730 and
// 5696 prompt tokens, 415 and 834 output tokens; arxiv_summarization 7059 and 12985, 208 and 371. Its totals end there too.
// pod-arxiv, pod-internal: 4K to 32K tokens, 50 and 40 prompt tokens per output token at most, fitted so that what is taken has the
// means of POD-Attention, section 5: 9.5K and 10.5K tokens, 470 and 331 of them output, whose spread is that of arxiv.
constexpr LengthShape kLengthShapes[] = {{WorkloadKind::kShareGpt, {107.7, 1.0165, 4, 1024}, {235.4, 0.969, 4, 2013}, 2048},
                                         {WorkloadKind::kSarathi, {3520, 1.70}, {417, 0.548}, 8192},
                                         {WorkloadKind::kArxiv, {7886, 0.651}, {208, 0.452}, 16384},
                                         {WorkloadKind::kPodArxiv, {8218, 0.588}, {398, 0.452}, 32768, 4096, 50},
                                         {WorkloadKind::kPodInternal, {14464, 0.347}, {161, 0.452}, 32768, 4096, 40}};

bool HasLengthShape(WorkloadKind kind) {
  return std::ranges::find(kLengthShapes, kind, &LengthShape::kind) != std::end(kLengthShapes);
}

// gsm8k: the test split, behind the eight examples of Wei et al. (2022) as Hydragen has it; outputs are as long as the solutions of
// the data set. By Llama 2's tokenizer.
constexpr Lengths kGsm8kProblem = {68.5, 0.330, 28, 195}, kGsm8kOutput = {92.7, 0.435, 29, 311};
constexpr int32_t kGsm8kShotTokens = 756;  // of all eight

constexpr std::array<int32_t, 6> kRelayPrefixes = {64, 128, 256, 512, 1024, 2048};
constexpr std::array<std::pair<int32_t, int32_t>, 3> kRelayRequests = {{{64, 128}, {128, 256}, {256, 512}}};  // prompt, output
constexpr std::array<int32_t, 9> kRatios = {8, 10, 12, 14, 16, 18, 20, 22, 24};
constexpr std::string_view kTree = "1024,256x4,64x8";
constexpr const char* kSystemPrompt = "system prompt, tokens";

const Shape& ShapeOf(WorkloadKind kind) { return *std::ranges::find(kShapes, kind, &Shape::kind); }

// Random tokens. Siblings, pieces of text that follow the same prefix, begin with different tokens, so that what requests share is
// what was asked for and no more, as long as the vocabulary lasts.
class TokenSource {
 public:
  TokenSource(int32_t vocab_size, uint64_t seed) : vocab_size_(static_cast<uint64_t>(vocab_size)), random_(seed) {}

  void Append(int32_t count, int64_t sibling, std::vector<int32_t>* tokens) {
    for (int32_t i = 0; i < count; ++i) {
      const uint64_t token = i == 0 ? static_cast<uint64_t>(sibling) : random_();
      tokens->push_back(static_cast<int32_t>(token % vocab_size_));
    }
  }
  std::vector<int32_t> Make(int32_t count, int64_t sibling) {
    std::vector<int32_t> tokens;
    Append(count, sibling, &tokens);
    return tokens;
  }
  // One of `lengths`.
  int64_t Length(const Lengths& lengths) {
    return std::max<int64_t>(1, std::llround(simulate::LogNormal(random_, lengths.median, lengths.sigma)));
  }
  // One of those that are within the distribution's ends.
  int32_t LengthWithin(const Lengths& lengths) {
    for (;;) {
      if (const int64_t length = Length(lengths); lengths.Has(length)) return static_cast<int32_t>(length);
    }
  }
  // Fisher and Yates; the standard's shuffle differs from library to library.
  void Shuffle(std::vector<WorkloadRequest>* requests) {
    for (size_t i = requests->size(); i > 1; --i) std::swap((*requests)[i - 1], (*requests)[random_() % i]);
  }

 private:
  uint64_t vocab_size_;
  std::mt19937_64 random_;
};

int32_t Scaled(int32_t count, double scale) { return std::max(1, static_cast<int32_t>(std::lround(count * scale))); }

// One request that continues `prefix`.
WorkloadRequest Continue(const std::vector<int32_t>& prefix, int32_t unique_tokens, int64_t sibling, int32_t samples,
                         int32_t output_tokens, TokenSource* source) {
  WorkloadRequest request{.prompt_ids = prefix, .samples = samples, .output_tokens = output_tokens};
  source->Append(unique_tokens, sibling, &request.prompt_ids);
  return request;
}

std::vector<WorkloadRequest> MakeGroups(const Shape& shape, TokenSource* source) {
  std::vector<WorkloadRequest> requests;
  for (int32_t group = 0; group < std::max(1, shape.groups); ++group) {
    const std::vector<int32_t> prefix = source->Make(shape.shared_tokens, group);
    for (int32_t i = 0; i < shape.requests; ++i)
      requests.push_back(Continue(prefix, shape.unique_tokens, i, shape.samples, shape.output_tokens, source));
  }
  return requests;
}

std::vector<WorkloadRequest> MakeGsm8k(const Shape& shape, TokenSource* source) {
  const std::vector<int32_t> examples = source->Make(kGsm8kShotTokens * shape.shots / kGsm8kShots, 0);
  std::vector<WorkloadRequest> requests;
  for (int32_t i = 0; i < shape.requests; ++i) {
    const int32_t problem = source->LengthWithin(kGsm8kProblem), output = source->LengthWithin(kGsm8kOutput);
    requests.push_back(Continue(examples, problem, i, shape.samples, output, source));
  }
  return requests;
}

// Subject by subject, `shape.groups` of them, evenly apart in the table.
std::vector<WorkloadRequest> MakeMmlu(const Shape& shape, TokenSource* source) {
  std::vector<WorkloadRequest> requests;
  for (int32_t group = 0; group < shape.groups; ++group) {
    const MmluSubject& subject = kMmluSubjects[size_t(group) * std::size(kMmluSubjects) / size_t(shape.groups)];
    const std::vector<int32_t> examples =
        source->Make(kMmluHead + (subject.five_shots - kMmluHead) * shape.shots / kMmluShots, group);
    const Lengths question = {subject.question_median, subject.question_sigma, kMmluShortest, kMmluLongest};
    for (int32_t i = 0; i < std::min(shape.requests, subject.questions); ++i)
      requests.push_back(Continue(examples, source->LengthWithin(question), i, shape.samples, shape.output_tokens, source));
  }
  return requests;
}

// Each sample as a request of its own: what stands behind the first `shared` tokens is another text for each, so that it is stored
// and computed once a sample (Hydragen 4.4, single-level).
std::vector<WorkloadRequest> SampleBySample(const std::vector<WorkloadRequest>& requests, size_t shared, TokenSource* source) {
  std::vector<WorkloadRequest> apart;
  for (const WorkloadRequest& request : requests) {
    const std::vector<int32_t> prefix(request.prompt_ids.begin(), request.prompt_ids.begin() + static_cast<ptrdiff_t>(shared));
    const auto own = static_cast<int32_t>(request.prompt_ids.size() - shared);
    for (int32_t sample = 0; sample < request.samples; ++sample)
      apart.push_back(Continue(prefix, own, std::ssize(apart), 1, request.output_tokens, source));
  }
  return apart;
}

std::vector<WorkloadRequest> MakeMixture(const Shape& shape, TokenSource* source) {
  std::vector<WorkloadRequest> requests;
  const std::vector<int32_t> prefixes[] = {source->Make(shape.shared_tokens, 0), source->Make(shape.shared_tokens, 1)};
  const int32_t half = shape.requests / 2, third = shape.requests / 3;
  for (int32_t i = 0; i < shape.requests; ++i) {
    if (i < half + third) {
      requests.push_back(Continue(prefixes[i < half ? 0 : 1], shape.unique_tokens, i, shape.samples, shape.output_tokens, source));
    } else {  // as long as the others
      requests.push_back(
          Continue({}, shape.shared_tokens + shape.unique_tokens, 2 + i, shape.samples, shape.output_tokens, source));
    }
  }
  return requests;
}

// The requests below a node whose path is `prefix`; the last level are the requests themselves.
void AppendTree(const std::vector<TreeLevel>& levels, size_t level, const std::vector<int32_t>& prefix, const Shape& shape,
                TokenSource* source, std::vector<WorkloadRequest>* requests) {
  for (int32_t child = 0; child < levels[level].fan_out; ++child) {
    std::vector<int32_t> path = prefix;
    source->Append(levels[level].tokens, child, &path);
    if (level + 1 < levels.size()) {
      AppendTree(levels, level + 1, path, shape, source, requests);
    } else {
      requests->push_back({.prompt_ids = std::move(path), .samples = shape.samples, .output_tokens = shape.output_tokens});
    }
  }
}

// For a message about a request of so many tokens, which are more than max_context; empty where no --max-context would hold it.
std::string OrLongerContext(const WorkloadOptions& options, int64_t tokens) {
  if (tokens > options.longest_context) return "";
  return fmt::format(", or raise --max-context, which this model lets be {}", options.longest_context);
}

// Requests whose lengths are distributed as published, behind a system prompt of `shape.shared_tokens` that all share. As where
// they were published, what is too long for the context is left out, and another one comes in its place.
Result<std::vector<WorkloadRequest>> MakeLengths(const WorkloadOptions& options, const Shape& shape, TokenSource* source) {
  const LengthShape& lengths = *std::ranges::find(kLengthShapes, options.kind, &LengthShape::kind);
  const int64_t most = std::min<int64_t>(lengths.max_total, int64_t{options.max_context} - shape.shared_tokens);
  const std::vector<int32_t> prefix = source->Make(shape.shared_tokens, 0);
  std::vector<WorkloadRequest> requests;
  constexpr int kMostDraws = 1000;
  while (std::ssize(requests) < shape.requests) {
    int64_t prompt = 0, output = 0;
    int draws = 0;
    const auto fits = [&] { return lengths.Has(prompt, output) && prompt + output <= most; };
    do {
      prompt = source->Length(lengths.prompt), output = source->Length(lengths.output);
    } while (!fits() && ++draws < kMostDraws);
    if (!fits())
      return InvalidArgument(fmt::format(
          "workload {}: hardly a request has {} tokens or less, which is what the context length of {} leaves; "
          "take a model with a longer context, or --lengths{}",
          shape.name, std::max<int64_t>(most, 0), options.max_context, OrLongerContext(options, int64_t{options.max_context} + 1)));
    requests.push_back(
        Continue(prefix, static_cast<int32_t>(prompt), std::ssize(requests), 1, static_cast<int32_t>(output), source));
  }
  return requests;
}

Result<std::vector<WorkloadRequest>> ReadLengths(const WorkloadOptions& options, TokenSource* source) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.lengths_file, "--lengths"));
  std::vector<WorkloadRequest> requests;
  std::map<int64_t, std::vector<int32_t>> prefixes;  // by group; as long as the longest that was asked for so far
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (const size_t comment = line.find('#'); comment != line.npos) line.resize(comment);
    std::ranges::replace(line, ',', ' ');
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::istringstream words(line);
    int32_t prompt = 0, output = 0, shared = 0;
    int64_t group = 0;
    const bool lengths = static_cast<bool>(words >> prompt >> output);
    const bool grouped = lengths && words >> group;
    if (grouped) words >> shared;
    if (!lengths || words.bad() || (grouped && words.fail()) || (words.clear(), words >> std::ws, !words.eof()) || prompt < 1 ||
        output < 1 || shared < 0 || shared > prompt) {
      return InvalidArgument(
          fmt::format("{}:{} is \"{}\", expected: prompt tokens, output tokens, and if it shares a prefix, a group and how "
                      "many of its prompt tokens",
                      options.lengths_file, number, line));
    }
    std::vector<int32_t>& prefix = prefixes[group];
    const int32_t missing = shared - static_cast<int32_t>(prefix.size());
    if (missing > 0) {
      const int64_t sibling = 2 * static_cast<int64_t>(prefix.empty() ? prefixes.size() : prefixes.size() + number);
      source->Append(missing, sibling, &prefix);
    }
    requests.push_back(Continue({prefix.begin(), prefix.begin() + shared}, prompt - shared, 2 * number + 1, 1, output, source));
  }
  if (requests.empty())
    return InvalidArgument(fmt::format("{} holds no request; expected lines \"prompt output\"", options.lengths_file));
  requests.resize(std::min(requests.size(),
                           static_cast<size_t>(std::max(1.0, std::round(options.scale * static_cast<double>(requests.size()))))));
  return requests;
}

// The kind's shape with what was given, scaled.
Result<Shape> ShapeFor(const WorkloadOptions& options) {
  Shape shape = ShapeOf(options.kind);
  struct Number {
    const char* option;
    const std::optional<int32_t>& given;
    int32_t* value;
  };
  const Number numbers[] = {{"--groups", options.groups, &shape.groups},
                            {"--requests", options.requests, &shape.requests},
                            {"--shared-tokens", options.shared_tokens, &shape.shared_tokens},
                            {"--unique-tokens", options.unique_tokens, &shape.unique_tokens},
                            {"--output-tokens", options.output_tokens, &shape.output_tokens},
                            {"--samples", options.samples, &shape.samples},
                            {"--total-tokens", options.total_tokens, &shape.total_tokens},
                            {"--shots", options.shots, &shape.shots}};
  for (const Number& number : numbers) {
    if (!number.given) continue;
    const bool system_prompt = number.value == &shape.shared_tokens && HasLengthShape(options.kind);
    if (*number.value == 0 && !system_prompt)
      return InvalidArgument(fmt::format("workload {} has no {}; leave it out", shape.name, number.option));
    if (*number.given < 1) return InvalidArgument(fmt::format("{} is {}, expected 1 or more", number.option, *number.given));
    const int32_t own = *number.value;
    *number.value = *number.given;
    const bool is_most = number.value == &shape.shots || (number.value == &shape.groups && options.kind == WorkloadKind::kMmlu);
    if (is_most && *number.given > own)
      return InvalidArgument(fmt::format("{} is {}, and {} has {}", number.option, *number.given, shape.name, own));
  }
  const std::pair<const char*, bool> lists[] = {
      {"--prefixes", !options.prefixes.empty() && options.kind != WorkloadKind::kRelay && !HasLengthShape(options.kind)},
      {"--ratios", !options.ratios.empty() && options.kind != WorkloadKind::kRatio},
      {"--single-level", options.single_level && options.kind != WorkloadKind::kFewShot && options.kind != WorkloadKind::kGsm8k},
      {"--tree", !options.tree.empty() && options.kind != WorkloadKind::kTree},
      {"--lengths", !options.lengths_file.empty() && options.kind != WorkloadKind::kLengths}};
  for (const auto& [option, unused] : lists) {
    if (unused) return InvalidArgument(fmt::format("workload {} has no {}; leave it out", shape.name, option));
  }
  if (options.kind == WorkloadKind::kLengths && options.lengths_file.empty())
    return InvalidArgument("workload lengths needs --lengths FILE, a line \"prompt output [group shared]\" a request");
  if (!(options.scale > 0) || !std::isfinite(options.scale))
    return InvalidArgument(fmt::format("--scale is {}, expected a positive number", options.scale));
  if (options.scale != 1 && options.kind == WorkloadKind::kTree)
    return InvalidArgument("workload tree has no --scale; give a smaller --tree");
  int32_t& scaled = shape.groups > 0 ? shape.groups : shape.requests;
  if (scaled > 0) scaled = Scaled(scaled, options.scale);
  return shape;
}

Result<Workload> MakePoints(const WorkloadOptions& options, Shape shape, TokenSource* source) {
  Workload workload;
  const auto add = [&](std::string label, double x, std::vector<WorkloadRequest> requests) {
    source->Shuffle(&requests);
    workload.points.push_back({std::move(label), x, std::move(requests)});
  };
  const std::string name(shape.name);
  switch (options.kind) {
    case WorkloadKind::kFewShot:
    case WorkloadKind::kGsm8k: {
      const bool is_gsm8k = options.kind == WorkloadKind::kGsm8k;
      std::vector<WorkloadRequest> requests = is_gsm8k ? MakeGsm8k(shape, source) : MakeGroups(shape, source);
      const int32_t shared = is_gsm8k ? kGsm8kShotTokens * shape.shots / kGsm8kShots : shape.shared_tokens;
      if (options.single_level) requests = SampleBySample(requests, static_cast<size_t>(shared), source);
      add(name, 0, std::move(requests));
      break;
    }
    case WorkloadKind::kMmlu: workload.points.push_back({name, 0, MakeMmlu(shape, source)}); break;  // subject by subject
    case WorkloadKind::kSharedPrefix:
    case WorkloadKind::kDocument:
    case WorkloadKind::kSampling: add(name, 0, MakeGroups(shape, source)); break;
    case WorkloadKind::kMixture: add(name, 0, MakeMixture(shape, source)); break;
    case WorkloadKind::kTree: {
      COPPICE_ASSIGN_OR_RETURN(const std::vector<TreeLevel> levels, ParseTree(options.tree.empty() ? kTree : options.tree));
      std::vector<WorkloadRequest> requests;
      AppendTree(levels, 0, {}, shape, source, &requests);
      add(name, 0, std::move(requests));
      break;
    }
    case WorkloadKind::kRelay: {
      workload.x_label = kSystemPrompt;
      const std::vector<int32_t> prefixes =
          options.prefixes.empty() ? std::vector<int32_t>(kRelayPrefixes.begin(), kRelayPrefixes.end()) : options.prefixes;
      shape.samples = 1;
      for (const auto& [prompt, output] : kRelayRequests) {
        for (const int32_t prefix : prefixes) {
          if (prefix < 1) return InvalidArgument(fmt::format("--prefixes has {}, expected 1 or more", prefix));
          shape.shared_tokens = prefix;
          shape.unique_tokens = prompt;
          shape.output_tokens = output;
          add(fmt::format("request {}, output {}", prompt, output), prefix, MakeGroups(shape, source));
        }
      }
      break;
    }
    case WorkloadKind::kRatio: {
      workload.x_label = "prompt tokens per output token";
      const std::vector<int32_t> ratios =
          options.ratios.empty() ? std::vector<int32_t>(kRatios.begin(), kRatios.end()) : options.ratios;
      shape.samples = 1;
      for (const int32_t ratio : ratios) {
        if (ratio < 1 || ratio >= shape.total_tokens)
          return InvalidArgument(
              fmt::format("--ratios has {}, expected 1 or more and less than --total-tokens {}", ratio, shape.total_tokens));
        shape.output_tokens = std::max(1, shape.total_tokens / (ratio + 1));
        shape.unique_tokens = shape.total_tokens - shape.output_tokens;
        add(fmt::format("{} tokens a request", shape.total_tokens), ratio, MakeGroups(shape, source));
      }
      break;
    }
    case WorkloadKind::kShareGpt:
    case WorkloadKind::kSarathi:
    case WorkloadKind::kArxiv:
    case WorkloadKind::kPodArxiv:
    case WorkloadKind::kPodInternal: {
      if (options.prefixes.empty()) {
        COPPICE_ASSIGN_OR_RETURN(std::vector<WorkloadRequest> requests, MakeLengths(options, shape, source));
        workload.points.push_back({name, 0, std::move(requests)});
        break;
      }
      if (options.shared_tokens) return InvalidArgument("--prefixes and --shared-tokens are lengths of the same prompt; give one");
      workload.x_label = kSystemPrompt;
      for (const int32_t prefix : options.prefixes) {
        if (prefix < 0) return InvalidArgument(fmt::format("--prefixes has {}, expected 0 or more", prefix));
        shape.shared_tokens = prefix;
        COPPICE_ASSIGN_OR_RETURN(std::vector<WorkloadRequest> requests, MakeLengths(options, shape, source));
        workload.points.push_back({name, static_cast<double>(prefix), std::move(requests)});
      }
      break;
    }
    case WorkloadKind::kLengths: {
      COPPICE_ASSIGN_OR_RETURN(std::vector<WorkloadRequest> requests, ReadLengths(options, source));
      workload.points.push_back({name, 0, std::move(requests)});  // in the order of the file
      break;
    }
  }
  return workload;
}

}  // namespace

std::string_view Name(WorkloadKind kind) { return ShapeOf(kind).name; }

Result<WorkloadKind> ParseWorkloadKind(std::string_view text) {
  std::string names;
  for (const Shape& shape : kShapes) {
    if (shape.name == text) return shape.kind;
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return InvalidArgument(fmt::format("'{}' is no workload; expected one of {}", text, names));
}

Result<Workload> MakeWorkload(const WorkloadOptions& options) {
  COPPICE_CHECK(options.vocab_size > 0);
  COPPICE_ASSIGN_OR_RETURN(const Shape shape, ShapeFor(options));
  TokenSource source(options.vocab_size, options.seed);
  COPPICE_ASSIGN_OR_RETURN(Workload workload, MakePoints(options, shape, &source));
  for (const WorkloadPoint& point : workload.points) {
    for (const WorkloadRequest& request : point.requests) {
      if (static_cast<int64_t>(request.prompt_ids.size()) + request.output_tokens > options.max_context) {
        return InvalidArgument(fmt::format(
            "workload {} has a request of {} prompt and {} output tokens, the context length is {}: give shorter ones{}",
            shape.name, request.prompt_ids.size(), request.output_tokens, options.max_context,
            OrLongerContext(options, std::ssize(request.prompt_ids) + request.output_tokens)));
      }
    }
  }
  return workload;
}

std::vector<double> PoissonArrivals(size_t count, double rate, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> arrivals;
  double now = 0;
  for (size_t i = 0; i < count; ++i) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    now += -std::log1p(-uniform) / rate;
    arrivals.push_back(now);
  }
  return arrivals;
}

}  // namespace coppice::cli
