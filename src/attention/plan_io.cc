// Layer: attention. JSON stays in this file.
#include "attention/plan_io.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "attention/former_names.h"
#include "attention/machine_json.h"
#include "core/check.h"
#include "core/dismantle_json.h"
#include "core/json.h"
#include "core/quoted.h"

namespace coppice::attention {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int32_t kFormat = 1;
constexpr std::array<std::string_view, 3> kPolicies = {"tree", "one-level", "store"};
constexpr std::array<DType, 3> kDTypes = {DType::kF32, DType::kBF16, DType::kF16};

// A field's name and place, once for writing and reading; of an integer the values that are read.
template <class S, class T>
struct Field {
  const char* name;
  T S::*place;
  int32_t least = INT32_MIN, most = INT32_MAX;
};
constexpr std::array<Field<AttentionSpec, int32_t>, 4> kSpecInts = {{{"num_qo_heads", &AttentionSpec::num_qo_heads},
                                                                     {"num_kv_heads", &AttentionSpec::num_kv_heads},
                                                                     {"head_dim", &AttentionSpec::head_dim},
                                                                     {"window", &AttentionSpec::window}}};
constexpr std::array<Field<AttentionSpec, float>, 2> kSpecFloats = {
    {{"sm_scale", &AttentionSpec::sm_scale}, {"soft_cap", &AttentionSpec::soft_cap}}};
constexpr std::array<Field<AttentionSpec, DType>, 2> kSpecTypes = {
    {{"q_dtype", &AttentionSpec::q_dtype}, {"kv_dtype", &AttentionSpec::kv_dtype}}};
constexpr std::array<Field<PlanCapacity, int32_t>, 5> kCapacityInts = {{{"max_branches", &PlanCapacity::max_branches},
                                                                        {"max_queries", &PlanCapacity::max_queries},
                                                                        {"max_nodes", &PlanCapacity::max_nodes},
                                                                        {"max_page_slots", &PlanCapacity::max_page_slots},
                                                                        {"page_size", &PlanCapacity::page_size}}};
// Far beyond every backend, and sums and multiples of them stay far from overflow.
constexpr float kLeastPart = 1e-3f, kMostPart = 1e3f;
constexpr int32_t kMostWorkers = 1 << 16, kMostRows = 1 << 16, kMostTokens = 1 << 16;
constexpr std::array<Field<BackendTraits, int32_t>, 10> kTraitsInts = {
    {{"workers", &BackendTraits::workers, 1, kMostWorkers},
     {"dense_tile_rows", &BackendTraits::dense_tile_rows, 1, kMostRows},
     {"dense_min_rows", &BackendTraits::dense_min_rows, 1, kMostRows},
     {"dense_row_unit", &BackendTraits::dense_row_unit, 0, kMostRows},
     {"stream_warps", &BackendTraits::stream_warps, 1, kMostWorkers},
     {"cooperative_warps", &BackendTraits::cooperative_warps, 0, kMostWorkers},
     {"max_item_rows", &BackendTraits::max_item_rows, 0, kMostRows},
     {"kv_tile", &BackendTraits::kv_tile, 1, kMostTokens},
     {"max_heads_per_task", &BackendTraits::max_heads_per_task, 0, kMaxHeads},
     {"native_head_dim", &BackendTraits::native_head_dim, 0, kMostRows}}};
// Of dumps of backends that cut themselves, of those since units differ, and of those since rates, and latencies, do.
constexpr std::array<Field<BackendTraits, int32_t>, 1> kCutTraits = {
    {{"max_set_contributions", &BackendTraits::max_set_contributions, 0, kMostRows}}};
constexpr std::array<Field<BackendTraits, int32_t>, 1> kUnitTraits = {
    {{"deterministic_unit", &BackendTraits::deterministic_unit, 1, kMostTokens}}};
constexpr std::array<Field<BackendTraits, float>, 1> kRateTraits = {{{"stream_cache_share", &BackendTraits::stream_cache_share}}};
constexpr std::array<Field<BackendTraits, float>, 1> kLatencyTraits = {{{"dense_latency", &BackendTraits::dense_latency}}};
constexpr std::array<Field<BackendTraits, int32_t>, 1> kTwoColumnTraits = {
    {{"two_column_rows", &BackendTraits::two_column_rows, 0, kMostRows}}};
constexpr std::array<Field<PlanDump, std::vector<int32_t>>, 10> kForestArrays = {
    {{"node_parent", &PlanDump::node_parent},
     {"node_begin", &PlanDump::node_begin},
     {"node_end", &PlanDump::node_end},
     {"branch_node", &PlanDump::branch_node},
     {"branch_query_begin", &PlanDump::branch_query_begin},
     {"branch_query_count", &PlanDump::branch_query_count},
     {"branch_kv_len", &PlanDump::branch_kv_len},
     {"branch_page_begin", &PlanDump::branch_page_begin},
     {"branch_page_capacity", &PlanDump::branch_page_capacity},
     {"page_indices", &PlanDump::page_indices}}};

// Whether `value` is an integer of type T: the library's own conversion would wrap what does not fit.
template <class T>
bool Holds(const json& value) {
  if (value.is_number_unsigned()) return std::in_range<T>(value.get<uint64_t>());
  return value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
}

// Reads fields of one object; remembers the first that is missing or no value of its type.
class Reader {
 public:
  Reader(const json& object, std::string name) : object_(object), name_(std::move(name)) {
    if (!object.is_object()) status_ = InvalidArgument("plan dump: '" + name_ + "' is not an object");
  }
  template <class T>
  void Get(const char* field, T& into) {
    if (!status_.ok()) return;
    const auto it = FindField(object_, field, kFormerTraitNames);
    if (it == object_.end()) return Fail(field, "is missing");
    if constexpr (std::is_same_v<T, bool>) {
      if (!it->is_boolean()) return Fail(field, "is not true or false");
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!it->is_number()) return Fail(field, "is not a number");
    } else if constexpr (std::is_integral_v<T>) {
      if (!Holds<T>(*it)) return Fail(field, "is " + Shown(*it) + ", expected an integer" + Limits<T>());
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!it->is_string()) return Fail(field, "is not a string");
    } else {
      using Element = typename T::value_type;
      if (!it->is_array()) return Fail(field, "is not an array");
      const auto wrong = std::ranges::find_if_not(*it, Holds<Element>);
      if (wrong != it->end()) return Fail(field, "holds " + Shown(*wrong) + ", expected integers" + Limits<Element>());
    }
    into = it->get<T>();
  }
  void Get(const char* field, DType& into) {
    std::string name;
    Get(field, name);
    if (!status_.ok()) return;
    const auto it = std::ranges::find_if(kDTypes, [&](DType type) { return Name(type) == name; });
    if (it == kDTypes.end()) return Fail(field, "is " + Quoted(name) + ", expected f32, bf16 or f16");
    into = *it;
  }
  template <class S, class T, size_t n>
  void GetAll(const std::array<Field<S, T>, n>& fields, S& into) {
    for (const auto& field : fields) {
      Get(field.name, into.*field.place);
      if constexpr (std::is_same_v<T, int32_t>) {
        const int32_t value = into.*field.place;
        if (status_.ok() && (value < field.least || value > field.most)) {
          Fail(field.name,
               "is " + std::to_string(value) + ", expected " + std::to_string(field.least) + " to " + std::to_string(field.most));
        }
      } else if constexpr (std::is_same_v<S, BackendTraits>) {  // parts of rates and latencies
        const float value = into.*field.place;
        if (status_.ok() && !(value >= kLeastPart && value <= kMostPart)) {
          Fail(field.name,
               "is " + std::to_string(value) + ", expected " + std::to_string(kLeastPart) + " to " + std::to_string(kMostPart));
        }
      }
    }
  }
  void Fail(const char* field, const std::string& what) {
    status_ = InvalidArgument("plan dump: '" + name_ + "." + field + "' " + what);
  }
  const Status& status() const { return status_; }

 private:
  static std::string Shown(const json& value) { return PrintableJson(value, 40); }
  template <class T>
  static std::string Limits() {
    return " from " + std::to_string(std::numeric_limits<T>::min()) + " to " + std::to_string(std::numeric_limits<T>::max());
  }

  const json& object_;
  std::string name_;
  Status status_;
};

