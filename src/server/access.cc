#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "openai/answer_size.h"
#include "server/errors.h"

namespace coppice::server {

// Usage of the keys at the moment, by their names. Thread-safe.
struct UsageOfKeys {
  explicit UsageOfKeys(const AccessOptions& options)
      : tokens(options.token_limit,
               options.keys ? options.keys->TokenLimitsOr(options.token_limit) : std::map<std::string, TokenLimit>()) {}

  struct Active {
    int64_t requests = 0, samples = 0;
  };

  TokenLimits tokens;
  std::atomic<int64_t> active{0};
  std::mutex mutex;
  std::map<std::string, Active> active_by_key;  // keys without any are not in it
};

Access::Access(AccessOptions options, int32_t max_context)
    : options_(std::move(options)), max_context_(max_context), usage_(std::make_shared<UsageOfKeys>(options_)) {}

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
    samples += std::max(1, prompt.request.num_sequences());  // the engine refuses others
  }
  const int64_t most = usage_->tokens.MostOfRequest(key);
  int64_t tokens = prompt_tokens;
  for (openai::OpenAiRequest& prompt : prompts) {
    Request& request = prompt.request;
    if (most > 0 && !prompt.max_tokens)
      request.max_tokens = static_cast<int32_t>(std::clamp<int64_t>((most - prompt_tokens) / samples, 1, request.max_tokens));
    const int64_t room = max_context_ - static_cast<int64_t>(request.prompt_ids.size());
    tokens += std::max<int64_t>(0, std::min<int64_t>(request.max_tokens, room)) * std::max(1, request.num_sequences());
  }
  return {.tokens = tokens, .samples = samples};
}

// ------------------------------------------------------------------------------------------------------------------ admission

std::optional<HttpResponse> Access::Admit(const std::string& key, const RequestCost& cost, std::shared_ptr<Admission>* admission) {
  if (const Status allowed = CheckTokens(key, cost.tokens); !allowed.ok()) return ErrorResponse(allowed);
  auto admitted = std::make_shared<Admission>(usage_, key);  // first, so that what is counted has its end
  if (std::optional<HttpResponse> refused = Enter(key, cost.samples)) return refused;
  admitted->active_ = true;
  admitted->cost_.samples = cost.samples;
  const TokenLimits::Taken taken = usage_->tokens.Take(key, cost.tokens);
  if (taken.ok) {
    admitted->cost_.tokens = cost.tokens;
    *admission = std::move(admitted);
    return std::nullopt;
  }
  return ErrorResponse(429,
                       fmt::format("this request may use {} tokens, and of the {} a minute that this API key may use "
                                   "(tokens_per_minute) {} are left; send it again in {} s",
                                   cost.tokens, usage_->tokens.Of(key).per_minute, taken.left, taken.wait_seconds),
                       {}, taken.wait_seconds);
}

void Admission::End(int64_t used_tokens) {
  if (!std::exchange(active_, false)) return;
  usage_->tokens.GiveBack(key_, cost_.tokens - used_tokens);
  const std::lock_guard lock(usage_->mutex);
  --usage_->active;
  const auto found = usage_->active_by_key.find(key_);
  found->second.samples -= cost_.samples;
  if (--found->second.requests == 0) usage_->active_by_key.erase(found);
}

void Access::LeaveOfBatch(const std::string& key, int64_t taken_tokens, int64_t used_tokens) {
  usage_->tokens.GiveBack(key, taken_tokens - used_tokens);
}

openai::BatchAdmission Access::AdmitOfBatch(const std::string& key, openai::OpenAiRequest* request) {
  const double timeout = request->request.timeout_seconds;  // the server's limit is for clients that wait
  if (Status allowed = Complete(key, &request->request); !allowed.ok()) return {.status = std::move(allowed), .param = "priority"};
  request->request.timeout_seconds = timeout;
  const int64_t tokens = BoundCost(key, std::span(request, 1)).tokens;
  if (Status allowed = CheckTokens(key, tokens); !allowed.ok()) return {.status = std::move(allowed), .param = "max_tokens"};
  const TokenLimits::Taken taken = usage_->tokens.Take(key, tokens, /*reserve=*/usage_->tokens.Of(key).per_minute / 2);
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
  const std::lock_guard lock(usage_->mutex);
  UsageOfKeys::Active& active = usage_->active_by_key[key];
  if (most > 0 && active.samples + samples > most) {
    return ErrorResponse(429,
                         fmt::format("{} samples of requests with this API key are not answered yet, and the server takes {} of "
                                     "one; send this request again later",
                                     active.samples, most));
  }
  ++active.requests;
  active.samples += samples;
  ++usage_->active;
  return std::nullopt;
}

int64_t Access::active() const { return usage_->active; }

int64_t Access::ActiveOf(const std::string& key) const {
  const std::lock_guard lock(usage_->mutex);
  const auto found = usage_->active_by_key.find(key);
  return found == usage_->active_by_key.end() ? 0 : found->second.requests;
}

Status Access::CheckTokens(const std::string& key, int64_t tokens) const {
  const int64_t most = usage_->tokens.MostOfRequest(key);
  if (most == 0 || tokens <= most) return OkStatus();
  const TokenLimit& limit = usage_->tokens.Of(key);
  const bool by_request = limit.per_request > 0 && tokens > limit.per_request;
  return InvalidArgument(
      fmt::format("the prompt and the output that is asked for have {} tokens, and this API key may use {} in a {} "
                  "(tokens_per_{}); shorten the prompt, or ask for less output",
                  tokens, by_request ? limit.per_request : limit.per_minute, by_request ? "request" : "minute",
                  by_request ? "request" : "minute"));
}

}  // namespace coppice::server
