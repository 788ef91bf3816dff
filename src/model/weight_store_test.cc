// In which format a quantised file's matrices reach the operations: blocks, codes beside what they are converted to, or that alone;
// and what an update refuses.
#include "model/weight_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/thread_pool.h"
#include "model/tensor_source.h"
#include "model/weights.h"
#include "tests/support/tiny_model.h"

namespace coppice {
namespace {

ModelConfig WholeBlocksConfig() {
  ModelConfig config = testing::TinyConfig();
  config.intermediate_size = 64;
  return config;
}

// The weights of a model whose matrices are all of one type, all bytes zero.
class ZeroSource final : public WeightSource {
 public:
  explicit ZeroSource(const ModelConfig& config, StoredType matrices) : memory_(1 << 20) {
    for (const auto& [name, shape] : ExpectedWeights(config)) {
      const StoredType type = shape.size() == 1 ? StoredType::kF32 : matrices;
      const int64_t elements = shape[0] * (shape.size() == 1 ? 1 : shape[1]);
      tensors_[name] = {.file = name_, .type = type, .shape = shape, .data = std::span(memory_).first(StoredBytes(type, elements))};
    }
  }
  const std::string& name() const override { return name_; }
  const TensorMap& tensors() const override { return tensors_; }

 private:
  const std::string name_ = "zeros";
  const std::vector<std::byte> memory_;
  TensorMap tensors_;
};

// Takes blocks and codes; counts the parts that come in each format.
class CountingOps final : public ops::Ops {
 public:
  explicit CountingOps(bool prefers_blocks) : prefers_blocks_(prefers_blocks) {}
  int parts = 0, blocks = 0, dense = 0, coded = 0;

  ops::FormatChoice Accepts(std::span<const ops::PartShape> shapes, DType dtype, int64_t, ops::PartOrder) const override {
    const ops::WeightFormat& format = shapes.front().format;
    if (std::holds_alternative<ops::BlocksFormat>(format)) return {.taken = true, .preferred = prefers_blocks_};
    return {.taken = true, .preferred = std::holds_alternative<ops::CodedFormat>(format) && dtype == DType::kBF16};
  }
  std::string description() const override { return "counting"; }
  Result<std::unique_ptr<ops::Weight>> Pack(DType, int64_t, std::span<const ops::LinearPart> given, ops::PartOrder) override {
    for (const ops::LinearPart& part : given) {
      ++parts;
      EXPECT_NE(part.weight, nullptr);
      blocks += std::holds_alternative<ops::BlocksFormat>(part.format);
      dense += std::holds_alternative<ops::DenseFormat>(part.format);
      coded += std::holds_alternative<ops::CodedFormat>(part.format) && part.codes.codes != nullptr;
    }
    return std::make_unique<ops::Weight>();
  }
  Status Repack(const ops::LinearPart&, size_t, ops::Weight*) override { return OkStatus(); }
  Status Tune(int64_t, const StepOfRows&, Stream) override { return OkStatus(); }
  Status Linear(ConstDeviceTensor, const ops::Weight&, DeviceTensor, const ops::Epilogue&, Stream) override { return OkStatus(); }
  Status Fill(DeviceTensor, float, Stream) override { return OkStatus(); }
  Status Embed(DeviceSpan<const int32_t>, const ops::Weight&, const ops::EmbedArgs&, DeviceTensor, Stream) override {
    return OkStatus();
  }
  Status Gather(ConstDeviceTensor, DeviceSpan<const int32_t>, DeviceTensor, Stream) override { return OkStatus(); }
  Status Norm(ConstDeviceTensor, const ops::NormArgs&, DeviceTensor, DeviceSpan<const int32_t>, Stream) override {
    return OkStatus();
  }
  Status AddNorm(ConstDeviceTensor, const ops::NormArgs&, DeviceTensor, Stream) override { return OkStatus(); }
  Status RopeAngles(DeviceSpan<const int32_t>, DeviceSpan<const float>, float, DeviceTensor, DeviceTensor, Stream) override {
    return OkStatus();
  }
  Status RopeAppend(const ops::RopeAppendArgs&, Stream) override { return OkStatus(); }

