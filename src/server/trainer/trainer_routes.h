// The routes by which trainers steer the server, of vLLM and of SGLang: off unless asked for. Layer: server.
// docs/trainers.md describes them.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/engine/engine.h"
#include "server/active_calls.h"
#include "server/call.h"
#include "server/http.h"
#include "server/router.h"
#include "server/server_info.h"
#include "server/trainer/trainer_control.h"

namespace coppice::server {

class TrainerFields;

// Thread-safe.
class TrainerRoutes {
 public:
  struct Parts {
    Engine* engine = nullptr;            // this and `calls` outlive the routes
    const ActiveCalls* calls = nullptr;  // generations that can be ended
    ServerFacts facts;
    TrainerControl::Options control;
    std::function<bool(const std::string& key)> steers;                      // whether an API key ends generations of others
    std::function<void(const std::shared_ptr<Call>&, HttpResponse)> answer;  // any thread
  };
  explicit TrainerRoutes(Parts parts);

  std::vector<Route> Routes();
  TrainerFacts facts() const;
  TrainerControl& control() { return control_; }

 private:
  using Answer = Result<nlohmann::ordered_json>;
  using Handler = Answer (TrainerRoutes::*)(const TrainerFields&);
  // `key`: whose generations it ends alone; null: those of all keys.
  using AbortHandler = Answer (TrainerRoutes::*)(const TrainerFields&, const std::string* key);

  // A route whose handler runs on the calling thread, and one whose handler runs on the control's.
  Route Now(std::string_view method, std::string_view path, Handler handler);
  Route InTurn(std::string_view method, std::string_view path, Handler handler);
  // One that every key may use, since it reaches no further than the key does.
  Route Abort(std::string_view path, AbortHandler handler);
  void Run(const std::shared_ptr<Call>& call, const std::function<Answer()>& handler);

  // Of vLLM.
  Answer Pause(const TrainerFields& fields);
  Answer Resume(const TrainerFields& fields);
  Answer IsPaused(const TrainerFields& fields);
  Answer AbortRequests(const TrainerFields& fields, const std::string* key);
  Answer Sleep(const TrainerFields& fields);
  Answer WakeUp(const TrainerFields& fields);
  Answer IsSleeping(const TrainerFields& fields);
  Answer ResetPrefixCache(const TrainerFields& fields);
  Answer WorldSize(const TrainerFields& fields);
  Answer WeightInfo(const TrainerFields& fields);
  Answer WeightChecker(const TrainerFields& fields);
  Answer InitTransfer(const TrainerFields& fields);
  Answer StartUpdate(const TrainerFields& fields);
  Answer UpdateWeights(const TrainerFields& fields);
  Answer FinishUpdate(const TrainerFields& fields);
  Answer SetVersion(const TrainerFields& fields);
  Answer CollectiveRpc(const TrainerFields& fields);
  // Of SGLang.
  Answer PauseGeneration(const TrainerFields& fields);
  Answer ContinueGeneration(const TrainerFields& fields);
  Answer AbortRequest(const TrainerFields& fields, const std::string* key);
  Answer FlushCache(const TrainerFields& fields);
  Answer UpdateFromDisk(const TrainerFields& fields);
  Answer InitGroup(const TrainerFields& fields);
  Answer UpdateFromMessage(const TrainerFields& fields);
  Answer Version(const TrainerFields& fields);
  Answer ReleaseMemory(const TrainerFields& fields);
  Answer ResumeMemory(const TrainerFields& fields);
  void HealthGenerate(const std::shared_ptr<Call>& call);

  // Brings what a message names.
  Status Bring(const nlohmann::json& info, const TrainerFields& fields);

  Engine& engine_;
  const ActiveCalls& calls_;
  const ServerFacts facts_;
  const std::string model_path_;
  const std::function<bool(const std::string& key)> steers_;
  const std::function<void(const std::shared_ptr<Call>&, HttpResponse)> answer_;
  TrainerControl control_;  // last: its thread uses the others
};

}  // namespace coppice::server
