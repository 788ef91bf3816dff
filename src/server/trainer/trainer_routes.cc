#include "server/trainer/trainer_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"
#include "core/json.h"
#include "core/quoted.h"
#include "openai/response.h"
#include "server/errors.h"
#include "server/trainer/trainer_fields.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

HttpResponse ResponseOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kFailedPrecondition: return ErrorResponse(409, status.message());
    case StatusCode::kUnimplemented: return ErrorResponse(501, status.message());
    default: return ErrorResponse(status);
  }
}

ordered_json Success(std::string message) { return {{"success", true}, {"message", std::move(message)}}; }

// Only the weights are to be there again.
bool AreWeightsAlone(const std::vector<std::string>& tags) {
  return !tags.empty() && std::ranges::all_of(tags, [](const std::string& tag) { return tag == "weights"; });
}

}  // namespace

TrainerRoutes::TrainerRoutes(Parts parts)
    : engine_(*parts.engine),
      calls_(*parts.calls),
      facts_(std::move(parts.facts)),
      model_path_(parts.control.model_path),
      steers_(std::move(parts.steers)),
      answer_(std::move(parts.answer)),
      control_(parts.engine, parts.calls, std::move(parts.control)) {}

TrainerFacts TrainerRoutes::facts() const {
  return {.label = control_.label(), .update_state = std::string(Name(control_.update_state())), .model_path = model_path_};
}

std::vector<Route> TrainerRoutes::Routes() {
  using T = TrainerRoutes;
  std::vector<Route> routes = {
      InTurn("POST", "/pause", &T::Pause),
      InTurn("POST", "/resume", &T::Resume),
      Now("GET", "/is_paused", &T::IsPaused),
      Abort("/abort_requests", &T::AbortRequests),
      InTurn("POST", "/sleep", &T::Sleep),
      InTurn("POST", "/wake_up", &T::WakeUp),
      Now("GET", "/is_sleeping", &T::IsSleeping),
      InTurn("POST", "/reset_prefix_cache", &T::ResetPrefixCache),
      Now("GET", "/get_world_size", &T::WorldSize),
      Now("GET", "/weight_info", &T::WeightInfo),
      InTurn("POST", "/weight_checker", &T::WeightChecker),
      InTurn("POST", "/init_weight_transfer_engine", &T::InitTransfer),
      InTurn("POST", "/start_weight_update", &T::StartUpdate),
      InTurn("POST", "/update_weights", &T::UpdateWeights),
      InTurn("POST", "/finish_weight_update", &T::FinishUpdate),
      InTurn("POST", "/update_weight_version", &T::SetVersion),
      InTurn("POST", "/collective_rpc", &T::CollectiveRpc),

      InTurn("POST", "/pause_generation", &T::PauseGeneration),
      InTurn("POST", "/continue_generation", &T::ContinueGeneration),
      Abort("/abort_request", &T::AbortRequest),
      InTurn("GET", "/flush_cache", &T::FlushCache),
      InTurn("POST", "/flush_cache", &T::FlushCache),
      InTurn("POST", "/update_weights_from_disk", &T::UpdateFromDisk),
      InTurn("POST", "/init_weights_update_group", &T::InitGroup),
      InTurn("POST", "/update_weights_from_distributed", &T::UpdateFromMessage),
      InTurn("POST", "/update_weights_from_tensor", &T::UpdateFromMessage),
      InTurn("POST", "/weights_checker", &T::WeightChecker),
      Now("GET", "/get_weight_version", &T::Version),
      Now("GET", "/weight_version", &T::Version),
      InTurn("POST", "/release_memory_occupation", &T::ReleaseMemory),
      InTurn("POST", "/resume_memory_occupation", &T::ResumeMemory),
  };
  routes.push_back({.method = "GET",
                    .path = "/health_generate",
                    .handle = [this](const std::shared_ptr<Call>& call) { HealthGenerate(call); },
                    .trainer = true});
  return routes;
}

Route TrainerRoutes::Now(std::string_view method, std::string_view path, Handler handler) {
  return {.method = method,
          .path = path,
          .handle =
              [this, handler](const std::shared_ptr<Call>& call) {
                const Result<TrainerFields> fields = TrainerFields::Read(call->request);
                if (!fields.ok()) return answer_(call, ResponseOf(fields.status()));
                Run(call, [&] { return (this->*handler)(*fields); });
              },
          .body = method == "GET" ? BodyKind::kNone : BodyKind::kOptionalJson,
          .trainer = true};
}

