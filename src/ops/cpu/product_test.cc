// Matrix products against a double-precision reference, on every instruction set of this machine, with and without oneDNN; and the
// deterministic mode's promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/math.h"
#include "core/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantized_strip.h"
#include "ops/cpu/testing/host_tensor.h"

namespace coppice::ops {
namespace {

// Values of either dtype, with the floats they stand for.
struct Values {
  DType dtype;
  std::vector<float> f32;
  std::vector<BF16> bf16;

  Values(DType dtype, size_t n, uint32_t seed, float scale) : dtype(dtype), f32(n), bf16(dtype == DType::kBF16 ? n : 0) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (size_t i = 0; i < n; ++i) {
      f32[i] = uniform(random);
      if (dtype == DType::kBF16) {
        bf16[i] = BF16::FromFloat(f32[i]);
        f32[i] = bf16[i].ToFloat();
      }
    }
  }
  void* data() { return dtype == DType::kBF16 ? static_cast<void*>(bf16.data()) : f32.data(); }
  DeviceTensor Matrix(int64_t rows, int64_t cols) { return {data(), dtype, rows, cols, cols}; }
};

struct Shape {
  int64_t k;
  std::vector<int64_t> parts;  // rows of each weight
  bool bias;
};

class ProductTest : public testing::TestWithParam<std::tuple<const Kernels*, ProductLibrary, DType>> {
 protected:
  ThreadPool pool_{3};
  std::unique_ptr<Device> device_ = Device::CreateCpu(&pool_);
  std::unique_ptr<Ops> ops_ = MakeCpuOps(device_.get(), {}, *std::get<0>(GetParam()), std::get<1>(GetParam()));
  DType dtype_ = std::get<2>(GetParam());
};

TEST_P(ProductTest, MatchesDoublePrecision) {
  const std::vector<Shape> shapes = {{96, {96, 32, 32}, false}, {144, {576, 192, 192}, true}, {256, {96}, true},
                                     {576, {64}, false},        {1536, {70}, false},          {2, {1}, true}};
  for (const Shape& shape : shapes) {
    int64_t outputs = 0;
    for (int64_t rows : shape.parts) outputs += rows;
    Values weight(dtype_, outputs * shape.k, 1, 1.0f);
    Values bias(DType::kF32, outputs, 2, 4.0f);
    std::vector<LinearPart> parts;
    for (int64_t first = 0; int64_t rows : shape.parts) {
      parts.push_back({static_cast<std::byte*>(weight.data()) + first * shape.k * SizeOf(dtype_), rows,
                       shape.bias ? &bias.f32[first] : nullptr});
      first += rows;
    }
    auto packed = ops_->Pack(dtype_, shape.k, parts);
    ASSERT_TRUE(packed.ok()) << packed.status().ToString();
    EXPECT_EQ((*packed)->out_features(), outputs);
    constexpr int64_t kMaxRows = 130;
    const Values all(dtype_, kMaxRows * shape.k, 3, 1.0f);
    std::vector<double> expected(kMaxRows * outputs), tolerance(expected.size());
    for (int64_t r = 0; r < kMaxRows; ++r) {
      for (int64_t c = 0; c < outputs; ++c) {
        double sum = shape.bias ? bias.f32[c] : 0.0, magnitude = std::abs(sum) + 3;
        for (int64_t i = 0; i < shape.k; ++i) {
          const double term = double{all.f32[r * shape.k + i]} * weight.f32[c * shape.k + i];
          sum += term;
          magnitude += std::abs(term);
        }
        expected[r * outputs + c] = sum;
        // Any order of fp32 sums of exact products errs by less than (k + 2) half-ulps of the sum of magnitudes; with signs at
        // random it errs by the root of that.
        tolerance[r * outputs + c] = magnitude * 0x1p-24 * (4 + 2 * std::sqrt(static_cast<double>(shape.k)));
      }
    }
    for (int64_t rows : {1, 2, 5, 6, 7, 16, 17, 63, 64, 65, 130}) {
      Values x = all;
      x.f32.resize(RoundUp(rows, kRowPadding) * shape.k);
      if (dtype_ == DType::kBF16) x.bf16.resize(x.f32.size());
      for (size_t i = rows * shape.k; i < x.f32.size(); ++i) {  // surplus rows may hold anything
        if (dtype_ == DType::kBF16) x.bf16[i].bits = 0x7fc0;
        x.f32[i] = NAN;
      }
      std::vector<float> y(rows * outputs, NAN), sum(rows * outputs, 3.0f);
      ASSERT_TRUE(ops_->Linear(x.Matrix(rows, shape.k), **packed, HostTensor(y, rows, outputs), {}, nullptr).ok());
      ASSERT_TRUE(
          ops_->Linear(x.Matrix(rows, shape.k), **packed, HostTensor(sum, rows, outputs), {.kind = Epilogue::Kind::kAdd}, nullptr)
              .ok());
      for (int64_t i = 0; i < rows * outputs; ++i) {
        ASSERT_NEAR(y[i], expected[i], tolerance[i])
            << "rows " << rows << " k " << shape.k << " at " << i / outputs << ", " << i % outputs;
        ASSERT_NEAR(sum[i], expected[i] + 3, tolerance[i]) << "rows " << rows << " at " << i / outputs << ", " << i % outputs;
      }
    }
  }
}

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGeluTanh: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGelu: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
  }
  return x;
}
constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu};

