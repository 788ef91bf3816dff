// The C ABI under misuse: whatever a pointer, count, stride or enum says, a call answers with a status and a message that names
// the value; and the calls that have no test elsewhere. Layer: attention, tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "attention/testing/c_forest.h"
#include "coppice/attention/attention_c.h"

namespace {

using coppice::attention::testing::CForest;

constexpr int32_t kHeads = 2, kHeadDim = 16, kPageSize = 4, kBranches = 2, kMaxQueries = 4, kPages = 8, kRow = CForest::kRow;
constexpr int32_t kRowElements = kHeads * kHeadDim;

// Two branches of 5 and 6 tokens over 4 shared ones, in a pool of the native layout, with a plan and bound KV.
class AttentionCMisuse : public testing::Test {
 protected:
  void SetUp() override {
    spec_.struct_size = sizeof(spec_);
    spec_.num_qo_heads = spec_.num_kv_heads = kHeads;
    spec_.head_dim = kHeadDim;
    options_.struct_size = sizeof(options_);
    options_.max_branches = kBranches;
    options_.max_queries = kMaxQueries;
    options_.max_page_slots = kBranches * kRow;
    options_.page_size = kPageSize;
    coppice_context_options context{};
    context.struct_size = sizeof(context);
    context.num_threads = 2;
    ASSERT_EQ(coppice_context_create(&context, &context_, &message_), COPPICE_OK) << text_;

    pool_.struct_size = sizeof(pool_);
    pool_.num_pages = kPages;
    pool_.page_size = kPageSize;
    pool_.num_kv_heads = kHeads;
    pool_.head_dim = kHeadDim;
    size_t bytes = 0;
    ASSERT_EQ(coppice_kv_pool_get_bytes(&pool_, &bytes, &message_), COPPICE_OK) << text_;
    ASSERT_EQ(bytes, size_t{kPages} * kHeads * 2 * kPageSize * kHeadDim * sizeof(float));
    memory_.resize(bytes / sizeof(float));
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::sin(static_cast<float>(i));
    layer_.struct_size = sizeof(layer_);
    ASSERT_EQ(coppice_kv_pool_get_layer(&pool_, memory_.data(), &layer_, &message_), COPPICE_OK) << text_;
    ASSERT_EQ(coppice_kv_bind(context_, &spec_, &layer_, &kv_, &message_), COPPICE_OK) << text_;

    ASSERT_EQ(coppice_plan_create(context_, &spec_, &options_, &plan_, &message_), COPPICE_OK) << text_;
    ASSERT_EQ(coppice_plan_update(plan_, &forest_, &message_), COPPICE_OK) << text_;

    q_.assign(kMaxQueries * kRowElements, 0.5f);
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = std::cos(static_cast<float>(i));
    out_.assign(q_.size(), NAN);
    args_.struct_size = sizeof(args_);
    args_.q = q_.data();
    args_.out = out_.data();
    args_.q_row_stride = args_.out_row_stride = kRowElements;
  }
  void TearDown() override {
    coppice_plan_destroy(plan_);
    coppice_kv_destroy(kv_);
    coppice_context_destroy(context_);
  }

  coppice_status Update() { return coppice_plan_update(plan_, &forest_, &message_); }
  coppice_status Run() { return coppice_plan_run(plan_, kv_, &args_, nullptr, &message_); }
  // A call that is refused with this status and a message that has these words in it.
  void Refused(coppice_status got, coppice_status expected, const std::string& words) {
    EXPECT_EQ(got, expected) << text_;
    EXPECT_NE(std::string(text_).find(words), std::string::npos) << "'" << text_ << "' lacks '" << words << "'";
  }
  // Every call that takes a spec and a layer.
  void EachKvCall(const std::function<void(const char* name, coppice_status)>& check) {
    coppice_bound_kv* bound = nullptr;
    check("bind", coppice_kv_bind(context_, &spec_, &layer_, &bound, &message_));
    EXPECT_EQ(bound, nullptr);
    const int64_t slot = 0, move[2] = {0, 1};
    const int32_t copy[2] = {0, 1};
    coppice_append_args append{};
    append.struct_size = sizeof(append);
    append.k = append.v = q_.data();
    append.row_stride = kRowElements;
    append.num_tokens = 1;
    append.slot_mapping = &slot;
    check("append", coppice_kv_append(context_, &spec_, &layer_, &append, nullptr, &message_));
    check("copy", coppice_kv_copy_pages(context_, &spec_, &layer_, copy, 1, nullptr, &message_));
    check("move", coppice_kv_move_slots(context_, &spec_, &layer_, move, 1, nullptr, &message_));
  }

