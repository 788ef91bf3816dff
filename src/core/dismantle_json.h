// JSON values that go without taking memory. Layer: core, private.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

namespace coppice {

// Empties a value from its leaves up. The library's destructor takes memory for each container that is not empty, and where there
// is none it ends the process. REQUIRES: a value of ParseJson, or one that is not deeper. Where memory ended while it was built:
// its containers were assigned whole (OrderedObject), not made by [], which leaves a broken one behind.
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

// An object with room for `members`. Beyond what it has room for, an object that keeps its members' order copies all of them, and
// where memory ends takes the copies apart with memory of its own.
inline nlohmann::ordered_json OrderedObject(size_t members) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  object.get_ref<nlohmann::ordered_json::object_t&>().reserve(members);
  return object;
}

// Into a member that is there already: a list takes memory when it is destroyed, as it would be where there is none for the member.
template <class T>
void PutList(std::span<const T> list, nlohmann::ordered_json* member) {
  *member = std::vector<T>(list.begin(), list.end());
}

// Holds a value and dismantles it at its end.
template <class Json>
class DismantledJson {
 public:
  explicit DismantledJson(Json value) noexcept : value_(std::move(value)) {}
  DismantledJson(DismantledJson&& other) noexcept : value_(std::move(other.value_)) {}  // the library leaves null
  DismantledJson& operator=(DismantledJson&& other) noexcept {
    value_.swap(other.value_);
    return *this;
  }
  ~DismantledJson() { Dismantle(&value_); }

  Json& operator*() { return value_; }
  const Json& operator*() const { return value_; }
  const Json* operator->() const { return &value_; }

 private:
  Json value_;
};

}  // namespace coppice
