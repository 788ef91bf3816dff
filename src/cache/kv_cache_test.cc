// KvCache against a memory that remembers which path each slot was computed for: whatever is shared, copied, evicted or forked, a
// branch must read exactly its own history, through its own row and through every other member's row of a shared forest node.
#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "attention/cuda/page_rows.h"
#include "cache/cache_step.h"
#include "core/math.h"
#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using attention::kFreeSlot;
using attention::kLive;
using attention::kNoParent;

struct Sequence {
  BranchId branch = kNoBranch;
  std::string salt, tenant;
  int32_t private_begin = 0, tenant_begin = 0;
  std::vector<int32_t> tokens;
  int32_t computed = 0;
  int32_t prompt = 0;

  CacheSalt cache_salt() const {
    return {.salt = salt, .private_begin = private_begin, .tenant = tenant, .tenant_begin = tenant_begin};
  }
};

// A hash of the inputs of a token's KV: tokens up to it, and (so that sharing across salts and tenants shows) its salt and tenant.
uint64_t Fingerprint(const Sequence& sequence, int32_t kv_index) {
  uint64_t h = 1469598103934665603u;
  for (int32_t i = 0; i <= kv_index; ++i) {
    const bool is_private = !sequence.salt.empty() && i >= sequence.private_begin;
    const bool of_tenant = !sequence.tenant.empty() && (is_private || i >= sequence.tenant_begin);
    const uint64_t salt = (is_private ? std::hash<std::string>()(sequence.salt) : 0) +
                          (of_tenant ? 3 * std::hash<std::string>()(sequence.tenant) : 0);
    h = (h ^ (salt + static_cast<uint64_t>(sequence.tokens[i]))) * 1099511628211u;
  }
  return h;
}

class Harness {
 public:
  Harness(int32_t pages, int32_t page_size, int32_t branches, bool share)
      : page_size_(page_size),
        memory_(static_cast<size_t>(pages) * page_size),
        device_rows_(
            {.max_branches = branches, .max_page_slots = branches * static_cast<int32_t>(CeilDiv(kMaxContext, page_size))}) {
    auto cache = KvCache::Create(
        {.num_pages = pages, .page_size = page_size, .max_branches = branches, .max_context = kMaxContext, .share = share});
    cache_ = std::move(cache).value();
  }
  static constexpr int32_t kMaxContext = 64;

  KvCache& cache() { return *cache_; }
  KvCache::Outcome Admit(Sequence* sequence, int32_t compute_from = INT32_MAX) {
    const auto admission =
        cache_->Admit({.tokens = sequence->tokens, .salt = sequence->cache_salt(), .compute_from = compute_from});
    sequence->branch = admission.branch;
    sequence->computed = admission.computed;
    sequence->prompt = static_cast<int32_t>(sequence->tokens.size());
    return admission.outcome;
  }
  // One forward step of `sequences`, `counts` tokens each.
  void Step(const std::vector<std::pair<Sequence*, int32_t>>& work) {
    CacheStep step = cache_->BeginStep();
    int32_t queries = 0;
    for (const auto& [sequence, count] : work) {
      step.SetQueries(sequence->branch, queries, count, sequence->computed + count);
      queries += count;
    }
    const auto [forest, copies] = step.Take();
    Copy(copies);
    for (const auto& [sequence, count] : work) {
      for (int32_t i = sequence->computed; i < sequence->computed + count; ++i) {
        if (const int64_t slot = cache_->SlotOf(sequence->branch, i); slot >= 0) memory_[slot] = Fingerprint(*sequence, i);
      }
    }
    ExpectForestHolds(forest, work);
    ExpectChangedRowsAreReported(forest);
    step.Launched();
    for (const auto& [sequence, count] : work) {
      sequence->computed += count;
      cache_->MarkComputed(sequence->branch, sequence->computed);
      if (const auto [begin, end] = cache_->Unpublished(sequence->branch); begin < end) {
        cache_->Publish(sequence->branch, std::span(sequence->tokens).subspan(begin, end - begin));
      }
    }
    step.Computed();
  }
  void FlushCopies() {
    CacheStep step = cache_->BeginStep();
    if (!step.has_copies()) return;
    Copy(step.Take().copies);
    step.Launched();
    step.Computed();
  }
  void Copy(std::span<const attention::PageCopy> copies) {
    for (const attention::PageCopy& copy : copies) {
      for (int32_t s = 0; s < page_size_; ++s) memory_[copy.to * page_size_ + s] = memory_[copy.from * page_size_ + s];
    }
  }
  void Release(const Sequence& sequence) { cache_->Release(sequence.branch, sequence.tokens); }
  uint64_t Read(const attention::PrefixForestView& forest, BranchId row, int32_t kv_index) const {
    const int32_t page = forest.page_indices[forest.branch_page_begin[row] + kv_index / page_size_];
    return memory_[page * page_size_ + kv_index % page_size_];
  }

