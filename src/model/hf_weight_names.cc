#include "model/hf_weight_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "model/error_text.h"
#include "model/families/family.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

// How a model of several modalities names the tensors of its text model; without a second name, those of its other parts.
struct TextPrefix {
  std::string_view prefix, text_prefix;
};
constexpr TextPrefix kTextPrefixes[] = {{"language_model.model.", "model."},  // files of the hub
                                        {"language_model.lm_head.", "lm_head."},
                                        {"model.language_model.", "model."},  // names of transformers from 4.52 on
                                        {"vision_tower.", ""},
                                        {"multi_modal_projector.", ""},
                                        {"model.vision_tower.", ""},
                                        {"model.multi_modal_projector.", ""}};

// Gives the tensors of the text model the names that they have in a model of text alone, and drops those of other parts.
Status TakeTextModel(const std::string& path, TensorMap* tensors) {
  TensorMap text;
  for (const auto& entry : *tensors) {
    const std::string& name = entry.first;
    const auto found = std::ranges::find_if(kTextPrefixes, [&](const TextPrefix& known) { return name.starts_with(known.prefix); });
    std::string text_name = name;
    if (found != std::end(kTextPrefixes)) {
      if (found->text_prefix.empty()) continue;
      text_name.replace(0, found->prefix.size(), found->text_prefix);
    }
    if (!text.emplace(text_name, entry.second).second)
      return InvalidArgument(fmt::format("{}: tensor {} is there twice, once as {}", path, Quoted(text_name), Quoted(name)));
  }
  *tensors = std::move(text);
  return OkStatus();
}

// Tensors that checkpoints carry and the forward pass computes: frequencies and masks.
void DropComputed(TensorMap* tensors) {
  std::erase_if(*tensors, [](const auto& entry) {
    constexpr std::string_view kComputed[] = {".rotary_emb.inv_freq", ".attn.causal_mask", ".attn.bias", ".attn.masked_bias",
                                              ".attn.embed_positions"};
    return std::ranges::any_of(kComputed, [&](std::string_view suffix) { return entry.first.ends_with(suffix); });
  });
}

std::string NameOf(const Family& family, WeightRole role) { return fmt::format("{}.weight", *NameInFolders(family, role)); }

// Files of a model without its head have names from the layers on: "layers.0.mlp.up_proj.weight", without "model." before it.
Status AddPrefix(const std::string& path, const ModelConfig& config, TensorMap* tensors) {
  const std::string embedding = NameOf(FamilyNamed(config.architecture), WeightRole::kEmbedding);
  const std::string prefix = embedding.substr(0, embedding.find('.') + 1);
  const auto expected = ExpectedWeights(config);
  TensorMap named;
  for (auto& [name, tensor] : *tensors) {
    const bool lacks_prefix = !expected.contains(name) && expected.contains(prefix + name);
    const std::string whole = lacks_prefix ? prefix + name : name;
    if (!named.emplace(whole, std::move(tensor)).second)
      return InvalidArgument(fmt::format("{}: tensor {} is there twice, once without {}", path, Quoted(whole), Quoted(prefix)));
  }
  *tensors = std::move(named);
  return OkStatus();
}

bool HoldTheSame(const StoredTensor& a, const StoredTensor& b) {
  return a.type == b.type && a.shape == b.shape && std::ranges::equal(a.data, b.data);
}

// Of two names of one matrix savers keep either, or both. False if they hold different values.
bool TieEmbeddings(const ModelConfig& config, TensorMap* tensors) {
  if (!config.tie_embeddings) return true;
  const Family& family = FamilyNamed(config.architecture);
  const std::string embedding = NameOf(family, WeightRole::kEmbedding), head = NameOf(family, WeightRole::kLmHead);
  const auto found = tensors->find(head), input = tensors->find(embedding);
  if (found == tensors->end()) return true;
  if (input == tensors->end()) {
    auto moved = tensors->extract(found);
    moved.key() = embedding;
    tensors->insert(std::move(moved));
    return true;
  }
  if (!HoldTheSame(found->second, input->second)) return false;
  tensors->erase(found);
  return true;
}

// All but tied embeddings.
Status NameAsFamily(const std::string& path, const ModelConfig& config, TensorMap* tensors) {
  if (!FamilyNamed(config.architecture).multimodal.hf_architecture.empty()) COPPICE_RETURN_IF_ERROR(TakeTextModel(path, tensors));
  DropComputed(tensors);
  return AddPrefix(path, config, tensors);
}

}  // namespace

Status NameWeights(const std::string& path, ModelConfig* config, TensorMap* tensors, std::vector<std::string>* notes) {
  if (static_cast<size_t>(config->num_layers) > tensors->size()) return OkStatus();  // CheckWeights refuses it
  COPPICE_RETURN_IF_ERROR(NameAsFamily(path, *config, tensors));
  if (TieEmbeddings(*config, tensors)) return OkStatus();
  config->tie_embeddings = false;
  const Family& family = FamilyNamed(config->architecture);
  notes->push_back(
      fmt::format("{}: config.json ties the embeddings (\"tie_word_embeddings\"), but tensor {} holds other values than {}, and is "
                  "what the model takes; set \"tie_word_embeddings\" to false",
                  path, Quoted(NameOf(family, WeightRole::kLmHead)), Quoted(NameOf(family, WeightRole::kEmbedding))));
  return OkStatus();
}

Status NameSomeWeights(const std::string& path, const ModelConfig& config, TensorMap* tensors) {
  COPPICE_RETURN_IF_ERROR(NameAsFamily(path, config, tensors));
  if (TieEmbeddings(config, tensors)) return OkStatus();
  const Family& family = FamilyNamed(config.architecture);
  return InvalidArgument(fmt::format("{}: the model ties its embeddings, but tensor {} holds other values than {}; leave one away",
                                     path, Quoted(NameOf(family, WeightRole::kLmHead)),
                                     Quoted(NameOf(family, WeightRole::kEmbedding))));
}

}  // namespace coppice
