// The list of families. Layer: model.
#include <algorithm>
#include <array>

#include "core/check.h"
#include "model/families/family.h"

namespace coppice {

std::span<const Family* const> Families() {
  static constexpr std::array<const Family*, 8> kFamilies = {&kLlama, &kMistral,    &kQwen2,   &kQwen3,
                                                             &kPhi,   &kGptBigCode, &kCodeGen, &kGemma3};
  return kFamilies;
}

const Family& FamilyNamed(std::string_view name) {
  const auto found = std::ranges::find(Families(), name, &Family::name);
  COPPICE_CHECK(found != Families().end());
  return **found;
}

}  // namespace coppice
