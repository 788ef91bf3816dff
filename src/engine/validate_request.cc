#include "engine/validate_request.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/math.h"

namespace coppice {
namespace {

// Numbers of this size, counted 2^31 times and divided by kSmallestTemperature, are still finite as float.
constexpr float kLargestNumber = 1e9f;
// Every token of every sample is searched for each of them.
constexpr size_t kMostStops = 256, kLongestStopBytes = 1024;
constexpr size_t kLongestNameBytes = 4096;  // salts and names of pins
constexpr size_t kLongestGroupBytes = 256;  // thousands are remembered
constexpr double kLongestSeconds = 1e9;     // 31 years; the clock counts nanoseconds in 63 bits

Status RefuseField(const std::string& field, double value, const std::string& expected) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", value);  // integers of 32 bits whole, small numbers not as 0
  return InvalidArgument(field + " is " + text + ", expected " + expected);
}

Status RefuseSize(const std::string& field, size_t size, const char* unit, size_t most) {
  return InvalidArgument(field + " has " + std::to_string(size) + " " + unit + ", expected at most " + std::to_string(most));
}

// Written so that NaN is refused.
bool IsModerate(float value) { return std::abs(value) <= kLargestNumber; }

Status CheckIds(const char* field, std::span<const int32_t> ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size)
      return RefuseField(field + ("[" + std::to_string(i) + "]"), ids[i], "a token id in 0.." + std::to_string(vocab_size - 1));
  }
  return OkStatus();
}

// A list of distinct token ids is not longer than the vocabulary.
Status CheckIdList(const char* field, std::span<const int32_t> ids, int32_t vocab_size) {
  if (ids.size() > static_cast<size_t>(vocab_size))
    return RefuseSize(field, ids.size(), "entries", static_cast<size_t>(vocab_size));
  return CheckIds(field, ids, vocab_size);
}

Status CheckLogitBias(std::span<const std::pair<int32_t, float>> biases, int32_t vocab_size) {
  if (biases.size() > static_cast<size_t>(vocab_size))
    return RefuseSize("logit_bias", biases.size(), "entries", static_cast<size_t>(vocab_size));
  for (const auto& [token, bias] : biases) {
    if (token < 0 || token >= vocab_size)
      return RefuseField("logit_bias of a token that", token, "a token id in 0.." + std::to_string(vocab_size - 1));
    if (!IsModerate(bias) && bias != -std::numeric_limits<float>::infinity())
      return RefuseField("logit_bias of token " + std::to_string(token), bias, "a number in -1e9..1e9");
  }
  return OkStatus();
}

Status CheckSampling(const SamplingParams& params) {
  if (!(params.temperature >= 0 && std::isfinite(params.temperature)))
    return RefuseField("temperature", params.temperature, "0 (greedy) or a positive number");
  if (!(params.top_p > 0 && params.top_p <= 1)) return RefuseField("top_p", params.top_p, "a number above 0 and at most 1");
  if (params.top_k < 0) return RefuseField("top_k", params.top_k, "0 (all tokens) or a positive number");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return RefuseField("min_p", params.min_p, "a number from 0 to 1");
  if (!IsModerate(params.presence_penalty))
    return RefuseField("presence_penalty", params.presence_penalty, "a number in -1e9..1e9");
  if (!IsModerate(params.frequency_penalty))
    return RefuseField("frequency_penalty", params.frequency_penalty, "a number in -1e9..1e9");
  if (!(params.repetition_penalty >= 1 / kLargestNumber && IsModerate(params.repetition_penalty)))
    return RefuseField("repetition_penalty", params.repetition_penalty, "a positive number in 1e-9..1e9");
  return OkStatus();
}

Status CheckTexts(const Request& request) {
  if (request.stop.size() > kMostStops) return RefuseSize("stop", request.stop.size(), "strings", kMostStops);
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return InvalidArgument("stop has an empty string, expected text that ends a sample");
    if (stop.size() > kLongestStopBytes) return RefuseSize("stop", stop.size(), "bytes in a string", kLongestStopBytes);
  }
  if (request.cache_salt.size() > kLongestNameBytes)
    return RefuseSize("cache_salt", request.cache_salt.size(), "bytes", kLongestNameBytes);
  if (request.group.name.size() > kLongestGroupBytes)
    return RefuseSize("group_id", request.group.name.size(), "bytes", kLongestGroupBytes);
  if (request.share_of.size() > kLongestNameBytes)
    return RefuseSize("share_of", request.share_of.size(), "bytes", kLongestNameBytes);
  if (request.pin_prompt_as.size() > kLongestNameBytes)
    return RefuseSize("pin_prompt_as", request.pin_prompt_as.size(), "bytes", kLongestNameBytes);
  return OkStatus();
}