 private:
  const bool prefers_blocks_;
};

enum class Form { kBlocks, kDense, kCoded };

// The form that all parts of a model of Q8_0 have.
Form LoadedWith(KeepStored keep, DType dtype, bool prefers_blocks) {
  const ModelConfig config = WholeBlocksConfig();
  const auto device = Device::CreateCpu(nullptr);
  CountingOps ops(prefers_blocks);
  const auto store =
      WeightStore::Load(ZeroSource(config, StoredType::kQ8_0), config, {.dtype = dtype, .keep_stored = keep}, *device, ops);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_GT(ops.parts, 0);
  if (ops.blocks == ops.parts) return Form::kBlocks;
  if (ops.coded == ops.parts) return Form::kCoded;
  EXPECT_EQ(ops.dense, ops.parts);
  return Form::kDense;
}

// Processors with an instruction for pairs of bf16 prefer no blocks.
TEST(WeightStore, StoredKeepsBlocksOnceWhateverIsFaster) {
  for (const bool prefers_blocks : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      EXPECT_EQ(LoadedWith(KeepStored::kWherePossible, dtype, prefers_blocks), Form::kBlocks)
          << prefers_blocks << " " << Name(dtype);
    }
  }
}

TEST(WeightStore, FastestTakesWhatTheOperationsPrefer) {
  EXPECT_EQ(LoadedWith(KeepStored::kWhereFaster, DType::kBF16, true), Form::kBlocks);
  EXPECT_EQ(LoadedWith(KeepStored::kWhereFaster, DType::kBF16, false), Form::kCoded);
  EXPECT_EQ(LoadedWith(KeepStored::kWhereFaster, DType::kF32, false), Form::kDense);
}

TEST(WeightStore, OtherFormsAreConverted) {
  for (const bool prefers_blocks : {false, true}) {
    EXPECT_EQ(LoadedWith(KeepStored::kNone, DType::kBF16, prefers_blocks), Form::kDense);
  }
}

TEST(WeightStore, AHeadOfItsOwnDTypeIsHeldApartAndDense) {
  for (const bool tied : {false, true}) {
    ModelConfig config = WholeBlocksConfig();
    config.tie_embeddings = tied;
    const auto device = Device::CreateCpu(nullptr);
    CountingOps ops(/*prefers_blocks=*/true);
    const auto store = WeightStore::Load(ZeroSource(config, StoredType::kQ8_0), config,
                                         {.dtype = DType::kBF16, .head_dtype = DType::kF32}, *device, ops);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EXPECT_EQ(ops.dense, 1) << tied;
    EXPECT_EQ(ops.blocks, ops.parts - 1) << tied;
    EXPECT_NE(store->weights().lm_head, nullptr) << tied;
  }
}

// A rank has 16 columns of attention's output, half a block; those of the other products are whole blocks.
TEST(WeightStore, BlocksThatAShardCutsAreHeldDense) {
  const ModelConfig config = WholeBlocksConfig();
  const auto device = Device::CreateCpu(nullptr);
  for (const bool prefers_blocks : {false, true}) {
    for (const int32_t rank : {0, 1}) {
      CountingOps ops(prefers_blocks);
      const auto store = WeightStore::Load(
          ZeroSource(config, StoredType::kQ8_0), config,
          {.dtype = DType::kBF16, .keep_stored = KeepStored::kWhereFaster, .shard = {.rank = rank, .ranks = 2}}, *device, ops);
      ASSERT_TRUE(store.ok()) << store.status().ToString();
      EXPECT_EQ(ops.dense, config.num_layers);
      EXPECT_EQ(prefers_blocks ? ops.blocks : ops.coded, ops.parts - config.num_layers);
    }
  }
}

// Of a real model on a CPU.
class UpdateTest : public ::testing::Test {
 protected:
  WeightStore Load(StoredType matrices, KeepStored keep) {
    return WeightStore::Load(ZeroSource(config_, matrices), config_, {.dtype = DType::kF32, .keep_stored = keep}, *device_, *ops_)
        .value();
  }
  // One tensor of this shape, of f32 unless it says otherwise.
  Status UpdateWith(WeightStore* store, const std::string& name, std::vector<int64_t> shape, StoredType type = StoredType::kF32) {
    static const std::vector<std::byte> memory(1 << 20);
    TensorMap tensors;
    tensors[name] = {.file = "trainer", .type = type, .shape = std::move(shape), .data = memory};
    const auto source = TensorSource::Create("trainer", config_, tensors);
    if (!source.ok()) return source.status();
    const Status checked = store->CheckUpdate(*source);
    return checked.ok() ? store->Update(*source) : checked;
  }

