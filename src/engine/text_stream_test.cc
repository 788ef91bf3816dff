#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/testing/fake_tokenizer.h"

namespace coppice {
namespace {

// Pushes tokens with these texts; returns what went out after each, then after Finish unless a stop was met.
std::vector<std::string> Stream(const std::vector<std::string>& texts, const std::vector<std::string>& stops) {
  const FakeTokenizer tokenizer(texts);
  TextStream stream(&tokenizer, stops);
  std::vector<std::string> out;
  for (size_t i = 0; i < texts.size(); ++i) {
    out.emplace_back();
    if (stream.Push(static_cast<int32_t>(i), true, &out.back())) return out;
  }
  out.emplace_back();
  stream.Finish(&out.back());
  return out;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, PassesTextThrough) { EXPECT_EQ(Stream({"ab", "c"}, {}), (Pieces{"ab", "c", ""})); }

// Token 0 is a control token.
class WithControlToken final : public Tokenizer {
 public:
  WithControlToken() : Tokenizer(Info{}) {}
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view, const EncodeOptions&) const override {
    return Unimplemented("only decodes");
  }
  std::string_view TokenBytes(int32_t id, bool keep_special) const override { return id != 0 ? "a" : keep_special ? "<mark>" : ""; }
};

TEST(TextStream, ControlTokensHaveTextWhereTheyAreAskedFor) {
  const WithControlToken tokenizer;
  const std::vector<int32_t> visible = {0};
  TextStream plain(&tokenizer, {}), marked(&tokenizer, {}, visible);
  std::string without, with;
  for (const int32_t token : {1, 0, 1}) {
    plain.Push(token, false, &without);
    marked.Push(token, false, &with);
  }
  EXPECT_EQ(without, "aa");
  EXPECT_EQ(with, "a<mark>a");
}

TEST(TextStream, HoldsBackTheBeginningOfAStop) {
  EXPECT_EQ(Stream({"ab", "x"}, {"bc"}), (Pieces{"a", "bx", ""}));
  EXPECT_EQ(Stream({"ab"}, {"bc"}), (Pieces{"a", "b"}));  // the end: it was none
}

TEST(TextStream, CutsBeforeAStopThatSpansTokens) {
  EXPECT_EQ(Stream({"one", "\n", "\n", "two"}, {"\n\n"}), (Pieces{"one", "", ""}));
  EXPECT_EQ(Stream({"aa", "ab", "zz"}, {"aab"}), (Pieces{"", "a"}));  // a begun match that restarts inside itself
}

TEST(TextStream, TheEarliestStopWins) { EXPECT_EQ(Stream({"x END y STOP"}, {"STOP", "END"}), (Pieces{"x "})); }

TEST(TextStream, ReportsWhichStopItWas) {
  const FakeTokenizer tokenizer({"x EN", "D y STOP", "z"});
  const std::vector<std::string> stops = {"STOP", "END"};
  TextStream stream(&tokenizer, stops);
  std::string text;
  EXPECT_EQ(stream.Push(0, true, &text), std::nullopt);
  EXPECT_EQ(stream.Push(1, true, &text), 1);
  TextStream other(&tokenizer, stops);
  EXPECT_EQ(other.Push(2, true, &text), std::nullopt);
  EXPECT_EQ(other.Push(1, true, &text), 0);
}

TEST(TextStream, NeverSplitsACharacter) {
  EXPECT_EQ(Stream({"\xc3", "\xa9", "!"}, {}), (Pieces{"", "\xc3\xa9", "!", ""}));
  EXPECT_EQ(Stream({"\xc3"}, {}), (Pieces{"", "\xef\xbf\xbd"}));
}

TEST(TextStream, WithoutATokenizerThereIsNoText) {
  TextStream stream;
  std::string text;
  EXPECT_FALSE(stream.Push(3, true, &text));
  stream.Finish(&text);
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace coppice
