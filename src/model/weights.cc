#include "model/weights.h"

#include <fmt/format.h>

#include <cstring>

#include "model/dequantize.h"
#include "model/error_text.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

// Row of the interleaved order that holds row `row` of the half-split order, within heads of head_rows rows: element i of half s
// was stored at 2 i + s.
int64_t InterleavedRow(int64_t row, int64_t head_rows) {
  const int64_t head = row / head_rows, in_head = row % head_rows, half_rows = head_rows / 2;
  return head * head_rows + 2 * (in_head % half_rows) + in_head / half_rows;
}

// Calls f(stored, row, count) for runs of a slice's elements that lie together: count elements from the begin of its row `row` on.
// Several rows are one run only where `out_cols`, the columns that a row has where it goes, are the slice's.
template <class F>
void ForEachRun(const StoredTensor& tensor, const MatrixSlice& slice, int64_t out_cols, F&& f) {
  // Rows of the projection: those of the matrix, or single elements of a bias.
  const int64_t rows = tensor.shape[0], cols = tensor.shape.size() == 1 ? 1 : tensor.shape.back();
  const auto& [begin, count] = slice.rows;
  if (count == 0) return;
  const bool rows_are_whole = slice.cols.count == cols && out_cols == cols;
  if (tensor.interleaved_heads == 0 && rows_are_whole) {
    // A vector's rows of one element are no whole blocks, and so are not offset one by one.
    f(begin == 0 ? tensor.data.data() : tensor.data.data() + begin * StoredBytes(tensor.type, cols), int64_t{0}, count * cols);
    return;
  }
  const int64_t stored_row_bytes = StoredBytes(tensor.type, cols);
  const int64_t head_rows = tensor.interleaved_heads == 0 ? 0 : rows / tensor.interleaved_heads;
  for (int64_t row = 0; row < count; ++row) {
    const int64_t stored = head_rows == 0 ? begin + row : InterleavedRow(begin + row, head_rows);
    f(tensor.data.data() + stored * stored_row_bytes + StoredBytes(tensor.type, slice.cols.begin), row, slice.cols.count);
  }
}

// As CheckSomeWeights; `expected`: ExpectedWeights of the config; `unknown`: the error of a tensor that is none of them.
Status CheckSomeOf(const std::map<std::string, std::vector<int64_t>, std::less<>>& expected, const ModelConfig& config,
                   const TensorMap& tensors, StatusCode unknown) {
  for (const auto& [name, tensor] : tensors) {
    const auto found = expected.find(name);
    if (found == expected.end()) {
      return {unknown, fmt::format("{}: tensor {} of shape {} is not part of a {} model of {} layers; the result would be wrong "
                                   "without it",
                                   tensor.file, Quoted(name), ShapeText(tensor.shape), config.architecture, config.num_layers)};
    }
    if (tensor.shape != found->second) {
      return InvalidArgument(fmt::format("{}: tensor {} has shape {}, but the config asks for {}", tensor.file, Quoted(name),
                                         ShapeText(tensor.shape), ShapeText(found->second)));
    }
    if (!Traits(tensor.type).is_weight) {
      return Unimplemented(fmt::format("{}: tensor {} has element type {}; weights may be F32, F16, BF16 or a GGUF block type",
                                       tensor.file, Quoted(name), Name(tensor.type)));
    }
  }
  return OkStatus();
}

}  // namespace

std::map<std::string, std::vector<int64_t>, std::less<>> ExpectedWeights(const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>, std::less<>> weights;
  for (auto& [place, entry] : WeightsOf(config)) {
    weights[entry.name + ".weight"] = entry.shape;
    if (entry.bias) weights[entry.name + ".bias"] = {entry.shape[0]};
  }
  return weights;
}

Status CheckSomeWeights(const ModelConfig& config, const TensorMap& tensors) {
  return CheckSomeOf(ExpectedWeights(config), config, tensors, StatusCode::kInvalidArgument);
}

