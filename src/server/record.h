// Records that the server keeps in folders: small files of JSON, their names and their fields. Layer: server.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice::server {

// 32 hex digits that nobody guesses and no other record has.
std::string RandomName();
// Whether `name` is `begin` and a RandomName.
bool IsNamed(std::string_view name, std::string_view begin);
int64_t SecondsNow();  // since 1970
Result<std::string> ReadTextFile(const std::string& path);
Result<nlohmann::json> ReadJsonFile(const std::string& path);

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
