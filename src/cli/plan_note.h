// The note of a command's --explain on stderr: how attention read what samples have in common, and why. Layer: cli.
#pragma once

#include "coppice/engine/engine.h"

namespace coppice::cli {

inline constexpr char kExplainHelp[] = "Say on stderr what the fullest step read once for several samples, what apart, and why";

// The plan of the step with the most samples, in the words of PlanText.
void ReportPlan(const EngineMetrics& metrics);

}  // namespace coppice::cli
