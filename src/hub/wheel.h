// Files inside a wheel, which is a zip archive, and where a package index has wheels. Layer: hub.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "hub/digest.h"
#include "hub/http_client.h"

namespace coppice::hub {

struct WheelFile {
  std::string file_name, url;
  FileCheck check;
};

// The wheel of a project's version in a package index with the JSON form of the simple API (PEP 691); `index` is its address, such
// as https://pypi.org/simple. NOT_FOUND if it has none that every machine can take.
Result<WheelFile> FindWheel(HttpClient& client, const std::string& index, std::string_view project, std::string_view version);

// Calls write for the bytes of a member, in order. DATA_LOSS for an archive that cannot be read or has more than `most_bytes` of
// it, NOT_FOUND for one without the member.
Status ReadMember(const std::string& wheel, std::string_view member, int64_t most_bytes,
                  const std::function<Status(std::span<const std::byte>)>& write);

}  // namespace coppice::hub
