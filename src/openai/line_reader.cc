#include "openai/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace coppice::openai {

Result<LineReader> LineReader::Open(const std::string& path, const std::string& what, size_t max_line_bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (!file) return NotFound(fmt::format("cannot read {} {}: {}", what, path, std::strerror(errno)));
  return LineReader(file, path, max_line_bytes);
}

Result<LineReader> LineReader::OpenStandardInput() {
  const int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  std::FILE* const file = fd < 0 ? nullptr : fdopen(fd, "rb");
  if (file == nullptr) return NotFound(fmt::format("cannot read standard input: {}", std::strerror(errno)));
  return LineReader(file, "standard input", kMaxLineBytes);
}

Result<bool> LineReader::Next(Line* line) {
  line->text.clear();
  line->offset = offset_;
  line->complete = line->too_long = false;
  int byte;
  while ((byte = getc_unlocked(file_.get())) != EOF) {  // one thread has the file
    ++offset_;
    line->complete = byte == '\n';
    if (line->complete) break;
    if (line->text.size() < max_line_bytes_) {
      line->text.push_back(static_cast<char>(byte));
    } else {
      line->too_long = true;
    }
  }
  if (std::ferror(file_.get())) return NotFound(fmt::format("cannot read {}: {}", path_, std::strerror(errno)));
  line->size = offset_ - line->offset - line->complete;
  if (offset_ == line->offset) return false;
  line->number = ++number_;
  return true;
}

}  // namespace coppice::openai
