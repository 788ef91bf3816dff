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
  double& timeout = request->timeout_seconds;
  if (options_.request_timeout > 0) timeout = timeout == 0 ? options_.request_timeout : std::min(timeout, options_.request_timeout);
  return OkStatus();
}

int64_t Access::BoundTokens(const std::string& key, std::span<openai::OpenAiRequest> prompts) const {
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
  return tokens;
}

// ------------------------------------------------------------------------------------------------------------------ admission

std::optional<HttpResponse> Access::Admit(const std::string& key, int64_t tokens) {
  if (const Status allowed = CheckTokens(key, tokens); !allowed.ok()) return ErrorResponse(allowed);
  if (!Enter(key)) {
    return ErrorResponse(429,
                         fmt::format("{} requests with this API key are not answered yet, which is the most that the server takes "
                                     "of one; send this one again later",
                                     options_.max_active_per_key));
  }
  const TokenLimits::Taken taken = token_limits_.Take(key, tokens);
  if (taken.ok) return std::nullopt;
  Leave(key);
  return ErrorResponse(429,
                       fmt::format("this request may use {} tokens, and of the {} a minute that this API key may use "
                                   "(tokens_per_minute) {} are left; send it again in {} s",
                                   tokens, token_limits_.Of(key).per_minute, taken.left, taken.wait_seconds),
                       {}, taken.wait_seconds);
}

void Access::Leave(const std::string& key, int64_t taken_tokens, int64_t used_tokens) {
  token_limits_.GiveBack(key, taken_tokens - used_tokens);
  Leave(key);
}

openai::BatchAdmission Access::AdmitOfBatch(const std::string& key, openai::OpenAiRequest* request) {
  const double timeout = request->request.timeout_seconds;  // the server's limit is for clients who wait
  if (Status allowed = Complete(key, &request->request); !allowed.ok()) return {.status = std::move(allowed), .param = "priority"};
  request->request.timeout_seconds = timeout;
  const int64_t tokens = BoundTokens(key, std::span(request, 1));
  if (Status allowed = CheckTokens(key, tokens); !allowed.ok()) return {.status = std::move(allowed), .param = "max_tokens"};
  const TokenLimits::Taken taken = token_limits_.Take(key, tokens, /*reserve=*/token_limits_.Of(key).per_minute / 2);
  if (taken.ok) return {.taken_tokens = tokens};
  return {.wait = std::chrono::seconds(taken.wait_seconds)};
}

bool Access::Enter(const std::string& key) {
  const std::lock_guard lock(mutex_);
  int32_t& count = active_by_key_[key];
  if (options_.max_active_per_key > 0 && count >= options_.max_active_per_key) return false;
  ++count;
  ++active_;
  return true;
}

void Access::Leave(const std::string& key) {
  const std::lock_guard lock(mutex_);
  --active_;
  const auto found = active_by_key_.find(key);
  if (--found->second == 0) active_by_key_.erase(found);
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
