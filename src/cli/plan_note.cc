#include "cli/plan_note.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "cli/terminal.h"
#include "coppice/engine/step_plan.h"

namespace coppice::cli {

void ReportPlan(const EngineMetrics& metrics) {
  const std::string text =
      metrics.fullest_plan ? "\nThe fullest step, " + PlanText(*metrics.fullest_plan) : "\nno step had attention to plan\n";
  fmt::print(stderr, "{}", ForTerminal(text, STDERR_FILENO));
}

}  // namespace coppice::cli
