#include "server/batch.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/check.h"
#include "openai/field_reader.h"
#include "server/record.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kWindowSeconds = 24 * 60 * 60;                                     // the one completion window there is
constexpr size_t kMaxMetadata = 16, kMaxMetadataName = 64, kMaxMetadataValue = 512;  // OpenAI's limits
constexpr int64_t kShortestLife = 3600, kLongestLife = 30 * 24 * 3600;               // of output files, in seconds; OpenAI's too

constexpr std::array kStates = {BatchState::kValidating, BatchState::kInProgress, BatchState::kFinalizing, BatchState::kCompleted,
                                BatchState::kFailed,     BatchState::kExpired,    BatchState::kCancelling, BatchState::kCancelled};

// The times of a batch with their names.
struct Time {
  const char* name;
  std::optional<int64_t> Batch::*field;
};
constexpr Time kTimes[] = {{"in_progress_at", &Batch::in_progress}, {"finalizing_at", &Batch::finalizing},
                           {"completed_at", &Batch::completed},     {"failed_at", &Batch::failed},
                           {"expired_at", &Batch::expired},         {"cancelling_at", &Batch::cancelling},
                           {"cancelled_at", &Batch::cancelled}};

ordered_json OrNull(bool there, const std::string& text) { return there ? ordered_json(text) : ordered_json(); }

void TakeMetadata(openai::FieldReader& fields, ordered_json* metadata) {
  const json* value = fields.Find("metadata");
  if (!value) return;
  const std::string expected = fmt::format("an object of {} strings at most, names of {} and values of {} bytes at most",
                                           kMaxMetadata, kMaxMetadataName, kMaxMetadataValue);
  if (!value->is_object() || value->size() > kMaxMetadata) return fields.Expect("metadata", *value, expected);
  *metadata = ordered_json::object();
  for (const auto& [name, text] : value->items()) {
    if (name.size() > kMaxMetadataName || !text.is_string() || text.get_ref<const std::string&>().size() > kMaxMetadataValue)
      return fields.Expect("metadata", *value, expected);
    (*metadata)[name] = text.get<std::string>();
  }
}

void TakeLifetime(openai::FieldReader& fields, std::optional<int64_t>* seconds) {
  constexpr const char* kName = "output_expires_after";
  const json* value = fields.Find(kName);
  if (!value) return;
  const auto has = [&](const char* name) { return value->is_object() && value->contains(name); };
  const bool known = has("anchor") && has("seconds") && value->size() == 2 && (*value)["anchor"] == "created_at" &&
                     (*value)["seconds"].is_number_integer();
  if (known && (*value)["seconds"] >= kShortestLife && (*value)["seconds"] <= kLongestLife) {
    *seconds = (*value)["seconds"].get<int64_t>();
  } else {
    fields.Expect(kName, *value, fmt::format("{{\"anchor\": \"created_at\", \"seconds\": {}..{}}}", kShortestLife, kLongestLife));
  }
}

}  // namespace

std::string_view Name(BatchState state) {
  switch (state) {
    case BatchState::kValidating: return "validating";
    case BatchState::kInProgress: return "in_progress";
    case BatchState::kFinalizing: return "finalizing";
    case BatchState::kCompleted: return "completed";
    case BatchState::kFailed: return "failed";
    case BatchState::kExpired: return "expired";
    case BatchState::kCancelling: return "cancelling";
    case BatchState::kCancelled: return "cancelled";
  }
  return "?";
}

void Batch::Enter(BatchState next) {
  state = next;
  for (const auto& [name, field] : kTimes) {
    if (std::string_view(name).starts_with(Name(next)) && !(this->*field)) this->*field = SecondsNow();
  }
}

std::optional<Batch> ParseBatch(const json& body, openai::BodyError* error) {
  if (!body.is_object()) return openai::RefuseBody(body, error);
  openai::FieldReader fields(body);
  Batch batch;
  std::string endpoint, window;
  fields.Take("input_file_id", &batch.input_file_id);
  fields.Take("endpoint", &endpoint);
  fields.Take("completion_window", &window);
  for (const auto& [name, text] : {std::pair("input_file_id", &batch.input_file_id), std::pair("endpoint", &endpoint),
                                   std::pair("completion_window", &window)}) {
    if (text->empty()) fields.Fail(name, InvalidArgument(fmt::format("{} is missing or empty", name)));
  }
  if (const Result<openai::Endpoint> known = openai::ParseUrl(endpoint); known.ok()) {
    batch.endpoint = *known;
  } else {
    fields.Fail("endpoint", InvalidArgument("endpoint: " + known.status().message()));
  }
  if (window != "24h") fields.Fail("completion_window", InvalidArgument("completion_window is another one, expected \"24h\""));
  TakeMetadata(fields, &batch.metadata);
  TakeLifetime(fields, &batch.output_expires_after);
  *error = fields.Finish();
  if (!error->status.ok()) return std::nullopt;
  batch.created = SecondsNow();
  batch.expires = batch.created + kWindowSeconds;
  return batch;
}

