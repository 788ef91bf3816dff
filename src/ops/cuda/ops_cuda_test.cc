// Every operation on a CUDA device against the CPU's in fp32 over the same rounded inputs. Skips itself where there is no device.
// Layer: ops/cuda.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/math.h"
#include "core/thread_pool.h"
#include "ops/cuda/algorithm_file.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/gated_product.h"
#include "ops/cuda/library_product.h"
#include "ops/cuda/rope.h"
#include "ops/ops.h"

namespace coppice::ops {
namespace {

float Rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return BF16::FromFloat(value).ToFloat();
  return dtype == DType::kF16 ? F16::FromFloat(value).ToFloat() : value;
}
// Of one rounding to the dtype, relative.
float Epsilon(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8f : dtype == DType::kF16 ? 0x1p-11f : 0x1p-22f; }

void Encode(float value, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) std::memcpy(to, &value, 4);
  if (dtype == DType::kBF16) reinterpret_cast<BF16*>(to)->bits = BF16::FromFloat(value).bits;
  if (dtype == DType::kF16) reinterpret_cast<F16*>(to)->bits = F16::FromFloat(value).bits;
}
float Decode(const std::byte* from, DType dtype) {
  if (dtype == DType::kBF16) return reinterpret_cast<const BF16*>(from)->ToFloat();
  if (dtype == DType::kF16) return reinterpret_cast<const F16*>(from)->ToFloat();
  float value;
  std::memcpy(&value, from, 4);
  return value;
}

// A matrix on the host in fp32 and on the device in some dtype, rows padded and with a stride. Elements between and behind the
// rows are NaN, so that a kernel that reads them fails.
class Matrix {
 public:
  Matrix(Device* device, DType dtype, int64_t rows, int64_t cols, int64_t gap = 0)
      : device_(device), dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap), values(rows * cols) {
    bytes_.resize(RoundUp<int64_t>(std::max<int64_t>(rows, 1), kRowPadding) * stride_ * SizeOf(dtype));
    memory_ = device->Allocate(bytes_.size()).value();
    for (size_t i = 0; i < bytes_.size(); i += SizeOf(dtype)) Encode(std::numeric_limits<float>::quiet_NaN(), dtype, &bytes_[i]);
    Upload();
  }
  static Matrix Random(Device* device, DType dtype, int64_t rows, int64_t cols, std::mt19937& random, int64_t gap = 0) {
    Matrix matrix(device, dtype, rows, cols, gap);
    std::normal_distribution<float> normal;
    for (float& value : matrix.values) value = Rounded(normal(random), dtype);
    matrix.Store();
    return matrix;
  }
  void Store() {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) Encode(values[r * cols_ + c], dtype_, &bytes_[(r * stride_ + c) * SizeOf(dtype_)]);
    }
    Upload();
  }
  DeviceTensor view() const { return {memory_.data(), dtype_, rows_, cols_, stride_}; }
  template <class T>
  DeviceSpan<const T> span() const {
    return {memory_.As<T>(), rows_ * cols_};
  }
  // The rows on the device, once its work is done; fails if anything between the rows was written.
  std::vector<float> Fetch() {
    EXPECT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
    std::vector<std::byte> now(bytes_.size());
    EXPECT_TRUE(device_->Copy(now.data(), memory_.data(), now.size(), nullptr).ok());
    std::vector<float> result;
    int64_t written = -1;
    for (int64_t i = 0; i < static_cast<int64_t>(now.size() / SizeOf(dtype_)); ++i) {
      const float value = Decode(&now[i * SizeOf(dtype_)], dtype_);
      const bool is_inside = i / stride_ < rows_ && i % stride_ < cols_;
      if (is_inside) result.push_back(value);
      if (!is_inside && !std::isnan(value) && written < 0) written = i;
    }
    EXPECT_LT(written, 0) << "written outside the tensor, first in row " << written / stride_ << ", column " << written % stride_
                          << "; rows " << rows_ << ", columns " << cols_;
    return result;
  }

 private:
  void Upload() {
    EXPECT_TRUE(device_->Copy(memory_.data(), bytes_.data(), bytes_.size(), nullptr).ok());
    EXPECT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
  }
  Device* device_;
  DType dtype_;
  int64_t rows_, cols_, stride_;
  std::vector<std::byte> bytes_;
  DeviceMemory memory_;

 public:
  std::vector<float> values;
};

class OpsCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> device = Device::CreateCuda(0);
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = *std::move(device);
    ops_ = Create({.cache_folder = "/nonexistent"});
    exact_ = Ops::Create(cpu_.get(), {}).value();
  }
  std::unique_ptr<Ops> Create(const Ops::Options& options) { return Ops::Create(device_.get(), options).value(); }
  Matrix Random(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0) {
    return Matrix::Random(device_.get(), dtype, rows, cols, random_, gap);
  }
  Matrix Random(int64_t rows, int64_t cols) { return Random(DType::kF32, rows, cols); }
  template <class T>
  DeviceMemory Upload(const std::vector<T>& values) {
    DeviceMemory memory = device_->Allocate(values.size() * sizeof(T)).value();
    EXPECT_TRUE(device_->Copy(memory.data(), values.data(), values.size() * sizeof(T), nullptr).ok());
    EXPECT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
    return memory;
  }
  static DeviceTensor Host(std::vector<float>& values, int64_t rows, int64_t cols) {
    return {values.data(), DType::kF32, rows, cols, cols};
  }
  void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected, DType dtype, double scale,
                  const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (size_t i = 0; i < got.size(); ++i) {
      const double bound = 2 * Epsilon(dtype) * std::abs(expected[i]) + scale;
      const bool overflows = std::isinf(got[i]) && got[i] == Rounded(expected[i], dtype);  // F16's largest number is 65,504
      ASSERT_TRUE(overflows || std::abs(got[i] - expected[i]) <= bound)
          << what << ": element " << i << " is " << got[i] << ", expected " << expected[i] << " +- " << bound;
    }
  }

  ThreadPool pool_{4};
  std::unique_ptr<Device> cpu_ = Device::CreateCpu(&pool_);
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_, exact_;
  std::mt19937 random_{12};
};

// Of a sum of k products of normal numbers: tensor cores truncate, 16 products at a time, towards zero a sum that stays below four
// standard deviations.
double SumError(int64_t k) { return (static_cast<double>(k) / 16 + 8) * 0x1p-23 * 4 * std::sqrt(static_cast<double>(k)); }

