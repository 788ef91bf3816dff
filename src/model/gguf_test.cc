#include "model/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/gguf_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"
#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::Raw;

constexpr uint32_t kF32 = 0;
const std::string kEightFloats(32, '\1');

// A directory with the memory it views, which is exactly as long as the file.
struct Parsed {
  explicit Parsed(const std::string& file) : bytes(file.begin(), file.end()) {}
  Result<GgufDirectory> Parse() const { return GgufDirectory::Parse(std::as_bytes(std::span(bytes)), "f.gguf"); }
  std::vector<char> bytes;
};

Status ParseError(const std::string& file) {
  const Result<GgufDirectory> gguf = Parsed(file).Parse();
  EXPECT_FALSE(gguf.ok());
  EXPECT_EQ(gguf.status().message().find('\n'), std::string::npos) << "one line";
  EXPECT_THAT(gguf.status().message(), HasSubstr("f.gguf: "));
  return gguf.status();
}

class GgufVersionTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GgufVersionTest, ReadsWhatWasWritten) {
  GgufWriter writer(GetParam());
  writer.Alignment(64)
      .U32("u32", 7)
      .F32("f32", 0.5f)
      .Bool("yes", true)
      .String("text", "h\xc3\xa9llo")
      .Strings("texts", {"a", "", "bcd"})
      .I32s("ints", {-1, 2})
      .Value("i8", 1, Raw(int8_t{-3}))
      .Value("u16", 2, Raw(uint16_t{65535}))
      .Value("u64", 10, Raw(UINT64_MAX))
      .Value("f64", 12, Raw(1e300))
      .Array("nested", 9, 2, Raw(uint32_t{0}) + Raw(uint64_t{1}) + "x" + Raw(uint32_t{8}) + Raw(uint64_t{0}))
      .Tensor("a", {2, 4}, kF32, kEightFloats)
      .Tensor("b", {3, 32}, 3, std::string(60, '\2'))
      .Tensor("c", {1, 2, 2, 2}, 30, std::string(16, '\3'));
  const Parsed parsed(writer.Bytes());
  const Result<GgufDirectory> gguf = parsed.Parse();
  ASSERT_TRUE(gguf.ok()) << gguf.status().ToString();

  EXPECT_EQ(gguf->version(), GetParam());
  EXPECT_EQ(gguf->Int("u32", 0, 10).value(), 7);
  EXPECT_EQ(gguf->Int("i8", -10, 10).value(), -3);
  EXPECT_EQ(gguf->Int("u16", 0, 65535).value(), 65535);
  EXPECT_EQ(gguf->Float("f32").value(), 0.5f);
  EXPECT_EQ(gguf->Bool("yes").value(), true);
  EXPECT_EQ(gguf->String("text").value(), "h\xc3\xa9llo");
  EXPECT_THAT(gguf->Strings("texts").value(), ElementsAre("a", "", "bcd"));
  EXPECT_THAT(gguf->Ints("ints").value(), ElementsAre(-1, 2));
  EXPECT_TRUE(gguf->Has("nested"));

