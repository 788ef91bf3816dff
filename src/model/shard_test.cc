// Parts of a model by rank: nothing is lost or held twice, shapes are equal, and slices of stored matrices are those of the whole.
#include "model/shard.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "model/dequantize.h"
#include "model/weight_map.h"
#include "model/weights.h"
#include "tests/support/tiny_model.h"

namespace coppice {
namespace {

TEST(Shard, SmolLmOnTwoRanks) {
  ModelConfig config;  // SmolLM2-135M's
  config.num_qo_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.vocab_size = 49152;
  const Shard first{0, 2}, second{1, 2};
  EXPECT_EQ(first.QoHeads(config).count, 6);
  EXPECT_EQ(second.KvHeads(config).begin, 2);
  EXPECT_EQ(second.KvHeads(config).count, 1);
  EXPECT_EQ(second.KvHeads(config).padding(), 1);
  EXPECT_EQ(second.QoHeads(config).count, 3);
  EXPECT_EQ(second.QoHeads(config).padding(), 3);
  EXPECT_EQ(second.Columns(WeightRole::kAttentionOutput, config).begin, 6 * 64);
  EXPECT_EQ(second.Rows(WeightRole::kV, config).padded, 128);
  EXPECT_EQ(second.Rows(WeightRole::kDown, config).count, 576);
  EXPECT_EQ(second.Local(config).num_qo_heads, 6);
  EXPECT_EQ(second.Local(config).intermediate_size, 768);
  EXPECT_TRUE(second.HoldsBias(WeightRole::kUp));
  EXPECT_FALSE(second.HoldsBias(WeightRole::kDown));
  const std::vector<ShardRun> fused = second.FusedQkv(config);
  EXPECT_EQ(fused[1].begin, (9 + 2) * 64);
  EXPECT_EQ(fused[2].begin, (9 + 3 + 2) * 64);
}

TEST(Shard, MoreRanksThanKvHeadsDivideTheirQueryHeads) {
  ModelConfig config = testing::TinyConfig();
  config.num_kv_heads = 2;
  config.num_qo_heads = 14;
  // Three ranks have the first KV head, two the second.
  const int64_t kv[] = {0, 0, 0, 1, 1}, begin[] = {0, 4, 7, 7, 11}, count[] = {4, 3, 0, 4, 3}, index[] = {0, 1, 2, 0, 1};
  for (int32_t rank = 0; rank < 5; ++rank) {
    SCOPED_TRACE(rank);
    const Shard shard{rank, 5};
    EXPECT_EQ(shard.KvHeads(config).begin, kv[rank]);
    EXPECT_EQ(shard.KvHeads(config).count, 1);
    EXPECT_EQ(shard.KvHeads(config).padded, 1);
    EXPECT_EQ(shard.QoHeads(config).begin, begin[rank]);
    EXPECT_EQ(shard.QoHeads(config).count, count[rank]);
    EXPECT_EQ(shard.QoHeads(config).padded, 4);
    EXPECT_EQ(shard.IndexAtKvHead(config), index[rank]);
    EXPECT_EQ(shard.Local(config).num_kv_heads, 1);
  }
  EXPECT_EQ(Shard({1, 2}).IndexAtKvHead(config), 0);
  const int first[] = {0, 0, 0, 3, 3}, ranks[] = {3, 3, 3, 2, 2};
  for (int32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(Shard({rank, 5}).RanksAtKvHead(config).first, first[rank]);
    EXPECT_EQ(Shard({rank, 5}).RanksAtKvHead(config).count, ranks[rank]);
  }
  EXPECT_EQ(Shard({1, 2}).RanksAtKvHead(config).count, 1);
  EXPECT_EQ(Shard::KvSharers(config, 2), 1);
  EXPECT_EQ(Shard::KvSharers(config, 5), 0);
  EXPECT_EQ(Shard::KvSharers(config, 6), 3);
}

TEST(Shard, RanksHoldEverythingOnceInEqualShapes) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    ModelConfig config = testing::TinyConfig();
    config.num_kv_heads = 1 + static_cast<int32_t>(random() % 9);
    config.num_qo_heads = config.num_kv_heads * (1 + static_cast<int32_t>(random() % 5));
    config.intermediate_size = 2 + static_cast<int32_t>(random() % 400);
    config.vocab_size = 1 + static_cast<int32_t>(random() % 400);
    const auto ranks = 1 + static_cast<int32_t>(random() % 7);
    for (const WeightRole role : {WeightRole::kEmbedding, WeightRole::kQ, WeightRole::kK, WeightRole::kUp, WeightRole::kDown}) {
      const int64_t total = Shard{}.Rows(role, config).count, cols = Shard{}.Columns(role, config).count;
      int64_t next = 0, next_col = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const Shard shard{rank, ranks};
        const ShardRun rows = shard.Rows(role, config), columns = shard.Columns(role, config);
        EXPECT_EQ(rows.padded, Shard({0, ranks}).Rows(role, config).padded);
        EXPECT_GE(rows.padding(), 0);
        if (role == WeightRole::kDown) {
          EXPECT_EQ(columns.begin, next_col);
          next_col += columns.count;
          EXPECT_EQ(rows.count, total);
          next = total;
        } else {
          const bool is_copy = role == WeightRole::kK && shard.IndexAtKvHead(config) > 0;
          EXPECT_EQ(rows.begin, is_copy ? next - rows.count : next);
          if (!is_copy) next += rows.count;
          EXPECT_EQ(columns.count, cols);
          next_col = cols;
        }
      }
      EXPECT_EQ(next, total);
      EXPECT_EQ(next_col, cols);
    }
  }
}

