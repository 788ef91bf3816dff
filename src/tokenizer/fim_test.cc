// Fill-in-the-middle tokens by texts and by ids, and prompts made with them.
#include "tokenizer/fim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/testing/test_fixtures.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;
using TokenKind = TokenizerData::TokenKind;

// The fixture's vocabulary with further tokens behind it.
TokenizerData DataWith(const std::vector<std::string>& texts, bool special = true) {
  TokenizerData data = FixtureData();
  for (const std::string& text : texts) {
    data.added_tokens.push_back({.text = text, .id = static_cast<int32_t>(data.tokens.size()), .special = special});
    data.tokens.push_back(text);
    data.kinds.push_back(special ? TokenKind::kControl : TokenKind::kUserDefined);
  }
  return data;
}

const int32_t kFirst = static_cast<int32_t>(FixtureData().tokens.size());  // id of the first further token

Ids TextIds(const Tokenizer& tokenizer, const std::string& text) {
  return *tokenizer.Encode(text, {.add_special = false, .parse_special = false});
}

// Lists in one.
Ids Joined(const std::vector<Ids>& lists) {
  Ids joined;
  for (const Ids& ids : lists) joined.insert(joined.end(), ids.begin(), ids.end());
  return joined;
}

TEST(Fim, FamiliesAreFoundByTheirTexts) {
  struct Case {
    std::vector<std::string> texts;  // prefix, suffix, middle, and what ends an answer
    bool suffix_first = false;
  };
  const Case cases[] = {
      {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}},
      {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"}},
      {{"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<reponame>"}},
      {{"<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>"}},
      {{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}},
      {{"▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"}},
      {{"[PREFIX]", "[SUFFIX]", "[MIDDLE]"}, true},
  };
  for (const auto& [texts, suffix_first] : cases) {
    SCOPED_TRACE(texts.front());
    const FimTokens fim = FindFimTokens(DataWith(texts));
    EXPECT_TRUE(fim.usable());
    EXPECT_THAT((Ids{fim.prefix, fim.suffix, fim.middle}), ElementsAre(kFirst, kFirst + 1, kFirst + 2));
    EXPECT_EQ(fim.suffix_first, suffix_first);
    EXPECT_EQ(fim.ends.size(), texts.size() - 3);
    for (size_t i = 3; i < texts.size(); ++i) EXPECT_THAT(fim.ends, ::testing::Contains(kFirst + static_cast<int32_t>(i)));
  }
  const FimTokens qwen = FindFimTokens(DataWith(cases[0].texts));
  EXPECT_EQ(qwen.repository, kFirst + 4);
  EXPECT_EQ(qwen.file, kFirst + 5);
}

TEST(Fim, AllThreeOfOneFamilyAreNeeded) {
  for (const std::vector<std::string>& texts : std::vector<std::vector<std::string>>{
           {}, {"<|fim_prefix|>", "<|fim_suffix|>"}, {"<|fim_prefix|>", "<fim_suffix>", "▁<MID>"}}) {
    const FimTokens fim = FindFimTokens(DataWith(texts));
    EXPECT_FALSE(fim.usable());
    EXPECT_THAT(fim.ends, IsEmpty());
    const auto tokenizer = CreateTokenizer(DataWith(texts)).value();
    EXPECT_THAT(EncodeFim(*tokenizer, "a", {.suffix = "b"}).status().message(), HasSubstr("no fill-in-the-middle tokens"));
  }
}

TEST(Fim, IdsOfTheFileComeFirst) {
  TokenizerData data = DataWith({"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<a>", "<b>", "<c>", "<d>"});
  data.fim = {.prefix = kFirst + 3, .suffix = kFirst + 4, .middle = kFirst + 5, .ends = {kFirst + 6}};
  FimTokens fim = FindFimTokens(data);
  EXPECT_THAT((Ids{fim.prefix, fim.suffix, fim.middle}), ElementsAre(kFirst + 3, kFirst + 4, kFirst + 5));
  EXPECT_THAT(fim.ends, ElementsAre(kFirst + 6));
  data.fim = {.prefix = kFirst + 3};  // one alone says nothing
  fim = FindFimTokens(data);
  EXPECT_THAT((Ids{fim.prefix, fim.suffix, fim.middle}), ElementsAre(kFirst, kFirst + 1, kFirst + 2));
  data.fim = {.prefix = 1 << 30};
  EXPECT_THAT(CreateTokenizer(data).status().message(), HasSubstr("fill-in-the-middle"));
}

