// The page at /: a playground and a live view of the prefix tree, as it was at build in src/server/page/. Layer: server.
#pragma once

#include <span>
#include <string_view>

namespace coppice::server {

// A file of a page: `path` is where it is served.
struct PageFile {
  std::string_view path, content_type, text;
};

std::span<const PageFile> PageFiles();
// Sources that a browser may load for the page, and targets that it may send to: this server alone.
inline constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action "
    "'none'; "
    "frame-ancestors 'none'";

}  // namespace coppice::server