Status CheckScores(const Request& request, int32_t vocab_size) {
  const int32_t length = static_cast<int32_t>(request.prompt_ids.size());
  int32_t before = 0;
  for (size_t i = 0; i < request.prompt_scores.size(); ++i) {
    const auto& [position, token] = request.prompt_scores[i];
    const std::string place = "prompt_scores[" + std::to_string(i) + "]";
    if (position < before || position >= length) {
      return RefuseField(
          place + ".position", position,
          "a prompt index in " + std::to_string(before) + ".." + std::to_string(length - 1) + ", not below that before");
    }
    if (token < 0 || token >= vocab_size)
      return RefuseField(place + ".token", token, "a token id in 0.." + std::to_string(vocab_size - 1));
    before = position;
  }
  if (!request.prompt_scores.empty() && request.prompt_logprobs)
    return InvalidArgument("prompt_scores are given beside prompt_logprobs: ask for one of the two");
  return OkStatus();
}

// The longest sample alone must fit: its pages, and one more for the copy of a shared last page.
Status CheckPages(int64_t longest, const RequestLimits& limits) {
  const int64_t pages = CeilDiv(std::min<int64_t>(longest, limits.max_context), limits.page_size) + 1;
  if (pages <= limits.num_pages) return OkStatus();
  return InvalidArgument("one sample of this request needs " + std::to_string(pages) + " pages of KV, the cache has " +
                         std::to_string(limits.num_pages) + ": raise kv_cache_bytes (--kv-cache) or lower max_tokens");
}

// Token ids that may end an output of a beam search: for each beam a step selects so many more continuations.
constexpr int32_t kMostEnds = 256, kMostSelected = 2048;

Status CheckBeams(const Request& request) {
  const BeamOptions& beams = request.beams;
  if (beams.width < 0 || beams.width > BeamOptions::kMaxWidth)
    return RefuseField("beam_width", beams.width, "a number in 0.." + std::to_string(BeamOptions::kMaxWidth));
  if (beams.width == 0) return OkStatus();
  if (request.n > beams.width) return RefuseField("n", request.n, "at most beam_width, which is " + std::to_string(beams.width));
  if (!IsModerate(beams.length_penalty)) return RefuseField("length_penalty", beams.length_penalty, "a number in -1e9..1e9");
  const SamplingParams& sampling = request.sampling;
  const auto refuse = [](const char* what, const char* instead) {
    return InvalidArgument(std::string(what) + " is given beside beam search (beam_width), which does not support it: " + instead);
  };
  if (sampling.presence_penalty != 0) return refuse("presence_penalty", "leave it out");
  if (sampling.frequency_penalty != 0) return refuse("frequency_penalty", "leave it out");
  if (sampling.repetition_penalty != 1) return refuse("repetition_penalty", "leave it out");
  if (!sampling.logit_bias.empty()) return refuse("logit_bias", "leave it out");
  if (request.constraint != nullptr) return refuse("a constraint of the output", "leave it out");
  if (!request.stop.empty()) return refuse("stop", "end outputs by stop_token_ids");
  if (request.top_logprobs > 0) return refuse("top_logprobs", "ask for the log-probabilities of chosen tokens alone");
  if (request.ranks) return refuse("ranks", "leave it out");
  if (request.keep) return refuse("keep", "leave it out");
  if (!beams.stochastic) return OkStatus();
  if (sampling.temperature < kSmallestTemperature)
    return RefuseField("temperature", sampling.temperature, "a positive number for stochastic beams, which are drawn");
  if (beams.length_penalty != 1 || beams.early_stopping != EarlyStopping::kFalse)
    return InvalidArgument("length_penalty and early_stopping do not go with stochastic beams, which are a sample: leave them out");
  return OkStatus();
}

