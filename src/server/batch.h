// A batch of /v1/batches as the server keeps it: what was asked for, how far it is, and its forms in answers and on the disk.
// Layer: server.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "openai/body_error.h"
#include "openai/request.h"

namespace coppice::server {

enum class BatchState : uint8_t { kValidating, kInProgress, kFinalizing, kCompleted, kFailed, kExpired, kCancelling, kCancelled };
// OpenAI's word.
std::string_view Name(BatchState state);

// Why a batch failed.
struct BatchError {
  std::string code, message;
};

struct Batch {
  std::string id, key;  // of the API key
  openai::Endpoint endpoint = openai::Endpoint::kCompletions;
  std::string input_file_id;
  nlohmann::ordered_json metadata;              // an object of strings, or null
  std::optional<int64_t> output_expires_after;  // seconds
  std::string output_file_id, error_file_id;    // given from the beginning; files when it has ended, if anything is in them
  bool has_output = false, has_errors = false;  // they are files

  BatchState state = BatchState::kValidating;
  int64_t created = 0, expires = 0;  // seconds since 1970, like all times
  std::optional<int64_t> in_progress, finalizing, completed, failed, expired, cancelling, cancelled;
  int64_t num_requests = 0, num_completed = 0, num_failed = 0;
  std::vector<BatchError> errors;

  bool ended() const {
    return state == BatchState::kCompleted || state == BatchState::kFailed || state == BatchState::kExpired ||
           state == BatchState::kCancelled;
  }
  // Goes over to `next`, now.
  void Enter(BatchState next);
};

// A body of POST /v1/batches as a batch without id and files. On an error, `error->param` names the field.
std::optional<Batch> ParseBatch(const nlohmann::json& body, openai::BodyError* error);
// As answers have it.
nlohmann::ordered_json ToJson(const Batch& batch);
// As it lies on the disk, and back.
nlohmann::ordered_json ToRecord(const Batch& batch);
Result<Batch> ParseRecord(const std::string& id, const nlohmann::json& value);

}  // namespace coppice::server
