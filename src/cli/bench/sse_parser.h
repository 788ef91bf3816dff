// Server-sent events (WHATWG HTML, section 9.2.6) out of the bytes of a stream, however they are cut. Layer: cli.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice::cli {

class SseParser {
 public:
  // `data`: the contents of an event's "data:" lines, joined by line feeds; valid during the call. An error ends the parsing.
  using OnData = std::function<Status(std::string_view data)>;

  static constexpr size_t kMaxEventBytes = size_t{16} << 20;

  explicit SseParser(OnData on_data) : on_data_(std::move(on_data)) {}

  // Lines end with LF, CR LF or CR; comments, and fields other than data, are skipped. DATA_LOSS for an event of more than
  // kMaxEventBytes, or the error of OnData; then the parser is not used any more.
  Status Feed(std::string_view bytes);

 private:
  Status TakeLine(std::string_view line);

  const OnData on_data_;
  std::string line_;  // that has not ended
  std::string data_;  // of the event at hand
  bool has_data_ = false, first_line_ = true, after_cr_ = false;
};

}  // namespace coppice::cli
