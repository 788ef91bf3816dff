// A model family as a table: what its layers are made of, how its files spell it, what is assumed where they are silent.
// CONTRIBUTING.md, "Add a model", explains each field.
// Layer: model.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "coppice/core/status.h"
#include "model/config.h"

namespace coppice {

class ObjectReader;

// The role of a weight in the forward pass.
enum class WeightRole : uint8_t {
  // Of the model.
  kEmbedding,
  kPositions,
  kFinalNorm,
  kLmHead,
  // Of a layer.
  kAttentionNorm,
  kQ,
  kK,
  kV,
  kQkv,
  kQNorm,
  kKNorm,
  kAttentionOutput,
  kPostAttentionNorm,
  kMlpNorm,
  kGate,
  kUp,
  kDown,
  kPostMlpNorm,
};

// A role's name in Hugging Face's folders, without ".weight" or ".bias"; {} stands for the layer.
struct WeightName {
  WeightRole role;
  std::string_view name;
};

// The keys of config.json that families spell differently.
struct ConfigKeys {
  std::string_view hidden_size = "hidden_size";
  std::string_view intermediate_size = "intermediate_size";
  std::string_view num_layers = "num_hidden_layers";
  std::string_view num_heads = "num_attention_heads";
  std::string_view max_position = "max_position_embeddings";
  std::string_view activation = "hidden_act";
  std::string_view norm_eps = "rms_norm_eps";
};

// Values of keys that a config.json may lack, as transformers assumes them.
struct ConfigDefaults {
  // None: the key is required.
  std::optional<int32_t> vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  std::optional<int32_t> intermediate_multiple;  // of hidden_size, in place of intermediate_size
  std::optional<int32_t> num_kv_heads;           // none: as many as query heads
  std::optional<int32_t> head_dim;               // none: hidden_size / num_attention_heads
  std::optional<int32_t> max_position;           // none: the key is required
  std::string_view activation = "silu";
  float norm_eps = 1e-6f;
  bool tie_embeddings = false;
  float rope_theta = 10000.0f;
  float rotary_factor = 1.0f;      // of a head's elements
  int32_t sliding_window = 0;      // tokens of a window where the file does not say; 0: no layer has one
  bool window_needs_flag = false;  // windows are in use only if "use_sliding_window" says so
  int32_t local_pattern = 0;       // p > 0: layers are local but for every p-th
  float local_rope_theta = 0;      // > 0: local layers have a rotary embedding of their own
};

// A model of several modalities whose text model is of a family. Its config.json has that model's config under "text_config", and
// its tensors have names of their own (hf_folder.cc). Empty: there is none.
struct Multimodal {
  std::string_view hf_architecture, hf_model_type;
};

struct Family {
  std::string_view name;             // ModelConfig::architecture
  std::string_view hf_architecture;  // config.json "architectures"
  std::string_view hf_model_type;    // config.json "model_type", which counts where "architectures" is absent
  Multimodal multimodal = {};
  std::string_view gguf_architecture;  // "general.architecture"; empty: the format does not have it
  Blocks blocks;
  ConfigKeys keys = {};
  ConfigDefaults defaults = {};
  std::span<const WeightName> weights;
  bool gguf_interleaves_qk = false;  // GGUF files have the rows of q and k in the order of neighbouring pairs
  // What config.json says in this family alone, after all else is read. Null: nothing.
  Status (*read_config)(const ObjectReader& reader, ModelConfig* config) = nullptr;
  // The same for what a GGUF file leaves to the family. Null: nothing.
  void (*complete_gguf)(ModelConfig* config) = nullptr;
};

// All families of this build.
std::span<const Family* const> Families();
// By Family::name. REQUIRES: there is one.
const Family& FamilyNamed(std::string_view name);

extern const Family kLlama, kMistral, kQwen2, kQwen3, kPhi, kGptBigCode, kCodeGen, kGemma3;

}  // namespace coppice