  const ModelConfig config_ = WholeBlocksConfig();
  ThreadPool pool_{1};
  const std::unique_ptr<Device> device_ = Device::CreateCpu(&pool_);
  const std::unique_ptr<ops::Ops> ops_ = ops::Ops::Create(device_.get(), {}).value();
};

TEST_F(UpdateTest, RefusesWhatTheModelDoesNotHaveBeforeAnythingChanges) {
  WeightStore store = Load(StoredType::kF32, KeepStored::kNone);
  EXPECT_EQ(UpdateWith(&store, "model.layers.7.mlp.up_proj.weight", {64, 32}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(UpdateWith(&store, "model.layers.1.mlp.up_proj.weight", {32, 64}).message(),
            "trainer: tensor \"model.layers.1.mlp.up_proj.weight\" has shape [32, 64], but the config asks for [64, 32]");
  EXPECT_EQ(UpdateWith(&store, "model.layers.1.mlp.up_proj.weight", {64, 32}, StoredType::kI8).code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(store.is_whole());
  EXPECT_TRUE(UpdateWith(&store, "model.layers.1.mlp.up_proj.weight", {64, 32}).ok());
  EXPECT_TRUE(UpdateWith(&store, "layers.1.mlp.up_proj.weight", {64, 32}).ok()) << "a name without the model's prefix";
  EXPECT_TRUE(store.is_whole());
}

TEST_F(UpdateTest, WhatAFileStoresQuantisedIsNotUpdated) {
  WeightStore store = Load(StoredType::kQ8_0, KeepStored::kWherePossible);
  const Status status = UpdateWith(&store, "model.layers.1.mlp.up_proj.weight", {64, 32});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("load the model with weights of bf16 or f32"), std::string::npos) << status.message();
  EXPECT_TRUE(store.is_whole());
  EXPECT_TRUE(UpdateWith(&store, "model.norm.weight", {32}).ok());
  WeightStore converted = Load(StoredType::kQ8_0, KeepStored::kNone);
  EXPECT_TRUE(UpdateWith(&converted, "model.layers.1.mlp.up_proj.weight", {64, 32}).ok());
}

TEST_F(UpdateTest, TiedEmbeddingsComeUnderEitherNameOrTwiceAlike) {
  ModelConfig config = config_;
  config.tie_embeddings = true;
  const std::vector<float> a(static_cast<size_t>(config.vocab_size) * config.hidden_size, 1.0f), b(a.size(), 2.0f);
  const auto tensor = [&](const std::vector<float>& values) {
    return StoredTensor{.file = "trainer",
                        .type = StoredType::kF32,
                        .shape = {config.vocab_size, config.hidden_size},
                        .data = std::as_bytes(std::span(values))};
  };
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  for (const auto& [tensors, names] : std::vector<std::pair<TensorMap, std::vector<std::string>>>{
           {{{head, tensor(a)}}, {embedding}}, {{{embedding, tensor(a)}, {head, tensor(a)}}, {embedding}}}) {
    const auto source = TensorSource::Create("trainer", config, tensors);
    ASSERT_TRUE(source.ok()) << source.status().ToString();
    EXPECT_EQ(source->tensors().size(), 1u);
    EXPECT_TRUE(source->tensors().contains(embedding));
  }
  const auto refused = TensorSource::Create("trainer", config, {{embedding, tensor(a)}, {head, tensor(b)}});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice
