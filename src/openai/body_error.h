// The fault of a request's body. Layer: openai.
#pragma once

#include <string>

#include "coppice/core/status.h"

namespace coppice::openai {

struct BodyError {
  Status status;
  std::string param;  // the field that is wrong; may be empty
};

}  // namespace coppice::openai