TEST(Fim, PrefixSuffixMiddleBehindBos) {
  TokenizerData data = DataWith({"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<s>"});
  data.bos_id = kFirst + 3;
  data.add_bos = true;
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  const Ids ids = *EncodeFim(*tokenizer, "def f(x):\n    ", {.suffix = "\n    return y\n"});
  EXPECT_EQ(ids, Joined({{kFirst + 3, kFirst},
                         TextIds(*tokenizer, "def f(x):\n    "),
                         {kFirst + 1},
                         TextIds(*tokenizer, "\n    return y\n"),
                         {kFirst + 2}}));
  EXPECT_THAT(*EncodeFim(*tokenizer, "", {}), ElementsAre(kFirst + 3, kFirst, kFirst + 1, kFirst + 2));
}

TEST(Fim, CodestralEndsWithThePrefix) {
  const auto tokenizer = CreateTokenizer(DataWith({"[PREFIX]", "[SUFFIX]", "[MIDDLE]"})).value();
  EXPECT_EQ(*EncodeFim(*tokenizer, "one", {.suffix = " three"}),
            Joined({{kFirst + 1}, TextIds(*tokenizer, " three"), {kFirst}, TextIds(*tokenizer, "one")}));
}

// Also tokens that the file does not call special, as Qwen2.5-Coder's has it.
TEST(Fim, ControlTokensInWhatIsGivenAreText) {
  const std::vector<std::string> texts = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                          "<|fim_pad|>",    "<|repo_name|>",  "<|file_sep|>"};
  std::string all = "<|im_end|>";
  for (const std::string& text : texts) all += "x" + text;
  for (const bool special : {false, true}) {
    const auto tokenizer = CreateTokenizer(DataWith(texts, special)).value();
    const Ids ids = *EncodeFim(*tokenizer, all, {.suffix = all, .files = {{.name = all, .text = all}}});
    const auto count = [&ids](int32_t id) { return std::ranges::count(ids, id); };
    for (const int32_t i : {0, 1, 2, 4}) EXPECT_EQ(count(kFirst + i), 1) << i;
    EXPECT_EQ(count(kFirst + 3), 0);
    EXPECT_EQ(count(kFirst + 5), 2);  // before each file
    EXPECT_EQ(count(3728), 0);        // "<|im_end|>"
    EXPECT_EQ(tokenizer->Decode(ids, true), "<|repo_name|>myproject\n<|file_sep|>" + all + "\n" + all +
                                                "<|file_sep|>filename\n<|fim_prefix|>" + all + "<|fim_suffix|>" + all +
                                                "<|fim_middle|>");
  }
}

TEST(Fim, FilesAreSnippetsWhereNoTokenSeparatesThem) {
  const auto tokenizer = CreateTokenizer(DataWith({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"})).value();
  const Ids ids =
      *EncodeFim(*tokenizer, "a", {.suffix = "b", .files = {{.name = "n", .text = "one"}, {.name = "m", .text = "two"}}});
  EXPECT_EQ(tokenizer->Decode(ids, true),
            "\n\n--- snippet ---\n\none\n\n--- snippet ---\n\ntwo<fim_prefix>a<fim_suffix>b<fim_middle>");
}

// A tokenizer that puts a space before each text: none comes between the gap and the text behind it.
TEST(Fim, TheSuffixGetsNoSpaceOfItsOwn) {
  TokenizerData data{.model = "spm-bpe"};
  for (const std::string text : {"<unk>", "▁", "a", "b", "▁a", "▁b", "\u263A", "▁\u263A", "▁<PRE>", "▁<SUF>", "▁<MID>"}) {
    data.tokens.push_back(text);
    data.kinds.push_back(text.size() > 6 ? TokenKind::kControl : TokenKind::kNormal);
    data.scores.push_back(-static_cast<double>(data.scores.size()));
  }
  data.unk_id = 0;
  data.normalizer.push_back({.kind = NormalizerStep::Kind::kSentencePiece, .add_prefix = true, .collapse_spaces = false});
  data.decoder = {.replacements = {{"▁", " "}}, .strip_start = 1};
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  EXPECT_THAT(*tokenizer->Encode("a"), ElementsAre(4));
  EXPECT_THAT(*EncodeFim(*tokenizer, "a", {.suffix = "b"}), ElementsAre(8, 4, 9, 3, 10));
  EXPECT_THAT(*EncodeFim(*tokenizer, "a", {.suffix = " b"}), ElementsAre(8, 4, 9, 5, 10));
}

}  // namespace
}  // namespace coppice
