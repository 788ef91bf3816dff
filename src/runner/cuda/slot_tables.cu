#include "runner/cuda/slot_tables.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/cuda_status.h"
#include "core/math.h"
#include "runner/cuda/draw.h"

namespace coppice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSliceEntries = 16 * kThreads;  // of a table that a CTA clears or copies

__global__ void EditWholeSlots(const SlotTables tables, const TableEdit* edits) {
  const TableEdit edit = edits[blockIdx.y];
  const int64_t to = int64_t{edit.slot} * tables.vocab, from = int64_t{edit.other} * tables.vocab;
  const int begin = blockIdx.x * kSliceEntries, end = min(begin + kSliceEntries, tables.vocab);
  const bool copies = edit.kind == TableEdit::Kind::kCopy;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    tables.counts[to + i] = copies ? tables.counts[from + i] : 0;
    tables.biases[to + i] = copies ? tables.biases[from + i] : 0;
  }
}

__global__ void EditEntries(const SlotTables tables, const TableEdit* edits, int count, const DrawnToken* drawn) {
  const int i = blockIdx.x * kThreads + static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const TableEdit edit = edits[i];
  const int token = edit.kind == TableEdit::Kind::kDrawn ? drawn[edit.other].token : edit.other;
  if (token < 0) return;
  const int64_t entry = int64_t{edit.slot} * tables.vocab + token;
  switch (edit.kind) {
    case TableEdit::Kind::kPrompt: atomicOr(&tables.counts[entry], kInPrompt); break;
    case TableEdit::Kind::kGenerated:
    case TableEdit::Kind::kDrawn: atomicAdd(&tables.counts[entry], 1u); break;
    case TableEdit::Kind::kEndsSample: atomicOr(&tables.counts[entry], kEndsSample); break;
    case TableEdit::Kind::kBias: atomicAdd(&tables.biases[entry], edit.bias); break;
    case TableEdit::Kind::kClear:
    case TableEdit::Kind::kCopy: break;
  }
}

}  // namespace

Status LaunchTableEdits(const SlotTables& tables, const TableEdit* edits, int32_t count, bool whole, const DrawnToken* drawn,
                        cudaStream_t stream) {
  if (count == 0) return OkStatus();
  if (whole) {
    constexpr int32_t kMostAtOnce = 65535;  // of a grid's second dimension
    for (int32_t begin = 0; begin < count; begin += kMostAtOnce) {
      const dim3 grid(static_cast<unsigned>(CeilDiv(tables.vocab, kSliceEntries)),
                      static_cast<unsigned>(std::min(count - begin, kMostAtOnce)));
      EditWholeSlots<<<grid, kThreads, 0, stream>>>(tables, edits + begin);
    }
  } else {
    EditEntries<<<static_cast<unsigned>(CeilDiv(count, kThreads)), kThreads, 0, stream>>>(tables, edits, count, drawn);
  }
  return CudaStatus(cudaGetLastError(), "launching edits of sampling slots");
}

}  // namespace coppice::cuda
