// Bodies that come compressed (RFC 9110, section 8.4: Content-Encoding), decoded as they come. Layer: server.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

struct z_stream_s;

namespace coppice::server {

// Whether a body's Content-Encoding says that it is as it is: there is none, or "identity".
bool IsIdentity(std::string_view content_encoding);

// gzip (RFC 1952). Not thread-safe.
class BodyDecoder {
 public:
  // Whether bodies of this Content-Encoding can be decoded.
  static bool Takes(std::string_view content_encoding);

  BodyDecoder();
  ~BodyDecoder();
  BodyDecoder(const BodyDecoder&) = delete;
  BodyDecoder& operator=(const BodyDecoder&) = delete;

  // Decodes what has come next and appends it to `body`. INVALID_ARGUMENT: it is no gzip; OUT_OF_RANGE: `body` would have more than
  // `max_bytes`.
  Status Put(std::string_view bytes, size_t max_bytes, std::string* body);
  // The bytes put so far are a whole gzip.
  bool done() const { return done_; }

 private:
  std::unique_ptr<z_stream_s> stream_;
  bool done_ = false;
};

}  // namespace coppice::server
