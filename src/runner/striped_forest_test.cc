// Forests of ranks that divide tokens, over random forests that change: what a query sees on all ranks together is what it sees on
// one, each token once; and attention by plans that follow these views from step to step, merged, is that of one plan.
#include "runner/striped_forest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "tests/support/random_forest.h"

namespace coppice {
namespace {

using attention::PrefixForestView;
using attention::testing::RandomForest;
using attention::testing::RandomForestOptions;

TEST(TokenStripe, StripesOfAPageHoldItsTokensOnce) {
  for (const int32_t count : {1, 2, 3, 8}) {
    for (const int32_t page_size : {1, 4, 16}) {
      for (int32_t end = 0; end < 3 * count * page_size + 2; ++end) {
        int32_t held = 0, slots = 0;
        for (int32_t index = 0; index < count; ++index) {
          const TokenStripe stripe = {.index = index, .count = count, .page_size = page_size};
          held += stripe.Held(end);
          slots += stripe.Slot(end) >= 0 ? 1 : 0;
          if (stripe.Slot(end) >= 0) {
            EXPECT_EQ(stripe.Slot(end), stripe.Held(end));  // in pages that follow each other
          }
          EXPECT_EQ(stripe.Held(end + 1) - stripe.Held(end), stripe.Slot(end) >= 0 ? 1 : 0);
        }
        EXPECT_EQ(held, end);
        EXPECT_EQ(slots, 1);
      }
      EXPECT_EQ((TokenStripe{.count = count, .page_size = page_size}.Slot(-1)), -1);
    }
  }
}

// Slots of KV, as whole pages have them, that each row of q sees in its own kv indices: for rows of branches with queries.
std::map<int32_t, std::vector<int64_t>> SeenByRows(const PrefixForestView& view) {
  std::map<int32_t, std::vector<int64_t>> seen;
  for (size_t b = 0; b < view.branch_node.size(); ++b) {
    const int32_t count = view.branch_query_count[b], length = view.branch_kv_len[b];
    for (int32_t i = 0; i < count; ++i) {
      const int32_t row = view.branch_query_begin[b] + i;
      std::vector<int64_t>& slots = seen[row];
      EXPECT_TRUE(slots.empty()) << "row " << row << " is in two branches";
      for (int32_t kv = 0; kv < length; ++kv) {
        const int32_t query = kv - (length - count);
        const bool sees = query < 0 || (view.query_tree_mask.empty() ? query <= i : (view.query_tree_mask[row] >> query & 1) != 0);
        if (!sees) continue;
        const int32_t page = view.page_indices[view.branch_page_begin[b] + kv / view.page_size];
        slots.push_back(int64_t{page} * view.page_size + kv % view.page_size);
      }
    }
  }
  return seen;
}

// Attention over KV of one layer and head, whose elements are a function of the token, by one plan.
class Attention {
 public:
  static constexpr int32_t kHeads = 3, kHeadDim = 8, kCols = kHeads * kHeadDim;
  struct States {
    std::vector<float> out, lse;
  };

  Attention(const TokenStripe& stripe, const attention::PlanCapacity& capacity, const attention::PlannerOptions& options,
            int32_t num_pages)
      : stripe_(stripe),
        plan_(*attention::AttentionPlan::Create(*context_, spec_, capacity, options)),
        shape_{
            .num_pages = num_pages, .page_size = stripe.page_size, .num_kv_heads = 1, .head_dim = kHeadDim, .dtype = DType::kF32},
        kv_(shape_.bytes() / sizeof(float)) {
    bound_ = *context_->BindKv(spec_, shape_.View(kv_.data()));
  }

  // Those of the forest that `whole` shows.
  void StoreTokens(const RandomForest& forest, const PrefixForestView& whole) {
    const attention::KvLayerView layer = bound_->view();
    for (size_t b = 0; b < whole.branch_node.size(); ++b) {
      if (whole.branch_node[b] == attention::kFreeSlot) continue;
      for (int32_t i = 0; i < whole.branch_kv_len[b]; ++i) {
        const int64_t page = whole.page_indices[whole.branch_page_begin[b] + i / whole.page_size];
        const int64_t own = stripe_.Slot(page * whole.page_size + i % whole.page_size);
        if (own < 0) continue;
        const int64_t at = own / stripe_.page_size * layer.page_stride + own % stripe_.page_size * layer.slot_stride;
        std::minstd_rand random(static_cast<uint32_t>(forest.Token(static_cast<int32_t>(b), i) + 1));
        for (float* const plane : {static_cast<float*>(layer.k), static_cast<float*>(layer.v)}) {
          for (int32_t d = 0; d < kHeadDim; ++d) plane[at + d] = 4 * static_cast<float>(random()) / 2147483648.0f - 2;
        }
      }
    }
  }

  States Run(const PrefixForestView& view, const std::vector<float>& q) {
    const Status updated = plan_->Update(view);
    EXPECT_TRUE(updated.ok()) << updated.ToString();
    EXPECT_TRUE(plan_->Upload().ok());
    States states = {std::vector<float>(q.size(), NAN), std::vector<float>(q.size() / kHeadDim, -INFINITY)};
    const Status status = plan_->Run(
        *bound_,
        {.q = q.data(), .q_row_stride = kCols, .out = states.out.data(), .out_row_stride = kCols, .lse = states.lse.data()});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return states;
  }

