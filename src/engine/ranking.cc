#include "coppice/engine/ranking.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

double RankKey(const RankedSample& sample) {
  return MeanLogprob(sample.logprobs).value_or(-std::numeric_limits<double>::infinity());
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

Result<std::optional<std::string>> LastAnswer(std::string_view text, const Regex& regex, Regex::Scratch& scratch) {
  if (ValidUtf8Prefix(text) != text.size())
    return InvalidArgument("the text of a sample is not valid UTF-8; expected what the engine sent");
  std::optional<std::string> answer;
  for (size_t position = 0; position <= text.size();) {
    std::optional<Regex::Match> match;
    COPPICE_RETURN_IF_ERROR(regex.Find(text, position, scratch, &match));
    if (!match) break;
    const size_t end = std::max(match->begin, match->end);
    answer = Trimmed(match->group.value_or(text.substr(match->begin, end - match->begin)));
    if (end > position) {
      position = end;
    } else {  // an empty match: look again one character later
      position += position < text.size() ? DecodeUtf8(text.substr(position)).length : 1;
    }
  }
  return answer;
}

// The error of the pattern or of a search for it, with the pattern in its message.
Status OfPattern(std::string_view pattern, const Status& status) {
  if (status.ok()) return status;
  return InvalidArgument("answer pattern " + Printable(pattern, 96) + ": " + status.message());
}

Result<Regex> CompileAnswerPattern(std::string_view pattern) {
  Result<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok()) return OfPattern(pattern, regex.status());
  return regex;
}

}  // namespace

std::optional<double> MeanLogprob(std::span<const float> logprobs) {
  if (logprobs.empty()) return std::nullopt;
  return std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / static_cast<double>(logprobs.size());
}

std::vector<int32_t> RankByMeanLogprob(std::span<const RankedSample> samples) {
  std::vector<int32_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](int32_t i) { return RankKey(samples[i]); });
  return order;
}

std::vector<int32_t> WithoutDuplicates(std::span<const RankedSample> samples, std::span<const int32_t> order) {
  std::vector<int32_t> kept;
  std::set<std::string_view> texts;
  std::set<std::vector<int32_t>> ids;  // of samples without a text
  for (const int32_t i : order) {
    const RankedSample& sample = samples[i];
    const bool is_new = sample.text.empty() ? ids.emplace(sample.token_ids.begin(), sample.token_ids.end()).second
                                            : texts.insert(sample.text).second;
    if (is_new) kept.push_back(i);
  }
  return kept;
}

std::vector<int32_t> BestOf(std::span<const RankedSample> samples, int32_t n, bool deduplicate) {
  std::vector<int32_t> best = RankByMeanLogprob(samples);
  if (deduplicate) best = WithoutDuplicates(samples, best);
  if (best.size() > static_cast<size_t>(n)) best.resize(n);
  return best;
}

Result<std::optional<std::string>> ExtractAnswer(std::string_view text, std::string_view pattern) {
  COPPICE_ASSIGN_OR_RETURN(const Regex regex, CompileAnswerPattern(pattern));
  COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
  Result<std::optional<std::string>> answer = LastAnswer(text, regex, scratch);
  if (!answer.ok()) return OfPattern(pattern, answer.status());
  return answer;
}

Result<std::vector<VotedAnswer>> MajorityVote(std::span<const RankedSample> samples, std::string_view pattern) {
  COPPICE_ASSIGN_OR_RETURN(const Regex regex, CompileAnswerPattern(pattern));
  COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
  std::vector<VotedAnswer> votes;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < samples.size(); ++i) {
    Result<std::optional<std::string>> answer = LastAnswer(samples[i].text, regex, scratch);
    if (!answer.ok()) return OfPattern(pattern, answer.status());
    if (!answer->has_value()) continue;
    const auto [place, is_new] = places.try_emplace(**answer, votes.size());
    if (is_new) votes.push_back({.answer = **answer});
    VotedAnswer& vote = votes[place->second];
    vote.voters.push_back(static_cast<int32_t>(i));
    vote.mean_logprob = std::max(vote.mean_logprob, MeanLogprob(samples[i].logprobs));
  }
  std::ranges::stable_sort(votes, std::ranges::greater(),
                           [](const VotedAnswer& vote) { return std::pair(vote.voters.size(), vote.mean_logprob); });
  return votes;
}

}  // namespace coppice
