#include "cli/bench/sse_parser.h"

#include <fmt/format.h>

#include <utility>

#include "core/check.h"

namespace coppice::cli {

Status SseParser::Feed(std::string_view bytes) {
  if (bytes.empty()) return OkStatus();
  if (std::exchange(after_cr_, false) && bytes.starts_with('\n')) bytes.remove_prefix(1);
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() + data_.size() > kMaxEventBytes)
      return DataLoss(fmt::format("an event of the stream is larger than {} bytes", kMaxEventBytes));
    if (end == bytes.npos) {
      line_ += piece;
      return OkStatus();
    }
    if (line_.empty()) {
      COPPICE_RETURN_IF_ERROR(TakeLine(piece));
    } else {
      line_ += piece;
      COPPICE_RETURN_IF_ERROR(TakeLine(line_));
      line_.clear();
    }
    const bool cr = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (!cr) continue;
    after_cr_ = bytes.empty();
    if (bytes.starts_with('\n')) bytes.remove_prefix(1);
  }
  return OkStatus();
}

Status SseParser::TakeLine(std::string_view line) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (std::exchange(first_line_, false) && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.empty()) {
    if (!std::exchange(has_data_, false)) return OkStatus();
    const Status taken = on_data_(data_);
    data_.clear();
    return taken;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return OkStatus();
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_ += '\n';
  data_ += value;
  return OkStatus();
}

}  // namespace coppice::cli
