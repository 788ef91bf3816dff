#include "cli/version.h"

#include <fmt/format.h>

#include <memory>

#include "attention_tools/host_kernels.h"
#include "core/device.h"
#include "grammar/grammar_compiler.h"
#include "ops/cpu/kernels.h"

namespace coppice::cli {

std::string VersionText() {
  const Result<std::unique_ptr<Device>> gpu = Device::CreateCuda(0);
  return fmt::format(
      "coppice {}{}\n"
      "CPU: kernels for {} (products), {} (attention)\n"
      "CUDA: {}\n"
      "Constrained output: {}",
      COPPICE_VERSION, kCommit.empty() ? std::string() : fmt::format(" ({})", kCommit), ops::SelectKernels().isa,
      attention::HostKernelsName(), gpu.ok() ? (*gpu)->name() : gpu.status().message(),
      MakeGrammarWork() != nullptr ? "yes" : "not in this build; scripts/fetch_grammar, then build again");
}

}  // namespace coppice::cli
