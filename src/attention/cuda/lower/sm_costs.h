// The cost of work for one SM, by the rates of the machine's card: the arithmetic that the translation of plans weighs kinds and
// cuts with. Decides nothing. Layer: attention/cuda. docs/kernels/hopper.md, "SM partition", has the model and its fit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/backend_traits.h"
#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/plan_device.h"
#include "attention/machine_model.h"
#include "attention/plan_units.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

class SmCosts {
 public:
  // traits: of the kernel (TraitsOf).
  SmCosts(const SmRates& rates, const AttentionSpec& spec, const BackendTraits& traits);

  const SmRates& rates() const { return rates_; }
  // Of the memory, all SMs together; and an even part of it.
  double memory_bytes_per_ns() const { return memory_bytes_per_ns_; }
  double sm_memory_bytes_per_ns() const { return memory_bytes_per_ns_ / rates_.num_sms; }
  // The part that each gets of what it asks the memory for, all together so many bytes a nanosecond: all of it far below the
  // memory's rate, no more than that rate far above, and 0.92 at the rate itself, near which requests queue before the bus is full.
  // The form is one for all cards: it fits partitioned steps on an H200 and an H100 (docs/kernels/hopper.md, "SM partition").
  double MemoryShare(double bytes_per_ns) const {
    const double demand = bytes_per_ns / memory_bytes_per_ns_, squared = demand * demand, fourth = squared * squared;
    return 1 / std::sqrt(std::sqrt(std::sqrt(1 + fourth * fourth)));
  }
  double bulk_bytes_per_ns() const { return bulk_bytes_per_ns_; }
  KernelPath path() const { return path_; }
  int32_t stream_rows() const { return stream_rows_; }          // rows of a stream tile
  int32_t bytes_per_token() const { return bytes_per_token_; }  // K and V of one kv head

  // Tokens rounded up to what a dense task computes.
  int64_t WholeDenseSteps(int64_t tokens) const { return RoundUp(tokens, dense_piece_unit_); }
  int32_t dense_piece_unit() const { return dense_piece_unit_; }  // the ends of dense pieces are multiples of it
  double stream_step_ns() const { return stream_step_ns_; }       // of a stream warp beside the others of its SM
  // One token of one block of rows under one kv head.
  double DenseTokenNs() const { return dense_token_ns_; }
  double DenseTaskNs(int64_t tokens) const {
    return rates_.dense_task_ns + static_cast<double>(WholeDenseSteps(tokens)) * dense_token_ns_;
  }
  // An item of so many rows and tokens under one kv head as stream tasks beside others.
  double StreamItemNs(int64_t rows, int64_t tokens) const;
  // Folding one more piece of an item of this many rows: four rows in one pass, a warp 16 rows after each other.
  double FoldNs(int64_t rows) const { return rates_.fold_pass_ns * static_cast<double>(FoldPasses(rows)); }
  // A stream warp's fold of a set from the L2.
  double StreamFoldNs(int64_t rows, int64_t states) const {
    return rates_.fold_pass_ns * static_cast<double>(kFoldStartPasses + states * FoldPasses(rows));
  }

 private:
  SmRates rates_;
  KernelPath path_;
  int32_t stream_rows_;
  int32_t bytes_per_token_;
  int32_t dense_piece_unit_;
  double memory_bytes_per_ns_, bulk_bytes_per_ns_, stream_step_ns_, dense_token_ns_;
};

}  // namespace coppice::attention::cuda
