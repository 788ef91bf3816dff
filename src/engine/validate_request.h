// Whether a request can ever be served: each refusal names the field, its value and what is expected.
// Layer: engine.
#pragma once

#include <cstdint>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice {

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_context = 0;  // tokens
  int32_t page_size = 16, num_pages = 0;
  bool has_tokenizer = false;
  bool can_pin = true;
};

// INVALID_ARGUMENT, or OK.
Status ValidateRequest(const Request& request, const RequestLimits& limits);
Status ValidateSampling(const SamplingParams& params, int32_t vocab_size);

}  // namespace coppice
