#include "model/random_checkpoint.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "model/content_hash.h"
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
  static Result<std::unique_ptr<Checkpoint>> Create(ModelConfig config) {
    std::unique_ptr<RandomCheckpoint> checkpoint(new RandomCheckpoint(std::move(config)));
    COPPICE_RETURN_IF_ERROR(checkpoint->MakeTensors());
    return std::unique_ptr<Checkpoint>(std::move(checkpoint));
  }

  std::string Fingerprint() const override {
    ContentHash hash;
    hash.AddText("random");
    for (const auto& [name, tensor] : tensors_) {
      hash.AddText(name);
      for (const int64_t size : tensor.shape) hash.Add(size);
    }
    return hash.Hex();
  }

 private:
  explicit RandomCheckpoint(ModelConfig config) {
    name_ = "random weights";
    config_ = std::move(config);
    tokenizer_status_ = NotFound("random weights have no tokenizer");
  }

  // Matrices of bf16, vectors of f32, all of them views of three pieces of memory.
  Status MakeTensors() {
    const auto shapes = ExpectedWeights(config_);
    size_t largest_matrix = 0, longest_vector = 0;
    for (const auto& [name, shape] : shapes) {
      size_t& largest = shape.size() == 1 ? longest_vector : largest_matrix;
      largest = std::max(largest, ElementsOf(shape));
    }
    ones_.assign(longest_vector, 1.0f);
    zeros_.assign(longest_vector, 0.0f);
    COPPICE_ASSIGN_OR_RETURN(numbers_, Buffer::Allocate((kPatternSize + largest_matrix) * sizeof(BF16)));
    const std::span<BF16> numbers = numbers_.Span<BF16>();
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, kDeviation);
    for (BF16& number : numbers.first(kPatternSize)) number = BF16::FromFloat(normal(random));
    for (size_t filled = kPatternSize; filled < numbers.size();) {
      const size_t count = std::min(filled, numbers.size() - filled);  // whole patterns, but for the last time
      std::ranges::copy(numbers.first(count), numbers.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += count;
    }
    for (const auto& [name, shape] : shapes) {
      StoredTensor& tensor = tensors_[name];
      tensor.file = name_;
      tensor.shape = shape;
      tensor.type = shape.size() == 1 ? StoredType::kF32 : StoredType::kBF16;
      if (shape.size() == 1) {
        tensor.data = std::as_bytes(std::span(name.ends_with(".bias") ? zeros_ : ones_).first(ElementsOf(shape)));
      } else {
        tensor.data = std::as_bytes(numbers.subspan(std::hash<std::string_view>()(name) % kPatternSize, ElementsOf(shape)));
      }
    }
    return OkStatus();
  }

  static size_t ElementsOf(const std::vector<int64_t>& shape) {
    return static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }

  std::vector<float> ones_, zeros_;
  Buffer numbers_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> MakeRandomCheckpoint(const std::string& config_path) {
  COPPICE_ASSIGN_OR_RETURN(std::string text, ReadTextFile(config_path));
  COPPICE_ASSIGN_OR_RETURN(ModelConfig config, ParseHuggingFaceConfig({config_path, std::move(text)}, {}));
  return RandomCheckpoint::Create(std::move(config));
}

}  // namespace coppice
