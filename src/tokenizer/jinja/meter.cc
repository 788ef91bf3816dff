#include "tokenizer/jinja/meter.h"

#include <string>

#include "tokenizer/jinja/value.h"

namespace coppice::jinja {

void Meter::FailExhausted() const {
  throw Error{ResourceExhausted("chat template, line " + std::to_string(position.line) +
                                ": it takes more work than these messages allow; mend the template, or use another one")};
}

}  // namespace coppice::jinja
