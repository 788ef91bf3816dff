// The routes of the tokenizer: text to tokens and back, and what it is. Layer: server.
#pragma once

#include <memory>
#include <vector>

#include "server/call.h"
#include "server/prefix_store.h"
#include "server/route_context.h"
#include "server/router.h"

namespace coppice::server {

// Thread-safe.
class TokenRoutes {
 public:
  // Both outlive it.
  TokenRoutes(RouteContext* context, PrefixStore* prefixes) : context_(*context), prefixes_(*prefixes) {}

  std::vector<Route> Routes();

 private:
  void Tokenize(const std::shared_ptr<Call>& call);
  void TokenizerInfo(const std::shared_ptr<Call>& call);
  void Detokenize(const std::shared_ptr<Call>& call);

  RouteContext& context_;
  PrefixStore& prefixes_;
};

}  // namespace coppice::server
