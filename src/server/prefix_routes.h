// The routes of named prefixes: /v1/prefixes. Layer: server.
#pragma once

#include <memory>
#include <vector>

#include "server/call.h"
#include "server/prefix_store.h"
#include "server/route_context.h"
#include "server/router.h"

namespace coppice::server {

// Thread-safe.
class PrefixRoutes {
 public:
  // Both outlive it.
  PrefixRoutes(RouteContext* context, PrefixStore* prefixes) : context_(*context), prefixes_(*prefixes) {}

  std::vector<Route> Routes();

 private:
  void List(const std::shared_ptr<Call>& call);
  void Get(const std::shared_ptr<Call>& call);
  void Put(const std::shared_ptr<Call>& call);
  void Delete(const std::shared_ptr<Call>& call);

  RouteContext& context_;
  PrefixStore& prefixes_;
};

}  // namespace coppice::server