template <class S, class T, size_t n>
void PutAll(ordered_json& object, const std::array<Field<S, T>, n>& fields, const S& from) {
  for (const auto& field : fields) {
    if constexpr (std::is_same_v<T, DType>) {
      object[field.name] = Name(from.*field.place);
    } else {
      object[field.name] = from.*field.place;
    }
  }
}

void PutItems(const PlanView& view, ordered_json* items) {
  *items = ordered_json::array();
  for (const std::span<const int32_t> queue : {view.compute_queue, view.bandwidth_queue}) {
    for (int32_t id : queue) {
      const WorkItem& item = view.items[id];
      const auto members = view.members.subspan(item.member_begin, item.member_count);
      ordered_json& put = items->emplace_back(ordered_json());
      put = OrderedObject(10);
      put["id"] = id;
      put["kind"] = item.kind == ItemKind::kDenseTile ? "dense" : "stream";
      put["masked"] = (item.flags & kItemMasked) != 0;
      put["heads_per_task"] = item.heads_per_task;
      put["page_row"] = item.page_row;
      put["kv_begin"] = item.kv_begin;
      put["kv_end"] = item.kv_end;
      PutList(members, &put["merge_sets"]);
      put["state_begin"] = item.state_begin;
      put["predicted_ns"] = item.predicted_ns;
    }
  }
}

}  // namespace