Route TrainerRoutes::InTurn(std::string_view method, std::string_view path, Handler handler) {
  Route route = Now(method, path, handler);
  route.handle = [this, handler](const std::shared_ptr<Call>& call) {
    Result<TrainerFields> fields = TrainerFields::Read(call->request);
    if (!fields.ok()) return answer_(call, ResponseOf(fields.status()));
    call->request.body.clear();
    control_.Post([this, call, handler, fields = *std::move(fields)] { Run(call, [&] { return (this->*handler)(fields); }); });
  };
  return route;
}

Route TrainerRoutes::Abort(std::string_view path, AbortHandler handler) {
  return {.method = "POST",
          .path = path,
          .handle =
              [this, handler](const std::shared_ptr<Call>& call) {
                const Result<TrainerFields> fields = TrainerFields::Read(call->request);
                if (!fields.ok()) return answer_(call, ResponseOf(fields.status()));
                const std::string* const key = steers_(call->key) ? nullptr : &call->key;
                Run(call, [&] { return (this->*handler)(*fields, key); });
              },
          .body = BodyKind::kOptionalJson};
}

void TrainerRoutes::Run(const std::shared_ptr<Call>& call, const std::function<Answer()>& handler) {
  HttpResponse response;
  try {
    Answer answer = CatchExhaustion("answering a trainer", handler);
    response = answer.ok() ? HttpResponse{.body = DumpJson(*std::move(answer))} : ResponseOf(answer.status());
  } catch (const std::exception& error) {  // a fault of ours: it costs one request, not the server
    response = ErrorResponse(Internal(fmt::format("answering the request failed: {}", error.what())));
  }
  answer_(call, std::move(response));
}

// ----------------------------------------------------------------------------------------------------------------------- vLLM

TrainerRoutes::Answer TrainerRoutes::Pause(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kAbort));
  COPPICE_ASSIGN_OR_RETURN(const bool clears, fields.Flag("clear_cache", false));
  COPPICE_RETURN_IF_ERROR(control_.Pause(mode));
  if (clears) COPPICE_RETURN_IF_ERROR(engine_.DropCache().status());
  return ordered_json{{"status", "paused"}};
}

TrainerRoutes::Answer TrainerRoutes::Resume(const TrainerFields&) {
  COPPICE_RETURN_IF_ERROR(control_.Resume());
  return ordered_json{{"status", "resumed"}};
}

TrainerRoutes::Answer TrainerRoutes::IsPaused(const TrainerFields&) {
  return ordered_json{{"is_paused", engine_.Load().state != EngineState::kRunning}};
}

TrainerRoutes::Answer TrainerRoutes::AbortRequests(const TrainerFields& fields, const std::string* key) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> ids, fields.Texts("request_ids"));
  int32_t aborted = 0;
  if (fields.Find("request_ids") == nullptr) aborted = calls_.AbortAll(key);
  for (const std::string& id : ids) aborted += calls_.Abort(id, key);
  return ordered_json{{"status", "aborted"}, {"num_aborted", aborted}};
}

TrainerRoutes::Answer TrainerRoutes::Sleep(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const int64_t level, fields.Whole("level", 1));
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kAbort));
  if (level < 0 || level > 2) return InvalidArgument(fmt::format("level is {}, expected 0, 1 or 2", level));
  COPPICE_RETURN_IF_ERROR(level == 0 ? control_.Pause(mode) : control_.Sleep(static_cast<SleepLevel>(level), mode));
  return ordered_json{{"status", level == 0 ? "paused" : "asleep"}};
}

TrainerRoutes::Answer TrainerRoutes::WakeUp(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> tags, fields.Texts("tags"));
  COPPICE_RETURN_IF_ERROR(control_.Wake(/*weights_follow=*/AreWeightsAlone(tags)));
  return ordered_json{{"status", "awake"}};
}

TrainerRoutes::Answer TrainerRoutes::IsSleeping(const TrainerFields&) {
  return ordered_json{{"is_sleeping", engine_.Load().state == EngineState::kAsleep}};
}

TrainerRoutes::Answer TrainerRoutes::ResetPrefixCache(const TrainerFields&) {
  COPPICE_ASSIGN_OR_RETURN(const int32_t pins, engine_.DropCache());
  return ordered_json{{"success", true}, {"pinned_prefixes", {{"kept", pins}, {"pages", "dropped"}, {"computed_anew", pins}}}};
}

TrainerRoutes::Answer TrainerRoutes::WorldSize(const TrainerFields&) { return ordered_json{{"world_size", facts_.world_size}}; }

