// The routes of /v1/files and /v1/batches. Knows no sockets. Layer: server.
#pragma once

#include <string>
#include <string_view>

#include "server/batch_store.h"
#include "server/file_store.h"
#include "server/http.h"

namespace coppice::server {

inline constexpr std::string_view kFilesPath = "/v1/files", kFilePath = "/v1/files/{file_id}",
                                  kContentPath = "/v1/files/{file_id}/content", kBatchesPath = "/v1/batches",
                                  kBatchPath = "/v1/batches/{batch_id}", kCancelPath = "/v1/batches/{batch_id}/cancel";

// The largest body of an upload whose file may have `max_file_bytes`: a form has other fields and boundaries beside it.
constexpr int64_t MaxUploadBytes(int64_t max_file_bytes) { return max_file_bytes + (int64_t{64} << 10); }

// Thread-safe.
class BatchRoutes {
 public:
  // Both outlive this.
  BatchRoutes(FileStore* files, BatchStore* batches) : files_(*files), batches_(*batches) {}

  // `route`: one of the paths above, which takes `request.method`; `id`: what stands for its variable.
  HttpResponse Answer(std::string_view route, const std::string& key, const std::string& id, const HttpRequest& request);

 private:
  HttpResponse Upload(const std::string& key, const HttpRequest& request);
  HttpResponse ListFiles(const std::string& key, const std::string& query) const;
  HttpResponse GetFile(const std::string& key, const std::string& id) const;
  HttpResponse Content(const std::string& key, const std::string& id) const;
  HttpResponse DeleteFile(const std::string& key, const std::string& id);
  HttpResponse Create(const std::string& key, const std::string& body);
  HttpResponse ListBatches(const std::string& key, const std::string& query) const;
  HttpResponse GetBatch(const std::string& key, const std::string& id) const;
  HttpResponse Cancel(const std::string& key, const std::string& id);

  FileStore& files_;
  BatchStore& batches_;
};

}  // namespace coppice::server