TEST_P(ProductTest, ActivatedAndGatedOutputs) {
  const int64_t k = 96, outputs = 200;
  Values gate(dtype_, outputs * k, 1, 1.0f), up(dtype_, outputs * k, 2, 1.0f);
  Values gate_bias(DType::kF32, outputs, 3, 1.0f), up_bias(DType::kF32, outputs, 4, 1.0f);
  const std::vector<LinearPart> parts = {{gate.data(), outputs, gate_bias.f32.data()}, {up.data(), outputs, up_bias.f32.data()}};
  auto pair = ops_->Pack(dtype_, k, parts, PartOrder::kGateUp);
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  auto single = ops_->Pack(dtype_, k, std::span(parts).first(1));
  ASSERT_TRUE(single.ok()) << single.status().ToString();
  const auto read = [&](const Values& y, int64_t i) { return dtype_ == DType::kBF16 ? y.bf16[i].ToFloat() : y.f32[i]; };
  for (int64_t rows : {1, 20, 70}) {
    Values x(dtype_, RoundUp(rows, kRowPadding) * k, 5, 1.0f);
    for (const Activation activation : kActivations) {
      Values y(dtype_, rows * outputs, 6, 1.0f), activated(dtype_, rows * outputs, 6, 1.0f);
      const auto run = [&](const Weight& weight, Epilogue::Kind kind, Values& out) {
        return ops_->Linear(x.Matrix(rows, k), weight, out.Matrix(rows, outputs), {kind, activation}, nullptr).ok();
      };
      ASSERT_TRUE(run(**pair, Epilogue::Kind::kGated, y));
      ASSERT_TRUE(run(**single, Epilogue::Kind::kActivate, activated));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < outputs; ++c) {
          double g = gate_bias.f32[c], u = up_bias.f32[c];
          for (int64_t i = 0; i < k; ++i) {
            g += double{x.f32[r * k + i]} * gate.f32[c * k + i];
            u += double{x.f32[r * k + i]} * up.f32[c * k + i];
          }
          const double act = Activated(activation, g), rounding = dtype_ == DType::kBF16 ? 0x1.1p-8 : 0;
          // Each sum errs by at most 4e-5 (see above; magnitudes are below 50), which the other factor scales; then one rounding.
          const double tolerance = 4e-5 * (1 + std::abs(g) + std::abs(u));
          ASSERT_NEAR(read(y, r * outputs + c), act * u, tolerance + std::abs(act * u) * rounding) << r << ", " << c;
          ASSERT_NEAR(read(activated, r * outputs + c), act, 6e-5 + std::abs(act) * rounding) << r << ", " << c;
        }
      }
    }
  }
}

TEST_P(ProductTest, StridedInputIsAccepted) {
  const int64_t k = 64, outputs = 96, rows = 33, stride = 80;
  Values weight(dtype_, outputs * k, 1, 1.0f), x(dtype_, RoundUp(rows, kRowPadding) * stride, 2, 1.0f);
  auto packed = ops_->Pack(dtype_, k, std::vector<LinearPart>{{weight.data(), outputs}});
  ASSERT_TRUE(packed.ok());
  std::vector<float> y(rows * outputs);
  ASSERT_TRUE(ops_->Linear({x.data(), dtype_, rows, k, stride}, **packed, HostTensor(y, rows, outputs), {}, nullptr).ok());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < outputs; ++c) {
      double expected = 0;
      for (int64_t i = 0; i < k; ++i) expected += double{x.f32[r * stride + i]} * weight.f32[c * k + i];
      ASSERT_NEAR(y[r * outputs + c], expected, 1e-4) << r << ", " << c;
    }
  }
}

