// How the program reads its command line: the form of its help, and what it says of a word that it does not know. Layer: cli.
#pragma once

#include "coppice/core/status.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace coppice::cli {

// Help as FormatHelp makes it, as wide as the terminal, and --help-all. Before the first command is added: they inherit it.
void UseHelp(CLI::App& program);

// Options of floating-point numbers refuse NaN, which lies in every range. After the last option is added.
void RefuseNan(CLI::App& program);

// The fault of a command line that could not be parsed: a word that is no command or option, with the nearest one, or what
// CLI11 says; and where the command's options are listed.
Status CommandLineError(const CLI::App& program, const CLI::ParseError& error);

}  // namespace coppice::cli
