#include "server/query.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/quoted.h"

namespace coppice::server {
namespace {

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// %XX as what it stands for, and + as `plus`; a % without two digits stands for itself.
std::string Decoded(std::string_view text, char plus) {
  std::string decoded;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '+') {
      decoded.push_back(plus);
      continue;
    }
    const std::optional<int> high = text[at] == '%' && at + 2 < text.size() ? HexDigit(text[at + 1]) : std::nullopt;
    const std::optional<int> low = high ? HexDigit(text[at + 2]) : std::nullopt;
    if (low) at += 2;
    decoded.push_back(low ? static_cast<char>(*high * 16 + *low) : text[at]);
  }
  return decoded;
}

}  // namespace

std::string DecodedPath(std::string_view text) { return Decoded(text, '+'); }

std::vector<std::pair<std::string, std::string>> ParseQuery(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> values;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    values.emplace_back(Decoded(pair.substr(0, equals), ' '),
                        equals < pair.size() ? Decoded(pair.substr(equals + 1), ' ') : std::string());
  }
  return values;
}

std::optional<QueryValues> ParseQuery(std::string_view query, std::span<const std::string_view> names, openai::BodyError* error) {
  const auto fail = [&](const std::string& name, std::string message) {
    *error = {InvalidArgument(std::move(message)), name};
    return std::nullopt;
  };
  QueryValues values;
  for (auto& [name, value] : ParseQuery(query)) {
    if (std::ranges::find(names, name) == names.end())
      return fail("query", fmt::format("{} is no parameter here, expected {}", Quoted(name), fmt::join(names, ", ")));
    if (const auto [at, is_new] = values.emplace(name, std::move(value)); !is_new) return fail(name, name + " is given twice");
  }
  return values;
}

std::optional<ListQuery> ParseListQuery(std::string_view query, std::span<const std::string_view> names, int64_t default_limit,
                                        int64_t max_limit, openai::BodyError* error) {
  const auto fail = [&](const std::string& name, std::string message) {
    *error = {InvalidArgument(std::move(message)), name};
    return std::nullopt;
  };
  const std::optional<QueryValues> parsed = ParseQuery(query, names, error);
  if (!parsed) return std::nullopt;
  const QueryValues& values = *parsed;
  ListQuery list = {.limit = default_limit};
  if (const auto limit = values.find("limit"); limit != values.end()) {
    const std::string& text = limit->second;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), list.limit);
    if (failed != std::errc() || end != text.data() + text.size() || list.limit < 1 || list.limit > max_limit)
      return fail("limit", fmt::format("limit is {}, expected an integer in 1..{}", Quoted(text), max_limit));
  }
  if (const auto order = values.find("order"); order != values.end()) {
    if (order->second != "asc" && order->second != "desc")
      return fail("order", fmt::format("order is {}, expected asc or desc", Quoted(order->second)));
    list.ascending = order->second == "asc";
  }
  if (const auto after = values.find("after"); after != values.end()) list.after = after->second;
  if (const auto purpose = values.find("purpose"); purpose != values.end()) list.purpose = purpose->second;
  return list;
}

}  // namespace coppice::server
