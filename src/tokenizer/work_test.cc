// Tokenizers of hostile files: what they make of a text, and the time that it takes, stay in proportion to the text.
// Layer: tokenizer, tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/work_growth.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;
using TokenKind = TokenizerData::TokenKind;

// Tokens "a", "b" and " ", each a byte.
TokenizerData Small() {
  return {.model = "bpe",
          .byte_level = false,
          .tokens = {"a", "b", " ", "<unk>"},
          .kinds = std::vector<TokenKind>(4, TokenKind::kNormal),
          .unk_id = 3};
}

struct Outcome {
  Status status;
  double seconds = 0;  // of CPU
};

Outcome Encode(TokenizerData data, const std::string& text) {
  const double begin = testing::ThreadCpuSeconds();
  const auto tokenizer = CreateTokenizer(std::move(data));
  const Status status = tokenizer.ok() ? (*tokenizer)->Encode(text).status() : tokenizer.status();
  return {status, testing::ThreadCpuSeconds() - begin};
}

NormalizerStep Replace(const std::string& from, std::string to) {
  return {.kind = NormalizerStep::Kind::kReplace, .pattern = from, .text = std::move(to)};
}

// A map whose trie goes round in circles at "aaa...", without a match.
std::string CircularMap() {
  std::vector<uint32_t> units(128, 0);
  units['a'] = uint32_t{'a'} << 10 | 'a';  // label 'a', and the offset that leads back here
  const auto trie_bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string blob(sizeof trie_bytes + trie_bytes, '\0');
  std::memcpy(blob.data(), &trie_bytes, sizeof trie_bytes);
  std::memcpy(blob.data() + sizeof trie_bytes, units.data(), trie_bytes);
  return blob;
}

TEST(TokenizerWork, StepsThatMakeATextLongerAndLonger) {
  const std::string text(5000, 'a');
  std::vector<std::vector<NormalizerStep>> hostile = {{Replace("a", std::string(100'000, 'b'))},
                                                      {Replace("", std::string(5000, 'b'))}};
  std::vector<NormalizerStep>& doubling = hostile.emplace_back();
  for (int i = 0; i < 20; ++i) doubling.push_back(Replace("a", "aa"));
  std::vector<NormalizerStep>& prepending = hostile.emplace_back();
  for (int i = 0; i < 20; ++i) prepending.push_back({.kind = NormalizerStep::Kind::kPrepend, .text = std::string(100'000, 'b')});
  for (const auto& steps : hostile) {
    TokenizerData data = Small();
    data.normalizer = steps;
    const Outcome outcome = Encode(data, text);
    EXPECT_THAT(outcome.status.message(), HasSubstr("longer than 385536 bytes")) << steps.front().pattern;
    EXPECT_LT(outcome.seconds, 0.15 * testing::kBuildSlowdown);
  }
  TokenizerData harmless = Small();
  harmless.normalizer = {Replace("a", "bbbbbbbbbbbbbbbb")};
  EXPECT_TRUE(Encode(harmless, text).status.ok());
}

TEST(TokenizerWork, DecodersThatMakeTokensLongerAndLonger) {
  TokenizerData data = Small();
  for (int i = 0; i < 40; ++i) data.decoder.replacements.emplace_back("a", "aa");
  const Outcome doubling = Encode(data, "a");
  EXPECT_THAT(doubling.status.message(), HasSubstr("decoder makes a token"));
  EXPECT_LT(doubling.seconds, 0.15 * testing::kBuildSlowdown);
  data.decoder.replacements = {{"a", std::string(1'000'000, 'b')}};
  EXPECT_THAT(Encode(data, "a").status.message(), HasSubstr("a token 1000000 bytes long, "));
}

TEST(TokenizerWork, MoreStepsOrLongerTokensThanAnyFileHas) {
  TokenizerData data = Small();
  data.normalizer.assign(65, {.kind = NormalizerStep::Kind::kNfc});
  EXPECT_THAT(Encode(data, "a").status.message(), HasSubstr("normalizer has 65 steps; expected at most 64"));
  data = Small();
  data.pre_tokenizer_steps.assign(1000, {.pattern = "a"});
  EXPECT_THAT(Encode(data, "a").status.message(), HasSubstr("pre-tokenizer has 1000 steps"));
  data = Small();
  data.tokens[1] = std::string(1'000'000, 'a');
  EXPECT_THAT(Encode(data, "a").status.message(), HasSubstr("has 1000000 bytes; expected at most 4096"));
  data = Small();
  data.added_tokens = {{.text = std::string(4097, 'a'), .id = 0}};
  EXPECT_THAT(Encode(data, "a").status.message(), HasSubstr("has 4097 bytes"));
}

TEST(TokenizerWork, TriesThatGoRoundInCircles) {
  const std::string text(200'000, 'a');
  for (const auto kind : {NormalizerStep::Kind::kCharsMap, NormalizerStep::Kind::kSentencePiece}) {
    TokenizerData data = Small();
    data.normalizer = {{.kind = kind, .text = CircularMap()}};
    const Outcome outcome = Encode(data, text);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    EXPECT_LT(outcome.seconds, 5);  // about 0.2; looking through the whole text at each byte takes a minute
  }
}

TEST(TokenizerWork, AddedTokensThatTakeWhiteSpaceAlong) {
  const std::string text(300'000, ' ');
  for (const bool left : {false, true}) {
    TokenizerData data = Small();
    data.added_tokens = {{.text = " ", .id = 2, .lstrip = left, .rstrip = !left}};
    const Outcome outcome = Encode(data, text);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    EXPECT_LT(outcome.seconds, 5);  // about 0.1; looking through all that follows each time takes minutes
  }
}

}  // namespace
}  // namespace coppice
