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

std::vector<LayerPlans::Group> GroupsOf(const Transformer& transformer, const StripedForest* stripes,
                                        std::vector<std::unique_ptr<attention::AttentionPlan>> plans) {
  std::vector<LayerPlans::Group> groups;
  for (size_t group = 0; group < plans.size(); ++group) {
    const auto layers = std::ranges::count(transformer.layer_groups(), static_cast<int32_t>(group));
    const int32_t ranks = stripes == nullptr ? transformer.shard().ranks : 1;
    groups.push_back({std::move(plans[group]), static_cast<int32_t>(layers) * ranks});
  }
  return groups;
}

void ReadsOfRanks::Begin(bool knows_sharing, StepStats* stats) {
  last_ = 1 - last_;
  std::vector<BranchReads>& branches = branches_[last_];
  branches.clear();
  if (knows_sharing) {
    branches.assign(stats->branch_reads.begin(), stats->branch_reads.end());
  } else {
    stats->grouped_rows = 0;
  }
  stats->branch_reads = branches;
}

// Ranks see the same branches, and each its own tokens of them.
void ReadsOfRanks::Add(const StepStats& of_rank, StepStats* stats) {
  stats->kv_bytes_read += of_rank.kv_bytes_read;
  stats->kv_bytes_read_unshared += of_rank.kv_bytes_read_unshared;
  stats->kv_bytes_distinct += of_rank.kv_bytes_distinct;
  std::vector<BranchReads>& branches = branches_[last_];
  for (size_t b = 0; b < std::min(branches.size(), of_rank.branch_reads.size()); ++b) {
    const BranchReads& read = of_rank.branch_reads[b];
    branches[b].kv_bytes_not_read += read.kv_bytes_not_read;
    branches[b].tokens += read.tokens;
    branches[b].sharers = std::max(branches[b].sharers, read.sharers);
  }
}

}  // namespace coppice
