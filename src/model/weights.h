// Weights between file and forward pass: a tensor as a view into a mapped file, what tensors a model must have, and the
// conversion to the caller's dtype and row order. Knows no file format.
// Layer: model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/config.h"
#include "model/shard.h"
#include "model/stored_type.h"

namespace coppice {

// A tensor as it lies in a file. Row-major; `data` holds exactly its elements, unaligned, and belongs to the file's mapping.
struct StoredTensor {
  std::string file;  // for messages
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  // outermost dimension first
  std::span<const std::byte> data;
  DeviceKind device = DeviceKind::kCpu;  // whose memory that is
  // h > 0: the rows of each of h heads are in interleaved rotary order (pairs 2j, 2j + 1), as GGUF llama files keep q and k.
  int32_t interleaved_heads = 0;
};

using TensorMap = std::map<std::string, StoredTensor, std::less<>>;  // by name

// A weight of a model as its forward pass holds it.
struct HeldWeight {
  std::vector<int64_t> shape;  // outermost dimension first
  DType dtype = DType::kBF16;
  bool missing = false;  // it has to come before the model computes
};
using HeldWeights = std::map<std::string, HeldWeight, std::less<>>;  // by Hugging Face name

// The tensors that the forward pass of `config` reads, by Hugging Face name, with their shapes.
std::map<std::string, std::vector<int64_t>, std::less<>> ExpectedWeights(const ModelConfig& config);

// Checks that `tensors` are exactly those of `config`: all of them and no others, shapes equal, element types readable, no
// more layers than the file has. INVALID_ARGUMENT names `path`, the tensor and both values.
Status CheckWeights(const ModelConfig& config, const TensorMap& tensors, const std::string& path);

// Checks that `tensors` are some of those of `config` and no others: shapes equal, element types readable. INVALID_ARGUMENT, and
// for an element type UNIMPLEMENTED.
Status CheckSomeWeights(const ModelConfig& config, const TensorMap& tensors);

// Writes the tensor, converted, row-major and in half-split rotary order, to `out` (rows * cols elements of dtype; rows 1 for a
// vector). INVALID_ARGUMENT, with both shapes or sizes, if it is not rows x cols or `out` has another size. Thread-safe.
// REQUIRES: a tensor of a map that passed CheckWeights.
Status LoadWeight(std::string_view name, const StoredTensor& tensor, int64_t rows, int64_t cols, DType dtype,
                  std::span<std::byte> out);

// A part of a matrix whose rows are in half-split rotary order.
struct MatrixSlice {
  RowRun rows, cols;
};
MatrixSlice WholeOf(const StoredTensor& matrix);

// The slice, converted, to `out`, whose rows are `out_cols` elements of dtype apart. Columns may begin and end within blocks.
// Thread-safe. REQUIRES: a matrix of a map that passed CheckWeights.
void LoadSlice(const StoredTensor& matrix, const MatrixSlice& slice, DType dtype, int64_t out_cols, std::byte* out);

// The slice's blocks as they are stored, rows `out_row_bytes` apart. Thread-safe. REQUIRES: as LoadSlice; the columns begin and end
// between blocks.
void LoadBlocks(const StoredTensor& matrix, const MatrixSlice& slice, int64_t out_row_bytes, std::byte* out);

// The slice's codes (dequantize.h): codes [rows, out_cols], scales and minima [rows, out_cols / 32]. False if DecodeCodes says so.
// Thread-safe. REQUIRES: as LoadBlocks; CodeBits(matrix.type) > 0.
[[nodiscard]] bool LoadCodes(const StoredTensor& matrix, const MatrixSlice& slice, int64_t out_cols, int8_t* codes, F16* scales,
                             F16* minima);

}  // namespace coppice
