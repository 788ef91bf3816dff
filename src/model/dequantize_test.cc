// Every stored type against values that the format's own Python package computed (tests/data/dequantize/make_golden.py).
#include "model/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace coppice {
namespace {

struct Golden {
  StoredType type;
  std::vector<uint8_t> stored;
  std::vector<float> values;
};

class DequantizeTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const Result<SafetensorsFile> file = SafetensorsFile::Open(COPPICE_TEST_DATA "/dequantize/golden.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    golden_ = {StoredTypeFromName(name).value(), file->Read<uint8_t>(name + ".stored").value(),
               file->Read<float>(name + ".values").value()};
    ASSERT_EQ(static_cast<int64_t>(golden_.stored.size()), StoredBytes(golden_.type, static_cast<int64_t>(golden_.values.size())));
    ASSERT_GE(golden_.values.size(), 1024u);
  }

  int64_t count() const { return static_cast<int64_t>(golden_.values.size()); }

  Golden golden_;
};

void ExpectSameBits(float actual, float expected, size_t i) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << "element " << i;
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected))
        << "element " << i << ": " << actual << " " << expected;
  }
}

TEST_P(DequantizeTest, EqualsGoldenBitForBit) {
  // One byte into an allocation: files promise no alignment. Exactly sized, so that a sanitizer sees any read past the end.
  std::vector<std::byte> unaligned(golden_.stored.size() + 1);
  std::memcpy(unaligned.data() + 1, golden_.stored.data(), golden_.stored.size());
  std::vector<float> actual(golden_.values.size());
  Dequantize(golden_.type, unaligned.data() + 1, count(), actual.data());
  for (size_t i = 0; i < actual.size(); ++i) ExpectSameBits(actual[i], golden_.values[i], i);
}

TEST_P(DequantizeTest, ConvertRowRoundsToEachType) {
  // Three times the data: rows longer than the conversion's chunk, which they do not fill evenly.
  std::vector<uint8_t> stored;
  std::vector<float> values;
  for (int i = 0; i < 3; ++i) {
    stored.insert(stored.end(), golden_.stored.begin(), golden_.stored.end());
    values.insert(values.end(), golden_.values.begin(), golden_.values.end());
  }
  const int64_t n = static_cast<int64_t>(values.size());
  const std::byte* from = reinterpret_cast<const std::byte*>(stored.data());
  std::vector<float> f32(values.size());
  std::vector<BF16> bf16(values.size());
  std::vector<F16> f16(values.size());
  ConvertRow(golden_.type, from, n, DType::kF32, std::as_writable_bytes(std::span(f32)).data());
  ConvertRow(golden_.type, from, n, DType::kBF16, std::as_writable_bytes(std::span(bf16)).data());
  ConvertRow(golden_.type, from, n, DType::kF16, std::as_writable_bytes(std::span(f16)).data());
  for (size_t i = 0; i < values.size(); ++i) {
    ExpectSameBits(f32[i], values[i], i);
    ExpectSameBits(bf16[i].ToFloat(), BF16::FromFloat(values[i]).ToFloat(), i);
    ExpectSameBits(f16[i].ToFloat(), F16::FromFloat(values[i]).ToFloat(), i);
  }
}

TEST_P(DequantizeTest, CodesGiveTheSameValues) {
  if (CodeBits(golden_.type) == 0) GTEST_SKIP() << "not one scale and one minimum per 32 elements";
  std::vector<int8_t> codes(golden_.values.size());
  std::vector<F16> scales(codes.size() / 32), minima(scales.size());
  const auto* stored = reinterpret_cast<const std::byte*>(golden_.stored.data());
  const bool in_range = DecodeCodes(golden_.type, stored, count(), codes.data(), scales.data(), minima.data());
  const int low = CodeBits(golden_.type) == 4 ? 0 : -128, high = CodeBits(golden_.type) == 4 ? 15 : 127;
  size_t compared = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    ASSERT_TRUE(codes[i] >= low && codes[i] <= high) << "element " << i << ": " << int{codes[i]};
    const float scale = scales[i / 32].ToFloat(), minimum = minima[i / 32].ToFloat();
    if (std::isinf(minimum) && std::isfinite(golden_.values[i])) {
      EXPECT_FALSE(in_range) << "element " << i;
      continue;
    }
    const float value = scale * codes[i] + minimum;
    ++compared;
    if (!std::isnan(golden_.values[i])) {
      EXPECT_EQ(value, golden_.values[i]) << "element " << i;
    }
  }
  EXPECT_GE(compared, codes.size() / 2);
}

INSTANTIATE_TEST_SUITE_P(StoredTypes, DequantizeTest,
                         ::testing::Values("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"),
                         [](const auto& info) { return std::string(info.param); });

TEST(StoredTypeTest, NamesAndSizes) {
  EXPECT_EQ(StoredTypeFromName("Q6_K"), StoredType::kQ6_K);
  EXPECT_EQ(StoredTypeFromName("q6_k"), std::nullopt);
  EXPECT_EQ(StoredBytes(StoredType::kQ4_1, 576), 576 / 32 * 20);
  EXPECT_EQ(StoredBytes(StoredType::kBF16, 7), 14);
}

}  // namespace
}  // namespace coppice
