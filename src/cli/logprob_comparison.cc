#include "cli/logprob_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/eval/json_lines.h"
#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMaxShown = 60;  // bytes of a value in a message

Status WrongField(const std::string& field, const json& value, const char* expected) {
  return InvalidArgument(fmt::format("{} is {}, expected {}", field, PrintableJson(value, kMaxShown), expected));
}

Status TakeLogprob(const std::string& field, const json& value, LogprobSequence* sequence) {
  if (value.is_null()) {
    sequence->logprobs.emplace_back();
    return OkStatus();
  }
  if (!value.is_number() || value.get<double>() > 0) return WrongField(field, value, "a number of at most 0, or null");
  sequence->logprobs.emplace_back(value.get<double>());
  return OkStatus();
}

Status TakeTokenId(const std::string& field, const json& value, LogprobSequence* sequence) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > std::numeric_limits<int32_t>::max())
    return WrongField(field, value, "a token id");
  sequence->token_ids.push_back(value.get<int32_t>());
  return OkStatus();
}

Status TakeLists(const json& object, const json& logprobs, const std::string& field, LogprobSequence* sequence) {
  if (!logprobs.is_array()) return WrongField(field, logprobs, "a list of numbers");
  for (const json& value : logprobs) COPPICE_RETURN_IF_ERROR(TakeLogprob(field, value, sequence));
  const auto ids = object.find("token_ids");
  if (ids == object.end() || ids->is_null()) return OkStatus();
  if (!ids->is_array()) return WrongField("token_ids", *ids, "a list of token ids");
  for (const json& value : *ids) COPPICE_RETURN_IF_ERROR(TakeTokenId("token_ids", value, sequence));
  if (sequence->token_ids.size() != sequence->logprobs.size())
    return InvalidArgument(fmt::format("token_ids has {} entries and {} {}, expected as many", sequence->token_ids.size(), field,
                                       sequence->logprobs.size()));
  return OkStatus();
}

// {"content": [{"token_id", "logprob"}]} of /inference/v1/generate, and of chats, which have no ids there.
Status TakeContent(const json& content, LogprobSequence* sequence) {
  if (!content.is_array()) return WrongField("logprobs.content", content, "a list");
  for (const json& entry : content) {
    if (!entry.is_object() || !entry.contains("logprob")) return WrongField("logprobs.content", entry, "objects with \"logprob\"");
    COPPICE_RETURN_IF_ERROR(TakeLogprob("logprobs.content.logprob", entry["logprob"], sequence));
    if (entry.contains("token_id")) {
      COPPICE_RETURN_IF_ERROR(TakeTokenId("logprobs.content.token_id", entry["token_id"], sequence));
    }
  }
  if (!sequence->token_ids.empty() && sequence->token_ids.size() != sequence->logprobs.size())
    return InvalidArgument("logprobs.content has token_id in some of its entries, expected in all or none");
  return OkStatus();
}

Status TakeChoice(const json& choice, LogprobSequence* sequence) {
  const json* logprobs = choice.is_object() && choice.contains("logprobs") ? &choice["logprobs"] : nullptr;
  if (logprobs == nullptr || !logprobs->is_object())
    return InvalidArgument("a choice has no logprobs: ask the server for them (\"logprobs\": 0 of a completion)");
  if (logprobs->contains("content")) return TakeContent((*logprobs)["content"], sequence);
  if (!logprobs->contains("token_logprobs"))
    return WrongField("logprobs", *logprobs, "an object with \"token_logprobs\" or \"content\"");
  return TakeLists(choice, (*logprobs)["token_logprobs"], "logprobs.token_logprobs", sequence);
}

std::string NameOf(const json& line, size_t number) {
  for (const char* const key : {"id", "custom_id"}) {
    if (const auto id = line.find(key); id != line.end() && id->is_string()) return id->get<std::string>();
  }
  return fmt::format("sequence {}", number);
}

// The answer in a line of a batch's output, or the line itself.
const json& AnswerIn(const json& line) {
  const auto response = line.find("response");
  return response != line.end() && response->is_object() && response->contains("body") ? (*response)["body"] : line;
}

Status CheckPair(const LogprobSequence& rollout, const LogprobSequence& trainer) {
  const size_t count = rollout.logprobs.size();
  if (trainer.logprobs.size() != count)
    return InvalidArgument(fmt::format("{} has {} log-probabilities of the rollout and {} of the trainer, expected as many",
                                       Quoted(rollout.name), count, trainer.logprobs.size()));
  if (rollout.token_ids.empty() || trainer.token_ids.empty()) return OkStatus();
  const auto [of_rollout, of_trainer] = std::ranges::mismatch(rollout.token_ids, trainer.token_ids);
  if (of_rollout == rollout.token_ids.end()) return OkStatus();
  return InvalidArgument(fmt::format("token {} of {} is {} in the rollout and {} in the trainer's file, expected the same text",
                                     of_rollout - rollout.token_ids.begin(), Quoted(rollout.name), *of_rollout, *of_trainer));
}

}  // namespace