TrainerRoutes::Answer TrainerRoutes::WeightInfo(const TrainerFields&) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<coppice::WeightInfo> weights, engine_.Weights());
  ordered_json list = ordered_json::array();
  for (const coppice::WeightInfo& weight : weights)
    list.push_back(
        {{"name", weight.name}, {"dtype", TorchName(weight.dtype)}, {"shape", weight.shape}, {"missing", weight.missing}});
  return ordered_json{
      {"weight_version", control_.label()}, {"dtypes", {"float32", "bfloat16", "float16"}}, {"weights", std::move(list)}};
}

TrainerRoutes::Answer TrainerRoutes::WeightChecker(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::string action, fields.Text("action", "checksum"));
  if (action != "checksum" && action != "compare")
    return InvalidArgument(fmt::format("action is {}, expected checksum or compare", Quoted(action)));
  const json* const baseline = fields.Find("baseline");
  if (action == "compare" && (baseline == nullptr || !baseline->is_object()))
    return InvalidArgument("action compare needs \"baseline\", an object of checksums by name");
  COPPICE_ASSIGN_OR_RETURN(const auto checksums, control_.Checksums());
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

TrainerRoutes::Answer TrainerRoutes::InitTransfer(const TrainerFields& fields) {
  if (const json* const info = fields.Find("init_info"); info != nullptr) COPPICE_RETURN_IF_ERROR(CheckTransfer(*info));
  return ordered_json{{"message", "Weight transfer initialized"}};
}

TrainerRoutes::Answer TrainerRoutes::StartUpdate(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kWait));
  COPPICE_ASSIGN_OR_RETURN(std::string label, fields.Text("weight_version"));
  COPPICE_RETURN_IF_ERROR(control_.Start(mode, std::move(label)));
  return ordered_json{{"message", "Weight update started"}};
}

Status TrainerRoutes::Bring(const json& info, const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kWait));
  COPPICE_ASSIGN_OR_RETURN(const std::string label, fields.Text("weight_version"));
  COPPICE_ASSIGN_OR_RETURN(const WeightMessage message, ReadWeightMessage(info));
  COPPICE_ASSIGN_OR_RETURN(ArrivedWeights weights, ArrivedWeights::Read(message, control_.TakeMemory()));
  const Status brought = control_.Bring(weights, mode, label, message.checksum);
  control_.KeepMemory(std::move(weights).TakeMemory());
  return brought;
}

TrainerRoutes::Answer TrainerRoutes::UpdateWeights(const TrainerFields& fields) {
  const json* const info = fields.Find("update_info");
  if (info == nullptr) return InvalidArgument("update_info is missing, expected an object with \"segment\" and \"tensors\"");
  COPPICE_RETURN_IF_ERROR(Bring(*info, fields));
  return ordered_json{{"message", "Weights updated"}};
}

TrainerRoutes::Answer TrainerRoutes::FinishUpdate(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::string label, fields.Text("weight_version"));
  COPPICE_RETURN_IF_ERROR(control_.Finish(label));
  return ordered_json{
      {"message", "Weight update finished"}, {"weight_version", control_.label()}, {"version", engine_.weight_version().number}};
}

TrainerRoutes::Answer TrainerRoutes::SetVersion(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(std::string label, fields.Text("new_version"));
  if (label.empty()) return InvalidArgument("new_version is missing, expected the name of the weights");
  control_.SetLabel(label);
  return ordered_json{{"success", true}, {"message", "the weights have a new name"}, {"new_version", std::move(label)}};
}

TrainerRoutes::Answer TrainerRoutes::CollectiveRpc(const TrainerFields& fields) {
  struct Method {
    std::string_view name;
    Handler handler;
  };
  constexpr std::array kMethods = {
      Method{"init_weight_transfer_engine", &TrainerRoutes::InitTransfer},
      Method{"start_weight_update", &TrainerRoutes::StartUpdate}, Method{"update_weights", &TrainerRoutes::UpdateWeights},
      Method{"finish_weight_update", &TrainerRoutes::FinishUpdate}, Method{"reset_prefix_cache", &TrainerRoutes::ResetPrefixCache}};
  COPPICE_ASSIGN_OR_RETURN(std::string method, fields.Text("method"));
  if (method == "reload_weights") {
    COPPICE_RETURN_IF_ERROR(control_.Reload(PauseMode::kWait));
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
  COPPICE_ASSIGN_OR_RETURN(ordered_json result, (this->*found->handler)(TrainerFields(std::move(arguments))));
  return ordered_json{{"results", ordered_json::array({std::move(result)})}};
}

// --------------------------------------------------------------------------------------------------------------------- SGLang

TrainerRoutes::Answer TrainerRoutes::PauseGeneration(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kAbort));
  COPPICE_RETURN_IF_ERROR(control_.Pause(mode));
  return ordered_json{{"message", "Generation paused successfully."}, {"status", "ok"}};
}

