#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "openai/answer_size.h"
#include "server/errors.h"

namespace coppice::server {

Access::Access(AccessOptions options, int32_t max_context)
    : options_(std::move(options)),
      max_context_(max_context),
      token_limits_(options_.token_limit,
                    options_.keys ? options_.keys->TokenLimitsOr(options_.token_limit) : std::map<std::string, TokenLimit>()) {}

Status Access::Complete(const std::string& key, Request* request) const {
  if (request->priority > options_.max_priority) {
    return InvalidArgument(fmt::format("priority is {}, expected at most {}; --max-priority of the server allows more",
                                       request->priority, options_.max_priority));
  }
  request->share_of = key;
  request->cache_tenant =
      TenantFrom(key, request->cache_tenant.begin,
                 request->cache_salt.empty() ? std::nullopt : std::optional<int32_t>(request->cache_private_begin));
  double& timeout = request->timeout_seconds;
  if (options_.request_timeout > 0) timeout = timeout == 0 ? options_.request_timeout : std::min(timeout, options_.request_timeout);
  return OkStatus();
}

CacheTenant Access::TenantOf(const std::string& key, const openai::NamedPrefix& prefix) const {
  if (prefix.is_public) return {};
  return TenantFrom(key, 0, prefix.cache_salt.empty() ? std::nullopt : std::optional<int32_t>(prefix.cache_private_begin));
}

// A salt is its key's own also where keys share: two of them may have the same word for two users.
CacheTenant Access::TenantFrom(const std::string& key, int32_t begin, std::optional<int32_t> private_begin) const {
  if (!options_.share_between_keys) return {.name = key, .begin = begin};
  return private_begin ? CacheTenant{.name = key, .begin = *private_begin} : CacheTenant();
}

RequestCost Access::BoundCost(const std::string& key, std::span<openai::OpenAiRequest> prompts) const {
  int64_t prompt_tokens = 0, samples = 0;
  for (const openai::OpenAiRequest& prompt : prompts) {
    const auto own = static_cast<int64_t>(prompt.request.prompt_ids.size());
    prompt_tokens += own + RepeatedTokens(prompt, own);
    samples += std::max(1, prompt.request.n);  // the engine refuses others
  }
  const int64_t most = token_limits_.MostOfRequest(key);
  int64_t tokens = prompt_tokens;
  for (openai::OpenAiRequest& prompt : prompts) {
    Request& request = prompt.request;
    if (most > 0 && !prompt.max_tokens)
      request.max_tokens = static_cast<int32_t>(std::clamp<int64_t>((most - prompt_tokens) / samples, 1, request.max_tokens));
    const int64_t room = max_context_ - static_cast<int64_t>(request.prompt_ids.size());
    tokens += std::max<int64_t>(0, std::min<int64_t>(request.max_tokens, room)) * std::max(1, request.n);
  }
  return {.tokens = tokens, .samples = samples};
}

// ------------------------------------------------------------------------------------------------------------------ admission

std::optional<HttpResponse> Access::Admit(const std::string& key, const RequestCost& cost) {
  if (const Status allowed = CheckTokens(key, cost.tokens); !allowed.ok()) return ErrorResponse(allowed);
  if (std::optional<HttpResponse> refused = Enter(key, cost.samples)) return refused;
  const TokenLimits::Taken taken = token_limits_.Take(key, cost.tokens);
  if (taken.ok) return std::nullopt;
  LeaveActive(key, cost.samples);
  return ErrorResponse(429,
                       fmt::format("this request may use {} tokens, and of the {} a minute that this API key may use "
                                   "(tokens_per_minute) {} are left; send it again in {} s",
                                   cost.tokens, token_limits_.Of(key).per_minute, taken.left, taken.wait_seconds),
                       {}, taken.wait_seconds);
}

void Access::Leave(const std::string& key, const RequestCost& cost, int64_t used_tokens) {
  token_limits_.GiveBack(key, cost.tokens - used_tokens);
  LeaveActive(key, cost.samples);
}

openai::BatchAdmission Access::AdmitOfBatch(const std::string& key, openai::OpenAiRequest* request) {
  const double timeout = request->request.timeout_seconds;  // the server's limit is for clients who wait
  if (Status allowed = Complete(key, &request->request); !allowed.ok()) return {.status = std::move(allowed), .param = "priority"};
  request->request.timeout_seconds = timeout;
  const int64_t tokens = BoundCost(key, std::span(request, 1)).tokens;
  if (Status allowed = CheckTokens(key, tokens); !allowed.ok()) return {.status = std::move(allowed), .param = "max_tokens"};
  const TokenLimits::Taken taken = token_limits_.Take(key, tokens, /*reserve=*/token_limits_.Of(key).per_minute / 2);
  if (taken.ok) return {.taken_tokens = tokens};
  return {.wait = std::chrono::seconds(taken.wait_seconds)};
}

std::optional<HttpResponse> Access::Enter(const std::string& key, int64_t samples) {
  const int64_t most = options_.max_active_per_key;
  if (most > 0 && samples > most) {
    return ErrorResponse(
        InvalidArgument(fmt::format("the request asks for {} samples (n, of each prompt; or continuations), and the "
                                    "server takes {} of an API key at the same moment; ask for fewer",
                                    samples, most)));
  }
  const std::lock_guard lock(mutex_);
  Active& active = active_by_key_[key];
  if (most > 0 && active.samples + samples > most) {
    return ErrorResponse(429,
                         fmt::format("{} samples of requests with this API key are not answered yet, and the server takes {} of "
                                     "one; send this request again later",
                                     active.samples, most));
  }
  ++active.requests;
  active.samples += samples;
  ++active_;
  return std::nullopt;
}

void Access::LeaveActive(const std::string& key, int64_t samples) {
  const std::lock_guard lock(mutex_);
  --active_;
  const auto found = active_by_key_.find(key);
  found->second.samples -= samples;
  if (--found->second.requests == 0) active_by_key_.erase(found);
}

int64_t Access::ActiveOf(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = active_by_key_.find(key);
  return found == active_by_key_.end() ? 0 : found->second.requests;
}

Status Access::CheckTokens(const std::string& key, int64_t tokens) const {
  const int64_t most = token_limits_.MostOfRequest(key);
  if (most == 0 || tokens <= most) return OkStatus();
  const TokenLimit& limit = token_limits_.Of(key);
  const bool by_request = limit.per_request > 0 && tokens > limit.per_request;
  return InvalidArgument(
      fmt::format("the prompt and the output that is asked for have {} tokens, and this API key may use {} in a {} "
                  "(tokens_per_{}); shorten the prompt, or ask for less output",
                  tokens, by_request ? limit.per_request : limit.per_minute, by_request ? "request" : "minute",
                  by_request ? "request" : "minute"));
}

}  // namespace coppice::server