 private:
  // A device's copy of the rows, by the changes alone; it sees most steps, not all.
  void ExpectChangedRowsAreReported(const attention::PrefixForestView& forest) {
    if (++steps_ % 7 == 0) return;
    device_rows_.FindChanges(forest);
    device_rows_.Take(forest);
    device_pages_.resize(forest.page_indices.size());
    for (const auto& patch : device_rows_.patches()) device_pages_[patch.at] = patch.page;
    for (const auto& run : device_rows_.runs()) {
      std::ranges::copy(device_rows_.PagesOf(run), device_pages_.begin() + run.begin);
    }
    for (size_t b = 0; b < forest.branch_node.size(); ++b) {
      if (forest.branch_node[b] == attention::kFreeSlot) continue;
      const int32_t begin = forest.branch_page_begin[b];
      for (int32_t i = begin; i < begin + CeilDiv(forest.branch_kv_len[b], page_size_); ++i) {
        ASSERT_EQ(device_pages_[i], forest.page_indices[i]) << "entry " << i - begin << " of branch " << b;
      }
    }
  }
  void ExpectForestHolds(const attention::PrefixForestView& forest, const std::vector<std::pair<Sequence*, int32_t>>& work) {
    // Members of each forest node.
    std::vector<std::vector<const Sequence*>> members(forest.node_parent.size());
    for (const auto& [sequence, count] : work) {
      for (int32_t n = forest.branch_node[sequence->branch]; n != kNoParent; n = forest.node_parent[n]) {
        ASSERT_NE(forest.node_parent[n], kFreeSlot);
        members[n].push_back(sequence);
      }
      ASSERT_EQ(forest.branch_kv_len[sequence->branch], sequence->computed + count);
    }
    for (size_t n = 0; n < members.size(); ++n) {
      for (const Sequence* reader : members[n]) {
        const int32_t kv_len = forest.branch_kv_len[reader->branch];
        const int32_t end = forest.node_end[n] == kLive ? kv_len : forest.node_end[n];
        ASSERT_LE(end, kv_len);
        for (int32_t i = forest.node_begin[n]; i < end; ++i) {
          for (const Sequence* row : members[n])
            ASSERT_EQ(Read(forest, row->branch, i), Fingerprint(*reader, i)) << "kv index " << i;
        }
      }
    }
  }

  int32_t page_size_;
  std::vector<uint64_t> memory_;
  attention::cuda::PageRows device_rows_;
  std::vector<PageId> device_pages_;
  int steps_ = 0;
  std::unique_ptr<KvCache> cache_;
};

