// In which form a quantised file's matrices reach the operations: blocks, codes beside what they are converted to, or that alone.
#include "model/layer_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "model/weights.h"
#include "tests/support/tiny_model.h"

namespace coppice {
namespace {

// A model whose matrices are all of Q8_0, zero.
class QuantisedCheckpoint final : public Checkpoint {
 public:
  QuantisedCheckpoint() {
    config_ = testing::TinyConfig();
    config_.intermediate_size = 64;  // whole blocks
    shapes_ = ExpectedWeights(config_);
  }
  std::vector<TensorInfo> Tensors() const override { return {}; }
  std::string Fingerprint() const override { return ""; }
  bool Has(std::string_view) const override { return true; }
  Status Load(std::string_view, int64_t, int64_t, DType, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{});
    return OkStatus();
  }
  std::optional<Codes> LoadCodes(std::string_view name) const override {
    const auto elements = static_cast<size_t>(Elements(name));
    return Codes{.bits = 8,
                 .codes = std::vector<int8_t>(elements),
                 .scales = std::vector<F16>(elements / ops::kCodeBlock),
                 .minima = std::vector<F16>(elements / ops::kCodeBlock)};
  }
  std::optional<StoredBlocks> LoadBlocks(std::string_view name) const override {
    return StoredBlocks{.type = StoredType::kQ8_0,
                        .rows = std::vector<std::byte>(static_cast<size_t>(StoredBytes(StoredType::kQ8_0, Elements(name))))};
  }

 private:
  int64_t Elements(std::string_view name) const {
    const std::vector<int64_t>& shape = shapes_.at(std::string(name));
    return shape[0] * shape[1];
  }
  decltype(ExpectedWeights(ModelConfig())) shapes_;
};

// Takes blocks and codes; counts the parts that come in each form.
class CountingOps final : public ops::Ops {
 public:
  explicit CountingOps(bool prefers_blocks) : prefers_blocks_(prefers_blocks) {}
  int parts = 0, blocks = 0, converted = 0, coded = 0;

  bool WantsCodes(DType dtype) const override { return dtype == DType::kBF16; }
  bool TakesBlocks(DType, int64_t, std::span<const ops::LinearPart>, ops::PartOrder) const override { return true; }
  bool PrefersBlocks(DType) const override { return prefers_blocks_; }
  std::string description() const override { return "counting"; }
  Result<std::unique_ptr<ops::Weight>> Pack(DType, int64_t, std::span<const ops::LinearPart> given, ops::PartOrder) override {
    for (const ops::LinearPart& part : given) {
      ++parts;
      blocks += part.blocks.has_value();
      converted += part.weight != nullptr;
      coded += part.coded.has_value();
    }
    return std::make_unique<ops::Weight>();
  }
  Status Tune(int64_t, const StepOfRows&, Stream) override { return OkStatus(); }
  Status Linear(ConstDeviceTensor, const ops::Weight&, DeviceTensor, const ops::Epilogue&, Stream) override { return OkStatus(); }
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

struct Counts {
  bool blocks, converted, coded;  // whether all parts come so; the others do not
  bool operator==(const Counts&) const = default;
};

Counts LoadedWith(KeepStored keep, DType dtype, bool prefers_blocks) {
  const QuantisedCheckpoint checkpoint;
  const auto device = Device::CreateCpu(nullptr);
  CountingOps ops(prefers_blocks);
  const auto weights = LoadWeights(checkpoint, {.dtype = dtype, .keep_stored = keep}, *device, ops);
  EXPECT_TRUE(weights.ok()) << weights.status().ToString();
  EXPECT_GT(ops.parts, 0);
  for (const int count : {ops.blocks, ops.converted, ops.coded}) EXPECT_TRUE(count == 0 || count == ops.parts) << count;
  return {.blocks = ops.blocks > 0, .converted = ops.converted > 0, .coded = ops.coded > 0};
}

constexpr Counts kBlocks = {.blocks = true, .converted = false, .coded = false};
constexpr Counts kConverted = {.blocks = false, .converted = true, .coded = false};
constexpr Counts kConvertedAndCoded = {.blocks = false, .converted = true, .coded = true};

// Processors with an instruction for pairs of bf16 prefer no blocks.
TEST(LayerWeights, StoredKeepsBlocksOnceWhateverIsFaster) {
  for (const bool prefers_blocks : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      EXPECT_EQ(LoadedWith(KeepStored::kWherePossible, dtype, prefers_blocks), kBlocks) << prefers_blocks << " " << Name(dtype);
    }
  }
}

TEST(LayerWeights, FastestTakesWhatTheOperationsPrefer) {
  EXPECT_EQ(LoadedWith(KeepStored::kWhereFaster, DType::kBF16, true), kBlocks);
  EXPECT_EQ(LoadedWith(KeepStored::kWhereFaster, DType::kBF16, false), kConvertedAndCoded);
  EXPECT_EQ(LoadedWith(KeepStored::kWhereFaster, DType::kF32, false), kConverted);
}

TEST(LayerWeights, OtherFormsAreConverted) {
  for (const bool prefers_blocks : {false, true}) {
    EXPECT_EQ(LoadedWith(KeepStored::kNone, DType::kBF16, prefers_blocks), kConverted);
  }
}

}  // namespace
}  // namespace coppice
