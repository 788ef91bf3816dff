// The form that POST /v1/files takes, as OpenAI has it. Knows no files: the data is a part of the body. Layer: server.
#pragma once

#include <optional>
#include <string_view>

#include "openai/body_error.h"
#include "server/file_store.h"

namespace coppice::server {

struct UploadForm {
  FileInfo info;  // filename, purpose and expires alone
  std::string_view data;
};

// On an error, `error->param` names the field; it is empty where the body is no form.
std::optional<UploadForm> ParseUploadForm(std::string_view content_type, std::string_view body, openai::BodyError* error);

}  // namespace coppice::server
