// Who may use the server, and how much of it: API keys, requests under way by key, tokens, priorities, times. Knows no routes and
// no engine. Layer: server.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/batch_run.h"
#include "openai/request.h"
#include "server/api_keys.h"
#include "server/http.h"
#include "server/token_limits.h"

namespace coppice::server {

struct AccessOptions {
  std::optional<ApiKeys> keys;     // none: everybody may ask
  int32_t max_active_per_key = 0;  // requests of one API key that are not answered yet; more get 429. 0: no limit
  TokenLimit token_limit;          // of a key that has none of its own; without keys, of all requests together
  int32_t max_priority = 0;        // higher ones are refused: they would come before all others' requests
  double request_timeout = 0;      // seconds until a generation ends with 408, whatever longer limit it asks for; 0: none
};

// Thread-safe. `key` is everywhere the name of an API key, or empty where the server has none.
class Access {
 public:
  // `max_context`: tokens of prompt and output.
  Access(AccessOptions options, int32_t max_context);

  bool needs_key() const { return options_.keys.has_value(); }
  // The name of the key in an Authorization header; null: there is none, or an unknown one. REQUIRES: needs_key().
  const std::string* FindKey(std::string_view authorization) const { return options_.keys->Find(authorization); }

  // Adds to a request of a key what the server has to say. INVALID_ARGUMENT where its priority is too high.
  Status Complete(const std::string& key, Request* request) const;
  // Tokens that the prompts may use together. Where they name no number of output tokens, it is lowered to what the key may have.
  int64_t BoundTokens(const std::string& key, std::span<openai::OpenAiRequest> prompts) const;

  // Counts a generation as active, and takes `tokens` of what its key may use: nothing, and Leave must follow. Else why not: 400
  // or 429.
  std::optional<HttpResponse> Admit(const std::string& key, int64_t tokens);
  // The end of what was admitted; what it did not use of its tokens goes back.
  void Leave(const std::string& key, int64_t taken_tokens, int64_t used_tokens);

  // Completes a request of a batch, which is for no client that waits: it takes what leaves half of the key's bucket.
  openai::BatchAdmission AdmitOfBatch(const std::string& key, openai::OpenAiRequest* request);
  void LeaveOfBatch(const std::string& key, int64_t taken_tokens, int64_t used_tokens) {
    token_limits_.GiveBack(key, taken_tokens - used_tokens);
  }

  int64_t active() const { return active_; }  // generations

 private:
  // Counts a generation as active; false where its key has too many.
  bool Enter(const std::string& key);
  void Leave(const std::string& key);
  // Why a request may never have so many tokens; OK: it may.
  Status CheckTokens(const std::string& key, int64_t tokens) const;

  const AccessOptions options_;
  const int32_t max_context_;
  TokenLimits token_limits_;
  std::atomic<int64_t> active_{0};
  std::mutex mutex_;
  std::map<std::string, int32_t> active_by_key_;  // keys without any are not in it
};

}  // namespace coppice::server
