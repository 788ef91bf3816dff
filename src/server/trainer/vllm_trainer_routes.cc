#include "server/trainer/vllm_trainer_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"
#include "server/trainer/trainer_answers.h"
#include "server/trainer/trainer_fields.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

TrainerAnswer Pause(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kAbort));
  COPPICE_ASSIGN_OR_RETURN(const bool clears, fields.Flag("clear_cache", false));
  COPPICE_RETURN_IF_ERROR(context.control().Pause(mode));
  if (clears) COPPICE_RETURN_IF_ERROR(context.engine().DropCache().status());
  return ordered_json{{"status", "paused"}};
}

TrainerAnswer Resume(TrainerContext& context, const TrainerFields&) {
  COPPICE_RETURN_IF_ERROR(context.control().Resume());
  return ordered_json{{"status", "resumed"}};
}

TrainerAnswer IsPaused(TrainerContext& context, const TrainerFields&) {
  return ordered_json{{"is_paused", context.engine().Load().state != EngineState::kRunning}};
}

TrainerAnswer AbortRequests(const ActiveCalls& calls, const TrainerFields& fields, const std::string* key) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> ids, fields.Texts("request_ids"));
  int32_t aborted = 0;
  if (fields.Find("request_ids") == nullptr) aborted = calls.AbortAll(key);
  for (const std::string& id : ids) aborted += calls.Abort(id, key);
  return ordered_json{{"status", "aborted"}, {"num_aborted", aborted}};
}

TrainerAnswer Sleep(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const int64_t level, fields.Whole("level", 1));
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kAbort));
  if (level < 0 || level > 2) return InvalidArgument(fmt::format("level is {}, expected 0, 1 or 2", level));
  COPPICE_RETURN_IF_ERROR(level == 0 ? context.control().Pause(mode)
                                     : context.control().Sleep(static_cast<SleepLevel>(level), mode));
  return ordered_json{{"status", level == 0 ? "paused" : "asleep"}};
}

TrainerAnswer IsSleeping(TrainerContext& context, const TrainerFields&) {
  return ordered_json{{"is_sleeping", context.engine().Load().state == EngineState::kAsleep}};
}

TrainerAnswer GetWorldSize(TrainerContext& context, const TrainerFields&) {
  return ordered_json{{"world_size", context.facts().world_size}};
}

TrainerAnswer ListWeights(TrainerContext& context, const TrainerFields&) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<WeightInfo> weights, context.engine().Weights());
  ordered_json list = ordered_json::array();
  for (const WeightInfo& weight : weights)
    list.push_back(
        {{"name", weight.name}, {"dtype", TorchName(weight.dtype)}, {"shape", weight.shape}, {"missing", weight.missing}});
  return ordered_json{
      {"weight_version", context.labels().Now()}, {"dtypes", {"float32", "bfloat16", "float16"}}, {"weights", std::move(list)}};
}

TrainerAnswer InitTransfer(TrainerContext& context, const TrainerFields& fields) {
  if (const json* const info = fields.Find("init_info"); info != nullptr) {
    COPPICE_ASSIGN_OR_RETURN(const std::optional<GroupInfo> group, ReadTransfer(*info));
    if (group) COPPICE_RETURN_IF_ERROR(JoinGroup(context, *group));
  }
  return ordered_json{{"message", "Weight transfer initialized"}};
}

TrainerAnswer StartUpdate(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kWait));
  COPPICE_ASSIGN_OR_RETURN(std::string label, fields.Text("weight_version"));
  COPPICE_RETURN_IF_ERROR(context.control().Start(mode, std::move(label)));
  return ordered_json{{"message", "Weight update started"}};
}

TrainerAnswer UpdateWeights(TrainerContext& context, const TrainerFields& fields) {
  const json* const info = fields.Find("update_info");
  if (info == nullptr) return InvalidArgument("update_info is missing, expected an object with \"segment\" and \"tensors\"");
  COPPICE_RETURN_IF_ERROR(BringWeights(context, *info, fields));
  return ordered_json{{"message", "Weights updated"}};
}

