// The peak rates of this machine's cores and memory, as loops without any attention in them reach it: the denominators of
// "percent of the roofline".
// Layer: attention/cpu.
#pragma once

#include "attention/cpu/cpu_features.h"
#include "coppice/core/executor.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::attention::cpu {

// Rates of all workers together. Each is the best of several short measurements, since other users of the machine can only
// slow one down.
struct CpuRoofline {
  double product_flops_per_s = 0;  // the product instruction that dense tiles of this dtype use, operands in L1
  double read_bytes_per_s = 0;     // from memory: a buffer three times the last-level cache (at most 512 MiB), each worker its part
  double cache_bytes_per_s = 0;    // from the last-level cache, private caches too small
};

// The two loops behind it, for benches that interleave them with what they measure.
// Products of the instruction that dense tiles of `dtype` use, a fraction of a millisecond of them; returns their FLOPs.
double ComputeProducts(Isa isa, DType dtype);
// Reads a word of each cache line of [from, from + bytes), a multiple of 32 KiB: eight 4 KiB pages in turn, or in the order of
// memory. Each line is requested a page ahead of its turn. Which order is the faster one depends on the machine
// (docs/attention.md).
enum class ReadOrder : uint8_t { kPagesInTurn, kMemory };
void ReadLines(const std::byte* from, size_t bytes, ReadOrder order);

// Takes about a second. RESOURCE_EXHAUSTED if the buffer cannot be had.
Result<CpuRoofline> MeasureCpuRoofline(Executor& executor, Isa isa, DType dtype);

}  // namespace coppice::attention::cpu
