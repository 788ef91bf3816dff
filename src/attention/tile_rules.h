// Rows and tokens of a backend's tiles: which kind reads them, and what is computed, padding included. Layer: attention,
// private.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/backend_traits.h"
#include "attention/work_list.h"
#include "core/math.h"

namespace coppice::attention {

// "Rows" are those under one kv head.
class TileRules {
 public:
  TileRules() = default;
  // pads_tokens: a dense tile computes whole blocks of tokens.
  TileRules(const BackendTraits& traits, bool pads_tokens)
      : dense_min_rows_(std::max(traits.dense_min_rows, 1)),
        two_column_rows_(traits.two_column_rows > 0 ? traits.two_column_rows : CeilDiv(dense_min_rows_, 2)),
        row_unit_(traits.dense_row_unit > 0 ? traits.dense_row_unit : dense_min_rows_),
        tile_rows_(std::max(traits.dense_tile_rows, 1)),
        max_item_rows_(traits.max_item_rows),
        kv_tile_(std::max(traits.kv_tile, 1)),
        pads_tokens_(pads_tokens) {}

  ItemKind KindOf(int64_t rows) const { return rows >= dense_min_rows_ ? ItemKind::kDenseTile : ItemKind::kStreamTile; }
  // BackendTraits::two_column_rows.
  bool IsTwoColumn(int64_t rows) const { return rows >= two_column_rows_; }
  // Whether they fill a unit of a dense tile.
  bool FillsUnit(int64_t rows) const { return rows >= row_unit_; }
  // Items that `rows` rows over one range need (max_item_rows).
  int64_t RowGroups(int64_t rows) const { return max_item_rows_ == 0 ? 1 : CeilDiv(rows, max_item_rows_); }
  int64_t DenseTasks(int64_t rows) const { return KindOf(rows) == ItemKind::kStreamTile ? 0 : CeilDiv(rows, tile_rows_); }
  // Rows computed for `rows` rows; tokens computed for them over `tokens` tokens.
  int64_t ComputedRows(ItemKind kind, int64_t rows) const {
    return kind == ItemKind::kStreamTile ? rows : RoundUp(rows, row_unit_);
  }
  int64_t ComputedRows(int64_t rows) const { return ComputedRows(KindOf(rows), rows); }
  int64_t ComputedTokens(ItemKind kind, int64_t tokens) const {
    return pads_tokens_ && kind == ItemKind::kDenseTile ? RoundUp(tokens, kv_tile_) : tokens;
  }
  int64_t ComputedTokens(int64_t rows, int64_t tokens) const { return ComputedTokens(KindOf(rows), tokens); }
  int64_t kv_tile() const { return kv_tile_; }

 private:
  int64_t dense_min_rows_ = 1, two_column_rows_ = 1, row_unit_ = 1, tile_rows_ = 1, max_item_rows_ = 0, kv_tile_ = 1;
  bool pads_tokens_ = false;
};

}  // namespace coppice::attention
