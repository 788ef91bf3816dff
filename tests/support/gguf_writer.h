// Writes GGUF files for tests: any metadata, any tensors, versions 2 and 3, well-formed by default. Independent of the
// reader in src/model. Layer: tests.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::testing {

// The value's bytes, little endian.
template <class T>
std::string Raw(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
template <class T>
std::string Raw(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Setters return the writer, to be chained. Value type ids: the format's (4: u32, 5: i32, 6: f32, 7: bool, 8: string, 9: array).
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  GgufWriter& U32(std::string_view key, uint32_t value) { return Value(key, 4, Raw(value)); }
  GgufWriter& F32(std::string_view key, float value) { return Value(key, 6, Raw(value)); }
  GgufWriter& Bool(std::string_view key, bool value) { return Value(key, 7, Raw(static_cast<uint8_t>(value))); }
  GgufWriter& String(std::string_view key, std::string_view value) { return Value(key, 8, Prefixed(value)); }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += Prefixed(value);
    return Array(key, 8, values.size(), bytes);
  }
  GgufWriter& I32s(std::string_view key, const std::vector<int32_t>& values) {
    return Array(key, 5, values.size(), Raw(std::span(values)));
  }
  GgufWriter& F32s(std::string_view key, const std::vector<float>& values) {
    return Array(key, 6, values.size(), Raw(std::span(values)));
  }
  GgufWriter& Array(std::string_view key, uint32_t element_type, uint64_t count, std::string_view bytes) {
    return Value(key, 9, Raw(element_type) + Raw(count) + std::string(bytes));
  }
  GgufWriter& Value(std::string_view key, uint32_t type, std::string_view bytes) {
    values_.emplace_back(key, Prefixed(key) + Raw(type) + std::string(bytes));
    return *this;
  }
  // As if the key had not been written.
  GgufWriter& Without(std::string_view key) {
    std::erase_if(values_, [key](const auto& value) { return value.first == key; });
    return *this;
  }
  GgufWriter& Alignment(uint32_t alignment) {
    alignment_ = alignment;
    return U32("general.alignment", alignment);
  }

  // `shape` outermost dimension first; `type` is the format's id (0: F32, 1: F16, 3: Q4_1, ...). Offsets follow from the order.
  GgufWriter& Tensor(std::string_view name, const std::vector<int64_t>& shape, uint32_t type, std::string_view bytes) {
    return TensorAt(name, shape, type, data_.size(), bytes);
  }
  // The same, but the directory states `offset`.
  GgufWriter& TensorAt(std::string_view name, const std::vector<int64_t>& shape, uint32_t type, uint64_t offset,
                       std::string_view bytes) {
    infos_ += Prefixed(name) + Raw(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) infos_ += Raw(shape[i]);
    infos_ += Raw(type) + Raw(offset);
    ++tensor_count_;
    data_ += bytes;
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    return *this;
  }

  std::string Bytes() const {
    std::string file = "GGUF" + Raw(version_) + Raw(tensor_count_) + Raw(static_cast<uint64_t>(values_.size()));
    for (const auto& [key, bytes] : values_) file += bytes;
    file += infos_;
    file.resize((file.size() + alignment_ - 1) / alignment_ * alignment_);
    return file + data_;
  }

 private:
  static std::string Prefixed(std::string_view text) { return Raw(static_cast<uint64_t>(text.size())) + std::string(text); }

  uint32_t version_, alignment_ = 32;
  uint64_t tensor_count_ = 0;
  std::vector<std::pair<std::string, std::string>> values_;  // keys, and entries with them
  std::string infos_, data_;
};

}  // namespace coppice::testing