Status CheckBeamEnds(const Request& request, const RequestLimits& limits) {
  if (request.beams.width == 0) return OkStatus();
  const int64_t ends = std::ssize(request.stop_token_ids) + (request.ignore_eos ? 0 : limits.num_eos);
  if (ends <= kMostEnds && (1 + ends) * request.beams.width <= kMostSelected) return OkStatus();
  return InvalidArgument("stop_token_ids and the model's end tokens are " + std::to_string(ends) + ", expected at most " +
                         std::to_string(std::min(kMostEnds, kMostSelected / request.beams.width - 1)) + " with beam_width " +
                         std::to_string(request.beams.width));
}

// The samples take turns, but each has its place in the engine, and at the end of a step in the answer, at the same time.
Status CheckSamples(const char* field, int32_t n, const RequestLimits& limits) {
  const int32_t most = std::max(limits.num_pages, limits.max_running);
  if (n <= most) return OkStatus();
  return RefuseField(field, n,
                     "at most " + std::to_string(most) +
                         ", the pages of the KV cache: a sample needs one of its own to run; ask for " +
                         "fewer, or raise kv_cache_bytes (--kv-cache)");
}

}  // namespace

Status ValidateTenant(const CacheTenant& tenant) {
  if (tenant.name.size() > kLongestNameBytes)
    return RefuseSize("cache_tenant.name", tenant.name.size(), "bytes", kLongestNameBytes);
  return tenant.begin < 0 ? RefuseField("cache_tenant.begin", tenant.begin, "a prompt index") : OkStatus();
}

Status ValidateParameters(const Request& request) {
  if (request.n < 1) return RefuseField("n", request.n, "at least 1");
  if (request.max_tokens < 0) return RefuseField("max_tokens", request.max_tokens, "at least 0");
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return RefuseField("min_tokens", request.min_tokens, "a number in 0.." + std::to_string(request.max_tokens) + " (max_tokens)");
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs)
    return RefuseField("top_logprobs", request.top_logprobs, "a number in 0.." + std::to_string(kMaxTopLogprobs));
  if (const int32_t top = request.prompt_top_logprobs.value_or(0); top < 0 || top > kMaxTopLogprobs)
    return RefuseField("prompt_top_logprobs", top, "a number in 0.." + std::to_string(kMaxTopLogprobs));
  if (request.prompt_logprobs_begin < 0)
    return RefuseField("prompt_logprobs_begin", request.prompt_logprobs_begin, "a prompt index");
  if (request.group.min_answered < 0) return RefuseField("min_answered", request.group.min_answered, "at least 0");
  if (request.group.min_answered > 0 && request.group.name.empty()) {
    return InvalidArgument("min_answered is " + std::to_string(request.group.min_answered) +
                           ", but the request has no group: name one (group_id)");
  }
  if (!(request.timeout_seconds >= 0 && request.timeout_seconds <= kLongestSeconds))
    return RefuseField("timeout_seconds", request.timeout_seconds, "0 (none) or a number up to 1e9");
  if (request.cache_private_begin < 0) return RefuseField("cache_private_begin", request.cache_private_begin, "a prompt index");
  COPPICE_RETURN_IF_ERROR(ValidateTenant(request.cache_tenant));
  COPPICE_RETURN_IF_ERROR(CheckTexts(request));
  COPPICE_RETURN_IF_ERROR(CheckSampling(request.sampling));
  return CheckBeams(request);
}

std::string HowToFit(int64_t tokens, const RequestLimits& limits) {
  const std::string limit = std::to_string(limits.longest_context);
  return tokens <= limits.longest_context ? ", or raise max_context (--max-context), which this model lets be " + limit
                                          : "; the limit of this model is " + limit;
}

