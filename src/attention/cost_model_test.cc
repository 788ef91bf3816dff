// The cost model's arithmetic. Layer: attention, tests.
#include "attention/step_model.h"

#include <gtest/gtest.h>

#include "attention/backend_traits.h"

namespace coppice::attention {
namespace {

TEST(CostModel, FollowsTheRoofline) {
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const BackendTraits traits{.workers = 4, .dense_min_rows = 8, .max_item_rows = 128, .native_head_dim = 128};
  const MachineModel machine{.read_bytes_per_s = 1e9,
                             .cache_bytes_per_s = 4e9,
                             .cache_bytes = 4096e3,
                             .dense_flops_per_s = 1e12,
                             .stream_flops_per_s = 1e11,
                             .item_fixed_ns = 100,
                             .state_bytes_per_s = 1e9,
                             .merge_fixed_ns = 40};
  const CostModel cost(spec, traits, machine);
  EXPECT_EQ(cost.kv_bytes_per_token(), 2 * 8 * 128 * 2);
  EXPECT_DOUBLE_EQ(cost.rates().read_ns, 4096);
  EXPECT_DOUBLE_EQ(cost.RereadNs(1000), 1024) << "all of it in the cache";
  EXPECT_DOUBLE_EQ(cost.RereadNs(2000), 0.5 * 1024 + 0.5 * 4096) << "half of it";
  EXPECT_DOUBLE_EQ(cost.ComputeNs(4), 4 * 4.0 * 8 * 128 / 1e11 * 1e9);
  EXPECT_DOUBLE_EQ(cost.ComputeNs(9), 16 * 4.0 * 8 * 128 / 1e12 * 1e9) << "dense tiles pad to 8 rows";
  EXPECT_EQ(cost.tiles().KindOf(7), ItemKind::kStreamTile);
  EXPECT_EQ(cost.tiles().KindOf(8), ItemKind::kDenseTile);
  EXPECT_EQ(cost.tiles().RowGroups(129), 2);
  EXPECT_DOUBLE_EQ(cost.StateNs(1), 2 * 8 * 130 * 4) << "written and read";
  EXPECT_DOUBLE_EQ(cost.rates().item_ns, 100 * 8 / 4);
  EXPECT_DOUBLE_EQ(cost.rates().merge_ns, 40 * 8 / 4);

  MachineModel tiles = machine;
  tiles.stream_kv_bytes_per_s = 2e9;
  EXPECT_DOUBLE_EQ(CostModel(spec, traits, tiles).ComputeNs(4), 2048 + cost.ComputeNs(4)) << "a stream tile takes KV once";
  EXPECT_DOUBLE_EQ(CostModel(spec, traits, tiles).ComputeNs(9), cost.ComputeNs(9)) << "dense tiles do not";

  MachineModel starts = machine;
  starts.dense_task_ns = 50;
  BackendTraits sixteen = traits;
  sixteen.dense_tile_rows = 16;
  EXPECT_DOUBLE_EQ(CostModel(spec, sixteen, starts).StartNs(33), cost.rates().item_ns + 3 * 50 * 8 / 4) << "three tiles of rows";
  EXPECT_DOUBLE_EQ(CostModel(spec, sixteen, starts).StartNs(7), cost.rates().item_ns) << "a stream tile has none";

  BackendTraits padded = traits;
  padded.native_head_dim = 256;
  EXPECT_DOUBLE_EQ(CostModel(spec, padded, machine).ComputeNs(4), 2 * cost.ComputeNs(4)) << "padding costs computation";
  EXPECT_DOUBLE_EQ(CostModel(spec, padded, machine).rates().read_ns, cost.rates().read_ns) << "but no bytes";
}

}  // namespace
}  // namespace coppice::attention
