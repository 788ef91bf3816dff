// Records that the server keeps in folders: small files of JSON, their names and their fields. Layer: server.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "core/random_bytes.h"

namespace coppice::server {

inline constexpr const char* kRecordSuffix = ".json";

// 32 hex digits, unique and not to be guessed.
inline std::string RandomName() { return RandomHex(16); }
// Whether `name` is `begin` and a RandomName.
bool IsNamed(std::string_view name, std::string_view begin);
int64_t SecondsNow();  // since 1970
// The text of a record: of a regular file that is no link and of a size that the server writes, else INVALID_ARGUMENT.
Result<std::string> ReadRecordText(const std::string& path);
Result<nlohmann::json> ReadRecord(const std::string& path);
// Makes a folder for records where there is none, its owner's alone; says in the log where others may read what it holds or change
// it. INVALID_ARGUMENT: it cannot be used.
Status PrepareFolder(const std::string& folder);

// Takes fields of a record; the first one that is missing or of another type is its status.
class RecordReader {
 public:
  explicit RecordReader(const nlohmann::json& record) : record_(record) {}

  std::string String(const char* name);
  int64_t Integer(const char* name);  // 0..2^53
  std::optional<int64_t> OptionalInteger(const char* name);
  const Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const char* name);
  void Fail(const char* name);

  const nlohmann::json& record_;
  Status status_;
};

}  // namespace coppice::server
