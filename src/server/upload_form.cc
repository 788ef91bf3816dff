#include "server/upload_form.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/quoted.h"
#include "server/multipart_form.h"
#include "server/record.h"

namespace coppice::server {
namespace {

constexpr int64_t kShortestLife = 3600, kLongestLife = 30 * 24 * 3600;  // of an upload, in seconds; OpenAI's limits
constexpr size_t kMaxFilename = 255;                                    // bytes, as file systems have it

}  // namespace

std::optional<UploadForm> ParseUploadForm(std::string_view content_type, std::string_view body, openai::BodyError* error) {
  const auto fail = [&](std::string param, std::string message) {
    *error = {InvalidArgument(std::move(message)), std::move(param)};
    return std::nullopt;
  };
  const Result<std::string> boundary = BoundaryOf(content_type);
  if (!boundary.ok()) return fail("", boundary.status().message());
  const Result<std::vector<FormField>> fields = ParseForm(body, *boundary);
  if (!fields.ok()) return fail("", fields.status().message());
  UploadForm form;
  bool has_file = false;
  std::string anchor;
  std::optional<int64_t> seconds;
  for (const FormField& field : *fields) {
    const std::string shown = Quoted(field.value.substr(0, 100));
    if (field.name == "file") {
      if (!field.filename || field.filename->empty() || field.filename->size() > kMaxFilename)
        return fail("file", fmt::format("file has no filename, or one of more than {} bytes", kMaxFilename));
      form.info.filename = *field.filename;
      form.data = field.value;
      has_file = true;
    } else if (field.name == "purpose") {
      if (field.value != "batch") return fail("purpose", fmt::format("purpose is {}, expected batch", shown));
      form.info.purpose = field.value;
    } else if (field.name == "expires_after[anchor]") {
      if (field.value != "created_at") return fail("expires_after", fmt::format("anchor is {}, expected created_at", shown));
      anchor = field.value;
    } else if (field.name == "expires_after[seconds]") {
      int64_t value = 0;
      const auto [end, failed] = std::from_chars(field.value.data(), field.value.data() + field.value.size(), value);
      if (failed != std::errc() || end != field.value.data() + field.value.size() || value < kShortestLife || value > kLongestLife)
        return fail("expires_after", fmt::format("seconds is {}, expected {}..{}", shown, kShortestLife, kLongestLife));
      seconds = value;
    } else {
      return fail(Printable(field.name, 100), fmt::format("{} is not supported; leave it out", Quoted(field.name)));
    }
  }
  if (!has_file) return fail("file", "file is missing");
  if (form.info.purpose.empty()) return fail("purpose", "purpose is missing, expected batch");
  if (anchor.empty() != !seconds) return fail("expires_after", "expires_after has an anchor or seconds alone, expected both");
  if (seconds) form.info.expires = SecondsNow() + *seconds;
  if (form.data.empty()) return fail("file", "file is empty");
  return form;
}

}  // namespace coppice::server
