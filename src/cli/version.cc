#include "cli/version.h"

#include <fmt/format.h>

#include <memory>

#include "attention_tools/host_kernels.h"
#include "core/device.h"
#include "grammar/grammar_compiler.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/product_forms.h"

namespace coppice::cli {
namespace {

// Of the kinds of one library those that do not run by the instruction set's own kernels: "bf16-many by avx512 (measured at this
// start)".
std::string Measured(const ProbeReport& report) {
  const std::string others = Summarise(report);
  return fmt::format("{} ({})", others.empty() ? "none" : others, report.why);
}

}  // namespace

std::string VersionText() {
  const Result<std::unique_ptr<Device>> gpu = Device::CreateCuda(0);
  return fmt::format(
      "coppice {}{}\n"
      "CPU: kernels for {} (products), {} (attention)\n"
      "Measured to be faster: of products {}, of attention {}; see coppice inspect kernels\n"
      "CUDA: {}\n"
      "Constrained output: {}",
      COPPICE_VERSION, kCommit.empty() ? std::string() : fmt::format(" ({})", kCommit), ops::SelectKernels().isa,
      attention::HostKernelsName(), Measured(ops::ProductReport()), Measured(attention::HostTiles()),
      gpu.ok() ? (*gpu)->name() : gpu.status().message(),
      MakeGrammarWork() != nullptr ? "yes" : "not in this build; scripts/fetch_grammar, then build again");
}

}  // namespace coppice::cli
