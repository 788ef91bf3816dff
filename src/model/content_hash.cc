#include "model/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "core/check.h"

namespace coppice {
namespace {

XXH3_state_t* Raw(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

void ContentHash::Free::operator()(State* state) const { XXH3_freeState(Raw(state)); }

ContentHash::ContentHash() : state_(reinterpret_cast<State*>(XXH3_createState())) {
  COPPICE_CHECK(state_ != nullptr);  // 600 bytes
  XXH3_128bits_reset(Raw(state_.get()));
}

void ContentHash::AddBytes(std::span<const std::byte> bytes) { XXH3_128bits_update(Raw(state_.get()), bytes.data(), bytes.size()); }

std::string ContentHash::Hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(Raw(state_.get()));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace coppice