std::vector<std::tuple<const Kernels*, ProductLibrary, DType>> AllVariants() {
  std::vector<std::tuple<const Kernels*, ProductLibrary, DType>> all;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Kernels* kernels : SupportedKernels()) all.emplace_back(kernels, ProductLibrary::kPanels, dtype);
    all.emplace_back(SupportedKernels().front(), ProductLibrary::kOneDnn, dtype);
    all.emplace_back(SupportedKernels().front(), ProductLibrary::kAuto, dtype);
  }
  return all;
}

std::string VariantName(const testing::TestParamInfo<ProductTest::ParamType>& info) {
  const auto& [kernels, library, dtype] = info.param;
  static constexpr const char* kLibraries[] = {"auto", "panels", "onednn"};
  return std::string(Name(dtype)) + "_" + kernels->isa + "_" + kLibraries[static_cast<int>(library)];
}

INSTANTIATE_TEST_SUITE_P(AllKernels, ProductTest, testing::ValuesIn(AllVariants()), VariantName);

// Codes of either width, mixed widths, biases, gate and up; every row count on both sides of where coded products end.
TEST(CodedProducts, MatchDoublePrecision) {
  ThreadPool pool(2);
  const auto device = Device::CreateCpu(&pool);
  constexpr int64_t kInputs = 96, kRows = 18, kBlocks = kInputs / kCodeBlock;
  const std::vector<std::vector<std::pair<int64_t, int32_t>>> cases = {{{100, 4}}, {{70, 8}}, {{64, 4}, {32, 8}, {32, 4}}};
  for (const Kernels* kernels : SupportedKernels()) {
    auto ops = MakeCpuOps(device.get(), {}, *kernels, ProductLibrary::kAuto);
    for (const auto& parts_of_case : cases) {
      std::mt19937 random(7);
      std::vector<std::vector<int8_t>> codes;
      std::vector<std::vector<F16>> scales, minima;
      std::vector<std::vector<BF16>> rounded;
      std::vector<double> weights;  // exact
      std::vector<LinearPart> parts;
      for (const auto& [rows, bits] : parts_of_case) {
        auto& c = codes.emplace_back(rows * kInputs);
        auto& s = scales.emplace_back(rows * kBlocks);
        auto& m = minima.emplace_back(rows * kBlocks);
        auto& b = rounded.emplace_back(rows * kInputs);
        for (int8_t& code : c) code = static_cast<int8_t>(bits == 4 ? random() % 16 : random() % 256);
        for (F16& scale : s) scale = F16::FromFloat(static_cast<float>(random() % 100) * 1e-3f);
        for (F16& minimum : m) minimum = F16::FromFloat(static_cast<float>(random() % 200) * 1e-2f - 1);
        for (size_t i = 0; i < c.size(); ++i) {
          weights.push_back(double{s[i / kCodeBlock].ToFloat()} * c[i] + m[i / kCodeBlock].ToFloat());
          b[i] = BF16::FromFloat(static_cast<float>(weights.back()));
        }
      }
      for (size_t p = 0; p < parts_of_case.size(); ++p) {
        parts.push_back({.weight = rounded[p].data(),
                         .rows = parts_of_case[p].first,
                         .format = CodedFormat{parts_of_case[p].second},
                         .codes = {codes[p].data(), scales[p].data(), minima[p].data()}});
      }
      auto packed = ops->Pack(DType::kBF16, kInputs, parts);
      ASSERT_TRUE(packed.ok()) << packed.status().ToString();
      const int64_t outputs = (*packed)->out_features();
      Values x(DType::kBF16, RoundUp(kRows, kRowPadding) * kInputs, 3, 1.0f);
      std::vector<float> first_row;
      for (int64_t rows = 1; rows <= kRows; ++rows) {
        std::vector<float> y(rows * outputs);
        ASSERT_TRUE(ops->Linear(x.Matrix(rows, kInputs), **packed, HostTensor(y, rows, outputs), {}, nullptr).ok());
        const bool coded = ops->Accepts(ShapesOf(parts), DType::kBF16, kInputs).preferred &&
                           rows <= 8;  // where there are no matrix units, up to 16
        for (int64_t i = 0; i < rows * outputs; ++i) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < kInputs; ++k) {
            const double term = x.f32[i / outputs * kInputs + k] * weights[i % outputs * kInputs + k];
            sum += term;
            magnitude += std::abs(term) + std::abs(weights[i % outputs * kInputs + k]);  // inputs are at most 1
          }
          // Coded: the input is rounded to 2^-16 of its largest; else the weights are rounded to bf16.
          ASSERT_NEAR(y[i], sum, magnitude * (coded ? 0x1p-16 : 0x1p-9))
              << kernels->isa << " rows " << rows << " at " << i / outputs << ", " << i % outputs;
        }
        if (rows == 1) first_row = y;
        if (coded) {
          EXPECT_EQ(std::memcmp(first_row.data(), y.data(), outputs * sizeof(float)), 0) << "rows " << rows;
        }
      }
      // NaN stays NaN, in its own row alone.
      x.bf16[kInputs + 5].bits = 0x7fc0;
      std::vector<float> y(2 * outputs);
      ASSERT_TRUE(ops->Linear(x.Matrix(2, kInputs), **packed, HostTensor(y, 2, outputs), {}, nullptr).ok());
      EXPECT_EQ(std::memcmp(first_row.data(), y.data(), outputs * sizeof(float)), 0);
      for (int64_t c = 0; c < outputs; ++c) EXPECT_TRUE(std::isnan(y[outputs + c])) << c;
    }
  }
}