// Each value is put where it stays: lists of values take memory when they are destroyed, and where there is none end the process.
std::string DumpPlan(const Planner& planner, const std::string& tasks) {
  DismantledJson<ordered_json> dismantled(OrderedObject(8));
  ordered_json& root = *dismantled;
  const auto section = [&](const char* name, size_t members) -> ordered_json& { return root[name] = OrderedObject(members); };
  root["format"] = kFormat;
  ordered_json& spec = section("spec", kSpecInts.size() + kSpecFloats.size() + kSpecTypes.size() + 1);
  PutAll(spec, kSpecInts, planner.spec());
  PutAll(spec, kSpecFloats, planner.spec());
  PutAll(spec, kSpecTypes, planner.spec());
  spec["deterministic"] = planner.spec().deterministic;
  PutAll(section("capacity", kCapacityInts.size()), kCapacityInts, planner.capacity());
  ordered_json& options = section("options", 3);
  options["policy"] = kPolicies[static_cast<size_t>(planner.options().policy)];
  options["force_sharing"] = planner.options().force_sharing;
  options["lookahead_tokens"] = planner.options().lookahead_tokens;
  ordered_json& traits = section("traits", kTraitsInts.size() + kCutTraits.size() + 1 + kUnitTraits.size() + kRateTraits.size() +
                                               kLatencyTraits.size() + kTwoColumnTraits.size());
  PutAll(traits, kTraitsInts, planner.traits());
  PutAll(traits, kCutTraits, planner.traits());
  traits["cuts_kv"] = planner.traits().cuts_kv;
  PutAll(traits, kUnitTraits, planner.traits());
  PutAll(traits, kRateTraits, planner.traits());
  PutAll(traits, kLatencyTraits, planner.traits());
  PutAll(traits, kTwoColumnTraits, planner.traits());
  PutMachineModel(planner.machine(), &root["machine"]);

  const PrefixForestView& view = planner.forest();
  const std::array<std::span<const int32_t>, 10> arrays = {
      view.node_parent,        view.node_begin,    view.node_end,          view.branch_node,          view.branch_query_begin,
      view.branch_query_count, view.branch_kv_len, view.branch_page_begin, view.branch_page_capacity, view.page_indices};
  ordered_json& forest = section("forest", arrays.size() + 3);
  forest["page_size"] = view.page_size;
  forest["version"] = view.version;
  for (size_t i = 0; i < arrays.size(); ++i) {
    PutList(arrays[i], &forest[kForestArrays[i].name]);
  }
  PutList(view.query_tree_mask, &forest["query_tree_mask"]);

  const PlanView lowered = planner.View();
  const PlanStats stats = planner.Stats();
  ordered_json& plan = section("plan", 6);
  PutItems(lowered, &plan["items"]);
  plan["num_states"] = lowered.num_states;
  plan["kv_tokens_read"] = stats.kv_tokens_read;
  plan["kv_tokens_read_unshared"] = stats.kv_tokens_read_unshared;
  plan["flops"] = stats.flops;
  plan["predicted_ns"] = stats.predicted_ns;
  std::string text = root.dump();
  if (!tasks.empty()) text.replace(text.size() - 1, 1, ",\"tasks\":" + tasks + "}");
  return text;
}