Status CheckWeights(const ModelConfig& config, const TensorMap& tensors, const std::string& path) {
  // A layer has more than one tensor; without this a corrupt layer count would make a list of any length.
  if (static_cast<size_t>(config.num_layers) > tensors.size()) {
    return InvalidArgument(
        fmt::format("{}: the config says {} layers, but there are only {} tensors", path, config.num_layers, tensors.size()));
  }
  const auto expected = ExpectedWeights(config);
  for (const auto& [name, shape] : expected) {
    if (!tensors.contains(name)) {
      return InvalidArgument(fmt::format("{}: tensor {} of shape {} is missing", path, Quoted(name), ShapeText(shape)));
    }
  }
  return CheckSomeOf(expected, config, tensors, StatusCode::kUnimplemented);  // a file's: the forward pass lacks it
}

Status LoadWeight(std::string_view name, const StoredTensor& tensor, int64_t rows, int64_t cols, DType dtype,
                  std::span<std::byte> out) {
  const bool is_vector = tensor.shape.size() == 1;
  const int64_t stored_rows = is_vector ? 1 : tensor.shape[0];
  const int64_t stored_cols = tensor.shape.back();
  if (rows != stored_rows || cols != stored_cols) {
    return InvalidArgument(fmt::format("{}: tensor {} has shape {}, but [{}, {}] was asked for", tensor.file, Quoted(name),
                                       ShapeText(tensor.shape), rows, cols));
  }
  const size_t bytes = static_cast<size_t>(rows * cols) * SizeOf(dtype);
  if (out.size() != bytes) {
    return InvalidArgument(
        fmt::format("tensor {} needs {} bytes as {}, but {} were given", Quoted(name), bytes, Name(dtype), out.size()));
  }
  const int64_t row_cols = is_vector ? 1 : cols;
  ForEachRun(tensor, WholeOf(tensor), row_cols, [&](const std::byte* stored, int64_t row, int64_t count) {
    ConvertRow(tensor.type, stored, count, dtype, out.data() + row * row_cols * static_cast<int64_t>(SizeOf(dtype)));
  });
  return OkStatus();
}

MatrixSlice WholeOf(const StoredTensor& matrix) {
  return {{0, matrix.shape[0]}, {0, matrix.shape.size() == 1 ? 1 : matrix.shape.back()}};
}

void LoadSlice(const StoredTensor& matrix, const MatrixSlice& slice, DType dtype, int64_t out_cols, std::byte* out) {
  const int64_t out_row_bytes = out_cols * static_cast<int64_t>(SizeOf(dtype));
  const int64_t block = Traits(matrix.type).block_elements;
  if (slice.cols.begin % block == 0 && slice.cols.count % block == 0) {
    ForEachRun(matrix, slice, out_cols, [&](const std::byte* stored, int64_t row, int64_t count) {
      ConvertRow(matrix.type, stored, count, dtype, out + row * out_row_bytes);
    });
    return;
  }
  // Columns cut a block: rows are converted whole.
  const int64_t cols = matrix.shape[1], element = static_cast<int64_t>(SizeOf(dtype));
  std::vector<std::byte> whole(cols * element);
  ForEachRun(matrix, {slice.rows, {0, cols}}, /*out_cols=*/0, [&](const std::byte* stored, int64_t row, int64_t count) {
    ConvertRow(matrix.type, stored, count, dtype, whole.data());
    std::memcpy(out + row * out_row_bytes, whole.data() + slice.cols.begin * element, slice.cols.count * element);
  });
}

void LoadBlocks(const StoredTensor& matrix, const MatrixSlice& slice, int64_t out_row_bytes, std::byte* out) {
  const StoredTypeTraits& traits = Traits(matrix.type);
  const int64_t out_cols = out_row_bytes / traits.block_bytes * traits.block_elements;
  ForEachRun(matrix, slice, out_cols, [&](const std::byte* stored, int64_t row, int64_t count) {
    std::memcpy(out + row * out_row_bytes, stored, StoredBytes(matrix.type, count));
  });
}

bool LoadCodes(const StoredTensor& matrix, const MatrixSlice& slice, int64_t out_cols, int8_t* codes, F16* scales, F16* minima) {
  bool in_range = true;
  ForEachRun(matrix, slice, out_cols, [&](const std::byte* stored, int64_t row, int64_t count) {
    const int64_t first = row * out_cols;
    in_range &= DecodeCodes(matrix.type, stored, count, codes + first, scales + first / 32, minima + first / 32);
  });
  return in_range;
}

}  // namespace coppice
