// How kernels that are bound by computation and kernels that are bound by memory run beside each other. Layer: core, public.
#pragma once

#include <cstdint>
#include <string_view>

namespace coppice {

// How the kinds of a step's attention run: dense tiles (many rows: prompts' chunks, shared KV), which are bound by computation, and
// stream tiles (few rows), which are bound by memory. Results are equal within rounding.
enum class KindOrder : uint8_t {
  kAuto,         // as predicted to take least
  kOverlapped,   // streams beside dense tiles wherever there is a kernel for it, even where that is predicted to take longer
  kSerial,       // one launch, in which each SM computes its dense tiles first, then its stream tiles. On a CPU: kTwoLaunches
  kTwoLaunches,  // sequences with several rows (chunks), then those with one: an attention kernel for each, as without
                 // POD-Attention
};
constexpr std::string_view Name(KindOrder order) {
  switch (order) {
    case KindOrder::kAuto: return "auto";
    case KindOrder::kOverlapped: return "overlapped";
    case KindOrder::kSerial: return "serial";
    case KindOrder::kTwoLaunches: return "two-launches";
  }
  return "?";
}

}  // namespace coppice
