#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <thread>

#include "tokenizer/testing/test_fixtures.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Ids = std::vector<int32_t>;
using TokenKind = TokenizerData::TokenKind;

std::string DecodeWhole(const Tokenizer& tokenizer, const Ids& ids, bool keep_special = true) {
  IncrementalDecoder decoder(tokenizer, keep_special);
  std::string text;
  for (int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

std::string Bytes(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (int32_t id : ids) bytes += tokenizer.TokenBytes(id, true);
  return bytes;
}

// Letters a to d, their merges "ab" and "abc", and an end token; no other byte has a token.
TokenizerData TinyData() {
  TokenizerData data;
  data.model = "bpe";
  data.pre_tokenizer = "gpt2";
  data.tokens = {"a", "b", "c", "d", "ab", "abc", "<end>", "<call>"};
  data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
  data.kinds[6] = TokenKind::kControl;
  data.kinds[7] = TokenKind::kUserDefined;
  data.merges = {{"a", "b"}, {"ab", "c"}};
  return data;
}

TEST(Tokenizer, IdsEqualThoseOfHuggingFace) {
  const auto expected = nlohmann::json::parse(ReadFixture("expected_ids.json"));
  const std::vector<std::string> texts = expected["texts"];
  ASSERT_GT(texts.size(), 200u);
  for (const auto& [kind, ids] : expected["ids"].items()) {
    const auto tokenizer = FixtureTokenizer(kind);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto encoded = tokenizer->Encode(texts[i]);
      ASSERT_TRUE(encoded.ok()) << encoded.status().ToString();
      EXPECT_EQ(*encoded, ids[i].get<Ids>()) << kind << ", text " << i << ": " << texts[i];
      if (kind != "qwen2") {  // NFC changes the text
        EXPECT_EQ(Bytes(*tokenizer, *encoded), texts[i]);
      }
    }
  }
}

TEST(Tokenizer, KnowsTheAliasesOfGgufFiles) {
  const std::string text = "I'VE 12345 x";
  EXPECT_EQ(*FixtureTokenizer("llama-bpe")->Encode(text), *FixtureTokenizer("llama-3")->Encode(text));
  EXPECT_EQ(*FixtureTokenizer("gpt-2")->Encode(text), *FixtureTokenizer("gpt2")->Encode(text));
  // Hugging Face normalizes for Qwen2 itself, not for the models that borrow its split.
  EXPECT_NE(*FixtureTokenizer("deepseek-r1-qwen")->Encode("e\u0301"), *FixtureTokenizer("qwen2")->Encode("e\u0301"));
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  const auto tokenizer = FixtureTokenizer("llama-3");
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 3 == 0 ? 'a' + random() % 4 : random());
    const auto ids = tokenizer->Encode(bytes);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    EXPECT_EQ(Bytes(*tokenizer, *ids), bytes);
  }
}

