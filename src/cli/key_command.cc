#include "cli/key_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "cli/standard_output.h"
#include "core/check.h"
#include "core/quoted.h"
#include "core/random_bytes.h"
#include "server/api_keys.h"

namespace coppice::cli {
namespace {

constexpr size_t kKeyBytes = 32;  // 256 bits: no list holds it, so that its hash needs no salt

// The line goes to standard output, into the server's file; the key, which no file needs, to the terminal.
Result<ExitCode> DrawKey(const std::string& name) {
  const std::string key = "coppice-" + RandomHex(kKeyBytes);
  const std::string line = server::ApiKeys::LineOf(name, key);
  const bool is_word = std::ranges::none_of(name, [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  if (!is_word || !server::ApiKeys::Parse(line, "the line").ok())
    return InvalidArgument(fmt::format("the name is {}, expected one word that does not begin with #", Quoted(name)));
  COPPICE_RETURN_IF_ERROR(Print(line + "\n"));
  std::cerr << key << "\n";
  return ExitCode::kOk;
}

}  // namespace

Command AddKeyCommand(CLI::App& app) {
  const auto name = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "key",
      "Draw an API key: stderr shows it, standard output is its line for the file of serve --api-keys (coppice key alice >> keys)");
  command->add_option("name", *name, "The key's name in logs and metrics")->required();
  return {command, [name] { return DrawKey(*name); }};
}

}  // namespace coppice::cli
