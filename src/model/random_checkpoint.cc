#include "model/random_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/content_hash.h"
#include "model/dequantize.h"
#include "model/error_text.h"
#include "model/hf_config.h"
#include "model/mapped_file.h"
#include "model/weights.h"

namespace coppice {
namespace {

// Numbers are drawn once and used again and again, each tensor from another place: what is measured does not depend on them.
constexpr size_t kPatternSize = (size_t{1} << 20) + 7;  // elements; odd, so that rows do not repeat each other
constexpr float kDeviation = 0.02f;

class RandomCheckpoint final : public Checkpoint {
 public:
  explicit RandomCheckpoint(ModelConfig config) {
    config_ = std::move(config);
    tokenizer_status_ = NotFound("random weights have no tokenizer");
    shapes_ = ExpectedWeights(config_);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, kDeviation);
    std::vector<float> pattern(kPatternSize);
    for (float& value : pattern) value = normal(random);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<std::byte>& converted = patterns_[dtype];
      converted.resize(kPatternSize * SizeOf(dtype));
      ConvertRow(StoredType::kF32, reinterpret_cast<const std::byte*>(pattern.data()), kPatternSize, dtype, converted.data());
    }
  }

  std::vector<TensorInfo> Tensors() const override {
    std::vector<TensorInfo> infos;
    for (const auto& [name, shape] : shapes_) infos.push_back({name, "random", shape, 0});
    return infos;
  }
  std::string Fingerprint() const override {
    ContentHash hash;
    hash.AddText("random");
    for (const auto& [name, shape] : shapes_) {
      hash.AddText(name);
      for (const int64_t size : shape) hash.Add(size);
    }
    return hash.Hex();
  }
  bool Has(std::string_view name) const override { return shapes_.contains(name); }

  Status Load(std::string_view name, int64_t rows, int64_t cols, DType dtype, std::span<std::byte> out) const override {
    const auto found = shapes_.find(name);
    if (found == shapes_.end()) return NotFound(fmt::format("no tensor {}", Quoted(name)));
    const bool is_vector = found->second.size() == 1;
    COPPICE_CHECK(out.size() == static_cast<size_t>(rows * cols) * SizeOf(dtype));
    if (is_vector) {
      const std::vector<float> values(static_cast<size_t>(cols), name.ends_with(".bias") ? 0.0f : 1.0f);
      ConvertRow(StoredType::kF32, reinterpret_cast<const std::byte*>(values.data()), cols, dtype, out.data());
      return OkStatus();
    }
    const std::span<const std::byte> pattern = patterns_.at(dtype);
    size_t place = std::hash<std::string_view>()(name) % kPatternSize * SizeOf(dtype);
    while (!out.empty()) {
      const size_t bytes = std::min(out.size(), pattern.size() - place);
      std::memcpy(out.data(), pattern.data() + place, bytes);
      out = out.subspan(bytes);
      place = 0;
    }
    return OkStatus();
  }
  std::optional<Codes> LoadCodes(std::string_view) const override { return std::nullopt; }
  std::optional<StoredBlocks> LoadBlocks(std::string_view) const override { return std::nullopt; }

 private:
  std::map<DType, std::vector<std::byte>> patterns_;  // the same numbers, converted once: large models are loaded by copies
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> MakeRandomCheckpoint(const std::string& config_path) {
  COPPICE_ASSIGN_OR_RETURN(std::string text, ReadTextFile(config_path));
  COPPICE_ASSIGN_OR_RETURN(ModelConfig config, ParseHuggingFaceConfig({config_path, std::move(text)}, {}));
  return std::unique_ptr<Checkpoint>(std::make_unique<RandomCheckpoint>(std::move(config)));
}

}  // namespace coppice
