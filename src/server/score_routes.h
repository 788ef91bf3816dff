// The route /v1/score: likelihoods of continuations. Layer: server.
#pragma once

#include <memory>
#include <vector>

#include "openai/score.h"
#include "server/active_calls.h"
#include "server/call.h"
#include "server/prefix_store.h"
#include "server/route_context.h"
#include "server/router.h"

namespace coppice::server {

// Thread-safe.
class ScoreRoutes {
 public:
  // All outlive it.
  ScoreRoutes(RouteContext* context, PrefixStore* prefixes, ActiveCalls* calls)
      : context_(*context), prefixes_(*prefixes), calls_(*calls) {}

  std::vector<Route> Routes();

 private:
  void Score(const std::shared_ptr<Call>& call);
  void AnswerScore(const std::shared_ptr<Call>& call, std::shared_ptr<const openai::ScoreRequest> request,
                   openai::ScoreCall::Outcome outcome);

  RouteContext& context_;
  PrefixStore& prefixes_;
  ActiveCalls& calls_;
};

}  // namespace coppice::server