struct ProductCase {
  int64_t rows, k;
  std::vector<int64_t> parts;
};

struct HostParts {
  std::vector<std::vector<float>> weights, biases;
  std::vector<std::vector<std::byte>> encoded;
  std::vector<LinearPart> exact, rounded;
};

HostParts MakeParts(const std::vector<int64_t>& rows, int64_t k, DType dtype, bool with_bias, std::mt19937& random) {
  std::normal_distribution<float> normal;
  HostParts parts;
  for (const int64_t n : rows) {
    std::vector<float>& weight = parts.weights.emplace_back(n * k);
    std::vector<std::byte>& bytes = parts.encoded.emplace_back(n * k * SizeOf(dtype));
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] = Rounded(normal(random), dtype);
      Encode(weight[i], dtype, &bytes[i * SizeOf(dtype)]);
    }
    std::vector<float>& bias = parts.biases.emplace_back(n);
    for (float& b : bias) b = normal(random);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* bias = with_bias ? parts.biases[i].data() : nullptr;
    parts.exact.push_back({.weight = parts.weights[i].data(), .rows = rows[i], .bias = bias});
    parts.rounded.push_back({.weight = parts.encoded[i].data(), .rows = rows[i], .bias = bias});
  }
  return parts;
}

// In the orders that weights are packed in, from host memory and from the device's own.
TEST_F(OpsCudaTest, ReplacedPartsGiveTheBitsOfPackedOnes) {
  struct Case {
    int64_t k;
    std::vector<int64_t> rows;
    PartOrder order = PartOrder::kConcatenated;
    std::optional<QkvHeads> heads = std::nullopt;
  };
  const QkvHeads grouped = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .rotary_dim = 64, .pairs = RopePairs::kHalves};
  const std::vector<Case> cases = {{100, {72, 24}},
                                   {64, {40, 40}, PartOrder::kGateUp},
                                   {64, {37, 37}, PartOrder::kGateUp},
                                   {128, {256, 128, 128}, PartOrder::kConcatenated, grouped}};
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const Case& c : cases) {
      for (const bool from_device : {false, true}) {
        const HostParts old_parts = MakeParts(c.rows, c.k, dtype, true, random_),
                        new_parts = MakeParts(c.rows, c.k, dtype, true, random_);
        const auto ops = Create({.cache_folder = "/nonexistent"});
        const auto pack = [&](std::span<const LinearPart> parts) {
          return c.heads ? ops->PackQkv(dtype, c.k, parts, *c.heads).value() : ops->Pack(dtype, c.k, parts, c.order).value();
        };
        const auto bytes = [&](const Weight& weight) {
          const auto& packed = static_cast<const cuda::CudaWeight&>(weight);
          std::vector<std::byte> all(static_cast<size_t>(packed.rows() * packed.stride()) * SizeOf(dtype) +
                                     packed.rows() * sizeof(float));
          const size_t elements = all.size() - packed.rows() * sizeof(float);
          EXPECT_TRUE(device_->Copy(all.data(), packed.data(), elements, nullptr).ok());
          EXPECT_TRUE(device_->Copy(all.data() + elements, packed.bias(), packed.rows() * sizeof(float), nullptr).ok());
          EXPECT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
          return all;
        };
        std::vector<LinearPart> parts = old_parts.rounded;
        const auto weight = pack(parts);
        for (size_t p = 0; p < parts.size(); ++p) {
          LinearPart with = new_parts.rounded[p];
          const size_t size = new_parts.encoded[p].size();
          DeviceMemory memory = device_->Allocate(size).value();
          if (from_device) {
            ASSERT_TRUE(device_->Copy(memory.data(), with.weight, size, nullptr).ok());
            ASSERT_TRUE(device_->Synchronize(Stream{nullptr}).ok());
            with.weight = memory.data();
          }
          ASSERT_TRUE(ops->Repack(with, p, weight.get()).ok());
          parts[p] = new_parts.rounded[p];
          EXPECT_EQ(bytes(*weight), bytes(*pack(parts))) << c.k << " part " << p << " from the device " << from_device;
        }
      }
    }
  }
}

