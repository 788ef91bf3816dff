// Which part of a model a rank holds: the only arithmetic of heads, feed-forward columns and vocabulary rows by rank. All ranks
// have equal shapes; where the ranks do not divide what there is, the last ones are filled up with zeros. Layer: model.
#pragma once

#include <cstdint>
#include <vector>

#include "core/communicator.h"
#include "model/config.h"
#include "model/families/family.h"

namespace coppice {

// Rows or columns of a matrix that lie together.
struct RowRun {
  int64_t begin = 0, count = 0;
};

// The part of a dimension that a rank holds: entries of the model, then zeros up to `padded`, which is the same on all ranks.
struct ShardRun {
  int64_t begin = 0, count = 0, padded = 0;

  int64_t padding() const { return padded - count; }
  RowRun held() const { return {begin, count}; }
};

struct Shard {
  int32_t rank = 0, ranks = 1;

  // Whole groups: a KV head and all query heads that read it are on one rank. Where there are more ranks than KV heads each rank
  // has one, which several have, and these divide the query heads that read it.
  ShardRun KvHeads(const ModelConfig& config) const;
  ShardRun QoHeads(const ModelConfig& config) const;
  // Which of the ranks it is that have its KV heads; 0 where no other has them.
  int64_t IndexAtKvHead(const ModelConfig& config) const;
  // The ranks that have its KV heads, itself among them. Where KvSharers is 0 these are not as many for every rank.
  RankRun RanksAtKvHead(const ModelConfig& config) const;
  // How many ranks have each KV head: 1 where ranks divide the KV heads, 0 where it depends on the head.
  static int KvSharers(const ModelConfig& config, int ranks);
  ShardRun MlpColumns(const ModelConfig& config) const;
  ShardRun VocabularyRows(const ModelConfig& config) const;

  // Of the rows of a stored matrix that is a product's only or one of several: outputs that the rank computes. Not of kQkv.
  ShardRun Rows(WeightRole role, const ModelConfig& config) const;
  // Of its columns: inputs that the rank has.
  ShardRun Columns(WeightRole role, const ModelConfig& config) const;
  // Of the rows of q, of k and of v, in this order, of a fused projection whose rows are in the order of FusedRows.
  std::vector<ShardRun> FusedQkv(const ModelConfig& config) const;

  // Of a product whose inputs are divided among ranks each rank gives a term of the sum; one of them gives the bias.
  bool HoldsBias(WeightRole role) const;

  // The model as a rank computes it: heads, columns and vocabulary of the rank, padding included.
  ModelConfig Local(const ModelConfig& config) const;
};

}  // namespace coppice
