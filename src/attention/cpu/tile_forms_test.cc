// Which tiles are chosen from times that the tests invent, and how a machine model's rates follow. Layer: attention/cpu, tests.
#include "attention/cpu/tile_forms.h"

#include <gtest/gtest.h>

#include <string>

#include "attention/cpu/kernel_table.h"

namespace coppice::attention::cpu {
namespace {

const std::vector<Isa> kSets = {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2};

// Ratios of dense and of stream tiles of the three sets.
ProbeResult Times(std::vector<double> dense, std::vector<double> stream) {
  ProbeResult result{.source = ProbeResult::Source::kMeasured};
  for (const std::vector<double>& ratios : {dense, stream}) {
    auto& times = result.times.emplace_back();
    for (const double ratio : ratios) times.push_back({.ns = 1000 * ratio, .ratio = ratio, .high = ratio});
  }
  return result;
}

void ExpectChosen(const ProbeResult& probe, Isa dense, Isa stream) {
  const TileForms forms = ChooseTiles(kSets, probe);
  EXPECT_EQ(Name(forms.table), Name(Isa::kAvx512Bf16));
  EXPECT_EQ(Name(forms.dense), Name(dense));
  EXPECT_EQ(Name(forms.stream), Name(stream));
}

TEST(TileForms, AreTheTablesUnlessOthersAreFaster) {
  ExpectChosen({}, Isa::kAvx512Bf16, Isa::kAvx512Bf16);
  ExpectChosen(Times({1, 2, 4}, {1, 1.5, 3}), Isa::kAvx512Bf16, Isa::kAvx512Bf16);
  ExpectChosen(Times({1, 0.97, 4}, {1, 0.98, 3}), Isa::kAvx512Bf16, Isa::kAvx512Bf16);  // noise
  ExpectChosen(Times({1, 0.5, 0.9}, {1, 0.6, 0.9}), Isa::kAvx512, Isa::kAvx512);
  ExpectChosen(Times({1, 0.5, 0.9}, {1, 1.01, 1.5}), Isa::kAvx512, Isa::kAvx512Bf16);
  ExpectChosen(Times({1, 0.5, 0.9}, {1, 0.99, 1.5}), Isa::kAvx512, Isa::kAvx512Bf16);
}

// Dense tiles that round P go with stream tiles that do: faster stream tiles alone are taken with dense ones of another set, if
// both together are faster.
TEST(TileForms, StreamTilesRoundWeightsWhereDenseOnesDo) {
  ExpectChosen(Times({1, 1.1, 2}, {1, 0.5, 1}), Isa::kAvx512, Isa::kAvx512);
  ExpectChosen(Times({1, 1.6, 2}, {1, 0.5, 1}), Isa::kAvx512Bf16, Isa::kAvx512Bf16);
}

TEST(TileForms, RatesFollowTheTiles) {
  MachineModel model = ShippedMachineModel("zen5", 2).value();
  ASSERT_EQ(model.kernels, "avx512-bf16");
  const ProbeResult probe = Times({1, 0.5, 4}, {1, 0.8, 3});
  const MachineModel same = FollowTiles(model, kSets, probe, TileForms(Isa::kAvx512Bf16));
  EXPECT_EQ(ToJson(same), ToJson(model));
  EXPECT_EQ(ToJson(FollowTiles(model, kSets, {}, TileForms(Isa::kAvx512))), ToJson(model));
  const MachineModel other = FollowTiles(model, kSets, probe, TileForms(Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2));
  EXPECT_DOUBLE_EQ(other.dense_flops_per_s, 2 * model.dense_flops_per_s);
  EXPECT_DOUBLE_EQ(other.stream_flops_per_s, model.stream_flops_per_s / 3);
  EXPECT_DOUBLE_EQ(other.stream_kv_bytes_per_s, model.stream_kv_bytes_per_s / 3);
  EXPECT_EQ(other.read_bytes_per_s, model.read_bytes_per_s);
  EXPECT_EQ(other.name, "zen5 with tiles of avx512 (dense) and avx2 (stream)");
  // A processor without a model of its own: rates of AVX2 tiles, of which these take a quarter of the time.
  const MachineModel generic = ShippedMachineModel("generic-x86", 2).value();
  EXPECT_DOUBLE_EQ(FollowTiles(generic, kSets, probe, TileForms(Isa::kAvx512Bf16)).dense_flops_per_s,
                   4 * generic.dense_flops_per_s);
}

TEST(TileForms, EveryShippedModelOfACpuNamesItsKernels) {
  for (const std::string_view name : ShippedMachineNames()) {
    const MachineModel model = ShippedMachineModel(name).value();
    EXPECT_EQ(model.kernels.empty(), model.sm.num_sms > 0) << name;
  }
}

TEST(TileForms, TheTableServesOtherDtypesAndTheDeterministicMode) {
  if (!HasIsa(Isa::kAvx512Bf16)) GTEST_SKIP() << "no AVX-512 BF16";
  const TileForms forms(Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2);
  AttentionSpec spec{.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 64};
  const auto name = [&](const TileForms& of) {
    const TileKernels kernels = SelectKernels(of, spec);
    return std::string(kernels.dense.name) + ", " + kernels.stream.name;
  };
  EXPECT_EQ(name(forms),
            std::string(SelectKernels(Isa::kAvx512, spec).dense.name) + ", " + SelectKernels(Isa::kAvx2, spec).stream.name);
  spec.deterministic = true;
  EXPECT_EQ(name(forms), name(Isa::kAvx512Bf16));
  spec.deterministic = false;
  spec.q_dtype = spec.kv_dtype = DType::kF32;
  EXPECT_EQ(name(forms), name(Isa::kAvx512Bf16));
}

// The probe of this machine, whatever it finds: every tile is timed, and what it chooses is there.
TEST(TileForms, TimesEveryTile) {
  std::vector<Isa> sets;
  for (const Isa isa : {Isa::kAmxBf16, Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvxVnni, Isa::kAvx2}) {
    if (HasIsa(isa)) sets.push_back(isa);
  }
  if (sets.size() < 2) GTEST_SKIP() << "one set";
  const ProbeResult result = ProbeKernels(PlanTileProbe(sets), {.seconds = 10});
  ASSERT_EQ(result.source, ProbeResult::Source::kMeasured);
  for (const auto& kind : result.times) {
    for (const FormTime& time : kind) EXPECT_GT(time.ns, 0);
  }
  EXPECT_TRUE(HasIsa(ChooseTiles(sets, result).dense));
}

}  // namespace
}  // namespace coppice::attention::cpu
