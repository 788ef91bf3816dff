// A model's need of memory, and how much of it this machine has. Layer: cli.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/checkpoint.h"

namespace coppice::cli {

struct ModelMemory {
  int64_t parameters = 0;
  int64_t stored_bytes = 0;           // of all tensors, as the file has them
  int64_t kv_elements_per_token = 0;  // over all layers

  int64_t weight_bytes(DType dtype) const { return parameters * static_cast<int64_t>(SizeOf(dtype)); }
  int64_t kv_bytes_per_token(DType dtype) const { return kv_elements_per_token * static_cast<int64_t>(SizeOf(dtype)); }
  // Tokens whose KV fits beside weights of `weight_bytes`: the engine gives the KV cache half of what these leave free.
  int64_t kv_tokens(int64_t free_bytes, int64_t weight_bytes, DType kv_dtype) const;
};

ModelMemory MemoryOf(const Checkpoint& checkpoint);

// Lines for people: parameters, weights and KV by dtype, and what fits this machine. Without the latter where it does not say how
// much memory is free.
std::string FormatMemory(const ModelMemory& memory, int64_t max_position);
// Of this machine; the error of a system that does not say.
Result<int64_t> FreeMemory();

}  // namespace coppice::cli
