// The message for logits that are no numbers, wherever they are found. Layer: engine.
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

// `place`: " at token 7", or nothing.
inline Status LogitsNotFinite(std::string_view place = {}) {
  return Internal("the model's logits are not finite numbers" + std::string(place) +
                  ": check the model file, or ask for dtype bf16, whose range is wider than that of f16, or f32 on CPUs");
}

}  // namespace coppice
