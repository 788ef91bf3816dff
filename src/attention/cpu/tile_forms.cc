#include "attention/cpu/tile_forms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "attention/cpu/kernel_table.h"
#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention::cpu {
namespace {

enum Kind : size_t { kDense, kStream, kNumKinds };
constexpr std::array<const char*, kNumKinds> kKindNames = {"dense", "stream"};

// Operands stay in the second-level cache.
constexpr int32_t kHeadDim = 128, kPageSize = 16, kDenseRows = 64, kStreamRows = 4, kDenseTokens = 256, kStreamTokens = 512;

struct Operands {
  static constexpr int64_t kRowBytes = kHeadDim * 2;

  explicit Operands(const std::vector<Isa>& sets) {
    for (const Isa isa : sets) kernels.push_back(SelectKernels(isa, {.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = kHeadDim}));
    size_t bytes = 0;
    for (const TileKernels& k : kernels) {
      bytes = std::max({bytes, k.dense.scratch_bytes(kHeadDim, kDenseRows), k.stream.scratch_bytes(kHeadDim, kDenseRows)});
    }
    scratch.resize(bytes + kAlignment);
    for (int32_t page = 0; page < kStreamTokens / kPageSize; ++page) pages.push_back(page);
    for (int32_t row = 0; row < kDenseRows; ++row)
      queries.push_back({.q_row = row, .begin = 0, .end = kStreamTokens, .span_begin = INT32_MAX});
    for (size_t i = 0; i < q.size(); ++i) q[i] = BF16::FromFloat(static_cast<float>(i % 7) - 3.0f);
    for (size_t i = 0; i < kv.size(); ++i) kv[i] = BF16::FromFloat(static_cast<float>(i % 5) - 2.0f);
  }

  void Run(size_t kind, size_t form) {
    const bool dense = kind == kDense;
    const auto* const bytes = reinterpret_cast<const std::byte*>(kv.data());
    const TileTask task = {.kv = {.k = bytes,
                                  .v = bytes + kStreamTokens * kRowBytes,
                                  .page_bytes = kPageSize * kRowBytes,
                                  .slot_bytes = kRowBytes,
                                  .pages = pages.data(),
                                  .page_size = kPageSize},
                           .kv_begin = 0,
                           .kv_end = dense ? kDenseTokens : kStreamTokens,
                           .queries = std::span(queries).first(dense ? kDenseRows : kStreamRows),
                           .group_size = 1,
                           .head_dim = kHeadDim,
                           .q = reinterpret_cast<const std::byte*>(q.data()),
                           .q_row_bytes = kRowBytes,
                           .score_scale = 1.442695f / std::sqrt(static_cast<float>(kHeadDim)),
                           .soft_cap = 0};
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    auto* const aligned = scratch.data() + (kAlignment - address % kAlignment) % kAlignment;
    (dense ? kernels[form].dense : kernels[form].stream)
        .run(task, {.acc = acc.data(), .acc_stride = kHeadDim, .m = m.data(), .l = l.data()}, aligned);
  }

  static constexpr size_t kAlignment = 64;
  std::vector<TileKernels> kernels;
  std::vector<BF16> q = std::vector<BF16>(kDenseRows * kHeadDim), kv = std::vector<BF16>(2 * kStreamTokens * kHeadDim);
  std::vector<int32_t> pages;
  std::vector<TileQuery> queries;
  std::vector<float> acc = std::vector<float>(kDenseRows * kHeadDim), m = std::vector<float>(kDenseRows), l = m;
  std::vector<std::byte> scratch;
};

// All sets of this CPU, whatever COPPICE_CPU_ISA says, but the baseline where there is another.
std::vector<Isa> ProbedSets() {
  std::vector<Isa> sets;
  for (Isa isa = BestIsa(); isa > Isa::kBaseline; isa = static_cast<Isa>(static_cast<int>(isa) - 1)) {
    if (isa != Isa::kAvxVnni || CpuHasAvxVnni()) sets.push_back(isa);
  }
  if (sets.empty()) sets.push_back(Isa::kBaseline);
  return sets;
}

struct Host {
  std::vector<Isa> sets = ProbedSets();
  ProbePlan plan = PlanTileProbe(sets);
  ProbeResult probe = ProbeKernels(plan, ProbeOptions::OfProcess(reinterpret_cast<const void*>(&PlanTileProbe)));
  // A forced set is timed all the same: rates follow it.
  TileForms forms = KernelsAreForced() ? TileForms(DetectIsa()) : ChooseTiles(sets, probe);
};

const Host& ThisHost() {
  static const Host host;
  return host;
}

// Of the set that the model was measured with, the part of its time that `isa` takes; 1 where that is not known.
double TimeOver(const std::vector<Isa>& forms, const ProbeResult& probe, Kind kind, std::string_view of_model, Isa isa) {
  if (probe.times.empty()) return 1;
  const auto from = std::ranges::find(forms, of_model, [](Isa form) { return Name(form); });
  const auto to = std::ranges::find(forms, isa);
  if (from == forms.end() || to == forms.end() || from == to) return 1;
  const std::vector<FormTime>& times = probe.times[kind];
  return times[to - forms.begin()].ratio / times[from - forms.begin()].ratio;
}

}  // namespace

