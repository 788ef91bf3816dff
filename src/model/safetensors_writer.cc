#include "model/safetensors_writer.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/file.h"
#include "core/math.h"

namespace coppice {
namespace {

constexpr size_t kAlignment = 64;  // of the data in the file: the header is padded with spaces

std::string Header(std::span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json;
  json["__metadata__"] = metadata;
  size_t begin = 0;
  for (const TensorToWrite& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    COPPICE_CHECK(StoredBytes(tensor.type, elements) == static_cast<int64_t>(tensor.data.size()));
    const size_t end = begin + tensor.data.size();
    json[tensor.name] = {{"dtype", Name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string header = json.dump();
  const size_t length_bytes = sizeof(uint64_t);
  header.resize(RoundUp(length_bytes + header.size(), kAlignment) - length_bytes, ' ');
  return header;
}

}  // namespace

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                        const std::map<std::string, std::string>& metadata) {
  COPPICE_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::Begin(path));
  const std::string header = Header(tensors, metadata);
  const uint64_t header_bytes = header.size();  // little endian, as every machine that this project runs on
  COPPICE_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&header_bytes, 1))));
  COPPICE_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(header))));
  for (const TensorToWrite& tensor : tensors) COPPICE_RETURN_IF_ERROR(file.Write(tensor.data));
  return file.Commit();
}

}  // namespace coppice
