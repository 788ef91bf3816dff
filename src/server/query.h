// The part of a target behind '?': names and values. Layer: server.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "openai/body_error.h"

namespace coppice::server {

// What lists are asked for.
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
