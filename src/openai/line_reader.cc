#include "openai/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/check.h"

namespace coppice::openai {

Result<LineReader> LineReader::Open(const std::string& path, const std::string& what, size_t max_line_bytes) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return NotFound(fmt::format("cannot read {} {}: {}", what, path, std::strerror(errno)));
  return LineReader(std::move(file), path, max_line_bytes);
}

Result<LineReader> LineReader::OpenStandardInput() {
  FileDescriptor file(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
  if (file.get() < 0) return NotFound(fmt::format("cannot read standard input: {}", std::strerror(errno)));
  return LineReader(std::move(file), "standard input", kMaxLineBytes);
}

Result<bool> LineReader::Fill() {
  if (taken_ < read_.size()) return true;
  constexpr size_t kReadBytes = size_t{64} << 10;
  read_.resize(kReadBytes);
  ssize_t bytes;
  do {
    bytes = read(file_.get(), read_.data(), kReadBytes);
  } while (bytes < 0 && errno == EINTR);
  const int error = errno;
  read_.resize(std::max<ssize_t>(bytes, 0));
  taken_ = 0;
  if (bytes < 0) return NotFound(fmt::format("cannot read {}: {}", path_, std::strerror(error)));
  return bytes > 0;
}

Result<bool> LineReader::Next(Line* line) {
  line->text.clear();
  line->offset = offset_;
  line->complete = line->too_long = false;
  while (!line->complete) {
    COPPICE_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) break;
    const std::string_view rest = std::string_view(read_).substr(taken_);
    const std::string_view text = rest.substr(0, rest.find('\n'));
    line->complete = text.size() < rest.size();
    const size_t kept = std::min(text.size(), max_line_bytes_ - line->text.size());
    line->text += text.substr(0, kept);
    line->too_long |= kept < text.size();
    taken_ += text.size() + line->complete;
    offset_ += std::ssize(text) + line->complete;
  }
  line->size = offset_ - line->offset - line->complete;
  if (offset_ == line->offset) return false;
  line->number = ++number_;
  return true;
}

bool LineReader::HasInput(std::chrono::milliseconds most) const {
  if (taken_ < read_.size()) return true;
  pollfd waits = {.fd = file_.get(), .events = POLLIN, .revents = 0};
  return poll(&waits, 1, static_cast<int>(most.count())) > 0;
}

}  // namespace coppice::openai
