// The routes that say what the server is and does: health, metrics, the tree, the last plan, models, the page, the API's document.
// Layer: server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/call.h"
#include "server/route_context.h"
#include "server/router.h"
#include "server/server_info.h"

namespace coppice::server {

// Thread-safe.
class StatusRoutes {
 public:
  // The trainers' facts for a call; nothing: its key is none of a trainer.
  using FactsForTrainer = std::function<std::optional<TrainerFacts>(const Call&)>;
  // `context` outlives it.
  StatusRoutes(RouteContext* context, ServerFacts facts, FactsForTrainer trainer_facts);

  std::vector<Route> Routes();

 private:
  void Health(const std::shared_ptr<Call>& call);
  void Ready(const std::shared_ptr<Call>& call);
  void Version(const std::shared_ptr<Call>& call);
  void OpenApi(const std::shared_ptr<Call>& call);
  void ServerInfo(const std::shared_ptr<Call>& call);
  void ModelInfo(const std::shared_ptr<Call>& call);
  void Metrics(const std::shared_ptr<Call>& call);
  void Page(const std::shared_ptr<Call>& call);
  void Tree(const std::shared_ptr<Call>& call);
  void LastPlan(const std::shared_ptr<Call>& call);
  void Models(const std::shared_ptr<Call>& call);
  void Model(const std::shared_ptr<Call>& call);
  nlohmann::ordered_json ModelObject(const std::string& name) const;

  RouteContext& context_;
  const ServerFacts facts_;
  const FactsForTrainer trainer_facts_;
  const int64_t created_ = UnixSeconds();
};

}  // namespace coppice::server
