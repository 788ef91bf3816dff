// Models that are known by a short name, with where they come from and what they must be. Layer: hub.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace coppice::hub {

// A piece of a model's file inside a wheel of a Python package index.
struct WheelMember {
  std::string_view project, version, member;
};

struct CatalogueEntry {
  std::string_view name, description, license;
  std::string_view file;  // in the folder of models
  int64_t bytes;
  std::string_view sha256;
  std::span<const WheelMember> pieces;  // one behind the other
};

// The default model first.
std::span<const CatalogueEntry> Catalogue();
const CatalogueEntry* FindInCatalogue(std::string_view name);  // null: not there

}  // namespace coppice::hub