 private:
  const attention::AttentionSpec spec_ = {
      .num_qo_heads = kHeads, .num_kv_heads = 1, .head_dim = kHeadDim, .q_dtype = DType::kF32, .kv_dtype = DType::kF32};
  const TokenStripe stripe_;
  ThreadPool threads_{1};
  std::unique_ptr<attention::Context> context_ = *attention::Context::CreateCpu(&threads_);
  std::unique_ptr<attention::AttentionPlan> plan_;
  const attention::KvPoolShape shape_;
  std::vector<float> kv_;
  std::unique_ptr<attention::BoundKv> bound_;
};

class StripedForests : public ::testing::TestWithParam<int32_t> {};

TEST_P(StripedForests, RanksSeeTogetherWhatOneSees) {
  const int32_t count = GetParam();
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int32_t page_size = std::array{1, 4, 16}[seed % 3];
    // Steps of decoding alone, with drafts, and with chunks that no mask holds.
    const int32_t most_queries = std::array{1, 5, 150}[seed / 3 % 3];
    RandomForest forest({.page_size = count * page_size,
                         .max_branches = 8,
                         .max_segment = 200,
                         .max_kv_len = 700,
                         .max_query_count = most_queries,
                         .query_gap = 0.1},
                        seed);
    const attention::PlanCapacity capacity = forest.Capacity();
    const attention::PlannerOptions options = {.force_sharing = seed % 2 == 0};
    Attention whole({.page_size = count * page_size}, capacity, options, capacity.max_page_slots);
    std::vector<std::unique_ptr<StripedForest>> stripes;
    std::vector<std::unique_ptr<Attention>> parts;
    for (int32_t index = 0; index < count; ++index) {
      const TokenStripe stripe = {.index = index, .count = count, .page_size = page_size};
      stripes.push_back(std::make_unique<StripedForest>(stripe, capacity));
      parts.push_back(
          std::make_unique<Attention>(stripe, StripedForest::CapacityOf(stripe, capacity), options, capacity.max_page_slots));
    }
    std::vector<int32_t> all_nodes(capacity.max_nodes), all_branches(capacity.max_branches);
    std::iota(all_nodes.begin(), all_nodes.end(), 0);
    std::iota(all_branches.begin(), all_branches.end(), 0);
    uint64_t version_before = 0;
    for (int step = 0; step < 30; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      PrefixForestView view = forest.View();
      if (step % 3 > 0) {  // a caller that keeps count
        view.changed_since = version_before;
        view.changed_nodes = all_nodes;
        view.changed_branches = all_branches;
      }
      version_before = view.version;
      std::map<int32_t, std::vector<int64_t>> seen;
      std::vector<float> q(static_cast<size_t>(capacity.max_queries) * Attention::kCols);
      std::normal_distribution<float> normal;
      for (float& value : q) value = normal(random);
      std::vector<Attention::States> states;
      for (int32_t index = 0; index < count; ++index) {
        const PrefixForestView part = stripes[index]->View(view);
        for (const auto& [row, slots] : SeenByRows(part)) {
          const int64_t whole_page = int64_t{count} * page_size;
          for (const int64_t slot : slots)
            seen[row].push_back(slot / page_size * whole_page + index * page_size + slot % page_size);
        }
        parts[index]->StoreTokens(forest, view);
        states.push_back(parts[index]->Run(part, q));
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
      std::map<int32_t, std::vector<int64_t>> expected_seen = SeenByRows(view);
      for (auto* const each : {&seen, &expected_seen}) {
        for (auto& [row, slots] : *each) std::ranges::sort(slots);
      }
      ASSERT_EQ(seen, expected_seen);

      whole.StoreTokens(forest, view);
      const Attention::States expected = whole.Run(view, q);
      for (const auto& [row, slots] : seen) {
        for (int32_t head = 0; head < Attention::kHeads; ++head) {
          const size_t state = static_cast<size_t>(row) * Attention::kHeads + head;
          double sum = 0;
          for (const auto& part : states) sum += std::exp(double{part.lse[state]} - expected.lse[state]);
          ASSERT_NEAR(sum, 1, 1e-5) << "row " << row;
          for (size_t d = state * Attention::kHeadDim; d < (state + 1) * Attention::kHeadDim; ++d) {
            double out = 0;
            for (const auto& part : states) {
              if (part.lse[state] != -INFINITY) out += std::exp(double{part.lse[state]} - expected.lse[state]) * part.out[d];
            }
            ASSERT_NEAR(out, expected.out[d], 1e-5) << "row " << row;
          }
        }
      }
      if (random() % 3 != 0) {
        if (!forest.Grow()) forest.Edit();
      } else {
        forest.Edit();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, StripedForests, ::testing::Values(2, 3, 8));

// Steps of decoding whose forest stays as it is have views that say so, and lists of changes come through.
TEST(StripedForest, ViewsOfAnUnchangedForestHaveOneVersion) {
  RandomForest forest({.page_size = 8, .max_branches = 4, .max_query_count = 1, .idle_branch = 0, .start_empty = true}, 1);
  forest.AddRoot(20);
  forest.SetQueries({1});
  StripedForest striped({.index = 0, .count = 2, .page_size = 4}, forest.Capacity());
  const uint64_t version = striped.View(forest.View()).version;
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(forest.Grow());
    EXPECT_EQ(striped.View(forest.View()).version, version);
  }
  PrefixForestView view = forest.View();
  const std::vector<int32_t> changed = {1};
  view.changed_since = view.version++;
  view.changed_nodes = changed;
  const PrefixForestView after = striped.View(view);
  EXPECT_GT(after.version, version);
  EXPECT_EQ(after.changed_since, version);
  ASSERT_TRUE(after.changed_nodes.has_value());
  EXPECT_EQ(after.changed_nodes->size(), 1u);
}

}  // namespace
}  // namespace coppice
