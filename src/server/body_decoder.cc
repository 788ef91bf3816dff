#include "server/body_decoder.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <new>

namespace coppice::server {
namespace {

constexpr size_t kPiece = size_t{64} << 10;
constexpr int kGzipAlone = 16 + MAX_WBITS;  // inflateInit2: no zlib header, no raw deflate

}  // namespace

bool IsIdentity(std::string_view content_encoding) {
  return content_encoding.empty() || boost::beast::iequals(content_encoding, "identity");
}

bool BodyDecoder::Takes(std::string_view content_encoding) {
  return boost::beast::iequals(content_encoding, "gzip") || boost::beast::iequals(content_encoding, "x-gzip");
}

BodyDecoder::BodyDecoder() : stream_(std::make_unique<z_stream_s>()) {
  if (inflateInit2(stream_.get(), kGzipAlone) != Z_OK) throw std::bad_alloc();
}

BodyDecoder::~BodyDecoder() { inflateEnd(stream_.get()); }

Status BodyDecoder::Put(std::string_view bytes, size_t max_bytes, std::string* body) {
  const auto refuse = [](std::string_view why) {
    return InvalidArgument(fmt::format("Content-Encoding is gzip, and the body is none: {}", why));
  };
  // zlib takes its input as if it might write to it.
  stream_->next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));  // NOLINT
  stream_->avail_in = static_cast<uInt>(bytes.size());
  while (stream_->avail_in > 0) {
    if (done_) return refuse("something follows its end");
    const size_t before = body->size();
    body->resize(std::min(before + kPiece, max_bytes + 1));
    stream_->next_out = reinterpret_cast<Bytef*>(body->data() + before);
    stream_->avail_out = static_cast<uInt>(body->size() - before);
    const int code = inflate(stream_.get(), Z_NO_FLUSH);
    body->resize(body->size() - stream_->avail_out);
    if (body->size() > max_bytes) return OutOfRange(fmt::format("the body has more than {} bytes when it is decoded", max_bytes));
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code != Z_OK && code != Z_STREAM_END) return refuse(stream_->msg == nullptr ? "it is damaged" : stream_->msg);
    done_ = code == Z_STREAM_END;
  }
  return OkStatus();
}

}  // namespace coppice::server
