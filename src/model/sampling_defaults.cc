#include "model/sampling_defaults.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <string_view>

#include "model/json_file.h"
#include "model/object_reader.h"

namespace coppice {
namespace {

// One parameter: its key in generation_config.json and in GGUF files, and what it may be.
struct Parameter {
  std::string_view key, gguf_key;
  double least, most;
  bool is_integer = false;
  void (*set)(double value, SamplingDefaults* defaults);
};

constexpr double kLargest = 1e6;  // of what has no bound of its own
constexpr Parameter kParameters[] = {
    {"temperature", "general.sampling.temp", 0, kLargest, false,
     [](double x, SamplingDefaults* d) { d->temperature = static_cast<float>(x); }},
    {"top_p", "general.sampling.top_p", 1e-6, 1, false, [](double x, SamplingDefaults* d) { d->top_p = static_cast<float>(x); }},
    {"top_k", "general.sampling.top_k", 0, INT32_MAX, true,
     [](double x, SamplingDefaults* d) { d->top_k = static_cast<int32_t>(x); }},
    {"min_p", "general.sampling.min_p", 0, 1, false, [](double x, SamplingDefaults* d) { d->min_p = static_cast<float>(x); }},
    {"repetition_penalty", "general.sampling.penalty_repeat", 1e-6, kLargest, false,
     [](double x, SamplingDefaults* d) { d->repetition_penalty = static_cast<float>(x); }},
};

// `value`: not a number where it is none.
void Take(const Parameter& parameter, double value, const std::string& place, SamplingDefaults* defaults,
          std::vector<std::string>* notes) {
  const bool is_whole = !parameter.is_integer || std::trunc(value) == value;
  if (value >= parameter.least && value <= parameter.most && is_whole) return parameter.set(value, defaults);
  notes->push_back(fmt::format("{} is left out: it is no {} in {:g}..{:g}", place, parameter.is_integer ? "integer" : "number",
                               parameter.least, parameter.most));
}

}  // namespace

SamplingDefaults ReadSamplingDefaults(const TextFile& generation_config, std::vector<std::string>* notes) {
  SamplingDefaults defaults;
  if (generation_config.text.empty()) return defaults;
  const Result<nlohmann::json> json = ParseJsonObject(generation_config.text, generation_config.path);
  if (!json.ok()) return defaults;  // ParseHuggingFaceConfig refuses it
  const ObjectReader reader(*json, generation_config.path);
  for (const Parameter& parameter : kParameters) {
    const nlohmann::json* value = reader.Find(parameter.key);
    if (value == nullptr) continue;
    Take(parameter, value->is_number() ? value->get<double>() : std::nan(""),
         fmt::format("{}: {}", reader.path(), Quoted(parameter.key)), &defaults, notes);
  }
  if (const nlohmann::json* samples = reader.Find("do_sample"); samples != nullptr && *samples == false) defaults.temperature = 0;
  return defaults;
}

SamplingDefaults ReadSamplingDefaults(const GgufDirectory& gguf, std::vector<std::string>* notes) {
  SamplingDefaults defaults;
  for (const Parameter& parameter : kParameters) {
    if (!gguf.Has(parameter.gguf_key)) continue;
    double value = std::nan("");
    if (parameter.is_integer) {
      if (const Result<int64_t> number = gguf.Int(parameter.gguf_key, INT64_MIN, INT64_MAX); number.ok())
        value = static_cast<double>(*number);
    } else if (const Result<float> number = gguf.Float(parameter.gguf_key); number.ok()) {
      value = static_cast<double>(*number);
    }
    Take(parameter, value, fmt::format("{}: {}", gguf.path(), parameter.gguf_key), &defaults, notes);
  }
  return defaults;
}

}  // namespace coppice
