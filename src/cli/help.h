// Texts about the program's commands, each made of the tree of options alone: help for a terminal, a man page, the reference of
// docs/cli.md, and what shells complete. Strings out; nothing is printed. Layer: cli.
#pragma once

#include <string>
#include <vector>

#include "cli/command_tree.h"
#include "coppice/core/status.h"

namespace coppice::cli {

// In lines of at most so many columns. `all`: the options for experts too.
std::string FormatHelp(const CommandInfo& command, int columns, bool all);

// Of all commands: troff with the macros of man(7); sections of Markdown.
std::string ManPage(const CommandInfo& program, const std::string& version);
std::string MarkdownReference(const CommandInfo& program);

// A script of bash, zsh or fish. INVALID_ARGUMENT for another shell.
Result<std::string> CompletionScript(const CommandInfo& program, const std::string& shell);

// The candidate that `word` may be a slip of: the nearest one by exchanged, missing and additional characters, or one that it
// begins; empty: none is near.
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates);
// "; did you mean NEAREST?", to end a message about a word that is not known; empty: none is near.
std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace coppice::cli