Status ValidateRequest(const Request& request, const RequestLimits& limits) {
  COPPICE_RETURN_IF_ERROR(ValidateParameters(request));
  COPPICE_RETURN_IF_ERROR(CheckSamples("n", request.n, limits));
  COPPICE_RETURN_IF_ERROR(CheckSamples("beam_width", request.beams.width, limits));
  COPPICE_RETURN_IF_ERROR(CheckBeamEnds(request, limits));
  const int64_t prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt == 0) return InvalidArgument("the prompt is empty: give at least one token");
  const int64_t least = prompt + (request.max_tokens > 0);
  if (least > limits.max_context) {
    return InvalidArgument("the prompt has " + std::to_string(prompt) + " tokens, the context length is " +
                           std::to_string(limits.max_context) + (request.max_tokens > 0 ? " and must hold at least one more" : "") +
                           ": shorten the prompt" + HowToFit(least, limits));
  }
  COPPICE_RETURN_IF_ERROR(CheckIds("prompt_ids", request.prompt_ids, limits.vocab_size));
  COPPICE_RETURN_IF_ERROR(CheckIdList("stop_token_ids", request.stop_token_ids, limits.vocab_size));
  COPPICE_RETURN_IF_ERROR(CheckIdList("visible_tokens", request.visible_tokens, limits.vocab_size));
  COPPICE_RETURN_IF_ERROR(CheckScores(request, limits.vocab_size));
  COPPICE_RETURN_IF_ERROR(CheckLogitBias(request.sampling.logit_bias, limits.vocab_size));
  if (!request.stop.empty() && !limits.has_tokenizer) {
    return InvalidArgument("stop strings need a tokenizer and the model has none: use stop_token_ids");
  }
  if (request.constraint != nullptr && request.constraint->vocab_size() != limits.vocab_size) {
    return RefuseField("the vocabulary of constraint", request.constraint->vocab_size(),
                       std::to_string(limits.vocab_size) + " tokens, the model's");
  }
  if (!request.pin_prompt_as.empty() && !limits.can_pin) {
    return InvalidArgument("pin_prompt_as is \"" + request.pin_prompt_as +
                           "\", but sharing mode none keeps nothing: use another mode");
  }
  return CheckPages(prompt + request.max_tokens, limits);
}

Status ValidateFork(const ForkOptions& options, const Request& request, const SampleGrowth& growth, const RequestLimits& limits) {
  if (options.n < 1) return RefuseField("n", options.n, "at least 1");
  COPPICE_RETURN_IF_ERROR(CheckSamples("n", options.n, limits));
  if (growth.kept < 0 || growth.kept > growth.generated) {
    return RefuseField("keep_tokens", static_cast<double>(growth.kept),
                       "a number in 0.." + std::to_string(growth.generated) + ", the tokens that the sample has behind the prompt");
  }
  if (options.max_tokens && *options.max_tokens < 1) return RefuseField("max_tokens", *options.max_tokens, "at least 1");
  if (growth.limit <= growth.kept) return InvalidArgument("max_tokens of the request is 0: give children their own max_tokens");
  if (options.params) {
    COPPICE_RETURN_IF_ERROR(CheckSampling(*options.params));
    COPPICE_RETURN_IF_ERROR(CheckLogitBias(options.params->logit_bias, limits.vocab_size));
  }
  const int64_t prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (prompt + growth.kept >= limits.max_context) {
    return InvalidArgument("the sample has " + std::to_string(prompt + growth.kept) + " tokens, the context length is " +
                           std::to_string(limits.max_context) + " and must hold at least one more: lower keep_tokens" +
                           HowToFit(prompt + growth.kept + 1, limits));
  }
  return CheckPages(prompt + growth.limit, limits);
}

Status ValidateExtension(std::span<const int32_t> tokens, const Request& request, const SampleGrowth& growth,
                         const RequestLimits& limits) {
  if (tokens.empty()) return InvalidArgument("tokens are none: give at least one");
  const int64_t added = std::ssize(tokens), length = static_cast<int64_t>(request.prompt_ids.size()) + growth.kept + added;
  if (length >= limits.max_context) {
    return InvalidArgument("the sample would have " + std::to_string(length) + " tokens, the context length is " +
                           std::to_string(limits.max_context) + " and must hold at least one more: add fewer" +
                           HowToFit(length + 1, limits));
  }
  COPPICE_RETURN_IF_ERROR(CheckIds("tokens", tokens, limits.vocab_size));
  if (growth.limit <= growth.kept)
    return InvalidArgument("max_tokens of the request is 0: fork the sample with its own max_tokens");
  return CheckPages(static_cast<int64_t>(request.prompt_ids.size()) + growth.limit + added, limits);
}

}  // namespace coppice
