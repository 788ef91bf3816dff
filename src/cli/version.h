// The text of `coppice --version`: the version, and what decides how fast and on what it runs. Layer: cli.
#pragma once

#include <string>
#include <string_view>

namespace coppice::cli {

// The commit that the program was built from; empty if it was no working copy. Defined by cmake/WriteCommit.cmake at each build.
extern const std::string_view kCommit;

// "coppice 0.2.0" and the commit; then lines for the CPU's kernels, CUDA and constrained output. Asks the driver for its first GPU.
std::string VersionText();

}  // namespace coppice::cli
