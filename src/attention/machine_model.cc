// Machine models from and to JSON. Layer: attention.
#include "attention/machine_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attention/former_names.h"
#include "attention/machine_json.h"
#include "attention/shipped_machines.h"
#include "core/check.h"
#include "core/dismantle_json.h"
#include "core/json.h"

namespace coppice::attention {
namespace {

using Json = nlohmann::json;

// The numeric fields of a model, in the order of its JSON. A model may lack those after the first kNumRequired.
constexpr size_t kNumRequired = 8;
constexpr auto kFields = std::to_array<std::pair<const char*, double MachineModel::*>>({
    {"read_bytes_per_s", &MachineModel::read_bytes_per_s},
    {"cache_bytes_per_s", &MachineModel::cache_bytes_per_s},
    {"cache_bytes", &MachineModel::cache_bytes},
    {"dense_flops_per_s", &MachineModel::dense_flops_per_s},
    {"stream_flops_per_s", &MachineModel::stream_flops_per_s},
    {"item_fixed_ns", &MachineModel::item_fixed_ns},
    {"state_bytes_per_s", &MachineModel::state_bytes_per_s},
    {"merge_fixed_ns", &MachineModel::merge_fixed_ns},
    {"stream_kv_bytes_per_s", &MachineModel::stream_kv_bytes_per_s},
    {"launch_ns", &MachineModel::launch_ns},
    {"dense_task_ns", &MachineModel::dense_task_ns},
    {"dense_token_ns", &MachineModel::dense_token_ns},
    {"stream_task_ns", &MachineModel::stream_task_ns},
    {"stream_token_ns", &MachineModel::stream_token_ns},
    {"unhidden_reread", &MachineModel::unhidden_reread},
    {"unhidden_start", &MachineModel::unhidden_start},
});

// Those of SmRates, all required where there is an object "sm".
constexpr auto kSmFields = std::to_array<std::pair<const char*, double SmRates::*>>({
    {"clock_hz", &SmRates::clock_hz},
    {"bus_bytes_per_s", &SmRates::bus_bytes_per_s},
    {"dense_flops_per_s", &SmRates::dense_flops_per_s},
    {"memory_bytes_per_s", &SmRates::memory_bytes_per_s},
    {"bulk_bytes_per_s", &SmRates::bulk_bytes_per_s},
    {"launch_ns", &SmRates::launch_ns},
    {"dense_task_ns", &SmRates::dense_task_ns},
    {"slowed_by_streams", &SmRates::slowed_by_streams},
    {"stream_step_ns", &SmRates::stream_step_ns},
    {"stream_task_ns", &SmRates::stream_task_ns},
    {"stream_task_with_dense_ns", &SmRates::stream_task_with_dense_ns},
    {"stream_price_ns", &SmRates::stream_price_ns},
    {"stream_token_ns", &SmRates::stream_token_ns},
    {"fold_pass_ns", &SmRates::fold_pass_ns},
    {"cooperative_launch_ns", &SmRates::cooperative_launch_ns},
    {"cooperative_step_ns", &SmRates::cooperative_step_ns},
    {"cooperative_two_column_step_ns", &SmRates::cooperative_two_column_step_ns},
    {"cooperative_two_column_task_ns", &SmRates::cooperative_two_column_task_ns},
    {"cooperative_short_step_ns", &SmRates::cooperative_short_step_ns},
    {"cooperative_merge_ns", &SmRates::cooperative_merge_ns},
    {"slow_ns", &SmRates::slow_ns},
    {"slow_reads", &SmRates::slow_reads},
    {"cooperative_slow_ns", &SmRates::cooperative_slow_ns},
    {"cooperative_slow_reads", &SmRates::cooperative_slow_reads},
    {"cooperative_unhidden_reread", &SmRates::cooperative_unhidden_reread},
    {"overlapped_step_ns", &SmRates::overlapped_step_ns},
    {"overlapped_task_ns", &SmRates::overlapped_task_ns},
    {"dense_task_overlapped_ns", &SmRates::dense_task_overlapped_ns},
    {"slowed_by_overlap", &SmRates::slowed_by_overlap},
});
// Those of GpuProbe, all required where there is an object "probe".
constexpr auto kProbeFields = std::to_array<std::pair<const char*, double GpuProbe::*>>({
    {"memory_bytes_per_s", &GpuProbe::memory_bytes_per_s},
    {"cache_bytes_per_s", &GpuProbe::cache_bytes_per_s},
    {"dense_flops_per_s", &GpuProbe::dense_flops_per_s},
    {"launch_ns", &GpuProbe::launch_ns},
    {"dense_task_ns", &GpuProbe::dense_task_ns},
    {"stream_task_ns", &GpuProbe::stream_task_ns},
    {"stream_token_ns", &GpuProbe::stream_token_ns},
    {"cooperative_step_ns", &GpuProbe::cooperative_step_ns},
    {"fold_ns", &GpuProbe::fold_ns},
});
// Those of ShortDecodeRates, likewise where there is an object "short_decode".
constexpr auto kShortDecodeFields = std::to_array<std::pair<const char*, double ShortDecodeRates::*>>({
    {"launch_ns", &ShortDecodeRates::launch_ns},
    {"wide_launch_ns", &ShortDecodeRates::wide_launch_ns},
    {"element_ns", &ShortDecodeRates::element_ns},
    {"byte_ns", &ShortDecodeRates::byte_ns},
});
constexpr const char* kNumSms = "num_sms";
constexpr int32_t kMostSms = 4096;
constexpr size_t kMostBytes = 1 << 20;  // of a file; those there are have about one thousand

bool IsKnown(const std::string& key) {
  return key == "name" || key == "source" || key == "kernels" || key == "per_worker" || key == "sm" || key == "probe" ||
         key == "short_decode" || std::ranges::any_of(kFields, [&](const auto& field) { return key == field.first; });
}

Result<double> ReadNumber(const Json& object, const std::string& key, bool may_be_zero) {
  const auto it = FindField(object, key, kFormerMachineNames);
  if (it == object.end()) {  // as in a file of an earlier build
    return InvalidArgument("machine model: field '" + key + "' is missing; write the file anew with `coppice bench calibrate`");
  }
  if (!it->is_number()) return InvalidArgument("machine model: '" + key + "' is not a number");
  const double value = it->get<double>();
  if (std::isfinite(value) && (value > 0 || (may_be_zero && value == 0))) return value;
  return InvalidArgument("machine model: '" + key + "' is " + it->dump() + ", expected a positive number" +
                         (may_be_zero ? " or 0" : ""));
}

// An object of the model may have these fields, and `also`, and no others.
template <class T, size_t n>
Status CheckFields(const Json& object, const std::string& name, const std::array<std::pair<const char*, double T::*>, n>& fields,
                   const std::string& also = "") {
  if (!object.is_object()) return InvalidArgument("machine model: '" + name + "' is not an object");
  for (const auto& [key, value] : object.items()) {
    const std::string& k = key;
    const auto former = std::ranges::find(kFormerMachineNames, k, &FormerName::former);
    const std::string_view now = former != kFormerMachineNames.end() ? former->now : k;
    if (k != also && std::ranges::none_of(fields, [&](const auto& field) { return now == field.first; })) {
      return InvalidArgument("machine model: unknown field '" + name + "." + k + "'");
    }
  }
  return OkStatus();
}

// All of them.
template <class T, size_t n>
Status ReadFields(const Json& object, const std::array<std::pair<const char*, double T::*>, n>& fields, T& into) {
  for (const auto& [key, field] : fields) {
    COPPICE_ASSIGN_OR_RETURN(into.*field, ReadNumber(object, key, false));
  }
  return OkStatus();
}

Result<SmRates> ParseSm(const Json& object) {
  SmRates sm;
  COPPICE_RETURN_IF_ERROR(CheckFields(object, "sm", kSmFields, kNumSms));
  COPPICE_ASSIGN_OR_RETURN(const double num_sms, ReadNumber(object, kNumSms, false));
  if (num_sms > kMostSms || num_sms != std::floor(num_sms)) {
    return InvalidArgument("machine model: 'num_sms' is " + object[kNumSms].dump() + ", expected a whole number up to " +
                           std::to_string(kMostSms));
  }
  sm.num_sms = static_cast<int32_t>(num_sms);
  COPPICE_RETURN_IF_ERROR(ReadFields(object, kSmFields, sm));
  return sm;
}

}  // namespace

std::vector<std::string_view> ShippedMachineNames() {
  std::vector<std::string_view> names;
  for (const ShippedMachine& machine : ShippedMachines()) names.push_back(machine.name);
  return names;
}

Result<MachineModel> ShippedMachineModel(std::string_view name, int32_t workers) {
  std::string known;
  for (const ShippedMachine& machine : ShippedMachines()) {
    if (machine.name == name) return ParseMachineModel(machine.json, workers);
    known.append(" ").append(machine.name);
  }
  return NotFound("no shipped machine model '" + std::string(name) + "'; known:" + known);
}

Result<MachineModel> ParseMachineModel(std::string_view json, int32_t workers) {
  Result<Json> parsed = ParseJson(json);
  const Status status = parsed.ok() ? OkStatus() : parsed.status();
  const DismantledJson<Json> value(status.ok() ? *std::move(parsed) : Json());
  if (!value->is_object()) {
    return InvalidArgument("machine model: not a JSON object" + (status.ok() ? "" : " (" + status.message() + ")") +
                           "; write one with `coppice bench calibrate`");
  }
  const Json& object = *value;
  MachineModel model;
  const Json none = Json::object();
  const Json* per_worker = &none;
  for (const auto& [key, value] : object.items()) {
    const std::string& k = key;
    if (!IsKnown(k)) return InvalidArgument("machine model: unknown field '" + k + "'");
    if ((k == "name" || k == "source" || k == "kernels") && !value.is_string()) {
      return InvalidArgument("machine model: '" + k + "' is not a string");
    }
    if (k == "per_worker") per_worker = &value;
  }
  if (object.contains("name")) model.name = object["name"].get<std::string>();
  if (object.contains("kernels")) model.kernels = object["kernels"].get<std::string>();
  if (!per_worker->is_object()) return InvalidArgument("machine model: 'per_worker' is not an object");
  for (const auto& [key, value] : per_worker->items()) {
    const std::string& k = key;
    if (!k.ends_with("_per_s") || !IsKnown(k)) {
      return InvalidArgument("machine model: unknown field 'per_worker." + k + "'; expected rates");
    }
  }
  for (size_t i = 0; i < kFields.size(); ++i) {
    const auto& [key, field] = kFields[i];
    const bool optional = i >= kNumRequired, of_worker = per_worker->contains(key), of_all = object.contains(key);
    if (!of_worker && !of_all && optional) continue;
    double value = INFINITY;
    const bool has_no_bound = field == &MachineModel::cache_bytes && of_all && object[key].is_null();
    if ((of_all || !of_worker) && !has_no_bound) {
      COPPICE_ASSIGN_OR_RETURN(value, ReadNumber(object, key, optional));
    }
    if (of_worker) {
      COPPICE_ASSIGN_OR_RETURN(const double one, ReadNumber(*per_worker, key, optional));
      value = std::min(std::max(workers, 1) * one, value);
    }
    model.*field = value;
  }
  if (object.contains("sm")) {
    COPPICE_ASSIGN_OR_RETURN(model.sm, ParseSm(object["sm"]));
    // A GPU's steps are predicted by its latencies too.
    for (const auto& [key, field] : kFields) {
      if (model.*field <= 0 && field != &MachineModel::stream_kv_bytes_per_s) {
        return InvalidArgument("machine model: '" + std::string(key) + "' is missing or 0; a model with 'sm' needs it");
      }
    }
  }
  if (object.contains("probe")) {
    COPPICE_RETURN_IF_ERROR(CheckFields(object["probe"], "probe", kProbeFields));
    COPPICE_RETURN_IF_ERROR(ReadFields(object["probe"], kProbeFields, model.probe));
  }
  if (object.contains("short_decode")) {
    COPPICE_RETURN_IF_ERROR(CheckFields(object["short_decode"], "short_decode", kShortDecodeFields));
    COPPICE_RETURN_IF_ERROR(ReadFields(object["short_decode"], kShortDecodeFields, model.short_decode));
  }
  return model;
}

void PutMachineModel(const MachineModel& model, nlohmann::ordered_json* object) {
  *object = OrderedObject(1 + std::size(kFields) + 4);
  (*object)["name"] = model.name;
  if (!model.kernels.empty()) (*object)["kernels"] = model.kernels;
  for (const auto& [key, field] : kFields) (*object)[key] = model.*field;
  if (model.sm.num_sms > 0) {
    nlohmann::ordered_json& sm = (*object)["sm"] = OrderedObject(1 + std::size(kSmFields));
    sm[kNumSms] = model.sm.num_sms;
    for (const auto& [key, field] : kSmFields) sm[key] = model.sm.*field;
  }
  if (model.probe.launch_ns > 0) {
    nlohmann::ordered_json& probe = (*object)["probe"] = OrderedObject(std::size(kProbeFields));
    for (const auto& [key, field] : kProbeFields) probe[key] = model.probe.*field;
  }
  if (model.short_decode.known()) {
    nlohmann::ordered_json& rates = (*object)["short_decode"] = OrderedObject(std::size(kShortDecodeFields));
    for (const auto& [key, field] : kShortDecodeFields) rates[key] = model.short_decode.*field;
  }
}

std::string ToJson(const MachineModel& model) {
  DismantledJson<nlohmann::ordered_json> object(nullptr);
  PutMachineModel(model, &*object);
  return object->dump(2);
}

Result<MachineModel> LoadMachineModel(const std::string& path, int32_t workers) {
  const Result<MachineModel> shipped = ShippedMachineModel(path, workers);
  if (shipped.ok()) return shipped;
  std::ifstream file(path);
  if (!file) {
    return NotFound("machine model " + path + ": cannot be opened; write it with `coppice bench calibrate` (" +
                    shipped.status().message() + ")");
  }
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMostBytes)
    return InvalidArgument("machine model " + path + ": more than " + std::to_string(kMostBytes) + " bytes; is it another file?");
  Result<MachineModel> model = ParseMachineModel(text, workers);
  if (!model.ok()) return Status(model.status().code(), path + ": " + model.status().message());
  return model;
}

Status SaveMachineModel(const MachineModel& model, const std::string& path) {
  std::ofstream file(path);
  file << ToJson(model) << '\n';
  file.close();
  if (!file) return Unavailable("machine model " + path + ": cannot be written");
  return OkStatus();
}

}  // namespace coppice::attention
