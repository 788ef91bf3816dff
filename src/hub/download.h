// A file from the network onto the disk: resumed where an earlier attempt ended, checked, and then put into its place at once.
// Layer: hub.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "coppice/core/status.h"
#include "hub/digest.h"
#include "hub/http_client.h"

namespace coppice::hub {

// Bytes of a file that are there, of all.
using Progress = std::function<void(const std::string& file, int64_t done, int64_t bytes)>;

struct DownloadRequest {
  std::string url, bearer;  // as HttpRequest has them
  std::string path;         // of the result; path + ".part" is what has come so far
  FileCheck check;
};

// FAILED_PRECONDITION if another process fetches the same file. DATA_LOSS if what came is not what was expected: it is not kept.
// UNAVAILABLE or CANCELLED: what has come stays, for the next call. Else as HttpClient::Get, or the system's reason.
Status Download(HttpClient& client, const DownloadRequest& request, const Progress& progress);

}  // namespace coppice::hub
