// The tile unit's configuration for bf16 products. Include it inside a region compiled for AMX; everything has internal linkage.
// Layer: attention/cpu.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace coppice::attention::cpu {
namespace {

// Eight tiles of 16 rows x 64 bytes (SDM, LDTILECFG, palette 1).
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig{};  // static: of the intrinsic the compiler sees its first bytes only

// Released at the end, so that a context switch outside kernels stays cheap and other users of tiles are not disturbed.
struct AmxSession {
  AmxSession() { _tile_loadconfig(&kTileConfig); }
  ~AmxSession() { _tile_release(); }
};

}  // namespace
}  // namespace coppice::attention::cpu
