// Element-wise ops against double precision, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/thread_pool.h"
#include "ops/cpu/cpu_ops.h"

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
  std::unique_ptr<Ops> ops_ = MakeCpuOps(&pool_, {}, *GetParam(), ProductLibrary::kAuto);
  std::mt19937 random_{7};
};

TEST_P(ElementwiseTest, ConvertRoundsToNearestEvenAndKeepsNan) {
  std::vector<float> x = Random(999, 1e3f);
  x.insert(x.end(), {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f});
  std::vector<BF16> y(x.size());
  GetParam()->convert(x.data(), static_cast<int64_t>(x.size()), DType::kBF16, y.data());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, BF16::FromFloat(x[i]).bits) << x[i];
}

TEST_P(ElementwiseTest, SiluMulOverTheWholeRange) {
  std::vector<float> gate;
  for (float g = -120; g <= 120; g += 0.0625f) gate.push_back(g);
  gate.insert(gate.end(), {1e-30f, -1e-30f, 1e30f, -1e30f});
  const std::vector<float> up = Random(gate.size(), 2.0f);
  std::vector<float> y(gate.size());
  GetParam()->silu_mul(gate.data(), up.data(), static_cast<int64_t>(y.size()), DType::kF32, y.data());
  for (size_t i = 0; i < y.size(); ++i) {
    const double expected = double{gate[i]} / (1 + std::exp(-double{gate[i]})) * up[i];
    // exp saturates at +-87, where silu is below 1e-35 of its input.
    ASSERT_NEAR(y[i], expected, std::abs(expected) * 1e-6 + std::abs(gate[i]) * 1e-35) << gate[i];
  }
}

TEST_P(ElementwiseTest, RmsNormOfChosenRows) {
  for (int64_t cols : {1, 3, 16, 96, 576, 577}) {
    const int64_t rows = 9;
    const std::vector<float> x = Random(rows * cols, 3.0f), weight = Random(cols, 1.0f);
    const std::vector<int32_t> chosen = {8, 0, 4};
    std::vector<float> y(chosen.size() * cols);
    std::vector<BF16> y_bf16(rows * cols);
    ops_->RmsNorm({x.data(), rows, cols}, {weight, 1e-5f}, {y.data(), DType::kF32, 3, cols, cols}, chosen);
    ops_->RmsNorm({x.data(), rows, cols}, {weight, 1e-5f}, {y_bf16.data(), DType::kBF16, rows, cols, cols});
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < cols; ++c) squares += double{x[r * cols + c]} * x[r * cols + c];
      const double scale = 1 / std::sqrt(squares / cols + 1e-5);
      for (int64_t c = 0; c < cols; ++c) {
        const double expected = x[r * cols + c] * scale * weight[c];
        ASSERT_NEAR(y_bf16[r * cols + c].ToFloat(), expected, std::abs(expected) * 0x1.1p-8) << r << ", " << c;
        for (size_t i = 0; i < chosen.size(); ++i) {
          if (chosen[i] != r) continue;
          ASSERT_NEAR(y[i * cols + c], expected, std::abs(expected) * 1e-6) << r << ", " << c;
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, SplitHeadsNormalisesRotatesAndConverts) {
  for (int32_t head_dim : {2, 6, 64, 128, 256}) {
    const int64_t tokens = 5, q_heads = 6, kv_heads = 2, cols = (q_heads + 2 * kv_heads) * head_dim;
    const std::vector<float> qkv = Random(tokens * cols, 2.0f), q_norm = Random(head_dim, 1.0f);
    const std::vector<int32_t> positions = {0, 1, 77, 4095, 8191};
    std::vector<float> inverse(head_dim / 2);
    for (int32_t i = 0; i < head_dim / 2; ++i) inverse[i] = static_cast<float>(std::pow(1e4, -2.0 * i / head_dim));
    std::vector<float> cos(tokens * inverse.size()), sin(cos.size());
    const auto half = static_cast<int64_t>(inverse.size());
    ops_->RopeAngles(positions, inverse, {cos.data(), tokens, half}, {sin.data(), tokens, half});
    std::vector<float> q(tokens * q_heads * head_dim), k(tokens * kv_heads * head_dim);
    std::vector<BF16> v(k.size());
    ops_->SplitHeads({.qkv = {qkv.data(), tokens, cols},
                      .cos = {cos.data(), tokens, half},
                      .sin = {sin.data(), tokens, half},
                      .num_qo_heads = q_heads,
                      .num_kv_heads = kv_heads,
                      .head_dim = head_dim,
                      .q_norm = {q_norm, 1e-6f},
                      .q = {q.data(), DType::kF32, tokens, q_heads * head_dim, q_heads * head_dim},
                      .k = {k.data(), DType::kF32, tokens, kv_heads * head_dim, kv_heads * head_dim},
                      .v = {v.data(), DType::kBF16, tokens, kv_heads * head_dim, kv_heads * head_dim}});
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < q_heads + 2 * kv_heads; ++h) {
        std::vector<double> head(head_dim);
        for (int32_t d = 0; d < head_dim; ++d) head[d] = qkv[t * cols + h * head_dim + d];
        if (h < q_heads) {
          double squares = 0;
          for (double d : head) squares += d * d;
          for (int32_t d = 0; d < head_dim; ++d) head[d] *= q_norm[d] / std::sqrt(squares / head_dim + 1e-6);
        }
        for (int64_t d = 0; d < head_dim; ++d) {
          const int64_t i = d % half;
          const double angle = double{static_cast<float>(positions[t]) * inverse[i]};
          const double rotated = d < half ? head[d] * std::cos(angle) - head[d + half] * std::sin(angle)
                                          : head[d] * std::cos(angle) + head[d - half] * std::sin(angle);
          if (h < q_heads) {
            ASSERT_NEAR(q[(t * q_heads + h) * head_dim + d], rotated, 4e-6) << t << ", " << h << ", " << d;
          } else if (h < q_heads + kv_heads) {
            ASSERT_NEAR(k[(t * kv_heads + h - q_heads) * head_dim + d], rotated, 4e-6) << t << ", " << h << ", " << d;
          } else {
            ASSERT_EQ(v[(t * kv_heads + h - q_heads - kv_heads) * head_dim + d].bits, BF16::FromFloat(head[d]).bits);
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
    ops_->Embed(ids, **packed, {y.data(), static_cast<int64_t>(ids.size()), hidden});
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t c = 0; c < hidden; ++c) {
        const int64_t at = ids[i] * hidden + c;
        ASSERT_EQ(y[i * hidden + c], f32 ? table[at] : table_bf16[at].ToFloat());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllKernels, ElementwiseTest, testing::ValuesIn(SupportedKernels().begin(), SupportedKernels().end()),
                         [](const auto& info) { return std::string(info.param->isa); });

}  // namespace
}  // namespace coppice::ops
