#include "openai/batch_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"
#include "core/json.h"
#include "core/quoted.h"
#include "openai/line_reader.h"
#include "openai/response.h"
#include "tokenizer/one_line.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kErrorsReported = 10;  // on stderr; all are in the file

constexpr std::string_view kResultBegin = R"({"id":)";  // of every line that we write

// Of a line that is longer than lines are read, id and key alone, up to the member behind them.
ordered_json ParseResult(const LineReader::Line& line) {
  if (!line.too_long) return ordered_json::parse(line.text, nullptr, /*allow_exceptions=*/false);
  // Within a string their quotes would be escaped.
  const size_t end = std::min(line.text.find(R"(,"response":)"), line.text.find(R"(,"object":)"));
  return ordered_json::parse(line.text.substr(0, end) + "}", nullptr, /*allow_exceptions=*/false);
}

// The key of a result, as text; nothing where the line is none.
std::optional<std::string> KeyOf(const ordered_json& line, const ResultForm& form) {
  const std::string name(form.key);
  if (!line.is_object() || !line.contains("id") || !line["id"].is_string() || !line.contains(name)) return std::nullopt;
  const ordered_json& key = line[name];
  if (key.is_string()) return key.get<std::string>();
  return key.is_number_integer() ? std::optional(key.dump()) : std::nullopt;
}

// The model that a result names; empty: none, or the line was too long to look.
std::string ModelOf(const ordered_json& result) {
  static const ordered_json::json_pointer batch("/response/body/model"), score("/model");
  for (const ordered_json::json_pointer& place : {batch, score}) {
    if (result.contains(place) && result[place].is_string()) return result[place].get<std::string>();
  }
  return "";
}

// Whether the torn last line of a file may be the beginning of one of ours.
bool MayBegin(std::string_view torn) { return torn.substr(0, kResultBegin.size()) == kResultBegin.substr(0, torn.size()); }

// The input's line of a line of BatchErrors::Report; nothing for any other.
std::optional<int64_t> LineOfError(const std::string& text) {
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool ours = json.is_object() && json.contains("id") && json.contains("custom_id") && json.contains("response") &&
                    json.contains("error") && json.contains("line") && json["line"].is_number_integer();
  return ours ? std::optional(json["line"].get<int64_t>()) : std::nullopt;
}

// Lines that an earlier run reported as errors.
struct EarlierErrors {
  std::unordered_set<int64_t> lines;
  int64_t size = 0;  // bytes, without a torn last line
};

Result<EarlierErrors> ReadErrors(const std::string& resolved, const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(resolved, "the earlier errors"));
  EarlierErrors earlier;
  LineReader::Line line;
  while (true) {
    COPPICE_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) return earlier;
    const std::optional<int64_t> reported = line.complete ? LineOfError(line.text) : std::nullopt;
    if (line.complete ? !reported : !MayBegin(line.text)) {
      return InvalidArgument(
          fmt::format("{}:{} is no error of a batch, and would be lost; give another --errors or remove it", path, line.number));
    }
    if (!line.complete) continue;
    earlier.lines.insert(*reported);
    earlier.size = line.offset + line.size + 1;
  }
}

}  // namespace

Result<BatchOutput> BatchOutput::Open(const std::string& path, const ResultForm& form) {
  BatchOutput output;
  COPPICE_ASSIGN_OR_RETURN(output.path_, ResolveOutput(path));
  output.file_ = FileDescriptor(open(output.path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (output.file_.get() < 0) return SystemError("write to the output", path);
  if (flock(output.file_.get(), LOCK_EX | LOCK_NB) != 0)
    return FailedPrecondition(
        fmt::format("{} is locked: another {} writes to it; wait for it or give another output", path, form.command));

  COPPICE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(output.path_, "the output"));
  LineReader::Line line;
  while (true) {
    COPPICE_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) return output;
    if (!line.complete) break;
    const ordered_json result = ParseResult(line);
    std::optional<std::string> key = KeyOf(result, form);
    if (!key) {
      return InvalidArgument(
          fmt::format("{0}:{1} is no result of {2}; give an output that does not exist yet, or one that {2} wrote", path,
                      line.number, form.command));
    }
    if (output.model_.empty()) output.model_ = ModelOf(result);
    output.finished_.emplace(*std::move(key), result["id"].get<std::string>());
    output.size_ = line.offset + line.size + 1;
  }
  // Only what looks like the beginning of a result is cut off: the file may not be one of ours.
  if (output.finished_.empty() && !MayBegin(line.text))
    return InvalidArgument(fmt::format("{} is no output of {}; give one that does not exist yet", path, form.command));
  spdlog::info("{}: the last line is torn and is dropped", path);
  if (ftruncate(output.file_.get(), output.size_) != 0) return SystemError("shorten", path);
  return output;
}

Status BatchOutput::CheckModel(std::string_view model) const {
  if (model_.empty() || model_ == model) return OkStatus();
  return FailedPrecondition(fmt::format("{} has answers of the model {}, and this one is {}; give that model, or another output",
                                        path_, Quoted(model_), Quoted(model)));
}

