// The routes of the server over one engine: OpenAI's completions, chats and models, tokens, health and metrics. Knows no sockets.
// Layer: server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coppice/engine/engine.h"
#include "server/active_calls.h"
#include "server/batch_routes.h"
#include "server/batch_store.h"
#include "server/call.h"
#include "server/file_store.h"
#include "server/generation_routes.h"
#include "server/http.h"
#include "server/prefix_routes.h"
#include "server/prefix_store.h"
#include "server/route_context.h"
#include "server/router.h"
#include "server/sample_routes.h"
#include "server/sample_store.h"
#include "server/score_routes.h"
#include "server/server_info.h"
#include "server/service_options.h"
#include "server/status_routes.h"
#include "server/token_routes.h"
#include "server/trainer/trainer_context.h"
#include "server/weight_labels.h"

namespace coppice::server {

// Thread-safe. `engine` outlives it; another thread steps it.
class Service {
 public:
  Service(Engine* engine, ServiceOptions options);
  ~Service() { StopTrainer(); }

  // Prefixes that an earlier server kept. Before the engine is stepped.
  Status RestorePrefixes() { return prefixes_.Restore(); }
  // After the prefixes, which unfinished batches may name.
  Status RestoreBatches() { return batches_.Restore(); }
  // The plan of a request with this head (HttpServer::Planner): all that can be refused is refused before its body is read. The
  // plan's `handle` parses and tokenises on the calling thread.
  RequestPlan Plan(HttpRequest head);
  // Answers a request that is there whole into `responder`, now or later.
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder);
  // From now on generations are refused with 503 and /ready says so, with `why`, which lives as long as the program; those under
  // way go on, batches with the next start. A generation is under way when the form of its output is compiled.
  void Drain(const char* why = "the server is shutting down");
  // Ends what trainers have asked for and has not begun, and waits for what has. Called before the engine is stepped no more.
  void StopTrainer() {
    if (trainer_) trainer_->control().Join();
  }
  int64_t active() { return context_.access().active(); }

 private:
  std::unique_ptr<TrainerContext> MakeTrainer();
  std::vector<Route> Routes();
  // Nothing: the call's key is none of a trainer.
  std::optional<TrainerFacts> FactsForTrainer(const Call& call);
  void FilesAndBatches(const std::shared_ptr<Call>& call);
  BatchContext ContextOfBatches();
  // Finds the route, and `call->key`, by the head alone; else answers 401, 403, 404, 405 or 415.
  const Route* FindRoute(const std::shared_ptr<Call>& call);
  RequestPlan PlanOf(const Route& route, const std::shared_ptr<Call>& call);

  const ServiceOptions options_;
  RouteContext context_;
  ActiveCalls active_calls_;
  WeightLabels weight_labels_;
  const std::unique_ptr<TrainerContext> trainer_;  // null: off
  PrefixStore prefixes_;
  const std::shared_ptr<SampleStore> samples_;
  GenerationRoutes generation_routes_;
  FileStore files_;
  BatchStore batches_;  // after all that its threads use
  BatchRoutes batch_routes_;
  StatusRoutes status_routes_;
  PrefixRoutes prefix_routes_;
  ScoreRoutes score_routes_;
  TokenRoutes token_routes_;
  SampleRoutes sample_routes_;
  const Router router_;  // last: it names the routes
};

}  // namespace coppice::server