  EXPECT_EQ(gguf->tensors().at("a").shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(gguf->tensors().at("b").type, StoredType::kQ4_1);
  EXPECT_EQ(gguf->tensors().at("b").data.size(), 60u);
  EXPECT_EQ(gguf->tensors().at("c").type, StoredType::kBF16);
  EXPECT_EQ(gguf->tensors().at("c").data[15], std::byte{3});

  EXPECT_EQ(gguf->Int("none", 0, 1).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(gguf->Int("u32", 8, 9).status().message(), HasSubstr("\"u32\" is 7, expected 8..9"));
  EXPECT_THAT(gguf->Int("u64", 0, 9).status().message(), HasSubstr("expected 0..9"));
  EXPECT_THAT(gguf->Int("text", 0, 9).status().message(), HasSubstr("\"text\" has type string, expected an integer"));
  EXPECT_THAT(gguf->Int("ints", 0, 9).status().message(), HasSubstr("has type array of i32"));
  EXPECT_THAT(gguf->Float("f64").status().message(), HasSubstr("expected a finite float"));
  EXPECT_FALSE(gguf->Float("u32").ok());
  EXPECT_FALSE(gguf->Bool("u32").ok());
  EXPECT_FALSE(gguf->String("texts").ok());
  EXPECT_FALSE(gguf->Strings("text").ok());
  EXPECT_FALSE(gguf->Ints("texts").ok());
}

INSTANTIATE_TEST_SUITE_P(Versions, GgufVersionTest, ::testing::Values(2, 3));

TEST(GgufTest, RefusesOtherFilesAndVersions) {
  EXPECT_THAT(ParseError("").message(), HasSubstr("not a GGUF file"));
  EXPECT_THAT(ParseError("PK\x03\x04").message(), HasSubstr("it begins with \"PK\\x03\\x04\", not \"GGUF\""));
  EXPECT_THAT(ParseError("GGUF").message(), HasSubstr("truncated"));
  EXPECT_THAT(ParseError(GgufWriter(1).Bytes()).message(), HasSubstr("GGUF version 1 is not supported, expected 2 or 3"));
  EXPECT_THAT(ParseError(GgufWriter(4).Bytes()).message(), HasSubstr("GGUF version 4"));
  EXPECT_THAT(ParseError("GGUF" + std::string("\0\0\0\3", 4) + std::string(16, '\0')).message(), HasSubstr("big-endian"));
}

TEST(GgufTest, RefusesImpossibleCounts) {
  const auto header = [](uint64_t tensors, uint64_t values) { return "GGUF" + Raw(uint32_t{3}) + Raw(tensors) + Raw(values); };
  EXPECT_THAT(ParseError(header(0, UINT64_MAX)).message(), HasSubstr("18446744073709551615 metadata entries"));
  EXPECT_THAT(ParseError(header(1 << 20, 0)).message(), HasSubstr("1048576 tensors"));
  EXPECT_THAT(ParseError(header(0, 1) + Raw(UINT64_MAX) + std::string(99, 'k')).message(), HasSubstr("at most 65535 are allowed"));
  EXPECT_THAT(ParseError(header(0, 1) + Raw(uint64_t{1}) + "k" + Raw(uint32_t{8}) + Raw(UINT64_MAX - 7)).message(),
              HasSubstr("metadata key \"k\" at byte"));
  EXPECT_THAT(ParseError(GgufWriter().Array("k", 5, uint64_t{1} << 62, "").Bytes()).message(), HasSubstr("4611686018427387904"));
  EXPECT_THAT(ParseError(GgufWriter().Array("k", 8, 1000, "").Bytes()).message(), HasSubstr("1000 metadata key \"k\""));
}

TEST(GgufTest, RefusesBadMetadata) {
  EXPECT_THAT(ParseError(GgufWriter().U32("k", 1).Bool("k", true).Bytes()).message(),
              HasSubstr("metadata key \"k\" appears twice"));
  EXPECT_THAT(ParseError(GgufWriter().Value("k", 13, "12345678").Bytes()).message(),
              HasSubstr("has value type 13, known are 0..12"));
  EXPECT_THAT(ParseError(GgufWriter().Array("k", 77, 1, "12345678").Bytes()).message(), HasSubstr("value type 77"));
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += Raw(uint32_t{9}) + Raw(uint64_t{1});
  EXPECT_THAT(ParseError(GgufWriter().Array("k", 9, 1, nested).Bytes()).message(), HasSubstr("nests arrays deeper than 4"));
  EXPECT_THAT(ParseError(GgufWriter().U32("general.alignment", 0).Bytes()).message(), HasSubstr("is 0, expected 8.."));
  EXPECT_THAT(ParseError(GgufWriter().U32("general.alignment", 24).Bytes()).message(), HasSubstr("is 24, expected a power of two"));
  // The message is one line of printable text for any bytes of a file.
  EXPECT_THAT(ParseError(GgufWriter().U32("a\nb", 1).U32("a\nb", 1).Bytes()).message(), HasSubstr("a\\x0ab"));
}

TEST(GgufTest, RefusesBadTensors) {
  const auto with = [](const std::vector<int64_t>& shape, uint32_t type, const std::string& bytes = kEightFloats) {
    return ParseError(GgufWriter().Tensor("t", shape, type, bytes).Bytes()).message();
  };
  EXPECT_THAT(with({}, kF32), HasSubstr("tensor \"t\" has 0 dimensions, expected 1..4"));
  EXPECT_THAT(with({1, 1, 1, 1, 1}, kF32), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(with({0, 8}, kF32), HasSubstr("has size 0 in dimension 1"));
  EXPECT_THAT(with({-1}, kF32), HasSubstr("has size 18446744073709551615"));
  EXPECT_THAT(with({int64_t{1} << 33, int64_t{1} << 33}, kF32), HasSubstr("overflows"));
  EXPECT_THAT(with({16}, 2), HasSubstr("has rows of 16 elements, but blocks of Q4_0 hold 32"));
  EXPECT_THAT(with({32}, 10), HasSubstr("has type Q2_K (id 10); supported are F32"));
  EXPECT_THAT(with({32}, 4), HasSubstr("has type unknown (id 4)"));
  EXPECT_THAT(with({4}, 26), HasSubstr("has type I32 (id 26)"));
  EXPECT_THAT(with({9}, kF32), HasSubstr("takes 36 bytes at offset 0, but the tensor data has 32"));
  EXPECT_THAT(ParseError(GgufWriter().Tensor(std::string(65, 'n'), {8}, kF32, kEightFloats).Bytes()).message(),
              HasSubstr("has 65 bytes, at most 64 are allowed"));
  EXPECT_THAT(ParseError(GgufWriter().TensorAt("t", {8}, kF32, 4, kEightFloats).Bytes()).message(),
              HasSubstr("at offset 4, not a multiple of the alignment 32"));
  EXPECT_THAT(ParseError(GgufWriter().TensorAt("t", {8}, kF32, ~uint64_t{31}, kEightFloats).Bytes()).message(),
              HasSubstr("truncated"));
  GgufWriter twice, overlap;
  twice.Tensor("t", {8}, kF32, kEightFloats).Tensor("t", {8}, kF32, kEightFloats);
  EXPECT_THAT(ParseError(twice.Bytes()).message(), HasSubstr("tensor \"t\" appears twice"));
  overlap.TensorAt("t", {16}, kF32, 0, kEightFloats).TensorAt("u", {8}, kF32, 32, kEightFloats);
  EXPECT_THAT(ParseError(overlap.Bytes()).message(), HasSubstr("tensor \"u\" begins at offset 32, but tensor \"t\" ends at 64"));
}

TEST(GgufTest, WorkIsProportionalToMetadataAndTensors) {
  const auto directory = [](int count) {
    GgufWriter writer;
    std::vector<std::string> texts;
    for (int i = 0; i < count; ++i) {
      writer.U32(fmt::format("key {}", i), 1).Tensor(fmt::format("tensor {}", i), {8}, kF32, kEightFloats);
      texts.push_back(fmt::format("token {}", i));
    }
    return writer.Strings("texts", texts).I32s("ints", std::vector<int32_t>(count, 1)).Bytes();
  };
  const auto parse = [](const std::string& file) {
    const Parsed parsed(file);
    const Result<GgufDirectory> gguf = parsed.Parse();
    ASSERT_TRUE(gguf.ok()) << gguf.status().ToString();
    EXPECT_TRUE(gguf->Strings("texts").ok() && gguf->Ints("ints").ok());
  };
  EXPECT_LT(testing::WorkGrowth(1000, directory, parse), testing::kMaxProportionalGrowth);
}

// A small model with a tokenizer and tensors of several types.
std::string SmallModel() {
  testing::TinyModel model = testing::RandomModel(testing::TinyConfig(), 3);
  GgufWriter writer = testing::ToGguf(model);
  std::vector<std::string> tokens;
  for (int32_t i = 0; i < model.config.vocab_size; ++i) tokens.push_back(fmt::format("t{}", i));
  writer.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "smollm").Strings("tokenizer.ggml.tokens", tokens);
  writer.I32s("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1)).Strings("tokenizer.ggml.merges", {"a b", "c d"});
  return writer.U32("tokenizer.ggml.eos_token_id", 2)
      .Tensor("rope_freqs.weight", {4}, kF32, Raw(1.f) + Raw(1.f) + Raw(2.f) + Raw(8.f))
      .Bytes();
}

// Reads a damaged file as far as it lets itself be read; a sanitizer sees any access outside it.
bool ReadAll(const std::string& file) {
  const Parsed parsed(file);
  const Result<GgufDirectory> gguf = parsed.Parse();
  if (!gguf.ok()) return false;
  const Result<ModelContents> contents = ReadGgufModel(*gguf);
  if (!contents.ok()) return false;
  for (const auto& [name, tensor] : contents->tensors) {
    const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0], cols = tensor.shape.back();
    std::vector<std::byte> out(static_cast<size_t>(rows * cols) * 2);
    EXPECT_TRUE(LoadWeight(name, tensor, rows, cols, DType::kBF16, out).ok());
  }
  return true;
}

TEST(GgufTest, TruncatedAtEveryLengthIsAnError) {
  const std::string file = SmallModel();
  ASSERT_TRUE(ReadAll(file));
  for (size_t size = 0; size < file.size(); size += size < 6000 ? 1 : 61) EXPECT_FALSE(ReadAll(file.substr(0, size))) << size;
  EXPECT_FALSE(ReadAll(file.substr(0, file.size() - 17)));  // within the last tensor, past which there are 16 bytes of padding
}

TEST(GgufTest, SurvivesRandomDamage) {
  const std::string file = SmallModel();
  std::mt19937_64 random(4);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = file;
    const uint64_t reach = round % 2 == 0 ? 4000 : 800;  // directory; metadata
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      char& byte = damaged[random() % reach];
      byte = random() % 2 ? static_cast<char>(byte ^ (1 << random() % 8)) : static_cast<char>(random() % 2 ? 0xff : 0x00);
    }
    refused += !ReadAll(damaged);
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace coppice
