// A model on disk (GGUF file or Hugging Face folder): its config, its tensors by Hugging Face name, its tokenizer data.
// Memory-mapped and validated at open; conversions happen where weights are loaded. Knows nothing of the forward pass.
// Layer: model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/config.h"
#include "model/sampling_defaults.h"
#include "model/weight_source.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Tensor names are those of Hugging Face ("model.layers.0.self_attn.q_proj.weight") whatever the file's own are, and q/k rows are
// in Hugging Face's (half-split) rotary order. Immutable after Open: safe to use from several threads.
class Checkpoint : public WeightSource {
 public:
  // `path`: a .gguf file, the first part of a split one (OpenGguf), or a folder with config.json and *.safetensors. Errors name the
  // file, the tensor and the two values.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const std::string& name() const override { return name_; }
  const TensorMap& tensors() const override { return tensors_; }
  const ModelConfig& config() const { return config_; }
  // Absent where the model has none or it cannot be read: a model runs on token ids without one.
  const std::optional<TokenizerData>& tokenizer() const { return tokenizer_; }
  // Why tokenizer() is absent: NOT_FOUND, or what is wrong with the file or not supported. OK if it is there.
  const Status& tokenizer_status() const { return tokenizer_status_; }
  // How the files want tokens chosen, and what was assumed or set aside in reading them: a line each.
  const SamplingDefaults& sampling_defaults() const { return sampling_defaults_; }
  const std::vector<std::string>& notes() const { return notes_; }
  // The tokenizer, ready for use, or the reason why there is none.
  Result<std::unique_ptr<Tokenizer>> MakeTokenizer() const;

  // For inspection: every tensor by name, as it is stored. `type` is the format's own name ("Q4_1"); shape is outermost first.
  struct TensorInfo {
    std::string name;
    std::string_view type;
    std::vector<int64_t> shape;
    int64_t bytes = 0;
  };
  std::vector<TensorInfo> Tensors() const;

  // kF16 or kBF16, whichever loses less of this model: f16 has three bits more, and ends at 65,504. kF16 where every matrix is of
  // f16 or of blocks, whose scales are f16, and the family's activations fit.
  DType SuitableHalf() const;

  // 32 hex digits of the config and of every tensor's name, type, shape and some of its bytes (4 KiB at both ends and in the
  // middle): two files have the same if they are the same model in the same encoding. Reads those bytes.
  virtual std::string Fingerprint() const = 0;

  // `callback` is called when a tensor of a file is released, on the threads that load. Set before the first one does.
  void OnRelease(std::function<void(const StoredTensor&)> callback) { on_release_ = std::move(callback); }

 protected:
  std::string name_;
  TensorMap tensors_;
  ModelConfig config_;
  std::optional<TokenizerData> tokenizer_;
  Status tokenizer_status_;
  SamplingDefaults sampling_defaults_;
  std::vector<std::string> notes_;
  std::function<void(const StoredTensor&)> on_release_;  // may be empty
};

}  // namespace coppice
