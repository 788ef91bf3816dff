// Which clients may use the server, how much of it, and what of it they see: API keys and their roles, requests under way by key,
// tokens, priorities, times, whose cached KV is whose. Knows no routes and no engine. Layer: server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/batch_run.h"
#include "openai/request.h"
#include "server/api_keys.h"
#include "server/http.h"
#include "server/token_limits.h"

namespace coppice::server {

struct AccessOptions {
  std::optional<ApiKeys> keys;      // none: every client may ask
  bool share_between_keys = false;  // keys find each other's prompts in the cache, but for those with a salt
  int32_t max_active_per_key = 0;   // samples of one API key that are not answered yet; more get 429. 0: no limit
  TokenLimit token_limit;           // of a key that has none of its own; without keys, of all requests together
  int32_t max_priority = 0;         // higher ones are refused: they would come before all others' requests
  double request_timeout = 0;       // seconds until a generation ends with 408, whatever longer limit it asks for; 0: none
};

// The rights of a request.
struct RequestCost {
  int64_t tokens = 0;   // of prompts and output
  int64_t samples = 1;  // of all its prompts, or continuations
};

struct UsageOfKeys;

// A request's place among those of its key and the tokens that it may use, as Access::Admit gave them. Both go back at its end,
// however it ends. Thread-compatible; may outlive the Access.
class Admission {
 public:
  Admission(std::shared_ptr<UsageOfKeys> usage, std::string key) : usage_(std::move(usage)), key_(std::move(key)) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  ~Admission() { End(/*used_tokens=*/0); }

  const RequestCost& cost() const { return cost_; }
  // Tokens that the request did not use go back. Only the first call counts.
  void End(int64_t used_tokens);

 private:
  friend class Access;

  const std::shared_ptr<UsageOfKeys> usage_;
  const std::string key_;
  RequestCost cost_ = {.tokens = 0, .samples = 0};
  bool active_ = false;
};

// Thread-safe. `key` is everywhere the name of an API key, or empty where the server has none.
class Access {
 public:
  // `max_context`: tokens of prompt and output.
  Access(AccessOptions options, int32_t max_context);

  bool needs_key() const { return options_.keys.has_value(); }
  // The key in an Authorization header; null: there is none, or an unknown one. REQUIRES: needs_key().
  const ApiKey* FindKey(std::string_view authorization) const { return options_.keys->Find(authorization); }
  // Whether a key has role admin; the one user of a server without keys has.
  bool IsAdmin(const std::string& key) const { return !options_.keys || options_.keys->RoleOf(key) == Role::kAdmin; }

  bool IsTrainer(const std::string& key) const { return !options_.keys || options_.keys->RoleOf(key) == Role::kTrainer; }

  // Adds to a request of a key what the server has to say: whose its KV is, whose share of the engine it takes, how long it may
  // run. INVALID_ARGUMENT where its priority is too high. REQUIRES: OpenAiRequestParser::SetPrompt was called.
  Status Complete(const std::string& key, Request* request) const;
  // Whose the KV of a key's named prefix is.
  CacheTenant TenantOf(const std::string& key, const openai::NamedPrefix& prefix) const;
  // The most that the prompts may use together. Where they name no number of output tokens, it is lowered to the key's limit.
  RequestCost BoundCost(const std::string& key, std::span<openai::OpenAiRequest> prompts) const;

  // Counts a request as active, and takes its tokens of what its key may use, until `*admission` ends. Else why not: 400 or 429.
  std::optional<HttpResponse> Admit(const std::string& key, const RequestCost& cost, std::shared_ptr<Admission>* admission);

  // Completes a request of a batch, which is for no client that waits: it takes what leaves half of the key's bucket.
  openai::BatchAdmission AdmitOfBatch(const std::string& key, openai::OpenAiRequest* request);
  void LeaveOfBatch(const std::string& key, int64_t taken_tokens, int64_t used_tokens);

  int64_t active() const;  // requests
  int64_t ActiveOf(const std::string& key) const;

 private:
  // A key's tokens from `begin` on; with a salt, which bounds those from `private_begin` on.
  CacheTenant TenantFrom(const std::string& key, int32_t begin, std::optional<int32_t> private_begin) const;

  // Counts a request as active; why not, where its key has too many.
  std::optional<HttpResponse> Enter(const std::string& key, int64_t samples);
  // Why a request may never have so many tokens; OK: it may.
  Status CheckTokens(const std::string& key, int64_t tokens) const;

  const AccessOptions options_;
  const int32_t max_context_;
  const std::shared_ptr<UsageOfKeys> usage_;
};

}  // namespace coppice::server
