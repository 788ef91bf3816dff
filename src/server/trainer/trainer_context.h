// Shared by the routes of trainers: the engine, its control, and how a handler becomes a route. Layer: server.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "server/active_calls.h"
#include "server/call.h"
#include "server/http.h"
#include "server/router.h"
#include "server/server_info.h"
#include "server/trainer/trainer_control.h"
#include "server/weight_labels.h"

namespace coppice::server {

class TrainerContext;
class TrainerFields;

using TrainerAnswer = Result<nlohmann::ordered_json>;
using TrainerHandler = TrainerAnswer (*)(TrainerContext&, const TrainerFields&);
// `key`: whose generations it ends alone; null: those of all keys.
using AbortHandler = TrainerAnswer (*)(const ActiveCalls&, const TrainerFields&, const std::string* key);

// Thread-safe.
class TrainerContext {
 public:
  struct Parts {
    Engine* engine = nullptr;            // these three outlive the context
    const ActiveCalls* calls = nullptr;  // generations that can be ended
    WeightLabels* labels = nullptr;
    ServerFacts facts;
    TrainerControl::Options control;
    std::function<bool(const std::string& key)> steers;                      // whether an API key ends generations of others
    std::function<void(const std::shared_ptr<Call>&, HttpResponse)> answer;  // any thread
  };
  explicit TrainerContext(Parts parts);

  Engine& engine() const { return *parts_.engine; }
  TrainerControl& control() { return control_; }
  const ServerFacts& facts() const { return parts_.facts; }
  WeightLabels& labels() const { return *parts_.labels; }
  TrainerFacts trainer_facts() const;
  void Respond(const std::shared_ptr<Call>& call, HttpResponse response) const { parts_.answer(call, std::move(response)); }

  // Routes, which the context outlives: a handler runs on the calling thread, or on the control's, after what was posted there.
  Route Now(std::string_view method, std::string_view path, TrainerHandler handler);
  Route InTurn(std::string_view method, std::string_view path, TrainerHandler handler);
  // One that every key may use, since it reaches no further than the key does.
  Route Abort(std::string_view path, AbortHandler handler);

 private:
  void Run(const std::shared_ptr<Call>& call, const std::function<TrainerAnswer()>& handler) const;

  const Parts parts_;
  TrainerControl control_;  // last: its thread uses the others
};

}  // namespace coppice::server
