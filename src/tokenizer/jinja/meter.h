// Counts the work of one rendering, so that a hostile template ends with an error instead of holding the process: everything whose
// cost depends on the template or its data charges before it spends. Layer: tokenizer.
#pragma once

#include <cstddef>

#include "tokenizer/jinja/lexer.h"

namespace coppice::jinja {

inline constexpr size_t kNewTextUnits = 100;  // a string of its own

// A unit is about a nanosecond: one byte read or written, or a part of something larger. Not thread-safe.
class Meter {
 public:
  explicit Meter(size_t units) : units_left_(units) {}

  // Throws Error (RESOURCE_EXHAUSTED) when less than `units` is left.
  void Charge(size_t units) {
    if (units > units_left_) FailExhausted();
    units_left_ -= units;
  }
  // The same for `count` things of `units` each; the product may overflow.
  void Charge(size_t count, size_t units) {
    if (units > 0 && count > units_left_ / units) FailExhausted();
    units_left_ -= count * units;
  }

  Position position;  // of what is being run, for messages

 private:
  [[noreturn]] void FailExhausted() const;

  size_t units_left_;
};

}  // namespace coppice::jinja