Status BatchOutput::Append(TextSource* line) {
  COPPICE_RETURN_IF_ERROR(CheckIsOurs());
  int64_t size = 0;
  const Status written = CatchExhaustion("writing an answer", [&] { return Write(line, &size); });
  if (!written.ok()) {
    // A part may have found room.
    if (ftruncate(file_.get(), size_) != 0) spdlog::info("{}: the last line stays torn; the next run drops it", path_);
    return written;
  }
  size_ += size;
  return Clock::now() - last_sync_ < kSyncInterval ? OkStatus() : Sync();
}

Status BatchOutput::Write(TextSource* line, int64_t* size) {
  std::string piece;
  for (bool more = true; more;) {
    piece.clear();
    more = line->Next(&piece);
    if (!more) piece += '\n';
    COPPICE_RETURN_IF_ERROR(WriteAll(file_.get(), piece, path_));
    *size += std::ssize(piece);
  }
  return OkStatus();
}

Status BatchOutput::Sync() {
  // Some file systems cannot; there is nothing to lose then.
  if (fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) return SystemError("write to", path_);
  last_sync_ = Clock::now();
  return CheckIsOurs();
}

Status BatchOutput::CheckIsOurs() const {
  struct stat open_file = {}, named = {};
  if (fstat(file_.get(), &open_file) != 0) return SystemError("look at", path_);
  const bool is_there = stat(path_.c_str(), &named) == 0 && named.st_dev == open_file.st_dev && named.st_ino == open_file.st_ino;
  if (!is_there)
    return DataLoss(
        fmt::format("{} was removed or moved by another program while answers were written to it; put it back, or run "
                    "the command again for what is missing",
                    path_));
  if (open_file.st_size == size_) return OkStatus();
  return DataLoss(
      fmt::format("{} has {} bytes, expected {}: another program changed it while answers were written to it; restore it, "
                  "or remove it and run the command again",
                  path_, open_file.st_size, size_));
}

Result<BatchErrors> BatchErrors::Open(const std::string& path) {
  BatchErrors errors;
  errors.path_ = path;
  COPPICE_ASSIGN_OR_RETURN(errors.resolved_, ResolveOutput(path));
  if (access(errors.resolved_.c_str(), F_OK) != 0) return errors;
  COPPICE_RETURN_IF_ERROR(ReadErrors(errors.resolved_, path).status());
  if (unlink(errors.resolved_.c_str()) != 0) return SystemError("remove the earlier", path);
  return errors;
}

Result<BatchErrors> BatchErrors::Resume(const std::string& path, int64_t most) {
  BatchErrors errors;
  errors.most_ = most;
  errors.path_ = path;
  errors.logs_ = false;
  COPPICE_ASSIGN_OR_RETURN(errors.resolved_, ResolveOutput(path));
  if (access(errors.resolved_.c_str(), F_OK) != 0) return errors;
  COPPICE_ASSIGN_OR_RETURN(EarlierErrors earlier, ReadErrors(errors.resolved_, path));
  errors.file_ = FileDescriptor(open(errors.resolved_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (errors.file_.get() < 0) return SystemError("write to", path);
  if (ftruncate(errors.file_.get(), earlier.size) != 0) return SystemError("shorten", path);
  errors.count_ = static_cast<int64_t>(earlier.lines.size());
  errors.size_ = earlier.size;
  errors.lines_ = std::move(earlier.lines);
  return errors;
}

void BatchErrors::Log(const Error& error) const {
  if (!logs_) return;
  if (count_ <= kErrorsReported) spdlog::warn("line {}: {}", error.line, OneLine(error.status.message()));
  if (count_ == kErrorsReported + 1) spdlog::warn("more errors: see {}", path_);
}

Status BatchErrors::Report(const Error& error) {
  if (!lines_.insert(error.line).second) return OkStatus();
  if (count_ >= most_) {
    ++count_;
    return OkStatus();
  }
  if (file_.get() < 0) {
    file_ = FileDescriptor(open(resolved_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_.get() < 0) return SystemError("write to", path_);
  }
  ++count_;
  Log(error);
  ordered_json line = {{"id", nullptr}, {"custom_id", nullptr}, {"response", nullptr}, {"error", nullptr}, {"line", error.line}};
  if (!error.id.empty()) line["id"] = "batch_req_" + error.id;
  if (!error.custom_id.empty()) line["custom_id"] = error.custom_id;
  if (error.id.empty() || !error.code.empty()) {  // not even a request, or not tried
    line["error"] = {{"code", error.code.empty() ? "invalid_request" : error.code},
                     {"message", error.status.message()},
                     {"param", error.param.empty() ? ordered_json() : ordered_json(error.param)},
                     {"line", error.line}};
  } else {
    line["response"] = {{"status_code", HttpStatus(error.status)},
                        {"request_id", "req_" + error.id},
                        {"body", ErrorBody(error.status, error.param)}};
  }
  const std::string text = DumpJson(std::move(line)) + "\n";
  COPPICE_RETURN_IF_ERROR(WriteAll(file_.get(), text, path_));
  size_ += std::ssize(text);
  return OkStatus();
}

}  // namespace coppice::openai