TrainerAnswer FinishUpdate(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::string label, fields.Text("weight_version"));
  COPPICE_RETURN_IF_ERROR(context.control().Finish(label));
  return ordered_json{{"message", "Weight update finished"},
                      {"weight_version", context.labels().Now()},
                      {"version", context.engine().weight_version().number}};
}

TrainerAnswer SetVersion(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(std::string label, fields.Text("new_version"));
  if (label.empty()) return InvalidArgument("new_version is missing, expected the name of the weights");
  context.labels().Set(label);
  return ordered_json{{"success", true}, {"message", "the weights have a new name"}, {"new_version", std::move(label)}};
}

TrainerAnswer CollectiveRpc(TrainerContext& context, const TrainerFields& fields) {
  struct Method {
    std::string_view name;
    TrainerHandler handler;
  };
  constexpr std::array kMethods = {Method{"init_weight_transfer_engine", InitTransfer}, Method{"start_weight_update", StartUpdate},
                                   Method{"update_weights", UpdateWeights}, Method{"finish_weight_update", FinishUpdate},
                                   Method{"reset_prefix_cache", DropCache}};
  COPPICE_ASSIGN_OR_RETURN(std::string method, fields.Text("method"));
  if (method == "reload_weights") {
    COPPICE_RETURN_IF_ERROR(context.control().Reload(PauseMode::kWait));
    return ordered_json{{"results", {nullptr}}};
  }
  std::string_view name = method;
  if (name.starts_with("skyrl_")) name.remove_prefix(6);
  const auto found = std::ranges::find(kMethods, name, &Method::name);
  if (found == kMethods.end())
    return InvalidArgument(
        fmt::format("method is {}, expected reload_weights, reset_prefix_cache, init_weight_transfer_engine, "
                    "start_weight_update, update_weights or finish_weight_update, or one of these behind skyrl_",
                    Quoted(method)));
  json arguments = json::object();
  if (const json* const kwargs = fields.Find("kwargs"); kwargs != nullptr && kwargs->is_object()) arguments = *kwargs;
  // The one argument of these methods.
  if (const json* const args = fields.Find("args"); args != nullptr && args->is_array() && !args->empty()) {
    const char* const field = name == "init_weight_transfer_engine" ? "init_info" : "update_info";
    if (!arguments.contains(field)) arguments[field] = args->front();
  }
  COPPICE_ASSIGN_OR_RETURN(ordered_json result, found->handler(context, TrainerFields(std::move(arguments))));
  return ordered_json{{"results", ordered_json::array({std::move(result)})}};
}

}  // namespace

std::vector<Route> VllmTrainerRoutes(TrainerContext* context) {
  return {
      context->InTurn("POST", "/pause", Pause),
      context->InTurn("POST", "/resume", Resume),
      context->Now("GET", "/is_paused", IsPaused),
      context->Abort("/abort_requests", AbortRequests),
      context->InTurn("POST", "/sleep", Sleep),
      context->InTurn("POST", "/wake_up", WakeUp),
      context->Now("GET", "/is_sleeping", IsSleeping),
      context->InTurn("POST", "/reset_prefix_cache", DropCache),
      context->Now("GET", "/get_world_size", GetWorldSize),
      context->Now("GET", "/weight_info", ListWeights),
      context->InTurn("POST", "/weight_checker", CheckWeights),
      context->InTurn("POST", "/init_weight_transfer_engine", InitTransfer),
      context->InTurn("POST", "/start_weight_update", StartUpdate),
      context->InTurn("POST", "/update_weights", UpdateWeights),
      context->InTurn("POST", "/finish_weight_update", FinishUpdate),
      context->InTurn("POST", "/update_weight_version", SetVersion),
      context->InTurn("POST", "/collective_rpc", CollectiveRpc),
  };
}

}  // namespace coppice::server
