// Names of the files that llama.cpp's gguf-split makes of one model: NAME-00001-of-00003.gguf and so on. Layer: core.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace coppice {

struct GgufPart {
  std::string stem;  // what comes before "-00001-of-00003.gguf", a folder's path included
  int32_t number = 1, count = 1;

  std::string NameOf(int32_t other) const;  // of the same model
};
// `file`: a name or a path. Nothing for another file's.
std::optional<GgufPart> ParseGgufPart(const std::string& file);
// Whether `file` is the name of a GGUF model: of its only file, or of its first part.
bool IsGgufModel(const std::string& file);

}  // namespace coppice
