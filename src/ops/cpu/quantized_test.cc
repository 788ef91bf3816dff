// Products with quantised weights on every instruction set of this machine: packed values against the formats' definitions, inputs
// as integers, sums in double precision, and the bits of a row beside others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/quantized_strip.h"

namespace coppice::ops {
namespace {

constexpr int64_t kColumns = kQuantStripCols;

// An element of a stored block as its format defines it: scale * code + minimum.
struct Element {
  double scale, minimum;
  int32_t code;
};

double Half(const uint8_t* p) {
  F16 half;
  std::memcpy(&half, p, sizeof(half));
  return half.ToFloat();
}

// Written from the formats' description and not from the code under test.
Element ElementOf(BlockFormat format, const uint8_t* block, int32_t i) {
  const auto nibble = [&](int32_t first) { return i < 16 ? block[first + i] & 15 : block[first + i - 16] >> 4; };
  const auto fifth = [&](int32_t first) { return (block[first + i / 8] >> (i % 8) & 1) << 4; };
  const int32_t sub = i / 32;
  switch (format) {
    case BlockFormat::kQ4_0: return {Half(block), 0, nibble(2) - 8};
    case BlockFormat::kQ4_1: return {Half(block), Half(block + 2), nibble(4)};
    case BlockFormat::kQ5_0: return {Half(block), 0, (nibble(6) | fifth(2)) - 16};
    case BlockFormat::kQ5_1: return {Half(block), Half(block + 2), nibble(8) | fifth(4)};
    case BlockFormat::kQ8_0: return {Half(block), 0, static_cast<int8_t>(block[2 + i])};
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K: {
      const uint8_t* s = block + 4;
      const int32_t scale = sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | (s[sub - 4] >> 6 << 4);
      const int32_t minimum = sub < 4 ? s[sub + 4] & 63 : s[sub + 4] >> 4 | (s[sub] >> 6 << 4);
      const bool has_fifth = format == BlockFormat::kQ5_K;
      const uint8_t packed = block[(has_fifth ? 48 : 16) + i / 64 * 32 + i % 32];
      const int32_t high = has_fifth ? (block[16 + i % 32] >> sub & 1) << 4 : 0;
      return {Half(block) * scale, -Half(block + 2) * minimum, (sub % 2 == 0 ? packed & 15 : packed >> 4) | high};
    }
    case BlockFormat::kQ6_K: {
      const int32_t half = i / 128, quarter = i % 128 / 32, j = i % 32;
      const int32_t low = block[half * 64 + quarter % 2 * 32 + j] >> (quarter / 2 * 4) & 15;
      const int32_t high = block[128 + half * 32 + j] >> (2 * quarter) & 3;
      return {Half(block + 208) * static_cast<int8_t>(block[192 + i / 16]), 0, (low | high << 4) - 32};
    }
  }
  return {};
}

std::vector<int64_t> HalfOffsets(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_1:
    case BlockFormat::kQ5_1:
    case BlockFormat::kQ4_K:
    case BlockFormat::kQ5_K: return {0, 2};
    case BlockFormat::kQ6_K: return {208};
    default: return {0};
  }
}

// A strip and what its elements stand for. Blocks take turns in being random, of the lowest and of the highest codes; scales in
// being ordinary, negative, zero, the least subnormal and large.
struct Strip {
  BlockFormat format;
  int64_t k;
  std::vector<std::byte> packed;
  std::vector<Element> elements;  // [column][k]

  Strip(BlockFormat format, int64_t k, uint32_t seed) : format(format), k(k), packed(Layout(format).StripBytes(k)) {
    std::mt19937 random(seed);
    const BlockFormatTraits& traits = Traits(format);
    int turn = 0;
    for (int64_t column = 0; column < kColumns; ++column) {
      std::vector<uint8_t> row(k / traits.elements * traits.bytes);
      for (uint8_t* block = row.data(); block != row.data() + row.size(); block += traits.bytes, ++turn) {
        for (int64_t i = 0; i < traits.bytes; ++i) {
          block[i] = static_cast<uint8_t>(turn % 5 == 1 ? 0 : turn % 5 == 2 ? 255 : random());
        }
        for (const int64_t offset : HalfOffsets(format)) {
          const float ordinary = static_cast<float>(random() % 1000 + 1) * 1e-4f;
          F16 half = F16::FromFloat(turn % 7 == 3 ? -ordinary : turn % 7 == 5 ? 0.0f : turn % 31 == 6 ? 900.0f : ordinary);
          if (turn % 11 == 4) half.bits = 1;
          std::memcpy(block + offset, &half, sizeof(half));
        }
        for (int32_t i = 0; i < traits.elements; ++i) elements.push_back(ElementOf(format, block, i));
      }
      PackColumn(format, reinterpret_cast<const std::byte*>(row.data()), k, column, packed.data());
    }
  }
  const Element& At(int64_t column, int64_t i) const { return elements[column * k + i]; }
};

// Rows of inputs and their integers.
struct Input {
  int64_t rows, k;
  std::vector<float> x;
  std::vector<int16_t> wide;
  std::vector<int8_t> narrow;
  std::vector<float> scales, middles, sums;
  std::vector<int32_t> negated, negated_halves;