std::vector<int32_t> Tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  for (int32_t i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

TEST(KvCache, StoresAPromptOnceForAllItsSamples) {
  for (const int32_t prompt : {1, 15, 16, 17, 40}) {
    SCOPED_TRACE(prompt);
    Harness harness(64, 16, 8, /*share=*/true);
    Sequence first{.tokens = Tokens(prompt)};
    ASSERT_EQ(harness.Admit(&first), KvCache::Outcome::kAdmitted);
    harness.Step({{&first, prompt}});
    std::vector<Sequence> samples(8, first);
    for (int i = 1; i < 8; ++i) samples[i].branch = harness.cache().Fork(first.branch, first.computed);
    std::vector<std::pair<Sequence*, int32_t>> work;
    for (int i = 0; i < 8; ++i) {
      samples[i].tokens.push_back(100 + i);
      ASSERT_TRUE(harness.cache().Grow(samples[i].branch, prompt + 1));
      work.emplace_back(&samples[i], 1);
    }
    harness.Step(work);
    // The prompt's whole pages once, one page per sample; the page in which the prompt ends serves one of them in place.
    const auto usage = harness.cache().usage();
    EXPECT_EQ(usage.pages_in_use, prompt / 16 + 8);
    EXPECT_EQ(usage.tokens_in_use, prompt + 8);
    EXPECT_EQ(usage.pages_unshared, 8 * ((prompt + 1 + 15) / 16));
    EXPECT_EQ(harness.cache().forest().num_junctions(), 1);
    ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
    for (const Sequence& sample : samples) harness.Release(sample);
    EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
    EXPECT_EQ(harness.cache().forest().num_junctions(), 0);
    const Status status = harness.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status.message();
    harness.cache().DropCached();
    EXPECT_EQ(harness.cache().usage().pages_owned, 0);
  }
}

TEST(KvCache, AForkAtAnyTokenSharesWholePagesAndHasACopyOfTheOpenOne) {
  constexpr int32_t kPageSize = 4, kPrompt = 10, kLength = 23;
  for (const bool share : {true, false}) {
    for (int32_t kv_len = 0; kv_len <= kLength; ++kv_len) {
      SCOPED_TRACE("share " + std::to_string(share) + ", fork at " + std::to_string(kv_len));
      Harness harness(64, kPageSize, 4, share);
      Sequence parent{.tokens = Tokens(kPrompt)};
      ASSERT_EQ(harness.Admit(&parent), KvCache::Outcome::kAdmitted);
      harness.Step({{&parent, kPrompt}});
      while (std::ssize(parent.tokens) < kLength) {
        parent.tokens.push_back(static_cast<int32_t>(parent.tokens.size()));
        ASSERT_TRUE(harness.cache().Grow(parent.branch, std::ssize(parent.tokens)));
        harness.Step({{&parent, 1}});
      }
      const int32_t pages_before = harness.cache().usage().pages_in_use;
      std::vector<Sequence> family(3, parent);
      std::vector<std::pair<Sequence*, int32_t>> work;
      for (int32_t i = 1; i < 3; ++i) {
        family[i].branch = harness.cache().Fork(parent.branch, kv_len);
        ASSERT_NE(family[i].branch, kNoBranch);
        family[i].tokens.resize(kv_len);
        family[i].computed = kv_len;
        ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
      }
      harness.FlushCopies();
      for (int32_t i = 0; i < 3; ++i) {
        Sequence& one = family[i];
        one.tokens.push_back(100 + i);
        ASSERT_TRUE(harness.cache().Grow(one.branch, std::ssize(one.tokens)));
        work.emplace_back(&one, 1);
      }
      ASSERT_NO_FATAL_FAILURE(harness.Step(work));
      const int32_t whole = share ? 0 : kv_len / kPageSize;
      EXPECT_EQ(harness.cache().usage().pages_in_use, pages_before + 2 * (whole + 1));
      Status status = harness.cache().CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message();
      harness.Release(family[0]);  // children outlive what they come from
      for (int32_t i = 1; i < 3; ++i) {
        family[i].tokens.push_back(7);
        ASSERT_TRUE(harness.cache().Grow(family[i].branch, std::ssize(family[i].tokens)));
      }
      ASSERT_NO_FATAL_FAILURE(harness.Step({{&family[1], 1}, {&family[2], 1}}));
      harness.Release(family[1]);
      harness.Release(family[2]);
      EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
      harness.cache().DropCached();
      EXPECT_EQ(harness.cache().usage().pages_owned, 0);
      status = harness.cache().CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST(KvCache, AForkWithoutRoomChangesNothing) {
  Harness harness(4, 4, 3, /*share=*/true);
  Sequence parent{.tokens = Tokens(8)}, other{.tokens = Tokens(4)};
  other.tokens[0] = 99;
  ASSERT_EQ(harness.Admit(&parent), KvCache::Outcome::kAdmitted);
  ASSERT_EQ(harness.Admit(&other), KvCache::Outcome::kAdmitted);
  harness.Step({{&parent, 8}, {&other, 4}});
  parent.tokens.push_back(1);
  ASSERT_TRUE(harness.cache().Grow(parent.branch, 9));
  harness.Step({{&parent, 1}});
  EXPECT_EQ(harness.cache().Fork(parent.branch, 9), kNoBranch);  // all four pages are in use
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  Sequence child = parent;
  child.branch = harness.cache().Fork(parent.branch, 8);  // takes none
  ASSERT_NE(child.branch, kNoBranch);
  EXPECT_EQ(harness.cache().Fork(parent.branch, 8), kNoBranch);  // no slot
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  for (const Sequence* sequence : {&parent, &other}) harness.Release(*sequence);
  child.tokens.resize(8);
  harness.Release(child);
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
}

TEST(KvCache, WithoutSharingEachSampleHasItsCopy) {
  Harness harness(64, 16, 4, /*share=*/false);
  Sequence first{.tokens = Tokens(20)};
  ASSERT_EQ(harness.Admit(&first), KvCache::Outcome::kAdmitted);
  harness.Step({{&first, 20}});
  Sequence second = first;
  second.branch = harness.cache().Fork(first.branch, first.computed);
  harness.FlushCopies();
  EXPECT_EQ(harness.cache().usage().pages_in_use, 4);
  EXPECT_EQ(harness.cache().forest().num_junctions(), 0);
  first.tokens.push_back(1);
  second.tokens.push_back(2);
  ASSERT_TRUE(harness.cache().Grow(first.branch, 21));
  ASSERT_TRUE(harness.cache().Grow(second.branch, 21));
  harness.Step({{&first, 1}, {&second, 1}});
  harness.Release(first);
  harness.Release(second);
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
}

TEST(KvCache, AnEqualPromptInFlightWaitsAndThenReadsOnlyItsLastToken) {
  Harness harness(64, 16, 4, true);
  Sequence a{.tokens = Tokens(40)}, b{.tokens = Tokens(40)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(harness.Admit(&b), KvCache::Outcome::kPending);
  harness.Step({{&a, 20}});
  EXPECT_EQ(harness.Admit(&b), KvCache::Outcome::kPending);
  harness.Step({{&a, 20}});
  ASSERT_EQ(harness.Admit(&b), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(b.computed, 39);
  EXPECT_EQ(harness.cache().SlotOf(b.branch, 39), -1);  // its KV is there: attend, do not write
  EXPECT_EQ(harness.cache().usage().pages_in_use, 3);
  harness.Step({{&b, 1}});
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
}

TEST(KvCache, CancellingTheComputingBranchHandsTheWorkOver) {
  Harness harness(64, 16, 4, true);
  Sequence a{.tokens = Tokens(40)}, b{.tokens = Tokens(40)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  harness.Step({{&a, 20}});
  harness.Release(a);
  ASSERT_EQ(harness.Admit(&b), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(b.computed, 20);
  harness.Step({{&b, 20}});
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
}

TEST(KvCache, AFollowUpTurnFindsTheGeneratedText) {
  Harness harness(64, 16, 4, true);
  Sequence a{.tokens = Tokens(20)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  harness.Step({{&a, 20}});
  for (int i = 0; i < 5; ++i) {
    a.tokens.push_back(50 + i);
    ASSERT_TRUE(harness.cache().Grow(a.branch, static_cast<int32_t>(a.tokens.size())));
    harness.Step({{&a, 1}});
  }
  harness.Release(a);
  Sequence turn{.tokens = a.tokens};
  for (int i = 0; i < 10; ++i) turn.tokens.push_back(80 + i);
  ASSERT_EQ(harness.Admit(&turn), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(turn.computed, 25);
  EXPECT_FALSE(harness.cache().BeginStep().has_copies());  // no other write past it: continued in place
  harness.Step({{&turn, 10}});
}

TEST(KvCache, PagesThatTwoBranchesComputedAlikeAreMerged) {
  Harness harness(64, 16, 4, true);
  Sequence a{.tokens = Tokens(20)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  harness.Step({{&a, 20}});
  Sequence b = a, c = a;
  b.branch = harness.cache().Fork(a.branch, a.computed);
  c.branch = harness.cache().Fork(a.branch, a.computed);
  for (int32_t i = 20; i < 50; ++i) {  // a and b go the same way, c parts from them inside the third page
    for (Sequence* sequence : {&a, &b, &c}) {
      sequence->tokens.push_back(sequence == &c && i >= 36 ? 500 + i : i);
      ASSERT_TRUE(harness.cache().Grow(sequence->branch, i + 1));
    }
    harness.Step({{&a, 1}, {&b, 1}, {&c, 1}});
    const Status status = harness.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status.message() << " at " << i;
  }
  // Page 1 of b and c, page 2 of b. Kept: pages 0 to 2 of a, page 2 of c, and a fourth page each.
  EXPECT_EQ(harness.cache().usage().merged_pages, 3);
  EXPECT_EQ(harness.cache().usage().pages_in_use, 3 + 1 + 3);
  EXPECT_EQ(harness.cache().forest().num_junctions(), 2);  // at 36, where c parts, and at 48, where a and b may
  // While they run, a newcomer shares what is published.
  Sequence d{.tokens = std::vector<int32_t>(b.tokens.begin(), b.tokens.begin() + 49)};
  ASSERT_EQ(harness.Admit(&d), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(d.computed, 48);
  harness.Step({{&d, 1}, {&a, 0}});
  for (const Sequence* sequence : {&a, &b, &c, &d}) harness.Release(*sequence);
  harness.cache().DropCached();
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
}

TEST(KvCache, PromptLogProbabilitiesComputeEverythingAndThenShare) {
  Harness harness(64, 16, 4, true);
  Sequence a{.tokens = Tokens(20)}, b{.tokens = Tokens(20)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  harness.Step({{&a, 20}});
  ASSERT_EQ(harness.Admit(&b, /*compute_from=*/0), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(b.computed, 0);
  harness.Step({{&b, 10}});
  EXPECT_EQ(harness.cache().forest().num_junctions(), 0);
  harness.Step({{&b, 10}});
  EXPECT_EQ(harness.cache().forest().num_junctions(), 1);
  EXPECT_EQ(harness.cache().usage().pages_in_use, 2);
}

TEST(KvCache, WhatIsComputedAgainSharesWhatIsBeforeIt) {
  Harness harness(64, 4, 4, true);
  Sequence a{.tokens = Tokens(20)}, b{.tokens = Tokens(22)}, c{.tokens = Tokens(20)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  harness.Step({{&a, 20}});
  ASSERT_EQ(harness.Admit(&b, /*compute_from=*/10), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(b.computed, 10);
  harness.Step({{&b, 5}});
  EXPECT_EQ(harness.cache().forest().num_junctions(), 1);  // at 10
  const attention::PrefixForestView forest = harness.cache().forest().View();
  EXPECT_EQ(forest.node_end[forest.node_parent[forest.branch_node[b.branch]]], 10);
  // With another beside it that recomputes more.
  ASSERT_EQ(harness.Admit(&c, /*compute_from=*/6), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(c.computed, 6);
  harness.Step({{&b, 7}, {&c, 14}});
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  for (const Sequence* sequence : {&a, &b, &c}) harness.Release(*sequence);
  harness.cache().DropCached();
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
}

TEST(KvCache, APinnedPromptIsNotEvicted) {
  Harness harness(8, 16, 4, true);
  Sequence a{.tokens = Tokens(40)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  harness.Step({{&a, 40}});
  EXPECT_TRUE(harness.cache().pins().Pin("system", a.branch));
  harness.Release(a);
  EXPECT_EQ(harness.cache().usage().pages_in_use, 3);
  harness.cache().DropCached();
  Sequence b{.tokens = Tokens(48)};
  ASSERT_EQ(harness.Admit(&b), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(b.computed, 40);
  harness.Step({{&b, 8}});
  EXPECT_TRUE(harness.cache().pins().Pin("system", b.branch));  // moves
  harness.Release(b);
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  EXPECT_TRUE(harness.cache().pins().Unpin("system"));
  EXPECT_FALSE(harness.cache().pins().Unpin("system"));
  harness.cache().DropCached();
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
}

TEST(KvCache, OutOfPagesIsANormalResult) {
  Harness harness(4, 16, 4, true);
  Sequence a{.tokens = Tokens(40)}, b{.tokens = Tokens(40, 100)};
  ASSERT_EQ(harness.Admit(&a), KvCache::Outcome::kAdmitted);
  EXPECT_EQ(harness.Admit(&b), KvCache::Outcome::kNoRoom);
  harness.Step({{&a, 40}});
  ASSERT_TRUE(harness.cache().Grow(a.branch, 64));
  harness.Release(a);
  ASSERT_EQ(harness.Admit(&b), KvCache::Outcome::kAdmitted);  // evicts a part of what a left
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
}

TEST(KvCache, TenantsShareWhatLiesBeforeTheirBegin) {
  Harness harness(64, 4, 8, true);
  const auto cached = [&](const std::string& tenant, int32_t tenant_begin, const std::string& salt = {},
                          int32_t private_begin = 0) {
    Sequence sequence{
        .salt = salt, .tenant = tenant, .private_begin = private_begin, .tenant_begin = tenant_begin, .tokens = Tokens(24)};
    EXPECT_EQ(harness.Admit(&sequence), KvCache::Outcome::kAdmitted);
    const int32_t found = sequence.computed;
    harness.Step({{&sequence, 24 - found}});
    harness.Release(sequence);
    EXPECT_TRUE(harness.cache().CheckIntegrity().ok());
    return found;
  };
  EXPECT_EQ(cached("t", 0), 0);
  EXPECT_EQ(cached("t", 0), 23);   // its own
  EXPECT_EQ(cached("u", 0), 0);    // nothing of another's
  EXPECT_EQ(cached("", 0), 0);     // nor without a tenant
  EXPECT_EQ(cached("u", 10), 10);  // what all tenants share
  EXPECT_EQ(cached("u", 10), 23);
  EXPECT_EQ(cached("t", 10, "s", 15), 10);
  EXPECT_EQ(cached("t", 10, "s", 15), 23);
  EXPECT_EQ(cached("t", 10), 15);           // the tenant's, up to the salt
  EXPECT_EQ(cached("u", 10, "s", 10), 10);  // another tenant's salt of the same name
  EXPECT_EQ(cached("", 0, "s", 10), 10);    // and that of no tenant
  EXPECT_EQ(cached("ts", 10), 10);          // names do not run into each other
  EXPECT_EQ(cached("t", 20, "s", 15), 15);  // where a salt begins, the tenant does
  EXPECT_EQ(cached("t", 15, "r", 15), 15);
  EXPECT_EQ(cached("t", 20, "r", 15), 23);  // and a beginning of the tenant behind it divides nothing
  const KvCache::PrefixUses uses = harness.cache().TopPrefixes(100);
  EXPECT_EQ(uses.of_tenants.size(), 3U);
  size_t own = 0;
  for (const auto& [tenant, nodes] : uses.of_tenants) {
    own += nodes.size();
    int32_t at_the_top = 0;
    for (const KvCache::PrefixUse& use : nodes) at_the_top += use.parent == kRootNode;
    EXPECT_GT(at_the_top, 0) << tenant;
  }
  EXPECT_LT(own, uses.all.size());  // some belong to no tenant
}

// COPPICE_LONG_TEST=1 (ctest label `long`) runs 10^6 events.
// Prompts that wait, each with the place where it was found last: looking from there must give what looking from the start gives.
class Watchers {
 public:
  explicit Watchers(std::mt19937* random) : random_(*random) {}
  void Add(const Sequence& sequence) {
    if (watchers_.size() < 12) watchers_.emplace_back();
    Watcher& watcher = watchers_[random_() % watchers_.size()];
    watcher = {.sequence = sequence};
    for (size_t i = random_() % 8; i > 0; --i) watcher.sequence.tokens.push_back(static_cast<int32_t>(random_() % 2));
  }
  void Check(const KvCache& cache) {
    for (Watcher& watcher : watchers_) {
      if (random_() % 4 == 0) continue;
      const std::vector<int32_t>& tokens = watcher.sequence.tokens;
      const CacheSalt salt = watcher.sequence.cache_salt();
      PrefixTree::Cursor fresh;
      const KvCache::Overlap expected = cache.FindOverlap(tokens, salt, &fresh);
      const KvCache::Overlap overlap = cache.FindOverlap(tokens, salt, &watcher.cursor);
      ASSERT_EQ(overlap.cached, expected.cached);
      ASSERT_EQ(overlap.running, expected.running);
      if (!salt.salt.empty() || !salt.tenant.empty()) continue;
      const PrefixTree::Match full = cache.tree().Find(tokens, {});
      const PrefixTree::Match match = cache.tree().FindFrom(&watcher.public_cursor, tokens, {});
      ASSERT_EQ(match.node, full.node);
      ASSERT_EQ(match.length, full.length);
      ASSERT_EQ(match.due, full.due);
      ASSERT_EQ(match.computed, full.computed);
      ASSERT_EQ(match.ready, full.ready);
    }
  }

 private:
  struct Watcher {
    Sequence sequence;
    PrefixTree::Cursor cursor, public_cursor;
  };
  std::mt19937& random_;
  std::vector<Watcher> watchers_;
};

TEST(KvCache, LookingForAPromptAgainCostsNoTokens) {
  // Seconds of 20,000 looks at a prompt of `tokens` tokens that is cached.
  const auto seconds = [](int32_t tokens) {
    auto cache = KvCache::Create({.num_pages = 4096, .page_size = 16, .max_branches = 2, .max_context = 1 << 16}).value();
    const std::vector<int32_t> prompt(tokens, 5);
    EXPECT_EQ(cache->Admit({.tokens = prompt}).outcome, KvCache::Outcome::kAdmitted);
    PrefixTree::Cursor cursor;
    EXPECT_EQ(cache->FindOverlap(prompt, {}, &cursor).cached, tokens);
    const double start = testing::ThreadCpuSeconds();
    int64_t found = 0;
    for (int look = 0; look < 20000; ++look) found += cache->FindOverlap(prompt, {}, &cursor).cached;
    EXPECT_EQ(found, int64_t{20000} * tokens);
    return testing::ThreadCpuSeconds() - start;
  };
  EXPECT_LT(seconds(1 << 15), 10 * seconds(1 << 8));  // 128 times the tokens
}

TEST(KvCache, RandomLivesOfBranches) {
  const bool is_long = std::getenv("COPPICE_LONG_TEST") != nullptr;
  const int events = is_long ? 1000000 : 10000;
  const int check_every = is_long ? 10 : 1;
  for (const bool share : {true, false}) {
    for (const int32_t page_size : {1, 4, 16}) {
      SCOPED_TRACE("share " + std::to_string(share) + ", page size " + std::to_string(page_size));
      Harness harness(160 / page_size, page_size, 6, share);
      std::mt19937 random(11 + page_size);
      std::mt19937 looks(23);
      Watchers watchers(&looks);
      std::vector<Sequence> running;
      for (int event = 0; event < events / 6; ++event) {
        const uint32_t kind = random() % 10;
        if (kind < 2) {
          Sequence sequence;
          if (random() % 3 == 0) sequence.salt = random() % 2 == 0 ? "a" : "b";
          sequence.private_begin = random() % 12;
          if (random() % 3 == 0) sequence.tenant = random() % 2 == 0 ? "a" : "t";  // "a": a salt's name too
          sequence.tenant_begin = random() % 12;
          sequence.tokens.resize(1 + random() % 40);
          // Mostly one of few texts, so that prompts share.
          for (size_t i = 0; i < sequence.tokens.size(); ++i) sequence.tokens[i] = random() % 16 == 0 ? 1 : 0;
          watchers.Add(sequence);
          if (harness.Admit(&sequence, random() % 4 == 0 ? static_cast<int32_t>(random() % 40) : INT32_MAX) ==
              KvCache::Outcome::kAdmitted)
            running.push_back(sequence);
        } else if (kind < 3 && !running.empty()) {
          const Sequence& parent = running[random() % running.size()];
          if (parent.computed == parent.prompt && parent.tokens.size() == static_cast<size_t>(parent.prompt)) {
            Sequence child = parent;
            child.branch = harness.cache().Fork(parent.branch, parent.prompt);
            harness.FlushCopies();
            if (child.branch != kNoBranch) running.push_back(child);
          } else if (parent.computed > 0) {
            Sequence child = parent;
            child.computed = static_cast<int32_t>(random() % (parent.computed + 1));
            child.tokens.resize(child.computed);
            child.prompt = 0;
            child.branch = harness.cache().Fork(parent.branch, child.computed);
            harness.FlushCopies();
            if (child.branch != kNoBranch) running.push_back(child);
          }
        } else if (share && random() % 16 == 0) {
          const std::string name = random() % 2 == 0 ? "p" : "q";
          const auto pinned =
              std::find_if(running.begin(), running.end(), [](const Sequence& s) { return s.computed >= s.prompt; });
          if (random() % 2 == 0 || pinned == running.end()) {
            harness.cache().pins().Unpin(name);
          } else {
            EXPECT_TRUE(harness.cache().pins().Pin(name, pinned->branch));
          }
        } else if (kind < 4 && !running.empty()) {
          const size_t victim = random() % running.size();
          harness.Release(running[victim]);
          running.erase(running.begin() + victim);
        } else {
          std::vector<std::pair<Sequence*, int32_t>> work;
          std::vector<size_t> stuck;
          for (size_t i = 0; i < running.size(); ++i) {
            Sequence& sequence = running[i];
            if (random() % 4 == 0) continue;
            int32_t remaining = static_cast<int32_t>(sequence.tokens.size()) - sequence.computed;
            if (remaining == 0) {
              if (sequence.tokens.size() == Harness::kMaxContext) continue;
              sequence.tokens.push_back(random() % 2);
              remaining = 1;
            }
            const int32_t count = 1 + random() % remaining;
            if (harness.cache().Grow(sequence.branch, sequence.computed + count)) {
              work.emplace_back(&sequence, count);
            } else {
              stuck.push_back(i);
            }
          }
          ASSERT_NO_FATAL_FAILURE(harness.Step(work));
          if (!stuck.empty()) {
            harness.Release(running[stuck.front()]);
            running.erase(running.begin() + stuck.front());
          }
        }
        if (event % check_every == 0) {
          ASSERT_NO_FATAL_FAILURE(watchers.Check(harness.cache()));
          const Status status = harness.cache().CheckIntegrity();
          ASSERT_TRUE(status.ok()) << status.message() << " after event " << event;
        }
      }
      if (!share || page_size < 16) {  // equal whole pages of 16 are too rare for the short run
        EXPECT_EQ(harness.cache().usage().merged_pages > 0, share);
      }
      for (const Sequence& sequence : running) harness.Release(sequence);
      harness.cache().pins().Unpin("p");
      harness.cache().pins().Unpin("q");
      harness.cache().DropCached();
      EXPECT_EQ(harness.cache().usage().pages_owned, 0);
      const Status status = harness.cache().CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

}  // namespace
}  // namespace coppice
