// The caches, for kernels and hot structures. Layer: core.
#pragma once

namespace coppice {

inline constexpr int kCacheLine = 64;  // bytes
// The last argument of __builtin_prefetch: to the second-level cache and no nearer.
inline constexpr int kSecondLevel = 2;

}  // namespace coppice