TEST(Shard, RowsOfRunsOneAfterTheOther) {
  const std::vector<RowRun> runs = {{10, 4}, {30, 2}, {20, 5}};
  const auto selected = SelectRows(runs, {3, 5});
  ASSERT_EQ(selected.size(), 3u);
  EXPECT_EQ(selected[0].begin, 13);
  EXPECT_EQ(selected[0].count, 1);
  EXPECT_EQ(selected[1].begin, 30);
  EXPECT_EQ(selected[1].count, 2);
  EXPECT_EQ(selected[2].begin, 20);
  EXPECT_EQ(selected[2].count, 2);
  EXPECT_TRUE(SelectRows(runs, {11, 0}).empty());
}

// Of matrices in every format, with rows of heads in either order; columns that begin and end inside blocks too.
TEST(Shard, SlicesOfStoredMatricesAreThoseOfTheWhole) {
  constexpr int64_t kRows = 16, kCols = 512;
  std::mt19937 random(5);
  for (const StoredType type : {StoredType::kF32, StoredType::kF16, StoredType::kQ4_1, StoredType::kQ8_0, StoredType::kQ4_K}) {
    std::vector<std::byte> stored(StoredBytes(type, kRows * kCols));
    for (std::byte& byte : stored) byte = static_cast<std::byte>(random() % 60);  // no exponent of infinity
    for (const int32_t heads : {0, 2}) {
      const StoredTensor matrix = {.type = type, .shape = {kRows, kCols}, .data = stored, .interleaved_heads = heads};
      std::vector<float> whole(kRows * kCols);
      ASSERT_TRUE(LoadWeight("matrix", matrix, kRows, kCols, DType::kF32, std::as_writable_bytes(std::span(whole))).ok());
      for (const MatrixSlice& slice :
           {MatrixSlice{{0, 16}, {0, 512}}, MatrixSlice{{3, 7}, {0, 512}}, MatrixSlice{{5, 9}, {256, 256}},
            MatrixSlice{{1, 4}, {32, 96}}, MatrixSlice{{2, 3}, {7, 50}}, MatrixSlice{{4, 0}, {0, 0}}}) {
        const int64_t out_cols = slice.cols.count + 256;  // rows are padded where they go
        const auto expect = [&](std::span<const float> values, const char* what) {
          for (int64_t row = 0; row < slice.rows.count; ++row) {
            for (int64_t col = 0; col < slice.cols.count; ++col) {
              ASSERT_EQ(values[row * out_cols + col], whole[(slice.rows.begin + row) * kCols + slice.cols.begin + col])
                  << what << " of " << Name(type) << ", " << heads << " heads, row " << row << ", column " << col;
            }
          }
        };
        std::vector<float> values(slice.rows.count * out_cols + 1);
        LoadSlice(matrix, slice, DType::kF32, out_cols, std::as_writable_bytes(std::span(values)).data());
        ASSERT_NO_FATAL_FAILURE(expect(values, "elements"));
        const int64_t block = Traits(type).block_elements;
        if (slice.cols.begin % block != 0 || slice.cols.count % block != 0 || block == 1) continue;
        std::vector<std::byte> blocks(StoredBytes(type, slice.rows.count * out_cols));
        LoadBlocks(matrix, slice, StoredBytes(type, out_cols), blocks.data());
        if (!blocks.empty()) Dequantize(type, blocks.data(), slice.rows.count * out_cols, values.data());
        ASSERT_NO_FATAL_FAILURE(expect(values, "blocks"));
        if (CodeBits(type) == 0) continue;
        std::vector<int8_t> codes(slice.rows.count * out_cols);
        std::vector<F16> scales(codes.size() / 32), minima(codes.size() / 32);
        ASSERT_TRUE(LoadCodes(matrix, slice, out_cols, codes.data(), scales.data(), minima.data()));
        for (size_t i = 0; i < codes.size(); ++i) {
          values[i] = scales[i / 32].ToFloat() * static_cast<float>(codes[i]) + minima[i / 32].ToFloat();
        }
        ASSERT_NO_FATAL_FAILURE(expect(values, "codes"));
      }
    }
  }
}

}  // namespace
}  // namespace coppice