  Input(int64_t rows, int64_t k)
      : rows(rows),
        k(k),
        x(rows * k),
        wide(rows * k),
        narrow(rows * k),
        scales(rows * k / 32),
        middles(scales.size()),
        sums(scales.size()),
        negated(scales.size()),
        negated_halves(2 * scales.size()) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t block = i / 32 % 7;
      x[i] = block == 3 ? 0.0f : block == 4 ? 3.0f : block == 5 ? 1e-38f * normal(random) : normal(random);
      if (block == 1 && i % 32 == 9) x[i] = -40.0f;
    }
  }
  QuantizedInput View() {
    return {wide.data(), narrow.data(), scales.data(), middles.data(), sums.data(), negated.data(), negated_halves.data()};
  }
  void Quantize(const QuantizedKernels& kernels, InputPrecision precision) {
    for (int64_t r = 0; r < rows; ++r) {
      (precision == InputPrecision::kWide ? kernels.quantize_wide : kernels.quantize_narrow)(&x[r * k], DType::kF32, k,
                                                                                             View().FromRow(r, k));
    }
  }
  // The value that the integers stand for.
  double Quantized(InputPrecision precision, int64_t row, int64_t i) const {
    constexpr int64_t kPlace[] = {0, 2, 1, 3};
    const int64_t block = (row * k + i) / 32;
    if (precision == InputPrecision::kNarrow) return double{scales[block]} * narrow[row * k + i] + middles[block];
    return double{scales[block]} * wide[row * k + i / 4 * 4 + kPlace[i % 4]];
  }
};

std::vector<int64_t> Lengths(BlockFormat format) {
  return Traits(format).elements == 256 ? std::vector<int64_t>{256, 768} : std::vector<int64_t>{32, 96, 288, 576};
}

constexpr BlockFormat kFormats[] = {BlockFormat::kQ4_0, BlockFormat::kQ4_1, BlockFormat::kQ5_0, BlockFormat::kQ5_1,
                                    BlockFormat::kQ8_0, BlockFormat::kQ4_K, BlockFormat::kQ5_K, BlockFormat::kQ6_K};

std::string Where(const Kernels& kernels, BlockFormat format, InputPrecision precision, int64_t k, int64_t rows) {
  return std::string(kernels.isa) + " " + std::string(Traits(format).name) +
         (precision == InputPrecision::kWide ? " wide" : " narrow") + " k " + std::to_string(k) + " rows " + std::to_string(rows);
}

// Calls body(kernels, format, precision, multiply) for every product there is.
template <class Body>
void ForEachProduct(Body body) {
  for (const Kernels* kernels : SupportedKernels()) {
    for (const BlockFormat format : kFormats) {
      for (const InputPrecision precision : {InputPrecision::kWide, InputPrecision::kNarrow}) {
        const auto& table = precision == InputPrecision::kWide ? kernels->quantized->wide : kernels->quantized->narrow;
        const QuantizedKernels::Multiply multiply = table[static_cast<size_t>(format)];
        if (multiply != nullptr) body(*kernels, format, precision, multiply);
      }
    }
  }
}

TEST(QuantizedStrip, UnpacksTheValuesOfTheFormats) {
  for (const BlockFormat format : kFormats) {
    for (const int64_t k : Lengths(format)) {
      const Strip strip(format, k, 1);
      std::vector<float> values(k);
      for (int64_t column = 0; column < kColumns; ++column) {
        UnpackColumn(format, strip.packed.data(), k, column, values.data());
        for (int64_t i = 0; i < k; ++i) {
          const Element& e = strip.At(column, i);
          const float product = static_cast<float>(e.scale * e.code);  // one rounding, then another
          ASSERT_EQ(values[i], static_cast<float>(double{product} + e.minimum))
              << Traits(format).name << " k " << k << " column " << column << " input " << i;
        }
      }
    }
  }
}

TEST(QuantizedProducts, InputsAreWithinHalfAStep) {
  for (const Kernels* kernels : SupportedKernels()) {
    for (const InputPrecision precision : {InputPrecision::kWide, InputPrecision::kNarrow}) {
      Input input(5, 576);
      input.Quantize(*kernels->quantized, precision);
      for (int64_t b = 0; b < input.rows * input.k / 32; ++b) {
        const auto [low, high] = std::minmax_element(&input.x[b * 32], &input.x[b * 32] + 32);
        const double step = precision == InputPrecision::kWide ? std::max(-*low, *high) / 32767.0 : (double{*high} - *low) / 254;
        double sum = 0;
        int32_t codes = 0;
        for (int64_t i = b * 32; i < b * 32 + 32; ++i) {
          const double quantized = input.Quantized(precision, i / input.k, i % input.k);
          EXPECT_NEAR(quantized, input.x[i], step * 0.5001 + std::abs(input.x[i]) * 0x1p-22 + 1e-33) << kernels->isa << " at " << i;
          sum += quantized;
          codes += precision == InputPrecision::kWide ? input.wide[i] : input.narrow[i];
        }
        EXPECT_NEAR(input.sums[b], sum, 32 * 0x1p-22 * std::max(-*low, *high));
        EXPECT_EQ(input.negated[b], -codes);
        EXPECT_EQ(input.negated_halves[2 * b] + input.negated_halves[2 * b + 1], -codes);
      }
    }
  }
}

