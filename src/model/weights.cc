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

// Calls f(stored, first, count) for runs of elements that lie together: elements [first, first + count) in half-split order.
template <class F>
void ForEachRun(const StoredTensor& tensor, F&& f) {
  // Rows of the projection: those of the matrix, or single elements of a bias.
  const int64_t rows = tensor.shape[0], cols = tensor.shape.size() == 1 ? 1 : tensor.shape.back();
  if (tensor.interleaved_heads == 0) {  // rows are whole blocks, so the tensor is one long row
    f(tensor.data.data(), int64_t{0}, rows * cols);
    return;
  }
  const int64_t stored_row_bytes = StoredBytes(tensor.type, cols), head_rows = rows / tensor.interleaved_heads;
  for (int64_t row = 0; row < rows; ++row) {
    f(tensor.data.data() + InterleavedRow(row, head_rows) * stored_row_bytes, row * cols, cols);
  }
}

// As CheckSomeWeights; `expected`: ExpectedWeights of the config.
Status CheckSomeOf(const std::map<std::string, std::vector<int64_t>, std::less<>>& expected, const ModelConfig& config,
                   const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const auto found = expected.find(name);
    if (found == expected.end()) {
      return Unimplemented(
          fmt::format("{}: tensor {} of shape {} is not part of a {} model of {} layers; the result would be wrong "
                      "without it",
                      tensor.file, Quoted(name), ShapeText(tensor.shape), config.architecture, config.num_layers));
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
  return CheckSomeOf(ExpectedWeights(config), config, tensors);
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
  return CheckSomeOf(expected, config, tensors);
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
  ForEachRun(tensor, [&](const std::byte* stored, int64_t first, int64_t count) {
    ConvertRow(tensor.type, stored, count, dtype, out.data() + first * static_cast<int64_t>(SizeOf(dtype)));
  });
  return OkStatus();
}

void LoadBlocks(const StoredTensor& tensor, std::byte* out) {
  ForEachRun(tensor, [&](const std::byte* stored, int64_t first, int64_t count) {
    std::memcpy(out + StoredBytes(tensor.type, first), stored, StoredBytes(tensor.type, count));
  });
}

bool LoadCodes(const StoredTensor& tensor, int8_t* codes, F16* scales, F16* minima) {
  bool in_range = true;
  ForEachRun(tensor, [&](const std::byte* stored, int64_t first, int64_t count) {
    in_range &= DecodeCodes(tensor.type, stored, count, codes + first, scales + first / 32, minima + first / 32);
  });
  return in_range;
}

}  // namespace coppice
