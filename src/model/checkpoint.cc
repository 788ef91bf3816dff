#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/content_hash.h"
#include "model/gguf.h"
#include "model/gguf_model.h"
#include "model/hf_folder.h"
#include "model/mapped_file.h"
#include "model/model_contents.h"

namespace coppice {
namespace {

constexpr size_t kFingerprintSample = 4096;  // bytes

void AddRope(const RopeConfig& rope, ContentHash& hash) {
  for (const float value : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast, rope.beta_slow,
                            rope.attention_factor}) {
    hash.Add(value);
  }
  hash.Add(rope.original_max_position);
  hash.Add(static_cast<int32_t>(rope.scaling));
  hash.Add(rope.truncate);
  for (const std::vector<float>* divisors : {&rope.frequency_divisors, &rope.long_divisors}) {
    hash.Add(divisors->size());
    for (const float value : *divisors) hash.Add(value);
  }
}

// The fields of a config that the forward pass reads.
void AddConfig(const ModelConfig& config, ContentHash& hash) {
  hash.AddText(config.architecture);
  for (const int32_t value :
       {config.hidden_size, config.intermediate_size, config.num_layers, config.num_qo_heads, config.num_kv_heads, config.head_dim,
        config.rotary_dim, config.vocab_size, config.max_position, config.window, config.local_window}) {
    hash.Add(value);
  }
  const Blocks& blocks = config.blocks;
  for (const int value :
       {static_cast<int>(blocks.norm), static_cast<int>(blocks.activation), static_cast<int>(blocks.rope_pairs),
        static_cast<int>(blocks.qkv), int{blocks.unit_offset_norms}, int{blocks.gated_mlp}, int{blocks.parallel},
        int{blocks.post_norms}, int{blocks.learned_positions}, int{blocks.rotary}, int{blocks.qkv_bias}, int{blocks.attention_bias},
        int{blocks.mlp_bias}, int{blocks.lm_head_bias}, int{blocks.qk_norm}, int{config.tie_embeddings}}) {
    hash.Add(static_cast<uint8_t>(value));
  }
  for (const float value : {config.norm_eps, config.sm_scale, config.soft_cap, config.embedding_scale}) hash.Add(value);
  AddRope(config.rope, hash);
  hash.Add(config.local_layers.size());
  if (config.local_layers.empty()) return;
  for (const bool local : config.local_layers) hash.Add(local);
  AddRope(config.local_rope, hash);
}

// Any format, once read: views into mapped files.
class MappedCheckpoint final : public Checkpoint {
 public:
  MappedCheckpoint(std::vector<MappedFile> files, ModelContents contents) : files_(std::move(files)) {
    name_ = files_.front().path();
    tensors_ = std::move(contents.tensors);
    config_ = std::move(contents.config);
    tokenizer_ = std::move(contents.tokenizer);
    tokenizer_status_ = std::move(contents.tokenizer_status);
    sampling_defaults_ = contents.sampling;
    notes_ = std::move(contents.notes);
  }

  std::string Fingerprint() const override {
    ContentHash hash;
    AddConfig(config_, hash);
    for (const auto& [name, tensor] : tensors_) {
      hash.AddText(name);
      hash.AddText(Name(tensor.type));
      hash.Add(tensor.shape.size());
      for (const int64_t size : tensor.shape) hash.Add(size);
      const size_t sample = std::min<size_t>(tensor.data.size(), kFingerprintSample);
      hash.AddBytes(tensor.data.first(sample));
      hash.AddBytes(tensor.data.subspan((tensor.data.size() - sample) / 2, sample));
      hash.AddBytes(tensor.data.last(sample));
    }
    return hash.Hex();
  }

  // Pages of a file that were read would count as the process's memory beside the packed weights.
  void Release(const StoredTensor& tensor) const override {
    for (const MappedFile& file : files_) {
      const std::span<const std::byte> all = file.bytes();
      const bool is_inside =
          std::less_equal<>{}(all.data(), tensor.data.data()) && std::less<>{}(tensor.data.data(), all.data() + all.size());
      if (is_inside) file.Release(tensor.data);
    }
    if (on_release_) on_release_(tensor);
  }

 private:
  std::vector<MappedFile> files_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> Checkpoint::MakeTokenizer() const {
  if (!tokenizer_) return tokenizer_status_;
  return CreateTokenizer(*tokenizer_);
}

std::vector<Checkpoint::TensorInfo> Checkpoint::Tensors() const {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors_) {
    infos.push_back({name, Name(tensor.type), tensor.shape, static_cast<int64_t>(tensor.data.size())});
  }
  return infos;
}

DType Checkpoint::SuitableHalf() const {
  if (config_.blocks.exceeds_f16) return DType::kBF16;
  const auto fits = [](const TensorMap::value_type& named) {
    const StoredTensor& tensor = named.second;
    return tensor.shape.size() < 2 || tensor.type == StoredType::kF16 || Traits(tensor.type).block_elements > 1;
  };
  return std::ranges::all_of(tensors_, fits) ? DType::kF16 : DType::kBF16;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    COPPICE_ASSIGN_OR_RETURN(HuggingFaceFolder folder, OpenHuggingFaceFolder(path));
    return std::unique_ptr<Checkpoint>(std::make_unique<MappedCheckpoint>(std::move(folder.files), std::move(folder.contents)));
  }
  if (path.ends_with(".safetensors")) {
    return InvalidArgument(fmt::format("{}: a safetensors file alone has no config; give the folder that holds it", path));
  }
  COPPICE_ASSIGN_OR_RETURN(GgufFiles gguf, OpenGguf(path));
  COPPICE_ASSIGN_OR_RETURN(ModelContents contents, ReadGgufModel(gguf.directory));
  return std::unique_ptr<Checkpoint>(std::make_unique<MappedCheckpoint>(std::move(gguf.files), std::move(contents)));
}

}  // namespace coppice
