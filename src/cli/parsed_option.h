// Command-line options with checks of ours, so that errors say what is expected. Layer: cli.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
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

// For numbers that have no upper limit; CLI11's own checks print the largest double as one.
inline CLI::Validator NumberThat(bool (*holds)(double), const std::string& expected) {
  const auto check = [holds, expected](const std::string& text) {
    double value = 0;
    return CLI::detail::lexical_cast(text, value) && holds(value) ? std::string() : text + " is not a number" + expected;
  };
  return CLI::Validator(check, "");
}
inline CLI::Validator AnyNumber() {
  return NumberThat([](double value) { return !std::isnan(value); }, "");
}
inline CLI::Validator AtLeastZero() {
  return NumberThat([](double value) { return std::isfinite(value) && value >= 0; }, " of at least 0");
}
inline CLI::Validator AboveZero() {
  return NumberThat([](double value) { return std::isfinite(value) && value > 0; }, " above 0");
}

}  // namespace coppice::cli
