#include "openai/response.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/dismantle_json.h"
#include "core/json.h"

namespace coppice::openai {

using nlohmann::ordered_json;

std::string_view ReasonOf(FinishReason reason, int32_t num_calls) {
  if (reason == FinishReason::kCancelled) return "abort";  // as vLLM has it; OpenAI's servers cancel none
  return num_calls > 0 && reason == FinishReason::kStop ? "tool_calls" : Name(reason);
}

std::string VersionName(const ResponseFacts& facts, int64_t version) {
  std::string label = facts.version_label ? facts.version_label(version) : std::string();
  return label.empty() ? std::to_string(version) : label;
}

ordered_json SharedPrefixOf(const SharedReads& reads) {
  return {{"tokens", reads.tokens}, {"sharers", reads.sharers}, {"kv_bytes_not_read", reads.kv_bytes_not_read}};
}

ordered_json UsageOf(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
          {"shared_prefix", SharedPrefixOf(usage.shared_reads)}};
}

int HttpStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 200;
    case StatusCode::kDeadlineExceeded: return 408;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable: return 503;
    case StatusCode::kInternal: return 500;
    default: return 400;
  }
}

ordered_json ErrorBody(const Status& status, std::string_view param) {
  return ErrorBody(HttpStatus(status), status.message(), param);
}

ordered_json ErrorBody(int http_status, std::string_view message, std::string_view param) {
  const std::string_view type = http_status == 401   ? "authentication_error"
                                : http_status == 429 ? "rate_limit_error"
                                : http_status < 500  ? "invalid_request_error"
                                                     : "server_error";
  // Sent where there is no memory too: no list of values, which the library takes apart with memory of its own.
  DismantledJson<ordered_json> body(OrderedObject(1));
  ordered_json& error = (*body)["error"] = OrderedObject(4);
  error["message"] = message;
  error["type"] = type;
  error["param"] = param.empty() ? ordered_json() : ordered_json(param);
  error["code"] = http_status == 401 ? ordered_json("invalid_api_key") : ordered_json();
  return std::move(*body);
}

std::string DataEvent(ordered_json data) { return "data: " + DumpJson(std::move(data)) + "\n\n"; }

}  // namespace coppice::openai
