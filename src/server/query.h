// The part of a target behind '?': names and values. Layer: server.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "openai/body_error.h"

namespace coppice::server {

// Names and values in the order of the query, decoded; a name without "=" has an empty value.
std::vector<std::pair<std::string, std::string>> ParseQuery(std::string_view query);
// A part of a path, decoded: a + stands for itself.
std::string DecodedPath(std::string_view text);
using QueryValues = std::map<std::string, std::string>;

// Values by names, which are of `names`; others are refused, and one that is given twice. On an error, `error->param` names the
// parameter.
std::optional<QueryValues> ParseQuery(std::string_view query, std::span<const std::string_view> names, openai::BodyError* error);

// The query of a list.
struct ListQuery {
  std::optional<std::string> purpose;  // of files
  std::string after;                   // an id; empty: from the beginning
  int64_t limit = 0;
  bool ascending = false;  // oldest first
};

// `names`: of "after", "limit", "order" and "purpose" those that the list takes; others are refused. `limit` is 1..`max_limit`.
// On an error, `error->param` names the parameter.
std::optional<ListQuery> ParseListQuery(std::string_view query, std::span<const std::string_view> names, int64_t default_limit,
                                        int64_t max_limit, openai::BodyError* error);

}  // namespace coppice::server