ordered_json ToJson(const Batch& batch) {
  ordered_json errors;
  if (!batch.errors.empty()) {
    ordered_json list = ordered_json::array();
    for (const auto& [code, message] : batch.errors)
      list.push_back({{"code", code}, {"message", message}, {"param", nullptr}, {"line", nullptr}});
    errors = {{"object", "list"}, {"data", std::move(list)}};
  }
  ordered_json json = {{"id", batch.id},
                       {"object", "batch"},
                       {"endpoint", openai::Url(batch.endpoint)},
                       {"errors", std::move(errors)},
                       {"input_file_id", batch.input_file_id},
                       {"completion_window", "24h"},
                       {"status", Name(batch.state)},
                       {"output_file_id", OrNull(batch.has_output, batch.output_file_id)},
                       {"error_file_id", OrNull(batch.has_errors, batch.error_file_id)},
                       {"created_at", batch.created},
                       {"expires_at", batch.expires}};
  for (const auto& [name, field] : kTimes) json[name] = batch.*field ? ordered_json(*(batch.*field)) : ordered_json();
  json["request_counts"] = {{"total", batch.num_requests}, {"completed", batch.num_completed}, {"failed", batch.num_failed}};
  json["metadata"] = batch.metadata;
  return json;
}

ordered_json ToRecord(const Batch& batch) {
  ordered_json record = {{"key", batch.key},
                         {"endpoint", openai::Url(batch.endpoint)},
                         {"input_file_id", batch.input_file_id},
                         {"output_file_id", batch.output_file_id},
                         {"error_file_id", batch.error_file_id},
                         {"has_output", batch.has_output ? 1 : 0},
                         {"has_errors", batch.has_errors ? 1 : 0},
                         {"status", Name(batch.state)},
                         {"created", batch.created},
                         {"expires", batch.expires},
                         {"num_requests", batch.num_requests},
                         {"num_completed", batch.num_completed},
                         {"num_failed", batch.num_failed},
                         {"metadata", batch.metadata}};
  if (batch.output_expires_after) record["output_expires_after"] = *batch.output_expires_after;
  for (const auto& [name, field] : kTimes) {
    if (batch.*field) record[name] = *(batch.*field);
  }
  ordered_json errors = ordered_json::array();
  for (const auto& [code, message] : batch.errors) errors.push_back({{"code", code}, {"message", message}});
  record["errors"] = std::move(errors);
  return record;
}

Result<Batch> ParseRecord(const std::string& id, const json& value) {
  RecordReader record(value);
  Batch batch = {.id = id};
  batch.key = record.String("key");
  const std::string endpoint = record.String("endpoint"), state = record.String("status");
  batch.input_file_id = record.String("input_file_id");
  batch.output_file_id = record.String("output_file_id");
  batch.error_file_id = record.String("error_file_id");
  batch.has_output = record.Integer("has_output") != 0;
  batch.has_errors = record.Integer("has_errors") != 0;
  batch.created = record.Integer("created");
  batch.expires = record.Integer("expires");
  batch.num_requests = record.Integer("num_requests");
  batch.num_completed = record.Integer("num_completed");
  batch.num_failed = record.Integer("num_failed");
  batch.output_expires_after = record.OptionalInteger("output_expires_after");
  for (const auto& [name, field] : kTimes) batch.*field = record.OptionalInteger(name);
  COPPICE_RETURN_IF_ERROR(record.status());
  COPPICE_ASSIGN_OR_RETURN(batch.endpoint, openai::ParseUrl(endpoint));
  bool known = false;
  for (const BatchState one : kStates) {
    if (Name(one) != state) continue;
    batch.state = one;
    known = true;
  }
  if (!known) return InvalidArgument("it is no record: status is another one");
  for (const std::string* file : {&batch.output_file_id, &batch.error_file_id}) {
    if (!IsNamed(*file, "file-")) return InvalidArgument("it is no record: a file of it has no name of ours");
  }
  if (value.contains("metadata") && value["metadata"].is_object()) batch.metadata = ordered_json(value["metadata"]);
  if (!value.contains("errors") || !value["errors"].is_array()) return batch;
  for (const json& error : value["errors"]) {
    RecordReader reader(error);
    batch.errors.push_back({reader.String("code"), reader.String("message")});
    COPPICE_RETURN_IF_ERROR(reader.status());
  }
  return batch;
}

}  // namespace coppice::server