TEST_F(OpsCudaTest, ProductsMatchTheCpu) {
  const std::vector<ProductCase> cases = {
      {1, 64, {64}},       {1, 4096, {256}}, {7, 576, {576, 192, 192}}, {8, 1536, {576}}, {9, 40, {72}},
      {16, 2048, {1000}},  {16, 264, {8}},   {3, 8192, {64}},           {17, 576, {100}}, {65, 2048, {130}},
      {300, 96, {64, 24}}, {5, 32, {20000}}, {2, 14336, {192}},         {12, 100, {36}},  {1, 36, {6}},
      {33, 52, {10}}};
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const ProductCase& c : cases) {
      for (const bool with_bias : {false, true}) {
        const HostParts parts = MakeParts(c.parts, c.k, dtype, with_bias, random_);
        const auto ops = Create({.cache_folder = "/nonexistent"});
        const auto weight = ops->Pack(dtype, c.k, parts.rounded).value();
        const auto exact = exact_->Pack(DType::kF32, c.k, parts.exact).value();
        // Every other case of few rows is the library's: our kernel does not take rows that are not aligned.
        Matrix x = Random(dtype, c.rows, c.k, with_bias ? c.rows % 2 * 8 : 4);
        std::vector<float> padded_x(RoundUp(c.rows, kRowPadding) * c.k);
        std::copy(x.values.begin(), x.values.end(), padded_x.begin());
        for (const auto kind : {Epilogue::Kind::kStore, Epilogue::Kind::kAdd, Epilogue::Kind::kActivate}) {
          for (const DType out : {DType::kF32, dtype}) {
            if (kind == Epilogue::Kind::kAdd && out != DType::kF32) continue;
            const Epilogue epilogue = {.kind = kind, .activation = Activation::kGeluTanh};
            const int64_t n = weight->out_features();
            Matrix y = Random(out, c.rows, n);
            std::vector<float> expected = y.values;
            const ConstDeviceTensor host_x = {padded_x.data(), DType::kF32, c.rows, c.k, c.k};
            ASSERT_TRUE(exact_->Linear(host_x, *exact, Host(expected, c.rows, n), epilogue, nullptr).ok());
            const Status status = ops->Linear(x.view(), *weight, y.view(), epilogue, nullptr);
            const std::string what = std::string(Name(dtype)) + " to " + std::string(Name(out)) + ", rows " +
                                     std::to_string(c.rows) + ", k " + std::to_string(c.k) + ", n " + std::to_string(n) +
                                     ", kind " + std::to_string(static_cast<int>(kind));
            ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
            // Terms of about 1, sums of about sqrt(k): fp32 sums in another order, which tensor cores truncate, and the rounding of
            // an intermediate to `out`.
            const double size = std::sqrt(static_cast<double>(c.k)) + 1;
            ExpectNear(y.Fetch(), expected, out, SumError(c.k) + size * (out == DType::kF32 ? 0 : 4 * Epsilon(out)), what);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(OpsCudaTest, GatedProductsMatchTheCpu) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [rows, k, n] :
         {std::array<int64_t, 3>{1, 576, 1536}, {5, 64, 37}, {16, 2048, 5632}, {20, 96, 8}, {2500, 64, 44}}) {
      const HostParts parts = MakeParts({n, n}, k, dtype, rows % 2 == 0, random_);
      const auto ops = Create({.cache_folder = "/nonexistent"});
      const auto weight = ops->Pack(dtype, k, parts.rounded, PartOrder::kGateUp).value();
      const auto exact = exact_->Pack(DType::kF32, k, parts.exact, PartOrder::kGateUp).value();
      Matrix x = Random(dtype, rows, k, rows % 5 == 0 ? 4 : 0);  // not aligned: the library's
      std::vector<float> padded_x(RoundUp(rows, kRowPadding) * k), expected(rows * n);
      std::copy(x.values.begin(), x.values.end(), padded_x.begin());
      const Epilogue epilogue = {.kind = Epilogue::Kind::kGated};
      Matrix y(device_.get(), dtype, rows, n);
      ASSERT_TRUE(
          exact_->Linear({padded_x.data(), DType::kF32, rows, k, k}, *exact, Host(expected, rows, n), epilogue, nullptr).ok());
      const Status status = ops->Linear(x.view(), *weight, y.view(), epilogue, nullptr);
      ASSERT_TRUE(status.ok()) << status.ToString();
      const double size = std::sqrt(static_cast<double>(k)) + 1;  // of gate and of up: errors of one times the other, up to 5 sigma
      ExpectNear(y.Fetch(), expected, dtype, 5 * size * (SumError(k) + size * Epsilon(dtype)),
                 std::string(Name(dtype)) + " gated, rows " + std::to_string(rows) + ", n " + std::to_string(n));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(OpsCudaTest, ProductsOfNormsMatchTheCpu) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [rows, k, n] : {std::array<int64_t, 3>{1, 4096, 100},
                                     {1, 576, 1536},
                                     {2, 2048, 64},
                                     {1, 100, 36},
                                     {8, 64, 48},
                                     {9, 64, 48},
                                     {3, 2048, 64},
                                     {1, 8192, 40}}) {
      for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
        const HostParts parts = MakeParts({n}, k, dtype, true, random_);
        const auto weight = ops_->Pack(dtype, k, parts.rounded).value();
        const auto exact = exact_->Pack(DType::kF32, k, parts.exact).value();
        Matrix x = Random(rows, k), norm_weight = Random(1, k), y = Random(rows, n), normed(device_.get(), dtype, rows, k);
        std::vector<float> host_normed(RoundUp(rows, kRowPadding) * k), expected = y.values;
        const Epilogue epilogue = {.kind = Epilogue::Kind::kAdd};
        const NormArgs norm = {.kind = kind, .weight = norm_weight.span<const float>()};
        const NormArgs host_norm = {.kind = kind, .weight = {norm_weight.values.data(), k}};
        ASSERT_TRUE(
            exact_->Norm({x.values.data(), DType::kF32, rows, k, k}, host_norm, Host(host_normed, rows, k), {}, nullptr).ok());
        for (float& value : host_normed) value = Rounded(value, dtype);
        const ConstDeviceTensor host_x = {host_normed.data(), DType::kF32, rows, k, k};
        ASSERT_TRUE(exact_->Linear(host_x, *exact, Host(expected, rows, n), epilogue, nullptr).ok());
        const Status status = ops_->NormLinear(x.view(), norm, normed.view(), *weight, y.view(), epilogue, nullptr);
        const std::string what = std::string(Name(dtype)) + ", rows " + std::to_string(rows) + ", k " + std::to_string(k);
        ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
        // A few inputs whose norm is a rounding off, of terms of about 1, up to three times that.
        const double size = std::sqrt(static_cast<double>(k)) + 1;
        ExpectNear(y.Fetch(), expected, DType::kF32, SumError(k) + size * Epsilon(dtype), what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Tiles that one cluster has from end to end, that two share, and that many share; whole waves alone, and before shared tiles; more
// rows than a group; fewer steps than clusters; every tile height; ends of all dimensions.
TEST_F(OpsCudaTest, OurGatedProductsMatchTheCpu) {
  const auto product = cuda::GatedProduct::Create(device_.get()).value();
  if (!product.IsAvailable()) GTEST_SKIP() << "needs compute capability 9.0, " << device_->name() << " has another";
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [rows, k, n] : {std::array<int64_t, 3>{17, 576, 104},
                                     {64, 1024, 768},
                                     {65, 104, 24},
                                     {100, 64, 10000},
                                     {200, 64, 8},
                                     {256, 1024, 9000},
                                     {130, 8192, 296},
                                     {513, 192, 10000},
                                     {256, 4096, 1496},
                                     {1, 64, 320},
                                     {700, 128, 3000},
                                     {2500, 72, 2056},
                                     {2100, 4096, 2040}}) {
      const HostParts parts = MakeParts({n, n}, k, dtype, false, random_);
      const auto weight = ops_->Pack(dtype, k, parts.rounded, PartOrder::kGateUp).value();
      const auto exact = exact_->Pack(DType::kF32, k, parts.exact, PartOrder::kGateUp).value();
      Matrix x = Random(dtype, rows, k, rows % 3 * 8), y(device_.get(), dtype, rows, n, rows % 2 * 8);
      std::vector<float> padded_x(RoundUp(rows, kRowPadding) * k), expected(rows * n);
      std::copy(x.values.begin(), x.values.end(), padded_x.begin());
      const Activation activation = rows % 2 == 0 ? Activation::kSilu : Activation::kGeluTanh;
      const Epilogue epilogue = {.kind = Epilogue::Kind::kGated, .activation = activation};
      ASSERT_TRUE(
          exact_->Linear({padded_x.data(), DType::kF32, rows, k, k}, *exact, Host(expected, rows, n), epilogue, nullptr).ok());
      const std::string what =
          std::string(Name(dtype)) + ", rows " + std::to_string(rows) + ", k " + std::to_string(k) + ", n " + std::to_string(n);
      const auto packed = cuda::WeightView::Of(static_cast<const cuda::CudaWeight&>(*weight));
      ASSERT_TRUE(product.Takes(x.view(), packed, y.view(), activation)) << what;
      const Status status = product.Run(x.view(), packed, y.view(), activation, nullptr);
      ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
      const double size = std::sqrt(static_cast<double>(k)) + 1;  // as in GatedProductsMatchTheCpu
      ExpectNear(y.Fetch(), expected, dtype, 5 * size * (SumError(k) + size * Epsilon(dtype)), what);
      if (HasFailure()) return;
    }
  }
}

// The copy engine writes whole 16 bytes of a row.
TEST_F(OpsCudaTest, OurGatedProductsTakeWhatTheCopyEngineCanStore) {
  const auto product = cuda::GatedProduct::Create(device_.get()).value();
  if (!product.IsAvailable()) GTEST_SKIP() << "needs compute capability 9.0, " << device_->name() << " has another";
  const auto takes = [&](int64_t n, bool with_bias, int64_t x_gap, int64_t y_gap, Activation activation) {
    const HostParts parts = MakeParts({n, n}, 64, DType::kBF16, with_bias, random_);
    const auto weight = ops_->Pack(DType::kBF16, 64, parts.rounded, PartOrder::kGateUp).value();
    const Matrix x = Random(DType::kBF16, 300, 64, x_gap), y(device_.get(), DType::kBF16, 300, n, y_gap);
    return product.Takes(x.view(), cuda::WeightView::Of(static_cast<const cuda::CudaWeight&>(*weight)), y.view(), activation);
  };
  EXPECT_TRUE(takes(64, false, 0, 0, Activation::kSilu));
  EXPECT_FALSE(takes(60, false, 0, 4, Activation::kSilu));
  EXPECT_FALSE(takes(64, true, 0, 0, Activation::kSilu));
  EXPECT_FALSE(takes(64, false, 4, 0, Activation::kSilu));
  EXPECT_FALSE(takes(64, false, 0, 4, Activation::kSilu));
  EXPECT_FALSE(takes(64, false, 0, 0, Activation::kGelu));
}

// Partial sums are added in the order of the inputs, not of arrival; and each launch leaves its flags as it found them.
TEST_F(OpsCudaTest, RepeatedGatedProductsHaveEqualBits) {
  const auto product = cuda::GatedProduct::Create(device_.get()).value();
  if (!product.IsAvailable()) GTEST_SKIP() << "needs compute capability 9.0, " << device_->name() << " has another";
  const HostParts parts = MakeParts({1496, 1496}, 4096, DType::kBF16, false, random_);
  const auto weight = ops_->Pack(DType::kBF16, 4096, parts.rounded, PartOrder::kGateUp).value();
  const auto packed = cuda::WeightView::Of(static_cast<const cuda::CudaWeight&>(*weight));
  std::vector<Matrix> inputs;
  std::vector<std::vector<float>> first;
  for (const int64_t rows : {256, 70, 300, 1700}) inputs.push_back(Random(DType::kBF16, rows, 4096));
  for (int i = 0; i < 300; ++i) {
    const size_t place = i % inputs.size();
    const int64_t rows = inputs[place].view().rows;
    Matrix y(device_.get(), DType::kBF16, rows, 1496);
    ASSERT_TRUE(product.Run(inputs[place].view(), packed, y.view(), Activation::kSilu, nullptr).ok());
    const std::vector<float> now = y.Fetch();
    if (first.size() == place) first.push_back(now);
    ASSERT_EQ(0, std::memcmp(now.data(), first[place].data(), now.size() * sizeof(float))) << "launch " << i << ", rows " << rows;
  }
}

TEST_F(OpsCudaTest, RepeatedProductsOfFewRowsHaveEqualBits) {
  const HostParts parts = MakeParts({3000}, 4096, DType::kBF16, false, random_);
  const auto ops = Create({.cache_folder = "/nonexistent"});
  const auto weight = ops->Pack(DType::kBF16, 4096, parts.rounded).value();
  Matrix x = Random(DType::kBF16, 13, 4096), y(device_.get(), DType::kF32, 13, 3000);
  std::vector<float> first;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(ops->Linear(x.view(), *weight, y.view(), {}, nullptr).ok());
    const std::vector<float> now = y.Fetch();
    if (first.empty()) first = now;
    ASSERT_EQ(0, std::memcmp(now.data(), first.data(), now.size() * sizeof(float))) << "launch " << i;
  }
}

TEST_F(OpsCudaTest, DeterministicRowsDoNotDependOnTheOthers) {
  const auto ops = Create({.deterministic = true, .cache_folder = "/nonexistent"});
  for (const auto& [k, n] : {std::pair<int64_t, int64_t>{576, 960}, {4096, 512}, {1536, 576}}) {
    const HostParts parts = MakeParts({n}, k, DType::kBF16, false, random_);
    const auto weight = ops->Pack(DType::kBF16, k, parts.rounded).value();
    constexpr int64_t kRows = 700;
    Matrix x = Random(DType::kBF16, kRows, k), all(device_.get(), DType::kF32, kRows, n);
    ASSERT_TRUE(ops->Linear(x.view(), *weight, all.view(), {}, nullptr).ok());
    const std::vector<float> expected = all.Fetch();
    for (const int64_t rows : {1, 2, 15, 16, 17, 64, 129, 513}) {
      const int64_t begin = (kRows - rows) / 8 * 8 % 128;
      Matrix y(device_.get(), DType::kF32, rows, n);
      ASSERT_TRUE(ops->Linear(x.view().Rows(begin, rows), *weight, y.view(), {}, nullptr).ok());
      const std::vector<float> got = y.Fetch();
      ASSERT_EQ(0, std::memcmp(got.data(), &expected[begin * n], got.size() * sizeof(float))) << rows << " rows, k " << k;
    }
  }
}

TEST_F(OpsCudaTest, NormsMatchTheCpu) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (const int64_t cols : {1, 3, 64, 576, 1000, 4096, 4098, 12288, 20000}) {
      constexpr int64_t kRows = 5;
      Matrix x = Random(kRows, cols), weight = Random(1, cols), bias = Random(1, cols);
      const std::vector<int32_t> rows = {4, 0, 0, 2};
      const DeviceMemory device_rows = Upload(rows);
      NormArgs args = {.kind = kind, .weight = weight.span<const float>(), .eps = 1e-5f};
      NormArgs host = {.kind = kind, .weight = {weight.values.data(), cols}, .eps = 1e-5f};
      if (kind == NormKind::kLayer) args.bias = bias.span<const float>(), host.bias = {bias.values.data(), cols};
      for (const DType out : {DType::kF32, DType::kBF16, DType::kF16}) {
        const std::string what = "norm of " + std::to_string(cols) + " columns to " + std::string(Name(out));
        Matrix y(device_.get(), out, 4, cols);
        std::vector<float> expected(4 * cols);
        ASSERT_TRUE(ops_->Norm(x.view(), args, y.view(), {device_rows.As<int32_t>(), 4}, nullptr).ok());
        ASSERT_TRUE(exact_->Norm(Host(x.values, kRows, cols), host, Host(expected, 4, cols), {rows.data(), 4}, nullptr).ok());
        ExpectNear(y.Fetch(), expected, out, 2e-5, what);
        if (HasFatalFailure()) return;
      }
      Matrix sum = Random(kRows, cols);
      std::vector<float> expected = sum.values;
      ASSERT_TRUE(ops_->AddNorm(x.view(), args, sum.view(), nullptr).ok());
      ASSERT_TRUE(exact_->AddNorm(Host(x.values, kRows, cols), host, Host(expected, kRows, cols), nullptr).ok());
      ExpectNear(sum.Fetch(), expected, DType::kF32, 2e-5, "added norm of " + std::to_string(cols));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(OpsCudaTest, EmbeddingsMatchTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t cols : {64, 36, 2050}) {
      const HostParts parts = MakeParts({50}, cols, dtype, false, random_);
      const auto table = ops_->Pack(dtype, cols, parts.rounded).value();
      const auto exact = exact_->Pack(DType::kF32, cols, parts.exact).value();
      const std::vector<int32_t> ids = {49, 0, 7, 7, 31};
      const DeviceMemory device_ids = Upload(ids);
      for (const bool add : {false, true}) {
        Matrix y = Random(5, cols);
        std::vector<float> expected = y.values;
        const EmbedArgs args = {.scale = 1.5f, .add = add, .first_id = 5};  // the table lacks id 0, and 49 is not its last
        ASSERT_TRUE(ops_->Embed({device_ids.As<int32_t>(), 5}, *table, args, y.view(), nullptr).ok());
        ASSERT_TRUE(exact_->Embed({ids.data(), 5}, *exact, args, Host(expected, 5, cols), nullptr).ok());
        ExpectNear(y.Fetch(), expected, DType::kF32, 1e-6, "embedding");
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OpsCudaTest, GatheredRowsAreCopies) {
  const std::vector<int32_t> rows = {6, 0, 0, 3};
  const DeviceMemory device_rows = Upload(rows);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t cols : {4096, 576, 2050, 33}) {
      const Matrix x = Random(dtype, 7, cols, /*gap=*/cols % 8);
      Matrix y(device_.get(), dtype, 4, cols);
      ASSERT_TRUE(ops_->Gather(x.view(), {device_rows.As<int32_t>(), 4}, y.view(), nullptr).ok());
      const std::vector<float> got = y.Fetch();
      for (size_t i = 0; i < rows.size(); ++i)
        ASSERT_EQ(0, std::memcmp(&got[i * cols], &x.values[rows[i] * cols], cols * sizeof(float))) << cols << " columns, row " << i;
    }
  }
}

struct RopeCase {
  int32_t num_qo_heads, num_kv_heads, head_dim, rotary_dim;
  RopePairs pairs;
  int norm;  // 0: none, 1: RMS, 2: layer
};

TEST_F(OpsCudaTest, RotatedRowsMatchTheCpu) {
  constexpr int64_t kRows = 21;
  constexpr int32_t kPages = 4, kPageSize = 16;
  std::vector<RopeCase> cases;
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    for (const auto& [dim, rotary] : {std::pair{64, 64}, {128, 128}, {256, 64}, {80, 32}, {62, 30}, {2, 2}, {128, 0}, {96, 50}}) {
      for (const int norm : {0, 1, 2}) cases.push_back({9, 3, dim, rotary, pairs, norm});
    }
  }
  for (const RopeCase& c : cases) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      const int64_t half = c.rotary_dim / 2, width = (c.num_qo_heads + 2 * c.num_kv_heads) * c.head_dim,
                    q_cols = c.num_qo_heads * c.head_dim;
      std::vector<int32_t> positions(kRows);
      std::vector<int64_t> slots(kRows);
      for (int64_t i = 0; i < kRows; ++i)
        positions[i] = static_cast<int32_t>(i * i * 67), slots[i] = i % 7 == 3 ? -1 : (i * 11) % 64;
      std::vector<float> frequencies(half);
      for (int64_t i = 0; i < half; ++i) frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
      const DeviceMemory device_positions = Upload(positions), device_slots = Upload(slots),
                         device_frequencies = Upload(frequencies);
      Matrix qkv = Random(kRows, width), weight = Random(1, c.head_dim), bias = Random(1, c.head_dim);
      Matrix cos(device_.get(), DType::kF32, kRows, half), sin(device_.get(), DType::kF32, kRows, half);
      Matrix q(device_.get(), dtype, kRows, q_cols),
          pool(device_.get(), dtype, kPages, 2 * c.num_kv_heads * kPageSize * c.head_dim);
      std::vector<float> host_cos(kRows * half), host_sin(kRows * half), host_q(kRows * q_cols);
      std::vector<float> host_pool(kPages * 2 * c.num_kv_heads * kPageSize * c.head_dim, std::numeric_limits<float>::quiet_NaN());
      ASSERT_TRUE(ops_->RopeAngles({device_positions.As<int32_t>(), kRows}, {device_frequencies.As<float>(), half}, 1.25f,
                                   cos.view(), sin.view(), nullptr)
                      .ok());
      ASSERT_TRUE(exact_
                      ->RopeAngles({positions.data(), kRows}, {frequencies.data(), half}, 1.25f, Host(host_cos, kRows, half),
                                   Host(host_sin, kRows, half), nullptr)
                      .ok());
      ExpectNear(cos.Fetch(), host_cos, DType::kF32, 1e-6, "cosines");
      ExpectNear(sin.Fetch(), host_sin, DType::kF32, 1e-6, "sines");
      if (HasFatalFailure()) return;

      const auto view_of = [&](void* base, DType of) {
        return attention::KvPoolShape{
            .num_pages = kPages, .page_size = kPageSize, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .dtype = of}
            .View(base);
      };
      RopeAppendArgs args = {.qkv = qkv.view(),
                             .cos = cos.view(),
                             .sin = sin.view(),
                             .pairs = c.pairs,
                             .num_qo_heads = c.num_qo_heads,
                             .num_kv_heads = c.num_kv_heads,
                             .head_dim = c.head_dim,
                             .q = q.view(),
                             .kv = view_of(pool.view().data, dtype),
                             .slot_mapping = {device_slots.As<int64_t>(), kRows}};
      RopeAppendArgs host = args;
      host.qkv = Host(qkv.values, kRows, width), host.cos = Host(host_cos, kRows, half), host.sin = Host(host_sin, kRows, half);
      host.q = Host(host_q, kRows, q_cols), host.kv = view_of(host_pool.data(), DType::kF32),
      host.slot_mapping = {slots.data(), kRows};
      if (c.norm > 0) {
        NormArgs norm = {
            .kind = c.norm == 1 ? NormKind::kRms : NormKind::kLayer, .weight = weight.span<const float>(), .eps = 1e-6f};
        NormArgs host_norm = {.kind = norm.kind, .weight = {weight.values.data(), c.head_dim}, .eps = 1e-6f};
        if (c.norm == 2) norm.bias = bias.span<const float>(), host_norm.bias = {bias.values.data(), c.head_dim};
        args.q_norm = args.k_norm = norm;
        host.q_norm = host.k_norm = host_norm;
      }
      ASSERT_TRUE(ops_->RopeAppend(args, nullptr).ok());
      ASSERT_TRUE(exact_->RopeAppend(host, nullptr).ok());
      const std::string what = "head_dim " + std::to_string(c.head_dim) + ", rotary_dim " + std::to_string(c.rotary_dim) +
                               ", norm " + std::to_string(c.norm);
      ExpectNear(q.Fetch(), host_q, dtype, 1e-5, "q, " + what);
      const std::vector<float> stored = pool.Fetch();
      for (size_t i = 0; i < stored.size(); ++i) {
        ASSERT_EQ(std::isnan(stored[i]), std::isnan(host_pool[i])) << what << ", element " << i << " of the pages";
        if (std::isnan(stored[i])) continue;
        ASSERT_NEAR(stored[i], host_pool[i], 2 * Epsilon(dtype) * std::abs(host_pool[i]) + 1e-5) << what << ", element " << i;
      }
    }
  }
}