TEST(Tokenizer, InvalidUtf8IsSplitFromTheTextAround) {
  const auto tokenizer = FixtureTokenizer("gpt2");
  for (const std::string invalid : {"\xFF", "\xE2\x82", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80\x80"}) {
    Ids expected = *tokenizer->Encode("hello");
    for (char c : invalid) expected.push_back(tokenizer->Encode(std::string(1, c))->at(0));
    const Ids tail = *tokenizer->Encode(" world");
    expected.insert(expected.end(), tail.begin(), tail.end());
    const Ids ids = *tokenizer->Encode("hello" + invalid + " world");
    EXPECT_EQ(Bytes(*tokenizer, ids), "hello" + invalid + " world");
    EXPECT_LE(ids.size(), expected.size());  // the invalid bytes may merge with each other, with nothing else
    EXPECT_TRUE(std::equal(tail.rbegin(), tail.rend(), ids.rbegin()));
  }
}

TEST(Tokenizer, LongRunsAreNotQuadratic) {
  for (const char* kind : {"smollm", "llama-3"}) {
    const auto tokenizer = FixtureTokenizer(kind);
    for (const std::string& unit : {std::string("a"), std::string(" "), std::string("7"), std::string("ab\u65e5")}) {
      std::string text;
      while (text.size() < (unit == "a" ? 1'000'000u : 200'000u)) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = tokenizer->Encode(text);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      ASSERT_TRUE(ids.ok()) << ids.status().ToString();
      EXPECT_EQ(Bytes(*tokenizer, *ids), text);
      EXPECT_LT(seconds, 30) << kind << " '" << unit << "'";  // about 0.1 s; quadratic time would take hours
    }
  }
}

TEST(Tokenizer, ShortAndLongPiecesMergeAlike) {
  // Around the length at which the merge algorithm changes, against the definition of BPE.
  const auto tokenizer = FixtureTokenizer("gpt2");
  const TokenizerData data = FixtureData();
  std::mt19937 random(11);
  for (size_t length = 40; length < 60; ++length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += "etaoinsh"[random() % 8];
    std::vector<std::string> symbols;
    for (char c : text) symbols.emplace_back(1, c);
    for (const auto& [left, right] : data.merges) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != left || symbols[i + 1] != right) continue;
        symbols[i] += right;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
    const Ids ids = *tokenizer->Encode(text);
    std::vector<std::string> tokens;
    for (int32_t id : ids) tokens.emplace_back(tokenizer->TokenBytes(id));
    EXPECT_EQ(tokens, symbols) << text;
  }
}

// Merges as the definition has them: of the best rank, the leftmost; the rank of two symbols is `rank_of(left, right)`, -1 for
// none.
std::vector<std::string> MergeByDefinition(const std::string& text, const auto& rank_of) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    int best_rank = -1;
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const int rank = rank_of(symbols[i], symbols[i + 1]);
      if (rank < 0 || (best_rank >= 0 && rank >= best_rank)) continue;
      best_rank = rank;
      best = i;
    }
    if (best_rank < 0) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Merges of any file: their order is not that in which a vocabulary grew, and many have the same rank.
TEST(Tokenizer, LongPiecesMergeByRankAndThenFromTheLeft) {
  std::mt19937 random(7);
  for (int vocabulary = 0; vocabulary < 40; ++vocabulary) {
    const bool scored = vocabulary % 2 == 0;
    TokenizerData data = {.model = scored ? "spm-bpe" : "bpe", .byte_level = false, .tokens = {"a", "b", "c"}};
    while (data.tokens.size() < 30) {
      const std::string left = data.tokens[random() % data.tokens.size()], right = data.tokens[random() % data.tokens.size()];
      if (left.size() + right.size() > 6 || std::ranges::count(data.tokens, left + right) > 0) continue;
      data.tokens.push_back(left + right);
      data.merges.emplace_back(left, right);
    }
    std::ranges::shuffle(data.merges, random);
    data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
    if (scored) {
      data.merges.clear();
      for (size_t i = 0; i < data.tokens.size(); ++i) data.scores.push_back(-static_cast<double>(random() % 4));
    }
    const auto rank_of = [&](const std::string& left, const std::string& right) -> int {
      if (scored) {
        const auto token = std::ranges::find(data.tokens, left + right);
        return token == data.tokens.end() ? -1 : static_cast<int>(-data.scores[static_cast<size_t>(token - data.tokens.begin())]);
      }
      const auto merge = std::ranges::find(data.merges, std::pair(left, right));
      return merge == data.merges.end() ? -1 : static_cast<int>(merge - data.merges.begin());
    };
    std::string text;
    for (size_t i = 0, length = 49 + random() % 200; i < length; ++i) text += "abc"[random() % (vocabulary % 3 == 0 ? 2 : 3)];
    const auto tokenizer = CreateTokenizer(data);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    std::vector<std::string> tokens;
    for (const int32_t id : *(*tokenizer)->Encode(text)) tokens.emplace_back((*tokenizer)->TokenBytes(id));
    EXPECT_EQ(tokens, MergeByDefinition(text, rank_of)) << text;
  }
}

TEST(Tokenizer, AddedTokens) {
  TokenizerData data = TinyData();
  data.tokens.insert(data.tokens.end(), {"<e", "<end>>", "<end"});
  data.kinds.insert(data.kinds.end(), {TokenKind::kControl, TokenKind::kControl, TokenKind::kUnused});
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  EXPECT_EQ(*tokenizer->Encode("abc<end>a"), (Ids{5, 6, 0}));
  EXPECT_EQ(*tokenizer->Encode("<end>><end>"), (Ids{9, 6}));    // the longest that begins there
  EXPECT_EQ(*tokenizer->Encode("<e<enda"), (Ids{8, 8, 3, 0}));  // "n" has no token, "<end" is unused
  EXPECT_EQ(*tokenizer->Encode("a<call>b"), (Ids{0, 7, 1}));
  // Control tokens only where the caller trusts the text; user-defined ones always.
  EXPECT_EQ(*tokenizer->Encode("a<end><call>b", {.parse_special = false}), (Ids{0, 3, 7, 1}));
  EXPECT_EQ(tokenizer->TokenBytes(6), "");
  EXPECT_EQ(tokenizer->TokenBytes(6, true), "<end>");
  EXPECT_EQ(tokenizer->TokenBytes(7), "<call>");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(1000), "");
}

