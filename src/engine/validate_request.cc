#include "engine/validate_request.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "core/check.h"

namespace coppice {
namespace {

template <class T>
Status Refuse(const char* field, T value, const std::string& expected) {
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) + ", expected " + expected);
}

Status CheckIds(const char* field, std::span<const int32_t> ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Refuse((field + ("[" + std::to_string(i) + "]")).c_str(), ids[i],
                    "a token id in 0.." + std::to_string(vocab_size - 1));
    }
  }
  return OkStatus();
}

}  // namespace

Status ValidateSampling(const SamplingParams& params, int32_t vocab_size) {
  // Written so that NaN is refused.
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return Refuse("temperature", params.temperature, "0 (greedy) or a positive number");
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) return Refuse("top_p", params.top_p, "a number in (0, 1]");
  if (params.top_k < 0) return Refuse("top_k", params.top_k, "0 (off) or a positive number");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return Refuse("min_p", params.min_p, "a number in [0, 1]");
  if (!std::isfinite(params.presence_penalty)) return Refuse("presence_penalty", params.presence_penalty, "a finite number");
  if (!std::isfinite(params.frequency_penalty)) return Refuse("frequency_penalty", params.frequency_penalty, "a finite number");
  if (!(params.repetition_penalty > 0 && std::isfinite(params.repetition_penalty))) {
    return Refuse("repetition_penalty", params.repetition_penalty, "a positive number");
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return Refuse("a logit_bias token", token, "a token id in 0.." + std::to_string(vocab_size - 1));
    }
    if (std::isnan(bias)) return Refuse("a logit_bias value", bias, "a number");
  }
  return OkStatus();
}

Status ValidateRequest(const Request& request, const RequestLimits& limits) {
  const int64_t prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt == 0) return InvalidArgument("the prompt is empty: give at least one token");
  if (prompt >= limits.max_context) {
    return InvalidArgument("the prompt has " + std::to_string(prompt) + " tokens, the context length is " +
                           std::to_string(limits.max_context) + " and must hold at least one more: shorten the prompt");
  }
  if (request.n < 1) return Refuse("n", request.n, "at least 1");
  if (request.max_tokens < 1) return Refuse("max_tokens", request.max_tokens, "at least 1");
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return Refuse("min_tokens", request.min_tokens, "a number in 0.." + std::to_string(request.max_tokens) + " (max_tokens)");
  }
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs) {
    return Refuse("top_logprobs", request.top_logprobs, "a number in 0.." + std::to_string(kMaxTopLogprobs));
  }
  if (!(request.timeout_seconds >= 0)) return Refuse("timeout_seconds", request.timeout_seconds, "0 (none) or a positive number");
  if (request.cache_private_begin < 0) return Refuse("cache_private_begin", request.cache_private_begin, "a prompt index");
  COPPICE_RETURN_IF_ERROR(CheckIds("prompt_ids", request.prompt_ids, limits.vocab_size));
  COPPICE_RETURN_IF_ERROR(CheckIds("stop_token_ids", request.stop_token_ids, limits.vocab_size));
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return InvalidArgument("a stop string is empty: leave it out or give at least one character");
  }
  if (!request.stop.empty() && !limits.has_tokenizer) {
    return InvalidArgument("stop strings need a tokenizer and the model has none: use stop_token_ids");
  }
  if (!request.pin_prompt_as.empty() && !limits.can_pin) {
    return InvalidArgument("pin_prompt_as is \"" + request.pin_prompt_as +
                           "\", but sharing mode none keeps nothing: use another mode");
  }
  // The longest sample alone must fit: its pages, and one more for the copy of a shared last page.
  const int64_t longest = std::min<int64_t>(prompt + request.max_tokens, limits.max_context);
  const int64_t pages = (longest + limits.page_size - 1) / limits.page_size + 1;
  if (pages > limits.num_pages) {
    return InvalidArgument("one sample of this request needs " + std::to_string(pages) + " pages of KV, the cache has " +
                           std::to_string(limits.num_pages) + ": raise kv_cache_bytes or lower max_tokens");
  }
  return ValidateSampling(request.sampling, limits.vocab_size);
}

}  // namespace coppice
