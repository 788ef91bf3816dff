// Element-wise ops against double precision, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/testing/host_tensor.h"
#include "ops/logit_scan.h"

namespace coppice::ops {
namespace {

class ElementwiseTest : public testing::TestWithParam<const Kernels*> {
 protected:
  std::vector<float> Random(size_t n, float scale) {
    std::vector<float> values(n);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (float& v : values) v = uniform(random_);
    return values;
  }

  ThreadPool pool_{3};
  std::unique_ptr<Device> device_ = Device::CreateCpu(&pool_);
  std::unique_ptr<Ops> ops_ = MakeCpuOps(device_.get(), {}, *GetParam(), ProductLibrary::kAuto);
  std::mt19937 random_{7};
};

TEST_P(ElementwiseTest, ConvertRoundsToNearestEvenAndKeepsNan) {
  std::vector<float> x = Random(999, 1e3f);
  x.insert(x.end(), {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f});
  std::vector<BF16> y(x.size());
  GetParam()->convert(x.data(), static_cast<int64_t>(x.size()), DType::kBF16, y.data());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, BF16::FromFloat(x[i]).bits) << x[i];
}

TEST_P(ElementwiseTest, ActivationsOverTheWholeRange) {
  std::vector<float> gate;
  for (float g = -120; g <= 120; g += 0.0625f) gate.push_back(g);
  gate.insert(gate.end(), {0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f});
  const std::vector<float> up = Random(gate.size(), 2.0f);
  const auto n = static_cast<int64_t>(gate.size());
  std::vector<float> y(gate.size()), gated(gate.size());
  const auto check = [&](Activation activation, auto function, double absolute) {
    GetParam()->activate(activation, gate.data(), n, DType::kF32, y.data());
    GetParam()->gated(activation, gate.data(), up.data(), n, DType::kF32, gated.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const double expected = function(double{gate[i]});
      // exp saturates at +-87, where silu is below 1e-35 of its input.
      const double tolerance = std::abs(expected) * 1e-6 + std::abs(gate[i]) * 1e-35 + absolute;
      ASSERT_NEAR(y[i], expected, tolerance) << gate[i];
      ASSERT_NEAR(gated[i], expected * up[i], 2 * tolerance) << gate[i];
    }
  };
  check(
      Activation::kSilu, [](double x) { return x / (1 + std::exp(-x)); }, 0);
  // The tanh form as a sigmoid: relative errors of its small values grow with the exponent.
  check(
      Activation::kGeluTanh, [](double x) { return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); },
      1e-6);
  check(
      Activation::kGelu, [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }, 1e-6);
}

// The norm in f64.
std::vector<double> Normalised(NormKind kind, std::span<const float> x, std::span<const float> weight,
                               std::span<const float> bias) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, squares = 0;
  if (kind == NormKind::kLayer) mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  for (const float v : x) squares += (v - mean) * (v - mean);
  std::vector<double> result;
  for (size_t i = 0; i < x.size(); ++i)
    result.push_back((x[i] - mean) / std::sqrt(squares / n + 1e-5) * weight[i] + (bias.empty() ? 0 : bias[i]));
  return result;
}

TEST_P(ElementwiseTest, NormsOfChosenRowsAndAddedOnes) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (int64_t cols : {1, 3, 16, 96, 576, 577}) {
      const int64_t rows = 9;
      const std::vector<float> x = Random(rows * cols, 3.0f), weight = Random(cols, 1.0f);
      const std::vector<float> bias = kind == NormKind::kLayer && cols != 96 ? Random(cols, 1.0f) : std::vector<float>();
      const std::vector<int32_t> chosen = {8, 0, 4};
      std::vector<float> y(chosen.size() * cols), sum(rows * cols, 2.0f);
      std::vector<BF16> y_bf16(rows * cols);
      const NormArgs args = {kind, HostSpan(weight), HostSpan(bias), 1e-5f};
      ASSERT_TRUE(ops_->Norm(HostTensor(x, rows, cols), args, HostTensor(y, 3, cols), HostSpan(chosen), nullptr).ok());
      ASSERT_TRUE(ops_->Norm(HostTensor(x, rows, cols), args, HostTensor(y_bf16, rows, cols), {}, nullptr).ok());
      ASSERT_TRUE(ops_->AddNorm(HostTensor(x, rows, cols), args, HostTensor(sum, rows, cols), nullptr).ok());
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> expected = Normalised(kind, std::span(x).subspan(r * cols, cols), weight, bias);
        for (int64_t c = 0; c < cols; ++c) {
          const double tolerance = (std::abs(expected[c]) + (kind == NormKind::kLayer ? 1 : 0)) * 1e-6;
          ASSERT_NEAR(y_bf16[r * cols + c].ToFloat(), expected[c], std::abs(expected[c]) * 0x1.1p-8 + tolerance) << r << ", " << c;
          ASSERT_NEAR(sum[r * cols + c], expected[c] + 2, tolerance + 1e-6) << r << ", " << c;
          for (size_t i = 0; i < chosen.size(); ++i) {
            if (chosen[i] != r) continue;
            ASSERT_NEAR(y[i * cols + c], expected[c], tolerance) << r << ", " << c;
          }
        }
      }
    }
  }
}

