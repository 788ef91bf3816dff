// What the benchmarks of the engine share: a measurement in a process of its own, medians, the machine's name.
// Layer: cli.
#pragma once

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::cli {

inline constexpr std::array<SharingMode, 4> kSharingModes = {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore,
                                                             SharingMode::kNone};

// Runs `measure` in a child process, so that its peak memory is its own, and returns its object. Called before this process has
// threads.
Result<nlohmann::ordered_json> MeasureInChild(const std::function<Result<nlohmann::ordered_json>()>& measure);

double Median(std::vector<double> values);

// One object out of several of the same shape: the median of each number, other values as in the first.
nlohmann::ordered_json Medians(const std::vector<nlohmann::ordered_json>& runs);

std::string CpuName();

// NOT_FOUND if the file cannot be written; `option` is what gave the path.
Status WriteFile(const std::string& path, const std::string& text, std::string_view option);

}  // namespace coppice::cli
