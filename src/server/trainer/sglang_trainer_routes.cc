#include "server/trainer/sglang_trainer_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"
#include "server/errors.h"
#include "server/trainer/trainer_answers.h"
#include "server/trainer/trainer_fields.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

ordered_json Success(std::string message) { return {{"success", true}, {"message", std::move(message)}}; }

TrainerAnswer PauseGeneration(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kAbort));
  COPPICE_RETURN_IF_ERROR(context.control().Pause(mode));
  return ordered_json{{"message", "Generation paused successfully."}, {"status", "ok"}};
}

TrainerAnswer ContinueGeneration(TrainerContext& context, const TrainerFields&) {
  COPPICE_RETURN_IF_ERROR(context.control().Resume());
  return ordered_json{{"message", "Generation continued successfully."}, {"status", "ok"}};
}

TrainerAnswer AbortRequest(const ActiveCalls& calls, const TrainerFields& fields, const std::string* key) {
  COPPICE_ASSIGN_OR_RETURN(const bool all, fields.Flag("abort_all", false));
  COPPICE_ASSIGN_OR_RETURN(const std::string id, fields.Text("rid"));
  if (!all && id.empty()) return InvalidArgument("rid is missing, expected the id of a request, or abort_all true");
  const int32_t aborted = all ? calls.AbortAll(key) : calls.Abort(id, key);
  return ordered_json{{"success", true}, {"num_aborted", aborted}};
}

TrainerAnswer UpdateFromDisk(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::string path, fields.Text("model_path"));
  if (path.empty()) return InvalidArgument("model_path is missing, expected a folder of the server's machine");
  COPPICE_ASSIGN_OR_RETURN(const bool aborts, fields.Flag("abort_all_requests", false));
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(aborts ? PauseMode::kAbort : PauseMode::kWait));
  COPPICE_ASSIGN_OR_RETURN(const std::string label, fields.Text("weight_version"));
  COPPICE_ASSIGN_OR_RETURN(const ArrivedWeights weights, ArrivedWeights::Open(path));
  COPPICE_RETURN_IF_ERROR(context.control().BringWhole(weights, mode, label));
  ordered_json answer = Success("Succeeded to update model weights.");
  answer["num_paused_requests"] = 0;
  answer["weight_version"] = context.labels().Now();
  return answer;
}

TrainerAnswer InitGroup(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::optional<GroupInfo> group, ReadSglangGroup(fields.all()));
  if (!group) return Success("weights come by shared memory or CUDA IPC");
  COPPICE_RETURN_IF_ERROR(JoinGroup(context, *group));
  return Success("Succeeded to initialize custom process group.");
}

TrainerAnswer DestroyGroup(TrainerContext& context, const TrainerFields&) {
  context.control().LeaveGroup();
  return Success("Succeeded to destroy custom process group.");
}

TrainerAnswer UpdateFromMessage(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_RETURN_IF_ERROR(BringWeights(context, fields.all(), fields));
  return Success("Succeeded to update parameters online.");
}

TrainerAnswer GetWeightVersion(TrainerContext& context, const TrainerFields&) {
  return ordered_json{{"weight_version", context.labels().Now()}};
}

TrainerAnswer ReleaseMemory(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> tags, fields.Tags());
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kWait));
  const bool drops = tags.empty() || std::ranges::find(tags, "weights") != tags.end();
  COPPICE_ASSIGN_OR_RETURN(const int64_t level, fields.Whole("level", drops ? 2 : 1));
  if (level < 1 || level > 2) return InvalidArgument(fmt::format("level is {}, expected 1 or 2", level));
  if (context.engine().Load().state == EngineState::kAsleep) return Success("the memory was given back before");
  COPPICE_RETURN_IF_ERROR(context.control().Sleep(static_cast<SleepLevel>(level), mode));
  return Success("the memory is given back");
}

TrainerAnswer ResumeMemory(TrainerContext& context, const TrainerFields& fields) {
  COPPICE_RETURN_IF_ERROR(WakeUp(context, fields).status());
  return Success("the memory is taken again");
}

void HealthGenerate(TrainerContext& context, const std::shared_ptr<Call>& call) {
  constexpr double kLongest = 20;  // seconds
  if (const EngineState state = context.engine().Load().state; state != EngineState::kRunning)
    return context.Respond(call, ErrorResponse(503, fmt::format("the engine is {}", Name(state))));
  Request request{.prompt_ids = {0}, .max_tokens = 1, .timeout_seconds = kLongest};
  request.ignore_eos = true;
  request.on_event = [&context, call](const StreamEvent& event) {
    if (!event.request_done) return;
    const bool ok = event.finish_reason == FinishReason::kLength;
    context.Respond(call, ok ? HttpResponse{.body = R"({"status":"ok"})"} : ErrorResponse(503, "no token was generated"));
  };
  if (const Result<RequestId> submitted = context.engine().Submit(std::move(request)); !submitted.ok())
    context.Respond(call, ErrorResponse(submitted.status()));
}

}  // namespace

std::vector<Route> SglangTrainerRoutes(TrainerContext* context) {
  return {
      context->InTurn("POST", "/pause_generation", PauseGeneration),
      context->InTurn("POST", "/continue_generation", ContinueGeneration),
      context->Abort("/abort_request", AbortRequest),
      context->InTurn("GET", "/flush_cache", DropCache),
      context->InTurn("POST", "/flush_cache", DropCache),
      context->InTurn("POST", "/update_weights_from_disk", UpdateFromDisk),
      context->InTurn("POST", "/init_weights_update_group", InitGroup),
      context->InTurn("POST", "/destroy_weights_update_group", DestroyGroup),
      context->InTurn("POST", "/update_weights_from_distributed", UpdateFromMessage),
      context->InTurn("POST", "/update_weights_from_tensor", UpdateFromMessage),
      context->InTurn("POST", "/weights_checker", CheckWeights),
      context->Now("GET", "/get_weight_version", GetWeightVersion),
      context->Now("GET", "/weight_version", GetWeightVersion),
      context->InTurn("POST", "/release_memory_occupation", ReleaseMemory),
      context->InTurn("POST", "/resume_memory_occupation", ResumeMemory),
      {.method = "GET",
       .path = "/health_generate",
       .handle = [context](const std::shared_ptr<Call>& call) { HealthGenerate(*context, call); },
       .trainer = true},
  };
}

}  // namespace coppice::server
