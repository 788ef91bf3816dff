#include "server/batch_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/dismantle_json.h"
#include "core/json.h"
#include "core/quoted.h"
#include "model/mapped_file.h"
#include "server/errors.h"
#include "server/query.h"
#include "server/record.h"
#include "server/upload_form.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

HttpResponse NoFile(const std::string& id) { return ErrorResponse(404, fmt::format("there is no file {}", Quoted(id))); }
HttpResponse NoBatch(const std::string& id) { return ErrorResponse(404, fmt::format("there is no batch {}", Quoted(id))); }

// A page of `items`, oldest first, as the query wants them.
template <class Item>
HttpResponse Page(std::vector<Item> items, const ListQuery& query) {
  if (!query.ascending) std::ranges::reverse(items);
  auto begin = items.begin();
  if (!query.after.empty()) {
    begin = std::ranges::find(items, query.after, &Item::id);
    if (begin == items.end())
      return ErrorResponse(InvalidArgument(fmt::format("after is {}, expected an id of the list", Quoted(query.after))), "after");
    ++begin;
  }
  const auto end = begin + std::min<int64_t>(query.limit, items.end() - begin);
  ordered_json data = ordered_json::array();
  for (auto item = begin; item != end; ++item) data.push_back(ToJson(*item));
  const bool empty = data.empty();
  ordered_json body = {{"object", "list"},
                       {"first_id", empty ? ordered_json() : ordered_json(begin->id)},
                       {"last_id", empty ? ordered_json() : ordered_json((end - 1)->id)},
                       {"has_more", end != items.end()},
                       {"data", std::move(data)}};
  return {.body = DumpJson(std::move(body))};
}

// The HTTP response for an error of the store.
HttpResponse Refused(const Status& status, std::string_view param) {
  if (status.code() == StatusCode::kResourceExhausted) return ErrorResponse(429, status.message(), param);
  return ErrorResponse(status, param);
}

}  // namespace

HttpResponse BatchRoutes::Answer(std::string_view route, const std::string& key, const std::string& id,
                                 const HttpRequest& request) {
  if (!files_.enabled())
    return ErrorResponse(FailedPrecondition("the server keeps no files; --files FOLDER of the server lets it"));
  const bool post = request.method == "POST";
  if (route == kFilesPath) return post ? Upload(key, request) : ListFiles(key, request.query);
  if (route == kFilePath) return request.method == "DELETE" ? DeleteFile(key, id) : GetFile(key, id);
  if (route == kContentPath) return Content(key, id);
  if (route == kBatchesPath) return post ? Create(key, request.body) : ListBatches(key, request.query);
  return route == kCancelPath ? Cancel(key, id) : GetBatch(key, id);
}

HttpResponse BatchRoutes::Upload(const std::string& key, const HttpRequest& request) {
  std::optional<MappedFile> mapped;
  std::string_view body = request.body;
  if (request.body_file && request.body_file->size > 0) {
    Result<MappedFile> file = MappedFile::Open(fmt::format("/proc/self/fd/{}", request.body_file->file.get()));
    if (!file.ok()) return ErrorResponse(Internal("the upload cannot be read again"));
    mapped.emplace(*std::move(file));
    const auto bytes = mapped->bytes();
    body = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  openai::BodyError error;
  std::optional<UploadForm> form = ParseUploadForm(request.content_type, body, &error);
  if (!form) return ErrorResponse(error.status, error.param);
  if (std::ssize(form->data) > files_.options().max_bytes) {
    return ErrorResponse(
        413, fmt::format("the file has {} bytes, expected at most {}", form->data.size(), files_.options().max_bytes), "file");
  }
  form->info.key = key;
  const Result<FileInfo> kept = files_.Put(std::move(form->info), form->data);
  return kept.ok() ? HttpResponse{.body = DumpJson(ToJson(*kept))} : Refused(kept.status(), "file");
}

HttpResponse BatchRoutes::ListFiles(const std::string& key, const std::string& query) const {
  constexpr std::string_view kNames[] = {"purpose", "limit", "after", "order"};
  openai::BodyError error;
  const std::optional<ListQuery> list = ParseListQuery(query, kNames, /*default_limit=*/10'000, /*max_limit=*/10'000, &error);
  if (!list) return ErrorResponse(error.status, error.param);
  std::vector<FileInfo> files = files_.List(key);
  if (list->purpose) std::erase_if(files, [&](const FileInfo& info) { return info.purpose != *list->purpose; });
  return Page(std::move(files), *list);
}

HttpResponse BatchRoutes::GetFile(const std::string& key, const std::string& id) const {
  const std::optional<FileInfo> info = files_.Get(key, id);
  return info ? HttpResponse{.body = DumpJson(ToJson(*info))} : NoFile(id);
}

HttpResponse BatchRoutes::Content(const std::string& key, const std::string& id) const {
  std::shared_ptr<const BodyFile> file = files_.Open(key, id);
  if (!file) return NoFile(id);
  return {.content_type = "application/octet-stream",  // a client's own: no browser is to make anything of it
          .headers = {{"x-content-type-options", "nosniff"}, {"content-disposition", "attachment"}},
          .file = std::move(file)};
}

HttpResponse BatchRoutes::DeleteFile(const std::string& key, const std::string& id) {
  const Status deleted = files_.Delete(key, id);
  if (deleted.code() == StatusCode::kNotFound) return NoFile(id);
  if (!deleted.ok()) return ErrorResponse(409, deleted.message());
  return {.body = DumpJson({{"id", id}, {"object", "file"}, {"deleted", true}})};
}

HttpResponse BatchRoutes::Create(const std::string& key, const std::string& body) {
  Result<nlohmann::json> parsed = ParseJson(body);
  if (!parsed.ok()) return ErrorResponse(InvalidArgument("the body: " + parsed.status().message()));
  const DismantledJson<nlohmann::json> value(*std::move(parsed));
  openai::BodyError error;
  std::optional<Batch> batch = ParseBatch(*value, &error);
  if (!batch) return ErrorResponse(error.status, error.param);
  batch->key = key;
  const Result<Batch> created = batches_.Create(*std::move(batch));
  return created.ok() ? HttpResponse{.body = DumpJson(ToJson(*created))} : Refused(created.status(), "input_file_id");
}

HttpResponse BatchRoutes::ListBatches(const std::string& key, const std::string& query) const {
  constexpr std::string_view kNames[] = {"limit", "after"};
  openai::BodyError error;
  const std::optional<ListQuery> list = ParseListQuery(query, kNames, /*default_limit=*/20, /*max_limit=*/100, &error);
  if (!list) return ErrorResponse(error.status, error.param);
  return Page(batches_.List(key), *list);
}

HttpResponse BatchRoutes::GetBatch(const std::string& key, const std::string& id) const {
  const std::optional<Batch> batch = batches_.Get(key, id);
  return batch ? HttpResponse{.body = DumpJson(ToJson(*batch))} : NoBatch(id);
}

HttpResponse BatchRoutes::Cancel(const std::string& key, const std::string& id) {
  const Result<Batch> batch = batches_.Cancel(key, id);
  if (batch.ok()) return {.body = DumpJson(ToJson(*batch))};
  if (batch.status().code() == StatusCode::kNotFound) return NoBatch(id);
  if (batch.status().code() == StatusCode::kFailedPrecondition) return ErrorResponse(409, batch.status().message());
  return ErrorResponse(batch.status());
}

}  // namespace coppice::server
