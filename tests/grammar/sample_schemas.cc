// Samples texts through the masks of JSON schemas, for json_schema_test.py. A line of stdin asks, a line of stdout answers:
//
//   {"schema": TEXT, "seed": N, "samples": N, "max_tokens": N, "accept": [TEXT, ...]}
//   {"error": MESSAGE} or {"samples": [[HEX, ENDED], ...], "accepted": [BOOL, ...]}
//
// A sample is made of random allowed tokens, each with a logit of its own for the whole sample; HEX are its bytes. `accepted`:
// whether the constraint lets each text through, byte by byte.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "coppice/engine/token_constraint.h"
#include "engine/testing/fake_tokenizer.h"
#include "grammar/grammar_compiler.h"
#include "runner/step_batch.h"

namespace coppice {
namespace {

using nlohmann::json;

// All bytes, and texts that cross the parts of JSON text and of characters.
std::vector<std::string> Texts() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* const text :
       {"{\"",  "\":",      "\": ",     "\",",    "\", \"", "\"}",   "\"]",      "}}",   "]}",  "[[",   "[\"",   "],",   "},",
        ", ",   ": ",       "true",     "false",  "null",   "12",    "0.",       "e1",   "\\n", "\\\"", "\\u00", "\\\\", "\n  ",
        "    ", "abc",      "name",     "kind",   "-01",    "2024",  ".com",     "http", "://", "a-b",  "é",     "ж",    "日本",
        "😀",    "\xF0\x9F", "\xE6\x97", "\x80\"", " \"",    "\"a\"", "xyz\",\"", "1,",   "00",  "T1",   "Z\"",   "@a."})
    texts.emplace_back(text);
  return texts;
}

class Sampler {
 public:
  json Answer(const json& asked) {
    Result<std::shared_ptr<const TokenConstraint>> compiled =
        compiler_->Compile({GrammarKind::kJsonSchema, asked.at("schema").get<std::string>()});
    if (!compiled.ok()) return {{"error", compiled.status().message()}};
    json samples = json::array(), accepted = json::array();
    std::mt19937 random(asked.at("seed").get<uint32_t>());
    for (int i = 0; i < asked.at("samples").get<int>(); ++i) {
      std::string wrong;
      bool ended = false;
      const std::string text = Sample(**compiled, asked.at("max_tokens").get<int>(), random, &ended, &wrong);
      if (!wrong.empty()) return {{"error", "while sampling: " + wrong}};
      samples.push_back({Hex(text), ended});
    }
    for (const std::string text : asked.value("accept", json::array())) accepted.push_back(Accepts(**compiled, text));
    return {{"samples", std::move(samples)}, {"accepted", std::move(accepted)}};
  }

 private:
  static std::string Hex(std::string_view bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string out;
    for (const char c : bytes) {
      out += kDigits[static_cast<uint8_t>(c) / 16];
      out += kDigits[static_cast<uint8_t>(c) % 16];
    }
    return out;
  }

  std::string Sample(const TokenConstraint& constraint, int max_tokens, std::mt19937& random, bool* ended, std::string* wrong) {
    std::vector<double> weights(texts_.size());
    std::normal_distribution<double> logit(0, 1.5);
    for (double& weight : weights) weight = std::exp(logit(random));
    const std::unique_ptr<ConstraintState> state = constraint.Begin();
    std::vector<uint32_t> mask(MaskWords(static_cast<int32_t>(texts_.size())));
    std::string text;
    for (int i = 0; i < max_tokens; ++i) {
      const Result<bool> may_end = state->FillMask(mask);
      if (!may_end.ok()) return *wrong = may_end.status().message(), text;
      std::vector<double> allowed = weights;
      double sum = 0;
      for (size_t t = 0; t < allowed.size(); ++t) sum += allowed[t] *= mask[t / 32] >> t % 32 & 1;
      if (*may_end && (sum == 0 || random() % 2 == 0)) return *ended = true, text;
      if (sum == 0) return *wrong = "no token is allowed after " + Hex(text), text;
      const auto token = static_cast<int32_t>(std::discrete_distribution<int>(allowed.begin(), allowed.end())(random));
      text += texts_[token];
      if (const Status taken = state->Accept(token); !taken.ok()) return *wrong = taken.message(), text;
    }
    return text;
  }

  bool Accepts(const TokenConstraint& constraint, const std::string& text) {
    const std::unique_ptr<ConstraintState> state = constraint.Begin();
    std::vector<uint32_t> mask(MaskWords(static_cast<int32_t>(texts_.size())));
    for (const char c : text) {
      const auto token = static_cast<int32_t>(static_cast<uint8_t>(c));
      const Result<bool> filled = state->FillMask(mask);
      if (!filled.ok() || (mask[token / 32] >> token % 32 & 1) == 0 || !state->Accept(token).ok()) return false;
    }
    const Result<bool> may_end = state->FillMask(mask);
    return may_end.ok() && *may_end;
  }

  std::vector<std::string> texts_ = Texts();
  FakeTokenizer tokenizer_{texts_};
  std::unique_ptr<GrammarCompiler> compiler_ = GrammarCompiler::Create(tokenizer_, static_cast<int32_t>(texts_.size())).value();
};

}  // namespace
}  // namespace coppice

int main() {
  coppice::Sampler sampler;
  std::string line;
  while (std::getline(std::cin, line)) std::cout << sampler.Answer(nlohmann::json::parse(line)).dump() << std::endl;
}
