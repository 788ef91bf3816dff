// Input: the Content-Type and, behind a NUL byte, the body of an upload.
#include <string>

#include "server/multipart_form.h"
#include "server/upload_form.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using namespace coppice::server;
using fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [content_type, body] = fuzz::SplitInput<2>(data, size);
  const Result<std::string> boundary = BoundaryOf(content_type);
  if (boundary.ok()) {
    if (const auto fields = ParseForm(body, *boundary); fields.ok()) {
      std::string again;  // as a client would write them
      for (const FormField& field : *fields) {
        Require(field.value.empty() ||
                    (field.value.data() >= body.data() && field.value.data() + field.value.size() <= body.data() + body.size()),
                "a field outside the body");
        Require(field.value.find("\r\n--" + *boundary) == field.value.npos, "a boundary within a field");
        again += "--" + *boundary + "\r\nContent-Disposition: form-data; name=\"";
        for (const char c : field.name) again += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
        again += "\"\r\n\r\n" + std::string(field.value) + "\r\n";
      }
      again += "--" + *boundary + "--";
      const auto read = ParseForm(again, *boundary);
      Require(fields->empty() || (read.ok() && read->size() == fields->size()),
              "a form that is written as it was read is another one");
      for (size_t i = 0; i < fields->size(); ++i)
        Require((*read)[i].name == (*fields)[i].name && (*read)[i].value == (*fields)[i].value, "a field that changed");
    } else {
      fuzz::RequireOneLine(fields.status());
    }
  }
  openai::BodyError error;
  const auto form = ParseUploadForm(content_type, body, &error);
  if (!form) {
    fuzz::RequireOneLine(error.status);
    return 0;
  }
  Require(boundary.ok() && !form->data.empty() && form->info.purpose == "batch" && !form->info.filename.empty(),
          "an upload that is not complete");
  return 0;
}
