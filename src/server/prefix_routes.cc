#include "server/prefix_routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/json.h"
#include "core/quoted.h"
#include "server/errors.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

ordered_json ToJson(const PrefixStore::Info& info) {
  return {{"object", "prefix"},
          {"name", info.name},
          {"made_of", info.prefix->chat() ? "messages" : "prompt"},
          {"num_tokens", info.prefix->token_ids.size()},
          {"private", !info.prefix->cache_salt.empty()},
          {"public", info.prefix->is_public},
          {"created", info.created},
          {"expires", info.expires ? ordered_json(*info.expires) : ordered_json()},
          {"saved", info.saved}};
}

}  // namespace

std::vector<Route> PrefixRoutes::Routes() {
  constexpr std::string_view kPath = "/v1/prefixes/{name}";
  return {{"GET", "/v1/prefixes", HandledBy(this, &PrefixRoutes::List)},
          {"GET", kPath, HandledBy(this, &PrefixRoutes::Get)},
          {"PUT", kPath, HandledBy(this, &PrefixRoutes::Put), BodyKind::kJson},
          {"DELETE", kPath, HandledBy(this, &PrefixRoutes::Delete)}};
}

void PrefixRoutes::Put(const std::shared_ptr<Call>& call) {
  if (context_.RefuseWhenDraining(call)) return;
  const std::string& name = call->variable;
  if (const Status named = openai::CheckPrefixName(name); !named.ok()) return context_.Answer(call, ErrorResponse(named, "name"));
  const std::optional<JsonBody> body = context_.TakeBody(call, openai::Endpoint::kChatCompletions);
  if (!body) return;
  openai::BodyError error;
  std::optional<openai::NamedPrefix> prefix = openai::ParseNamedPrefix(*body->json, &error, body->ordered.tools_or_null());
  if (!prefix) return context_.Answer(call, error);
  if (prefix->is_public && !context_.access().IsAdmin(call->key)) {
    return context_.Answer(
        call, ErrorResponse(403, "public is true, which takes an API key of role admin (role=admin in the key file)", "public"));
  }
  if (const Status allowed = prefixes_.CheckTtl(*prefix); !allowed.ok())
    return context_.Answer(call, ErrorResponse(allowed, "ttl_seconds"));
  std::optional<std::vector<int32_t>> ids = context_.parser().EncodePrefix(*prefix, &error);
  if (!ids) return context_.Answer(call, error);
  prefix->token_ids = *std::move(ids);
  if (!context_.Admit(call, {.tokens = std::ssize(prefix->token_ids)})) return;
  prefixes_.Put(call->key, name, *std::move(prefix),
                [this, call, admission = call->admission](const PrefixStore::Outcome& outcome) {
                  const Result<PrefixStore::Info>& made = outcome.made;
                  const int64_t tokens = admission->cost().tokens;
                  admission->End(outcome.begun ? tokens : 0);
                  if (made.ok()) {
                    call->usage = {.prompt = tokens, .cached = outcome.cached};
                    context_.metrics().CountTokens(call->key, call->usage.prompt, outcome.cached, 0);
                    context_.Answer(call, {.body = DumpJson(ToJson(*made))});
                  } else {
                    context_.Answer(call, KeptErrorResponse(made.status()));
                  }
                });
}

void PrefixRoutes::Get(const std::shared_ptr<Call>& call) {
  const std::string& name = call->variable;
  const std::optional<PrefixStore::Info> found = prefixes_.Get(call->key, name);
  if (!found) return context_.Answer(call, ErrorResponse(404, fmt::format("there is no prefix {}", Quoted(name))));
  context_.Answer(call, {.body = DumpJson(ToJson(*found))});
}

void PrefixRoutes::Delete(const std::shared_ptr<Call>& call) {
  const std::string& name = call->variable;
  if (!prefixes_.Delete(call->key, name))
    return context_.Answer(call, ErrorResponse(404, fmt::format("there is no prefix {}", Quoted(name))));
  context_.Answer(call, {.body = DumpJson({{"object", "prefix.deleted"}, {"name", name}, {"deleted", true}})});
}

void PrefixRoutes::List(const std::shared_ptr<Call>& call) {
  ordered_json list = ordered_json::array();
  for (const PrefixStore::Info& info : prefixes_.List(call->key)) list.push_back(ToJson(info));
  context_.Answer(call, {.body = DumpJson({{"object", "list"}, {"data", std::move(list)}})});
}

}  // namespace coppice::server
