// Shared by the routes of a server: its options and counters, and of each request the body, the admission, the answer and
// the log line. Layer: server.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/engine/engine.h"
#include "openai/body_error.h"
#include "openai/request.h"
#include "server/access.h"
#include "server/call.h"
#include "server/errors.h"
#include "server/http.h"
#include "server/json_body.h"
#include "server/server_metrics.h"
#include "server/service_options.h"

namespace coppice::server {

// Thread-safe.
class RouteContext {
 public:
  // Both outlive it.
  RouteContext(Engine* engine, const ServiceOptions* options);
  RouteContext(const RouteContext&) = delete;

  Engine& engine() const { return engine_; }
  const ServiceOptions& options() const { return options_; }
  const openai::OpenAiRequestParser& parser() const { return parser_; }
  ServerMetrics& metrics() const { return metrics_; }
  Access& access() { return access_; }

  // Answers the call, and logs it.
  void Answer(const std::shared_ptr<Call>& call, HttpResponse response);
  // With what is wrong in the body.
  void Answer(const std::shared_ptr<Call>& call, const openai::BodyError& error) {
    Answer(call, ErrorResponse(error.status, error.param));
  }
  // Counts and logs a call that needs no answer more.
  void Log(const Call& call, int status) const;
  // Does a part of the call; where that throws, the call is answered with why.
  void Try(const std::shared_ptr<Call>& call, const std::function<void()>& work);

  // Parses the body and frees its text: the call may last for long. Nothing, with the answer given, where it cannot be read.
  // `endpoint`: whose OrderedParts it may have, in the body's object `member`; empty: in the body itself.
  std::optional<JsonBody> TakeBody(const std::shared_ptr<Call>& call, std::optional<openai::Endpoint> endpoint = {},
                                   std::string_view member = {});
  // Access::Admit for `call->admission`; false, with the answer given, where it refuses.
  bool Admit(const std::shared_ptr<Call>& call, const RequestCost& cost);

  // From now on RefuseWhenDraining answers with 503 and `why`, which lives as long as the program.
  void Drain(const char* why) { draining_ = why; }
  // Whether the call was answered with 503, since the server ends.
  bool RefuseWhenDraining(const std::shared_ptr<Call>& call);

 private:
  Engine& engine_;
  const ServiceOptions& options_;
  const openai::OpenAiRequestParser parser_;
  mutable ServerMetrics metrics_;
  Access access_;
  std::atomic<const char*> draining_{nullptr};
};

// Reports ignored fields to the client and the log.
void ReportIgnored(const std::shared_ptr<Call>& call, const std::vector<std::string>& fields);

// Seconds since 1970.
inline int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Route::handle by a method of an object that outlives the route.
template <class Routes>
std::function<void(const std::shared_ptr<Call>&)> HandledBy(Routes* routes, void (Routes::*handler)(const std::shared_ptr<Call>&)) {
  return [routes, handler](const std::shared_ptr<Call>& call) { (routes->*handler)(call); };
}

}  // namespace coppice::server