// Rows of random blocks of a format, and their values.
struct BlockRows {
  BlockRows(BlockFormat format, int64_t rows, int64_t inputs, std::mt19937& random) : format(format), rows(rows) {
    const int64_t row_bytes = inputs / Traits(format).elements * Traits(format).bytes;
    bytes.resize(rows * row_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    // Scales, wherever in a block: f16 numbers of moderate size.
    for (int64_t b = 0; b < std::ssize(bytes); b += Traits(format).bytes) {
      for (const int64_t at : {int64_t{0}, int64_t{2}, Traits(format).bytes - 2}) {
        const F16 scale = F16::FromFloat(static_cast<float>(random() % 64) * 1e-3f);
        std::memcpy(&bytes[b + at], &scale, sizeof(scale));
      }
    }
    values.resize(rows * inputs);
    std::vector<std::byte> strip(Layout(format).StripBytes(inputs));
    for (int64_t row = 0; row < rows; ++row) {
      std::ranges::fill(strip, std::byte{0});
      PackColumn(format, &bytes[row * row_bytes], inputs, 0, strip.data());
      UnpackColumn(format, strip.data(), inputs, 0, &values[row * inputs]);
    }
  }
  LinearPart Part(const float* bias = nullptr) const {
    return {.weight = bytes.data(), .rows = rows, .bias = bias, .format = BlocksFormat{format}};
  }

  BlockFormat format;
  int64_t rows;
  std::vector<std::byte> bytes;
  std::vector<float> values;  // [rows, inputs]
};

// Weights that stay in their file's blocks: formats mixed in one product, biases, gate and up, rows of the embedding, any number of
// rows, and the bits of a row beside others.
TEST(BlockProducts, MatchDoublePrecisionAndRowsKeepTheirBits) {
  ThreadPool pool(3);
  const auto device = Device::CreateCpu(&pool);
  constexpr int64_t kInputs = 256, kRows = 70;
  struct Case {
    std::vector<std::pair<BlockFormat, int64_t>> parts;
    PartOrder order;
    DType dtype = DType::kBF16;  // of the products' inputs
  };
  using enum BlockFormat;
  const std::vector<Case> cases = {{{{kQ4_1, 96}, {kQ8_0, 32}, {kQ6_K, 65}}, PartOrder::kConcatenated},
                                   {{{kQ4_0, 40}, {kQ4_0, 100}}, PartOrder::kConcatenated},
                                   {{{kQ5_K, 70}, {kQ4_K, 70}}, PartOrder::kGateUp},
                                   {{{kQ5_0, 64}, {kQ5_1, 1}}, PartOrder::kConcatenated},
                                   {{{kQ4_1, 96}, {kQ6_K, 65}}, PartOrder::kConcatenated, DType::kF32}};
  for (const Kernels* kernels : SupportedKernels()) {
    if (kernels->quantized == nullptr) continue;
    for (const Case& c : cases) {
      const DType dtype = c.dtype;
      std::mt19937 random(7);
      auto ops = MakeCpuOps(device.get(), {}, *kernels, ProductLibrary::kAuto);
      std::vector<BlockRows> stored;
      std::vector<float> biases(200);
      for (float& bias : biases) bias = static_cast<float>(random() % 100) * 0.01f;
      std::vector<LinearPart> parts;
      for (const auto& [format, rows] : c.parts) stored.emplace_back(format, rows, kInputs, random);
      for (const BlockRows& part : stored) parts.push_back(part.Part(biases.data()));
      const auto packed = ops->Pack(dtype, kInputs, parts, c.order);
      ASSERT_TRUE(packed.ok()) << packed.status().ToString();
      const FormatChoice choice = ops->Accepts(ShapesOf(parts), dtype, kInputs, c.order);
      EXPECT_TRUE(choice.taken) << kernels->isa;
      EXPECT_EQ(choice.preferred, dtype == DType::kBF16 && !kernels->multiplies_bf16) << kernels->isa;
      const bool gated = c.order == PartOrder::kGateUp;
      const int64_t outputs = (*packed)->out_features();
      Values x(dtype, kRows * kInputs, 3, 1.0f);
      // Of output `column`, of part `part` if gated: the sum, and how large its terms are.
      const auto exact = [&](int64_t row, int64_t column, size_t part) {
        if (!gated) {
          for (part = 0; column >= stored[part].rows; ++part) column -= stored[part].rows;
        }
        double sum = biases[column], magnitude = 1;
        for (int64_t k = 0; k < kInputs; ++k) {
          const double weight = stored[part].values[column * kInputs + k];
          sum += weight * x.f32[row * kInputs + k];
          magnitude += std::abs(weight);
        }
        return std::pair(sum, magnitude);
      };
      for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{65}, kRows}) {
        std::vector<float> y(rows * outputs);
        const Epilogue epilogue = {.kind = gated ? Epilogue::Kind::kGated : Epilogue::Kind::kStore};
        ASSERT_TRUE(ops->Linear(x.Matrix(rows, kInputs), **packed, HostTensor(y, rows, outputs), epilogue, nullptr).ok());
        for (int64_t i = 0; i < rows * outputs; ++i) {
          const int64_t row = i / outputs, column = i % outputs;
          auto [expected, magnitude] = exact(row, column, 0);
          if (gated) {
            const auto [up, up_magnitude] = exact(row, column, 1);
            magnitude = (1 + std::abs(up)) * magnitude + (1 + std::abs(expected)) * up_magnitude;
            expected = expected / (1 + std::exp(-expected)) * up;
          }
          ASSERT_NEAR(y[i], expected, magnitude * 0x1p-15) << kernels->isa << " rows " << rows << " at " << row << ", " << column;
        }
        if (rows == 1) continue;
        for (int64_t row = 0; row < rows; ++row) {
          std::vector<float> one(outputs);
          ConstDeviceTensor input = x.Matrix(rows, kInputs);
          input.data = static_cast<const std::byte*>(input.data) + row * kInputs * SizeOf(dtype);
          input.rows = 1;
          ASSERT_TRUE(ops->Linear(input, **packed, HostTensor(one, 1, outputs), epilogue, nullptr).ok());
          EXPECT_EQ(std::memcmp(one.data(), &y[row * outputs], outputs * sizeof(float)), 0) << kernels->isa << " row " << row;
        }
      }
      if (gated) continue;
      const std::vector<int32_t> ids = {0, static_cast<int32_t>(outputs) - 1, 33};
      std::vector<float> rows(ids.size() * kInputs);
      ASSERT_TRUE(ops->Embed({ids.data(), 3}, **packed, {.scale = 2}, HostTensor(rows, 3, kInputs), nullptr).ok());
      for (size_t i = 0; i < ids.size(); ++i) {
        int64_t row = ids[i];
        size_t part = 0;
        for (; row >= stored[part].rows; ++part) row -= stored[part].rows;
        for (int64_t k = 0; k < kInputs; ++k) EXPECT_EQ(rows[i * kInputs + k], 2 * stored[part].values[row * kInputs + k]);
      }
    }
  }
}

