#include "runner/model_parts.h"

#include <algorithm>
#include <utility>

namespace coppice {

RunnerInfo InfoOf(const ModelParts& parts) {
  attention::AttentionSpec spec = parts.transformer->attention_specs().front();
  const ModelConfig& config = parts.transformer->config();
  spec.num_kv_heads = config.num_kv_heads;  // of all ranks, without padding
  return {.model = config,
          .fingerprint = parts.fingerprint,
          .kv_dtype = spec.kv_dtype,
          .kv_bytes_per_token = KvPool::BytesPerPage(spec, config.num_layers, /*page_size=*/1)};
}

Status CheckSleepOn(const Device& device, const Transformer& transformer, bool keep_weights) {
  COPPICE_RETURN_IF_ERROR(device.CheckReleasable());
  return keep_weights ? OkStatus() : transformer.CheckDropWeights();
}

Status SleepOn(Device& device, Transformer& transformer, bool keep_weights) {
  if (!keep_weights) transformer.DropWeights();
  COPPICE_RETURN_IF_ERROR(device.Release(MemoryKind::kKv, /*keep_content=*/false));
  return device.Release(MemoryKind::kWeights, keep_weights);
}

Status WakeOn(Device& device) {
  COPPICE_RETURN_IF_ERROR(device.Restore(MemoryKind::kWeights));
  return device.Restore(MemoryKind::kKv);
}

std::vector<LayerPlans::Group> GroupsOf(const Transformer& transformer,
                                        std::vector<std::unique_ptr<attention::AttentionPlan>> plans) {
  std::vector<LayerPlans::Group> groups;
  for (size_t group = 0; group < plans.size(); ++group) {
    const auto layers = std::ranges::count(transformer.layer_groups(), static_cast<int32_t>(group));
    groups.push_back({std::move(plans[group]), static_cast<int32_t>(layers) * transformer.shard().ranks});
  }
  return groups;
}

}  // namespace coppice
