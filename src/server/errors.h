// Errors as answers: OpenAI's error object with the HTTP status of what happened. Layer: server.
#pragma once

#include <cstdint>
#include <string_view>

#include "coppice/core/status.h"
#include "server/http.h"

namespace coppice::server {

inline constexpr int64_t kRetryAfterSeconds = 1;

// `param`: the field of the body that is wrong; may be empty. 429 and 503 carry Retry-After.
HttpResponse ErrorResponse(const Status& status, std::string_view param = {});
// With an HTTP status of its own: 401, 404, 405, 413, 415, 429.
HttpResponse ErrorResponse(int http_status, std::string_view message, std::string_view param = {},
                           int64_t retry_after_seconds = kRetryAfterSeconds);

// Of calls on what the server keeps, samples and prefixes: NOT_FOUND is 404, FAILED_PRECONDITION 409, RESOURCE_EXHAUSTED 429.
HttpResponse KeptErrorResponse(const Status& status);

// The client's message of a file that the server cannot write, without the server's paths, which the log has: UNAVAILABLE where
// the disk is full, else INTERNAL.
Status DiskProblem(const Status& status);

}  // namespace coppice::server
