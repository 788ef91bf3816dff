// XXH3-128 of a run of values, as text: fingerprints of models, checksums of files. No protection against an attacker.
// Layer: model.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace coppice {

// Thread-compatible.
class ContentHash {
 public:
  ContentHash();

  void AddBytes(std::span<const std::byte> bytes);
  // Lengths go in first, so that neighbours cannot run into each other.
  void AddText(std::string_view text) {
    Add(text.size());
    AddBytes(std::as_bytes(std::span(text)));
  }
  template <class T>
  requires(std::is_arithmetic_v<T>) void Add(T value) { AddBytes(std::as_bytes(std::span(&value, 1))); }

  std::string Hex() const;  // 32 lower-case digits

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
};

}  // namespace coppice