TEST(QuantizedProducts, BF16InputsAreThoseOfTheSameFloats) {
  for (const Kernels* kernels : SupportedKernels()) {
    Input floats(1, 96);
    std::vector<BF16> rounded;
    for (float& x : floats.x) x = rounded.emplace_back(BF16::FromFloat(x)).ToFloat();
    Input halves = floats;
    floats.Quantize(*kernels->quantized, InputPrecision::kWide);
    kernels->quantized->quantize_wide(rounded.data(), DType::kBF16, 96, halves.View());
    EXPECT_EQ(halves.wide, floats.wide);
    EXPECT_EQ(halves.scales, floats.scales);
  }
}

TEST(QuantizedProducts, MatchDoublePrecision) {
  constexpr int64_t kRows = 19;
  ForEachProduct([](const Kernels& kernels, BlockFormat format, InputPrecision precision, QuantizedKernels::Multiply multiply) {
    for (const int64_t k : Lengths(format)) {
      const Strip strip(format, k, 2);
      Input input(kRows, k);
      input.Quantize(*kernels.quantized, precision);
      std::vector<double> expected, tolerance;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t column = 0; column < kColumns; ++column) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < k; ++i) {
            const Element& e = strip.At(column, i);
            const float* block = &input.x[(r * k + i) / 32 * 32];
            const double largest =
                std::abs(*std::max_element(block, block + 32, [](float a, float b) { return std::abs(a) < std::abs(b); }));
            sum += (e.scale * e.code + e.minimum) * input.Quantized(precision, r, i);
            magnitude += (std::abs(e.scale * e.code) + std::abs(e.minimum)) * largest;
          }
          expected.push_back(sum);
          // Integer sums are exact; a block takes at most three products and three sums in fp32, each rounded by half an ulp.
          tolerance.push_back(magnitude * 0x1p-24 * static_cast<double>(8 + 6 * k / 32) + 1e-30);
        }
      }
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 19}) {
        constexpr int64_t kStride = kColumns + 8;
        std::vector<float> tile(rows * kStride, -77.0f);
        multiply(input.View(), rows, strip.packed.data(), 0, k, tile.data(), kStride);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t column = 0; column < kColumns; ++column) {
            ASSERT_NEAR(tile[r * kStride + column], expected[r * kColumns + column], tolerance[r * kColumns + column])
                << Where(kernels, format, precision, k, rows) << " at " << r << ", " << column;
          }
          for (int64_t column = kColumns; column < kStride; ++column) ASSERT_EQ(tile[r * kStride + column], -77.0f);
        }
      }
    }
  });
}

TEST(QuantizedProducts, RowsAreBitEqualBesideAnyOthers) {
  constexpr int64_t kRows = 70, kLength = 256;
  ForEachProduct([](const Kernels& kernels, BlockFormat format, InputPrecision precision, QuantizedKernels::Multiply multiply) {
    const Strip strip(format, kLength, 3);
    Input input(kRows, kLength);
    input.Quantize(*kernels.quantized, precision);
    std::vector<float> alone(kRows * kColumns), together(kRows * kColumns);
    for (int64_t r = 0; r < kRows; ++r) {
      multiply(input.View().FromRow(r, kLength), 1, strip.packed.data(), 0, kLength, &alone[r * kColumns], kColumns);
    }
    for (int64_t rows = 1; rows <= kRows; ++rows) {
      multiply(input.View(), rows, strip.packed.data(), 0, kLength, together.data(), kColumns);
      ASSERT_EQ(std::memcmp(together.data(), alone.data(), rows * kColumns * sizeof(float)), 0)
          << Where(kernels, format, precision, kLength, rows);
    }
  });
}

TEST(QuantizedProducts, WhatIsNoNumberStaysNoneInItsRowAlone) {
  ForEachProduct([](const Kernels& kernels, BlockFormat format, InputPrecision precision, QuantizedKernels::Multiply multiply) {
    const Strip strip(format, 256, 4);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Input input(3, 256);
      input.x[256 + 70] = bad;
      input.Quantize(*kernels.quantized, precision);
      std::vector<float> tile(3 * kColumns);
      multiply(input.View(), 3, strip.packed.data(), 0, 256, tile.data(), kColumns);
      for (int64_t i = 0; i < 3 * kColumns; ++i) {
        EXPECT_EQ(std::isnan(tile[i]), i / kColumns == 1) << Where(kernels, format, precision, 256, 3) << " at " << i;
      }
    }
  });
}

}  // namespace
}  // namespace coppice::ops
