// An answer that is kept instead of sent: what a route says within the process. Layer: server.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http.h"

namespace coppice::server {

// Of a whole answer, not of a stream. Not thread-safe.
class KeptResponse final : public Responder {
 public:
  void Send(HttpResponse answer) override { response = std::move(answer); }
  void BeginStream() override {}
  void Write(std::string) override {}
  void Write(std::unique_ptr<TextSource>) override {}
  void EndStream() override {}
  void WhenGone(std::function<void()>) override {}

  std::optional<HttpResponse> response;
};

}  // namespace coppice::server