// Products that may round their input to 8 bits do so for many rows, within half a step of each block's range, and never in the
// deterministic mode.
TEST(BlockProducts, CoarseInputsAreWithinHalfAStepOfTheirBlocks) {
  ThreadPool pool(2);
  const auto device = Device::CreateCpu(&pool);
  constexpr int64_t kInputs = 256, kRows = 70, kOutputs = 96;
  std::mt19937 random(7);
  Values x(DType::kBF16, kRows * kInputs, 3, 1.0f);
  for (const BlockFormat format : {BlockFormat::kQ4_0, BlockFormat::kQ4_1, BlockFormat::kQ5_K, BlockFormat::kQ6_K}) {
    const BlockRows stored(format, kOutputs, kInputs, random);
    LinearPart part = stored.Part();
    for (const Kernels* kernels : SupportedKernels()) {
      const bool has_narrow = kernels->quantized->narrow[static_cast<size_t>(format)] != nullptr;
      const auto multiply = [&](bool deterministic, bool coarse, int64_t rows) {
        auto ops = MakeCpuOps(device.get(), {.deterministic = deterministic}, *kernels, ProductLibrary::kAuto);
        part.format = BlocksFormat{format, coarse};
        const auto packed = ops->Pack(DType::kBF16, kInputs, {&part, 1});
        EXPECT_TRUE(packed.ok()) << packed.status().ToString();
        std::vector<float> y(rows * kOutputs);
        EXPECT_TRUE(ops->Linear(x.Matrix(rows, kInputs), **packed, HostTensor(y, rows, kOutputs), {}, nullptr).ok());
        return y;
      };
      const std::vector<float> fine = multiply(false, false, kRows), coarse = multiply(false, true, kRows);
      EXPECT_EQ(multiply(true, true, kRows), fine) << kernels->isa;
      EXPECT_EQ(multiply(false, true, 1), multiply(false, false, 1)) << kernels->isa;
      EXPECT_EQ(coarse != fine, has_narrow) << kernels->isa << " " << Traits(format).name;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t column = 0; column < kOutputs; ++column) {
          double bound = 1e-4;
          for (int64_t b = 0; b < kInputs; b += 32) {
            const float* block = &x.f32[row * kInputs + b];
            const auto [low, high] = std::minmax_element(block, block + 32);
            const double half_step = 0.5 * (0.5 * *high - 0.5 * *low) / 127 * 1.001;
            for (int64_t i = b; i < b + 32; ++i) bound += half_step * std::abs(stored.values[column * kInputs + i]);
          }
          const int64_t at = row * kOutputs + column;
          ASSERT_NEAR(coarse[at], fine[at], bound) << kernels->isa << " " << Traits(format).name << " at " << row << ", " << column;
        }
      }
    }
  }
}

