// Tables of penalties, biases and bans, in a GPU's memory: for each sampling slot two numbers a token. Layer: runner/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/core/status.h"

namespace coppice::cuda {

struct DrawnToken;

// An entry of SlotTables::counts: how often the token was generated, and whether it is one of the prompt's and one that ends a
// sample.
inline constexpr uint32_t kInPrompt = 1u << 31, kEndsSample = 1u << 30, kCountMask = kEndsSample - 1;

struct SlotTables {
  uint32_t* counts = nullptr;  // [slot][vocab]
  float* biases = nullptr;     // [slot][vocab]
  int32_t vocab = 0;
};

// A change to a slot's entries.
struct TableEdit {
  enum class Kind : int32_t {
    kClear,      // both tables
    kCopy,       // both tables, from slot `other`
    kPrompt,     // token `other` occurs in the prompt
    kGenerated,  // token `other` was generated once more
    kDrawn,      // so was what draw `other` gave, if it gave one
    kEndsSample,
    kBias,  // `bias` is added to what token `other` has
  };
  Kind kind = Kind::kClear;
  int32_t slot = 0, other = 0;
  float bias = 0;
};

// Makes `count` edits, which may lie in page-locked host memory, in any order. Those that touch whole slots come in launches of
// their own: `whole` says that all of them do.
Status LaunchTableEdits(const SlotTables& tables, const TableEdit* edits, int32_t count, bool whole, const DrawnToken* drawn,
                        cudaStream_t stream);

}  // namespace coppice::cuda
