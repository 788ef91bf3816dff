// Retrieval from a long context (Hydragen section 4.3): facts stand at given depths of a haystack, and each is asked for. The
// haystack is what all its questions share.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <string_view>
#include <utility>

#include "cli/eval/run_requests.h"
#include "cli/eval/task.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

constexpr std::array<std::string_view, 12> kFiller = {
    "The ferry leaves when the tide allows it. ",     "Most of the orchard was planted before the war. ",
    "A letter arrived, and nobody opened it. ",       "The road over the pass is closed until spring. ",
    "She kept the receipts in a blue tin. ",          "In the evening the shutters are lowered. ",
    "The bridge has been painted twice since then. ", "He prefers to walk along the canal. ",
    "Rain was expected, but the wind turned. ",       "The library opens at ten on weekdays. ",
    "Somebody had left a lantern by the gate. ",      "Prices at the market hardly changed. "};
constexpr std::array<std::string_view, 16> kCities = {"Lisbon", "Oslo",   "Vienna", "Athens", "Dublin", "Warsaw",
                                                      "Prague", "Madrid", "Berlin", "London", "Rome",   "Paris",
                                                      "Zurich", "Geneva", "Milan",  "Turin"};
constexpr int32_t kAnswerTokens = 12;

struct Question {
  int32_t length;
  double depth;
  std::string number;
};

struct Haystack {
  std::string text;
  std::vector<std::pair<std::string_view, std::string>> facts;  // city and number, by depth
};

// About `length` tokens, with a fact at each depth.
Result<Haystack> MakeHaystack(const Tokenizer& tokenizer, int32_t length, const std::vector<double>& depths,
                              std::mt19937_64& random) {
  std::vector<std::string> sentences;
  for (int64_t tokens = 0; tokens < length;) {
    const std::string_view sentence = kFiller[random() % kFiller.size()];
    COPPICE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(sentence, {.add_special = false}));
    tokens += std::max<int64_t>(1, std::ssize(ids));
    sentences.emplace_back(sentence);
  }
  Haystack haystack;
  std::array<std::string_view, kCities.size()> cities = kCities;
  std::shuffle(cities.begin(), cities.end(), random);
  std::multimap<int64_t, std::string> at;  // sentence that a fact stands before
  for (size_t i = 0; i < depths.size(); ++i) {
    haystack.facts.emplace_back(cities[i], std::to_string(10000 + random() % 90000));
    at.emplace(std::llround(depths[i] * static_cast<double>(sentences.size())),
               fmt::format("The secret number of {} is {}. ", haystack.facts[i].first, haystack.facts[i].second));
  }
  for (int64_t s = 0; s <= std::ssize(sentences); ++s) {
    for (auto [fact, end] = at.equal_range(s); fact != end; ++fact) haystack.text += fact->second;
    if (s < std::ssize(sentences)) haystack.text += sentences[s];
  }
  return haystack;
}

Status Check(const NeedleTask& task, const Engine& engine) {
  if (engine.tokenizer() == nullptr) return engine.model_info().tokenizer_status;
  if (task.depths.empty() || task.depths.size() > kCities.size())
    return InvalidArgument(fmt::format("{} depths; expected 1 to {}", task.depths.size(), kCities.size()));
  for (const double depth : task.depths) {
    if (!(depth >= 0 && depth <= 1)) return InvalidArgument(fmt::format("--depths has {}; expected numbers from 0 to 1", depth));
  }
  return OkStatus();
}

Result<EvalResult> Run(const NeedleTask& task, Engine& engine, const EvalProgress& progress) {
  COPPICE_RETURN_IF_ERROR(Check(task, engine));
  std::mt19937_64 random(task.seed);
  std::vector<Question> questions;
  std::vector<Request> requests;
  for (const int32_t length : task.lengths) {
    for (int32_t repeat = 0; repeat < task.repeats; ++repeat) {
      COPPICE_ASSIGN_OR_RETURN(const Haystack haystack, MakeHaystack(*engine.tokenizer(), length, task.depths, random));
      for (size_t i = 0; i < task.depths.size(); ++i) {
        const auto& [city, number] = haystack.facts[i];
        Request request{.max_tokens = kAnswerTokens, .sampling = {.temperature = 0}};
        const std::string prompt = fmt::format(
            "{}\n\nQuestion: What is the secret number of {}?\nAnswer: The secret number of {} is", haystack.text, city, city);
        COPPICE_ASSIGN_OR_RETURN(request.prompt_ids, engine.tokenizer()->Encode(prompt));
        questions.push_back({length, task.depths[i], number});
        requests.push_back(std::move(request));
      }
    }
  }
  COPPICE_ASSIGN_OR_RETURN(const std::vector<openai::RequestOutput> outputs,
                           RunRequests(engine, std::move(requests), [&](int64_t done) { progress(done, std::ssize(questions)); }));
  EvalResult result;
  std::map<std::pair<int32_t, double>, std::pair<int64_t, int64_t>> found;  // by length and depth: found, asked
  for (size_t i = 0; i < questions.size(); ++i) {
    const std::string& text = outputs[i].samples.front().text;
    auto& [hits, n] = found[{questions[i].length, questions[i].depth}];
    ++n;
    if (text.find(questions[i].number) != text.npos) ++hits;
    result.items.push_back(text);
  }
  for (const auto& [place, counts] : found) {
    result.scores.push_back(
        {fmt::format("length {}, depth {:g}", place.first, place.second), Proportion(counts.first, counts.second)});
  }
  return result;
}

}  // namespace

EvalTask MakeTask(NeedleTask task) {
  return [task = std::move(task)](Engine& engine, const EvalProgress& progress) { return Run(task, engine, progress); };
}

}  // namespace coppice::cli