// Rows together and piece by piece, which other kernels take: one head a thread or several, heads of q, k and v among them. And
// halves in groups, as products of packed weights have them, beside the same rows in their usual order.
TEST_F(OpsCudaTest, RotatedRowsDoNotDependOnTheOthers) {
  constexpr int64_t kRows = 600;
  constexpr int32_t kPages = 38, kPageSize = 16;
  for (const RopeCase& c : {RopeCase{9, 3, 64, 64, RopePairs::kHalves, 0},
                            {7, 2, 128, 128, RopePairs::kHalves, 1},
                            {4, 2, 256, 64, RopePairs::kHalves, 2},
                            {5, 1, 80, 32, RopePairs::kHalves, 0},
                            {6, 2, 96, 64, RopePairs::kNeighbours, 1},
                            {7, 2, 62, 30, RopePairs::kHalves, 1}}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const int64_t half = c.rotary_dim / 2, width = (c.num_qo_heads + 2 * c.num_kv_heads) * c.head_dim,
                    q_cols = c.num_qo_heads * c.head_dim;
      std::vector<int64_t> slots(kRows);
      for (int64_t i = 0; i < kRows; ++i) slots[i] = i % 13 == 3 ? -1 : i * 7 % (kPages * kPageSize);
      const DeviceMemory device_slots = Upload(slots);
      const Matrix qkv = Random(kRows, width), weight = Random(1, c.head_dim), cos = Random(kRows, half), sin = Random(kRows, half);
      Matrix grouped = Random(kRows, width);
      const int64_t rotated_cols = q_cols + c.num_kv_heads * c.head_dim;
      for (int64_t i = 0; i < kRows * width; ++i) {
        const int64_t column = i % width, in_head = column % c.head_dim, pair = in_head % std::max<int64_t>(half, 1);
        const bool moves = column < rotated_cols && in_head < c.rotary_dim;
        const int64_t to =
            pair / cuda::kGateGroup * 2 * cuda::kGateGroup + pair % cuda::kGateGroup + (in_head < half ? 0 : cuda::kGateGroup);
        grouped.values[i + (moves ? to - in_head : 0)] = qkv.values[i];
      }
      grouped.Store();
      // q and then the pages, with the rows stored in pieces of `piece`.
      const auto run = [&](int64_t piece, bool in_groups) {
        Matrix q(device_.get(), dtype, kRows, q_cols),
            pool(device_.get(), dtype, kPages, 2 * c.num_kv_heads * kPageSize * c.head_dim);
        const attention::KvPoolShape shape = {
            .num_pages = kPages, .page_size = kPageSize, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .dtype = dtype};
        for (int64_t begin = 0; begin < kRows; begin += piece) {
          const int64_t rows = std::min(piece, kRows - begin);
          RopeAppendArgs args = {.qkv = (in_groups ? grouped : qkv).view().Rows(begin, rows),
                                 .cos = cos.view().Rows(begin, rows),
                                 .sin = sin.view().Rows(begin, rows),
                                 .pairs = c.pairs,
                                 .num_qo_heads = c.num_qo_heads,
                                 .num_kv_heads = c.num_kv_heads,
                                 .head_dim = c.head_dim,
                                 .q = q.view().Rows(begin, rows),
                                 .kv = shape.View(pool.view().data),
                                 .slot_mapping = {device_slots.As<int64_t>() + begin, rows}};
          if (c.norm > 0) {
            args.q_norm = args.k_norm = NormArgs{
                .kind = c.norm == 1 ? NormKind::kRms : NormKind::kLayer, .weight = weight.span<const float>(), .eps = 1e-6f};
          }
          const Status status = cuda::LaunchRopeAppend(args, in_groups, /*overlaps=*/false, nullptr);
          EXPECT_TRUE(status.ok()) << status.ToString();
        }
        std::vector<float> stored = q.Fetch(), pages = pool.Fetch();
        stored.insert(stored.end(), pages.begin(), pages.end());
        return stored;
      };
      const std::vector<float> expected = run(kRows, false);
      const auto equals_expected = [&](const std::vector<float>& got) {
        return got.size() == expected.size() && std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
      };
      for (const int64_t piece : {1, 17, 511, 513})
        EXPECT_TRUE(equals_expected(run(piece, false))) << "head_dim " << c.head_dim << ", pieces of " << piece;
      if (c.pairs != RopePairs::kHalves || half % cuda::kGateGroup != 0) continue;
      for (const int64_t piece : {int64_t{17}, kRows})
        EXPECT_TRUE(equals_expected(run(piece, true))) << "head_dim " << c.head_dim << " in groups, pieces of " << piece;
    }
  }
}

