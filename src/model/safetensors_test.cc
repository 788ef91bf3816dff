#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "tests/support/tiny_model.h"
#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;
using testing::Raw;

const std::string kModels = COPPICE_TEST_DATA "/models/";

// Parses a copy that is exactly as long as the text, so that a sanitizer sees any read past its end.
Result<TensorMap> Parse(const std::string& text) {
  const std::vector<char> bytes(text.begin(), text.end());
  Result<TensorMap> tensors = ParseSafetensors(std::as_bytes(std::span(bytes)), "f.safetensors");
  if (tensors.ok()) {
    size_t sum = 0;
    for (const auto& [name, tensor] : *tensors) {
      for (const std::byte b : tensor.data) sum += static_cast<size_t>(b);  // every byte that a tensor claims can be read
    }
    EXPECT_GE(sum, 0u);
  }
  return tensors;
}

std::string FileOf(const std::string& header, size_t data_bytes) {
  return Raw(static_cast<uint64_t>(header.size())) + header + std::string(data_bytes, 'x');
}

TEST(SafetensorsTest, ReadsExpectedValuesOfAFixture) {
  const Result<SafetensorsFile> file = SafetensorsFile::Open(kModels + "llama-gqa/expected.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const std::vector<int32_t> prompt = file->Read<int32_t>("prompt").value();
  const std::vector<float> logits = file->Read<float>("logits").value();
  ASSERT_EQ(prompt.size(), 57u);
  EXPECT_EQ(logits.size(), 57u * 320u);
  EXPECT_EQ(file->tensors().at("logits").shape, (std::vector<int64_t>{57, 320}));
  for (const int32_t id : prompt) EXPECT_TRUE(id >= 0 && id < 320);

  EXPECT_EQ(file->Read<float>("logitz").status().code(), StatusCode::kNotFound);
  const Status wrong_type = file->Read<int64_t>("prompt").status();
  EXPECT_EQ(wrong_type.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong_type.message(), HasSubstr("has element type I32, but I64 was asked for"));
}

TEST(SafetensorsTest, AcceptsEveryLegalHeader) {
  // A scalar, an empty tensor, unaligned data after a byte, metadata, trailing spaces.
  const Result<TensorMap> tensors =
      Parse(FileOf(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
      "b":{"dtype":"F32","shape":[],"data_offsets":[1,5]},"c":{"dtype":"BF16","shape":[0,7],"data_offsets":[5,5]}}   )",
                   5));
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  EXPECT_EQ(tensors->size(), 3u);
  EXPECT_EQ(tensors->at("b").data.size(), 4u);
}

TEST(SafetensorsTest, RefusesWhatIsWrongByName) {
  const auto one = [](const std::string& entry, size_t data_bytes = 8) { return FileOf(R"({"t":)" + entry + "}", data_bytes); };
  struct Case {
    std::string file, message;
  };
  const std::vector<Case> cases = {
      {"", "truncated: 0 bytes"},
      {Raw(uint64_t{2}) + "{", "the header takes 2 bytes, but only 1 follow"},
      {Raw(UINT64_MAX) + "{}", "header length 18446744073709551615"},
      {FileOf("{", 0), "not valid JSON: parse error at column 2"},
      {FileOf("[]", 0), "expected a JSON object, found array"},
      {FileOf("{\"a\xff\": 1}", 0), "not valid JSON"},
      {FileOf("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0), "nested deeper than 64"},
      {FileOf(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8),
       "key \"t\" appears twice"},
      {FileOf(R"({"t":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})", 8), "key \"dtype\" appears twice"},
      {one(R"(3)"), "must hold exactly dtype, shape and data_offsets"},
      {one(R"({"dtype":"F32","shape":[2]})"), "must hold exactly"},
      {one(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), "dtype must be a string"},
      {one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), "unknown dtype \"F33\""},
      {one(R"({"dtype":"Q4_0","shape":[2],"data_offsets":[0,8]})"), "unknown dtype \"Q4_0\""},
      {one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "shape must be an array"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "non-negative integers"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "non-negative integers"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"), "overflows"},
      {one(R"({"dtype":"U8","shape":[4611686018427387904,4611686018427387904,0],"data_offsets":[0,0]})"), "overflows"},
      {one(R"({"dtype":"U8","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]})"), "overflows"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"), "must be two non-negative integers"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "data_offsets [8, 0] do not lie in the 8 data bytes"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,9]})"), "data_offsets [0, 9] do not lie in the 8 data bytes"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "F32 [3] takes 12 bytes, but its data_offsets span 8"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 9), "end at data byte 8, but the file has 9"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "begins at data byte 4, but the tensor before it ends at 0"},
      {FileOf(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8),
       "tensor \"b\" begins at data byte 4, but the tensor before it ends at 6"},
  };
  for (const Case& c : cases) {
    const Result<TensorMap> tensors = Parse(c.file);
    ASSERT_FALSE(tensors.ok()) << c.message;
    EXPECT_THAT(tensors.status().message(), HasSubstr(c.message));
    EXPECT_THAT(tensors.status().message(), HasSubstr("f.safetensors: "));
    EXPECT_EQ(tensors.status().message().find('\n'), std::string::npos) << "one line";
  }
}

TEST(SafetensorsTest, WorkIsProportionalToTheHeader) {
  const auto empty_tensors = [](int count) {
    std::string header;
    for (int i = 0; i < count; ++i) {
      header += (i == 0 ? "{\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    }
    return FileOf(header + "}", 0);
  };
  const auto parse = [](const std::string& file) { EXPECT_TRUE(Parse(file).ok()); };
  EXPECT_LT(testing::WorkGrowth(1000, empty_tensors, parse), testing::kMaxProportionalGrowth);
}

TEST(SafetensorsTest, TruncatedAtEveryLengthIsAnError) {
  const std::string file = testing::ToSafetensors(testing::RandomModel(testing::TinyConfig(), 1));
  ASSERT_TRUE(Parse(file).ok());
  for (size_t size = 0; size < file.size(); size += size < 3000 ? 1 : 97) EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
}

TEST(SafetensorsTest, SurvivesRandomDamage) {
  const std::string file = testing::ToSafetensors(testing::RandomModel(testing::TinyConfig(), 1));
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), 8);
  std::mt19937_64 random(2);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = file;
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips)
      damaged[random() % (8 + header_bytes)] ^= static_cast<char>(1u << random() % 8);
    refused += !Parse(damaged).ok();
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace coppice
