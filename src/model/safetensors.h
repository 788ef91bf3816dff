// The safetensors format: a JSON header of names, types, shapes and byte ranges, then the bytes. Reads and validates one file;
// shards are put together by hf_folder. Any element type is listed, weights or not, so tests read their expected values with it.
// Layer: model.
#pragma once

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coppice/core/status.h"
#include "model/mapped_file.h"
#include "model/weights.h"

namespace coppice {

// Reads the header in `bytes`, the whole file. The tensors view into `bytes`. `path` names the file in messages.
// DATA_LOSS (truncated, not JSON) or INVALID_ARGUMENT names the tensor and both values: byte ranges in the file, without gaps or
// overlaps and as long as type and shape say; no name twice.
Result<TensorMap> ParseSafetensors(std::span<const std::byte> bytes, const std::string& path);

// The header's "__metadata__", strings by name; empty without one. Errors as ParseSafetensors.
Result<std::map<std::string, std::string>> ParseSafetensorsMetadata(std::span<const std::byte> bytes, const std::string& path);

// A mapped file and its tensors. Immutable: safe to use from several threads.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);

  // Gives the mapping away; copies of the tensors stay valid as long as it lives.
  MappedFile TakeFile() && { return std::move(file_); }
  const TensorMap& tensors() const { return tensors_; }
  Result<std::map<std::string, std::string>> Metadata() const { return ParseSafetensorsMetadata(file_.bytes(), file_.path()); }

  // A copy of all elements. T: float (F32), int32_t (I32), int64_t (I64) or uint8_t (U8), exactly as stored.
  // NOT_FOUND, or INVALID_ARGUMENT if the element type is another.
  template <class T>
  Result<std::vector<T>> Read(std::string_view name) const;

 private:
  SafetensorsFile(MappedFile file, TensorMap tensors) : file_(std::move(file)), tensors_(std::move(tensors)) {}
  Result<const StoredTensor*> Find(std::string_view name, StoredType type) const;

  MappedFile file_;
  TensorMap tensors_;
};

template <class T>
Result<std::vector<T>> SafetensorsFile::Read(std::string_view name) const {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t> || std::is_same_v<T, uint8_t>);
  constexpr StoredType kType = std::is_same_v<T, float>     ? StoredType::kF32
                               : std::is_same_v<T, int32_t> ? StoredType::kI32
                               : std::is_same_v<T, int64_t> ? StoredType::kI64
                                                            : StoredType::kU8;
  const Result<const StoredTensor*> tensor = Find(name, kType);
  if (!tensor.ok()) return tensor.status();
  std::vector<T> values((*tensor)->data.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), (*tensor)->data.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace coppice
