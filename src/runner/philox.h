// Philox 4x32-10, a counter-based generator: the value at a counter depends on nothing but (key, counter), so that a sample's
// random numbers depend on its seed, index and position alone, whatever else runs. No state, no order of calls. Layer: runner.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4.2.
#pragma once

#include <array>
#include <cstdint>

namespace coppice {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];  // multipliers and key increments: table 2 of the paper
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The purpose of a random number: numbers of different streams are independent.
enum class RandomStream : uint32_t { kToken, kDraft, kAcceptance, kResidual, kGumbel };

// Of tokens 4 i to 4 i + 3, 32 random bits each: noise that is one number a token of the vocabulary.
constexpr PhiloxBlock GumbelBits(uint64_t seed, uint32_t sample, uint32_t position, uint32_t i) {
  return Philox4x32({position, sample, static_cast<uint32_t>(RandomStream::kGumbel), i},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in [0, 1) with 53 random bits.
constexpr double UniformAt(uint64_t seed, uint32_t sample, uint32_t position, RandomStream stream = RandomStream::kToken) {
  const PhiloxBlock block = Philox4x32({position, sample, static_cast<uint32_t>(stream), 0},
                                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{block[0]} << 32 | block[1]) >> 11) * 0x1p-53;
}

}  // namespace coppice
