#include "server/record.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace coppice::server {
namespace {

constexpr size_t kNameDigits = 32;
constexpr size_t kMostBytes = size_t{64} << 20;  // of a record: a body of 10 MiB, its tokens and what JSON writes around them
constexpr int64_t kLargest = int64_t{1} << 53;   // what any reader of JSON holds

}  // namespace

bool IsNamed(std::string_view name, std::string_view begin) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() == begin.size() + kNameDigits && name.starts_with(begin) &&
         std::ranges::all_of(name.substr(begin.size()), is_digit);
}

int64_t SecondsNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<std::string> ReadRecordText(const std::string& path) { return ReadRegularFile(path, kMostBytes, Links::kRefused); }

Result<nlohmann::json> ReadRecord(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadRecordText(path));
  return ParseJson(text);
}

Status PrepareFolder(const std::string& folder) {
  COPPICE_RETURN_IF_ERROR(MakePrivateFolder(folder));
  COPPICE_ASSIGN_OR_RETURN(const OthersAccess others, AccessOfOthers(folder));
  if (others.write) {
    spdlog::warn("{} may be written to by others: they could change what clients get. chmod 700 {}", folder, folder);
  } else if (others.read) {
    spdlog::warn("{} may be read by others, and holds prompts and answers: chmod 700 {}", folder, folder);
  }
  return OkStatus();
}

const nlohmann::json* RecordReader::Find(const char* name) {
  if (!record_.is_object()) {
    if (status_.ok()) status_ = InvalidArgument("it is no record");
    return nullptr;
  }
  const auto found = record_.find(name);
  return found == record_.end() ? nullptr : &*found;
}

void RecordReader::Fail(const char* name) {
  if (status_.ok()) status_ = InvalidArgument(fmt::format("it is no record: {} is missing or of another type", name));
}

std::string RecordReader::String(const char* name) {
  const nlohmann::json* value = Find(name);
  if (value && value->is_string()) return value->get<std::string>();
  Fail(name);
  return {};
}

int64_t RecordReader::Integer(const char* name) {
  const std::optional<int64_t> value = OptionalInteger(name);
  if (!value) Fail(name);
  return value.value_or(0);
}

std::optional<int64_t> RecordReader::OptionalInteger(const char* name) {
  const nlohmann::json* value = Find(name);
  if (!value) return std::nullopt;
  if (value->is_number_integer()) {
    const int64_t number =
        value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(kLargest) ? -1 : value->get<int64_t>();
    if (number >= 0 && number <= kLargest) return number;
  }
  Fail(name);
  return std::nullopt;
}

}  // namespace coppice::server