TrainerRoutes::Answer TrainerRoutes::ContinueGeneration(const TrainerFields&) {
  COPPICE_RETURN_IF_ERROR(control_.Resume());
  return ordered_json{{"message", "Generation continued successfully."}, {"status", "ok"}};
}

TrainerRoutes::Answer TrainerRoutes::AbortRequest(const TrainerFields& fields, const std::string* key) {
  COPPICE_ASSIGN_OR_RETURN(const bool all, fields.Flag("abort_all", false));
  COPPICE_ASSIGN_OR_RETURN(const std::string id, fields.Text("rid"));
  if (!all && id.empty()) return InvalidArgument("rid is missing, expected the id of a request, or abort_all true");
  const int32_t aborted = all ? calls_.AbortAll(key) : calls_.Abort(id, key);
  return ordered_json{{"success", true}, {"num_aborted", aborted}};
}

TrainerRoutes::Answer TrainerRoutes::FlushCache(const TrainerFields& fields) { return ResetPrefixCache(fields); }

TrainerRoutes::Answer TrainerRoutes::UpdateFromDisk(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::string path, fields.Text("model_path"));
  if (path.empty()) return InvalidArgument("model_path is missing, expected a folder of the server's machine");
  COPPICE_ASSIGN_OR_RETURN(const bool aborts, fields.Flag("abort_all_requests", false));
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(aborts ? PauseMode::kAbort : PauseMode::kWait));
  COPPICE_ASSIGN_OR_RETURN(const std::string label, fields.Text("weight_version"));
  COPPICE_ASSIGN_OR_RETURN(const ArrivedWeights weights, ArrivedWeights::Open(path));
  COPPICE_RETURN_IF_ERROR(control_.BringWhole(weights, mode, label));
  ordered_json answer = Success("Succeeded to update model weights.");
  answer["num_paused_requests"] = 0;
  answer["weight_version"] = control_.label();
  return answer;
}

TrainerRoutes::Answer TrainerRoutes::InitGroup(const TrainerFields& fields) {
  COPPICE_RETURN_IF_ERROR(CheckTransfer(fields.all()));
  return Success("weights come by shared memory or CUDA IPC");
}

TrainerRoutes::Answer TrainerRoutes::UpdateFromMessage(const TrainerFields& fields) {
  COPPICE_RETURN_IF_ERROR(Bring(fields.all(), fields));
  return Success("Succeeded to update parameters online.");
}

TrainerRoutes::Answer TrainerRoutes::Version(const TrainerFields&) { return ordered_json{{"weight_version", control_.label()}}; }

TrainerRoutes::Answer TrainerRoutes::ReleaseMemory(const TrainerFields& fields) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> tags, fields.Texts("tags"));
  COPPICE_ASSIGN_OR_RETURN(const PauseMode mode, fields.Mode(PauseMode::kWait));
  const bool drops = tags.empty() || std::ranges::find(tags, "weights") != tags.end();
  COPPICE_ASSIGN_OR_RETURN(const int64_t level, fields.Whole("level", drops ? 2 : 1));
  if (level < 1 || level > 2) return InvalidArgument(fmt::format("level is {}, expected 1 or 2", level));
  if (engine_.Load().state == EngineState::kAsleep) return Success("the memory was given back before");
  COPPICE_RETURN_IF_ERROR(control_.Sleep(static_cast<SleepLevel>(level), mode));
  return Success("the memory is given back");
}

TrainerRoutes::Answer TrainerRoutes::ResumeMemory(const TrainerFields& fields) {
  COPPICE_RETURN_IF_ERROR(WakeUp(fields).status());
  return Success("the memory is taken again");
}

void TrainerRoutes::HealthGenerate(const std::shared_ptr<Call>& call) {
  constexpr double kLongest = 20;  // seconds
  if (const EngineState state = engine_.Load().state; state != EngineState::kRunning)
    return answer_(call, ErrorResponse(503, fmt::format("the engine is {}", Name(state))));
  Request request{.prompt_ids = {0}, .max_tokens = 1, .timeout_seconds = kLongest};
  request.ignore_eos = true;
  request.on_event = [this, call](const StreamEvent& event) {
    if (!event.request_done) return;
    const bool ok = event.finish_reason == FinishReason::kLength;
    answer_(call, ok ? HttpResponse{.body = R"({"status":"ok"})"} : ErrorResponse(503, "no token was generated"));
  };
  if (const Result<RequestId> submitted = engine_.Submit(std::move(request)); !submitted.ok())
    answer_(call, ErrorResponse(submitted.status()));
}

}  // namespace coppice::server