Result<PlanDump> ParsePlanDump(std::string_view text) {
  const Result<json> parsed = ParseJson(text);
  if (!parsed.ok() || !parsed->is_object()) {
    return InvalidArgument("plan dump: not a JSON object" + (parsed.ok() ? "" : " (" + parsed.status().message() + ")") +
                           "; write one with AttentionPlan::Dump");
  }
  const json& root = *parsed;
  PlanDump dump;
  Reader top(root, "dump");
  int32_t format = 0;
  top.Get("format", format);
  COPPICE_RETURN_IF_ERROR(top.status());
  if (format != kFormat) {
    return InvalidArgument("plan dump: format is " + std::to_string(format) + ", this build reads " + std::to_string(kFormat));
  }
  // Sections by name; an absent one reads as null, which its Reader reports.
  const auto section = [&](const char* name) -> const json& {
    static const json kAbsent;
    const auto it = root.find(name);
    return it == root.end() ? kAbsent : *it;
  };

  Reader spec(section("spec"), "spec");
  spec.GetAll(kSpecInts, dump.spec);
  spec.GetAll(kSpecFloats, dump.spec);
  spec.GetAll(kSpecTypes, dump.spec);
  spec.Get("deterministic", dump.spec.deterministic);
  COPPICE_RETURN_IF_ERROR(spec.status());

  Reader capacity(section("capacity"), "capacity");
  capacity.GetAll(kCapacityInts, dump.capacity);
  COPPICE_RETURN_IF_ERROR(capacity.status());

  Reader options(section("options"), "options");
  std::string policy;
  options.Get("policy", policy);
  options.Get("force_sharing", dump.options.force_sharing);
  options.Get("lookahead_tokens", dump.options.lookahead_tokens);
  COPPICE_RETURN_IF_ERROR(options.status());
  const auto known = std::ranges::find(kPolicies, policy);
  if (known == kPolicies.end()) {
    return InvalidArgument("plan dump: 'options.policy' is " + Quoted(policy) + ", expected tree, one-level or store");
  }
  dump.options.policy = static_cast<SharePolicy>(known - kPolicies.begin());

  Reader traits(section("traits"), "traits");
  traits.GetAll(kTraitsInts, dump.traits);
  if (section("traits").contains("cuts_kv")) {
    traits.Get("cuts_kv", dump.traits.cuts_kv);
    traits.GetAll(kCutTraits, dump.traits);
  }
  if (section("traits").contains("deterministic_unit")) traits.GetAll(kUnitTraits, dump.traits);
  if (section("traits").contains("stream_cache_share")) traits.GetAll(kRateTraits, dump.traits);
  if (section("traits").contains("dense_latency")) {
    traits.GetAll(kLatencyTraits, dump.traits);
    traits.GetAll(kTwoColumnTraits, dump.traits);
  }
  COPPICE_RETURN_IF_ERROR(traits.status());
  COPPICE_ASSIGN_OR_RETURN(dump.machine, ParseMachineModel(section("machine").dump()));

  Reader forest(section("forest"), "forest");
  forest.Get("page_size", dump.page_size);
  forest.Get("version", dump.version);
  forest.GetAll(kForestArrays, dump);
  forest.Get("query_tree_mask", dump.query_tree_mask);
  COPPICE_RETURN_IF_ERROR(forest.status());
  return dump;
}

Result<std::unique_ptr<Planner>> ReplayPlan(const PlanDump& dump) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Planner> planner,
                           Planner::Create(dump.spec, dump.capacity, dump.options, dump.traits, dump.machine));
  COPPICE_RETURN_IF_ERROR(planner->Update(dump.Forest()));
  return planner;
}

}  // namespace coppice::attention