TEST(BlockProducts, WhatLiesInOneStripHasOneFormat) {
  ThreadPool pool(1);
  const auto device = Device::CreateCpu(&pool);
  std::mt19937 random(7);
  const BlockRows a(BlockFormat::kQ4_0, 40, 64, random), b(BlockFormat::kQ8_0, 40, 64, random);
  const std::vector<LinearPart> parts = {a.Part(), b.Part()};
  for (const Kernels* kernels : SupportedKernels()) {
    const auto ops = MakeCpuOps(device.get(), {}, *kernels, ProductLibrary::kAuto);
    EXPECT_FALSE(ops->Accepts(ShapesOf(parts), DType::kBF16, 64).taken);
    EXPECT_EQ(ops->Pack(DType::kBF16, 64, parts).status().code(), StatusCode::kInvalidArgument);
  }
}

// A row's bits do not depend on how many rows ride with it: rows 1..512 of three products, bit by bit, against each row alone.
TEST(DeterministicProducts, RowsAreBitEqualForEveryBatchSize) {
  ThreadPool pool(2);
  const auto device = Device::CreateCpu(&pool);
  struct Case {
    DType dtype;
    int64_t k, outputs;
    PartOrder order;
  };
  for (const Case& c : {Case{DType::kF32, 96, 100, PartOrder::kConcatenated}, Case{DType::kBF16, 96, 100, PartOrder::kConcatenated},
                        Case{DType::kBF16, 48, 70, PartOrder::kGateUp}, Case{DType::kF32, 48, 70, PartOrder::kGateUp}}) {
    for (const Kernels* kernels : SupportedKernels()) {
      auto ops = MakeCpuOps(device.get(), {.deterministic = true}, *kernels, ProductLibrary::kAuto);
      constexpr int64_t kRows = 512;
      Values weight(c.dtype, 2 * c.outputs * c.k, 1, 1.0f), x(c.dtype, kRows * c.k, 2, 1.0f);
      const std::vector<LinearPart> parts = {
          {weight.data(), c.outputs}, {static_cast<std::byte*>(weight.data()) + c.outputs * c.k * SizeOf(c.dtype), c.outputs}};
      auto packed = ops->Pack(c.dtype, c.k, parts, c.order);
      ASSERT_TRUE(packed.ok());
      const int64_t outputs = (*packed)->out_features();
      const auto multiply = [&](int64_t first, int64_t rows, std::vector<float>& y) {
        const ConstDeviceTensor input = {static_cast<std::byte*>(x.data()) + first * c.k * SizeOf(c.dtype), c.dtype, rows, c.k,
                                         c.k};
        const bool gated = c.order == PartOrder::kGateUp;
        const Epilogue epilogue = {.kind = gated ? Epilogue::Kind::kGated : Epilogue::Kind::kStore};
        ASSERT_TRUE(ops->Linear(input, **packed, HostTensor(y, rows, outputs), epilogue, nullptr).ok());
      };
      std::vector<float> alone(kRows * outputs), row(outputs), together(kRows * outputs);
      for (int64_t r = 0; r < kRows; ++r) {
        multiply(r, 1, row);
        std::memcpy(&alone[r * outputs], row.data(), outputs * sizeof(float));
      }
      for (int64_t rows = 1; rows <= kRows; ++rows) {
        multiply(0, rows, together);
        ASSERT_EQ(std::memcmp(together.data(), alone.data(), rows * outputs * sizeof(float)), 0)
            << kernels->isa << " " << Name(c.dtype) << " rows " << rows;
      }
    }
  }
}

