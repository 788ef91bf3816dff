#include "cli/inspect_kernels.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "attention_tools/host_kernels.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/cpu/kernel_probe.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/product_forms.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

struct InspectKernelsOptions {
  bool json = false, again = false;
};

struct Library {
  const char* name;
  std::string instruction_set;
  ProbeReport report;
};

std::string Format(const Library& library) {
  std::string text = fmt::format("{}: {}\n", library.name, library.instruction_set);
  for (const ProbeReport::Line& line : library.report.lines) {
    text += fmt::format("  {:<12} {:<12} {}{}\n", line.kind, line.form, line.is_default ? "" : "measured faster: ", line.why);
  }
  return text + fmt::format("  {}\n", library.report.why);
}

ordered_json ToJson(const Library& library) {
  ordered_json kinds = ordered_json::object();
  for (const ProbeReport::Line& line : library.report.lines) {
    ordered_json& kind = kinds[line.kind] = {{"kernels", line.form}, {"measured_faster", !line.is_default}};
    for (const auto& [form, time] : line.times)
      kind["times"][form] = {{"ns", time.ns}, {"ratio", time.ratio}, {"ratio_at_most", time.high}};
  }
  return {{"instruction_set", library.instruction_set}, {"why", library.report.why}, {"kinds", kinds}};
}

Result<ExitCode> InspectKernels(const InspectKernelsOptions& options) {
  COPPICE_RETURN_IF_ERROR(CheckForcedKernels());
  if (options.again) setenv("COPPICE_CPU_PROBE", "again", /*overwrite=*/1);
  const Library libraries[] = {{"products", ops::SelectKernels().isa, ops::ProductReport()},
                               {"attention", std::string(attention::HostKernelsName()), attention::HostTiles()}};
  if (options.json) {
    ordered_json json = {{"cpu", CpuModel()}};
    for (const Library& library : libraries) json[library.name] = ToJson(library);
    COPPICE_RETURN_IF_ERROR(Print(json.dump(1) + "\n"));
    return ExitCode::kOk;
  }
  std::string text = fmt::format("CPU: {}\n", CpuModel());
  for (const Library& library : libraries) text += Format(library);
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(text)));
  return ExitCode::kOk;
}

}  // namespace

Command AddInspectKernelsCommand(CLI::App& inspect) {
  const auto options = std::make_shared<InspectKernelsOptions>();
  CLI::App* command = inspect.add_subcommand("kernels", "Which CPU kernels this machine runs for what, and why");
  command->add_flag("--again", options->again, "Measure anew, and keep that (as COPPICE_CPU_PROBE=again does at any start)");
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  return {command, [options] { return InspectKernels(*options); }};
}

}  // namespace coppice::cli
