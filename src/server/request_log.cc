#include "server/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/dismantle_json.h"
#include "core/json.h"
#include "core/quoted.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostMethod = 20, kMostPath = 200, kMostReason = 400;  // bytes, of what clients send or bring about

bool HasRoute(const Call& call) { return call.route != kNoRoute; }

std::string JsonLine(const Call& call, int status, double seconds) {
  DismantledJson<ordered_json> dismantled(ordered_json::object());
  ordered_json& line = *dismantled;
  line["request"] = call.request.id;
  line["peer"] = call.request.peer;
  line["key"] = call.key;
  line["method"] = Printable(call.request.method, kMostMethod);
  line["route"] = call.route;
  if (!HasRoute(call)) line["path"] = Printable(call.request.path, kMostPath);
  line["status"] = status;
  line["seconds"] = seconds;
  line["prompt_tokens"] = call.usage.prompt;
  line["cached_tokens"] = call.usage.cached;
  line["completion_tokens"] = call.usage.completion;
  line["traceparent"] = call.request.traceparent;
  if (!call.reason.empty()) line["reason"] = Printable(call.reason, kMostReason);
  if (!call.ignored_fields.empty()) line["ignored_fields"] = call.ignored_fields;
  if (!call.logged_body.empty()) line["body"] = call.logged_body;
  return DumpJson(std::move(line));
}

std::string TextLine(const Call& call, int status, double seconds) {
  std::string line =
      fmt::format("{} {} {} {:.2f} s", Printable(call.request.method, kMostMethod),
                  HasRoute(call) ? std::string(call.route) : Printable(call.request.path, kMostPath), status, seconds);
  const auto out = std::back_inserter(line);
  if (call.usage.prompt > 0)
    fmt::format_to(out, ", {}+{} tokens, {} cached", call.usage.prompt, call.usage.completion, call.usage.cached);
  if (!call.key.empty()) fmt::format_to(out, ", key {}", call.key);
  // Peer and request id, to be looked for in the logs of a proxy or a client.
  if (status >= 400) fmt::format_to(out, ", from {}, request {}", call.request.peer, call.request.id);
  if (!call.ignored_fields.empty()) fmt::format_to(out, ", ignored {}", call.ignored_fields);
  if (!call.reason.empty()) fmt::format_to(out, ": {}", Printable(call.reason, kMostReason));
  if (!call.logged_body.empty()) fmt::format_to(out, "; body {}", DumpJson(call.logged_body));
  return line;
}

}  // namespace

std::string RequestLine(const Call& call, int status, double seconds, LogForm form) {
  return form == LogForm::kJson ? JsonLine(call, status, seconds) : TextLine(call, status, seconds);
}

bool IsPoll(const Call& call, int status) {
  constexpr std::array<std::string_view, 8> kPolled = {"/health",  "/ready",     "/metrics",     "/v1/tree",
                                                       "/v1/plan", "/is_paused", "/is_sleeping", "/server_info"};
  return status == 200 && std::ranges::find(kPolled, call.route) != kPolled.end();
}

}  // namespace coppice::server
