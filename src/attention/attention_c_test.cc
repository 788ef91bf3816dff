// The C ABI end to end: a two-level forest against a naive softmax, errors with their messages, and struct versioning.
#include "coppice/attention/attention_c.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention/testing/c_forest.h"

namespace {

using coppice::attention::testing::CForest;

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 16, kPageSize = 4, kBranches = 2, kPages = 8;
constexpr int kPrefix = 6;                                   // tokens shared by both branches: ends inside the second page
constexpr std::array<int32_t, kBranches> kLengths = {9, 7};  // kv_len of each branch

coppice_attention_spec Spec() {
  coppice_attention_spec spec{};
  spec.struct_size = sizeof(spec);
  spec.num_qo_heads = kHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim = kHeadDim;
  return spec;  // f32, scale 1 / sqrt(head_dim)
}

coppice_plan_options Options() {
  coppice_plan_options options{};
  options.struct_size = sizeof(options);
  options.max_branches = kBranches;
  options.max_queries = kBranches;
  options.max_page_slots = 2 * 4;
  options.page_size = kPageSize;
  options.force_sharing = 1;
  return options;
}

class AttentionC : public testing::Test {
 protected:
  void SetUp() override {
    coppice_context_options options{};
    options.struct_size = sizeof(options);
    options.num_threads = 2;
    ASSERT_EQ(coppice_context_create(&options, &context_, &message_), COPPICE_OK) << text_;
  }
  void TearDown() override { coppice_context_destroy(context_); }

  char text_[256] = "";
  coppice_message message_{sizeof(coppice_message), text_, sizeof(text_)};
  coppice_context* context_ = nullptr;
};

TEST_F(AttentionC, TwoLevelForestEqualsNaiveSoftmax) {
  // Branch 0 owns pages 0..2, branch 1 pages 3..4; both rows are valid from slot 0, so the prefix's tokens are in both.
  CForest tree(kPageSize, kPrefix, kLengths, {0, 1, 2, 7, 3, 4, 5, 6});
  coppice_prefix_forest& forest = tree.view;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> q(kBranches * kHeads * kHeadDim), out(q.size(), NAN), lse(kBranches * kHeads, NAN);
  for (float& x : q) x = normal(random);
  // keys[branch][token][kv head][d]: the prefix is the same for both.
  std::vector<float> keys(kBranches * 16 * kKvHeads * kHeadDim), values(keys.size());
  const size_t per_branch = keys.size() / kBranches;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool shared = i >= per_branch && (i - per_branch) < size_t{kPrefix} * kKvHeads * kHeadDim;
    keys[i] = shared ? keys[i - per_branch] : normal(random);
    values[i] = shared ? values[i - per_branch] : normal(random);
  }

  const coppice_attention_spec spec = Spec();
  const coppice_plan_options options = Options();
  std::vector<float> pool(2 * kPages * kKvHeads * kPageSize * kHeadDim, NAN);  // unwritten slots hold NaN
  coppice_kv_layer layer{};
  layer.struct_size = sizeof(layer);
  layer.k = pool.data();
  layer.v = pool.data() + pool.size() / 2;
  layer.slot_stride = kKvHeads * kHeadDim;  // NHD
  layer.head_stride = kHeadDim;
  layer.page_stride = kPageSize * kKvHeads * kHeadDim;
  layer.num_pages = kPages;
  layer.page_size = kPageSize;
  for (int b = 0; b < kBranches; ++b) {
    std::vector<int64_t> slots(kLengths[b]);
    for (int t = 0; t < kLengths[b]; ++t) slots[t] = tree.page_indices[4 * b + t / kPageSize] * kPageSize + t % kPageSize;
    coppice_append_args append{};
    append.struct_size = sizeof(append);
    append.k = keys.data() + b * per_branch;
    append.v = values.data() + b * per_branch;
    append.row_stride = kKvHeads * kHeadDim;
    append.num_tokens = kLengths[b];
    append.slot_mapping = slots.data();
    ASSERT_EQ(coppice_kv_append(context_, &spec, &layer, &append, nullptr, &message_), COPPICE_OK) << text_;
  }
  coppice_bound_kv* kv = nullptr;
  ASSERT_EQ(coppice_kv_bind(context_, &spec, &layer, &kv, &message_), COPPICE_OK) << text_;

  const int32_t changed[1] = {1};
  forest.changed_since = 1;
  forest.changed_branches = changed;
  forest.num_changed_branches = -1;