TEST(Tokenizer, BosAndEos) {
  TokenizerData data = TinyData();
  data.bos_id = 6;
  data.eos_ids = {7, 6};
  data.add_bos = data.add_eos = true;
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  EXPECT_EQ(*tokenizer->Encode(""), (Ids{6, 7}));
  EXPECT_EQ(*tokenizer->Encode("abd"), (Ids{6, 4, 3, 7}));
  EXPECT_EQ(*tokenizer->Encode("abd", {.add_special = false}), (Ids{4, 3}));
}

TEST(Tokenizer, BytesWithoutATokenAreLeftOut) {
  const auto tokenizer = CreateTokenizer(TinyData()).value();
  EXPECT_EQ(*tokenizer->Encode("axb"), (Ids{4}));  // the neighbours then merge, as in Hugging Face
  EXPECT_EQ(*tokenizer->Encode("\xFF"), Ids{});
}

TEST(Tokenizer, CreateNamesWhatIsWrong) {
  const auto failure = [](auto change) {
    TokenizerData data = TinyData();
    change(data);
    const auto created = CreateTokenizer(std::move(data));
    return created.ok() ? "created" : created.status().ToString();
  };
  const auto expect = [](const std::string& message, const char* code, const char* part) {
    EXPECT_EQ(message.rfind(code, 0), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(failure([](auto& data) { data.model = "wordpiece"; }), "UNIMPLEMENTED", "\"wordpiece\"");
  expect(failure([](auto& data) { data.pre_tokenizer = "whitespace"; }), "UNIMPLEMENTED", "llama-3");
  expect(failure([](auto& data) { data.tokens.clear(); }), "INVALID_ARGUMENT", "no tokens");
  expect(failure([](auto& data) { data.kinds.pop_back(); }), "INVALID_ARGUMENT", "8 tokens but 7");
  expect(failure([](auto& data) { data.merges.emplace_back("b", "zz"); }), "INVALID_ARGUMENT", "merge 2");
  expect(failure([](auto& data) { data.merges.emplace_back("d", "d"); }), "INVALID_ARGUMENT", "\"dd\"");
  expect(failure([](auto& data) { data.bos_id = 8; }), "INVALID_ARGUMENT", "bos id is 8");
  expect(failure([](auto& data) { data.add_bos = true; }), "INVALID_ARGUMENT", "bos id is -1");
  expect(failure([](auto& data) { data.add_eos = true; }), "INVALID_ARGUMENT", "eos id is -1");
  expect(failure([](auto& data) { data.eos_ids = {-5}; }), "INVALID_ARGUMENT", "eos id is -5");
  expect(failure([](auto& data) { data.pre_tokenizer.clear(), data.pre_tokenizer_steps = {{.pattern = "(a"}}; }),
         "INVALID_ARGUMENT", "(a");
}

TEST(Tokenizer, HostilePatternMeetsALimit) {
  TokenizerData data = TinyData();
  data.pre_tokenizer.clear();
  data.pre_tokenizer_steps = {{.pattern = "(a+a+)+(?=b)c|(?:a?){40}b{0}(a|aa)+$x"}};
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  const auto encoded = tokenizer->Encode(std::string(5000, 'a'));
  ASSERT_FALSE(encoded.ok());
  EXPECT_EQ(encoded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(encoded.status().message().find("match limit"), std::string::npos) << encoded.status().ToString();
}

TEST(Tokenizer, HostilePatternsEndSoon) {
  const std::string patterns[] = {
      "(a+a+)+(?=b)c|(?:a?){40}b{0}(a|aa)+$x",
      "(?:a|aa)+(?=[bc])|a",  // hard at every position, and a match all the same
      "(?:a+)+(?=[bc])|(?=(a+))\\1{0}a",
      "(?:(?:a|a)(?:a|a)){11}(?=[bc])|a",
      "(?<=(a|b)*)",
      std::string(40'000, '('),
      std::string(40'000, 'a') + "(",
  };
  for (const std::string& pattern : patterns) {
    TokenizerData data = TinyData();
    data.pre_tokenizer.clear();
    data.pre_tokenizer_steps = {{.pattern = pattern}};
    const clock_t begin = std::clock();
    const auto tokenizer = CreateTokenizer(std::move(data));
    const Status status = tokenizer.ok() ? (*tokenizer)->Encode(std::string(5000, 'a')).status() : tokenizer.status();
    EXPECT_FALSE(status.ok()) << pattern.substr(0, 100);
    EXPECT_LT(status.message().size(), 400u) << status.ToString();
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.15) << pattern.substr(0, 100);
  }
}

TEST(Tokenizer, EmptyMatchesCutNothing) {
  TokenizerData data = TinyData();
  data.pre_tokenizer.clear();
  data.pre_tokenizer_steps = {{.pattern = "x*"}};
  const auto tokenizer = CreateTokenizer(std::move(data)).value();
  EXPECT_EQ(*tokenizer->Encode("abcxxab"), (Ids{5, 4}));
  EXPECT_EQ(*tokenizer->Encode("a\u65e5bc"), (Ids{5}));
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const auto tokenizer = FixtureTokenizer("smollm");
  const std::string text = "The quick brown fox, 12345 \u65e5\u672c\u8a9e <|im_end|>";
  const Ids expected = *tokenizer->Encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += *tokenizer->Encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(IncrementalDecoder, PiecesAreWholeCharactersAndJoinToTheText) {
  const auto tokenizer = FixtureTokenizer("llama-3");
  for (const std::string text : {"caf\u00e9 \u65e5\u672c\u8a9e \U0001F469\u200D\U0001F469 \U0010FFFF end", "\u00e9", "plain"}) {
    // Encoded whole, and byte by byte: every split of every character.
    Ids bytes;
    for (char c : text) bytes.push_back(tokenizer->Encode(std::string(1, c))->at(0));
    for (const Ids& ids : {*tokenizer->Encode(text), bytes}) {
      IncrementalDecoder decoder(*tokenizer);
      std::string joined;
      for (int32_t id : ids) {
        const std::string piece = decoder.Push(id);
        EXPECT_EQ(ValidUtf8Prefix(piece), piece.size());
        joined += piece;
      }
      EXPECT_EQ(decoder.Finish(), "");
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(IncrementalDecoder, InvalidBytesBecomeReplacementCharacters) {
  const auto tokenizer = FixtureTokenizer("gpt2");
  const auto push = [&](IncrementalDecoder& decoder, char c) { return decoder.Push(tokenizer->Encode(std::string(1, c))->at(0)); };
  IncrementalDecoder decoder(*tokenizer);
  EXPECT_EQ(push(decoder, '\xFF'), "\uFFFD");  // certain at once
  EXPECT_EQ(push(decoder, '\xE2'), "");
  EXPECT_EQ(push(decoder, '\x82'), "");
  EXPECT_EQ(push(decoder, 'a'), "\uFFFDa");  // one for the maximal subpart, as Python and Rust decode
  EXPECT_EQ(push(decoder, '\xF0'), "");
  EXPECT_EQ(push(decoder, '\x9F'), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
  EXPECT_EQ(decoder.Finish(), "");
  // Unicode 15.0, table 3-8 and the examples after it.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\u0041"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\u0041"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\u0041\uFFFD\uFFFD\u0042"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\u0041"}};
  for (const auto& [bytes, expected] : cases) {
    Ids ids;
    for (char c : bytes) ids.push_back(tokenizer->Encode(std::string(1, c))->at(0));
    EXPECT_EQ(DecodeWhole(*tokenizer, ids), expected);
  }
}

TEST(IncrementalDecoder, HidesControlTokensUnlessAsked) {
  const auto tokenizer = FixtureTokenizer("qwen2");
  const Ids ids = *tokenizer->Encode("<|im_start|>user\nhi<|im_end|>");
  EXPECT_EQ(DecodeWhole(*tokenizer, ids, false), "user\nhi");
  EXPECT_EQ(DecodeWhole(*tokenizer, ids, true), "<|im_start|>user\nhi<|im_end|>");
}

}  // namespace
}  // namespace coppice
