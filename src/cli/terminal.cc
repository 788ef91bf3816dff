#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <limits>

namespace coppice::cli {
namespace {

constexpr int kUsualColumns = 80;

// Takes the first character off `text`: its columns. Bytes that are no UTF-8 take one each.
int TakeCharacter(std::string_view* text) {
  utf8proc_int32_t character = 0;
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text->data());
  const utf8proc_ssize_t size = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text->size()), &character);
  text->remove_prefix(std::max<size_t>(size > 0 ? static_cast<size_t>(size) : 1, 1));
  return size > 0 ? utf8proc_charwidth(character) : 1;
}

}  // namespace

int TerminalColumns(int fd) {
  winsize size{};
  return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

int DisplayColumns(std::string_view text) {
  int columns = 0;
  while (!text.empty()) columns += TakeCharacter(&text);
  return columns;
}

std::string_view CutToColumns(std::string_view text, int columns) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view next = rest;
    columns -= TakeCharacter(&next);
    if (columns < 0) break;
    rest = next;
  }
  return text.substr(0, text.size() - rest.size());
}

std::vector<std::string> Wrap(std::string_view text, int columns) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view words = text.substr(begin, end - begin);
    begin = end + 1;
    std::string line;
    while (true) {
      words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));
      if (words.empty()) break;
      const std::string_view word = words.substr(0, words.find(' '));
      words.remove_prefix(word.size());
      if (!line.empty() && DisplayColumns(line) + 1 + DisplayColumns(word) > columns) {
        lines.push_back(std::move(line));
        line.clear();
      }
      if (!line.empty()) line += ' ';
      line += word;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string Fold(std::string_view text, int columns) {
  std::string folded;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (DisplayColumns(line) <= columns) {
      folded += line;
    } else {
      const size_t indent = std::min(line.find_first_not_of(' '), line.size());
      const int further = std::min(static_cast<int>(indent) + 4, columns / 2);
      const std::vector<std::string> pieces = Wrap(line, columns - further);
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (i > 0) folded += '\n';
        folded += std::string(i == 0 ? indent : static_cast<size_t>(further), ' ') + pieces[i];
      }
    }
    text.remove_prefix(end);
    if (text.empty()) break;
    folded += '\n';
    text.remove_prefix(1);
  }
  return folded;
}

std::vector<std::string> FillUp(std::vector<std::string> cells, std::span<const std::string> head) {
  for (size_t i = 0; i < cells.size(); ++i) cells[i].insert(0, head[i].size() - std::min(head[i].size(), cells[i].size()), ' ');
  return cells;
}

std::string FoldRow(std::span<const std::string> cells, int columns) {
  std::string row;
  int used = 0;
  for (const std::string& cell : cells) {
    const int width = DisplayColumns(cell);
    if (used > 0 && used + 1 + width > columns) {
      row += "\n   ";
      used = 3;
    }
    if (used > 0) {
      row += ' ';
      ++used;
    }
    row += cell;
    used += width;
  }
  return row + "\n";
}

std::string RowForTerminal(std::span<const std::string> cells, int fd) {
  return FoldRow(cells, isatty(fd) ? TerminalColumns(fd) : std::numeric_limits<int>::max());
}

std::string ForTerminal(std::string_view text, int fd) { return isatty(fd) ? Fold(text, TerminalColumns(fd)) : std::string(text); }

}  // namespace coppice::cli
