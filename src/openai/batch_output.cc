#include "openai/batch_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "openai/line_reader.h"
#include "openai/response.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kErrorsTold = 10;  // on stderr; all are in the file

Status SystemError(std::string_view action, const std::string& path) {
  return NotFound(fmt::format("cannot {} {}: {}", action, path, std::strerror(errno)));
}

Status WriteLine(int fd, const ordered_json& line, const std::string& path) {
  const std::string text = line.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("write to", path);
    written += static_cast<size_t>(count);
  }
  return OkStatus();
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

Result<BatchOutput> BatchOutput::Open(const std::string& path) {
  BatchOutput output;
  output.path_ = path;
  output.file_ = FileDescriptor(open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (output.file_.get() < 0) return SystemError("write to the output", path);
  if (flock(output.file_.get(), LOCK_EX | LOCK_NB) != 0)
    return FailedPrecondition(
        fmt::format("{} is locked: another coppice batch writes to it; wait for it or give another output", path));

  COPPICE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path, "the output"));
  LineReader::Line line;
  while (true) {
    COPPICE_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) return output;
    if (!line.complete) break;
    const ordered_json result = ordered_json::parse(line.text, nullptr, /*allow_exceptions=*/false);
    const auto is_string = [&](const char* name) { return result.contains(name) && result[name].is_string(); };
    if (!result.is_object() || !is_string("custom_id") || !is_string("id")) {
      return InvalidArgument(
          fmt::format("{}:{} is no result of a batch; give an output that does not exist yet, or one that coppice batch wrote",
                      path, line.number));
    }
    output.finished_.emplace(result["custom_id"].get<std::string>(), result["id"].get<std::string>());
  }
  // Only what looks like the beginning of a result is cut off: the file may not be one of ours.
  constexpr std::string_view kBegin = R"({"id":)";
  if (output.finished_.empty() && line.text.substr(0, kBegin.size()) != kBegin.substr(0, line.text.size()))
    return InvalidArgument(fmt::format("{} is no output of a batch; give one that does not exist yet", path));
  spdlog::info("{}: the last line is torn and is dropped", path);
  if (ftruncate(output.file_.get(), line.offset) != 0) return SystemError("shorten", path);
  return output;
}

Status BatchOutput::Append(const ordered_json& line) {
  COPPICE_RETURN_IF_ERROR(WriteLine(file_.get(), line, path_));
  return Clock::now() - last_sync_ < kSyncInterval ? OkStatus() : Sync();
}

Status BatchOutput::Sync() {
  // Pipes and some file systems cannot; there is nothing to lose then.
  if (fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) return SystemError("write to", path_);
  last_sync_ = Clock::now();
  return OkStatus();
}

Result<BatchErrors> BatchErrors::Open(const std::string& path) {
  BatchErrors errors;
  errors.path_ = path;
  std::error_code failed;
  std::filesystem::remove(path, failed);
  if (failed) return NotFound(fmt::format("cannot remove the earlier {}: {}", path, failed.message()));
  return errors;
}

Status BatchErrors::Report(const Error& error) {
  if (file_.get() < 0) {
    file_ = FileDescriptor(open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file_.get() < 0) return SystemError("write to", path_);
  }
  if (++count_ <= kErrorsTold) spdlog::warn("line {}: {}", error.line, error.status.message());
  if (count_ == kErrorsTold + 1) spdlog::warn("more errors: see {}", path_);
  const ordered_json custom_id = error.custom_id.empty() ? ordered_json() : ordered_json(error.custom_id);
  if (error.id.empty()) {  // not even a request
    const ordered_json what = {{"code", "invalid_request"},
                               {"message", error.status.message()},
                               {"param", error.param.empty() ? ordered_json() : ordered_json(error.param)},
                               {"line", error.line}};
    return WriteLine(file_.get(),
                     {{"id", nullptr}, {"custom_id", custom_id}, {"response", nullptr}, {"error", what}, {"line", error.line}},
                     path_);
  }
  const ordered_json response = {
      {"status_code", HttpStatus(error.status)}, {"request_id", "req_" + error.id}, {"body", ErrorBody(error.status, error.param)}};
  return WriteLine(
      file_.get(),
      {{"id", "batch_req_" + error.id}, {"custom_id", custom_id}, {"response", response}, {"error", nullptr}, {"line", error.line}},
      path_);
}

}  // namespace coppice::openai
