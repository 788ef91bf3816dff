// A model on two ranks, one of which fails: the step ends with one error on both, and the next one is computed.
#include "runner/model_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/thread_pool.h"
#include "model/checkpoint.h"

namespace coppice {
namespace {

constexpr int32_t kPageSize = 16, kPages = 4, kMaxTokens = 32;

// Fails before it computes anything, as long as `fails`.
class FailingTransformer final : public Transformer {
 public:
  FailingTransformer(std::unique_ptr<Transformer> inner, const bool* fails) : inner_(std::move(inner)), fails_(fails) {}

  const ModelConfig& config() const override { return inner_->config(); }
  const Shard& shard() const override { return inner_->shard(); }
  std::span<const attention::AttentionSpec> attention_specs() const override { return inner_->attention_specs(); }
  std::span<const int32_t> layer_groups() const override { return inner_->layer_groups(); }
  Status Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                 std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override {
    if (*fails_) return Internal("the second rank is lost");
    return inner_->Forward(batch, plans, kv, stream);
  }
  Status Tune(const DeviceBatch& batch, std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override {
    return inner_->Tune(batch, kv, stream);
  }
  Result<ConstDeviceTensor> Logits(int64_t begin, int64_t count, Stream stream) override {
    return inner_->Logits(begin, count, stream);
  }
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override {
    return inner_->PrepareUpdate(std::move(tensors));
  }
  Status UpdateWeights(const WeightSource& source) override {
    return *fails_ ? Internal("the second rank is lost") : inner_->UpdateWeights(source);
  }
  bool weights_are_whole() const override { return inner_->weights_are_whole(); }
  void BeginUpdate() override { inner_->BeginUpdate(); }
  void EndUpdate() override { inner_->EndUpdate(); }
  HeldWeights Weights() const override { return inner_->Weights(); }
  Status CheckDropWeights() const override { return inner_->CheckDropWeights(); }
  void DropWeights() override { inner_->DropWeights(); }

 private:
  std::unique_ptr<Transformer> inner_;
  const bool* fails_;
};

class TwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<Executor*> executors = {&threads_[0], &threads_[1]};
    auto group = RankGroup::Create(MakeThreadGroup(executors)).value();
    checkpoint_ = Checkpoint::Open(std::string(COPPICE_TEST_DATA) + "/models/llama-gqa").value();
    std::vector<ModelParts> ranks(2);
    for (int rank = 0; rank < 2; ++rank) ranks[rank] = MakeRank(rank, group->communicator(rank));
    runner_ = ModelRunner::Create(std::move(ranks), std::move(group)).value();
  }

  // Three tokens of a prompt from kv index 0 on, and a draw after the last.
  Result<int32_t> Step() {
    StepBatch batch;
    batch.slot_edits.push_back({.kind = SlotEdit::Kind::kSet, .slot = 0, .index = 0});
    batch.parameters.push_back({.params = {.temperature = 0}});
    batch.token_ids = {5, 6, 7};
    batch.positions = {0, 1, 2};
    batch.slot_mapping = {0, 1, 2};
    batch.draws.push_back({.row = 2, .slot = 0, .position = 3});
    const std::vector<int32_t> parent = {attention::kNoParent}, zero = {0}, end = {attention::kLive}, count = {3},
                               capacity = {kPages}, pages = {0, 1, 2, 3};
    const attention::PrefixForestView forest = {.page_size = kPageSize,
                                                .version = ++version_,
                                                .node_parent = parent,
                                                .node_begin = zero,
                                                .node_end = end,
                                                .branch_node = zero,
                                                .branch_query_begin = zero,
                                                .branch_query_count = count,
                                                .branch_kv_len = count,
                                                .branch_page_begin = zero,
                                                .branch_page_capacity = capacity,
                                                .page_indices = pages};
    const Result<StepTicket> ticket = runner_->Launch(batch, forest);
    if (!ticket.ok()) return ticket.status();
    const Result<StepResult> result = runner_->Wait(*ticket);
    if (!result.ok()) return result.status();
    return result->draws.front().token;
  }

