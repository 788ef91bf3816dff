// The captured steps of a device's runner: which steps one graph serves, and which graphs are kept. Knows no device: the caller
// captures and launches. Layer: runner.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "core/device.h"
#include "core/device_tensor.h"
#include "runner/layer_plans.h"

namespace coppice {

// The counts that the launches of a step depend on.
struct StepShape {
  int32_t rows = 0, logit_rows = 0, draws = 0;
  auto operator<=>(const StepShape&) const = default;
};

enum class Filling : uint8_t {
  kFine,    // few rows are computed in vain
  kCoarse,  // few shapes: for steps whose rows are more or fewer each time, which would be captured more often than launched
};

// The shape that a step is filled up to, at most `most`, so that few shapes serve all steps. Rows: powers of two up to 8, multiples
// of 8 up to 256 and of 32 up to 2,048; beyond, at most a thirty-second is computed in vain. Rows of logits, which cost a fraction
// of a row, and draws, which cost nothing: powers of two from a 64th of the rows to a sixteenth, multiples of a sixteenth beyond;
// none stay none. Where each row is drawn from, those that fill up are, too. Coarse: rows are powers of two and 1.5 times such
// ones, and where half of them are drawn from, all are. REQUIRES: step.rows > 0; no count is above that of `most`.
StepShape FilledUp(const StepShape& step, const StepShape& most, Filling filling = Filling::kFine);

// Steps whose launches are the same, but for those of attention (LaunchKeys).
struct StepClass {
  StepShape shape;  // filled up
  bool draws_plainly = false;
  auto operator<=>(const StepClass&) const = default;
};

// Thread-compatible.
class StepGraphs {
 public:
  struct Captured {
    std::unique_ptr<Graph> graph;
    ConstDeviceTensor logits;  // where its launches leave them
  };
  // At most `max_graphs` are kept; 0: no step is captured. Beyond that the class that was asked for least recently is forgotten.
  explicit StepGraphs(int32_t max_graphs) : max_graphs_(max_graphs) {}

  // The place of the graph for a step of a class whose plans have these keys; without a graph where the step is to be captured.
  // Null where it runs without: at the first step of a class, so that shapes that do not come again are not captured, and what is
  // made at the first use of a shape is there when it is. Valid until the next call.
  Captured* Find(const StepClass& step_class, const LaunchKeys& keys);

  int32_t num_graphs() const { return num_graphs_; }
  int32_t num_classes() const { return static_cast<int32_t>(classes_.size()); }

  static constexpr size_t kMaxClasses = 4096;  // remembered, most of them without graphs

 private:
  struct Class {
    int64_t asked = 0;  // the call of Find that did last
    std::map<LaunchKeys, Captured> graphs;
  };
  using Classes = std::map<StepClass, Class>;
  void ForgetOldest(bool with_graphs);

  const int32_t max_graphs_;
  Classes classes_;
  int32_t num_graphs_ = 0;  // places of classes_
  int64_t calls_ = 0;
};

}  // namespace coppice
