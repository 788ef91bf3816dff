// A text file line by line, in bounded memory, with each line's place. Layer: openai.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "coppice/core/status.h"
#include "core/file.h"

namespace coppice::openai {

class LineReader {
 public:
  struct Line {
    int64_t number = 0;     // from 1
    int64_t offset = 0;     // of its first byte in the file
    int64_t size = 0;       // bytes, the line break not counted
    bool complete = false;  // ends with a line break
    bool too_long = false;  // longer than `max_line_bytes`: `text` holds its beginning
    std::string text;       // without the line break
  };

  // NOT_FOUND names the path and the system's reason; `what` says in the message which file it is ("the input").
  static Result<LineReader> Open(const std::string& path, const std::string& what, size_t max_line_bytes = kMaxLineBytes);
  // Standard input from where it stands.
  static Result<LineReader> OpenStandardInput();
  // The next line in `line`, whose memory is reused; false at the end of the file.
  Result<bool> Next(Line* line);
  // Whether Next finds bytes, the end or an error at once, or within `most`: of a pipe or terminal whose other end may be silent.
  // A signal ends the wait.
  bool HasInput(std::chrono::milliseconds most) const;

  static constexpr size_t kMaxLineBytes = size_t{64} << 20;

 private:
  LineReader(FileDescriptor file, std::string path, size_t max_line_bytes)
      : file_(std::move(file)), path_(std::move(path)), max_line_bytes_(max_line_bytes) {}
  // Reads what comes where nothing is left of what was read; false at the end of the file.
  Result<bool> Fill();

  FileDescriptor file_;
  std::string path_;
  size_t max_line_bytes_;
  std::string read_;  // a part of the file
  size_t taken_ = 0;  // of it
  int64_t number_ = 0, offset_ = 0;
};

}  // namespace coppice::openai