// Each part of each order, with and without biases, elements and biases alone: the products of a replaced weight are those of one
// that was packed of the same parts, bit for bit.
TEST_P(ProductTest, ReplacedPartsGiveTheBitsOfPackedOnes) {
  struct Case {
    PartOrder order;
    std::vector<int64_t> rows;
  };
  constexpr int64_t kInputs = 96;
  for (const Case& c : {Case{PartOrder::kConcatenated, {96, 40, 24}}, Case{PartOrder::kGateUp, {70, 70}}}) {
    for (const bool has_bias : {false, true}) {
      std::vector<Values> old_values, new_values, old_bias, new_bias;
      for (size_t p = 0; p < c.rows.size(); ++p) {
        old_values.emplace_back(dtype_, c.rows[p] * kInputs, static_cast<int>(p), 1.0f);
        new_values.emplace_back(dtype_, c.rows[p] * kInputs, static_cast<int>(p) + 10, 1.0f);
        old_bias.emplace_back(DType::kF32, c.rows[p], static_cast<int>(p) + 20, 1.0f);
        new_bias.emplace_back(DType::kF32, c.rows[p], static_cast<int>(p) + 30, 1.0f);
      }
      const auto part = [&](size_t p, bool new_weight, bool bias_is_new) {
        const std::vector<Values>& bias = bias_is_new ? new_bias : old_bias;
        return LinearPart{(new_weight ? new_values : old_values)[p].data(), c.rows[p], has_bias ? bias[p].f32.data() : nullptr};
      };
      const auto product = [&](const Weight& weight) {
        constexpr int64_t kRows = 20;
        Values x(dtype_, RoundUp(kRows, kRowPadding) * kInputs, 5, 1.0f);
        std::vector<float> y(kRows * weight.out_features());
        const Epilogue epilogue = {.kind = c.order == PartOrder::kGateUp ? Epilogue::Kind::kGated : Epilogue::Kind::kStore};
        EXPECT_TRUE(
            ops_->Linear(x.Matrix(kRows, kInputs), weight, HostTensor(y, kRows, weight.out_features()), epilogue, nullptr).ok());
        return y;
      };
      std::vector<LinearPart> parts;
      for (size_t p = 0; p < c.rows.size(); ++p) parts.push_back(part(p, false, false));
      const auto weight = ops_->Pack(dtype_, kInputs, parts, c.order).value();
      for (size_t p = 0; p < c.rows.size(); ++p) {
        LinearPart elements = part(p, true, false), bias = part(p, false, true);
        elements.bias = nullptr;
        bias.weight = nullptr;
        ASSERT_TRUE(ops_->Repack(elements, p, weight.get()).ok());
        parts[p] = part(p, true, false);
        EXPECT_EQ(product(*weight), product(**ops_->Pack(dtype_, kInputs, parts, c.order))) << p;
        if (!has_bias) continue;
        ASSERT_TRUE(ops_->Repack(bias, p, weight.get()).ok());
        parts[p] = part(p, true, true);
        EXPECT_EQ(product(*weight), product(**ops_->Pack(dtype_, kInputs, parts, c.order))) << p;
      }
    }
  }
}

