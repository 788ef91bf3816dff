#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "model/error_text.h"
#include "model/json_file.h"

namespace coppice {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;               // u64 little endian: bytes of the JSON header
constexpr uint64_t kMaxHeaderBytes = 100000000;  // limit of the format
constexpr const char* kMetadata = "__metadata__";

std::optional<uint64_t> AsUnsigned(const Json& value) {
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

// A header entry: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}.
struct Entry {
  StoredType type;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

Result<Entry> ParseEntry(const std::string& name, const Json& json, uint64_t data_bytes, const std::string& path) {
  const auto error = [&](std::string_view problem) {
    return InvalidArgument(fmt::format("{}: tensor {}: {}", path, Quoted(name), problem));
  };
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return error("its header entry must hold exactly dtype, shape and data_offsets");
  }
  const Json &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  Entry entry;
  if (!dtype.is_string()) return error("dtype must be a string");
  const std::string& dtype_name = dtype.get_ref<const std::string&>();
  const std::optional<StoredType> type = StoredTypeFromName(dtype_name);
  if (!type || Traits(*type).block_elements != 1) return error(fmt::format("unknown dtype {}", Quoted(dtype_name)));
  entry.type = *type;

  if (!shape.is_array()) return error("shape must be an array");
  // Of all dimensions but those of 0: these make it 0, and must hide none that overflows, before or behind them.
  uint64_t product = static_cast<uint64_t>(Traits(entry.type).block_bytes);
  bool is_empty = false;
  for (const Json& dimension : shape) {
    const std::optional<uint64_t> size = AsUnsigned(dimension);
    if (!size) return error("shape must hold non-negative integers");
    if (*size > INT64_MAX || (*size != 0 && product > INT64_MAX / *size)) return error("its shape overflows 64 bits");
    product *= std::max<uint64_t>(*size, 1);
    is_empty |= *size == 0;
    entry.shape.push_back(static_cast<int64_t>(*size));
  }
  const uint64_t bytes = is_empty ? 0 : product;

  const bool is_pair = offsets.is_array() && offsets.size() == 2 && AsUnsigned(offsets[0]) && AsUnsigned(offsets[1]);
  if (!is_pair) return error("data_offsets must be two non-negative integers");
  entry.begin = *AsUnsigned(offsets[0]);
  entry.end = *AsUnsigned(offsets[1]);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return error(
        fmt::format("data_offsets [{}, {}] do not lie in the {} data bytes of the file", entry.begin, entry.end, data_bytes));
  }
  if (entry.end - entry.begin != bytes) {
    return error(fmt::format("{} {} takes {} bytes, but its data_offsets span {}", Name(entry.type), ShapeText(entry.shape), bytes,
                             entry.end - entry.begin));
  }
  return entry;
}

// The format allows neither holes nor overlaps.
Status CheckContiguous(const TensorMap& tensors, std::span<const std::byte> data, const std::string& path) {
  std::vector<const TensorMap::value_type*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::ranges::sort(order, {},
                    [](const TensorMap::value_type* t) { return std::pair(t->second.data.data(), t->second.data.size()); });
  size_t expected = 0;
  for (const auto* tensor : order) {
    const size_t begin = static_cast<size_t>(tensor->second.data.data() - data.data());
    if (begin != expected) {
      return InvalidArgument(fmt::format("{}: tensor {} begins at data byte {}, but the tensor before it ends at {}", path,
                                         Quoted(tensor->first), begin, expected));
    }
    expected += tensor->second.data.size();
  }
  if (expected != data.size()) {
    return InvalidArgument(
        fmt::format("{}: the tensors end at data byte {}, but the file has {} data bytes", path, expected, data.size()));
  }
  return OkStatus();
}

// The two parts of a file.
struct Parts {
  Json header;
  std::span<const std::byte> data;
};

Result<Parts> SplitFile(std::span<const std::byte> bytes, const std::string& path) {
  if (bytes.size() < kLengthBytes) {
    return DataLoss(
        fmt::format("{}: truncated: {} bytes, but a safetensors file begins with an 8-byte length", path, bytes.size()));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    return InvalidArgument(
        fmt::format("{}: not a safetensors file: header length {}, at most {} is allowed", path, header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    return DataLoss(fmt::format("{}: truncated: the header takes {} bytes, but only {} follow its length; fetch the file again",
                                path, header_bytes, bytes.size() - kLengthBytes));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  COPPICE_ASSIGN_OR_RETURN(Json json, ParseJsonObject(header, path));
  return Parts{std::move(json), data};
}

}  // namespace

Result<TensorMap> ParseSafetensors(std::span<const std::byte> bytes, const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const Parts parts, SplitFile(bytes, path));
  const std::span<const std::byte> data = parts.data;
  TensorMap tensors;
  for (const auto& [name, value] : parts.header.items()) {
    if (name == kMetadata) continue;
    COPPICE_ASSIGN_OR_RETURN(Entry entry, ParseEntry(name, value, data.size(), path));
    tensors[name] = {.file = path,
                     .type = entry.type,
                     .shape = std::move(entry.shape),
                     .data = data.subspan(entry.begin, entry.end - entry.begin)};
  }
  COPPICE_RETURN_IF_ERROR(CheckContiguous(tensors, data, path));
  return tensors;
}

Result<std::map<std::string, std::string>> ParseSafetensorsMetadata(std::span<const std::byte> bytes, const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const Parts parts, SplitFile(bytes, path));
  std::map<std::string, std::string> metadata;
  const auto found = parts.header.find(kMetadata);
  if (found == parts.header.end()) return metadata;
  if (!found->is_object()) return InvalidArgument(fmt::format("{}: {} must be an object of strings", path, kMetadata));
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string()) return InvalidArgument(fmt::format("{}: {} {} must be a string", path, kMetadata, Quoted(name)));
    metadata[name] = value.get<std::string>();
  }
  return metadata;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  COPPICE_ASSIGN_OR_RETURN(TensorMap tensors, ParseSafetensors(file.bytes(), path));
  return SafetensorsFile(std::move(file), std::move(tensors));
}

Result<const StoredTensor*> SafetensorsFile::Find(std::string_view name, StoredType type) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return NotFound(fmt::format("{}: no tensor {}", file_.path(), Quoted(name)));
  if (found->second.type != type) {
    return InvalidArgument(fmt::format("{}: tensor {} has element type {}, but {} was asked for", file_.path(), Quoted(name),
                                       Name(found->second.type), Name(type)));
  }
  return &found->second;
}

}  // namespace coppice