// The product, its heads' rotation and what is stored as one: few rows, for which one kernel does all, and more; heads whose pairs
// lie in groups, side by side, or not at all together; with a norm before it, and norms of heads after it; with and without a bias.
TEST_F(OpsCudaTest, RotatedProductsMatchTheCpu) {
  constexpr int32_t kPages = 4, kPageSize = 16, kQoHeads = 6, kKvHeads = 2;
  struct Case {
    int64_t rows, k;
    int32_t head_dim, rotary_dim;
    RopePairs pairs = RopePairs::kHalves;
    bool head_norms = false;
  };
  for (const Case& c : {Case{1, 2048, 64, 64},
                        {1, 4096, 128, 128},
                        {2, 256, 128, 128},
                        {5, 2048, 64, 64},
                        {8, 256, 256, 64},
                        {9, 256, 64, 64},
                        {16, 256, 128, 128},
                        {17, 256, 128, 128},
                        {40, 256, 64, 32},
                        {3, 64, 80, 32},
                        {3, 64, 80, 20},
                        {40, 64, 80, 20},
                        {2, 64, 64, 0},
                        {4, 64, 64, 64, RopePairs::kNeighbours},
                        {20, 64, 64, 32, RopePairs::kNeighbours},
                        {1, 64, 96, 64, RopePairs::kHalves, true},
                        {12, 64, 64, 64, RopePairs::kHalves, true}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const bool norms : {false, true}) {
        const std::string what = std::string(Name(dtype)) + ", rows " + std::to_string(c.rows) + ", k " + std::to_string(c.k) +
                                 ", head_dim " + std::to_string(c.head_dim) + ", rotary_dim " + std::to_string(c.rotary_dim) +
                                 (norms ? ", after a norm" : "");
        const int64_t q_cols = kQoHeads * c.head_dim, kv_cols = kKvHeads * c.head_dim, width = q_cols + 2 * kv_cols,
                      half = c.rotary_dim / 2;
        const HostParts parts = MakeParts({q_cols, kv_cols, kv_cols}, c.k, dtype, c.rows % 2 == 0, random_);
        const QkvHeads heads = {kQoHeads, kKvHeads, c.head_dim, c.rotary_dim, c.pairs};
        const auto weight = ops_->PackQkv(dtype, c.k, parts.rounded, heads).value();
        const auto exact = exact_->PackQkv(DType::kF32, c.k, parts.exact, heads).value();
        Matrix hidden = Random(c.rows, c.k), norm_weight = Random(1, c.k), x = Random(dtype, c.rows, c.k);
        Matrix cos = Random(c.rows, half), sin = Random(c.rows, half), head_weight = Random(1, c.head_dim);
        Matrix qkv(device_.get(), DType::kF32, c.rows, width), q(device_.get(), dtype, c.rows, q_cols),
            normed(device_.get(), dtype, c.rows, c.k), pool(device_.get(), dtype, kPages, 2 * kKvHeads * kPageSize * c.head_dim);
        std::vector<int64_t> slots(c.rows);
        for (int64_t i = 0; i < c.rows; ++i) slots[i] = i % 7 == 3 ? -1 : (i * 11) % (kPages * kPageSize);
        const DeviceMemory device_slots = Upload(slots);
        const auto view_of = [&](void* base, DType of) {
          return attention::KvPoolShape{
              .num_pages = kPages, .page_size = kPageSize, .num_kv_heads = kKvHeads, .head_dim = c.head_dim, .dtype = of}
              .View(base);
        };
        RopeAppendArgs args = {.qkv = qkv.view(),
                               .cos = cos.view(),
                               .sin = sin.view(),
                               .pairs = c.pairs,
                               .num_qo_heads = kQoHeads,
                               .num_kv_heads = kKvHeads,
                               .head_dim = c.head_dim,
                               .q = q.view(),
                               .kv = view_of(pool.view().data, dtype),
                               .slot_mapping = {device_slots.As<int64_t>(), c.rows}};
        std::vector<float> host_qkv(c.rows * width), host_q(c.rows * q_cols), host_x(RoundUp(c.rows, kRowPadding) * c.k);
        std::vector<float> host_pool(kPages * 2 * kKvHeads * kPageSize * c.head_dim, std::numeric_limits<float>::quiet_NaN());
        RopeAppendArgs host = args;
        host.qkv = Host(host_qkv, c.rows, width), host.cos = Host(cos.values, c.rows, half);
        host.sin = Host(sin.values, c.rows, half), host.q = Host(host_q, c.rows, q_cols);
        host.kv = view_of(host_pool.data(), DType::kF32), host.slot_mapping = {slots.data(), c.rows};
        if (c.head_norms) {
          args.q_norm = args.k_norm = NormArgs{.weight = head_weight.span<const float>()};
          host.q_norm = host.k_norm = NormArgs{.weight = {head_weight.values.data(), c.head_dim}};
        }
        const NormArgs norm = {.weight = norm_weight.span<const float>()};
        if (norms) {
          const NormArgs host_norm = {.weight = {norm_weight.values.data(), c.k}};
          const ConstDeviceTensor host_hidden = {hidden.values.data(), DType::kF32, c.rows, c.k, c.k};
          ASSERT_TRUE(exact_->Norm(host_hidden, host_norm, Host(host_x, c.rows, c.k), {}, nullptr).ok());
          for (float& value : host_x) value = Rounded(value, dtype);
          const Status status = ops_->NormQkvRope(hidden.view(), norm, normed.view(), *weight, args, nullptr);
          ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
        } else {
          std::ranges::copy(x.values, host_x.begin());
          const Status status = ops_->QkvRope(x.view(), *weight, args, nullptr);
          ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
        }
        ASSERT_TRUE(exact_->QkvRope({host_x.data(), DType::kF32, c.rows, c.k, c.k}, *exact, host, nullptr).ok());
        // Norms and rotations by random numbers keep the size of the error within a few times that of the product's.
        const double size = std::sqrt(static_cast<double>(c.k)) + 1;
        const double scale = 8 * (SumError(c.k) + (norms ? size * Epsilon(dtype) : 0));
        ExpectNear(q.Fetch(), host_q, dtype, scale, "q, " + what);
        const std::vector<float> stored = pool.Fetch();
        for (size_t i = 0; i < stored.size(); ++i) {
          ASSERT_EQ(std::isnan(stored[i]), std::isnan(host_pool[i])) << what << ", element " << i << " of the pages";
          if (std::isnan(stored[i])) continue;
          ASSERT_NEAR(stored[i], host_pool[i], 2 * Epsilon(dtype) * std::abs(host_pool[i]) + scale) << what << ", element " << i;
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(OpsCudaTest, TunedProductsAreMeasuredOnceAndRight) {
  const std::string folder = ::testing::TempDir() + "/coppice-products-" + std::to_string(std::random_device()());
  const HostParts parts = MakeParts({512}, 1024, DType::kBF16, false, random_);
  const HostParts gated_parts = MakeParts({9000, 9000}, 256, DType::kBF16, false, random_);
  constexpr int64_t kRows = 40;
  struct Outputs {
    std::vector<float> linear, gated;
  };
  std::vector<Outputs> of_runs;
  int steps_of_first = 0;
  for (int run = 0; run < 3; ++run) {  // measures, has measured, knows no file
    const auto ops = Create({.cache_folder = run < 2 ? folder : folder + "-none"});
    const auto weight = ops->Pack(DType::kBF16, 1024, parts.rounded).value();
    const auto gated = ops->Pack(DType::kBF16, 256, gated_parts.rounded, PartOrder::kGateUp).value();
    const auto stream = device_->CreateStream().value();
    std::mt19937 random(3);
    Matrix x = Matrix::Random(device_.get(), DType::kBF16, 64, 1024, random), y(device_.get(), DType::kF32, 64, 512),
           gated_x = Matrix::Random(device_.get(), DType::kBF16, 64, 256, random), gated_y(device_.get(), DType::kBF16, 64, 9000);
    int steps = 0;
    const auto step = [&](int64_t rows) -> Status {
      ++steps;
      const Status status = ops->Linear(x.view().Rows(0, rows), *weight, y.view().Rows(0, rows), {}, stream->get());
      if (!status.ok()) return status;
      return ops->Linear(gated_x.view().Rows(0, rows), *gated, gated_y.view().Rows(0, rows), {.kind = Epilogue::Kind::kGated},
                         stream->get());
    };
    if (run < 2) {
      const Status status = ops->Tune(64, step, stream->get());
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (run == 0) steps_of_first = steps;
      if (run == 1) {
        EXPECT_EQ(steps, 3) << "one of 32, 48 and 64 rows each, to see what is known";
      }
    }
    ASSERT_TRUE(step(kRows).ok());
    ASSERT_TRUE(device_->Synchronize(stream->get()).ok());
    of_runs.push_back({y.Fetch(), gated_y.Fetch()});
    of_runs.back().linear.resize(kRows * 512);
    of_runs.back().gated.resize(kRows * 9000);
  }
  EXPECT_GT(steps_of_first, 10);
  EXPECT_EQ(of_runs[0].linear, of_runs[1].linear);
  EXPECT_EQ(of_runs[0].gated, of_runs[1].gated);
  const auto expect_near = [](const std::vector<float>& tuned, const std::vector<float>& plain, float tolerance) {
    for (size_t i = 0; i < tuned.size(); ++i) ASSERT_NEAR(tuned[i], plain[i], tolerance * (1 + std::abs(plain[i]))) << i;
  };
  expect_near(of_runs[0].linear, of_runs[2].linear, 1e-4f);
  expect_near(of_runs[0].gated, of_runs[2].gated, 0.02f);
}

TEST_F(OpsCudaTest, AStepOfOperationsCanBeCaptured) {
  const HostParts parts = MakeParts({256, 256}, 256, DType::kBF16, false, random_);
  const auto weight = ops_->Pack(DType::kBF16, 256, parts.rounded, PartOrder::kGateUp).value();
  const HostParts down_parts = MakeParts({256}, 256, DType::kBF16, false, random_);
  const auto down = ops_->Pack(DType::kBF16, 256, down_parts.rounded).value();
  Matrix norm_weight = Random(1, 256), start = Random(4, 256);
  Matrix residual = Random(4, 256), normed(device_.get(), DType::kBF16, 4, 256), hidden(device_.get(), DType::kBF16, 4, 256);
  const auto stream = device_->CreateStream().value();
  const auto step = [&] {
    Status status = ops_->Norm(residual.view(), {.weight = norm_weight.span<const float>()}, normed.view(), {}, stream->get());
    if (status.ok()) status = ops_->Linear(normed.view(), *weight, hidden.view(), {.kind = Epilogue::Kind::kGated}, stream->get());
    if (status.ok()) status = ops_->Linear(hidden.view(), *down, residual.view(), {.kind = Epilogue::Kind::kAdd}, stream->get());
    return status;
  };
  const auto reset = [&] {
    residual.values = start.values;
    residual.Store();
  };
  const auto three_steps = [&] {
    Status status = step();
    for (int i = 0; i < 2 && status.ok(); ++i) status = step();
    return status;
  };
  reset();
  ASSERT_TRUE(three_steps().ok());
  ASSERT_TRUE(device_->Synchronize(stream->get()).ok());
  const std::vector<float> expected = residual.Fetch();
  reset();
  const auto graph = CaptureGraph(*device_, stream->get(), three_steps);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  ASSERT_TRUE(device_->Launch(**graph, stream->get()).ok());
  ASSERT_TRUE(device_->Synchronize(stream->get()).ok());
  EXPECT_EQ(residual.Fetch(), expected);
}

}  // namespace
}  // namespace coppice::ops
