// The machine models of machines/*.json as they were at build; shipped_machines.cc.in gets their text. Layer: attention, private.
#pragma once

#include <span>
#include <string_view>

namespace coppice::attention {

struct ShippedMachine {
  std::string_view name;  // the file's, without .json
  std::string_view json;
};
std::span<const ShippedMachine> ShippedMachines();

}  // namespace coppice::attention
