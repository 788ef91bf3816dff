// Which instruction set's tiles serve bf16 on this machine: the best of the table (kernel_table.h), or others that a probe found
// faster here, and how the rates of a machine model follow. Layer: attention/cpu.
#pragma once

#include <string_view>
#include <vector>

#include "attention/cpu/cpu_features.h"
#include "attention/machine_model.h"
#include "core/cpu/kernel_probe.h"

namespace coppice::attention::cpu {

// `table`: of other dtypes and of the deterministic mode. Dense and stream tiles of bf16 queries and KV may be of other sets.
struct TileForms {
  TileForms() = default;
  TileForms(Isa isa) : table(isa), dense(isa), stream(isa) {}  // NOLINT: a set alone says all
  TileForms(Isa table, Isa dense, Isa stream) : table(table), dense(dense), stream(stream) {}

  Isa table = Isa::kBaseline, dense = Isa::kBaseline, stream = Isa::kBaseline;
};

// Whether the bf16 tiles of a set round P (docs/numerics.md, "Errors of attention"). Where dense ones do, stream ones must: a
// request's error may not grow because others share its tokens.
constexpr bool RoundsWeights(Isa isa) { return isa >= Isa::kAvx512Bf16; }

// Kinds "dense" and "stream". `forms`: sets of this machine, the best one first.
ProbePlan PlanTileProbe(const std::vector<Isa>& forms);
// The result of a probe of those forms.
TileForms ChooseTiles(const std::vector<Isa>& forms, const ProbeResult& probe);

// The rates of dense and stream tiles as the probe has `chosen`, in place of those of the set that the model names
// (MachineModel::kernels). A model without one, or of a set that was not timed, stays as it is.
MachineModel FollowTiles(MachineModel model, const std::vector<Isa>& forms, const ProbeResult& probe, const TileForms& chosen);

// Those of this process. COPPICE_CPU_ISA forces a set, COPPICE_CPU_PROBE=off leaves the table's. Timed or read at the first call;
// thread-safe.
const TileForms& HostTileForms();
// The shipped model that fits this CPU, for so many workers, by HostTileForms(). An empty one where none does.
MachineModel HostMachineModel(int32_t workers);
// HostTileForms() for people.
ProbeReport TileReport();

}  // namespace coppice::attention::cpu
