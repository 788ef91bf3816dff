// Writes a safetensors file so that a reader finds the old file or the whole new one, never a part.
// Layer: model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "model/stored_type.h"

namespace coppice {

struct TensorToWrite {
  std::string name;  // UTF-8
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // as long as type and shape say
};

// Replaces `path` (core/file.h, FileReplacement). On an error, with the system's reason, there is no new file and an old one stays
// as it was. `metadata`: UTF-8.
Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                        const std::map<std::string, std::string>& metadata);

}  // namespace coppice