TEST(Repack, RefusesWhatDoesNotFitAndChangesNothing) {
  ThreadPool pool(1);
  const auto device = Device::CreateCpu(&pool);
  std::mt19937 random(7);
  const std::vector<float> values(32 * 8, 1.0f), other(32 * 8, 2.0f), bias(8, 3.0f);
  const auto ops = Ops::Create(device.get(), {}).value();
  const std::vector<LinearPart> parts = {{values.data(), 8}};
  const auto weight = ops->Pack(DType::kF32, 32, parts).value();
  EXPECT_EQ(ops->Repack({other.data(), 8}, 1, weight.get()).message(), "part 1 of a weight of 1 parts is to be replaced");
  EXPECT_EQ(ops->Repack({other.data(), 7}, 0, weight.get()).message(), "a part of 8 rows is to be replaced by one of 7");
  EXPECT_EQ(ops->Repack({other.data(), 8, bias.data()}, 0, weight.get()).message(), "a weight without a bias is to get one");
  EXPECT_EQ(ops->Repack({.weight = other.data(), .rows = 8, .format = CodedFormat{8}}, 0, weight.get()).code(),
            StatusCode::kInvalidArgument);
  const std::vector<float> x(kRowPadding * 32, 1.0f);
  std::vector<float> y(8);
  ASSERT_TRUE(ops->Linear({x.data(), DType::kF32, 1, 32, 32}, *weight, HostTensor(y, 1, 8), {}, nullptr).ok());
  EXPECT_EQ(y, std::vector<float>(8, 32.0f));
  const BlockRows stored(BlockFormat::kQ8_0, 8, 32, random);
  const LinearPart blocks = stored.Part();
  const auto quantised = ops->Pack(DType::kF32, 32, {&blocks, 1}).value();
  EXPECT_FALSE(quantised->is_dense());
  EXPECT_EQ(ops->Repack({other.data(), 8}, 0, quantised.get()).code(), StatusCode::kFailedPrecondition);
}

TEST(Pack, RefusesWhatCannotBeMultiplied) {
  ThreadPool pool(1);
  const auto device = Device::CreateCpu(&pool);
  auto ops = Ops::Create(device.get(), {});
  ASSERT_TRUE(ops.ok());
  std::vector<float> weight(64);
  const auto pack = [&](DType dtype, int64_t k, std::vector<LinearPart> parts, PartOrder order) {
    return (*ops)->Pack(dtype, k, parts, order).status();
  };
  EXPECT_EQ(pack(DType::kF16, 8, {{weight.data(), 8}}, PartOrder::kConcatenated).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(pack(DType::kBF16, 7, {{weight.data(), 8}}, PartOrder::kConcatenated).message(),
            "a weight has 7 input features; expected a positive multiple of 2 for bf16");
  EXPECT_EQ(pack(DType::kF32, 8, {}, PartOrder::kConcatenated).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pack(DType::kF32, 8, {{weight.data(), 4}, {weight.data(), 3}}, PartOrder::kGateUp).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Ops::Create(nullptr, {}).status().code(), StatusCode::kInvalidArgument);
  const auto no_executor = Device::CreateCpu(nullptr);
  EXPECT_EQ(Ops::Create(no_executor.get(), {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice::ops