Result<std::vector<LogprobSequence>> ReadLogprobs(const std::string& text) {
  std::vector<LogprobSequence> sequences;
  size_t number = 0;
  COPPICE_RETURN_IF_ERROR(ForEachJsonLine(text, [&](const json& line) -> Status {
    if (!line.is_object()) return InvalidArgument("it is no object");
    const std::string name = NameOf(line, ++number);
    const json& answer = AnswerIn(line);
    if (answer.is_object() && answer.contains("choices") && answer["choices"].is_array()) {
      const json& choices = answer["choices"];
      for (size_t i = 0; i < choices.size(); ++i) {
        LogprobSequence& sequence = sequences.emplace_back();
        sequence.name = choices.size() == 1 ? name : fmt::format("{}, choice {}", name, i);
        COPPICE_RETURN_IF_ERROR(TakeChoice(choices[i], &sequence));
      }
      return OkStatus();
    }
    if (!line.contains("logprobs")) return InvalidArgument("it has neither logprobs nor choices");
    LogprobSequence& sequence = sequences.emplace_back();
    sequence.name = name;
    return TakeLists(line, line["logprobs"], "logprobs", &sequence);
  }));
  return sequences;
}

Result<LogprobComparison> CompareLogprobs(const std::vector<LogprobSequence>& rollout, const std::vector<LogprobSequence>& trainer,
                                          size_t num_worst) {
  if (rollout.size() != trainer.size())
    return InvalidArgument(
        fmt::format("the rollout has {} sequences and the trainer {}, expected as many", rollout.size(), trainer.size()));
  LogprobComparison comparison = {.sequences = std::ssize(rollout)};
  std::vector<LogprobComparison::Token> tokens;
  for (size_t i = 0; i < rollout.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(CheckPair(rollout[i], trainer[i]));
    const std::vector<int32_t>& ids = rollout[i].token_ids.empty() ? trainer[i].token_ids : rollout[i].token_ids;
    for (size_t place = 0; place < rollout[i].logprobs.size(); ++place) {
      const std::optional<double>& ours = rollout[i].logprobs[place];
      const std::optional<double>& theirs = trainer[i].logprobs[place];
      if (!ours || !theirs) {
        ++comparison.left_out;
        continue;
      }
      tokens.push_back({.sequence = rollout[i].name,
                        .place = place,
                        .token_id = ids.empty() ? -1 : ids[place],
                        .rollout = *ours,
                        .trainer = *theirs});
    }
  }
  if (tokens.empty()) return InvalidArgument("there is no token of which both files have a log-probability");
  comparison.tokens = std::ssize(tokens);
  const auto count = static_cast<double>(tokens.size());
  for (const LogprobComparison::Token& token : tokens) {
    const double d = token.difference();
    comparison.mean += std::abs(d) / count;
    comparison.bias += d / count;
    comparison.k3 += (std::expm1(d) - d) / count;
    comparison.largest = std::max(comparison.largest, std::abs(d));
  }
  for (const LogprobComparison::Token& token : tokens)
    comparison.deviation += (token.difference() - comparison.bias) * (token.difference() - comparison.bias) / count;
  comparison.deviation = std::sqrt(comparison.deviation);
  comparison.k1 = -comparison.bias;
  comparison.largest_ratio = std::exp(comparison.largest);
  const auto shown = static_cast<std::ptrdiff_t>(std::min(num_worst, tokens.size()));
  std::ranges::partial_sort(tokens, tokens.begin() + shown, std::ranges::greater(),
                            [](const LogprobComparison::Token& token) { return std::abs(token.difference()); });
  comparison.worst.assign(std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.begin() + shown));
  return comparison;
}

std::string TextOf(const LogprobComparison& c) {
  std::string text = fmt::format(
      "{} tokens of {} sequences, {} without a log-probability left out\n"
      "|trainer - rollout|  mean {:.3g}, largest {:.3g} (ratio of probabilities {:.4g})\n"
      " trainer - rollout   mean {:+.3g}, standard deviation {:.3g}\n"
      "KL(rollout || trainer), nats a token  k1 {:.3g}, k3 {:.3g}\n",
      c.tokens, c.sequences, c.left_out, c.mean, c.largest, c.largest_ratio, c.bias, c.deviation, c.k1, c.k3);
  if (c.worst.empty()) return text;
  text += fmt::format("{:>12} {:>12} {:>12} {:>8} {:>6}  {}\n", "rollout", "trainer", "difference", "token", "place", "sequence");
  for (const LogprobComparison::Token& token : c.worst) {
    text +=
        fmt::format("{:>12.5f} {:>12.5f} {:>+12.5f} {:>8} {:>6}  {}\n", token.rollout, token.trainer, token.difference(),
                    token.token_id < 0 ? "?" : std::to_string(token.token_id), token.place, Printable(token.sequence, kMaxShown));
  }
  return text;
}

std::string JsonOf(const LogprobComparison& c) {
  ordered_json worst = ordered_json::array();
  for (const LogprobComparison::Token& token : c.worst) {
    worst.push_back({{"sequence", token.sequence},
                     {"place", token.place},
                     {"token_id", token.token_id < 0 ? ordered_json() : ordered_json(token.token_id)},
                     {"rollout", token.rollout},
                     {"trainer", token.trainer},
                     {"difference", token.difference()}});
  }
  return DumpJson({{"sequences", c.sequences},
                   {"tokens", c.tokens},
                   {"left_out", c.left_out},
                   {"mean_difference", c.mean},
                   {"largest_difference", c.largest},
                   {"bias", c.bias},
                   {"standard_deviation", c.deviation},
                   {"kl_k1", c.k1},
                   {"kl_k3", c.k3},
                   {"worst", std::move(worst)}}) +
         "\n";
}

}  // namespace coppice::cli