struct RopeCase {
  int32_t head_dim, rotary_dim;
  RopePairs pairs;
};

TEST_P(ElementwiseTest, RopeAppendNormalisesRotatesAndWritesPages) {
  for (const RopeCase& rope :
       {RopeCase{2, 2, RopePairs::kHalves}, RopeCase{6, 6, RopePairs::kHalves}, RopeCase{64, 64, RopePairs::kHalves},
        RopeCase{256, 256, RopePairs::kHalves}, RopeCase{64, 32, RopePairs::kHalves}, RopeCase{32, 16, RopePairs::kNeighbours},
        RopeCase{64, 64, RopePairs::kNeighbours}, RopeCase{32, 0, RopePairs::kHalves}}) {
    const int32_t head_dim = rope.head_dim, q_heads = 6, kv_heads = 2, page_size = 4, pages = 3;
    const int64_t tokens = 5, cols = (q_heads + 2 * kv_heads) * head_dim, half = rope.rotary_dim / 2;
    std::vector<float> qkv = Random(tokens * cols, 2.0f);
    const std::vector<float> q_norm = Random(head_dim, 1.0f);
    const std::vector<int32_t> positions = {0, 1, 77, 4095, 8191};
    const std::vector<int64_t> slots = {11, 0, -1, 5, 6};
    std::vector<float> inverse(half);
    for (int32_t i = 0; i < half; ++i) inverse[i] = static_cast<float>(std::pow(1e4, -2.0 * i / rope.rotary_dim));
    std::vector<float> cos(tokens * half), sin(cos.size());
    constexpr float kScale = 1.25f;
    ASSERT_TRUE(ops_->RopeAngles(HostSpan(positions), HostSpan(inverse), kScale, HostTensor(cos, tokens, half),
                                 HostTensor(sin, tokens, half), nullptr)
                    .ok());
    std::vector<float> q(tokens * q_heads * head_dim);
    const attention::KvPoolShape shape = {pages, page_size, kv_heads, head_dim, DType::kBF16};
    constexpr uint16_t kUntouched = 0x7fc1;
    std::vector<BF16> pool(shape.bytes() / sizeof(BF16), BF16{kUntouched});
    const attention::KvLayerView kv = shape.View(pool.data());
    ASSERT_TRUE(ops_->RopeAppend({.qkv = HostTensor(qkv, tokens, cols),
                                  .cos = HostTensor(cos, tokens, half),
                                  .sin = HostTensor(sin, tokens, half),
                                  .pairs = rope.pairs,
                                  .num_qo_heads = q_heads,
                                  .num_kv_heads = kv_heads,
                                  .head_dim = head_dim,
                                  .q_norm = NormArgs{.weight = HostSpan(q_norm), .eps = 1e-5f},
                                  .q = HostTensor(q, tokens, q_heads * head_dim),
                                  .kv = kv,
                                  .slot_mapping = HostSpan(slots)},
                                 nullptr)
                    .ok());
    int64_t untouched = 0;
    for (const BF16& element : pool) untouched += element.bits == kUntouched;
    EXPECT_EQ(untouched, (pages * page_size - 4) * 2 * kv_heads * head_dim);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < q_heads + 2 * kv_heads; ++h) {
        const std::span<const float> input = std::span(qkv).subspan(t * cols + h * head_dim, head_dim);
        std::vector<double> head(input.begin(), input.end());
        if (h < q_heads) head = Normalised(NormKind::kRms, input, q_norm, {});
        const int64_t kv_head = (h - q_heads) % kv_heads;
        for (int64_t d = 0; d < head_dim; ++d) {
          double expected = head[d];
          if (d < rope.rotary_dim && h < q_heads + kv_heads) {
            const bool halves = rope.pairs == RopePairs::kHalves, first = halves ? d < half : d % 2 == 0;
            const int64_t i = halves ? d % half : d / 2, other = halves ? (first ? d + half : d - half) : d ^ 1;
            const double angle = double{static_cast<float>(positions[t]) * inverse[i]};
            expected = kScale * (head[d] * std::cos(angle) + (first ? -1 : 1) * head[other] * std::sin(angle));
          }
          if (h < q_heads) {
            ASSERT_NEAR(q[(t * q_heads + h) * head_dim + d], expected, 6e-6) << t << ", " << h << ", " << d;
          } else if (slots[t] >= 0) {
            const auto* plane = static_cast<const BF16*>(h < q_heads + kv_heads ? kv.k : kv.v);
            const float actual =
                plane[slots[t] / page_size * kv.page_stride + kv_head * kv.head_stride + slots[t] % page_size * kv.slot_stride + d]
                    .ToFloat();
            ASSERT_NEAR(actual, expected, std::abs(expected) * 0x1.1p-8 + 6e-6) << t << ", " << h << ", " << d;
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, EmbedReadsRowsOfPackedWeights) {
  const int64_t vocab = 130, hidden = 34;
  const std::vector<float> table = Random(vocab * hidden, 1.0f);
  std::vector<BF16> table_bf16(table.size());
  for (size_t i = 0; i < table.size(); ++i) table_bf16[i] = BF16::FromFloat(table[i]);
  const std::vector<int32_t> ids = {0, 129, 63, 64, 5};
  std::vector<float> y(ids.size() * hidden);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const bool f32 = dtype == DType::kF32;
    const LinearPart part = {f32 ? static_cast<const void*>(table.data()) : table_bf16.data(), vocab};
    auto packed = ops_->Pack(dtype, hidden, {&part, 1});
    ASSERT_TRUE(packed.ok());
    const DeviceTensor out = HostTensor(y, static_cast<int64_t>(ids.size()), hidden);
    const auto expect = [&](float factor) {
      for (size_t i = 0; i < ids.size(); ++i) {
        for (int64_t c = 0; c < hidden; ++c) {
          const int64_t at = ids[i] * hidden + c;
          ASSERT_EQ(y[i * hidden + c], factor * (f32 ? table[at] : table_bf16[at].ToFloat()));
        }
      }
    };
    ASSERT_TRUE(ops_->Embed(HostSpan(ids), **packed, {}, out, nullptr).ok());
    expect(1.0f);
    ASSERT_TRUE(ops_->Embed(HostSpan(ids), **packed, {.scale = 0.5f}, out, nullptr).ok());
    expect(0.5f);
    ASSERT_TRUE(ops_->Embed(HostSpan(ids), **packed, {.scale = 0.5f, .add = true}, out, nullptr).ok());
    expect(1.0f);
    // Two tables that have the rows between them: the sum is that of one.
    const int32_t half = 64;
    const int64_t begin = half * hidden;
    const LinearPart low = {part.weight, half};
    const LinearPart high = {f32 ? static_cast<const void*>(table.data() + begin) : table_bf16.data() + begin, vocab - half};
    const auto first = ops_->Pack(dtype, hidden, {&low, 1}).value(), second = ops_->Pack(dtype, hidden, {&high, 1}).value();
    ASSERT_TRUE(ops_->Embed(HostSpan(ids), *first, {}, out, nullptr).ok());
    ASSERT_TRUE(ops_->Embed(HostSpan(ids), *second, {.add = true, .first_id = half}, out, nullptr).ok());
    expect(1.0f);
    ASSERT_TRUE(ops_->Embed(HostSpan(ids), *second, {.first_id = half}, out, nullptr).ok());
    EXPECT_EQ(y[0], 0.0f);
  }
}

TEST_P(ElementwiseTest, LogitScansGiveMaximaAndExponentialsOfBlocks) {
  for (const int64_t n : {1, 3, 255, 256, 257, 1000, 4096 + 17}) {
    std::vector<float> logits = Random(n, 40.0f);
    logits[n / 2] = std::numeric_limits<float>::lowest();
    logits[n / 3] = -INFINITY;
    const int64_t blocks = NumLogitBlocks(n);
    std::vector<float> maxima(blocks), sums(blocks), exps(n);
    const float max = GetParam()->block_maxima(logits.data(), n, maxima.data());
    const double total = GetParam()->block_exps(logits.data(), n, max, 0.5f, exps.data(), sums.data());
    double expected_total = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      const auto of_block = std::span(logits).subspan(block * kLogitBlock, std::min(kLogitBlock, n - block * kLogitBlock));
      EXPECT_EQ(maxima[block], std::max(std::numeric_limits<float>::lowest(), *std::ranges::max_element(of_block)));
      double expected = 0;
      for (size_t i = 0; i < of_block.size(); ++i) {
        const double e = std::exp(std::max(-87.0, 0.5 * (double{of_block[i]} - max)));
        ASSERT_NEAR(exps[block * kLogitBlock + i], e, 2e-6 * e) << n << " " << i;
        expected += e;
      }
      EXPECT_NEAR(sums[block], expected, 2e-6 * expected);
      expected_total += expected;
    }
    EXPECT_EQ(max, *std::ranges::max_element(maxima));
    EXPECT_NEAR(total, expected_total, 2e-6 * expected_total);
    logits[n - 1] = NAN;
    EXPECT_TRUE(std::isnan(GetParam()->block_exps(logits.data(), n, max, 0.5f, nullptr, sums.data()))) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(AllKernels, ElementwiseTest, testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->isa); });

}  // namespace
}  // namespace coppice::ops
