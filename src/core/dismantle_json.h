// JSON values that go without taking memory. Layer: core, private.
#pragma once

#include <nlohmann/json.hpp>

namespace coppice {

// Empties a value from its leaves up. The library's destructor takes memory for each container that is not empty, and where there
// is none it ends the process. REQUIRES: a value of ParseJson, or one that is not deeper.
template <class Json>
void Dismantle(Json* value) noexcept {
  if (value->is_object()) {
    for (auto& [key, member] : value->template get_ref<typename Json::object_t&>()) Dismantle(&member);
  } else if (value->is_array()) {
    for (Json& element : value->template get_ref<typename Json::array_t&>()) Dismantle(&element);
  } else {
    return;
  }
  value->clear();
}

// Dismantles a value at the end of a scope, whatever is thrown in it.
template <class Json>
class DismantleAtEnd {
 public:
  explicit DismantleAtEnd(Json* value) : value_(value) {}
  DismantleAtEnd(const DismantleAtEnd&) = delete;
  DismantleAtEnd& operator=(const DismantleAtEnd&) = delete;
  ~DismantleAtEnd() { Dismantle(value_); }

 private:
  Json* value_;
};

}  // namespace coppice
