// Whether a request can ever be served: each refusal names the field, its value and what is expected.
// Layer: engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice {

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_context = 0;      // tokens
  int32_t longest_context = 0;  // that EngineOptions::max_context may ask for: the model's own limit
  int32_t page_size = 16, num_pages = 0;
  int32_t max_running = 1;
  int32_t num_eos = 0;  // tokens of the model that end a sample
  bool has_tokenizer = false;
  bool can_pin = true;
};

// Each INVALID_ARGUMENT, or OK; messages begin with the field's name.

// Faults whatever the model is: ranges of numbers, sizes of lists. For callers that know the request before the engine.
Status ValidateParameters(const Request& request);
Status ValidateTenant(const CacheTenant& tenant);
// That, and what the model, the context and the cache allow. Sizes are checked before anything is allocated for the request.
Status ValidateRequest(const Request& request, const RequestLimits& limits);

// The growth that Engine::Fork asks for, of a sample of `request` that has `generated` tokens behind the prompt, of which children
// begin with `kept` and may have `limit`; of Engine::Extend the same without options.
struct SampleGrowth {
  int64_t generated = 0, kept = 0, limit = 0;
};
Status ValidateFork(const ForkOptions& options, const Request& request, const SampleGrowth& growth, const RequestLimits& limits);
// `tokens` are not counted in `growth.kept` and `growth.limit` yet.
Status ValidateExtension(std::span<const int32_t> tokens, const Request& request, const SampleGrowth& growth,
                         const RequestLimits& limits);

// For a message about `tokens` tokens that are more than max_context: how they would fit, ", or raise max_context ..." where that
// helps; else the model's limit.
std::string HowToFit(int64_t tokens, const RequestLimits& limits);

// Temperatures that are so small that 1 / temperature times a logit leaves the range of float: greedy, as everything below.
inline constexpr float kSmallestTemperature = 1e-6f;

}  // namespace coppice
