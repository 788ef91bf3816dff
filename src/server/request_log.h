// The line that the log has of an answered request: for people, or a JSON object for programs. Layer: server.
#pragma once

#include <cstdint>
#include <string>

#include "server/call.h"

namespace coppice::server {

enum class LogForm : uint8_t {
  kText,  // POST /v1/chat/completions 200 0.14 s, 31+20 tokens, 30 cached, key alice
  kJson,
};

// No prompt and no output, but for Call::logged_body. The path as it was sent is there where it is none of the server's.
std::string RequestLine(const Call& call, int status, double seconds, LogForm form);
// Whether the request is one that watchers of a server make again and again, and went well.
bool IsPoll(const Call& call, int status);

}  // namespace coppice::server
