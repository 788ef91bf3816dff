#include "model/shard.h"

#include <algorithm>

#include "core/math.h"

namespace coppice {
namespace {

using enum WeightRole;

// Columns and rows are divided in whole blocks of a quantised file's common formats.
constexpr int64_t kUnit = 32;

ShardRun Divide(const Shard& shard, int64_t total, int64_t unit) {
  if (shard.ranks == 1) return {0, total, total};
  const int64_t padded = RoundUp(CeilDiv(total, shard.ranks), unit);
  const int64_t begin = std::min(shard.rank * padded, total);
  return {begin, std::min(padded, total - begin), padded};
}

ShardRun Scaled(const ShardRun& run, int64_t factor) { return {run.begin * factor, run.count * factor, run.padded * factor}; }

ShardRun Whole(int64_t total) { return {0, total, total}; }

// Whether the role's inputs are divided among ranks, and its products are summed.
bool IsRowParallel(WeightRole role) { return role == kAttentionOutput || role == kDown; }

}  // namespace

ShardRun Shard::KvHeads(const ModelConfig& config) const {
  if (ranks <= config.num_kv_heads) return Divide(*this, config.num_kv_heads, 1);
  return {int64_t{rank} * config.num_kv_heads / ranks, 1, 1};
}

ShardRun Shard::QoHeads(const ModelConfig& config) const {
  const int64_t kv_heads = config.num_kv_heads, group = config.num_qo_heads / kv_heads;
  if (ranks <= kv_heads) return Scaled(KvHeads(config), group);
  const int64_t padded = CeilDiv(group, ranks / kv_heads);  // of a KV head with the fewest ranks
  const int64_t begin = std::min(IndexAtKvHead(config) * padded, group);
  return {KvHeads(config).begin * group + begin, std::min(padded, group - begin), padded};
}

int64_t Shard::IndexAtKvHead(const ModelConfig& config) const {
  if (ranks <= config.num_kv_heads) return 0;
  return rank - CeilDiv(KvHeads(config).begin * ranks, int64_t{config.num_kv_heads});
}

RankRun Shard::RanksAtKvHead(const ModelConfig& config) const {
  const auto first = static_cast<int>(rank - IndexAtKvHead(config));
  RankRun run = {first, 1};
  if (ranks <= config.num_kv_heads) return run;
  const auto head_of = [&](int other) { return Shard{other, ranks}.KvHeads(config).begin; };
  while (run.last() + 1 < ranks && head_of(run.last() + 1) == head_of(rank)) ++run.count;
  return run;
}

int Shard::KvSharers(const ModelConfig& config, int ranks) {
  if (ranks <= config.num_kv_heads) return 1;
  return ranks % config.num_kv_heads == 0 ? ranks / config.num_kv_heads : 0;
}

ShardRun Shard::MlpColumns(const ModelConfig& config) const { return Divide(*this, config.intermediate_size, kUnit); }

ShardRun Shard::VocabularyRows(const ModelConfig& config) const { return Divide(*this, config.vocab_size, kUnit); }

ShardRun Shard::Rows(WeightRole role, const ModelConfig& config) const {
  switch (role) {
    case kEmbedding:
    case kLmHead: return VocabularyRows(config);
    case kPositions: return Whole(config.max_position);
    case kQ: return Scaled(QoHeads(config), config.head_dim);
    case kK:
    case kV: return Scaled(KvHeads(config), config.head_dim);
    case kGate:
    case kUp: return MlpColumns(config);
    default: return Whole(config.hidden_size);
  }
}

ShardRun Shard::Columns(WeightRole role, const ModelConfig& config) const {
  switch (role) {
    case kAttentionOutput: return Scaled(QoHeads(config), config.head_dim);
    case kDown: return MlpColumns(config);
    default: return Whole(config.hidden_size);
  }
}

std::vector<ShardRun> Shard::FusedQkv(const ModelConfig& config) const {
  const int64_t q_rows = int64_t{config.num_qo_heads} * config.head_dim, kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  ShardRun q = Rows(kQ, config), k = Rows(kK, config), v = k;
  k.begin += q_rows;
  v.begin += q_rows + kv_rows;
  return {q, k, v};
}

bool Shard::HoldsBias(WeightRole role) const { return rank == 0 || !IsRowParallel(role); }

ModelConfig Shard::Local(const ModelConfig& config) const {
  ModelConfig local = config;
  local.num_qo_heads = static_cast<int32_t>(QoHeads(config).padded);
  local.num_kv_heads = static_cast<int32_t>(KvHeads(config).padded);
  local.intermediate_size = static_cast<int32_t>(MlpColumns(config).padded);
  local.vocab_size = static_cast<int32_t>(VocabularyRows(config).padded);
  return local;
}

}  // namespace coppice