ProbePlan PlanTileProbe(const std::vector<Isa>& forms) {
  ProbePlan plan{.subject = "attention", .kinds = {kKindNames.begin(), kKindNames.end()}};
  for (const Isa form : forms) plan.forms.emplace_back(Name(form));
  plan.prepare = [forms] {
    const auto operands = std::make_shared<Operands>(forms);
    return [operands](size_t kind, size_t form) { return TimeTurn([&] { operands->Run(kind, form); }); };
  };
  return plan;
}

TileForms ChooseTiles(const std::vector<Isa>& forms, const ProbeResult& probe) {
  TileForms chosen(forms.front());
  if (probe.times.empty()) return chosen;
  double least = 2;
  for (size_t dense = 0; dense < forms.size(); ++dense) {
    for (size_t stream = 0; stream < forms.size(); ++stream) {
      if (RoundsWeights(forms[dense]) && !RoundsWeights(forms[stream])) continue;
      const FormTime &of_dense = probe.times[kDense][dense], &of_stream = probe.times[kStream][stream];
      const double ratio = of_dense.ratio + of_stream.ratio;
      if (of_dense.high + of_stream.high >= 2 * FormTime::kLeastGain || ratio >= least) continue;
      least = ratio;
      chosen = {forms.front(), forms[dense], forms[stream]};
    }
  }
  // Of a pair that is faster, a part that is not by itself is the table's again where the rule above allows it.
  const auto time = [&](Kind kind, Isa isa) -> const FormTime& {
    return probe.times[kind][std::ranges::find(forms, isa) - forms.begin()];
  };
  if (!time(kStream, chosen.stream).IsFaster() && (!RoundsWeights(chosen.dense) || RoundsWeights(chosen.table)))
    chosen.stream = chosen.table;
  if (!time(kDense, chosen.dense).IsFaster() && (!RoundsWeights(chosen.table) || RoundsWeights(chosen.stream)))
    chosen.dense = chosen.table;
  return chosen;
}

MachineModel FollowTiles(MachineModel model, const std::vector<Isa>& forms, const ProbeResult& probe, const TileForms& chosen) {
  const double dense = TimeOver(forms, probe, kDense, model.kernels, chosen.dense);
  const double stream = TimeOver(forms, probe, kStream, model.kernels, chosen.stream);
  if (dense == 1 && stream == 1) return model;
  model.dense_flops_per_s /= dense;
  model.stream_flops_per_s /= stream;
  model.stream_kv_bytes_per_s /= stream;
  model.name += " with tiles of " + std::string(Name(chosen.dense)) +
                (chosen.stream == chosen.dense ? "" : " (dense) and " + std::string(Name(chosen.stream)) + " (stream)");
  model.kernels.clear();
  return model;
}

const TileForms& HostTileForms() { return ThisHost().forms; }

MachineModel HostMachineModel(int32_t workers) {
  Result<MachineModel> model = ShippedMachineModel(HostCpuModelName(), workers);
  if (!model.ok()) return {};
  const Host& host = ThisHost();
  return FollowTiles(*std::move(model), host.sets, host.probe, host.forms);
}

ProbeReport TileReport() {
  const Host& host = ThisHost();
  return ReportProbe(host.plan, host.probe, {std::string(Name(host.forms.dense)), std::string(Name(host.forms.stream))});
}

}  // namespace coppice::attention::cpu
