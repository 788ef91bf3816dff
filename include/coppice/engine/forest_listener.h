// A listener to the prefix forest of each step, for records of what attention is asked for (docs/traces.md).
// Layer: public API of coppice::engine.
#pragma once

#include "coppice/core/status.h"

namespace coppice {

struct ModelInfo;
namespace attention {
struct PrefixForestView;
}

// Of one engine, one call at a time: Begin by Engine::Create, OnStep by the thread that steps the engine.
class ForestListener {
 public:
  virtual ~ForestListener() = default;
  // Before anything of the model is read. An error is that of Engine::Create.
  virtual Status Begin() = 0;
  // A step of that forest was launched. Its spans are valid during the call, which the step after it waits for. Throws nothing.
  virtual void OnStep(const ModelInfo& model, const attention::PrefixForestView& forest) = 0;
};

}  // namespace coppice
