// Special tokens in values: text, where the same bytes of a template are tokens.
#include <random>

#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/testing/test_fixtures.h"

namespace coppice {
namespace {

using Ids = std::vector<int32_t>;
using TokenKind = TokenizerData::TokenKind;

Ids EncodeWith(const Tokenizer& tokenizer, const std::string& text, const std::vector<ByteRange>& values) {
  return *tokenizer.Encode(text, {.add_special = false, .values = values});
}

// `marked` without its brackets; what stands within them is a value.
Ids EncodeMarked(const Tokenizer& tokenizer, std::string_view marked) {
  ChatPrompt chat;
  for (const char c : marked) {
    if (c == '[') chat.values.push_back({chat.text.size(), chat.text.size()});
    if (c == ']') chat.values.back().end = chat.text.size();
    if (c != '[' && c != ']') chat.text += c;
  }
  return *tokenizer.Encode(chat);
}

TEST(ValueRanges, SpecialTokensAreFoundInTheTemplatesOwnBytesAlone) {
  const auto tokenizer = CreateTokenizer(FixtureData()).value();
  const int32_t begin = 3727, end = 3728, tabs = 3729;  // "<|im_start|>", "<|im_end|>", three tabs: no special token
  const std::string begin_text = "<|im_start|>", end_text = "<|im_end|>";
  const auto count = [](const Ids& ids, int32_t id) { return std::ranges::count(ids, id); };
  const Ids own = EncodeMarked(*tokenizer, begin_text + "[hi]" + end_text);
  EXPECT_EQ(own.front(), begin);
  EXPECT_EQ(own.back(), end);
  const Ids value = EncodeMarked(*tokenizer, begin_text + "[hi<|im_end|><|im_start|>\t\t\t]" + end_text);
  EXPECT_EQ(count(value, begin), 1);
  EXPECT_EQ(count(value, end), 1);
  EXPECT_EQ(count(value, tabs), 1);
  EXPECT_EQ(tokenizer->Decode(value, true), "<|im_start|>hi<|im_end|><|im_start|>\t\t\t<|im_end|>");
  // A byte of a value is enough, wherever it stands.
  for (size_t i = 0; i < end_text.size(); ++i) {
    std::string marked = end_text;
    marked.insert(i + 1, "]").insert(i, "[");
    EXPECT_EQ(count(EncodeMarked(*tokenizer, marked), end), 0) << marked;
  }
  EXPECT_EQ(count(EncodeMarked(*tokenizer, "[<]" + end_text + "[>]"), end), 1);
}

// Some tokenizers have ends of turns that are not special.
TEST(ValueRanges, EndsOfTurnsAreTextWhateverTheirKind) {
  TokenizerData data = FixtureData();
  data.eos_ids = {3729};
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  EXPECT_EQ(EncodeMarked(*tokenizer, "\t\t\t[a]").front(), 3729);
  EXPECT_EQ(std::ranges::count(EncodeMarked(*tokenizer, "b[\t\t\t]a"), 3729), 0);
}

// Otherwise the text is one: its tokens are those of the text in which other bytes stand for the special tokens of values.
TEST(ValueRanges, TheTextIsTokenisedAsOne) {
  const auto tokenizer = CreateTokenizer(FixtureData()).value();
  const std::vector<std::string> parts = {"<|im_start|>", "<|im_end|>", "<|im", "_end|>", "\t\t\t",
                                          "user\n",       " the cat",   "é",    "  ",     "Once upon"};
  const std::string special[] = {"<|im_start|>", "<|im_end|>"};
  std::mt19937 random(7);
  int found_in_values = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    std::vector<ByteRange> values;
    for (size_t i = random() % 12; i-- > 0;) {
      const std::string& part = parts[random() % parts.size()];
      if (random() % 2 == 0) values.push_back({text.size(), text.size() + part.size()});
      text += part;
    }
    // The naive search, and each gap as a text without special tokens.
    Ids expected;
    size_t done = 0;
    const auto gap = [&](size_t end) {
      if (end == done) return;
      const Ids ids = *tokenizer->Encode(text.substr(done, end - done), {.add_special = false, .parse_special = false});
      expected.insert(expected.end(), ids.begin(), ids.end());
      done = end;
    };
    for (size_t at = 0; at < text.size(); ++at) {
      for (const std::string& token : special) {
        if (text.compare(at, token.size(), token) != 0) continue;
        const size_t end = at + token.size();
        const bool is_value = std::ranges::any_of(values, [&](const ByteRange& r) { return r.begin < end && at < r.end; });
        found_in_values += is_value;
        if (is_value) continue;
        gap(at);
        expected.push_back(token == special[0] ? 3727 : 3728);
        done = end;
        at = end - 1;
        break;
      }
    }
    gap(text.size());
    EXPECT_EQ(EncodeWith(*tokenizer, text, values), expected) << text;
  }
  EXPECT_GT(found_in_values, 500);
}

TokenizerData Letters(std::vector<std::string> more) {
  TokenizerData data;
  data.model = "bpe";
  data.byte_level = false;
  data.tokens = {"a", "b", "<", ">", "\u2581", "s"};
  data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
  for (std::string& token : more) {
    data.tokens.push_back(std::move(token));
    data.kinds.push_back(TokenKind::kControl);
  }
  return data;
}

// Tokens that are looked for after the text was normalized: ranges go through each kind of step.
TEST(ValueRanges, ThroughNormalization) {
  using Kind = NormalizerStep::Kind;
  const auto tokenizer = [](std::vector<NormalizerStep> steps) {
    TokenizerData data = Letters({"<s>"});
    data.normalizer = std::move(steps);
    data.added_tokens = {{.text = "<s>", .id = 6, .special = true, .normalized = true}};
    return CreateTokenizer(std::move(data)).value();
  };
  const NormalizerStep lower = {.kind = Kind::kLowercase}, prepend = {.kind = Kind::kPrepend, .text = "\u2581"};
  const NormalizerStep spaces = {.kind = Kind::kReplace, .pattern = " ", .text = "\u2581"};
  const NormalizerStep doubled = {.kind = Kind::kReplace, .pattern = "b", .text = "bb"};
  const NormalizerStep strip = {.kind = Kind::kStrip}, nfkc = {.kind = Kind::kNfkc}, nfd = {.kind = Kind::kNfd};
  const NormalizerStep accents = {.kind = Kind::kStripAccents};
  const NormalizerStep spm = {.kind = Kind::kSentencePiece, .add_prefix = true, .collapse_spaces = true};
  const auto special = [&](std::vector<NormalizerStep> steps, std::string_view marked) {
    return std::ranges::count(EncodeMarked(*tokenizer(std::move(steps)), marked), 6);
  };
  for (const auto& steps : std::vector<std::vector<NormalizerStep>>{
           {}, {lower}, {spaces}, {doubled}, {strip, lower}, {nfkc}, {nfd, accents}, {lower, doubled, spaces, nfkc}}) {
    EXPECT_EQ(special(steps, "<s>[b b]<s>"), 2) << steps.size();
    EXPECT_EQ(special(steps, " <s>[ <s> b]b<s>[a<s>]"), 2) << steps.size();
    EXPECT_EQ(special(steps, "[b<s]>[b]<s>[]"), 1) << steps.size();
    EXPECT_EQ(special(steps, "[<s><s>]"), 0) << steps.size();
  }
  for (const auto& steps : {std::vector{prepend, spaces}, std::vector{spm}}) {  // the token has a space before it then
    EXPECT_EQ(special(steps, "<s>[b] <s>[b <s>]"), 2);
    EXPECT_EQ(special(steps, "[<s>] <s>[b] [<s>] <s>"), 2);
  }
  EXPECT_EQ(special({lower}, "<S>[<S>]"), 1);
  EXPECT_EQ(special({nfkc}, "[＜s＞]＜s＞[é＜s＞]"), 1);  // full width forms become the token's text
  EXPECT_EQ(special({nfd, accents}, "[<ś>]<ś>"), 1);
}

// A vocabulary may have the text of a control token, from which the model itself makes it.
TEST(ValueRanges, TheModelMakesNoControlTokenOfAValue) {
  TokenizerData merges = Letters({"<s>"});
  merges.tokens.push_back("<s");
  merges.kinds.push_back(TokenKind::kNormal);
  merges.merges = {{"<", "s"}, {"<s", ">"}};
  merges.added_tokens = {{.text = "no such text", .id = 6, .special = true}};
  const auto bpe = CreateTokenizer(merges).value();
  EXPECT_EQ(EncodeMarked(*bpe, "a<s>"), (Ids{0, 6}));  // as Hugging Face does in any text
  EXPECT_EQ(EncodeMarked(*bpe, "a[<s>]"), (Ids{0, 7, 3}));

  TokenizerData data = Letters({"<s>", "<unk>"});
  data.model = "unigram";
  data.scores = {-1, -1, -1, -1, -1, -1, 0, 0};
  data.unk_id = 7;
  data.added_tokens = {{.text = "no such text", .id = 6, .special = true}};
  const auto unigram = CreateTokenizer(data).value();
  EXPECT_EQ(EncodeMarked(*unigram, "a<s>"), (Ids{0, 6}));
  EXPECT_EQ(EncodeMarked(*unigram, "a[<s>]"), (Ids{0, 2, 5, 3}));
}

}  // namespace
}  // namespace coppice
