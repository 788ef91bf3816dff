#include "server/trainer/trainer_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/check.h"
#include "core/quoted.h"
#include "server/trainer/trainer_fields.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Only the weights are to be there again.
bool AreWeightsAlone(const std::vector<std::string>& tags) {
  return !tags.empty() && std::ranges::all_of(tags, [](const std::string& tag) { return tag == "weights"; });
}

}  // namespace

Status JoinGroup(TrainerContext& context, const GroupInfo& group) {
  if (context.facts().world_size > 1)
    return Unimplemented(
        fmt::format("weights by NCCL are received by a model on one device, and this one is divided among {} ranks: send them by "
                    "shared memory (docs/trainers.md)",
                    context.facts().world_size));
  return context.control().JoinGroup(group);
}

Status BringWeights(TrainerContext& context, const json& info, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const bool aborts, fields.Flag("abort_all_requests", false));
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(aborts ? PauseMode::kAbort : PauseMode::kWait));
  COPPICE_ASSIGN_OR_RETURN(const std::string label, fields.Text("weight_version"));
  COPPICE_ASSIGN_OR_RETURN(const WeightMessage message, ReadWeightMessage(info));
  if (const auto* const broadcast = std::get_if<BroadcastSource>(&message.source))
    return context.control().Receive(message, *broadcast, mode, label);
  COPPICE_ASSIGN_OR_RETURN(ArrivedWeights weights, ArrivedWeights::Read(message, context.control().TakeMemory()));
  const Status brought = context.control().Bring(weights, mode, label, message.checksum);
  context.control().KeepMemory(std::move(weights).TakeMemory());
  return brought;
}

TrainerAnswer CheckWeights(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::string action, fields.Text("action", "checksum"));
  if (action != "checksum" && action != "compare")
    return InvalidArgument(fmt::format("action is {}, expected checksum or compare", Quoted(action)));
  const json* const baseline = fields.Find("baseline");
  if (action == "compare" && (baseline == nullptr || !baseline->is_object()))
    return InvalidArgument("action compare needs \"baseline\", an object of checksums by name");
  COPPICE_ASSIGN_OR_RETURN(const auto checksums, context.control().Checksums());
  if (action == "checksum") {
    ordered_json list = ordered_json::object();
    for (const auto& [name, checksum] : checksums) list[name] = checksum.empty() ? ordered_json() : ordered_json(checksum);
    return ordered_json{{"checksums", std::move(list)}};
  }
  ordered_json mismatches = ordered_json::array();
  for (const auto& [name, checksum] : checksums) {
    const auto expected = baseline->find(name);
    if (expected == baseline->end() || checksum.empty() || *expected != checksum) mismatches.push_back(name);
  }
  for (const auto& [name, checksum] : baseline->items()) {
    if (!checksums.contains(name)) mismatches.push_back(name);
  }
  const bool match = mismatches.empty();
  return ordered_json{{"match", match}, {"mismatches", std::move(mismatches)}};
}

TrainerAnswer DropCache(TrainerContext& context, const TrainerFields&) {
  COPPICE_ASSIGN_OR_RETURN(const int32_t pins, context.engine().DropCache());
  return ordered_json{{"success", true}, {"pinned_prefixes", {{"kept", pins}, {"pages", "dropped"}, {"computed_anew", pins}}}};
}

TrainerAnswer WakeUp(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> tags, fields.Tags());
  COPPICE_RETURN_IF_ERROR(context.control().Wake(/*weights_follow=*/AreWeightsAlone(tags)));
  return ordered_json{{"status", "awake"}};
}

}  // namespace coppice::server