  ModelParts MakeRank(int rank, Communicator& communicator) {
    ModelParts parts;
    parts.device = Device::CreateCpu(&threads_[rank]);
    contexts_.push_back(attention::Context::CreateCpu(&threads_[rank]).value());
    parts.transformer = Transformer::Create(*checkpoint_, {.dtype = DType::kF32,
                                                           .device = parts.device.get(),
                                                           .communicator = &communicator,
                                                           .max_tokens = kMaxTokens,
                                                           .max_logit_rows = kMaxTokens})
                            .value();
    if (rank == 1) parts.transformer = std::make_unique<FailingTransformer>(std::move(parts.transformer), &fails_);
    for (const attention::AttentionSpec& spec : parts.transformer->attention_specs()) {
      parts.plans.push_back(attention::AttentionPlan::Create(
                                *contexts_.back(), spec,
                                {.max_branches = 1, .max_queries = kMaxTokens, .max_page_slots = kPages, .page_size = kPageSize},
                                {})
                                .value());
    }
    const ModelConfig& config = parts.transformer->config();
    const ShardRun heads = parts.transformer->shard().KvHeads(config);
    parts.pool =
        KvPool::Create(parts.device.get(), contexts_.back().get(),
                       {.specs = parts.transformer->attention_specs(),
                        .layer_groups = parts.transformer->layer_groups(),
                        .num_pages = kPages,
                        .page_size = kPageSize,
                        .heads = {static_cast<int32_t>(heads.begin), static_cast<int32_t>(heads.count), config.num_kv_heads}})
            .value();
    parts.inputs = StepInputs::Create(parts.device.get(), {.max_tokens = kMaxTokens,
                                                           .max_logit_rows = kMaxTokens,
                                                           .vocab_size = config.vocab_size,
                                                           .max_position = config.max_position,
                                                           .num_slots = parts.pool->num_slots()})
                       .value();
    parts.executor = &threads_[rank];
    return parts;
  }

  ThreadPool threads_[2] = {ThreadPool(1), ThreadPool(1)};
  std::vector<std::unique_ptr<attention::Context>> contexts_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<ModelRunner> runner_;
  bool fails_ = false;
  uint64_t version_ = 0;
};

TEST_F(TwoRanks, ARankThatFailsEndsTheStepWithItsErrorAndNoOther) {
  const Result<int32_t> before = Step();
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  for (int round = 0; round < 20; ++round) {
    fails_ = true;
    EXPECT_EQ(Step().status().ToString(), Internal("the second rank is lost").ToString());
    fails_ = false;
    const Result<int32_t> after = Step();
    ASSERT_TRUE(after.ok()) << after.status().ToString();
    EXPECT_EQ(*after, *before);
  }
}

TEST_F(TwoRanks, AnUpdateThatFailsOnARankIsAnErrorAndTheNextOneIsTaken) {
  const int32_t before = Step().value();
  fails_ = true;
  EXPECT_EQ(runner_->UpdateWeights(*checkpoint_).message(), "the second rank is lost");
  fails_ = false;
  EXPECT_TRUE(runner_->UpdateWeights(*checkpoint_).ok());
  EXPECT_TRUE(runner_->weights_are_whole());
  EXPECT_EQ(Step().value(), before);
}

TEST_F(TwoRanks, ASleepIsThatOfBoth) {
  const int32_t before = Step().value();
  ASSERT_TRUE(runner_->Sleep(/*keep_weights=*/true).ok());
  ASSERT_TRUE(runner_->Wake().ok());
  EXPECT_EQ(Step().value(), before);
  ASSERT_TRUE(runner_->Sleep(/*keep_weights=*/false).ok());
  ASSERT_TRUE(runner_->Wake().ok());
  EXPECT_FALSE(runner_->weights_are_whole());
  ASSERT_TRUE(runner_->UpdateWeights(*checkpoint_).ok());
  EXPECT_TRUE(runner_->weights_are_whole());
  EXPECT_EQ(Step().value(), before);
}

TEST_F(TwoRanks, KvByTokenHasTheHeadsOfBothRanks) {
  ASSERT_TRUE(Step().ok());
  const RunnerInfo& info = runner_->info();
  const ModelConfig& config = checkpoint_->config();
  EXPECT_EQ(info.kv_bytes_per_token, int64_t{2} * 4 * config.num_layers * config.num_kv_heads * config.head_dim);
  std::vector<std::byte> kv(3 * info.kv_bytes_per_token), again(kv.size());
  const std::vector<int32_t> pages = {0}, others = {3};
  ASSERT_TRUE(runner_->ReadKv(pages, 3, kv).ok());
  ASSERT_TRUE(runner_->WriteKv(others, 0, 3, kv).ok());
  ASSERT_TRUE(runner_->ReadKv(others, 3, again).ok());
  EXPECT_EQ(again, kv);
  const size_t head = config.head_dim * 4;  // no head was left out
  for (size_t begin = 0; begin < kv.size(); begin += head) {
    const auto bytes = std::span(kv).subspan(begin, head);
    EXPECT_TRUE(std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; })) << begin / head;
  }
}

}  // namespace
}  // namespace coppice
