// The memory of a forward pass between its operations: one matrix for each kind of value, as large as the largest step.
// Layer: model.
#pragma once

#include <cstdint>
#include <optional>

#include "coppice/core/status.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "model/config.h"

namespace coppice {

// A matrix of activations with room for a largest batch; a product may read its rows up to the next multiple of kRowPadding.
class Activation {
 public:
  static Result<Activation> Create(Device& device, DType dtype, int64_t max_rows, int64_t cols);
  DeviceTensor Rows(int64_t rows) const { return {memory_.data(), dtype_, rows, cols_, cols_}; }

 private:
  DeviceMemory memory_;
  DType dtype_ = DType::kF32;
  int64_t cols_ = 0;
};

struct Activations {
  struct Limits {
    int32_t max_tokens = 0;            // T
    int32_t max_logit_rows = 0;        // R
    std::optional<DType> head_inputs;  // the output projection's are of this dtype; none: as those of the others
    std::optional<DType> terms;        // what ranks add up is kept apart, in this dtype
    // Where ranks divide the tokens of KV: all ranks, and those that have this rank's KV head. 0: they do not.
    int32_t gathered_ranks = 0, kv_sharers = 0;
  };
  // `config`: of the rank; `dtype`: of product inputs; `gathered_vocab`: of the model, where this rank gathers logits, else 0.
  static Result<Activations> Create(Device& device, const ModelConfig& config, DType dtype, int64_t gathered_vocab,
                                    const Limits& limits);

  Activation hidden;           // [T, hidden] f32: the residual stream
  Activation normed;           // [T, hidden]
  Activation qkv;              // [T, (qo + 2 kv) heads * head_dim] f32
  Activation q;                // [T, qo heads * head_dim]
  Activation attended;         // [T, qo heads * head_dim]
  Activation gathered_q;       // [T, ranks * qo heads * head_dim], with Limits::gathered_ranks: q of all ranks
  Activation partial;          // [T, sharers * qo heads * head_dim], likewise: attention to the rank's tokens
  Activation partial_lse;      // [T, sharers * qo heads] f32
  Activation mlp;              // [T, intermediate]
  Activation projected;        // [T, hidden] f32: what a block gives before its norm, where it has one
  Activation terms;            // [T, hidden], with Limits::terms: what a block gives on this rank, of a sum over ranks
  Activation kept;             // [R, hidden] f32: the residual stream of the rows whose logits are wanted, in the last layer
  Activation logits_normed;    // [R, hidden]
  Activation logits;           // [R, vocab] f32
  Activation gathered_logits;  // [R, vocab] f32 of all ranks
};

}  // namespace coppice
