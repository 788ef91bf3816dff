#include "server/errors.h"

#include <spdlog/spdlog.h>

#include <string>

#include "coppice/core/status.h"
#include "core/check.h"
#include "core/json.h"
#include "openai/response.h"

namespace coppice::server {
HttpResponse ErrorResponse(const Status& status, std::string_view param) {
  return ErrorResponse(openai::HttpStatus(status), status.message(), param);
}

HttpResponse ErrorResponse(int http_status, std::string_view message, std::string_view param, int64_t retry_after_seconds) {
  HttpResponse response = {
      .status = http_status, .body = DumpJson(openai::ErrorBody(http_status, message, param)), .reason = std::string(message)};
  if (http_status == 429 || http_status == 503) response.headers.emplace_back("retry-after", std::to_string(retry_after_seconds));
  return response;
}

HttpResponse KeptErrorResponse(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound: return ErrorResponse(404, status.message());
    case StatusCode::kFailedPrecondition: return ErrorResponse(409, status.message());
    case StatusCode::kResourceExhausted: return ErrorResponse(429, status.message());
    default: return ErrorResponse(status);
  }
}

Status DiskProblem(const Status& status) {
  spdlog::error("{}", status.message());
  if (status.code() == StatusCode::kResourceExhausted)
    return Unavailable("the server has no room for files; send this one again later");
  return Internal("the server cannot write to its files; its log says why");
}

}  // namespace coppice::server
