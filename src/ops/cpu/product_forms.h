// Which set of kernels multiplies what on this machine: the best of the table (kernels.h), or for some kind of product another that
// a probe found faster here. Layer: ops, private.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/cpu/kernel_probe.h"
#include "ops/cpu/kernels.h"

namespace coppice::ops {

// Products of up to so many rows take the kernels of few rows: their time is the weights' way to the core.
inline constexpr int64_t kFewRows = 4;

struct ProductForms {
  const Kernels* f32_few = nullptr;
  const Kernels* f32_many = nullptr;
  const Kernels* bf16_few = nullptr;
  const Kernels* bf16_many = nullptr;
  const Kernels* coded = nullptr;
  const Kernels* blocks_few = nullptr;
  const Kernels* blocks_many = nullptr;

  static ProductForms Of(const Kernels& all) { return {&all, &all, &all, &all, &all, &all, &all}; }
  const Kernels& F32(int64_t rows) const { return rows <= kFewRows ? *f32_few : *f32_many; }
  const Kernels& Bf16(int64_t rows) const { return rows <= kFewRows ? *bf16_few : *bf16_many; }
  const Kernels& Blocks(int64_t rows) const { return rows <= kFewRows ? *blocks_few : *blocks_many; }
};

// A kind of product as ProbeKernels times it.
struct ProductKind {
  const char* name;
  const Kernels* ProductForms::*form;
};
const std::vector<ProductKind>& ProductKinds();

// `forms`: of SupportedKernels(), the best one first.
ProbePlan PlanProductProbe(std::vector<const Kernels*> forms);
// The fastest of those forms, by kind of product, in a probe.
ProductForms ChooseProducts(const std::vector<const Kernels*>& forms, const ProbeResult& probe);

// Those of this process. COPPICE_CPU_ISA leaves SelectKernels() for all, and so does COPPICE_CPU_PROBE=off. The deterministic mode
// takes SelectKernels() whatever was measured. Timed or read at the first call; thread-safe.
const ProductForms& HostProductForms();
// The same for people.
ProbeReport ProductReport();

}  // namespace coppice::ops
