#include "python/engine_options.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

namespace coppice::python {
namespace {

namespace nb = nanobind;

std::string Shown(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

[[noreturn]] void Refuse(std::string_view name, nb::handle value, std::string_view expected) {
  throw nb::type_error(fmt::format("{}={}: expected {}", name, Shown(value), expected).c_str());
}

template <class T>
void Take(const std::string& name, nb::handle value, T* out) {
  constexpr bool kWhole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  constexpr std::string_view kExpected = std::is_same_v<T, bool>          ? "True or False"
                                         : std::is_same_v<T, std::string> ? "a string"
                                         : kWhole                         ? "an integer that fits the option"
                                                                          : "a number";
  if (kWhole && nb::isinstance<nb::bool_>(value)) Refuse(name, value, kExpected);
  if (!nb::try_cast<T>(value, *out)) Refuse(name, value, kExpected);
}

template <class T>
void TakeEnum(const std::string& name, nb::handle value, std::initializer_list<T> all, T* out) {
  std::string text, names;
  Take(name, value, &text);
  for (const T each : all) {
    if (Name(each) == text) {
      *out = each;
      return;
    }
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", Name(each));
  }
  throw nb::value_error(fmt::format("{}={}: expected one of {}", name, Shown(value), names).c_str());
}

using Setter = void (*)(const std::string& name, nb::handle value, EngineOptions* options);

template <auto kMember>
void Set(const std::string& name, nb::handle value, EngineOptions* options) {
  Take(name, value, &(options->*kMember));
}

const std::map<std::string_view, Setter>& Setters() {
  static const std::map<std::string_view, Setter> kSetters = {
      {"model_path", Set<&EngineOptions::model_path>},
      {"device", Set<&EngineOptions::device>},
      {"dtype",
       [](const std::string& name, nb::handle value, EngineOptions* options) {
         TakeEnum(name, value, {DType::kBF16, DType::kF16, DType::kF32}, &options->dtype.emplace());
       }},
      {"head_dtype", [](const std::string& name, nb::handle value,
                        EngineOptions* options) { TakeEnum(name, value, {DType::kF32}, &options->head_dtype.emplace()); }},
      {"weights",
       [](const std::string& name, nb::handle value, EngineOptions* options) {
         TakeEnum(name, value, {WeightForm::kFastest, WeightForm::kStored, WeightForm::kBF16, WeightForm::kF32}, &options->weights);
       }},
      {"sharing",
       [](const std::string& name, nb::handle value, EngineOptions* options) {
         TakeEnum(name, value, {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore, SharingMode::kNone},
                  &options->sharing);
       }},
      {"kv_split",
       [](const std::string& name, nb::handle value, EngineOptions* options) {
         TakeEnum(name, value, {KvSplit::kAuto, KvSplit::kHeads, KvSplit::kTokens}, &options->kv_split);
       }},
      {"page_size", Set<&EngineOptions::page_size>},
      {"kv_cache_bytes", Set<&EngineOptions::kv_cache_bytes>},
      {"gpu_memory_utilization", Set<&EngineOptions::gpu_memory_utilization>},
      {"max_running", Set<&EngineOptions::max_running>},
      {"max_batch_tokens", Set<&EngineOptions::max_batch_tokens>},
      {"chunk", Set<&EngineOptions::chunk>},
      {"target_tbt", Set<&EngineOptions::target_tbt>},
      {"max_context", Set<&EngineOptions::max_context>},
      {"max_waiting", Set<&EngineOptions::max_waiting>},
      {"num_threads", Set<&EngineOptions::num_threads>},
      {"steps_ahead", Set<&EngineOptions::steps_ahead>},
      {"tune", Set<&EngineOptions::tune>},
      {"machine_model_path", Set<&EngineOptions::machine_model_path>},
      {"deterministic", Set<&EngineOptions::deterministic>},
      {"draft",
       [](const std::string& name, nb::handle value, EngineOptions* options) {
         TakeEnum(name, value, {DraftMode::kNone, DraftMode::kNgram, DraftMode::kModel}, &options->draft);
       }},
      {"draft_tokens", Set<&EngineOptions::draft_tokens>},
      {"draft_model_path", Set<&EngineOptions::draft_model_path>},
  };
  return kSetters;
}

}  // namespace

EngineOptions ToEngineOptions(const nb::dict& options) {
  EngineOptions taken;
  for (const auto& [key, value] : options) {
    const auto name = nb::cast<std::string>(key);
    const auto setter = Setters().find(name);
    if (setter == Setters().end()) {
      std::string names;
      for (const auto& [known, ignored] : Setters()) names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
      throw nb::type_error(fmt::format("there is no option {}={}; options are {}", name, Shown(value), names).c_str());
    }
    setter->second(name, value, &taken);
  }
  return taken;
}

}  // namespace coppice::python
