// Command-line options with checks of ours, so that errors say what is expected. Layer: cli.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/core/status.h"

namespace coppice::cli {

// An option whose text `parse` turns into `target`; its error becomes CLI11's.
template <class T, class Target>
CLI::Option* AddParsed(CLI::App& command, const std::string& name, Target& target, Result<T> (*parse)(std::string_view),
                       const std::string& help) {
  const auto assign = [name, &target, parse](const std::string& text) {
    Result<T> value = parse(text);
    if (!value.ok()) throw CLI::ValidationError(name, value.status().message());
    target = *std::move(value);
  };
  return command.add_option_function<std::string>(name, assign, help);
}

// For options that give a path: an empty one is a mistake, not the default.
inline CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](const std::string& text) { return text.empty() ? std::string("is empty; give a path or leave the option out") : ""; }, "");
}

}  // namespace coppice::cli