  char text_[256] = "";
  coppice_message message_{sizeof(coppice_message), text_, sizeof(text_)};
  coppice_context* context_ = nullptr;
  coppice_plan* plan_ = nullptr;
  coppice_bound_kv* kv_ = nullptr;
  coppice_attention_spec spec_{};
  coppice_plan_options options_{};
  coppice_kv_pool pool_{};
  coppice_kv_layer layer_{};
  coppice_run_args args_{};
  std::vector<float> memory_, q_, out_;
  CForest tree_{kPageSize, /*prefix=*/4, {5, 6}, {0, 1, 2, 7, 0, 3, 4, 5}};
  coppice_prefix_forest& forest_ = tree_.view;
};

TEST_F(AttentionCMisuse, RowsOfQAreCheckedInEveryUpdate) {
  ASSERT_EQ(Run(), COPPICE_OK) << text_;
  const std::vector<float> expected = out_;
  const struct {
    int32_t begin[2];
    coppice_status status;
    const char* words;
  } cases[] = {{{-1, 1}, COPPICE_INVALID_ARGUMENT, "branch 0: queries begin at -1"},
               {{0, 5}, COPPICE_RESOURCE_EXHAUSTED, "branch 1: queries end at row 6"},
               {{INT_MAX - 1, 1}, COPPICE_RESOURCE_EXHAUSTED, "branch 0: queries end at row 2147483647"},
               {{1, 1}, COPPICE_INVALID_ARGUMENT, "query row 1 also belongs to branch"}};
  for (const auto& [begin, status, words] : cases) {
    std::copy_n(begin, 2, tree_.query_begin.begin());  // the version stays
    Refused(Update(), status, words);
    ASSERT_EQ(Run(), COPPICE_OK) << "the plan keeps its state: " << text_;
    EXPECT_EQ(std::memcmp(out_.data(), expected.data(), 2 * kRowElements * sizeof(float)), 0);
  }
  // Other rows in any order are legal.
  std::copy_n(q_.begin(), kRowElements, q_.begin() + 3 * kRowElements);
  std::copy_n(q_.begin() + kRowElements, kRowElements, q_.begin());
  tree_.query_begin[0] = 3, tree_.query_begin[1] = 0;
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  ASSERT_EQ(Run(), COPPICE_OK) << text_;
  EXPECT_EQ(std::memcmp(&out_[3 * kRowElements], &expected[0], kRowElements * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(&out_[0], &expected[kRowElements], kRowElements * sizeof(float)), 0);
}

TEST_F(AttentionCMisuse, ArraysOfAStepAreCheckedUnderAnEqualVersion) {
  tree_.page_begin[1] = INT_MAX;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 1: page row is [2147483647");
  tree_.page_begin[1] = kRow;
  tree_.page_capacity[1] = INT_MAX;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 1: page row is [4");
  tree_.page_capacity[1] = 1;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 1: kv_len is 6, but its page row holds 1 pages");
  tree_.page_capacity[1] = kRow;
  tree_.kv_len[0] = INT_MAX;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 0: kv_len is 2147483647");
  tree_.kv_len[0] = 5;
  forest_.num_page_slots = kRow;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "page_indices of 4 entries");
  forest_.num_page_slots = 2 * kRow;
  forest_.num_branches = 1;  // the other arrays with it: a branch left without a new version
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  forest_.num_branches = kBranches;
  tree_.branch_node[1] = 77;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 1: ends at node 77");
  tree_.branch_node[1] = 2;
  const uint64_t masks[kMaxQueries + 1] = {};
  forest_.query_tree_mask = masks;
  forest_.num_query_tree_masks = 1;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 1: queries end at row 2, but query_tree_mask has 1 entries");
  forest_.num_query_tree_masks = kMaxQueries + 1;
  Refused(Update(), COPPICE_RESOURCE_EXHAUSTED, "5 query_tree_mask entries");
}

TEST_F(AttentionCMisuse, NamedNodesAreNodeSlotsOfACallerThatHasThem) {
  int32_t named[2] = {2, 0};
  forest_.changed_since = 1;
  forest_.changed_nodes = named;
  forest_.num_changed_nodes = 2;
  forest_.version = 2;
  for (const int32_t id : {-1, 3, INT_MAX, INT_MIN}) {
    named[1] = id;
    Refused(Update(), COPPICE_INVALID_ARGUMENT, "changed_nodes[1] is " + std::to_string(id) + ", expected one of the 3 node slots");
  }
  for (const int32_t count : {-1, INT_MIN}) {
    forest_.num_changed_nodes = count;
    Refused(Update(), COPPICE_INVALID_ARGUMENT, "changed_nodes: count " + std::to_string(count));
  }
  ASSERT_EQ(Run(), COPPICE_OK) << text_;
  // The struct of a caller that was compiled before the field existed ends there; nodes are compared.
  named[1] = INT_MAX;
  tree_.branch_node[1] = tree_.node_parent[2] = COPPICE_FREE_SLOT, tree_.query_count[1] = 0;
  forest_.num_changed_nodes = 2;
  forest_.struct_size = offsetof(coppice_prefix_forest, num_changed_nodes);
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  const auto explanation = [&] {
    std::string text(coppice_plan_explain(plan_, nullptr, 0), ' ');
    coppice_plan_explain(plan_, text.data(), text.size());
    return text;
  };
  const std::string alone = explanation();
  // Where the branch comes back, NULL compares; of nodes that are named it is one; an empty list says that none changed.
  forest_.struct_size = sizeof(forest_);
  tree_.branch_node[1] = 2, tree_.node_parent[2] = 0, tree_.query_count[1] = 1;
  forest_.changed_nodes = nullptr;
  forest_.num_changed_nodes = 0;
  forest_.changed_since = forest_.version++;
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  const std::string both = explanation();
  EXPECT_NE(both, alone);
  tree_.branch_node[1] = tree_.node_parent[2] = COPPICE_FREE_SLOT, tree_.query_count[1] = 0;
  forest_.changed_nodes = named;
  forest_.num_changed_nodes = 1;
  forest_.changed_since = forest_.version++;
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  EXPECT_EQ(explanation(), alone);
  tree_.branch_node[1] = 2, tree_.node_parent[2] = 0, tree_.query_count[1] = 1;
  forest_.num_changed_nodes = 0;
  forest_.changed_since = forest_.version++;
  Refused(Update(), COPPICE_INVALID_ARGUMENT, "branch 1: ends at node 2, which is a free slot");
  forest_.num_changed_nodes = 1;
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  EXPECT_EQ(explanation(), both);
}

TEST_F(AttentionCMisuse, WhatChangesAfterUpdateIsNotRead) {
  ASSERT_EQ(Run(), COPPICE_OK) << text_;
  const std::vector<float> expected = out_;
  tree_.kv_len[0] = INT_MAX / 2, tree_.kv_len[1] = -7;
  tree_.query_begin[0] = 1 << 30, tree_.query_begin[1] = -(1 << 30);
  tree_.page_begin[0] = INT_MAX, tree_.branch_node[0] = COPPICE_FREE_SLOT, tree_.query_count[1] = INT_MAX;
  std::ranges::fill(out_, NAN);
  ASSERT_EQ(Run(), COPPICE_OK) << text_;
  EXPECT_EQ(std::memcmp(out_.data(), expected.data(), 2 * kRowElements * sizeof(float)), 0);
}

TEST_F(AttentionCMisuse, StatsCountMasksByTheRowsOfTheLastUpdate) {
  const uint64_t masks[2] = {1, 1};
  forest_.query_tree_mask = masks;
  forest_.num_query_tree_masks = 2;
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  const auto flops = [&] {
    coppice_plan_stats stats{};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(coppice_plan_get_stats(plan_, &stats, &message_), COPPICE_OK) << text_;
    return stats.flops;
  };
  const int64_t before = flops();
  EXPECT_EQ(before, int64_t{4} * kHeadDim * kHeads * (5 + 6));
  tree_.query_begin[0] = 1 << 30, tree_.query_begin[1] = -(1 << 30);  // of the next step
  EXPECT_EQ(flops(), before);
}

TEST_F(AttentionCMisuse, SpecsAreCheckedInEachKvCall) {
  const struct {
    int32_t coppice_attention_spec::*field;
    int32_t value;
    const char* words;
  } cases[] = {{&coppice_attention_spec::head_dim, 0, "head_dim is 0"},
               {&coppice_attention_spec::head_dim, -8, "head_dim is -8"},
               {&coppice_attention_spec::head_dim, 7, "head_dim is 7"},
               {&coppice_attention_spec::head_dim, INT_MAX, "head_dim is 2147483647"},
               {&coppice_attention_spec::num_kv_heads, 0, "num_kv_heads is 0"},
               {&coppice_attention_spec::num_kv_heads, -2, "num_kv_heads is -2"},
               {&coppice_attention_spec::num_kv_heads, 1 << 30, "expected a multiple of num_kv_heads 1073741824"},
               {&coppice_attention_spec::num_qo_heads, 1 << 30, "num_qo_heads is 1073741824, expected at most 65535"},
               {&coppice_attention_spec::window, -1, "window is -1"},
               {&coppice_attention_spec::q_dtype, 3, "q_dtype is 3"},
               {&coppice_attention_spec::deterministic, 2, "deterministic is 2"}};
  const coppice_attention_spec sound = spec_;
  for (const auto& [field, value, words] : cases) {
    spec_ = sound;
    spec_.*field = value;
    EachKvCall([&, words = words](const char* name, coppice_status status) {
      SCOPED_TRACE(name);
      Refused(status, COPPICE_INVALID_ARGUMENT, words);
    });
  }
  spec_ = sound;
  spec_.sm_scale = NAN;
  EachKvCall([&](const char*, coppice_status status) { Refused(status, COPPICE_INVALID_ARGUMENT, "sm_scale is not finite"); });
}

TEST_F(AttentionCMisuse, LayersAreCheckedInEachKvCall) {
  const coppice_kv_layer sound = layer_;
  const auto refused = [&](const char* words) {
    EachKvCall([&](const char* name, coppice_status status) {
      SCOPED_TRACE(name);
      Refused(status, COPPICE_INVALID_ARGUMENT, words);
    });
    layer_ = sound;
  };
  for (const int64_t stride : {INT64_MIN, INT64_MAX, int64_t{1} << 62, int64_t{1} << 58}) {
    layer_.page_stride = stride;
    refused(("page_stride = " + std::to_string(stride)).c_str());
    layer_.head_stride = stride;
    layer_.slot_stride = stride << (stride == int64_t{1} << 58);
    refused("_stride = ");
  }
  layer_.num_pages = INT_MAX;
  layer_.page_stride = int64_t{1} << 32;
  refused("page_stride = 4294967296 elements, 2147483647 times");
  layer_.num_pages = -1;
  refused("num_pages = -1");
  layer_.page_size = 0;
  refused("page_size = 0");
  layer_.k_scale = NAN;
  refused("k_scale = nan");
  layer_.v_scale = INFINITY;
  refused("v_scale = inf");
  layer_.v = nullptr;
  refused("k or v is null");
  layer_.k = reinterpret_cast<char*>(layer_.k) + 1;
  refused("not aligned to its elements of 4 bytes");
  layer_.dtype = COPPICE_F16;
  refused("dtype f16, the spec says f32");
}

TEST_F(AttentionCMisuse, CountsAreChecked) {
  const int32_t copies[2] = {0, 1};
  const int64_t moves[2] = {0, 1};
  for (const int64_t count : {INT64_MIN, int64_t{-1}, int64_t{1} << 62, (int64_t{1} << 62) + 1, INT64_MAX, int64_t{1} << 40}) {
    const std::string words = "count " + std::to_string(count);
    Refused(coppice_kv_copy_pages(context_, &spec_, &layer_, copies, count, nullptr, &message_), COPPICE_INVALID_ARGUMENT, words);
    Refused(coppice_kv_move_slots(context_, &spec_, &layer_, moves, count, nullptr, &message_), COPPICE_INVALID_ARGUMENT, words);
  }
  Refused(coppice_kv_copy_pages(context_, &spec_, &layer_, nullptr, 1, nullptr, &message_), COPPICE_INVALID_ARGUMENT, "NULL");
  Refused(coppice_kv_move_slots(context_, &spec_, &layer_, nullptr, 1, nullptr, &message_), COPPICE_INVALID_ARGUMENT, "NULL");
  const int64_t slot = 0;
  coppice_append_args append{};
  append.struct_size = sizeof(append);
  append.k = append.v = q_.data();
  append.num_tokens = 1;
  append.slot_mapping = &slot;
  for (const int64_t stride : {INT64_MIN, int64_t{0}, int64_t{kRowElements - 1}, INT64_MAX}) {
    append.row_stride = stride;
    Refused(coppice_kv_append(context_, &spec_, &layer_, &append, nullptr, &message_), COPPICE_INVALID_ARGUMENT,
            "row_stride = " + std::to_string(stride));
  }
  float lse = 0, *lses[1] = {&lse};
  void* outs[1] = {out_.data()};
  Refused(
      coppice_merge_states(context_, out_.data(), &lse, outs, lses, 1, INT64_MAX, 1, 16, COPPICE_F32, nullptr, nullptr, &message_),
      COPPICE_INVALID_ARGUMENT, "num_rows = 9223372036854775807");
  Refused(coppice_merge_states(context_, out_.data(), &lse, outs, lses, -1, 1, 1, 16, COPPICE_F32, nullptr, nullptr, &message_),
          COPPICE_INVALID_ARGUMENT, "count -1");
}

TEST_F(AttentionCMisuse, RunChecksWhatTheKvWasBoundFor) {
  const auto run_bound_as = [&](coppice_attention_spec spec, coppice_kv_layer layer) {
    coppice_bound_kv* other = nullptr;
    EXPECT_EQ(coppice_kv_bind(context_, &spec, &layer, &other, &message_), COPPICE_OK) << text_;
    const coppice_status status = coppice_plan_run(plan_, other, &args_, nullptr, &message_);
    coppice_kv_destroy(other);
    return status;
  };
  coppice_attention_spec spec = spec_;
  coppice_kv_layer layer = layer_;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  Refused(run_bound_as(spec, layer), COPPICE_INVALID_ARGUMENT,
          "bound for f32, 1 kv heads, head_dim 16; the plan's spec has f32, 2");
  spec = spec_;
  spec.head_dim = 8;
  Refused(run_bound_as(spec, layer), COPPICE_INVALID_ARGUMENT, "head_dim 8");
  spec = spec_;
  spec.kv_dtype = layer.dtype = COPPICE_BF16;
  Refused(run_bound_as(spec, layer), COPPICE_INVALID_ARGUMENT, "bound for bf16");
  layer = layer_;
  layer.page_size = 2;
  Refused(run_bound_as(spec_, layer), COPPICE_INVALID_ARGUMENT, "page_size 2, the plan's forest 4");
  spec = spec_;
  spec.window = 3;
  spec.num_qo_heads = 4 * kHeads;  // another plan of the same layer
  EXPECT_EQ(run_bound_as(spec, layer_), COPPICE_OK) << text_;
}

TEST_F(AttentionCMisuse, RunChecksItsArguments) {
  const coppice_run_args sound = args_;
  for (const int64_t stride : {INT64_MIN, int64_t{-kRowElements}, int64_t{0}, int64_t{1} << 60, INT64_MAX}) {
    args_ = sound;
    args_.q_row_stride = stride;
    Refused(Run(), COPPICE_INVALID_ARGUMENT, "q_row_stride = " + std::to_string(stride));
    args_ = sound;
    args_.out_row_stride = stride;
    Refused(Run(), COPPICE_INVALID_ARGUMENT, "out_row_stride = " + std::to_string(stride));
  }
  args_ = sound;
  args_.q = nullptr;
  Refused(Run(), COPPICE_INVALID_ARGUMENT, "q or out is null");
  args_ = sound;
  args_.lse = reinterpret_cast<float*>(reinterpret_cast<char*>(out_.data()) + 1);
  Refused(Run(), COPPICE_INVALID_ARGUMENT, "lse is not aligned");
  args_ = sound;
  args_.struct_size = 0;
  Refused(Run(), COPPICE_INVALID_ARGUMENT, "struct_size is 0");
}

TEST_F(AttentionCMisuse, CapacitiesThatCannotBeCountedAreRefused) {
  const coppice_plan_options sound = options_;
  for (const auto field : {&coppice_plan_options::max_branches, &coppice_plan_options::max_queries,
                           &coppice_plan_options::max_nodes, &coppice_plan_options::lookahead_tokens}) {
    options_ = sound;
    options_.*field = INT_MAX;
    coppice_plan* plan = nullptr;
    Refused(coppice_plan_create(context_, &spec_, &options_, &plan, &message_), COPPICE_INVALID_ARGUMENT,
            "is 2147483647, expected");
    EXPECT_EQ(plan, nullptr);
  }
}

TEST_F(AttentionCMisuse, MessagesKeepToTheirStruct) {
  // Behind struct_size lies what is not ours to read.
  for (const size_t size : {size_t{0}, sizeof(size_t), offsetof(coppice_message, capacity)}) {
    coppice_message message{size, reinterpret_cast<char*>(uintptr_t{8}), SIZE_MAX};
    EXPECT_EQ(coppice_plan_update(plan_, nullptr, &message), COPPICE_INVALID_ARGUMENT);
    EXPECT_EQ(coppice_plan_update(plan_, &forest_, &message), COPPICE_OK);
  }
  message_.capacity = 5;
  Refused(coppice_plan_update(plan_, nullptr, &message_), COPPICE_INVALID_ARGUMENT, "copp");
  EXPECT_EQ(std::strlen(text_), 4u);
}

TEST_F(AttentionCMisuse, ThreadsThatTheSystemDoesNotStartAreAStatus) {
  coppice_context_options options{};
  options.struct_size = sizeof(options);
  coppice_context* context = nullptr;
  for (const int32_t threads : {-1, 4097, 100000, INT_MAX}) {
    options.num_threads = threads;
    Refused(coppice_context_create(&options, &context, &message_), COPPICE_INVALID_ARGUMENT,
            "num_threads is " + std::to_string(threads));
  }
  EXPECT_EQ(context, nullptr);
}

TEST_F(AttentionCMisuse, PoolsAreChecked) {
  const coppice_kv_pool sound = pool_;
  size_t bytes = 0;
  const auto refused = [&](const char* words) {
    Refused(coppice_kv_pool_get_bytes(&pool_, &bytes, &message_), COPPICE_INVALID_ARGUMENT, words);
    Refused(coppice_kv_pool_get_layer(&pool_, memory_.data(), &layer_, &message_), COPPICE_INVALID_ARGUMENT, words);
    pool_ = sound;
  };
  pool_.num_pages = -1;
  refused("num_pages = -1");
  pool_.page_size = 257;
  refused("page_size = 257");
  pool_.head_dim = 12;
  refused("head_dim is 12");
  pool_.num_kv_heads = 0;
  refused("num_kv_heads is 0");
  pool_.dtype = 5;
  refused("dtype is 5");
  pool_ = {sizeof(pool_), INT_MAX, 256, 65535, 256, COPPICE_F32};
  refused("page_stride");
  Refused(coppice_kv_pool_get_layer(&pool_, nullptr, &layer_, &message_), COPPICE_INVALID_ARGUMENT, "base is NULL");
}

TEST_F(AttentionCMisuse, MovedSlotsTakeTheirTokensAlong) {
  const int64_t moves[6] = {3, 9, 9, 10, 4, 9};  // one after the other
  const auto token = [&](int64_t slot, int32_t head) {
    return &memory_[slot / kPageSize * layer_.page_stride + head * layer_.head_stride + slot % kPageSize * layer_.slot_stride];
  };
  const std::vector<float> third(token(3, 1), token(3, 1) + kHeadDim), fourth(token(4, 1), token(4, 1) + kHeadDim);
  ASSERT_EQ(coppice_kv_move_slots(context_, &spec_, &layer_, moves, 3, nullptr, &message_), COPPICE_OK) << text_;
  EXPECT_TRUE(std::equal(third.begin(), third.end(), token(10, 1)));
  EXPECT_TRUE(std::equal(fourth.begin(), fourth.end(), token(9, 1)));
  const int64_t outside[2] = {0, kPages * kPageSize};
  Refused(coppice_kv_move_slots(context_, &spec_, &layer_, outside, 1, nullptr, &message_), COPPICE_OUT_OF_RANGE, "slot 32");
}

TEST_F(AttentionCMisuse, LaunchKeyStays) {
  uint64_t before = 0, after = 1;
  ASSERT_EQ(coppice_plan_launch_key(plan_, &before, &message_), COPPICE_OK) << text_;
  ++tree_.kv_len[0], ++tree_.kv_len[1];
  ASSERT_EQ(Update(), COPPICE_OK) << text_;
  ASSERT_EQ(coppice_plan_launch_key(plan_, &after, &message_), COPPICE_OK) << text_;
  EXPECT_EQ(after, before);
  Refused(coppice_plan_launch_key(plan_, nullptr, &message_), COPPICE_INVALID_ARGUMENT, "key is NULL");
  Refused(coppice_plan_launch_key(nullptr, &after, &message_), COPPICE_INVALID_ARGUMENT, "plan is NULL");
}

TEST_F(AttentionCMisuse, DumpIsWhole) {
  std::string dump(coppice_plan_dump(plan_, nullptr, 0), '\0');
  EXPECT_EQ(coppice_plan_dump(plan_, dump.data(), dump.size()), dump.size());
  EXPECT_EQ(std::strlen(dump.c_str()), dump.size() - 1);
  EXPECT_NE(dump.find("\"branch_kv_len\""), std::string::npos);
  EXPECT_EQ(coppice_plan_dump(nullptr, dump.data(), dump.size()), sizeof("plan is NULL"));
}

TEST(AttentionCStatus, NamesAreThoseOfTheEnum) {
  EXPECT_STREQ(coppice_status_name(COPPICE_OK), "OK");
  EXPECT_STREQ(coppice_status_name(COPPICE_UNAVAILABLE), "UNAVAILABLE");
  EXPECT_STREQ(coppice_status_name(COPPICE_INTERNAL), "INTERNAL");
  EXPECT_STREQ(coppice_status_name(COPPICE_DEADLINE_EXCEEDED), "DEADLINE_EXCEEDED");
  EXPECT_STREQ(coppice_status_name(static_cast<coppice_status>(12)), "UNKNOWN");
  EXPECT_STREQ(coppice_status_name(static_cast<coppice_status>(-1)), "UNKNOWN");
}

}  // namespace
