// How wide a terminal is and what fits into it. Layer: cli.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::cli {

// Columns of the terminal behind the descriptor, as wide as it is now; 80 where it is none, or does not say.
int TerminalColumns(int fd);

// Columns that UTF-8 text takes.
int DisplayColumns(std::string_view text);
// The longest beginning of `text` that takes at most so many columns; whole characters.
std::string_view CutToColumns(std::string_view text, int columns);

// Words of `text` in lines of at most so many columns, or of one word that is longer. Line breaks of the text stay.
std::vector<std::string> Wrap(std::string_view text, int columns);

// `text` with lines of at most so many columns: what is longer goes on in the next line, further in.
std::string Fold(std::string_view text, int columns);
// Folded where `fd`, standard output, is a terminal; else, for programs that read it, as it is.
std::string ForTerminal(std::string_view text, int fd = STDOUT_FILENO);

// Cells as wide as those of `head`, filled up on their left. There are no more of them than of the head's.
std::vector<std::string> FillUp(std::vector<std::string> cells, std::span<const std::string> head);

// A table's row, cells that have the widths of their columns: one line, or, where `fd` is a narrower terminal, several, the later
// ones further in. A head and its rows break at the same cells.
std::string RowForTerminal(std::span<const std::string> cells, int fd = STDOUT_FILENO);
std::string FoldRow(std::span<const std::string> cells, int columns);

}  // namespace coppice::cli