  coppice_plan* plan = nullptr;
  ASSERT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_OK) << text_;
  EXPECT_EQ(coppice_plan_update(plan, &forest, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(text_).find("changed_branches"), std::string::npos) << text_;
  forest.num_changed_branches = 1;
  const int32_t changed_nodes[2] = {2, 3};
  forest.num_changed_nodes = 1;
  EXPECT_EQ(coppice_plan_update(plan, &forest, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(text_), "changed_nodes: count 1 with pointer NULL");
  forest.changed_nodes = changed_nodes;
  forest.num_changed_nodes = 2;
  EXPECT_EQ(coppice_plan_update(plan, &forest, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(text_), "forest: changed_nodes[1] is 3, expected one of the 3 node slots");
  forest.num_changed_nodes = 1;
  ASSERT_EQ(coppice_plan_update(plan, &forest, &message_), COPPICE_OK) << text_;
  ASSERT_EQ(coppice_plan_upload(plan, nullptr, &message_), COPPICE_OK) << text_;
  coppice_run_args run{};
  run.struct_size = sizeof(run);
  run.q = q.data();
  run.out = out.data();
  run.q_row_stride = run.out_row_stride = kHeads * kHeadDim;
  run.lse = lse.data();
  ASSERT_EQ(coppice_plan_run(plan, kv, &run, nullptr, &message_), COPPICE_OK) << text_;

  for (int b = 0; b < kBranches; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      const float* query = q.data() + (b * kHeads + h) * kHeadDim;
      std::vector<double> expected(kHeadDim, 0.0);
      double sum = 0;
      for (int t = 0; t < kLengths[b]; ++t) {
        const size_t at = b * per_branch + (t * kKvHeads + h / (kHeads / kKvHeads)) * kHeadDim;
        double score = 0;
        for (int d = 0; d < kHeadDim; ++d) score += double{query[d]} * keys[at + d];
        const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
        sum += weight;
        for (int d = 0; d < kHeadDim; ++d) expected[d] += weight * values[at + d];
      }
      EXPECT_NEAR(lse[b * kHeads + h], std::log(sum), 1e-5) << "branch " << b << ", head " << h;
      for (int d = 0; d < kHeadDim; ++d)
        EXPECT_NEAR(out[(b * kHeads + h) * kHeadDim + d], expected[d] / sum, 1e-5)
            << "branch " << b << ", head " << h << ", d " << d;
    }
  }

  coppice_plan_stats stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_EQ(coppice_plan_get_stats(plan, &stats, &message_), COPPICE_OK) << text_;
  const int64_t bytes_per_token = 2 * kKvHeads * kHeadDim * sizeof(float);
  EXPECT_EQ(stats.kv_bytes_read, (kPrefix + (9 - kPrefix) + (7 - kPrefix)) * bytes_per_token);
  EXPECT_EQ(stats.kv_bytes_read_unshared, (9 + 7) * bytes_per_token);

  char small[8];
  const size_t needed = coppice_plan_explain(plan, small, sizeof(small));
  EXPECT_GT(needed, sizeof(small));
  EXPECT_EQ(std::strlen(small), sizeof(small) - 1);
  coppice_plan_destroy(plan);
  coppice_kv_destroy(kv);
}

TEST_F(AttentionC, ErrorsNameTheValue) {
  coppice_attention_spec spec = Spec();
  spec.q_dtype = 9;
  const coppice_plan_options options = Options();
  coppice_plan* plan = nullptr;
  EXPECT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(text_), "q_dtype is 9; expected 0..2");
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(coppice_plan_create(context_, nullptr, &options, &plan, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(text_), "coppice_attention_spec is NULL");
  spec = Spec();
  spec.struct_size = 0;
  EXPECT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(text_).find("struct_size is 0"), std::string::npos) << text_;
  EXPECT_EQ(coppice_plan_update(nullptr, nullptr, nullptr), COPPICE_INVALID_ARGUMENT);  // a message is optional

  coppice_context_options cuda{};
  cuda.struct_size = sizeof(cuda);
  cuda.device = COPPICE_CUDA;
  cuda.cuda_kernels = 7;
  coppice_context* context = nullptr;
  EXPECT_EQ(coppice_context_create(&cuda, &context, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(text_).find("cuda_kernels is 7"), std::string::npos) << text_;
}

TEST_F(AttentionC, OlderCallersStructsReadAsZeroFilled) {
  // A caller compiled before share_policy existed: struct_size ends there, and what follows is not ours to read.
  coppice_plan_options options = Options();
  options.struct_size = offsetof(coppice_plan_options, share_policy);
  options.share_policy = 77;
  const coppice_attention_spec spec = Spec();
  coppice_plan* plan = nullptr;
  EXPECT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_OK) << text_;
  coppice_plan_destroy(plan);
}

TEST_F(AttentionC, PlansTakeAMachineModelAndDeviceImages) {
  coppice_plan_options options = Options();
  const coppice_attention_spec spec = Spec();
  coppice_plan* plan = nullptr;
  options.device_images = 2;
  ASSERT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_OK) << text_;
  uint64_t key = 1;
  EXPECT_EQ(coppice_plan_launch_key(plan, &key, &message_), COPPICE_OK) << text_;
  EXPECT_EQ(key, 0u) << "host memory has one image, and one way to run";
  coppice_plan_destroy(plan);
  options.device_images = 3;
  EXPECT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(text_).find("device_images is 3"), std::string::npos) << text_;
  options.device_images = 0;
  options.machine_model = "/no/such/model.json";
  EXPECT_EQ(coppice_plan_create(context_, &spec, &options, &plan, &message_), COPPICE_NOT_FOUND);
  EXPECT_NE(std::string(text_).find("/no/such/model.json"), std::string::npos) << text_;
}

TEST_F(AttentionC, SizesAreKnownBeforeAllocation) {
  const coppice_attention_spec spec = Spec();
  const coppice_plan_options options = Options();
  coppice_plan_sizes sizes{};
  sizes.struct_size = sizeof(sizes);
  ASSERT_EQ(coppice_plan_get_sizes(context_, &spec, &options, &sizes, &message_), COPPICE_OK) << text_;
  EXPECT_GT(sizes.workspace_bytes, 0u);
  EXPECT_GT(sizes.host_bytes, 0u);
}

TEST(AttentionCVersion, IsTheHeaders) { EXPECT_EQ(coppice_abi_version(), COPPICE_ATTENTION_ABI_VERSION); }

}  // namespace
