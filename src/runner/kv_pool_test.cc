// KV of a path by token, read and written through pages of any size, as prefixes on disk and in host memory need it.
#include "runner/kv_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/thread_pool.h"

namespace coppice {
namespace {

struct Pool {
  explicit Pool(int32_t page_size, const KvPool::Shape::Heads& heads = {}, const TokenStripe& stripe = {}) {
    const std::vector<int32_t> groups = {0, 1, 0};
    std::vector<attention::AttentionSpec> specs(
        2, {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 8, .q_dtype = DType::kF32, .kv_dtype = DType::kF32});
    specs[1].window = 16;
    pool = *KvPool::Create(
        device.get(), context.get(),
        {.specs = specs, .layer_groups = groups, .num_pages = 12, .page_size = page_size, .stripe = stripe, .heads = heads});
    bytes_per_token = KvPool::BytesPerPage(specs[0], 3, 1);
  }
  ThreadPool threads{1};
  std::unique_ptr<Device> device = Device::CreateCpu(&threads);
  std::unique_ptr<attention::Context> context = *attention::Context::CreateCpu(&threads);
  std::unique_ptr<KvPool> pool;
  int64_t bytes_per_token = 0;
};

TEST(KvPool, WhatIsWrittenByTokenIsReadByTokenWhateverThePageSize) {
  Pool small(4), large(16);
  ASSERT_EQ(small.bytes_per_token, 3 * 2 * 2 * 8 * 4);
  constexpr int32_t kTokens = 21;
  std::vector<std::byte> kv(kTokens * small.bytes_per_token), read(kv.size());
  for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::byte>(i * 37 + i / 251);
  ASSERT_TRUE(small.pool->WriteKv(std::vector<int32_t>{9, 1, 5, 3, 2, 7}, 0, kTokens, kv).ok());
  ASSERT_TRUE(small.pool->ReadKv(std::vector<int32_t>{9, 1, 5, 3, 2, 7}, kTokens, read).ok());
  EXPECT_EQ(read, kv);
  // From one page size to another.
  ASSERT_TRUE(large.pool->WriteKv(std::vector<int32_t>{4, 2}, 0, kTokens, read).ok());
  std::fill(read.begin(), read.end(), std::byte{0});
  ASSERT_TRUE(large.pool->ReadKv(std::vector<int32_t>{4, 2}, kTokens, read).ok());
  EXPECT_EQ(read, kv);
}

TEST(KvPool, WritingTheEndOfAPathLeavesItsBeginAndOtherSlotsAlone) {
  Pool pool(4);
  std::vector<std::byte> old(8 * pool.bytes_per_token, std::byte{1}), fresh(7 * pool.bytes_per_token, std::byte{2});
  const std::vector<int32_t> pages = {3, 6};
  ASSERT_TRUE(pool.pool->WriteKv(pages, 0, 8, old).ok());
  ASSERT_TRUE(pool.pool->WriteKv(std::vector<int32_t>{6}, 4, 7, fresh).ok());
  std::vector<std::byte> read(8 * pool.bytes_per_token);
  ASSERT_TRUE(pool.pool->ReadKv(pages, 8, read).ok());
  const size_t token = 2 * 8 * 4, plane = 8 * token;  // of one layer's K or V
  for (size_t i = 0; i < read.size(); ++i) {
    const size_t t = i % plane / token;
    ASSERT_EQ(read[i], t >= 4 && t < 7 ? std::byte{2} : std::byte{1}) << "token " << t;
  }
}

// Two pools that have three heads of a model between them, the second one's last being padding.
TEST(KvPool, PoolsOfRanksReadAndWriteTheirHeadsOfAPath) {
  constexpr int32_t kTokens = 6, kHeads = 3;
  const std::vector<int32_t> pages = {5, 2};
  Pool first(4, {.first = 0, .count = 2, .total = kHeads}), second(4, {.first = 2, .count = 1, .total = kHeads});
  std::vector<std::byte> kv(3 * 2 * kTokens * kHeads * 8 * 4), read(kv.size());
  for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::byte>(i * 37 + i / 251);
  for (Pool* pool : {&first, &second}) ASSERT_TRUE(pool->pool->WriteKv(pages, 0, kTokens, kv).ok());
  for (Pool* pool : {&first, &second}) ASSERT_TRUE(pool->pool->ReadKv(pages, kTokens, read).ok());
  EXPECT_EQ(read, kv);
}

// Three pools that divide the tokens of a page, and one that has all of them: the second part of a path is written later.
TEST(KvPool, PoolsOfRanksReadAndWriteTheirTokensOfAPath) {
  constexpr int32_t kTokens = 19;
  const std::vector<int32_t> pages = {5, 2};
  std::vector<std::unique_ptr<Pool>> parts;
  for (int32_t index = 0; index < 3; ++index)
    parts.push_back(std::make_unique<Pool>(4, KvPool::Shape::Heads{}, TokenStripe{.index = index, .count = 3}));
  std::vector<std::byte> kv(kTokens * parts[0]->bytes_per_token), end(15 * parts[0]->bytes_per_token), read(kv.size());
  for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::byte>(i * 37 + i / 251);
  for (const auto& part : parts) ASSERT_TRUE(part->pool->WriteKv(pages, 0, kTokens, kv).ok());
  for (const auto& part : parts) ASSERT_TRUE(part->pool->ReadKv(pages, kTokens, read).ok());
  EXPECT_EQ(read, kv);

  Pool whole(12);
  ASSERT_TRUE(whole.pool->WriteKv(pages, 0, kTokens, kv).ok());
  for (size_t i = 0; i < end.size(); ++i) end[i] = static_cast<std::byte>(i * 11 + i / 253);
  ASSERT_TRUE(whole.pool->WriteKv(std::span(pages).subspan(1), 12, 15, end).ok());
  for (const auto& part : parts) ASSERT_TRUE(part->pool->WriteKv(std::span(pages).subspan(1), 12, 15, end).ok());
  ASSERT_TRUE(whole.pool->ReadKv(pages, kTokens, kv).ok());
  for (const auto& part : parts) ASSERT_TRUE(part->pool->ReadKv(pages, kTokens, read).ok());
  EXPECT_EQ(read, kv);
}

TEST(KvPool, CopiedPagesAndMovedSlotsInAllLayers) {
  Pool pool(4);
  std::vector<std::byte> kv(4 * pool.bytes_per_token), read(kv.size()), moved(kv.size());
  for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<std::byte>(i * 13 + i / 255);
  ASSERT_TRUE(pool.pool->WriteKv(std::vector<int32_t>{2}, 0, 4, kv).ok());
  ASSERT_TRUE(pool.pool->CopyPages(std::vector<attention::PageCopy>{{2, 8}}).ok());
  ASSERT_TRUE(pool.pool->ReadKv(std::vector<int32_t>{8}, 4, read).ok());
  EXPECT_EQ(read, kv);
  ASSERT_TRUE(pool.pool->MoveSlots(std::vector<attention::SlotMove>{{8 * 4 + 3, 8 * 4 + 1}}).ok());
  ASSERT_TRUE(pool.pool->ReadKv(std::vector<int32_t>{8}, 4, moved).ok());
  const size_t token = 2 * 8 * 4;
  for (size_t plane = 0; plane < 3 * 2; ++plane) {
    for (size_t t = 0; t < 4; ++t) {
      const size_t from = plane * 4 + (t == 1 ? 3 : t);
      EXPECT_EQ(std::memcmp(&moved[(plane * 4 + t) * token], &kv[from * token], token), 0) << plane << ", " << t;
    }
  }
}

}  // namespace
}  // namespace coppice
