// Fields of a request that this server does not know. Clients send what other servers read, so most are left out of account, and
// reported; what would change the answer is refused. Layer: openai.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::openai {

enum class UnknownFields : uint8_t { kIgnore, kRefuse };
// "ignore" or "refuse".
Result<UnknownFields> ParseUnknownFields(std::string_view name);

// The unknown fields of one request, and their fate.
struct UnknownFieldsOf {
  UnknownFields rule = UnknownFields::kRefuse;
  std::vector<std::string> ignored = {};  // where they lie, such as "logit_scale" or "messages[0].mood"
};

// Of a field of a request's body that other servers read and this one does not: why it would change the answer, and so is refused
// whatever the rule; OK where its value asks for nothing. Nothing: no server reads a field of that name, as far as is known here.
std::optional<Status> CheckEffect(const std::string& name, const nlohmann::json& value);

// The ignored fields of a file of requests.
class IgnoredFields {
 public:
  void Add(const std::vector<std::string>& fields);
  // A warning, where there were any; `where`: the file.
  void Log(const std::string& where) const;

 private:
  std::set<std::string> names_;  // without indices; not too many
  int64_t requests_ = 0;
};

// The names for one line of a header or log: printable, and no more than fit.
std::string Listed(const std::vector<std::string>& names);

}  // namespace coppice::openai
