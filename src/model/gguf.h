// The GGUF container, versions 2 and 3, little endian: typed metadata and a list of tensors, every size and offset checked; in one
// file or in the several that llama.cpp's gguf-split writes.
// gguf_model gives keys and tensors their meaning for a model. Source: the GGUF specification of the ggml project.
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
#include "model/mapped_file.h"
#include "model/weights.h"

namespace coppice {

// Metadata value types, by the ids of the format.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// The directory of one file; views into its bytes. Const members are safe to use from several threads.
//
// Typed reads answer NOT_FOUND for an absent key and INVALID_ARGUMENT, with the key, the value found and the one expected, for
// another type or range. Integers may be of any width.
class GgufDirectory {
 public:
  // `bytes`: the whole file; `path` names it in messages. DATA_LOSS: truncated or corrupt. UNIMPLEMENTED: version 1, big endian,
  // an element type that is not supported.
  static Result<GgufDirectory> Parse(std::span<const std::byte> bytes, const std::string& path);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  const TensorMap& tensors() const { return tensors_; }  // by the file's own names
  // Adds the tensors of another file of the same model. INVALID_ARGUMENT if both have one of the same name.
  Status AddTensors(const GgufDirectory& other);

  bool Has(std::string_view key) const { return values_.contains(key); }
  Result<std::string_view> String(std::string_view key) const;
  Result<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  Result<float> Float(std::string_view key) const;  // finite
  Result<bool> Bool(std::string_view key) const;
  Result<std::vector<std::string_view>> Strings(std::string_view key) const;
  Result<std::vector<int64_t>> Ints(std::string_view key) const;
  Result<std::vector<float>> Floats(std::string_view key) const;  // f32

 private:
  // A scalar (count 1) or the elements of an array; strings in arrays keep their length prefixes.
  struct Value {
    bool is_array = false;
    GgufType type = GgufType::kU8;  // of an array: its element type
    uint64_t count = 1;
    std::span<const std::byte> bytes;
  };
  class Parser;

  Result<const Value*> Find(std::string_view key) const;
  Status WrongType(std::string_view key, const Value& value, std::string_view expected) const;

  std::string path_;
  uint32_t version_ = 0;
  std::map<std::string, Value, std::less<>> values_;
  TensorMap tensors_;
};

// A model in one file, or in the parts that gguf-split writes: NAME-00001-of-00003.gguf and so on, with `split.no` (from 0) and
// `split.count` in each, and `split.tensors.count` for all.
struct GgufFiles {
  std::vector<MappedFile> files;  // what `directory` views into
  GgufDirectory directory;        // the first file's metadata, the tensors of all
};

// `path`: the file, or the first part; the other parts lie beside it. INVALID_ARGUMENT names the file if `path` is another part, or
// the parts do not belong together; NOT_FOUND if one is missing. Else as MappedFile::Open and GgufDirectory::Parse.
Result<GgufFiles> OpenGguf(const std::string& path);

}  // namespace coppice
