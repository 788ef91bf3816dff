#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace coppice {
namespace {

TEST(PagePool, HandsOutEachPageOnceAndThenNone) {
  PagePool pool(3, 16);
  std::vector<bool> seen(3, false);
  for (int i = 0; i < 3; ++i) {
    const PageId page = pool.Allocate();
    ASSERT_GE(page, 0);
    ASSERT_LT(page, 3);
    EXPECT_FALSE(seen[page]);
    seen[page] = true;
    EXPECT_EQ(pool.claimed_slots(page), 0);
  }
  EXPECT_EQ(pool.Allocate(), kNoPage);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(PagePool, FreesWithTheLastReference) {
  PagePool pool(1, 16);
  const PageId page = pool.Allocate();
  pool.AddReference(page);
  pool.DropReference(page);
  EXPECT_EQ(pool.num_free(), 0);
  pool.DropReference(page);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(PagePool, CountsPagesInUseOnce) {
  PagePool pool(2, 16);
  const PageId page = pool.Allocate();
  pool.AddUse(page);
  pool.AddUse(page);
  EXPECT_EQ(pool.num_in_use(), 1);
  pool.DropUse(page);
  EXPECT_EQ(pool.num_in_use(), 1);
  pool.DropUse(page);
  EXPECT_EQ(pool.num_in_use(), 0);
}

TEST(PagePool, IntegrityNamesTheLeakedPage) {
  PagePool pool(2, 16);
  const PageId page = pool.Allocate();
  const std::vector<int32_t> none(2, 0);
  const Status status = pool.CheckIntegrity(none, none);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("page " + std::to_string(page)), std::string::npos) << status.message();
}

TEST(PagePool, RandomOperationsMatchANaiveModel) {
  constexpr int kPages = 17;
  PagePool pool(kPages, 4);
  std::mt19937 random(1);
  std::vector<int32_t> references(kPages), uses(kPages);
  for (int step = 0; step < 10000; ++step) {
    const PageId page = random() % kPages;
    switch (random() % 5) {
      case 0: {
        const bool any_free = std::count(references.begin(), references.end(), 0) > 0;
        const PageId got = pool.Allocate();
        ASSERT_EQ(got != kNoPage, any_free);
        if (got != kNoPage) {
          ASSERT_EQ(references[got], 0);
          references[got] = 1;
        }
        break;
      }
      case 1:
        if (references[page] > 0) pool.AddReference(page), ++references[page];
        break;
      case 2:
        if (references[page] > (uses[page] > 0 ? 1 : 0)) pool.DropReference(page), --references[page];
        break;
      case 3:
        if (references[page] > 0) pool.AddUse(page), ++uses[page];
        break;
      case 4:
        if (uses[page] > 0) pool.DropUse(page), --uses[page];
        break;
    }
    const Status status = pool.CheckIntegrity(references, uses);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace
}  // namespace coppice
